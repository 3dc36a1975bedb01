# SPDX-License-Identifier: Apache-2.0
"""The rules of `Reduce`: rounds over pairs, or groups where any grouping will do."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jfold import combinators as c
from jfold import instructions as p
from jfold.functions import neutral
from jfold.language.eager import Eager, eval_anew, eval_part, value_of, zeros
from jfold.language.emission import emit, write_in_loop
from jfold.language.inference import Inference, output_type
from jfold.language.sequences import in_order, items
from jfold.language.typed import Typed
from jfold.language.writer import Kind, Value, Writer, Writing, flatten
from jfold.trampoline import Steps, in_turn
from jfold.types import TensorType, TupleType, Type, VoidType

Array = np.ndarray[Any, Any]
GROUPS = 2, 4, 8  # items that are combined at once, where any grouping will do


@output_type.register
def _(block: c.Reduce, node: Typed, state: Inference) -> Steps[Type]:
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
    return item


@emit.register
def _(block: c.Reduce, node: Typed, value: Value, places: int, w: Writer) -> Writing:
    combine, default = node.parts
    assert combine is not None
    given = yield w.sequence(value, node.input, places, node)
    # Types are known only now, so that zeros have no use that was typed with the rest.
    if default is None:
        zeros = c.Zeros(node.output)
        default = Typed(zeros, str(node), VoidType(), node.output)
    kind: Kind = p.ReduceLoop
    item, pair = node.output, TupleType(node.output, node.output)
    if _is_by_groups(block, combine):
        kind, of_kind = p.ReduceGroups, _of_groups(combine, node, w)
    else:
        of_kind = {'combine': (yield write_in_loop(w.builder, combine, pair, item))}
    items = yield w.wrap(given.items, item, node)
    reduced = yield w.shaped(
        kind,
        (given.lengths, places, *flatten(items)),
        node,
        items,
        **of_kind,
        default=(yield write_in_loop(w.builder, default, VoidType(), item)),
        way=next(w.builder.ways),
        visit=w.builder.visit(node),
    )
    return (yield w.unwrap(reduced, item, node))


def _fn(combine: Typed) -> Any:
    return combine.block.fn if isinstance(combine.block, c.Function) else None


def _adds(combine: Typed) -> bool:
    """Whether a group may be filled with zeros."""
    return _fn(combine) is jnp.add


def _repeats(combine: Typed) -> bool:
    """Whether a group may be filled with one of its items. An infinite constant would
    take a part of the gradient where all items are as large."""
    return any(_fn(combine) is each for each in (jnp.maximum, jnp.minimum))


def _is_by_groups(block: c.Reduce, combine: Typed) -> bool:
    # A group's operation has one key, but each of its steps draws.
    draws = combine.layer is not None and combine.layer.rngs
    is_function = isinstance(combine.block, c.Function)
    return block.associative and is_function and not draws


def _of_groups(combine: Typed, node: Typed, w: Writer) -> dict[str, Any]:
    """The operations of groups, and what fills those that are too short."""
    assert combine.layer is not None
    item, made = node.output, []
    for size in GROUPS:
        of_groups = combine.layer, TupleType((item,) * size), item
        made.append(w.builder.operation(*of_groups, from_left=size > 2))
    fill = []
    if _adds(combine):
        assert isinstance(item, TensorType)
        zero = neutral(item.shape, item.dtype)
        fill.append(w.builder.constant((item, 'neutral'), zero))
    return {
        'operations': tuple(made),
        'sizes': GROUPS,
        'fill': tuple(fill),
        'again': _repeats(combine),
    }


@value_of.register
def _(block: c.Reduce, node: Typed, x: Iterable[Any], state: Eager) -> Steps[Any]:
    combine, default = node.parts
    assert combine is not None
    left = list(in_order(node, x))
    if not left:
        if default is None:
            return zeros(node.output)
        return (yield eval_part(default, None, state))
    sizes: tuple[int, ...] = (1, 2)
    together = again = False
    if _is_by_groups(block, combine):
        again = _repeats(combine)
        sizes, together = (1, *GROUPS), again or _adds(combine)
    while len(left) > 1:
        groups = _cut(left, sizes, together)
        if again:
            groups = [_filled(group, sizes) for group in groups]
        left = yield in_turn(_from_left(combine, group, state) for group in groups)
    return left[0]


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


def _from_left(combine: Typed, items: list[Any], state: Eager) -> Steps[Any]:
    """The first two items as one, that and the third, and so on."""
    made, *others = items
    for each in others:
        made = yield eval_anew(combine, (made, each), state)
    return made
