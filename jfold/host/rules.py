# SPDX-License-Identifier: Apache-2.0
"""A rule per instruction: what it makes of columns.

A column holds values of many items at one point of a body: a list of Python objects, or
an array.
"""

from __future__ import annotations

import functools
import itertools
import operator
import reprlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jfold import instructions as ir
from jfold.errors import BadItem
from jfold.graph import first_of, ranges
from jfold.host.convert import check_below, lengths_to_array, to_array
from jfold.host.objects import (
    check_lengths,
    each,
    entries,
    fields,
    fields_or,
    flat,
    grouped,
    positions,
)
from jfold.host.pieces import Pieces, Spans, joined, picked, whole
from jfold.host.promises import Promises
from jfold.host.trace import Trace
from jfold.registers import LISTED, items_of

Array = np.ndarray[Any, Any]
Column = Any  # a list of objects, or an array
NONE = np.zeros(0, np.int32)
FAR = 1 << 62  # beyond any sequence


def take(column: Column, positions: Array) -> Column:
    """The items at the given positions."""
    if isinstance(column, list):
        where = positions if isinstance(positions, list) else positions.tolist()
        return list(map(column.__getitem__, where))
    return column[positions]


def put(column: Column, positions: Array, items: Column) -> None:
    """Writes items to the given positions of a column."""
    if isinstance(column, list):
        for position, item in zip(positions.tolist(), items, strict=True):
            column[position] = item
    else:
        column[positions] = items


def merge(positions: Sequence[Array], columns: Sequence[Column]) -> Column:
    """One column of those at the given positions, which together are all."""
    size = sum(map(len, positions))
    for column in columns:
        if len(column) == size:
            return column
    if isinstance(columns[0], list):
        result: Column = [None] * size
    else:
        result = np.empty(size, columns[0].dtype)
    for at, column in zip(positions, columns, strict=True):
        put(result, at, column)
    return result


def join(columns: Sequence[Column]) -> Column:
    """Columns one after another."""
    if len(columns) == 1:
        return columns[0]
    if isinstance(columns[0], list):
        made: list[Any] = []
        for column in columns:
            made += column  # faster than a chain of items
        return made
    if isinstance(columns[0], bytes):
        return b''.join(columns)
    return np.concatenate(columns)


def starts(lengths: Array) -> Array:
    """Where each sequence begins among the items of all."""
    return np.asarray(lengths.cumsum() - lengths)


def numbers(lengths: Array) -> Array:
    """The number of each item in its sequence."""
    return ranges(np.zeros_like(lengths), lengths)


# ---- a rule per instruction ----------------------------------------------------------


def _convert(i: ir.Convert, r: list[Column], state: Trace) -> None:
    items, places = (r[k] for k in i.inputs)
    values = to_array(items, i.tensor)
    if i.below is not None:
        check_below(values, i.below)
    r[i.outputs[0]] = state.constants(i.type, state.at(i.way, places), values)


def _constant(i: ir.Constant, r: list[Column], state: Trace) -> None:
    r[i.outputs[0]] = np.full(len(r[i.inputs[0]]), state.shared[i.index])


def _choose(i: ir.Choose, r: list[Column], state: Trace) -> None:
    hint = 'pass `strict=False` to make zeros of others'
    found = entries(i.table, r[i.inputs[0]], _known, *i.default, hint=hint)
    r[i.outputs[0]] = state.shared[np.array(found, np.intp)]


def _numbers(i: ir.Numbers, r: list[Column], state: Trace) -> None:
    lengths, places = (r[k] for k in i.inputs)
    values = lengths_to_array(lengths, i.tensor)
    r[i.outputs[0]] = state.constants(i.type, state.at(i.way, places), values)


