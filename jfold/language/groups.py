# SPDX-License-Identifier: Apache-2.0
"""The function that reduces items by groups, of 2, 4 or 8 neighbours at once."""

from __future__ import annotations

import enum
import functools
from typing import Any

import jax.numpy as jnp

from jfold import combinators as c
from jfold.functions import neutral
from jfold.language import symbols as s
from jfold.language.lines import INDENT, Lines, Maker
from jfold.language.typed import Typed
from jfold.types import TensorType, TupleType

GROUPS = 2, 4, 8  # items that are combined at once, where any grouping will do


class Fill(enum.Enum):
    """What fills a group that is too short for its operation."""

    NOTHING = enum.auto()  # there are no such groups
    ZERO = enum.auto()
    # An infinite constant would take a part of the gradient where all items are as
    # large.
    LAST = enum.auto()  # its last item, once more


def filled_by(block: c.Reduce) -> Fill | None:
    """What fills groups, `None` of what is not combined in groups."""
    if not (block.associative and isinstance(block.combine, c.Function)):
        return None
    fn = block.combine.fn
    if fn is jnp.add:
        return Fill.ZERO
    is_one = any(fn is each for each in (jnp.maximum, jnp.minimum))
    return Fill.LAST if is_one else Fill.NOTHING


def is_by_groups(node: Typed) -> bool:
    """Whether items are combined in groups."""
    combine = node.parts[0]
    assert combine is not None
    # A group's operation has one key, but each of its steps draws.
    draws = combine.layer is not None and combine.layer.rngs
    return node.facts is not None and not draws


def group_function(
    node: Typed, items: list[Any], w: Lines
) -> tuple[str, tuple[s.Tensor, ...]]:
    """The name of the function, and the leaves of what it gives.

    Args:
      items: the leaves of the items, with all makers of an item in any round.
    """
    g, combine = w.g, node.parts[0]
    assert combine is not None and combine.layer is not None
    item, operations = node.output, []
    for size in GROUPS:
        number = g.tables.operation(
            combine.layer, TupleType((item,) * size), item, from_left=size > 2
        )
        operations.append(g.group_operation(number, node, size))
    apart = g.chosen.split or g.chosen.kinds is not None
    key = ('groups', *operations, *([node, w.name] if apart else []))
    inputs = [each.makers for each in items]
    outputs = list(inputs)
    makers: list[list[Maker]] = []
    numbers: list[int] = []
    for o, size in zip(operations, GROUPS, strict=True):
        given = [s.Tensor('', x.type, x.makers) for x in items] * size
        o = g.applied(o, given, w)
        g.groups_written.append((str(node), o))
        numbers.append(o)
        makers.append(g.makers_of(o))
        for k, _ in enumerate(items):
            outputs[k] |= g.bit(o, k)
    if key not in g.written:
        wanted = {'add': 'sum_of', 'maximum': 'max_of', 'minimum': 'min_of'}
        name = g.name(wanted.get(combine.layer.name, 'reduced'))
        g.written[key] = name
        _write(name, numbers, makers, node, items, w)
    made = (s.Tensor('', x.type, y) for x, y in zip(items, outputs, strict=True))
    return g.written[key], tuple(made)


def _write(
    name: str,
    operations: list[int],
    makers: list[list[Maker]],
    node: Typed,
    items: list[Any],
    w: Lines,
) -> None:
    g, combine, width = w.g, node.parts[0], len(items)
    assert combine is not None
    fill = 'group[-1]' if node.facts is Fill.LAST else ''
    if node.facts is Fill.ZERO:
        item = node.output
        assert isinstance(item, TensorType)
        zero = neutral(item.shape, item.dtype)
        constant = g.tables.constant((item, 'neutral'), zero)
        fill = str(g.constant_place(constant)[1])
    tapes = []
    for o, size in zip(operations, GROUPS, strict=True):
        rows = g.rows_of(o, size * width)
        rows.tape = rows.tape or g.tape(f'{name}_{size}', size * width, g.about(o))
        rows.counter = rows.tape
        rows.columns = [*range(size * width)]
        g.places[rows.key] = g.places.get(rows.key, 0) + 2  # never in step
        tapes.append(rows.tape)

    def record(k: int, into: str) -> list[str]:
        """Records a group of so many items, or less."""
        size, tape, own = GROUPS[k], tapes[k], makers[k]
        entries = 'group' if width == 1 else 'entries'
        lines = [] if width == 1 else ['entries = [y for x in group for y in x]']
        level = _level_text(operations[k], own, entries, items, w)
        numbers = [f'{level}{each.name} + len({tape.name})' for each in own]
        lines.append(f'{into}.append({numbers[0]})') if width == 1 else lines.append(
            f'{into}.append(({", ".join(numbers)}))'
        )
        lines.append(f'{tape.name}.extend({entries})')
        if fill and size > 2:
            lines.append(f'{tape.name}.extend(({fill},) * ({size} - len(group)))')
        return lines

    args = [f'column{k}' for k in range(width)] if width > 1 else ['items']
    lines = [f'{INDENT}def {name}({", ".join(args)}):']
    body = [] if width == 1 else [f'items = [*zip({", ".join(args)})]']
    groups = 'groups_of' if fill else 'whole_groups_of'
    sizes = str(GROUPS[-1]) if fill else repr(GROUPS)
    body += ['while len(items) > 1:', f'{INDENT}made = []']
    body += [f'{INDENT}for group in {groups}(items, {sizes}):']
    inner = [f'{INDENT}made.append(group[0])']
    test = 'if len(group) == 1:'
    rest = []
    for k, size in enumerate(GROUPS):
        is_last = k == len(GROUPS) - 1
        rest.append('else:' if is_last else f'elif len(group) <= {size}:')
        rest += [f'{INDENT}{x}' for x in record(k, 'made')]
    body += [f'{INDENT * 2}{x}' for x in [test, *inner, *rest]]
    body += [f'{INDENT}items = made', 'return items[0]', '']
    lines += [f'{INDENT * 2}{x}'.rstrip() for x in body]
    g.functions += lines


def _level_text(
    o: int, own: list[Maker], entries: str, items: list[Any], w: Lines
) -> str:
    """What the number of a row begins with: the level above the highest entry."""
    g = w.g
    if not g.is_recurrent(o):
        return ''
    makers = functools.reduce(lambda a, b: a | b, (each.makers for each in items), 0)
    found = {g.level_text(o, s.Tensor('y', x.type, makers)) for x in items}
    texts = found - {''}
    if not texts:
        return 'LEVEL + '
    if texts == {'y'}:
        return f'(max({entries}) | LOW) + 1 + '
    (text, *_) = sorted(texts, key=len, reverse=True)
    return f'(max([{text} for y in {entries}]) | LOW) + 1 + '
