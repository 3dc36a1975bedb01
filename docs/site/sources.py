# SPDX-License-Identifier: Apache-2.0
"""What links to files of the project lead to: pages of source, and pictures."""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util.osutil import relative_uri

import jfold

ROOT = Path(__file__).resolve().parents[2]
LINKED: set[Path] = set()  # files and folders, relative to the root


def page_of(path: Path) -> str:
    """Return the name of the page that shows a file or folder."""
    return f'files/{path.as_posix()}'


class LinkFiles(SphinxTransform):
    """Links to files and folders that are no pages lead to pages that show them.

    A link may also be relative to the root, as those of the README, of which the front
    page includes parts.
    """

    default_priority = 870  # before Sphinx collects files to be copied

    def apply(self, **options: Any) -> None:
        """Replace such links in a document."""
        here = Path(self.env.docname).parent
        kinds = addnodes.download_reference, addnodes.pending_xref
        for node in [*self.document.findall(lambda x: isinstance(x, kinds))]:
            target = node['reftarget']
            if node.get('refdomain') or node.get('reftype') != 'myst':
                continue
            paths = Path(os.path.normpath(here / target)), Path(target)
            path = next((x for x in paths if (ROOT / x).exists()), None)
            if target and path is not None:
                page = path.with_suffix('').as_posix()
                if page not in self.env.found_docs:
                    page = page_of(path)
                    LINKED.add(path)
                uri = self.app.builder.get_target_uri(page)
                at = self.app.builder.get_target_uri(self.env.docname)
                where = {'internal': True, 'refuri': relative_uri(at, uri)}
                node.replace_self(nodes.reference('', '', *node.children, **where))


class PutPictures(SphinxTransform):
    """Pictures of `docs/pictures/` become part of the page, and take its colours."""

    default_priority = LinkFiles.default_priority

    def apply(self, **options: Any) -> None:
        """Replace references to such pictures in a document."""
        folder = ROOT / 'docs/pictures'
        for node in [*self.document.findall(nodes.image)]:
            path = Path(os.path.normpath(ROOT / self.env.docname / '..' / node['uri']))
            if path.parent == folder:
                label = escape(node['alt'], quote=True)
                text = path.read_text(encoding='utf8')
                text = text.replace('role="img"', f'role="img" aria-label="{label}"', 1)
                html = f'<div class="picture">{text}</div>'
                node.parent.replace_self(nodes.raw('', html, format='html'))


def definition(name: str) -> str | None:
    """Return where the object of a dotted name is defined, as a path and a line."""
    value: Any = jfold
    try:
        for part in name.split('.')[1:]:
            value = getattr(value, part)
            value = inspect.unwrap(getattr(value, 'fget', None) or value)
        path = Path(inspect.getsourcefile(value) or '').resolve().relative_to(ROOT)
        line = inspect.getsourcelines(value)[1]
    except (AttributeError, TypeError, ValueError, OSError):
        return None
    LINKED.add(path)
    return f'{page_of(path)}.html#line-{line}'


def linkcode_resolve(domain: str, info: dict[str, str]) -> str | None:
    """Return the address of a definition, for pages in `docs/api/`."""
    line = definition(f'{info["module"]}.{info["fullname"]}')
    return line and f'../../{line}'


def listing(folder: Path) -> str:
    """Return a table of the files of a folder, with the first line of each."""
    rows = []
    for path in sorted((ROOT / folder).glob('*.py')):
        about = ast.get_docstring(ast.parse(path.read_text(encoding='utf8'))) or ''
        first = escape(about.partition('\n')[0])
        link = f'<a href="{folder.name}/{path.name}.html">{path.name}</a>'
        rows.append(f'<tr><td>{link}</td><td>{first}</td></tr>')
    table = f'<table class="table">{"".join(rows)}</table>'
    return f'<div class="pst-scrollable-table-container">{table}</div>'


def collect_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for each file or folder that something links to."""
    folders = [x for x in LINKED if (ROOT / x).is_dir()]
    files = {x for x in LINKED if x not in folders}
    files |= {x.relative_to(ROOT) for f in folders for x in (ROOT / f).glob('*.py')}
    for path in sorted({*files, *folders}):
        if path in files:
            text = (ROOT / path).read_text(encoding='utf8')
            body = app.builder.highlighter.highlight_block(
                text, 'python', linenos='inline', lineanchors='line'
            )
        else:
            body = listing(path)
        title = escape(path.as_posix())
        body = f'<div class="source"><h1><code>{title}</code></h1>{body}</div>'
        yield page_of(path), {'title': title, 'body': body}, 'page.html'


def lead_in(app: Sphinx, error: Exception | None) -> None:
    """Write the page at the top, which leads to the front page."""
    front = f'{app.config.root_doc}.html'
    (Path(app.outdir) / 'index.html').write_text(
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="refresh" content="0; url={front}">'
        f'<title>jfold</title></head><body><a href="{front}">jfold</a></body></html>\n',
        encoding='utf8',
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the transforms and the pages."""
    app.add_transform(LinkFiles)
    app.add_transform(PutPictures)
    app.config.linkcode_resolve = linkcode_resolve
    app.connect('html-collect-pages', collect_pages)
    app.connect('build-finished', lead_in)
    return {'parallel_read_safe': False}