def _draw(i: ir.Draw, r: list[Column], state: Trace) -> None:
    places = r[i.inputs[0]]
    # Which key each is, its number in its example tells, once there is a schedule.
    values = np.zeros((len(places), *i.tensor.shape), i.tensor.dtype)
    r[i.outputs[0]] = state.constants(i.type, state.at(i.way, places), values)


def _transform(i: ir.Transform, r: list[Column], state: Trace) -> None:
    r[i.outputs[0]] = each(i.fn, r[i.inputs[0]], expected='what its function takes')


def _field(i: ir.Field, r: list[Column], state: Trace) -> None:
    items = r[i.inputs[0]]
    if i.most is not None:
        check_lengths(items, i.most)
    r[i.outputs[0]] = (
        fields(items, i.key)
        if i.default is None
        else fields_or(items, i.key, *i.default)
    )


def _pack(i: ir.Pack, r: list[Column], state: Trace) -> None:
    r[i.outputs[0]] = list(zip(*(r[k] for k in i.inputs), strict=True))


def _group(i: ir.Group, r: list[Column], state: Trace) -> None:
    r[i.outputs[0]] = grouped(*(r[k] for k in i.inputs))


def _apply(i: ir.Apply, r: list[Column], state: Trace) -> None:
    places, *inputs = [r[k] for k in i.inputs]
    if not len(places):
        made = [NONE for _ in i.outputs]
    else:
        made = state.apply(i.operation, state.at(i.way, places), inputs)
    for register, values in zip(i.outputs, made, strict=True):
        r[register] = values


def _positions(i: ir.Positions, r: list[Column], state: Trace) -> None:
    found = positions(r[i.inputs[0]], len(i.outputs))
    for register, of_case in zip(i.outputs, found, strict=True):
        r[register] = of_case


def _lookup(i: ir.Lookup, r: list[Column], state: Trace) -> None:
    hint = 'pass `default=` for what a table lacks'
    r[i.outputs[0]] = entries(i.table, r[i.inputs[0]], _known, *i.default, hint=hint)


def _known(table: dict[Any, Any], hashable: bool) -> str:
    if not hashable:
        return 'a hashable value, to look it up'
    first = ', '.join(map(reprlib.repr, itertools.islice(table, 5)))
    more = f' and {len(table) - 5:,} more' if len(table) > 5 else ''
    return f'one of the keys {first}{more}'


def _select(i: ir.Select, r: list[Column], state: Trace) -> None:
    r[i.outputs[0]] = take(r[i.inputs[0]], r[i.inputs[1]])


def _join(i: ir.Join, r: list[Column], state: Trace) -> None:
    r[i.outputs[0]] = join([r[k] for k in i.inputs])


def _order(i: ir.Order, r: list[Column], state: Trace) -> None:
    positions = join([r[k] for k in i.inputs])
    order = np.empty(len(positions), np.intp)
    order[positions] = np.arange(len(positions))
    r[i.outputs[0]] = order


def _merge_cases(i: ir.Merge, r: list[Column], state: Trace) -> None:
    half = len(i.inputs) // 2
    positions, columns = (
        [r[k] for k in part] for part in (i.inputs[:half], i.inputs[half:])
    )
    r[i.outputs[0]] = merge(positions, columns)


def _ranges(i: ir.Ranges, r: list[Column], state: Trace) -> None:
    _ranges_spans(i, r, state)
    r[i.outputs[1]] = whole(r[i.outputs[1]])


def _enter(i: ir.Enter, r: list[Column], state: Trace) -> None:
    lengths, places = (r[k] for k in i.inputs)
    within = functools.partial(numbers, lengths)
    r[i.outputs[0]] = state.inside(i, places.repeat(lengths), within)


def _iterate(i: ir.Iterate, r: list[Column], state: Trace) -> None:
    r[i.outputs[0]], r[i.outputs[1]] = flat(r[i.inputs[0]], state.reread)


