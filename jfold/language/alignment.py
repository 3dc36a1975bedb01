# SPDX-License-Identifier: Apache-2.0
"""The rules of blocks that put items of several sequences beside each other."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, cast

from jfold import combinators as c
from jfold import instructions as p
from jfold.language.eager import Eager, value_of
from jfold.language.emission import emit
from jfold.language.inference import Inference, output_type
from jfold.language.paths import fail
from jfold.language.sequences import UNLIKE, in_order, items, sequence_as_given
from jfold.language.typed import Typed
from jfold.language.unification import TypeVariable
from jfold.language.writer import Repeated, SequenceValue, Value, Writer, Writing
from jfold.types import (
    BroadcastType,
    ObjectType,
    SequenceType,
    TupleType,
    Type,
)

# ---- Broadcast -----------------------------------------------------------------------


@output_type.register
def _(block: c.Broadcast, node: Typed, state: Inference) -> Type:
    return BroadcastType(node.input)


@emit.register
def _(block: c.Broadcast, node: Typed, value: Value, places: int, w: Writer) -> Value:
    return Repeated(value)


@value_of.register
def _(block: c.Broadcast, node: Typed, x: object, state: Eager) -> object:
    return itertools.repeat(x)


# ---- Zip -----------------------------------------------------------------------------


@output_type.register
def _(block: c.Zip, node: Typed, state: Inference) -> Type:
    output = state.types.fresh()

    def link(given: Type) -> None:
        if not isinstance(given, TupleType) or not given.items:
            hint = 'take its parts by a Record' if isinstance(given, ObjectType) else ''
            fail(node, 'a tuple of sequences', str(state.types.resolve(given)), hint)
        state.when(node, lambda: _zipped(node, given, output, state))

    state.when_head(node, link)
    return output


def _zipped(node: Typed, given: TupleType, output: Type, state: Inference) -> bool:
    """Says what is zipped, once it is known of every part what kind it is."""
    heads = [state.types.head(each) for each in given]
    if any(isinstance(head, TypeVariable) for head in heads):
        return False
    repeated = all(isinstance(head, BroadcastType) for head in heads)
    kind = BroadcastType if repeated else SequenceType
    # Of one type but named apart: in each part they are other values.
    items = (state.types.named(_item_type(node, head, state)) for head in heads)
    state.equal(node, kind(TupleType(items)), output, 'to give')
    return True


def _item_type(node: Typed, head: Type, state: Inference) -> Type:
    """The type of the items of one part."""
    if isinstance(head, BroadcastType):
        return head.item
    item = _of_sequence(node, head, state)
    if item is None:
        got = f'{state.types.resolve(head)} among its parts'
        fail(node, 'a tuple of sequences', got)
    return item


def _of_sequence(node: Typed, head: Type, state: Inference) -> Type | None:
    """The type of the items of a sequence, of a tuple of one type, or of an object."""
    if isinstance(head, SequenceType):
        return head.item
    if isinstance(head, TupleType) and head.items:
        for each in head:
            state.equal(node, each, head.items[0], 'items of one type,', UNLIKE)
        return head.items[0]
    return head if isinstance(head, ObjectType) else None


@emit.register
def _(block: c.Zip, node: Typed, value: Value, places: int, w: Writer) -> Writing:
    assert isinstance(value, tuple)
    parts = zip(value, cast(TupleType, node.input), strict=True)
    finite = [each for each in parts if not isinstance(each[0], Repeated)]
    if not finite:
        return Repeated(tuple(x.item for x in value if isinstance(x, Repeated)))
    sequences = []
    for each in finite:
        sequences.append((yield w.sequence(*each, places, node)))
    zipped = yield w.aligned(sequences, node, block.strict)
    if len(finite) == len(value):
        return zipped
    owners = w.one(p.Owners, (zipped.lengths,), node)
    assert isinstance(zipped.items, tuple)
    rest = iter(zipped.items)
    made: list[Value] = []
    for part in value:
        if isinstance(part, Repeated):
            made.append((yield w.select(part.item, owners, node)))
        else:
            made.append(next(rest))
    return SequenceValue(zipped.lengths, tuple(made))


@value_of.register
def _(block: c.Zip, node: Typed, x: tuple[Any, ...], state: Eager) -> object:
    parts = [in_order(node, each) for each in x]
    if isinstance(node.output, BroadcastType):
        return itertools.repeat(tuple(next(each) for each in map(iter, parts)))
    if block.strict:
        parts = [x if isinstance(x, itertools.repeat) else list(x) for x in parts]
        _check_same([len(x) for x in parts if isinstance(x, list)])
    return list(zip(*parts, strict=False))


def _check_same(lengths: list[int]) -> None:
    for other in lengths:
        if other != lengths[0]:
            got = f'{lengths[0]} items beside {other}'
            raise ValueError(f'expected sequences of one length, got {got}')


# ---- NGrams --------------------------------------------------------------------------


@output_type.register
def _(block: c.NGrams, node: Typed, state: Inference) -> Type:
    item = state.types.fresh()
    items(node, state, item, broadcast=True)
    window = TupleType(state.types.named(item) for _ in range(block.n))
    return sequence_as_given(node, state, window)


@emit.register
def _(block: c.NGrams, node: Typed, value: Value, places: int, w: Writer) -> Writing:
    if isinstance(value, Repeated):
        return Repeated((value.item,) * block.n)
    given = yield w.sequence(value, node.input, places, node)
    parts = []
    for first in range(block.n):
        # The last items that no window begins with, or has at this place, are left out.
        key = slice(first, first + 1 - block.n or None)
        lengths = (given.lengths,)
        parts.append((yield w.ranges(p.Cut, lengths, given.items, node, key=key)))
    return (yield w.aligned(parts, node))


@value_of.register
def _(block: c.NGrams, node: Typed, x: Iterable[Any], state: Eager) -> object:
    if isinstance(node.input, BroadcastType):
        return itertools.repeat((next(iter(x)),) * block.n)
    given = list(in_order(node, x))
    return list(zip(*(given[first:] for first in range(block.n)), strict=False))


# ---- Nth -----------------------------------------------------------------------------


@output_type.register
def _(block: c.Nth, node: Typed, state: Inference) -> Type:
    parts = _INDEXED, _INDEX
    return _of_parts(node, parts, 'a pair of a sequence and an index', state, _itself)


Check: TypeAlias = Callable[[Typed, Type, Inference], Type]


def _of_parts(
    node: Typed,
    parts: Sequence[Check],
    expected: str,
    state: Inference,
    gives: Callable[[Type], Type],
) -> Type:
    """What a block gives of the items of the first of its parts.

    Args:
      parts: what checks each, once it is known what kind it is; gives its items' type.
    """
    item = state.types.fresh()

    def link(given: Type) -> None:
        if not isinstance(given, TupleType) or len(given) != len(parts):
            hint = 'take its parts by a Record' if isinstance(given, ObjectType) else ''
            fail(node, expected, str(state.types.resolve(given)), hint)
        for number, part in enumerate(given):
            state.when_head(node, functools.partial(checked, number), part)

    def checked(number: int, head: Type) -> None:
        found = parts[number](node, head, state)
        if number == 0:
            state.equal(node, found, item, 'to give')

    state.when_head(node, link)
    return gives(item)


def _itself(item: Type) -> Type:
    return item


def _is_object(expected: str, hint: str, node: Typed, head: Type, state: Any) -> Type:
    """Checks a part that stays as it is in the data."""
    if not isinstance(head, ObjectType):
        fail(node, expected, str(state.types.resolve(head)), hint)
    return head


_INDEX = functools.partial(
    _is_object,
    'an index that is an object',
    'it is second in the pair, and left as it is in the data',
)
_NUMBERS = functools.partial(
    _is_object,
    'numbers of items in a list that is an object',
    'they are second, and left as they are in the data',
)


def _sequence_item(expected: str, node: Typed, head: Type, state: Inference) -> Type:
    """Checks a part that is a sequence; the type of its items."""
    item = _of_sequence(node, head, state)
    if item is None:
        fail(node, expected, str(state.types.resolve(head)))
    return item


_INDEXED = functools.partial(_sequence_item, 'a sequence beside the index')
_PICKED = functools.partial(_sequence_item, 'a sequence beside the numbers')


@emit.register
def _(block: c.Nth, node: Typed, value: Value, places: int, w: Writer) -> Writing:
    assert isinstance(value, tuple)
    given = yield w.sequence(value[0], cast(TupleType, node.input)[0], places, node)
    position = w.one(p.Index, (value[1], given.lengths), node)
    return (yield w.select(given.items, position, node))


@value_of.register
def _(block: c.Nth, node: Typed, x: tuple[Any, int], state: Eager) -> object:
    sequence, index = x
    return list(in_order(node, sequence))[operator.index(index)]


# ---- Pick, Regroup -------------------------------------------------------------------


@output_type.register
def _(block: c.Pick, node: Typed, state: Inference) -> Type:
    parts = _PICKED, _NUMBERS
    expected = 'a pair of a sequence and a list of positions'
    return _of_parts(node, parts, expected, state, SequenceType)


@emit.register
def _(block: c.Pick, node: Typed, value: Value, places: int, w: Writer) -> Writing:
    assert isinstance(value, tuple)
    given = yield w.sequence(value[0], cast(TupleType, node.input)[0], places, node)
    inputs = value[1], given.lengths
    return (yield w.ranges(p.Pick, inputs, given.items, node))


@value_of.register
def _(block: c.Pick, node: Typed, x: tuple[Any, Any], state: Eager) -> object:
    given = list(in_order(node, x[0]))
    return [given[operator.index(number)] for number in in_order(node, x[1])]


@output_type.register
def _(block: c.Regroup, node: Typed, state: Inference) -> Type:
    parts = _PICKED, _NUMBERS, _PICKED
    expected = (
        'a sequence, a list of groups, and a sequence as long as there are groups'
    )
    return _of_parts(node, parts, expected, state, _in_groups)


def _in_groups(item: Type) -> Type:
    return SequenceType(SequenceType(item))


@emit.register
def _(block: c.Regroup, node: Typed, value: Value, places: int, w: Writer) -> Writing:
    assert isinstance(value, tuple)
    given = yield w.sequence(value[0], cast(TupleType, node.input)[0], places, node)
    groups = yield w.sequence(value[2], cast(TupleType, node.input)[2], places, node)
    inputs = value[1], given.lengths, groups.lengths
    items = yield w.ranges(p.Regroup, inputs, given.items, node)
    return SequenceValue(groups.lengths, items)


@value_of.register
def _(block: c.Regroup, node: Typed, x: tuple[Any, Any, Any], state: Eager) -> object:
    made: list[list[Any]] = [[] for _ in in_order(node, x[2])]
    for item, number in zip(*(in_order(node, each) for each in x[:2]), strict=True):
        made[operator.index(number)].append(item)
    return made
