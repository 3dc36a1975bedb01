# SPDX-License-Identifier: Apache-2.0
"""The rules of `Reduce`: rounds over pairs, or groups where any grouping will do."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from jfold import blocks as b
from jfold.base.trampoline import Steps, in_turn
from jfold.language import symbols as s
from jfold.language.groups import GROUPS, Fill, filled_by, group_function, is_by_groups
from jfold.language.inference import (
    Inference,
    output_type,
)
from jfold.language.lines import Lines
from jfold.language.rules_sequences import items
from jfold.language.typed import Typed
from jfold.language.values import blank
from jfold.language.walk import (
    Walk,
    walk,
    zero_of,
)
from jfold.language.writing import (
    assign_last,
    counted,
    finite,
    in_lists_of,
    one_of_lists,
    variables,
    with_makers_of,
    write,
    zeros_written,
)
from jfold.types import (
    TupleType,
    Type,
)

Array = np.ndarray[Any, Any]


@output_type.register
def _(block: b.Reduce, node: Typed, state: Inference) -> Steps[Type]:
    item = state.types.fresh()
    items(node, state, item)
    # Two items of one type, but two values: what is used on both is used twice.
    pair = TupleType(state.types.named(item), state.types.named(item))
    combine = yield state.part(node, block.combine, pair, '.combine')
    hint = 'use Fold for a result that is not of the type of the items'
    state.equal(combine, combine.output, item, 'to give an item,', hint)
    given = node, block.default, '.default', item, 'to give an item,'
    default = yield state.substitute(*given, 'make it one of the type of the items')
    node.parts = (combine, default)
    node.facts = filled_by(block)
    return item


@walk.register
def _(block: b.Reduce, node: Typed, x: object, state: Walk) -> Steps[Any]:
    combine, default = node.parts
    assert combine is not None
    left = state.items(node, x)
    if not left:
        if default is None:
            return zero_of(node.output, node, state)
        return (yield state.part(default, None))
    by_groups = is_by_groups(node)
    together = again = False
    if by_groups:
        again = node.facts is Fill.LAST
        together = node.facts is not Fill.NOTHING
    while len(left) > 1:
        if by_groups:
            groups = _cut(left, (1, *GROUPS), together)
            left = [_reduced(group, again, combine, node, state) for group in groups]
        else:
            left = yield in_turn(
                _combined(combine, group, state) for group in _cut(left, (1, 2), False)
            )
    return left[0]


@write.register(b.Reduce)
def _(block: b.Reduce, node: Typed, value: s.Symbol, w: Lines) -> s.Symbol:
    combine, default = node.parts
    assert combine is not None
    given = finite(value, w)
    rounds = _rounds
    if is_by_groups(node):
        rounds = _groups
    like = w.g.template(node.output)
    result = variables(like, w)
    given = counted(given, w)
    w.line(f'if {given.n}:')
    with w.case():
        made = rounds(node, given, w)
        assign_last(result, made, w)
        result = w.joined((node, 'total'), with_makers_of(result, made))
    w.line('else:')
    with w.case():
        at = len(w.lines)
        none = (
            zeros_written(node.output, w) if default is None else w.part(default, None)
        )
        assign_last(result, none, w)
        result = w.joined((node, 'total'), with_makers_of(result, none))
        if len(w.lines) == at:
            w.line('pass')
    return result


def _filled(group: list[Any], sizes: Sequence[int]) -> list[Any]:
    """The group, with its last item so often that an operation takes it."""
    size = next(size for size in sizes if size >= len(group))
    return group + group[-1:] * (size - len(group))


def _cut(items: list[Any], sizes: Sequence[int], together: bool) -> list[list[Any]]:
    """Neighbours, in groups of such sizes; what is left stays together, if it may."""
    begins = [0]
    while (rest := len(items) - begins[-1]) > 0:
        largest = max(size for size in sizes if size <= rest)
        begins.append(begins[-1] + (min(rest, sizes[-1]) if together else largest))
    return [items[a:b] for a, b in itertools.pairwise(begins)]


def _reduced(
    group: list[Any], again: bool, combine: Typed, node: Typed, state: Walk
) -> object:
    """A group as one item, by the operation for as many, or for more."""
    if len(group) == 1:
        return group[0]
    if again:
        group = _filled(group, GROUPS)
    return state.tensors.group(combine, node.output, group)


def _combined(combine: Typed, items: list[Any], state: Walk) -> Steps[Any]:
    """A pair as one item."""
    if len(items) == 1:
        return items[0]
    return (yield state.anew(combine, (items[0], items[1])))


def _rounds(node: Typed, given: s.Items, w: Lines) -> s.Symbol:
    """Neighbours in pairs, round after round; the value of all but no items."""
    combine = node.parts[0]
    w.g.loops_written.append(str(node))
    name = w.variable('left')
    w.line(f'{name} = {s.packed(given)}')
    item = blank(given.items)
    w.line(f'while len({name}) > 1:')
    with w.nested():
        made = w.variable('made')
        w.line(f'{made} = []')
        w.line(f'for k in range(0, len({name}) - 1, 2):')
        with w.nested():
            known = w.joined((node, 'item'), item)
            a = w.unpacked(one_of_lists(known), f'{name}[k]', 'one')
            b = w.unpacked(one_of_lists(known), f'{name}[k + 1]', 'other')
            value = w.part(combine, (a, b))
            w.joined((node, 'item'), in_lists_of(value))
            w.line(f'{made}.append({s.packed(value)})')
        w.line(f'{name} = made_with_rest({made}, {name})')
    known = w.joined((node, 'item'), item)
    return w.unpacked(one_of_lists(known), f'{name}[0]', 'total')


def _groups(node: Typed, given: s.Items, w: Lines) -> s.Symbol:
    """Groups of neighbours, as large as operations for these are."""
    known = w.joined((node, 'item'), blank(given.items))
    both = (a | b for a, b in zip(s.makers(known), s.makers(given.items), strict=True))
    found = list(s.leaves(s.with_makers(blank(given.items), both)))
    name, outputs = group_function(node, found, w)
    w.joined((node, 'item'), outputs)
    totals = [w.variable('total') for _ in outputs]
    texts = [each.text for each in s.leaves(given.items)]
    items = texts[0] if len(texts) == 1 else f'[*zip({", ".join(texts)})]'
    w.line(f'{", ".join(totals)} = {name}({items})')
    item = blank(given.items)
    made = (a | b for a, b in zip(s.makers(known), s.makers(outputs), strict=True))
    return s.renamed(s.with_makers(item, made), iter(totals))
