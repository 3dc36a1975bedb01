# SPDX-License-Identifier: Apache-2.0
"""The rules of `Reduce`: rounds over pairs, or over groups of neighbours.

Groups have up to eight items, where `combine` is an associative function.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from jfold import blocks as b
from jfold.base.trampoline import Steps
from jfold.language import symbols as s
from jfold.language.groups import GROUPS, Fill, filled_by, group_function, is_by_groups
from jfold.language.inference import Inference, output_type
from jfold.language.lines import Lines
from jfold.language.rules_sequences import unify_items
from jfold.language.typed import TypedUse
from jfold.language.walk import Walk, walk, zero_of
from jfold.language.writing import Branches, counted, finite_sequence, write
from jfold.types import TupleType, Type


@output_type.register
def _(block: b.Reduce, node: TypedUse, state: Inference) -> Steps[Type]:
    item = state.types.fresh()
    unify_items(node, state, item)
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
    node.facts = filled_by(block)
    return item


@walk.register
def _(block: b.Reduce, node: TypedUse, x: object, state: Walk) -> Steps[Any]:
    combine, default = node.parts
    assert combine is not None
    values = state.items(node, x)
    if not values:
        if default is None:
            return zero_of(node.output, node, state)
        return (yield state.part(default, None))
    by_groups = is_by_groups(node)
    # Each round leaves about half of the values, or an eighth if it takes groups.
    while len(values) > 1:
        if by_groups:
            groups = _cut(values, (1, *GROUPS), node.facts is not Fill.NOTHING)
            values = [_reduced_group(group, combine, node, state) for group in groups]
        else:
            pairs, values = _cut(values, (1, 2), False), []
            for first, *other in pairs:
                pair = first, *other
                values.append((yield state.anew(combine, pair)) if other else first)
    return values[0]


@write.register(b.Reduce)
def _(block: b.Reduce, node: TypedUse, value: s.Symbol, w: Lines) -> s.Symbol:
    combine, default = node.parts
    assert combine is not None
    operand = finite_sequence(value, w)
    branches = Branches(node, w, returns=False)
    operand = counted(operand, w)
    w.line(f'if {operand.n}:')
    write_total = _write_groups if is_by_groups(node) else _write_rounds
    branches.write(lambda: write_total(node, operand, w))
    w.line('else:')
    branches.add(default, None)
    return branches.result()


def _cut(items: list[Any], sizes: Sequence[int], keeps_rest: bool) -> list[list[Any]]:
    """Return a list of groups of neighbours, each of the largest size that fits.

    Args:
      sizes: in ascending order, from 1.
      keeps_rest: whether the last items, too few for the largest size, form one group.
    """
    begins = [0]
    while (left := len(items) - begins[-1]) > 0:
        largest = max(size for size in sizes if size <= left)
        begins.append(begins[-1] + (min(left, sizes[-1]) if keeps_rest else largest))
    return [items[a:b] for a, b in itertools.pairwise(begins)]


def _reduced_group(
    group: list[Any], combine: TypedUse, node: TypedUse, state: Walk
) -> object:
    """Return a group reduced by one operation; an only item is itself the result.

    For maximum and minimum its last item is repeated up to the size of an operation.
    """
    if len(group) == 1:
        return group[0]
    if node.facts is Fill.LAST:
        size = next(size for size in GROUPS if size >= len(group))
        group = group + group[-1:] * (size - len(group))
    return state.tensors.group(combine, node.output, group)


def _write_rounds(node: TypedUse, operand: s.Items, w: Lines) -> s.Symbol:
    """Write a loop that combines pairs of neighbours; return the value that is left."""
    combine = node.parts[0]
    name = w.variable('left')
    w.line(f'{name} = {s.packed(operand)}')
    item = s.blank(operand.items)
    w.line(f'while len({name}) > 1:')
    with w.nested():
        combined = w.variable('made')
        w.line(f'{combined} = []')
        w.line(f'for k in range(0, len({name}) - 1, 2):')
        with w.nested():
            # Producers of either: those of the items, and of results of earlier pairs.
            known = w.joined((node, 'item'), item)
            a = w.unpacked(s.one_of_lists(known), f'{name}[k]', 'one')
            b = w.unpacked(s.one_of_lists(known), f'{name}[k + 1]', 'other')
            value = w.part(combine, (a, b))
            w.joined((node, 'item'), s.listed(s.blank(value)))
            w.line(f'{combined}.append({s.packed(value)})')
        w.line(f'{name} = made_with_rest({combined}, {name})')
    known = w.joined((node, 'item'), item)
    return w.unpacked(s.one_of_lists(known), f'{name}[0]', 'total')


def _write_groups(node: TypedUse, operand: s.Items, w: Lines) -> s.Symbol:
    """Write a call of the function that reduces a list by groups; return its value."""
    # Items of a group are items of the sequence or results of earlier groups, so their
    # producers (`makers`) are the union of both.
    known = w.joined((node, 'item'), s.blank(operand.items))
    given = list(s.makers(operand.items))
    makers = zip(s.makers(known), given, strict=True)
    item = s.with_makers(s.blank(operand.items), (a | b for a, b in makers))
    name, outputs = group_function(node, list(s.leaves(item)), given, w)
    w.joined((node, 'item'), outputs)
    totals = [w.variable('total') for _ in outputs]
    texts = [leaf.text for leaf in s.leaves(operand.items)]
    items = texts[0] if len(texts) == 1 else f'[*zip({", ".join(texts)})]'
    w.line(f'{", ".join(totals)} = {name}({items})')
    makers = zip(s.makers(known), s.makers(outputs), strict=True)
    total = s.with_makers(s.blank(operand.items), (a | b for a, b in makers))
    return s.renamed(total, iter(totals))
