# SPDX-License-Identifier: Apache-2.0
"""The rules of blocks that make sequences longer, or all of one length."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, cast

from jfold import combinators as c
from jfold import instructions as p
from jfold.language.eager import Eager, value_of, zeros
from jfold.language.emission import emit, emit_zeros
from jfold.language.inference import Inference, output_type
from jfold.language.paths import fail
from jfold.language.sequences import in_order, items
from jfold.language.typed import Typed
from jfold.language.writer import SequenceValue, Value, Writer, Writing
from jfold.trampoline import Steps
from jfold.types import ObjectType, SequenceType, TupleType, Type, item_of, terminals

# ---- Chain ---------------------------------------------------------------------------


@output_type.register
def _(block: c.Chain, node: Typed, state: Inference) -> Type:
    item = state.types.fresh()

    def link(head: Type) -> None:
        if isinstance(head, TupleType) and head.items:  # of unlike kinds, maybe
            for each in head:
                items(node, state, item, of=each)
            return
        inner = state.types.fresh()
        items(node, state, inner)
        items(node, state, item, of=inner)

    state.when_head(node, link)
    return SequenceType(item)


@emit.register
def _(block: c.Chain, node: Typed, value: Value, places: int, w: Writer) -> Writing:
    if isinstance(value, tuple):
        return (yield _side_by_side(node, value, places, w))
    outer = yield w.sequence(value, node.input, places, node)
    inside = w.item_places(outer.lengths, places, node)
    inner = yield w.sequence(outer.items, item_of(node.input), inside, node)
    lengths = w.one(p.Total, (outer.lengths, inner.lengths), node)
    return SequenceValue(lengths, inner.items)


def _side_by_side(
    node: Typed, parts: tuple[Value, ...], places: int, w: Writer
) -> Steps[SequenceValue]:
    """The items of the sequences of a tuple, those of the first part first."""
    given = []
    for part, type_ in zip(parts, cast(TupleType, node.input), strict=True):
        given.append((yield w.sequence(part, type_, places, node)))
    joined = yield w.join([each.items for each in given], node)
    lengths = [each.lengths for each in given]
    chained: SequenceValue = yield w.ranges(p.Chain, lengths, joined, node)
    return chained


@value_of.register
def _(block: c.Chain, node: Typed, x: Iterable[Any], state: Eager) -> object:
    return list(itertools.chain(*(in_order(node, each) for each in in_order(node, x))))


# ---- Padded --------------------------------------------------------------------------


@output_type.register
def _(block: c.Padded, node: Typed, state: Inference) -> Type:
    item = state.types.fresh()
    items(node, state, item)
    # All alike, though some may be zeros: in each place they are other values.
    return TupleType(state.types.named(item) for _ in range(block.length))


@emit.register
def _(block: c.Padded, node: Typed, value: Value, places: int, w: Writer) -> Writing:
    assert isinstance(node.output, TupleType)
    item = node.output[0]
    if any(isinstance(leaf, ObjectType) for leaf in terminals(item)):
        fail(node, 'items of tensors, which have zeros', str(item))
    given = yield w.sequence(value, node.input, places, node)
    zero = yield emit_zeros(item, node, places, w)
    all_items = yield w.join([given.items, zero], node)
    chosen = w.add(p.Padded, (given.lengths,), node, outputs=block.length)
    made = []
    for positions in chosen:
        made.append((yield w.select(all_items, positions, node)))
    return tuple(made)


@value_of.register
def _(block: c.Padded, node: Typed, x: Iterable[Any], state: Eager) -> object:
    assert isinstance(node.output, TupleType)
    given = list(in_order(node, x))
    if (got := len(given)) > block.length:
        most = f'expected at most {block.length} items'
        raise ValueError(f'{node}: {most}, got {got}; cut it by a Slice')
    rest = (zeros(node.output[0]) for _ in range(block.length - len(given)))
    return *given, *rest
