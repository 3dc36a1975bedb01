# SPDX-License-Identifier: Apache-2.0
"""The rules of `Chain`, which joins sequences, and of `Padded`."""

from __future__ import annotations

import itertools
from typing import Any

from jfold import blocks as b
from jfold.language import symbols as s
from jfold.language.inference import Inference, output_type
from jfold.language.lines import Lines
from jfold.language.paths import fail
from jfold.language.rules_sequences import unify_items
from jfold.language.typed import TypedUse
from jfold.language.walk import Walk, refuse, walk, zero_of
from jfold.language.writing import (
    counted,
    finite_sequence,
    sequence,
    side_by_side,
    write,
    zeros_written,
)
from jfold.types import ObjectType, SequenceType, TupleType, Type, leaf_types

# ---- Chain ---------------------------------------------------------------------------


@output_type.register
def _(block: b.Chain, node: TypedUse, state: Inference) -> Type:
    item = state.types.fresh()

    def link(head: Type) -> None:
        # A tuple may mix sequences, tuples and objects, if their items have one type.
        if isinstance(head, TupleType) and head.items:
            for type_ in head:
                unify_items(node, state, item, of=type_)
            return
        inner = state.types.fresh()
        unify_items(node, state, inner)
        unify_items(node, state, item, of=inner)

    state.when_head(node, link)
    return SequenceType(item)


@walk.register
def _(block: b.Chain, node: TypedUse, x: object, state: Walk) -> object:
    parts = x if isinstance(x, tuple) else state.items(node, x)
    return list(itertools.chain(*(state.items(node, part) for part in parts)))


@write.register(b.Chain)
def _(block: b.Chain, node: TypedUse, value: s.Symbol, w: Lines) -> s.Symbol:
    if isinstance(value, tuple):
        # One list per leaf of an item: `[*a, *b, ...]`, of the lists of all parts.
        parts = [finite_sequence(part, w) for part in value]
        lists = tuple(part.items for part in parts)
        chained = side_by_side(lists, 'chained', lambda leaf: f'*{leaf.text}', w)
        n = ' + '.join(part.n for part in parts)
        return counted(s.Items(chained, n), w)
    outer = finite_sequence(value, w)
    name = w.variable('chained')
    items = outer.items
    if isinstance(items, s.Nested):
        w.line(f'{name} = [y for x in {items.text} for y in x]')
        return w.unpacked(items.item, name)
    if isinstance(items, s.Object):
        w.line(f'{name} = [y for x in {items.text} for y in sequence(x)]')
        return s.Items(s.Object(name), f'len({name})')
    # Items that are tuples of one type are sequences too.
    inner = w.loop(outer, lambda item: sequence(item, w), 'part')
    assert isinstance(inner, s.Nested)
    w.line(f'{name} = [y for x in {inner.text} for y in x]')
    return w.unpacked(inner.item, name)


# ---- Padded --------------------------------------------------------------------------


@output_type.register
def _(block: b.Padded, node: TypedUse, state: Inference) -> Type:
    item = state.types.fresh()
    unify_items(node, state, item)
    # A type variable stands for one value: each item has its own, of an equal type.
    return TupleType(state.types.alias(item) for _ in range(block.length))


@walk.register
def _(block: b.Padded, node: TypedUse, x: object, state: Walk) -> object:
    assert isinstance(node.output, TupleType)
    items = state.items(node, x)
    if (got := len(items)) > block.length:
        most = f'expected at most {block.length} items'
        refuse(node, f'{most}, got {got}; cut it by a Slice', x)
    padding = (zero_of(type_, node, state) for type_ in node.output.items[len(items) :])
    return *items, *padding


@write.register(b.Padded)
def _(block: b.Padded, node: TypedUse, value: s.Symbol, w: Lines) -> s.Symbol:
    assert isinstance(node.output, TupleType)
    item = node.output[0]
    if any(isinstance(leaf, ObjectType) for leaf in leaf_types(item)):
        fail(node, 'items of tensors, which have zeros', str(item))
    operand = counted(finite_sequence(value, w), w)
    w.line(f'at_most_items({operand.n}, {block.length})')
    result = []
    for k in range(block.length):
        zero = zeros_written(node.output[k], w)
        zero_in_lists = _listed_like(zero, operand.items)
        names = []
        pairs = zip(s.leaves(operand.items), s.leaves(zero_in_lists), strict=True)
        for leaf, zero_leaf in pairs:
            names.append(w.variable('item'))
            item_text = f'{leaf.text}[{k}] if {operand.n} > {k} else {zero_leaf.text}'
            w.line(f'{names[-1]} = {item_text}')
        result.append(w.opened(s.renamed(operand.items, iter(names))))
    return tuple(result)


def _listed_like(zero: s.Symbol, items: Any) -> s.Symbol:
    """Return `zero` with each sequence packed into one Python list, as in `items`."""
    if isinstance(zero, tuple):
        return tuple(map(_listed_like, zero, items))
    if isinstance(zero, s.Items):
        return s.Object(s.packed(zero))
    return zero
