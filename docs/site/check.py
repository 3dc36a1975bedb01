# SPDX-License-Identifier: Apache-2.0
"""Check the built site: `make docs-check`.

Without a browser: links within the site, files from other hosts, alternative texts. In
Chromium, in light and dark at the width of a phone: errors in the console and overflow;
of pages of source some are opened. And the search has to find a name.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import itertools
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

from browser import Browser

SITE = Path(__file__).resolve().parents[2] / 'build/docs'
PHONE = 390  # pixels
COLOURS = 'light', 'dark'
WIDTHS = PHONE, 1280
PICTURED = 'docs/index.html', 'docs/concepts.html', 'docs/api/models.html'
SEARCHED = 'ForwardDeclaration'
LOADED = {'script': 'src', 'link': 'href', 'img': 'src', 'iframe': 'src'}
WIDEST = """(() => {
  const width = document.documentElement.scrollWidth;
  if (width <= PHONE) return '';  // the window itself may have grown
  const wide = [...document.querySelectorAll('article *')].filter(
    x => x.getBoundingClientRect().right > PHONE && !x.closest('pre, .pst-scrollable'));
  return `${width} px: ` + wide.slice(0, 3).map(
    x => x.tagName.toLowerCase() + ' ' + x.textContent.slice(0, 40)).join('; ');
})()"""
THEME = """new Promise(done => {
  const ended = Date.now() + 5000;
  const look = () => {
    const now = document.documentElement.dataset.theme === 'COLOUR';
    if (now || Date.now() > ended) done(now); else setTimeout(look, 10);
  };
  look();
})"""
FOUND = """new Promise(done => {
  const links = () => [...document.querySelectorAll('#search-results li a')];
  const ended = Date.now() + 10000;
  const look = () => links().length || Date.now() > ended
    ? done(links().map(x => x.textContent).join('|')) : setTimeout(look, 50);
  look();
})"""


@dataclass
class Page(HTMLParser):
    """What a page links to, loads and shows.

    Attributes:
      path: of its file, relative to the site.
      links: the targets of its links.
      names: what links can lead to within it.
      problems: pictures without alternative texts, and files from other hosts.
    """

    path: str
    links: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    _is_unnamed: bool = False  # the tag before is an SVG without a name

    def __post_init__(self) -> None:
        super().__init__()
        self.feed((SITE / self.path).read_text(encoding='utf8'))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag says."""
        options = {name: value or '' for name, value in attrs}
        self.names.update(options[x] for x in ('id', 'name') if x in options)
        if tag == 'a' and 'href' in options:
            self.links.append(options['href'])
        source = options.get(LOADED.get(tag, ''), '')
        is_own = options.get('rel') in ('next', 'prev', 'canonical')
        if source.startswith(('http:', 'https:', '//')) and not is_own:
            self.problems.append(f'{tag} from another host: {source}')
        if tag == 'img' and options.get('alt', '.png').endswith('.png'):
            self.problems.append(f'picture without `alt`: {source}')
        if self._is_unnamed and tag != 'title':
            self.problems.append('SVG without `aria-label` or a title')
        is_picture = tag == 'svg' and options.get('role') == 'img'
        self._is_unnamed = is_picture and not options.get('aria-label')


def read() -> dict[str, Page]:
    """Return the pages of the site, by their paths."""
    paths = sorted(SITE.rglob('*.html'))
    names = [x.relative_to(SITE).as_posix() for x in paths if '_static' not in x.parts]
    return {name: Page(name) for name in names}


def broken(pages: dict[str, Page]) -> Iterator[str]:
    """Yield the links that lead nowhere within the site, and what pages have noted."""
    for page in pages.values():
        yield from (f'{page.path}: {x}' for x in page.problems)
        for link in page.links:
            path, name = urldefrag(link)
            if ':' in path or path.startswith('//'):
                continue
            here = SITE / page.path
            file = here.parent / unquote(path) if path else here
            known = file.resolve().relative_to(SITE).as_posix() if file.exists() else ''
            if not file.is_file():
                yield f'{page.path}: no file {link}'
            elif name and known in pages and unquote(name) not in pages[known].names:
                yield f'{page.path}: no place {link}'


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files without a word."""

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def shown(pages: dict[str, Page], pictures: Path | None) -> Iterator[str]:
    """Yield what is wrong with pages in a browser; save pictures of some."""
    handler = functools.partial(Handler, directory=str(SITE))
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host = f'http://127.0.0.1:{server.server_port}'
    with Browser(host) as browser:
        sources = [x for x in pages if x.startswith('files/')]
        for path in sorted({*pages} - {'index.html', *sources}) + sources[::20]:
            browser.open(f'{host}/{path}', width=PHONE)
            for colour in COLOURS:
                browser.colour(colour)
                if not browser.value(THEME.replace('COLOUR', colour)):
                    yield f'{path}: expected to become {colour}'
                wide = browser.value(WIDEST.replace('PHONE', str(PHONE)))
                if wide:
                    yield f'{path}, {colour}: wider than {PHONE} px: {wide}'
                yield from (f'{path}, {colour}: {x}' for x in browser.problems)
                browser.problems.clear()
        browser.open(f'{host}/search.html?q={SEARCHED}', width=1280)
        results = browser.value(FOUND)
        if SEARCHED not in results:
            yield f'search: expected {SEARCHED} among its results, got {results!r}'
        yield from (f'search: {x}' for x in browser.problems)
        for path, width, colour in itertools.product(PICTURED, WIDTHS, COLOURS):
            if pictures is not None:
                browser.open(f'{host}/{path}', width=width)
                browser.colour(colour)
                browser.value(THEME.replace('COLOUR', colour))
                name = f'{Path(path).stem}-{width}-{colour}.png'
                (pictures / name).write_bytes(browser.picture())
    server.shutdown()


def main() -> int:
    """Print all problems; return 1 if there is one, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument('--pictures', type=Path, help='a folder for pictures of pages')
    pictures = parser.parse_args().pictures
    if not (SITE / 'index.html').exists():
        print(f'expected a site at {SITE}: run `make docs`')
        return 1
    begin, pages = time.perf_counter(), read()
    try:
        problems = [*broken(pages), *shown(pages, pictures)]
    except FileNotFoundError as error:
        problems = [str(error)]
    print(*problems, sep='\n', end='\n' if problems else '')
    links = sum(len(x.links) for x in pages.values())
    seconds = f'{time.perf_counter() - begin:.0f} s'
    print(f'{len(pages)} pages, {links} links, {len(problems)} problems, {seconds}')
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
