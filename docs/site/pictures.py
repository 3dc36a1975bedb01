# SPDX-License-Identifier: Apache-2.0
"""Pictures of the pages: `python docs/site/pictures.py` writes docs/pictures/.

Two are drawn by `jf.draw`, the others here: trees on their levels, the buffer of
values, and bars of the figures in tables of benchmarks/README.md. Colours are those of
the theme of the site, if there is one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp

import jfold as jf

FOLDER = Path(__file__).resolve().parents[1] / 'pictures'
FIGURES = FOLDER.parents[1] / 'benchmarks/README.md'
BARS, BAR = 330, 15  # the longest bar, the height of one
TREES = [((1, 2), 3), (4, 5), (6, (7, (8, 9)))]
STEP, HEIGHT, LEFT = 40, 52, 78  # between leaves, between levels, of the first leaf
CELL = 27
PEERS = {
    2: 'training, 32 trees of 32 leaves, H = 128',
    4: 'training, 64 trees of 128 leaves, H = 256',
}
LINES = {1: 'its authors', 2: 'TensorFlow Fold', 3: 'jfold'}
STYLE = """<style>
.jfold-picture {
  --text: var(--pst-color-text-base, #1f2328);
  --muted: var(--pst-color-text-muted, #5f6873);
  --line: var(--pst-color-border, #c9d0d7);
}
@media (prefers-color-scheme: dark) {
  .jfold-picture {
    --text: var(--pst-color-text-base, #e4e9ee);
    --muted: var(--pst-color-text-muted, #9aa5b1);
    --line: var(--pst-color-border, #48515c);
  }
}
.jfold-picture text { font: 12px ui-monospace, 'DejaVu Sans Mono', monospace; }
.jfold-picture .middle { text-anchor: middle; }
.jfold-picture .muted { fill: var(--muted); }
.jfold-picture .text { fill: var(--text); }
.jfold-picture .light { fill: #fff; }
.jfold-picture path { fill: none; stroke: var(--muted); stroke-width: 1.3; }
.jfold-picture .level { stroke: var(--line); stroke-dasharray: 2 4; }
.jfold-picture .Embed { fill: #3474b0; }
.jfold-picture .Combine { fill: #b8531a; }
.jfold-picture .Dense { fill: #4b7d2f; }
.jfold-picture .tile { fill: none; stroke: var(--text); stroke-width: 2; }
</style>"""


class Node(NamedTuple):
    """A node of a tree.

    Attributes:
      x: its place from the left, in leaves.
      level: the level on which it runs.
      label: the number of a leaf.
      inputs: the nodes it reads.
    """

    x: float
    level: int
    label: str
    inputs: tuple[Node, ...]


def node_of(tree: Any, leaves: Iterator[float]) -> Node:
    """Return the node of a tree, whose leaves take the places given."""
    if isinstance(tree, int):
        return Node(next(leaves), 1, str(tree), ())
    inputs = tuple(node_of(x, leaves) for x in tree)
    level = max(x.level for x in inputs) + 1
    return Node(sum(x.x for x in inputs) / len(inputs), level, '', inputs)


def below(node: Node) -> Iterator[Node]:
    """Yield a node behind all that it reads."""
    for part in node.inputs:
        yield from below(part)
    yield node


def roots() -> list[Node]:
    """Return the trees, side by side."""
    nodes, first = [], 0.0
    for tree in TREES:
        count = sum(x.isdigit() for x in str(tree))
        nodes.append(node_of(tree, iter([first + k for k in range(count)])))
        first += count + 0.6
    return nodes


def svg(width: int, height: int, parts: list[str]) -> str:
    """Return a picture."""
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} class="jfold-picture"'
    return '\n'.join([f'{head} role="img">', STYLE, *parts, '</svg>\n'])


def text(x: float, y: float, words: str, classes: str) -> str:
    """Return some words."""
    return f'<text x="{x:g}" y="{y:g}" class="{classes}">{words}</text>'


def trees() -> str:
    """Return the picture of trees on their levels."""
    tops = roots()
    top = max(x.level for x in tops) + 1
    width = int(LEFT + STEP * max(x.x for root in tops for x in below(root)) + 24)

    def at(node: Node) -> tuple[float, float]:
        return LEFT + STEP * node.x, 24 + HEIGHT * (top - node.level)

    lines, circles = [], []
    for level in range(1, top + 1):
        y = 24 + HEIGHT * (top - level)
        lines.append(text(0, y + 4, f'level {level}', 'muted'))
        lines.append(f'<path class="level" d="M{LEFT - 8} {y}H{width}"/>')
    for root in tops:
        for node in below(Node(root.x, top, '', (root,))):
            x, y = at(node)
            for part in node.inputs:
                lines.append('<path d="M{} {}L{} {}"/>'.format(x, y, *at(part)))
            last = 'Dense' if node.level == top else 'Combine'
            kind = 'Embed' if node.label else last
            circles.append(f'<circle cx="{x:g}" cy="{y:g}" r="12" class="{kind}"/>')
            circles.append(text(x, y + 4, node.label, 'light middle'))
    y = 24 + HEIGHT * top
    for place, kind in enumerate(('Embed', 'Combine', 'Dense')):
        x = LEFT + 110 * place
        circles.append(f'<circle cx="{x}" cy="{y - 10}" r="7" class="{kind}"/>')
        circles.append(text(x + 14, y - 6, kind, 'text'))
    return svg(width, y + 6, lines + circles)


def buffer() -> str:
    """Return the picture of the buffer of values, and of what a tile reads."""
    nodes = [node for root in roots() for node in below(root)]
    rows = sorted(nodes, key=lambda x: x.level)
    place = {id(node): row for row, node in enumerate(rows)}
    tile = [node for node in rows if node.level == 2]
    top, width = 68, CELL * len(rows) + 2
    parts = []
    for level in range(1, rows[-1].level + 1):
        those = [place[id(x)] for x in rows if x.level == level]
        middle = CELL * (those[0] + len(those) / 2) + 1
        words = f'level {level}' if len(those) > 1 else str(level)
        parts.append(text(middle, top + CELL + 36, words, 'muted middle'))
    for node in rows:
        row, kind = place[id(node)], 'Embed' if node.label else 'Combine'
        x = CELL * row + 1
        size = f'width="{CELL - 2}" height="{CELL}"'
        parts.append(f'<rect x="{x}" y="{top}" {size} rx="3" class="{kind}"/>')
        parts.append(text(x + 12, top + 18, node.label, 'light middle'))
        parts.append(text(x + 12, top + CELL + 16, str(row), 'muted middle'))
    for node in tile:
        end = CELL * place[id(node)] + 13
        for part in node.inputs:
            start = CELL * place[id(part)] + 13
            high = top - 16 - 7 * (place[id(node)] - place[id(part)])
            curve = f'M{start} {top}C{start} {high} {end} {high} {end} {top}'
            parts.append(f'<path d="{curve}"/>')
    first = CELL * place[id(tile[0])]
    size = f'width="{CELL * len(tile)}" height="{CELL + 4}"'
    parts.append(f'<rect x="{first}" y="{top - 2}" {size} rx="4" class="tile"/>')
    parts.append(text(first + CELL * 3 + 8, top - 10, 'one tile', 'text'))
    return svg(width, top + CELL + 44, parts)


def table(head: str) -> list[list[str]]:
    """Return the rows of the table of recorded figures whose head begins so."""
    lines = FIGURES.read_text(encoding='utf8').splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith(f'| {head} |'))
    rows = itertools.takewhile(lambda line: line.startswith('|'), lines[first + 2 :])
    return [[cell.strip() for cell in row.strip('|').split('|')] for row in rows]


def bars(head: str, columns: dict[int, str], relative: bool) -> str:
    """Return bars of some columns of a table, a group for each row.

    Args:
      head: how the head of the table begins.
      columns: the captions of columns by their numbers.
      relative: whether figures are divided by those of the first row.
    """
    rows = table(head)
    kinds = dict(zip(columns, ('Embed', 'Combine', 'Dense'), strict=False))
    left = 8 + 7.3 * max(len(row[0]) for row in rows)
    figures = {(n, k): float(row[k]) for n, row in enumerate(rows) for k in columns}
    if relative:
        figures = {(n, k): x / figures[0, k] for (n, k), x in figures.items()}
    scale = BARS / max(figures.values())
    parts, y = [], 8
    for n, row in enumerate(rows):
        parts.append(text(0, y + (BAR * len(columns)) / 2 + 4, row[0], 'text'))
        for k in columns:
            length = scale * figures[n, k]
            size = f'width="{length:.1f}" height="{BAR - 2}"'
            parts.append(f'<rect x="{left:g}" y="{y}" {size} class="{kinds[k]}"/>')
            label = f'{figures[n, k]:.2f}' if relative else f'{figures[n, k]:g}'
            parts.append(text(round(left + length + 6), y + 11, label, 'muted'))
            y += BAR
        y += 8
    for n, (k, caption) in enumerate(columns.items()):
        place = y + 8 + 18 * n
        parts.append(
            f'<circle cx="{left + 7:g}" cy="{place}" r="6" class="{kinds[k]}"/>'
        )
        parts.append(text(left + 20, place + 4, caption, 'text'))
    return svg(int(left + BARS + 50), y + 18 * len(columns) + 4, parts)


def model_of() -> jf.Model:
    """Return the first model of the README, with functions in place of modules."""
    tree = jf.ForwardDeclaration(name='tree')
    embed = jf.Function(lambda x: jnp.full(16, x, 'float32'), name='Embed')
    combine = jf.Function(lambda left, right: left + right, name='Combine')
    pair = jf.Record((tree(), tree())) >> combine
    tree.resolve_to(jf.OneOf(type, {int: jf.Scalar('int32') >> embed, tuple: pair}))
    return jf.compile(tree() >> jf.Function(lambda x: x[:10], name='Dense'))


def pictures() -> dict[str, str]:
    """Return all pictures by the names of their files."""
    model = model_of()
    return {
        'trees.svg': trees(),
        'levels.svg': jf.draw(model.schedule(TREES)).svg,
        'buffer.svg': buffer(),
        'operations.svg': jf.draw(model).svg,
        'peers.svg': bars('one thread', PEERS, relative=True),
        'lines.svg': bars('model', LINES, relative=False),
    }


if __name__ == '__main__':
    FOLDER.mkdir(exist_ok=True)
    for name, picture in pictures().items():
        (FOLDER / name).write_text(picture, encoding='utf8')
