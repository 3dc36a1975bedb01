# SPDX-License-Identifier: Apache-2.0
"""The function that reduces items by groups, of 2, 4 or 8 neighbours at once."""

from __future__ import annotations

import enum
import functools
from typing import Any

import jax.numpy as jnp

from jfold import blocks as b
from jfold.base.functions import additive_identity
from jfold.language import symbols as s
from jfold.language.lines import INDENT, Lines
from jfold.language.tapes import Maker, Tape
from jfold.language.typed import Typed
from jfold.types import TensorType

GROUPS = 2, 4, 8  # items that are combined at once, where any grouping will do


class Fill(enum.Enum):
    """What fills a group that is too short for its operation."""

    NOTHING = enum.auto()  # there are no such groups
    ZERO = enum.auto()
    # An infinite constant would take a part of the gradient where all items are as
    # large.
    LAST = enum.auto()  # its last item, once more


def filled_by(block: b.Reduce) -> Fill | None:
    """What fills groups, `None` of what is not combined in groups."""
    if not (block.associative and isinstance(block.combine, b.Function)):
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
    operations = [
        g.group_operation(g.tables.grouping(node, combine, size)) for size in GROUPS
    ]
    apart = g.chosen.split or g.chosen.kinds is not None
    key = ('groups', *operations, *([node, w.name] if apart else []))
    inputs = [each.makers for each in items]
    outputs = list(inputs)
    makers: list[list[Maker]] = []
    numbers: list[int] = []
    for o, size in zip(operations, GROUPS, strict=True):
        given = [s.Tensor('', x.type, x.makers) for x in items] * size
        place = g.applied(o, given, w.key)
        g.groups_written.append((str(node), place))
        numbers.append(place)
        makers.append(g.makers_of(place))
        for k, _ in enumerate(items):
            outputs[k] |= g.bit(place, k)
    if key not in g.written:
        wanted = {'add': 'sum_of', 'maximum': 'max_of', 'minimum': 'min_of'}
        name = g.names.new(wanted.get(combine.layer.name, 'reduced'))
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
    g = w.g
    fill = 'items[-1]' if node.facts is Fill.LAST else ''
    if node.facts is Fill.ZERO:
        item = node.output
        assert isinstance(item, TensorType)
        zero = additive_identity(item.shape, item.dtype)
        constant = g.tables.constant((item, 'neutral'), zero)
        fill = g.constant_name(constant, 'NEUTRAL')
    lines = [f'{INDENT}def {name}(items):']
    body = ['n = len(items)', 'if n == 1:', f'{INDENT}return items[0]']
    for k, (o, size) in enumerate(zip(operations, GROUPS, strict=True)):
        body.append(f'if n {"<=" if fill else "=="} {size}:')
        record = _record(name, o, size, makers[k], items, fill, w)
        body += [f'{INDENT}{line}' for line in record]
    groups = f'groups_of(items, {GROUPS[-1] if fill else GROUPS})'
    body += [f'return {name}([{name}(group) for group in {groups}])', '']
    g.functions += lines + [f'{INDENT * 2}{line}'.rstrip() for line in body]


def _record(
    name: str,
    o: int,
    size: int,
    own: list[Maker],
    items: list[Any],
    fill: str,
    w: Lines,
) -> list[str]:
    """Records the items as a group of a size, and returns what that gives."""
    g, count = w.g, size * len(items)
    rows = g.rows_of(o, count)
    g.places[rows.key] = g.places.get(rows.key, 0) + 2  # never in step
    lines, entries = [], 'items'
    if len(items) > 1:
        lines, entries = ['entries = [y for x in items for y in x]'], 'entries'
    level, records = _level_text(o, entries, items, w), []
    if size == GROUPS[0]:  # which may be applied to two values elsewhere
        for k in range(count):
            column = rows.columns[k]
            if not isinstance(column, Tape):
                column = rows.columns[k] = g.tape(f'{name}_{size}_{k}', g.about(o))
            records.append(f'{column.name}.append({entries}[{k}])')
        counter = rows.columns[0]
    else:
        if rows.counter is None:
            counter = g.tape(f'{name}_{size}', g.about(o), count)
            rows.columns = [counter] * count
        counter = rows.columns[0]
        assert isinstance(counter, Tape)
        records.append(f'{counter.name}.extend({entries})')
        if fill:
            filled = f'({fill},) * ({size} - n)'
            records += [f'if n < {size}:', f'{INDENT}{counter.name}.extend({filled})']
    assert isinstance(counter, Tape)
    rows.counter = counter
    numbers = [f'{level}{each.name} + {counter.rows}' for each in own]
    made = numbers[0] if len(own) == 1 else f'({", ".join(numbers)})'
    return [*lines, f'made = {made}', *records, 'return made']


def _level_text(o: int, entries: str, items: list[Any], w: Lines) -> str:
    """What the number of a row begins with: the level of the highest entry."""
    g = w.g
    if not g.is_recurrent(o):
        return ''
    makers = functools.reduce(lambda a, b: a | b, (each.makers for each in items), 0)
    found = {g.level_text(o, s.Tensor('y', x.type, makers)) for x in items}
    texts = found - {''}
    if not texts:
        return ''
    if texts == {'y'}:
        return f'(max({entries}) & LEVELS) + '
    (text, *_) = sorted(texts, key=len, reverse=True)
    return f'(max([{text} for y in {entries}]) & LEVELS) + '
