# SPDX-License-Identifier: Apache-2.0
"""Docstrings as reStructuredText, and signatures of what users make themselves."""

from __future__ import annotations

import re
from typing import Any

from jax.typing import ArrayLike, DTypeLike
from sphinx.application import Sphinx
from sphinx.domains.python import PyObject
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.util import inspect
from sphinx.util.typing import stringify_annotation

import jfold as jf
from jfold.base.keys import Rngs
from jfold.combinators import Convertible
from jfold.scheduling.shards import Sharding
from jfold.scheduling.spec import SAVE_PRODUCTS
from jfold.types import TypeLike

GOOGLE = Config(
    napoleon_use_ivar=True, napoleon_use_rtype=False, napoleon_attr_annotations=False
)
# Classes besides blocks and types of values whose constructors users call.
CONSTRUCTED = jf.Ragged, jf.MetricValues, jf.Schedule, jf.nnx.Fold
# Types that are long when they are spelled out, the longest first.
SHORT = sorted(
    (
        (short, stringify_annotation(long, 'smart'))
        for short, long in {
            'ArrayLike': ArrayLike,
            'Convertible': Convertible,
            'DTypeLike': DTypeLike,
            'Rngs': Rngs,
            'Sharding': Sharding,
            'TypeLike': TypeLike,
        }.items()
    ),
    key=lambda pair: -len(pair[1]),
)
OF_FLAX = r', parent: .*, name: .*(?=\)$)'  # fields that Flax adds to modules


def process(
    app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Turn the lines of a docstring into reStructuredText, in place."""
    text = with_escapes('\n'.join(lines))
    text = re.sub(r'(?<!:):\n\n(?=    )', '::\n\n', text)  # indented code
    text = re.sub(r'(`[^`\n]+`)(?=s\b)', r'\1\\ ', text)
    text = re.sub(r'Raises:\n +The errors of', 'Raises the errors of', text)
    # Of a property, napoleon takes what stands before a colon for a type.
    kind = 'method' if what in ('property', 'attribute') else what
    parts = app, kind, name, value, options
    lines[:] = str(GoogleDocstring(text, GOOGLE, *parts)).split('\n')


def with_escapes(text: str) -> str:
    """Return a docstring in which shapes such as [n, *shape] are no emphasis."""

    def escaped(match: re.Match[str]) -> str:
        line = match.string[match.string.rfind('\n', 0, match.start()) + 1 :]
        is_markup = line.lstrip().startswith(('>>>', '...', '*'))
        return match[0] if is_markup else f'\\{match[0]}'

    parts = text.split('`')
    parts[::2] = (re.sub(r'(?<=[\[ (])\*(?=\w)', escaped, x) for x in parts[::2])
    return '`'.join(parts)


def signature(
    app: Sphinx, what: str, name: str, value: Any, options: Any, args: str, result: str
) -> tuple[str, str | None] | None:
    """Return a signature with short types; none for classes that users do not make."""
    if not args:
        return None
    if value is jf.nnx.Fold:  # NNX calls its classes by rules of its own
        own = inspect.signature(value.__init__, bound_method=True)
        options = {'show_return_annotation': False, 'unqualified_typehints': True}
        args = inspect.stringify_signature(own, **options)
    for short, long in [*SHORT, (repr(SAVE_PRODUCTS), 'SAVE_PRODUCTS')]:
        args = args.replace(long, short)
    if what not in ('class', 'exception') or value in CONSTRUCTED:
        return args, result
    is_block = issubclass(value, jf.Block) and value is not jf.Block
    is_layer = value.__module__.startswith('jfold.flax.l')  # layers, linen
    args = re.sub(OF_FLAX, '', args)
    if is_block or is_layer or name.endswith('Type'):
        return args, result
    return '', None


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect both passes; attributes are called so, not variables."""
    for kind in PyObject.doc_field_types:
        kind.label = 'Attributes' if kind.name == 'variable' else kind.label
    app.connect('autodoc-process-docstring', process)
    app.connect('autodoc-process-signature', signature)
    return {'parallel_read_safe': True}
