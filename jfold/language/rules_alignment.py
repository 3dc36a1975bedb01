# SPDX-License-Identifier: Apache-2.0
"""The rules of blocks that put items of several sequences beside each other."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from jfold import blocks as b
from jfold.language import symbols as s
from jfold.language.inference import (
    Inference,
    output_type,
)
from jfold.language.lines import Lines
from jfold.language.paths import fail
from jfold.language.rules_sequences import UNLIKE, items, sequence_as_given
from jfold.language.typed import Typed
from jfold.language.unification import TypeVariable
from jfold.language.values import blank_items
from jfold.language.walk import (
    Walk,
    refuse,
    walk,
)
from jfold.language.writing import (
    as_object,
    counted,
    cut,
    finite,
    item_at,
    parts_of,
    sequence,
    write,
)
from jfold.tracing.objects import index_of, ints_of
from jfold.types import (
    BroadcastType,
    ObjectType,
    SequenceType,
    TupleType,
    Type,
)

Array: TypeAlias = np.ndarray[Any, Any]

# ---- Broadcast -----------------------------------------------------------------------


@output_type.register
def _(block: b.Broadcast, node: Typed, state: Inference) -> Type:
    return BroadcastType(node.input)


@walk.register
def _(block: b.Broadcast, node: Typed, x: object, state: Walk) -> object:
    return itertools.repeat(x)


@write.register(b.Broadcast)
def _(block: b.Broadcast, node: Typed, value: s.Symbol, w: Lines) -> s.Symbol:
    return s.Endless(w.held(value, 'value'))


# ---- Zip -----------------------------------------------------------------------------


@output_type.register
def _(block: b.Zip, node: Typed, state: Inference) -> Type:
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
    state.equal(node, kind(given.around(items)), output, 'to give')
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


@walk.register
def _(block: b.Zip, node: Typed, x: Iterable[Iterable[object]], state: Walk) -> object:
    if isinstance(node.output, BroadcastType):
        return itertools.repeat(tuple(next(each) for each in map(iter, x)))
    parts = [
        each if isinstance(each, itertools.repeat) else state.items(node, each)
        for each in x
    ]
    lengths = [len(each) for each in parts if isinstance(each, list)]
    for other in lengths if block.strict else ():
        if other != lengths[0]:
            got = f'{lengths[0]} items beside {other}'
            refuse(node, f'expected sequences of one length, got {got}')
    return list(zip(*parts, strict=False))


@write.register(b.Zip)
def _(block: b.Zip, node: Typed, value: s.Symbol, w: Lines) -> s.Symbol:
    found = [sequence(each, w) for each in parts_of(value)]
    lengths = [*dict.fromkeys(each.n for each in found if isinstance(each, s.Items))]
    if not lengths:
        endless = (each.item for each in found if isinstance(each, s.Endless))
        return s.Endless(tuple(endless))
    n = lengths[0]
    if len(lengths) > 1:
        n = w.variable('n')
        w.line(
            f'{n} = {"same_length" if block.strict else "min"}({", ".join(lengths)})'
        )
        if not block.strict:
            found = [
                cut(each, f':{n}', w, n) if isinstance(each, s.Items) else each
                for each in found
            ]
    elif not n.isidentifier() and not n.isdigit():
        name = w.variable('n')
        w.line(f'{name} = {n}')
        n = name
    parts = tuple(
        _repeated(each.item, n, w) if isinstance(each, s.Endless) else each.items
        for each in found
    )
    return s.Items(parts, n)


# ---- NGrams --------------------------------------------------------------------------


@output_type.register
def _(block: b.NGrams, node: Typed, state: Inference) -> Type:
    item = state.types.fresh()
    items(node, state, item, broadcast=True)
    window = TupleType(state.types.named(item) for _ in range(block.n))
    return sequence_as_given(node, state, window)


@walk.register
def _(block: b.NGrams, node: Typed, x: Iterable[object], state: Walk) -> object:
    if isinstance(node.input, BroadcastType):
        return itertools.repeat((next(iter(x)),) * block.n)
    given = state.items(node, x)
    return list(zip(*(given[first:] for first in range(block.n)), strict=False))


@write.register(b.NGrams)
def _(block: b.NGrams, node: Typed, value: s.Symbol, w: Lines) -> s.Symbol:
    given = sequence(value, w)
    if isinstance(given, s.Endless):
        return s.Endless((given.item,) * block.n)
    n = w.variable('n')
    w.line(
        f'{n} = max({given.n} - {block.n - 1}, 0)'
        if block.n > 1
        else f'{n} = {given.n}'
    )
    parts = (
        cut(given, f'{k}:{k} + {n}' if k else f':{n}', w, n).items
        for k in range(block.n)
    )
    return s.Items(tuple(parts), n)


# ---- Nth -----------------------------------------------------------------------------


@output_type.register
def _(block: b.Nth, node: Typed, state: Inference) -> Type:
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


def _is_object(
    expected: str, hint: str, node: Typed, head: Type, state: Inference
) -> Type:
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


@walk.register
def _(block: b.Nth, node: Typed, x: Sequence[object], state: Walk) -> object:
    given, index = state.items(node, x[0]), state.object(x[1])
    number = state.apply(node, index_of, index, 'an int, the index')
    if not -len(given) <= number < len(given):
        got = f'got a sequence of length {len(given)}'
        refuse(node, f'expected an item {number}, {got}', index)
    return given[number]


@write.register(b.Nth)
def _(block: b.Nth, node: Typed, value: s.Symbol, w: Lines) -> s.Symbol:
    first, second = parts_of(value)
    given, index = finite(first, w), as_object(second, w)
    name = w.variable('index')
    w.line(f'{name} = index_of({index.text})')
    return w.opened(item_at(given, name, w))


# ---- Pick, Regroup -------------------------------------------------------------------


@output_type.register
def _(block: b.Pick, node: Typed, state: Inference) -> Type:
    parts = _PICKED, _NUMBERS
    expected = 'a pair of a sequence and a list of positions'
    return _of_parts(node, parts, expected, state, SequenceType)


@walk.register
def _(block: b.Pick, node: Typed, x: Sequence[object], state: Walk) -> object:
    given = state.items(node, x[0])
    return [given[k] for k in _numbers_in(node, x[1], len(given), 'an item', state)]


@write.register(b.Pick)
def _(block: b.Pick, node: Typed, value: s.Symbol, w: Lines) -> s.Symbol:
    first, second = parts_of(value)
    given, numbers = finite(first, w), as_object(second, w)
    at = w.variable('at')
    w.line(f'{at} = numbers_of({numbers.text}, {given.n})')
    names = []
    for each in s.leaves(given.items):
        names.append(w.variable('picked'))
        w.line(f'{names[-1]} = [{each.text}[k] for k in {at}]')
    return s.renamed(s.Items(given.items), iter(names), f'len({at})')


@output_type.register
def _(block: b.Regroup, node: Typed, state: Inference) -> Type:
    parts = _PICKED, _NUMBERS, _PICKED
    expected = (
        'a sequence, a list of groups, and a sequence as long as there are groups'
    )
    return _of_parts(node, parts, expected, state, _in_groups)


def _in_groups(item: Type) -> Type:
    return SequenceType(SequenceType(item))


@walk.register
def _(block: b.Regroup, node: Typed, x: Sequence[object], state: Walk) -> object:
    given, groups = state.items(node, x[0]), state.items(node, x[2])
    numbers = _numbers_in(node, x[1], len(groups), 'a group', state)
    if len(numbers) != len(given):
        expected = f'expected a group for each of {len(given)} items'
        refuse(node, f'{expected}, got {len(numbers)}', state.object(x[1]))
    made: list[list[Any]] = [[] for _ in groups]
    for item, number in zip(given, numbers, strict=True):
        made[number].append(item)
    return made


@write.register(b.Regroup)
def _(block: b.Regroup, node: Typed, value: s.Symbol, w: Lines) -> s.Symbol:
    first, second, third = parts_of(value)
    given, numbers = finite(first, w), as_object(second, w)
    groups = counted(finite(third, w), w)
    at, text = w.variable('at'), s.packed(given)
    w.line(f'{at} = numbers_of({numbers.text}, {groups.n})')
    name = w.variable('groups')
    w.line(f'{name} = grouped({text}, {at}, {groups.n})')
    return s.Items(s.Nested(name, blank_items(given)), groups.n)


def _numbers_in(node: Typed, x: object, most: int, what: str, state: Walk) -> list[int]:
    """The ints in a list, as numbers of so many items."""
    given = state.object(x)
    made: Array = state.apply(node, ints_of, given, 'a list of ints')
    for number in made.tolist():
        if not -most <= number < most:
            text = f'expected the number of {what} of {most}, got {number}'
            refuse(node, text, given)
    return [number % most for number in made.tolist()]


def _repeated(item: s.Symbol, n: str, w: Lines) -> s.Symbol:
    """A value so many times, in lists."""
    if isinstance(item, tuple):
        return tuple(_repeated(each, n, w) for each in item)
    if isinstance(item, s.Endless):
        return s.Endless(_repeated(item.item, n, w))
    if item is None:
        return None
    name = w.variable('repeated')
    w.line(f'{name} = [{s.packed(item)}] * {n}')
    if isinstance(item, s.Items):
        return s.Nested(name, blank_items(item))
    return s.renamed(item, iter([name]))
