# SPDX-License-Identifier: Apache-2.0
"""The rules of `Reduce`: types, values and source.

Rounds combine pairs, or groups of up to eight if `combine` is an associative function.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, cast

import jax.numpy as jnp

from jfold import blocks as b
from jfold.base.functions import additive_identity
from jfold.base.trampoline import Steps
from jfold.language import symbols as s
from jfold.language.inference import Inference, output_type
from jfold.language.lines import Lines, write
from jfold.language.names import INDENT
from jfold.language.rules_sequences import items_of
from jfold.language.source_rounds import Round
from jfold.language.symbols import Tape
from jfold.language.typed import TypedUse
from jfold.language.walk import Walk, walk, zero_of
from jfold.language.writing import Branches, counted, sequence
from jfold.program.components import union
from jfold.tracing.strict_reading import groups_of
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
    """Write a loop that combines pairs in `operand`; return the last value left."""
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

    The line that makes the function is written too, if no use before had the same
    operations and levels.
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
    # Groups of all sizes read each other, so they are of one recurrence.
    highest = _highest_text(numbers[-1], items, g)
    key = ('groups', *operations, highest, *([node, w.name] if apart else []))
    if key not in g.written:
        names = {'add': 'sum_of', 'maximum': 'max_of', 'minimum': 'min_of'}
        name = names.get(combine.layer.name, 'reduced')
        g.written[key] = g.names.new(name, f'{name.removesuffix("_of")}_in_{w.name}')
        _write_function(g.written[key], numbers, highest, node, items, g)
    result = s.with_makers(item, iter(outputs))
    w.joined((node, 'item'), result)
    totals = w.variables_for(len(outputs), 'total')
    leaves = tuple(s.leaves(operand.items))
    lists = s.packed(leaves if len(leaves) > 1 else leaves[0], operand.n)
    w.line(f'{", ".join(totals)} = {g.written[key]}({lists})')
    return s.renamed(result, iter(totals))


# ---- the function that reduces a list by groups --------------------------------------


def _write_function(
    name: str,
    operations: Sequence[int],
    highest: str,
    node: TypedUse,
    items: list[Any],
    g: Round,
) -> None:
    """Write function `name(items)`, which reduces a list by an operation a group size.

    `items` are the leaves of one item, and `highest` is the text of `_highest_text`.
    """
    fill = "'last'" if node.facts is Fill.LAST else 'None'
    if node.facts is Fill.ZERO:
        item: Any = node.output
        zero = additive_identity(item.shape, item.dtype)
        constant = g.tables.constant((item, 'neutral'), zero)
        fill = g.constant_name(constant, 'NEUTRAL', f'NEUTRAL_OF_{name}'.upper())
    operations_text = []
    for size, o in zip(GROUPS, operations, strict=True):
        makers = [maker.name for maker in g.makers_of(o)]
        maker = makers[0] if len(items) == 1 else s.in_parentheses(makers)
        tapes = _group_tapes(name, o, size, size * len(items), g)
        names = ', '.join(tape.name for tape in tapes)
        operations_text.append(f'({maker}, {names})')
    options = f'highest={highest}', 'levels=LEVELS', f'fill={fill}'
    texts = [*operations_text, ', '.join(options)]
    lines = [f'{name} = by_groups(  # a function that reduces a list']
    lines += [f'{INDENT}{text},' for text in texts]
    g.functions += [*(INDENT + line for line in [*lines, ')']), '']


def _group_tapes(name: str, o: int, size: int, count: int, g: Round) -> list[Tape]:
    """Return tapes `name` of operation `o` on `size` items with `count` row numbers.

    Other places may apply `combine` to two values, with a tape for each input. Larger
    groups are of this function alone: one tape takes all their inputs at once.
    """
    rows, about = g.rows_of('operation', o, count), repr(g.operations[o])
    columns = rows.columns
    if size == GROUPS[0]:
        for k in range(count):
            if not isinstance(columns[k], Tape):
                columns[k] = g.tape(about, f'{name}_{size}_{k}')
    elif rows.counter is None:
        columns[:] = [
            g.tape(f'{about}, {count} entries a row', f'{name}_{size}', width=count)
        ] * count
    tapes = cast(list[Tape], list(dict.fromkeys(columns)))
    rows.counter = tapes[0]
    return tapes


def _highest_text(o: int, items: list[Any], g: Round) -> str:
    """Return the source of a function from row numbers to that of the highest level.

    Levels count within the recurrence of operation `o`, whose operands are `items`.
    """
    text = 'y'
    if g.is_recurrent(o):
        makers = union(leaf.makers for leaf in items)
        text = g.level_text(o, s.Tensor('y', makers=makers))
    return 'max' if text == 'y' else f'lambda group: max([{text} for y in group])'
