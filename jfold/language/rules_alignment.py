# SPDX-License-Identifier: Apache-2.0
"""The rules of blocks that align, index or join sequences: types, values and source."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

from jfold import blocks as b
from jfold.language import symbols as s
from jfold.language.inference import Inference, output_type
from jfold.language.lines import Lines, write
from jfold.language.names import item_name
from jfold.language.paths import fail
from jfold.language.rules_sequences import item_type, items_of, sequence_like_input
from jfold.language.typed import TypedUse
from jfold.language.unification import TypeVariable
from jfold.language.walk import Walk, misfit, walk, zero_of
from jfold.language.writing import (
    as_object,
    counted,
    cut,
    for_each_leaf,
    item_at,
    sequence,
    side_by_side,
    some_name,
    zeros_written,
)
from jfold.language.writing import number as number_of
from jfold.tracing.strict_reading import grouped, index_of, ints_of
from jfold.types import (
    BroadcastType,
    ObjectType,
    SequenceType,
    TupleType,
    Type,
    leaf_types,
)

output_type.register(b.Broadcast, lambda block, node, state: BroadcastType(node.input))
walk.register(b.Broadcast, lambda block, node, x, state: itertools.repeat(x))


@write.register(b.Broadcast)
def _(block: b.Broadcast, node: TypedUse, value: s.Symbol, w: Lines) -> s.Symbol:
    return s.Endless(w.held(value))


@output_type.register
def _(block: b.Zip, node: TypedUse, state: Inference) -> Type:
    output, expected = state.types.fresh(), 'a tuple of sequences'

    def link(head: TupleType) -> bool:
        parts = [state.types.head(part) for part in head]
        if any(isinstance(part, TypeVariable) for part in parts):
            return False
        is_endless = all(isinstance(part, BroadcastType) for part in parts)
        sequence_type = BroadcastType if is_endless else SequenceType
        items = []
        for part in parts:
            item = item_type(node, part, state, broadcast=True)
            if item is None:
                fail(node, expected, f'{state.types.resolve(part)} among its parts')
            # A type variable stands for one value: parts of equal types have one each.
            items.append(state.types.alias(item))
        state.equal(node, sequence_type(head.around(items)), output, 'to give')
        return True

    def check(head: Type) -> None:
        if not isinstance(head, TupleType) or not head.items:
            hint = 'take its parts by a Record' if isinstance(head, ObjectType) else ''
            fail(node, expected, str(state.types.resolve(head)), hint)
        state.when(node, lambda: link(head))

    state.when_head(node, check)
    return output


@walk.register
def _(block: b.Zip, node: TypedUse, x: Any, state: Walk) -> object:
    if isinstance(node.output, BroadcastType):
        return itertools.repeat(tuple(next(iter(part)) for part in x))
    # Endless parts stay iterators: `zip` stops with the shortest list.
    parts = [
        part if isinstance(part, itertools.repeat) else state.items(node, part)
        for part in x
    ]
    lengths = [len(part) for part in parts if isinstance(part, list)]
    for other in lengths if block.strict else ():
        if other != lengths[0]:
            got = f'{lengths[0]} items beside {other}'
            raise misfit(node, f'expected sequences of one length, got {got}')
    return list(zip(*parts, strict=False))


@write.register(b.Zip)
def _(block: b.Zip, node: TypedUse, value: Any, w: Lines) -> s.Symbol:
    parts = [sequence(part, w) for part in value]
    lengths = [*dict.fromkeys(part.n for part in parts if isinstance(part, s.Items))]
    # Lengths are expressions of the source: parts with the same one need no check.
    if not lengths:
        return s.Endless(tuple(part.item for part in parts))
    n = lengths[0]
    if len(lengths) > 1:
        n, fn = w.variable('n', 'n_of_all'), 'same_length' if block.strict else 'min'
        w.line(f'{n} = {fn}({", ".join(lengths)})')
        for k, part in enumerate(parts) if not block.strict else ():
            if isinstance(part, s.Items):
                parts[k] = cut(part, f':{n}', w, n)
    else:  # an expression for the length is evaluated once
        n = counted(s.Items(None, n), w).n
    lists = tuple(
        _repeated(part.item, n, w) if isinstance(part, s.Endless) else part.items
        for part in parts
    )
    return s.Items(lists, n)


@output_type.register
def _(block: b.NGrams, node: TypedUse, state: Inference) -> Type:
    item = items_of(node, state, broadcast=True)
    window = TupleType(state.types.alias(item) for _ in range(block.n))
    return sequence_like_input(node, state, window)


@walk.register
def _(block: b.NGrams, node: TypedUse, x: Any, state: Walk) -> object:
    if isinstance(node.input, BroadcastType):
        return itertools.repeat((next(iter(x)),) * block.n)
    items = state.items(node, x)
    return list(zip(*(items[first:] for first in range(block.n)), strict=False))


@write.register(b.NGrams)
def _(block: b.NGrams, node: TypedUse, value: s.Symbol, w: Lines) -> s.Symbol:
    operand = sequence(value, w)
    if isinstance(operand, s.Endless):
        return s.Endless((operand.item,) * block.n)
    # The k-th items of all n windows are one list: n items of the operand, from k on.
    n, before = w.variable('n', 'n_of_windows'), operand.n
    w.line(
        f'{n} = max({before} - {block.n - 1}, 0)' if block.n > 1 else f'{n} = {before}'
    )
    texts = [f':{n}', *(f'{k}:{k} + {n}' for k in range(1, block.n))]
    return s.Items(tuple([cut(operand, text, w, n).items for text in texts]), n)


@output_type.register
def _(block: b.Nth, node: TypedUse, state: Inference) -> Type:
    return _item_of_parts(node, state, 'a pair of a sequence and an index', 'index')


# For errors, by the name of the object beside a sequence: what it must be, and a hint.
OBJECTS = {
    'index': 'an index that is an object',
    'numbers': 'numbers of items in a list that is an object',
}
HINTS = {
    'index': 'it is second in the pair, and left as it is in the data',
    'numbers': 'they are second, and left as they are in the data',
}


def _item_of_parts(
    node: TypedUse, state: Inference, expected: str, name: str, count: int = 2
) -> Type:
    """Return a type variable for the items of the first part of a tuple.

    Raise `TypeError`, with texts by `expected` and `name`, unless `node`'s input is a
    tuple of `count` parts: the second is an object, the other ones are sequences.
    """
    item = state.types.fresh()

    def link(head: Type) -> None:
        if not isinstance(head, TupleType) or len(head) != count:
            hint = 'take its parts by a Record' if isinstance(head, ObjectType) else ''
            fail(node, expected, str(state.types.resolve(head)), hint)
        for number, part in enumerate(head):
            state.when_head(node, functools.partial(check, number), part)

    def check(number: int, head: Type) -> None:
        if number == 1:
            if not isinstance(head, ObjectType):
                got = str(state.types.resolve(head))
                fail(node, OBJECTS[name], got, HINTS[name])
            return
        found = item_type(node, head, state)
        if found is None:
            got = str(state.types.resolve(head))
            fail(node, f'a sequence beside the {name}', got)
        if number == 0:
            state.equal(node, found, item, 'to give')

    state.when_head(node, link)
    return item


@walk.register
def _(block: b.Nth, node: TypedUse, x: Sequence[object], state: Walk) -> object:
    items, index = state.items(node, x[0]), state.as_object(x[1])
    number = state.apply(node, index_of, index, 'an int, the index')
    if not -len(items) <= number < len(items):
        got = f'got a sequence of length {len(items)}'
        raise misfit(node, f'expected an item {number}, {got}', index)
    return items[number]


@write.register(b.Nth)
def _(block: b.Nth, node: TypedUse, value: Any, w: Lines) -> s.Symbol:
    first, second = value
    operand, index = sequence(first, w), as_object(second)
    name = w.variable('index')
    w.line(f'{name} = index_of({index.text})')
    return w.opened(item_at(operand, name, w))


@output_type.register
def _(block: b.Pick, node: TypedUse, state: Inference) -> Type:
    expected = 'a pair of a sequence and a list of positions'
    return SequenceType(_item_of_parts(node, state, expected, 'numbers'))


@walk.register
def _(block: b.Pick, node: TypedUse, x: Sequence[object], state: Walk) -> object:
    items = state.items(node, x[0])
    return [items[k] for k in _indices(node, x[1], len(items), 'an item', state)]


@write.register(b.Pick)
def _(block: b.Pick, node: TypedUse, value: Any, w: Lines) -> s.Symbol:
    first, second = value
    operand, numbers = sequence(first, w), as_object(second)
    at = w.variable('at')
    w.line(f'{at} = numbers_of({numbers.text}, {operand.n})')
    items = for_each_leaf(
        operand.items, some_name, lambda x: f'[{x.text}[k] for k in {at}]', w
    )
    return s.Items(items, f'len({at})')


@output_type.register
def _(block: b.Regroup, node: TypedUse, state: Inference) -> Type:
    expected = (
        'a sequence, a list of groups, and a sequence as long as there are groups'
    )
    item = _item_of_parts(node, state, expected, 'numbers', count=3)
    return SequenceType(SequenceType(item))


@walk.register
def _(block: b.Regroup, node: TypedUse, x: Sequence[object], state: Walk) -> object:
    items, groups = state.items(node, x[0]), state.items(node, x[2])
    numbers = _indices(node, x[1], len(groups), 'a group', state)
    if len(numbers) != len(items):
        expected = f'expected a group for each of {len(items)} items'
        raise misfit(node, f'{expected}, got {len(numbers)}', state.as_object(x[1]))
    return grouped(items, numbers, len(groups))


@write.register(b.Regroup)
def _(block: b.Regroup, node: TypedUse, value: Any, w: Lines) -> s.Symbol:
    first, second, third = value
    operand, numbers = sequence(first, w), as_object(second)
    groups = counted(sequence(third, w), w)
    at, text = w.variable('at'), s.packed(operand)
    w.line(f'{at} = numbers_of({numbers.text}, {groups.n})')
    name = w.variable('groups')
    w.line(f'{name} = grouped({text}, {at}, {groups.n})')
    return s.Items(s.Nested(name, operand), groups.n)


def _indices(node: TypedUse, x: object, most: int, what: str, state: Walk) -> list[int]:
    """Return the ints in `x` as indices below `most`; -1 becomes the last index.

    Raise `Misfit` if `x` is no list of ints, or an int is out of range. In messages an
    int is the number of `what`, such as 'an item'.
    """
    list_ = state.as_object(x)
    numbers = state.apply(node, ints_of, list_, 'a list of ints').tolist()
    for number in numbers:
        if not -most <= number < most:
            text = f'expected the number of {what} of {most}, got {number}'
            raise misfit(node, text, list_)
    return [number % most for number in numbers]


def _repeated(item: s.Symbol, n: str, w: Lines) -> s.Symbol:
    """Write code that repeats each leaf of `item` `n` times; return the lists."""

    def part(x: s.Leaf | s.Items) -> s.Symbol:
        text = s.packed(x)
        name = w.variable(f'repeated_{text}' if text.isidentifier() else 'repeated')
        w.line(f'{name} = [{text}] * {n}')
        return s.in_list(x, name)

    return s.map_parts(part, item)


@output_type.register
def _(block: b.Chain, node: TypedUse, state: Inference) -> Type:
    item = state.types.fresh()

    def link(head: Type) -> None:
        # A tuple may mix sequences, tuples and objects, if their items have one type.
        parts = head.items if isinstance(head, TupleType) else ()
        for part in parts or [items_of(node, state)]:
            state.equal(node, items_of(node, state, of=part), item, 'items of type')

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
        parts = [sequence(part, w) for part in value]
        lists = tuple(part.items for part in parts)
        chained = side_by_side(lists, 'chained', lambda leaf: f'*{leaf.text}', w)
        n = ' + '.join(part.n for part in parts)
        return counted(s.Items(chained, n), w)
    outer = sequence(value, w)
    name = w.variable('chained')
    items = outer.items
    if isinstance(items, s.Nested):
        w.line(f'{name} = [y for x in {items.text} for y in x]')
        return w.unpacked(items.item, name)
    if isinstance(items, s.Object):
        w.line(f'{name} = [y for x in {items.text} for y in sequence(x)]')
        return s.Items(s.Object(name), f'len({name})')
    # Items that are tuples of one type are sequences too.
    inner = w.loop(outer, lambda item: sequence(item, w), collects=True)
    w.line(f'{name} = [y for x in {inner.text} for y in x]')
    return w.unpacked(inner.item, name)


@output_type.register
def _(block: b.Padded, node: TypedUse, state: Inference) -> Type:
    item = items_of(node, state)
    # A type variable stands for one value: each item has its own, of an equal type.
    return TupleType(state.types.alias(item) for _ in range(block.length))


@walk.register
def _(block: b.Padded, node: Any, x: object, state: Walk) -> object:
    items = state.items(node, x)
    if (got := len(items)) > block.length:
        most = f'expected at most {block.length} items'
        raise misfit(node, f'{most}, got {got}; cut it by a Slice', x)
    padding = (zero_of(type_, node, state) for type_ in node.output.items[len(items) :])
    return *items, *padding


@write.register(b.Padded)
def _(block: b.Padded, node: Any, value: s.Symbol, w: Lines) -> s.Symbol:
    item = node.output[0]
    if any(isinstance(leaf, ObjectType) for leaf in leaf_types(item)):
        fail(node, 'items of tensors, which have zeros', str(item))
    operand = counted(sequence(value, w), w)
    w.line(f'at_most_items({operand.n}, {number_of(block.length)})')
    zeros = (zeros_written(type_, w) for type_ in node.output)
    return tuple([_item_or_zero(operand, k, zero, w) for k, zero in enumerate(zeros)])


def _item_or_zero(operand: s.Items, k: int, zero: s.Symbol, w: Lines) -> s.Symbol:
    """Write code that takes item `k` of `operand`, or `zero` if that is shorter."""
    zeros = map(s.packed, s.parts(zero))  # a sequence in an item is one Python list

    def text(leaf: s.Leaf) -> str:
        return f'{leaf.text}[{k}] if {operand.n} > {k} else {next(zeros)}'

    named = for_each_leaf(operand.items, lambda x: item_name(x.text), text, w)
    return w.opened(named)
