# SPDX-License-Identifier: Apache-2.0
"""The rules of `Reduce`: types, values and source.

Rounds combine pairs, or groups of up to eight if `combine` is an associative function.
"""

from __future__ import annotations

import enum
from typing import Any, cast

import jax.numpy as jnp

from jfold import blocks as b
from jfold.base.functions import additive_identity
from jfold.base.trampoline import Steps
from jfold.language import symbols as s
from jfold.language.inference import Inference, output_type
from jfold.language.lines import INDENT, Lines, write
from jfold.language.rules_sequences import items_of
from jfold.language.symbols import Tape
from jfold.language.typed import TypedUse
from jfold.language.walk import Walk, walk, zero_of
from jfold.language.writing import Branches, counted, sequence
from jfold.program.components import union
from jfold.tracing.helpers import groups_of
from jfold.types import TupleType, Type

GROUPS = 2, 4, 8  # numbers of items that an associative `combine` reduces at once


class Fill(enum.Enum):
    """The padding of a group with fewer items than its operation combines."""

    NOTHING = enum.auto()  # no group is too short
    ZERO = enum.auto()
    # The last item again, for max and min. An infinite constant would get a part of the
    # gradient if all items are infinite.
    LAST = enum.auto()


def _filled_by(block: b.Reduce) -> Fill | None:
    """Return how short groups are padded; `None` if pairs are reduced, not groups."""
    if not (block.associative and isinstance(block.combine, b.Function)):
        return None
    fn = block.combine.fn
    if fn is jnp.add:
        return Fill.ZERO
    is_extremum = any(fn is extremum for extremum in (jnp.maximum, jnp.minimum))
    return Fill.LAST if is_extremum else Fill.NOTHING


def _is_by_groups(node: TypedUse) -> bool:
    """Return whether a `Reduce` combines groups of up to eight items, not pairs."""
    # Not if `combine` draws: all steps in a group would have one random key.
    layer = node.parts[0].layer
    draws = layer is not None and layer.rngs
    return node.facts is not None and not draws


@output_type.register
def _(block: b.Reduce, node: TypedUse, state: Inference) -> Steps[Type]:
    item = items_of(node, state)
    # Two type variables, since a pair has two values: a block on both is used twice.
    pair = TupleType(state.types.alias(item), state.types.alias(item))
    combine = yield state.part(node, block.combine, pair, '.combine')
    hint = 'use Fold for a result that is not of the type of the items'
    state.equal(combine, combine.output, item, 'to give an item,', hint)
    hint = 'make it one of the type of the items'
    default = yield state.substitute(
        node, block.default, '.default', item, 'to give an item,', hint
    )
    node.parts = (combine, default)
    node.facts = _filled_by(block)
    return item


@walk.register
def _(block: b.Reduce, node: TypedUse, x: object, state: Walk) -> Steps[Any]:
    combine, default = node.parts
    values = state.items(node, x)
    if not values:
        if default is None:
            return zero_of(node.output, node, state)
        return (yield state.case(default, None))
    by_groups = _is_by_groups(node)
    # Each round leaves about half of the values, or an eighth if it takes groups.
    while len(values) > 1:
        if by_groups:
            sizes = GROUPS if node.facts is Fill.NOTHING else GROUPS[-1]
            values = [_reduced(x, node, state) for x in groups_of(values, sizes)]
        else:
            pairs, values = groups_of(values, 2), []
            for first, *other in pairs:
                pair = first, *other
                values.append((yield state.anew(combine, pair)) if other else first)
    return values[0]


@write.register(b.Reduce)
def _(block: b.Reduce, node: TypedUse, value: s.Symbol, w: Lines) -> s.Symbol:
    operand = sequence(value, w)
    branches = Branches(node, w, returns=False)
    operand = counted(operand, w)
    w.line(f'if {operand.n}:')
    write_total = _write_groups if _is_by_groups(node) else _write_rounds
    branches.add_value(lambda: write_total(node, operand, w))
    w.line('else:')
    branches.add(node.parts[1], None)
    return branches.result()


def _reduced(group: list[Any], node: TypedUse, state: Walk) -> object:
    """Return a group reduced by one operation; a single item is returned unchanged."""
    if len(group) == 1:
        return group[0]
    if node.facts is Fill.LAST:
        size = next(size for size in GROUPS if size >= len(group))
        group = group + group[-1:] * (size - len(group))
    return state.tensors.group(node.parts[0], node.output, group)


def _write_rounds(node: TypedUse, operand: s.Items, w: Lines) -> s.Symbol:
    """Write a loop that combines neighbours in pairs; return the last value left."""
    combine = node.parts[0]
    name = w.variable('left')
    w.line(f'{name} = {s.packed(operand)}')
    w.line(f'while len({name}) > 1:')
    with w.nested():
        combined = w.variable('made')
        w.line(f'{combined} = []')
        w.line(f'for k in range(0, len({name}) - 1, 2):')
        with w.nested():
            # The producers of `one` and `other`: those of items and of earlier pairs.
            known = w.joined((node, 'item'), operand.items)
            a = w.unpacked(s.one_of_lists(known), f'{name}[k]', 'one')
            b = w.unpacked(s.one_of_lists(known), f'{name}[k + 1]', 'other')
            value = w.part(combine, (a, b))
            w.joined((node, 'item'), s.listed(value))
            w.line(f'{combined}.append({s.packed(value)})')
        w.line(f'{name} = made_with_rest({combined}, {name})')
    known = w.joined((node, 'item'), operand.items)
    return w.unpacked(s.one_of_lists(known), f'{name}[0]', 'total')


