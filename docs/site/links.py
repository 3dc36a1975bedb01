# SPDX-License-Identifier: Apache-2.0
"""Links from names in pages and docstrings to the reference, and to other libraries."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sources import LINKED, ROOT, definition, page_of
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.osutil import relative_uri

import jfold as jf

# The address of a name of another library; `{name}` stands for it.
OTHERS = {
    'jax.typing': 'https://docs.jax.dev/en/latest/jax.typing.html#{name}',
    'jax.sharding': 'https://docs.jax.dev/en/latest/jax.sharding.html#{name}',
    'jax': 'https://docs.jax.dev/en/latest/_autosummary/{name}.html',
    'numpy': 'https://numpy.org/doc/stable/reference/generated/{name}.html',
    'flax.linen': 'https://flax-linen.readthedocs.io/en/latest/api_reference/flax.linen/index.html',
    'flax.nnx': 'https://flax.readthedocs.io/en/latest/api_reference/flax.nnx/index.html',
    'flax.core': 'https://flax-linen.readthedocs.io/en/latest/api_reference/flax.core.html',
    'chex': 'https://chex.readthedocs.io/en/latest/api.html',
    'optax': 'https://optax.readthedocs.io/en/latest/search.html?q={name}',
}
# Names of annotations that are shown as they are, and where they lead.
ALIASES = {
    'jax.jaxlib._jax.Array': 'jax.Array',
    'jax.P': 'jax.sharding.PartitionSpec',
    'ArrayLike': 'jax.typing.ArrayLike',
    'ArrayTree': 'chex.ArrayTree',
    'Convertible': 'jfold.convert_to_block',
    'DTypeLike': 'jax.typing.DTypeLike',
    'Rngs': 'jax.random.key',
    'Sharding': 'jax.sharding.Sharding',
    'TypeLike': 'jfold.convert_to_type',
}
PYTHON = 'https://docs.python.org/3/library/{page}.html#{name}'
BUILT_IN = {
    **dict.fromkeys(('None', 'True', 'False', 'Ellipsis'), 'constants'),
    **dict.fromkeys(('int', 'float', 'bool', 'str', 'bytes', 'tuple'), 'stdtypes'),
    **dict.fromkeys(('list', 'dict', 'set', 'range', 'object', 'slice'), 'stdtypes'),
}
MODULES = {'layers': jf.layers, 'linen': jf.linen, 'nnx': jf.nnx}
BARE = {'compose', 'recursive'}  # besides names with a capital
# Names in pages and docstrings of what is of some class.
USUAL = {
    'batch': 'Batch',
    'batches': 'Batches',
    'corpus': 'Corpus',
    'model': 'Model',
    'schedule': 'Schedule',
}
OF_LAYERS = {'docs/blocks', 'docs/api/layers'}  # where a bare name may be one of these
# Where a bare name may be one of another library.
ELSEWHERE = {'docs/from-fold', 'docs/from-pytorch', 'docs/from-padded-jax'}


def public() -> Iterator[tuple[str, Any]]:
    """Public objects by the names that users write, without `jf.`."""
    for name in jf.__all__:
        yield name, getattr(jf, name)
    for name in jf.layers.__all__:
        yield f'layers.{name}', getattr(jf.layers, name)
    for name in 'linen.Fold', 'nnx.Fold', 'nnx.Cell':
        yield name, getattr(MODULES[name.split('.')[0]], name.split('.')[1])


PUBLIC = dict(public())
# Where an object is defined, to where it is documented.
HOMES = {
    f'{x.__module__}.{x.__qualname__}': f'jfold.{name}'
    for name, x in PUBLIC.items()
    if hasattr(x, '__qualname__')
}


def documented(text: str, docname: str) -> str | None:
    """Return the name in the reference that code in a sentence stands for, if any."""
    bare = docname not in ELSEWHERE
    name = re.sub(r'\(.*\)$', '', text, flags=re.DOTALL)
    name, marked = re.subn(r'^(jf|jfold)\.', '', name)
    head, _, attribute = name.rpartition('.')
    is_plain = bare and (name[:1].isupper() or name in BARE)
    if name in PUBLIC and (marked or is_plain):
        return f'jfold.{name}'
    if f'layers.{name}' in PUBLIC and docname in OF_LAYERS:
        return f'jfold.layers.{name}'
    owner = PUBLIC.get(head := USUAL.get(head, head))
    if inspect.isclass(owner) and not attribute.startswith('_'):
        return f'jfold.{head}.{attribute}' if hasattr(owner, attribute) else None
    return None


def shown(docname: str, text: str) -> str | None:
    """Return the page of the file that a page names, from its folder or the root."""
    for folder in Path(docname).parent, Path():
        path = folder / text
        if path.suffix == '.md' and (ROOT / path).is_file():
            return f'{path.with_suffix("").as_posix()}.html'
        if path.suffix == '.py' and (ROOT / path).is_file():
            LINKED.add(path)
            return f'{page_of(path)}.html'
    return None


def link_code(app: Sphinx, document: nodes.document) -> None:
    """Make code in sentences that names something public a link to the reference."""
    for literal in [*document.findall(nodes.literal)]:
        within = set()
        node = literal.parent
        while node is not None:
            within.add(type(node).__name__)
            node = node.parent
        if within & {'reference', 'pending_xref', 'title', 'download_reference'}:
            continue
        target = documented(literal.astext(), app.env.docname)
        page = shown(app.env.docname, literal.astext())
        if page:
            uri = relative_uri(app.builder.get_target_uri(app.env.docname), page)
            link = nodes.reference('', '', internal=True, refuri=uri)
            literal.replace_self(link)
            link += literal
        elif target:
            options = {'refdomain': 'py', 'reftype': 'obj', 'reftarget': target}
            xref = pending_xref('', refdoc=app.env.docname, **options)
            literal.replace_self(xref)
            xref += literal


def address(target: str) -> str | None:
    """Return the address of a name of Python or of another library, if it is known."""
    for package, pattern in OTHERS.items():
        if target == package or target.startswith(f'{package}.'):
            return pattern.format(name=target)
    top = target.partition('.')[0]
    if target in BUILT_IN:
        return PYTHON.format(page=BUILT_IN[target], name=target)
    if isinstance(getattr(__builtins__, target, None), type):
        return PYTHON.format(page='exceptions', name=target)
    if top in sys.stdlib_module_names:
        return PYTHON.format(page=target.rpartition('.')[0], name=target)
    return None


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.Node | None:
    """Resolve a name by where it is documented, here or elsewhere."""
    if node.get('refdomain') != 'py':
        return None
    target = ALIASES.get(node['reftarget'], node['reftarget'])
    if target in HOMES or target.removeprefix('jfold.') in PUBLIC:
        home = HOMES.get(target, target)
        where = env, node['refdoc'], app.builder, 'obj', home
        return env.domains['py'].resolve_xref(*where, node, content)
    if target.startswith('jfold.'):  # not public, or what a public class inherits
        page = definition(target)
        if page is None:
            return content
        uri = relative_uri(app.builder.get_target_uri(node['refdoc']), page)
        return nodes.reference('', '', content, internal=True, refuri=uri)
    uri = address(target)
    return uri and nodes.reference('', '', content, internal=False, refuri=uri)


def name_pages(app: Sphinx, env: BuildEnvironment) -> None:
    """Name the README by what it is on the site, where the front page is `jfold`."""
    for titles in env.titles, env.longtitles:
        titles['README'] = nodes.title('', 'First steps')


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the passes."""
    app.connect('env-updated', name_pages)
    app.connect('doctree-read', link_code)
    app.connect('missing-reference', resolve)
    return {'parallel_read_safe': True, 'parallel_write_safe': True}