def _interleave(i: ir.Interleave, r: list[Column], state: Trace) -> None:
    columns = [r[k] for k in i.inputs]
    mixed = join([*columns, columns[0][:0]])  # a copy, of the right size
    for number, column in enumerate(columns):
        mixed[number :: len(columns)] = column
    r[i.outputs[0]] = mixed


def _fixed(i: ir.Fixed, r: list[Column], state: Trace) -> None:
    r[i.outputs[0]] = np.full(len(r[i.inputs[0]]), i.length, np.int64)


def _count(i: ir.Count, r: list[Column], state: Trace) -> None:
    items = r[i.inputs[0]]
    r[i.outputs[0]] = np.array(
        each(len, items, expected='something with a length'), np.int64
    )


def _position(i: ir.Position, r: list[Column], state: Trace) -> None:
    lengths = r[i.inputs[0]]
    inside = (lengths > i.key) if i.key >= 0 else (lengths >= -i.key)
    if not inside.all():
        index = int(np.argmin(inside))
        text = f'expected an item {i.key}, got a sequence of length {lengths[index]}'
        raise BadItem(index, text)
    last = i.key if i.key >= 0 else lengths + i.key
    r[i.outputs[0]] = starts(lengths) + last


def _index(i: ir.Index, r: list[Column], state: Trace) -> None:
    items, lengths = (r[k] for k in i.inputs)
    given = each(operator.index, items, expected='an int, the index')
    keys = np.array([min(max(key, -FAR), FAR) for key in given], np.int64)
    if (at := _first_outside(keys, lengths)) is not None:
        text = f'expected an item {given[at]}, got a sequence of length {lengths[at]}'
        raise BadItem(at, text)
    r[i.outputs[0]] = starts(lengths) + _from_start(keys, lengths)


def _first_outside(keys: Array, lengths: Array) -> int | None:
    """The first key [n] that numbers no item of its sequence, of so many items [n]."""
    inside = (keys < lengths) & (keys >= -lengths)
    return None if inside.all() else int(np.argmin(inside))


def _from_start(keys: Array, lengths: Array) -> Array:
    """Keys [n], of which those below zero count from the end."""
    return np.where(keys < 0, keys + lengths, keys)


def _pick(i: ir.Pick, r: list[Column], state: Trace) -> None:
    lists, lengths = (r[k] for k in i.inputs)
    counts, keys = _numbers_in(lists, lengths, 'an item')
    r[i.outputs[0]], r[i.outputs[1]] = counts, starts(lengths).repeat(counts) + keys


def _regroup(i: ir.Regroup, r: list[Column], state: Trace) -> None:
    lists, lengths, groups = (r[k] for k in i.inputs)
    counts, keys = _numbers_in(lists, groups, 'a group')
    if (counts != lengths).any():
        index = int(np.argmax(counts != lengths))
        expected = f'expected a group for each of {lengths[index]} items'
        raise BadItem(index, f'{expected}, got {counts[index]}')
    group = starts(groups).repeat(counts) + keys
    r[i.outputs[0]] = np.bincount(group, minlength=int(groups.sum()))
    r[i.outputs[1]] = np.argsort(group, kind='stable')


def _numbers_in(lists: list[Any], lengths: Array, what: str) -> tuple[Array, Array]:
    """Of lists of ints how long each is, and all ints, those from an end as from 0.

    Raises:
      BadItem: a list is none, or an int is not below its length.
    """
    arrays = each(_whole, lists, expected='a list of ints')
    counts = np.fromiter(map(len, arrays), np.int64, len(arrays))
    keys = np.concatenate([np.zeros(0, np.int64), *arrays])
    most = lengths.repeat(counts)
    if (at := _first_outside(keys, most)) is not None:
        index = int(np.searchsorted(counts.cumsum(), at, side='right'))
        text = f'expected the number of {what} of {most[at]}, got {keys[at]}'
        raise BadItem(index, text)
    return counts, _from_start(keys, most)


