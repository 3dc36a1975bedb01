# SPDX-License-Identifier: Apache-2.0
"""The rules of blocks that make sequences longer, or all of one length."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from jfold import blocks as b
from jfold.language import symbols as s
from jfold.language.inference import (
    Inference,
    output_type,
)
from jfold.language.lines import Lines
from jfold.language.paths import fail
from jfold.language.rules_sequences import items
from jfold.language.typed import Typed
from jfold.language.walk import (
    Walk,
    refuse,
    walk,
    zero_of,
)
from jfold.language.writing import (
    counted,
    finite,
    parts_of,
    sequence,
    side_by_side,
    write,
    zeros_written,
)
from jfold.types import (
    ObjectType,
    SequenceType,
    TupleType,
    Type,
    leaf_types,
)

# ---- Chain ---------------------------------------------------------------------------


@output_type.register
def _(block: b.Chain, node: Typed, state: Inference) -> Type:
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


@walk.register
def _(block: b.Chain, node: Typed, x: object, state: Walk) -> object:
    outer = x if isinstance(x, tuple) else state.items(node, x)
    return list(itertools.chain(*(state.items(node, each) for each in outer)))


@write.register(b.Chain)
def _(block: b.Chain, node: Typed, value: s.Symbol, w: Lines) -> s.Symbol:
    if isinstance(value, tuple):
        parts = [finite(each, w) for each in value]
        lists = tuple(each.items for each in parts)
        made = side_by_side(lists, 'chained', lambda each: f'*{each.text}', w)
        n = ' + '.join(each.n for each in parts)
        return counted(s.Items(made, n), w)
    outer = finite(value, w)
    name = w.variable('chained')
    items = outer.items
    if isinstance(items, s.Nested):
        w.line(f'{name} = [y for x in {items.text} for y in x]')
        return w.unpacked(items.item, name)
    if isinstance(items, s.Object):
        w.line(f'{name} = [y for x in {items.text} for y in sequence(x)]')
        return s.Items(s.Object(name), f'len({name})')
    # Items that are tuples of one type are sequences too.
    inner = w.loop(outer, 'item', lambda item: sequence(item, w), 'part')
    assert isinstance(inner, s.Nested)
    w.line(f'{name} = [y for x in {inner.text} for y in x]')
    return w.unpacked(inner.item, name)


# ---- Padded --------------------------------------------------------------------------


@output_type.register
def _(block: b.Padded, node: Typed, state: Inference) -> Type:
    item = state.types.fresh()
    items(node, state, item)
    # All alike, though some may be zeros: in each place they are other values.
    return TupleType(state.types.named(item) for _ in range(block.length))


@walk.register
def _(block: b.Padded, node: Typed, x: object, state: Walk) -> object:
    assert isinstance(node.output, TupleType)
    given = state.items(node, x)
    if (got := len(given)) > block.length:
        most = f'expected at most {block.length} items'
        refuse(node, f'{most}, got {got}; cut it by a Slice', x)
    rest = (zero_of(each, node, state) for each in node.output.items[len(given) :])
    return *given, *rest


@write.register(b.Padded)
def _(block: b.Padded, node: Typed, value: s.Symbol, w: Lines) -> s.Symbol:
    assert isinstance(node.output, TupleType)
    item = node.output[0]
    if any(isinstance(leaf, ObjectType) for leaf in leaf_types(item)):
        fail(node, 'items of tensors, which have zeros', str(item))
    given = counted(finite(value, w), w)
    w.line(f'at_most_items({given.n}, {block.length})')
    made = []
    for k in range(block.length):
        zero = zeros_written(node.output[k], w)
        listed = _listed_like(zero, given.items)
        names = []
        for each, none in zip(
            s.leaves(given.items), _packed_leaves(listed), strict=True
        ):
            names.append(w.variable('item'))
            w.line(f'{names[-1]} = {each.text}[{k}] if {given.n} > {k} else {none}')
        made.append(w.opened(w.element(given.items, iter(names))))
    return tuple(made)


def _listed_like(zero: s.Symbol, items: s.Symbol) -> s.Symbol:
    """A value whose sequences are packed where those of items are."""
    if isinstance(zero, tuple):
        pairs = zip(zero, parts_of(items), strict=True)
        return tuple(_listed_like(a, b) for a, b in pairs)
    if isinstance(zero, s.Items):
        return s.Object(s.packed(zero))
    return zero


def _packed_leaves(value: s.Symbol) -> Iterator[str]:
    return (each.text for each in s.leaves(value))
