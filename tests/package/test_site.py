# SPDX-License-Identifier: Apache-2.0
"""The sources of the site: nothing is forgotten in it. `make docs` builds it."""

from __future__ import annotations

import importlib
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import jfold as jf
from jfold import blocks

ROOT = Path(jf.__file__).parents[1]
DOCS = ROOT / 'docs'
MODULES = {'jfold': jf, 'jfold.layers': jf.layers}
MODULES |= {'jfold.linen': jf.linen, 'jfold.nnx': jf.nnx}

if not DOCS.exists():
    pytest.skip('installed without its project', allow_module_level=True)


def read(path: Path) -> str:
    """The text of a page."""
    return path.read_text(encoding='utf8')


def test_every_page_is_in_the_contents() -> None:
    """Those of the documentation, and those of other folders that are part of it."""
    contents = re.findall(r'```\{toctree\}\n(.*?)```', read(DOCS / 'index.md'), re.S)
    entries = [x for x in '\n'.join(contents).splitlines() if x and x[0] != ':']
    shown = [re.sub(r'.*<(.*)>', r'\1', x) for x in entries]
    pages = [ROOT / x[1:] if x[0] == '/' else DOCS / x for x in shown]
    kinds = ['.ipynb' if x.parent.name == 'notebooks' else '.md' for x in pages]
    paths = [x.with_suffix(kind) for x, kind in zip(pages, kinds, strict=True)]
    places = '*.md', 'docs/**/*.md', 'examples/*.md', 'benchmarks/*.md', 'tests/*.md'
    places += ('docs/notebooks/*.ipynb',)
    there = {x for place in (*places, 'jfold/*/*.md') for x in ROOT.glob(place)}
    assert len(paths) == len({*paths})
    assert {*paths} == there - {DOCS / 'index.md'}


def reference() -> list[tuple[str, str, str]]:
    """Module, directive and name of each entry of the reference."""
    entries = []
    for path in sorted((DOCS / 'api').glob('*.md')):
        module = ''
        for line in read(path).splitlines():
            directive, _, name = line.removeprefix('.. ').partition(':: ')
            if directive == 'currentmodule':
                module = name
            elif directive.startswith('auto'):
                entries.append((module, directive, name))
    return entries


def directive_of(value: Any) -> str:
    """The directive that documents an object."""
    if not isinstance(value, type):
        return 'autofunction'
    return 'autoexception' if issubclass(value, Exception) else 'autoclass'


def test_every_public_name_is_in_the_reference() -> None:
    """One time, as what it is."""
    names = {('jfold', name) for name in jf.__all__}
    names |= {('jfold.layers', name) for name in jf.layers.__all__}
    names |= {('jfold.linen', 'Fold'), ('jfold.nnx', 'Fold'), ('jfold.nnx', 'Cell')}
    entries = reference()
    assert len(entries) == len({(module, name) for module, _, name in entries})
    assert {(module, name) for module, _, name in entries} == names
    for module, directive, name in entries:
        assert directive == directive_of(getattr(MODULES[module], name)), name


def test_every_block_says_what_it_takes_and_gives() -> None:
    """In a table; what only makes blocks of others says so below."""
    text = read(DOCS / 'api/blocks.md')
    firsts = re.findall(r'^\| (`.*?) \|', text, re.M)
    shown = {x for first in firsts for x in re.findall(r'`(\w+)\(', first)}
    entries = {name for _, _, name in reference() if f':: {name}\n' in text}
    assert shown == entries - {'Block', 'convert_to_block'}
    gathered = {name for name, x in vars(blocks).items() if callable(x)}
    assert gathered - shown <= {'Block', 'Reference', 'convert_to_block'}


def test_pictures_are_what_their_program_draws() -> None:
    drawn = runpy.run_path(str(DOCS / 'site/pictures.py'))['pictures']()
    stored = {path.name: read(path) for path in (DOCS / 'pictures').iterdir()}
    assert drawn == stored


PAGE = """<h1 id="top">x</h1><img src="a.png" alt="b.png">
<script src="https://b.org/x.js"></script><svg role="img"></svg><a href="#top"></a>
<svg role="img"><title>x</title></svg><a href="none.html"></a><a href="#none"></a>
<a href="https://c.org/none"></a>"""


def test_what_is_wrong_with_a_page_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links within the site, files from other hosts, pictures without words."""
    monkeypatch.syspath_prepend(str(DOCS / 'site'))
    check = importlib.import_module('check')
    monkeypatch.setattr(check, 'SITE', tmp_path)
    (tmp_path / 'page.html').write_text(PAGE)
    assert [*check.broken(check.read())] == [
        'page.html: picture without `alt`: a.png',
        'page.html: script from another host: https://b.org/x.js',
        'page.html: SVG without `aria-label` or a title',
        'page.html: no file none.html',
        'page.html: no place #none',
    ]


def test_a_missing_browser_is_an_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(DOCS / 'site'))
    browser = importlib.import_module('browser')
    monkeypatch.setenv('PATH', '')
    message = 'expected Chromium, got none .* on PATH: install it, on Debian by'
    with pytest.raises(FileNotFoundError, match=message):
        browser.Browser('http://127.0.0.1')