def _whole(numbers: Any) -> Array:
    """A list, or an array, of ints."""
    made = np.asarray(numbers)
    if made.ndim != 1 or (made.size and made.dtype.kind not in 'iu'):
        raise TypeError(f'they are {made.dtype}{list(made.shape)}')
    return made.astype(np.int64)


def _chain(i: ir.Chain, r: list[Column], state: Trace) -> None:
    _chain_spans(i, r, state)
    r[i.outputs[1]] = whole(r[i.outputs[1]])


def _total(i: ir.Total, r: list[Column], state: Trace) -> None:
    outer, inner = (r[k] for k in i.inputs)
    r[i.outputs[0]] = np.diff(first_of(inner)[first_of(outer)])


def _padded(i: ir.Padded, r: list[Column], state: Trace) -> None:
    lengths, most = r[i.inputs[0]], len(i.outputs)
    if (lengths > most).any():
        index = int(np.argmax(lengths > most))
        text = f'expected at most {most} items, got {lengths[index]}'
        raise BadItem(index, f'{text}; cut it by a Slice')
    missing = lengths.sum() + np.arange(len(lengths))
    for number, register in enumerate(i.outputs):
        there = lengths > number
        r[register] = np.where(there, starts(lengths) + number, missing)


def _wrap(i: ir.Wrap, r: list[Column], state: Trace) -> None:
    lengths, *items = (r[k] for k in i.inputs)
    ends = lengths.cumsum().tolist()
    r[i.outputs[0]] = [
        (length, *(column[end - length : end] for column in items))
        for length, end in zip(lengths.tolist(), ends, strict=True)
    ]


def _unwrap(i: ir.Unwrap, r: list[Column], state: Trace) -> None:
    sequences = r[i.inputs[0]]
    counts = (length for length, *_ in sequences)
    r[i.outputs[0]] = np.fromiter(counts, np.int64, len(sequences))
    for k, type_ in enumerate(items_of(i.sequence), 1):
        empty: Column = [] if type_.kind in LISTED else NONE
        r[i.outputs[k]] = join([empty, *(each[k] for each in sequences)])


def _owners(i: ir.Owners, r: list[Column], state: Trace) -> None:
    lengths = r[i.inputs[0]]
    r[i.outputs[0]] = np.arange(len(lengths)).repeat(lengths)


def _shortest(i: ir.Shortest, r: list[Column], state: Trace) -> None:
    r[i.outputs[0]] = functools.reduce(np.minimum, [r[k] for k in i.inputs])


def _same(i: ir.Same, r: list[Column], state: Trace) -> None:
    first, *others = (r[k] for k in i.inputs)
    for other in others:
        if (first != other).any():
            index = int(np.argmax(first != other))
            got = f'{first[index]} items beside {other[index]}'
            raise BadItem(index, f'expected sequences of one length, got {got}')
    r[i.outputs[0]] = first


def _leading(i: ir.Leading, r: list[Column], state: Trace) -> None:
    lengths, chosen = (r[k] for k in i.inputs)
    r[i.outputs[0]] = ranges(starts(lengths), chosen)


def _cut(i: ir.Cut, r: list[Column], state: Trace) -> None:
    lengths = r[i.inputs[0]]
    cuts = [range(n)[i.key] for n in range(int(lengths.max(initial=0)) + 1)]
    first, count = (np.array(x) for x in ([c.start for c in cuts], [*map(len, cuts)]))
    chosen = count[lengths]
    within = ranges(np.zeros_like(chosen), chosen) * cuts[0].step
    base = np.repeat(starts(lengths) + first[lengths], chosen)
    r[i.outputs[0]], r[i.outputs[1]] = chosen, base + within


def _observe(i: ir.Observe, r: list[Column], state: Trace) -> None:
    places, *values = (r[k] for k in i.inputs)
    state.observe(i, places, values)