def _write_groups(node: TypedUse, operand: s.Items, w: Lines) -> s.Symbol:
    """Write a call of a function that reduces `operand` by groups; return the result.

    The function is written too, if no use before had the same operations and levels.
    """
    g, combine = w.g, node.parts[0]
    # Items of a group are items of the sequence or results of earlier groups, so their
    # producers (`makers`) are the union of both.
    item = w.joined((node, 'item'), operand.items)
    items: list[Any] = list(s.leaves(item))
    outputs = list(s.makers(item))
    listed = [g.tables.grouping(combine, node.output, size) for size in GROUPS]
    operations = [g.chosen.number.get(o, o) for o in listed]
    numbers: list[int] = []
    for o, size in zip(operations, GROUPS, strict=True):
        place, number = g.applied(o, items * size)
        g.seen.summands[place] = tuple(s.makers(operand.items))
        g.makers_of(number)  # names the outputs before the function is written
        numbers.append(number)
        outputs = [x | g.bit(place, k) for k, x in enumerate(outputs)]
    # Uses share the function if operations and levels are the same: items of one may
    # come from another recurrence. Where rounds are unrolled, each use has its own.
    apart = g.chosen.kinds is not None
    levels = [_level_text(o, items, w) for o in numbers]
    key = ('groups', *operations, *levels, *([node, w.name] if apart else []))
    if key not in g.written:
        names = {'add': 'sum_of', 'maximum': 'max_of', 'minimum': 'min_of'}
        g.written[key] = g.names.new(names.get(combine.layer.name, 'reduced'))
        _write_function(g.written[key], numbers, node, items, w)
    result = s.with_makers(item, iter(outputs))
    w.joined((node, 'item'), result)
    totals = [w.variable('total') for _ in outputs]
    leaves = tuple(s.leaves(operand.items))
    lists = s.packed(leaves if len(leaves) > 1 else leaves[0], operand.n)
    w.line(f'{", ".join(totals)} = {g.written[key]}({lists})')
    return s.renamed(result, iter(totals))


# ---- the function that reduces a list by groups --------------------------------------


def _write_function(
    name: str, operations: list[int], node: TypedUse, items: list[Any], w: Lines
) -> None:
    """Write function `name(items)`, to reduce a list by an operation per group size.

    If one operation can combine all items, the function records it. Otherwise it
    reduces groups of items, and then their results.
    """
    g = w.g
    fill = 'items[-1]' if node.facts is Fill.LAST else ''
    if node.facts is Fill.ZERO:
        item: Any = node.output
        zero = additive_identity(item.shape, item.dtype)
        constant = g.tables.constant((item, 'neutral'), zero)
        fill = g.constant_name(constant, 'NEUTRAL')
    body = ['n = len(items)', 'if n == 1:', f'{INDENT}return items[0]']
    for o, size in zip(operations, GROUPS, strict=True):
        body.append(f'if n {"<=" if fill else "=="} {size}:')
        record = _group_lines(name, o, size, items, fill, w)
        body += [f'{INDENT}{line}' for line in record]
    groups = f'groups_of(items, {GROUPS[-1] if fill else GROUPS})'
    body.append(f'return {name}([{name}(group) for group in {groups}])')
    head = f'{INDENT}def {name}(items):'
    g.functions += [head, *(f'{INDENT * 2}{line}' for line in body), '']


def _group_lines(
    name: str, o: int, size: int, items: list[Any], fill: str, w: Lines
) -> list[str]:
    """Return source lines that record one reduction of a group by operation `o`.

    The last line returns the row numbers of the result. `items` are the leaves of one
    item. The item `fill` pads a group shorter than `size`; it is '' if no group is.
    """
    g, count = w.g, size * len(items)
    rows, about = g.rows_of('operation', o, count), repr(g.operations[o])
    lines, entries, records = list[str](), 'items', list[str]()
    if len(items) > 1:
        lines, entries = ['entries = [y for x in items for y in x]'], 'entries'
    level, columns = _level_text(o, items, w), rows.columns
    # Other places may apply `combine` to two values, with a tape for each input. Larger
    # groups are of this function alone: one tape takes all their inputs at once.
    if size == GROUPS[0]:
        for k in range(count):
            if not isinstance(columns[k], Tape):
                columns[k] = g.tape(f'{name}_{size}_{k}', about)
            records.append(f'{cast(Tape, columns[k]).name}.append({entries}[{k}])')
    elif rows.counter is None:
        columns[:] = [g.tape(f'{name}_{size}', about, count)] * count
    rows.counter = tape = cast(Tape, columns[0])
    if size > GROUPS[0]:
        records.append(f'{tape.name}.extend({entries})')
        if fill:
            filled = f'({fill},) * ({size} - n)'
            records += [f'if n < {size}:', f'{INDENT}{tape.name}.extend({filled})']
    numbers = [f'{level}{x.name} + {tape.rows}' for x in g.makers_of(o)]
    value = numbers[0] if len(numbers) == 1 else f'({", ".join(numbers)})'
    return [*lines, f'made = {value}', *records, 'return made']


def _level_text(o: int, items: list[Any], w: Lines) -> str:
    """Return source text, ending in ' + ', for the highest level in a group.

    It is '' if operation `o` has no levels, or takes items from outside its recurrence.
    `items` are the leaves of one item.
    """
    g, entries = w.g, 'items' if len(items) == 1 else 'entries'
    if not g.is_recurrent(o):
        return ''
    makers = union(leaf.makers for leaf in items)
    text = g.level_text(o, s.Tensor('y', makers=makers))
    if text in ('', 'y'):
        return text and f'(max({entries}) & LEVELS) + '
    return f'(max([{text} for y in {entries}]) & LEVELS) + '
