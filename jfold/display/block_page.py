# SPDX-License-Identifier: Apache-2.0
"""The display of blocks: an indented tree with names, and with types if known."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TypeAlias

from jfold import blocks as b
from jfold.base.printing import callable_name, short_text
from jfold.display import markup as m
from jfold.display.texts import cut
from jfold.language.analysis import users
from jfold.language.partial import Types, partial_types
from jfold.lower import FAMILIES

SECONDS = 0.03  # for types; what has none by then is shown without
MANY, SHOWN = 1000, 120  # blocks, of more no types are inferred; lines
Line: TypeAlias = tuple[int, str, b.Block]  # depth, key in the block around, block


def block_page(block: b.Block) -> str:
    """Return the HTML of a block."""
    return m.page('Block', [m.span('code', short_text(block))], block_trees(block))


def block_trees(block: b.Block, known: Types | None = None) -> m.Markup:
    """Return collapsible trees of a block and of the declarations inside it.

    With `known` types, as of a model, folds are closed, and nothing is inferred.
    """
    assert FAMILIES  # which registers the rules of all blocks
    inside, types, problem = users(block), known or {}, ''
    if known is None and len(inside) <= MANY:
        types, problem = partial_types(block, SECONDS)
    declarations = (x.declaration for x in inside if isinstance(x, b.Reference))
    named = [(x.name, x.target) for x in dict.fromkeys(declarations) if x.target]
    parts, left = [m.line('bad', cut(problem, 600))], SHOWN
    for number, (name, root) in enumerate([('expression', block), *named]):
        if left <= 0:
            parts.append(m.more(1 + len(named) - number, 'declarations'))
            break
        lines = _lines(root)
        rows = [_row(line, types) for line in itertools.islice(lines, left)]
        rest = m.more(sum(1 for _ in itertools.islice(lines, 10_000)), 'blocks')
        parts.append(
            m.folded(cut(name), m.table([], rows, 'll'), rest, opened=known is None)
        )
        left -= len(rows)
    return m.joined(parts)


def _row(line: Line, types: Types) -> tuple[m.Markup, m.Markup]:
    depth, key, block = line
    name = type(block).__name__ if _inside(block) else short_text(block)
    if isinstance(block, b.OneOf) and callable(block.key_fn):
        name = f'OneOf by {callable_name(block.key_fn)}'
    width = f'width: calc({min(depth, 40)} * 1.2em)'
    guides = m.element('span', class_='jf-indent', style=width)
    shown = m.joined([guides, m.span('muted', cut(key, 30), ' ' if key else ''), name])
    if block not in types:
        return shown, m.Markup('')
    input_, output = (cut(short_text(x)) for x in types[block])
    return shown, m.span('muted', input_, ' → ', m.span('type', output))


def _lines(root: b.Block) -> Iterator[Line]:
    """Yield a line for each use of a block in a tree of blocks.

    The lines of inner blocks follow only the first use of the block that holds them.
    """
    waiting, seen = [(0, '', root)], set[b.Block]()
    while waiting:
        depth, key, block = waiting.pop()
        yield depth, key, block
        if block not in seen:
            seen.add(block)
            waiting += [(depth + 1, *part) for part in reversed(_inside(block))]


def _inside(block: b.Block) -> list[tuple[str, b.Block]]:
    """Return the blocks directly inside a block, each with its key, or ''."""
    parts, text = list[tuple[str, b.Block]](), ''
    if type(block)._pieces is not b.Block._pieces:
        for piece in block._pieces():
            if isinstance(piece, b.Block):
                parts.append((text.strip(', ') if text.endswith(': ') else '', piece))
            text = piece if isinstance(piece, str) else ''
    return parts