def _observe_labelled(i: ir.ObserveLabelled, r: list[Column], state: Trace) -> None:
    places, *values, labels = (r[k] for k in i.inputs)
    state.observe(i, places, values)
    state.labels[i.result] += labels


def _promise(i: ir.Promise, r: list[Column], state: Promises) -> None:
    numbers, places = (r[k] for k in i.inputs)
    for k, register in enumerate(i.outputs):
        r[register] = state.tokens.promise((i.declaration, k), numbers, len(places))


def _descend(i: ir.Descend, r: list[Column], state: Promises) -> None:
    parents, numbers, places = (r[k] for k in i.inputs)
    state.placing.descend(i.visit, parents, places[numbers])


def _fulfil(i: ir.Fulfil, r: list[Column], state: Promises) -> None:
    _, *results = (r[k] for k in i.inputs)
    for k, column in enumerate(results):
        state.tokens.fulfil((i.declaration, k), column)


# ---- where columns may be pieces; see `pieces` ---------------------------------------


def _chain_spans(i: ir.Chain, r: list[Column], state: Trace) -> None:
    lengths = np.array([whole(r[k]) for k in i.inputs])
    begins = starts(lengths.ravel()).reshape(lengths.shape)
    r[i.outputs[0]] = lengths.sum(0)
    r[i.outputs[1]] = Spans(begins.T.ravel(), lengths.T.ravel())


def _ranges_spans(i: ir.Ranges, r: list[Column], state: Trace) -> None:
    lengths, positions = (whole(r[k]) for k in i.inputs)
    chosen = lengths[positions]
    r[i.outputs[0]] = chosen
    r[i.outputs[1]] = Spans(starts(lengths)[positions], chosen)


def _select_pieces(i: ir.Select, r: list[Column], state: Trace) -> None:
    column, positions = (r[k] for k in i.inputs)
    if not isinstance(positions, Spans) or positions.are_few:
        r[i.outputs[0]] = take(whole(column), whole(positions))
    else:
        r[i.outputs[0]] = picked(column, positions)


def _join_pieces(i: ir.Join, r: list[Column], state: Trace) -> None:
    columns = [r[k] for k in i.inputs]
    some = any(isinstance(column, Pieces) for column in columns)
    r[i.outputs[0]] = joined(columns) if some else join(columns)


PIECED: dict[type, Callable[..., None]] = {
    ir.Chain: _chain_spans,
    ir.Ranges: _ranges_spans,
    ir.Select: _select_pieces,
    ir.Join: _join_pieces,
}
RULES: dict[type, Callable[..., None]] = {
    ir.Transform: _transform,
    ir.Field: _field,
    ir.Convert: _convert,
    ir.Constant: _constant,
    ir.Choose: _choose,
    ir.Numbers: _numbers,
    ir.Draw: _draw,
    ir.Pack: _pack,
    ir.Group: _group,
    ir.Apply: _apply,
    ir.Lookup: _lookup,
    ir.Positions: _positions,
    ir.Select: _select,
    ir.Join: _join,
    ir.Order: _order,
    ir.Merge: _merge_cases,
    ir.Ranges: _ranges,
    ir.Enter: _enter,
    ir.Iterate: _iterate,
    ir.Interleave: _interleave,
    ir.Fixed: _fixed,
    ir.Count: _count,
    ir.Position: _position,
    ir.Index: _index,
    ir.Pick: _pick,
    ir.Regroup: _regroup,
    ir.Chain: _chain,
    ir.Total: _total,
    ir.Padded: _padded,
    ir.Wrap: _wrap,
    ir.Unwrap: _unwrap,
    ir.Owners: _owners,
    ir.Shortest: _shortest,
    ir.Same: _same,
    ir.Leading: _leading,
    ir.Cut: _cut,
    ir.Observe: _observe,
    ir.ObserveLabelled: _observe_labelled,
    ir.Descend: _descend,
    ir.Promise: _promise,
    ir.Fulfil: _fulfil,
}
