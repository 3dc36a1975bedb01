# SPDX-License-Identifier: Apache-2.0
"""The host plan: a `Program` on a batch of examples gives a `Graph`.

Each body runs on columns, which hold the whole batch's values at one point. A body that
calls a declaration waits until all bodies that can run have run; then all calls of one
declaration run as one, on the column of all their items. So the number of Python steps
is the nesting depth of the data, not its number of nodes, and no Python recursion
follows the data.
"""

from __future__ import annotations

import functools
import itertools
import operator
import reprlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jfold import program as p
from jfold.convert import to_array
from jfold.errors import BadItem, InputError
from jfold.graph import (
    MAX_EXAMPLES,
    Graph,
    Trace,
    concatenate,
    example_places,
    ranges,
)
from jfold.objects import each, entries, fields, flat, grouped, positions

Array = np.ndarray[Any, Any]
Column = Any  # a list of objects, or an array
Calls = list[tuple[p.Call, list[Column]]]
MAX_DEPTH = 1_000_000  # beyond it, data that contains itself would fill the memory
MAX_ROUNDS = 64  # no sequence is longer than 2**64

Running = Generator[Calls, list[list[Column]], list[Column]]


def trace(program: p.Program, examples: Sequence[Any]) -> Graph:
    """Runs the host plan on a batch.

    Raises:
      InputError: an example does not fit the expression. Nothing is kept of the batch.
    """
    parts = []
    # Places have no room for the numbers of more examples.
    for first in range(0, max(len(examples), 1), MAX_EXAMPLES):
        try:
            parts.append(_trace(program, examples[first : first + MAX_EXAMPLES]))
        except InputError as error:
            if not first:
                raise
            raise error.renumbered(first + error.example) from error
    return concatenate(parts)


def _trace(program: p.Program, examples: Sequence[Any]) -> Graph:
    given: list[Column] = [example_places(len(examples))]
    given += [list(examples)] * (program.body.arity - len(given))
    state = Trace(program, len(examples))
    outputs = _evaluate(program, given, state)
    return state.graph(outputs)


# ---- frames: bodies at work, and their calls -----------------------------------------

Origin = Callable[[int, int], tuple['Frame', int, int]]


@dataclass(eq=False)
class Frame:
    """A body at work. `origin` tells where item `i` of input register `r` comes from:
    a frame, a register and an item; `None` in the frame of the examples."""

    body: p.Body
    registers: list[Column]
    origin: Origin | None


@dataclass(eq=False)
class Waiting:
    """A frame that waits for the results of its calls."""

    running: Running
    callers: Callers
    results: list[list[Column]] = field(default_factory=list)
    missing: int = 0


@dataclass(frozen=True, eq=False)
class Receiver:
    """Who gets the results of a call, and how many items of them."""

    waiting: Waiting
    slot: int
    size: int


@dataclass(frozen=True, eq=False)
class Callers:
    """Who gets the results of a frame, and which outputs hold the lengths of others.

    `moment` orders frames as the data's depth does; see `Trace`.
    """

    owners: tuple[int, ...]
    receivers: list[Receiver]
    moment: int


def start(body: p.Body, inputs: list[Column], origin: Origin | None) -> Frame:
    """A frame at the beginning of its body."""
    return Frame(body, inputs + [None] * (body.registers - len(inputs)), origin)


def _evaluate(program: p.Program, given: list[Column], state: Trace) -> list[Column]:
    root = run(start(program.body, given, None), state)
    pool: dict[int, list[tuple[Receiver, list[Column], Frame, p.Call]]] = {}
    ready: list[tuple[Running, Callers, Any]] = [(root, Callers((), [], 0), None)]
    result: list[Column] = []
    depth = 0
    while ready or pool:
        if not ready:
            depth += 1
            if depth > MAX_DEPTH:
                raise _too_deep(next(iter(pool.values())))
            for number in sorted(pool, reverse=True):  # the first is taken first
                moment = depth * len(program.declarations) + number
                calls = pool[number]
                frame, callers = _merge(program.declarations[number], calls, moment)
                ready.append((run(frame, state), callers, None))
            pool = {}
        running, callers, sent = ready.pop()
        state.moment = callers.moment
        try:
            frame_calls = running.send(sent)
        except StopIteration as stop:
            if not callers.receivers:
                result = stop.value
            ready += _deliver(stop.value, callers)
            continue
        waiting = _wait(running, callers, frame_calls, pool)
        if not waiting.missing:
            ready.append((running, callers, waiting.results))
    return result


def _too_deep(calls: list[tuple[Receiver, list[Column], Frame, p.Call]]) -> InputError:
    _, _, frame, call = calls[0]
    text = f'nested more than {MAX_DEPTH:,} deep; does the data contain itself?'
    example, path = _locate(frame, call.inputs[-1], 0)
    return InputError(text, example, path, call.where)


def _wait(running: Running, callers: Callers, calls: Any, pool: Any) -> Waiting:
    """Puts a frame's calls into the pool; one on no items has its result at once."""
    waiting = Waiting(running, callers)
    for slot, (frame, call, inputs) in enumerate(calls):
        size = len(inputs[0])
        if not size:
            waiting.results.append([[] if x else _NONE for x in call.lists])
            continue
        waiting.results.append([])
        waiting.missing += 1
        item = (Receiver(waiting, slot, size), inputs, frame, call)
        pool.setdefault(call.declaration, []).append(item)
    return waiting


_NONE = np.zeros(0, np.int32)


def _merge(body: p.Body, calls: Any, moment: int) -> tuple[Frame, Callers]:
    """One frame for all calls that wait for the same declaration."""
    columns = list(zip(*(inputs for _, inputs, _, _ in calls), strict=True))
    inputs = list(map(join, columns))

    def origin(register: int, item: int) -> tuple[Frame, int, int]:
        counts = list(map(len, columns[register]))
        number = 0
        while item >= counts[number]:
            item, number = item - counts[number], number + 1
        _, _, frame, call = calls[number]
        return frame, call.inputs[register], item

    callers = Callers(body.owners, [receiver for receiver, *_ in calls], moment)
    return start(body, inputs, origin), callers


def _ends(
    outputs: list[Column], owners: tuple[int, ...], sizes: list[int]
) -> Iterator[list[int]]:
    """Of each call, where its part of each output ends.

    The items of a sequence end where the lengths, in an output before, say.
    """
    ends = list(itertools.accumulate(sizes))
    columns: list[list[int]] = []
    for owner in owners:
        column = ends
        if owner >= 0:
            total = np.append(0, np.cumsum(outputs[owner]))
            column = total[columns[owner]].tolist()
        columns.append(column)
    return map(list, zip(*columns, strict=True)) if columns else iter([[]] * len(sizes))


def _deliver(
    outputs: list[Column], callers: Callers
) -> Iterator[tuple[Running, Callers, Any]]:
    """Hands each caller its part of the results; the frames that can go on."""
    sizes = [receiver.size for receiver in callers.receivers]
    ends = _ends(outputs, callers.owners, sizes)
    first = [0] * len(outputs)
    for receiver, last in zip(callers.receivers, ends, strict=True):
        waiting = receiver.waiting
        parts = zip(outputs, first, last, strict=True)
        waiting.results[receiver.slot] = [x[a:b] for x, a, b in parts]
        first = last
        waiting.missing -= 1
        if not waiting.missing:
            yield waiting.running, waiting.callers, waiting.results


def run(frame: Frame, state: Trace) -> Any:
    """Runs a body; yields the calls of each stage and is sent their results."""
    registers = frame.registers
    for stage in frame.body.stages:
        instruction: p.Instruction
        try:
            for instruction in stage.instructions:
                kind = type(instruction)
                if kind is p.FoldLoop:
                    yield from _fold(instruction, frame, state)  # type: ignore[arg-type]
                elif kind is p.ReduceLoop:
                    yield from _reduce(instruction, frame, state)  # type: ignore[arg-type]
                else:
                    RULES[kind](instruction, registers, state)
        except BadItem as error:
            raise _located(error, instruction, frame) from error.__cause__
        if stage.calls:
            results = yield [
                (frame, c, _arguments(c, registers, state)) for c in stage.calls
            ]
            for call, columns in zip(stage.calls, results, strict=True):
                for register, column in zip(call.outputs, columns, strict=True):
                    registers[register] = column
    return [registers[r] for r in frame.body.outputs]


def _arguments(call: p.Call, r: list[Column], state: Trace) -> list[Column]:
    places, *given = (r[k] for k in call.inputs)
    return [state.inside(places, call.way), *given]


# ---- where a value comes from --------------------------------------------------------


def _located(error: BadItem, instruction: p.Instruction, frame: Frame) -> InputError:
    example, path = _locate(frame, instruction.inputs[0], error.index)
    return InputError(str(error), example, path, instruction.where)


def _locate(frame: Frame, register: int, item: int) -> tuple[int, str]:
    """The example of an item of a register, and its path in the example."""
    steps: list[tuple[str, Any]] = []  # as shown, and the key
    while True:
        if register < frame.body.arity:
            if frame.origin is None:
                return item, ''.join(text for text, _ in reversed(steps))
            frame, register, item = frame.origin(register, item)
            continue
        writer = frame.body.writer[register]
        if isinstance(writer, p.Pack) and steps:
            _, key = steps.pop()  # a step into what was packed is none in the data
            register = writer.inputs[key]
            continue
        register, item, step = _previous(writer, frame.registers, register, item)
        if step is not None:
            steps.append(step)


def _previous(
    writer: p.Instruction, r: list[Column], register: int, item: int
) -> tuple[int, int, tuple[str, Any] | None]:
    """One step back: the register and item it was made of, and the step in the data."""
    source = writer.inputs[0]
    if isinstance(writer, p.Field):
        return source, item, (_step(r[source][item], writer.key), writer.key)
    if isinstance(writer, p.Ranges) and register == writer.outputs[0]:
        return source, int(r[writer.inputs[1]][item]), None
    if isinstance(writer, p.Select):
        return source, int(r[writer.inputs[1]][item]), None
    if isinstance(writer, p.Partition | p.Present):
        return source, int(r[register][item]), None
    if isinstance(writer, p.Iterate) and register == writer.outputs[1]:
        owner, number = _owner(r[writer.outputs[0]], item)
        return source, owner, (f'[{number}]', number)
    if isinstance(writer, p.Join):
        for source in writer.inputs:
            if item < len(r[source]):
                break
            item -= len(r[source])
        return source, item, None
    if isinstance(writer, p.Merge):
        half = len(writer.inputs) // 2
        found = [np.flatnonzero(r[at] == item) for at in writer.inputs[:half]]
        case = [len(x) > 0 for x in found].index(True)
        return writer.inputs[half + case], int(found[case][0]), None
    if isinstance(writer, p.Interleave):
        owner, number = divmod(item, len(writer.inputs))
        return writer.inputs[number], owner, None
    if isinstance(writer, p.Call):
        return writer.inputs[-1], item, None
    return source, item, None


def _owner(lengths: Array, item: int) -> tuple[int, int]:
    """To which sequence an item of all belongs, and its number there."""
    owner = int(np.searchsorted(np.cumsum(lengths), item, side='right'))
    return owner, item - int(lengths[:owner].sum())


def _step(value: Any, key: Any) -> str:
    by_item = hasattr(type(value), '__getitem__') and not hasattr(value, '_fields')
    if isinstance(key, str) and not by_item:
        return f'.{key}'
    if isinstance(key, slice):
        parts = [key.start, key.stop] + ([] if key.step is None else [key.step])
        return f'[{":".join("" if part is None else repr(part) for part in parts)}]'
    return f'[{key!r}]'


# ---- columns -------------------------------------------------------------------------


def take(column: Column, positions: Array) -> Column:
    """The items at the given positions."""
    if isinstance(column, list):
        return [column[position] for position in positions.tolist()]
    return column[positions]


def merge(positions: Sequence[Array], columns: Sequence[Column]) -> Column:
    """One column of those at the given positions, which together are all."""
    size = sum(map(len, positions))
    for column in columns:
        if len(column) == size:
            return column
    if isinstance(columns[0], list):
        merged = [None] * size
        for at, column in zip(positions, columns, strict=True):
            for position, value in zip(at.tolist(), column, strict=True):
                merged[position] = value
        return merged
    result = np.empty(size, columns[0].dtype)
    for at, column in zip(positions, columns, strict=True):
        result[at] = column
    return result


def join(columns: Sequence[Column]) -> Column:
    """Columns one after another."""
    if len(columns) == 1:
        return columns[0]
    if isinstance(columns[0], list):
        return list(itertools.chain.from_iterable(columns))
    return np.concatenate(columns)


def starts(lengths: Array) -> Array:
    """Where each sequence begins among the items of all."""
    return np.asarray(lengths.cumsum() - lengths)


def numbers(lengths: Array) -> Array:
    """The number of each item in its sequence."""
    return ranges(np.zeros_like(lengths), lengths)


def at(i: p.Maker, places: Array, state: Trace) -> Array:
    """Where an instruction makes rows."""
    return state.inside(places, i.way) if i.way else places


# ---- a rule per instruction ----------------------------------------------------------


def _convert(i: p.Convert, r: list[Column], state: Trace) -> None:
    items, places = (r[k] for k in i.inputs)
    values = to_array(items, i.tensor)
    r[i.outputs[0]] = state.constants(i.type, at(i, places, state), values)


def _constant(i: p.Constant, r: list[Column], state: Trace) -> None:
    value = state.shared_constant(i.index)
    r[i.outputs[0]] = np.full(len(r[i.inputs[0]]), value, np.int32)


def _numbers(i: p.Numbers, r: list[Column], state: Trace) -> None:
    lengths, places = (r[k] for k in i.inputs)
    values = lengths.astype(i.tensor.dtype)
    r[i.outputs[0]] = state.constants(i.type, at(i, places, state), values)


def _transform(i: p.Transform, r: list[Column], state: Trace) -> None:
    r[i.outputs[0]] = each(i.fn, r[i.inputs[0]])


def _field(i: p.Field, r: list[Column], state: Trace) -> None:
    r[i.outputs[0]] = fields(r[i.inputs[0]], i.key)


def _pack(i: p.Pack, r: list[Column], state: Trace) -> None:
    r[i.outputs[0]] = list(zip(*(r[k] for k in i.inputs), strict=True))


def _group(i: p.Group, r: list[Column], state: Trace) -> None:
    r[i.outputs[0]] = grouped(*(r[k] for k in i.inputs))


def _apply(i: p.Apply, r: list[Column], state: Trace) -> None:
    places, *inputs = (r[k] for k in i.inputs)
    if not len(places):
        made = [_NONE for _ in i.outputs]
    else:
        made = state.apply(i.operation, at(i, places, state), inputs)
    for register, values in zip(i.outputs, made, strict=True):
        r[register] = values


def _partition(i: p.Partition, r: list[Column], state: Trace) -> None:
    codes = entries(i.case_of, r[i.inputs[0]], _one_of)
    for register, places in zip(i.outputs, positions(codes, i.cases), strict=True):
        r[register] = places


def _one_of(case_of: dict[Any, Any], hashable: bool) -> str:
    return f'one of the keys {", ".join(map(repr, itertools.islice(case_of, 20)))}'


def _lookup(i: p.Lookup, r: list[Column], state: Trace) -> None:
    r[i.outputs[0]] = entries(i.table, r[i.inputs[0]], _known, *i.default)


def _known(table: dict[Any, Any], hashable: bool) -> str:
    if not hashable:
        return 'a hashable value, to look it up'
    first = ', '.join(map(reprlib.repr, itertools.islice(table, 5)))
    more = f' and {len(table) - 5:,} more' if len(table) > 5 else ''
    return f'one of the keys {first}{more} (`default=` would admit others)'


def _present(i: p.Present, r: list[Column], state: Trace) -> None:
    absent = map(operator.is_, r[i.inputs[0]], itertools.repeat(None))
    r[i.outputs[0]], r[i.outputs[1]] = positions(list(absent), 2)


def _select(i: p.Select, r: list[Column], state: Trace) -> None:
    r[i.outputs[0]] = take(r[i.inputs[0]], r[i.inputs[1]])


def _join(i: p.Join, r: list[Column], state: Trace) -> None:
    r[i.outputs[0]] = join([r[k] for k in i.inputs])


def _order(i: p.Order, r: list[Column], state: Trace) -> None:
    positions = join([r[k] for k in i.inputs])
    order = np.empty(len(positions), np.intp)
    order[positions] = np.arange(len(positions))
    r[i.outputs[0]] = order


def _merge_cases(i: p.Merge, r: list[Column], state: Trace) -> None:
    half = len(i.inputs) // 2
    positions, columns = (
        [r[k] for k in part] for part in (i.inputs[:half], i.inputs[half:])
    )
    r[i.outputs[0]] = merge(positions, columns)


def _ranges(i: p.Ranges, r: list[Column], state: Trace) -> None:
    lengths, positions = (r[k] for k in i.inputs)
    chosen = lengths[positions]
    r[i.outputs[0]] = chosen
    r[i.outputs[1]] = ranges(starts(lengths)[positions], chosen)


def _enter(i: p.Enter, r: list[Column], state: Trace) -> None:
    lengths, places = (r[k] for k in i.inputs)
    within = functools.partial(numbers, lengths)
    r[i.outputs[0]] = state.inside(places.repeat(lengths), i.way, within)


def _iterate(i: p.Iterate, r: list[Column], state: Trace) -> None:
    r[i.outputs[0]], r[i.outputs[1]] = flat(r[i.inputs[0]])


def _interleave(i: p.Interleave, r: list[Column], state: Trace) -> None:
    columns = [r[k] for k in i.inputs]
    mixed = join([*columns, columns[0][:0]])  # a copy, of the right size
    for number, column in enumerate(columns):
        mixed[number :: len(columns)] = column
    r[i.outputs[0]] = mixed


def _fixed(i: p.Fixed, r: list[Column], state: Trace) -> None:
    r[i.outputs[0]] = np.full(len(r[i.inputs[0]]), i.length, np.int64)


def _count(i: p.Count, r: list[Column], state: Trace) -> None:
    items = r[i.inputs[0]]
    r[i.outputs[0]] = np.array(each(len, items), np.int64)


def _position(i: p.Position, r: list[Column], state: Trace) -> None:
    lengths = r[i.inputs[0]]
    inside = (lengths > i.key) if i.key >= 0 else (lengths >= -i.key)
    if not inside.all():
        index = int(np.argmin(inside))
        text = f'expected an item {i.key}, got a sequence of length {lengths[index]}'
        raise BadItem(index, text)
    last = i.key if i.key >= 0 else lengths + i.key
    r[i.outputs[0]] = starts(lengths) + last


def _cut(i: p.Cut, r: list[Column], state: Trace) -> None:
    lengths = r[i.inputs[0]]
    cuts = [range(n)[i.key] for n in range(int(lengths.max(initial=0)) + 1)]
    first, count = (np.array(x) for x in ([c.start for c in cuts], [*map(len, cuts)]))
    chosen = count[lengths]
    within = ranges(np.zeros_like(chosen), chosen) * cuts[0].step
    base = np.repeat(starts(lengths) + first[lengths], chosen)
    r[i.outputs[0]], r[i.outputs[1]] = chosen, base + within


def _observe(i: p.Observe, r: list[Column], state: Trace) -> None:
    places, *values = (r[k] for k in i.inputs)
    state.observe(i.metric, at(i, places, state), values)


RULES: dict[type, Callable[..., None]] = {
    p.Convert: _convert,
    p.Constant: _constant,
    p.Numbers: _numbers,
    p.Transform: _transform,
    p.Field: _field,
    p.Pack: _pack,
    p.Group: _group,
    p.Apply: _apply,
    p.Partition: _partition,
    p.Lookup: _lookup,
    p.Present: _present,
    p.Select: _select,
    p.Join: _join,
    p.Order: _order,
    p.Merge: _merge_cases,
    p.Ranges: _ranges,
    p.Enter: _enter,
    p.Iterate: _iterate,
    p.Interleave: _interleave,
    p.Fixed: _fixed,
    p.Count: _count,
    p.Position: _position,
    p.Cut: _cut,
    p.Observe: _observe,
}


# ---- loops over sequences ------------------------------------------------------------


def _fold(i: p.FoldLoop, frame: Frame, state: Trace) -> Any:
    """Position by position, over the sequences that are long enough."""
    r = frame.registers
    lengths, places, *columns = (r[k] for k in i.inputs)
    order = np.argsort(-lengths, kind='stable')
    places = places[order]
    states = [take(column, order) for column in columns[: i.states]]
    items = columns[i.states :]
    first = starts(lengths)[order]
    active = len(lengths) - np.searchsorted(
        lengths[order[::-1]], np.arange(int(lengths.max(initial=0))), side='right'
    )
    for position, count in enumerate(active.tolist()):
        now = first[:count] + position
        # Copies, since what the body traces keeps them and the states are overwritten.
        given = [s[:count].copy() for s in states] + [take(x, now) for x in items]
        origin = _item_origin(frame, i, order, now)
        item = functools.partial(np.full, count, position)
        inputs = [state.inside(places[:count], i.way, item), *given]
        made = yield from run(start(i.combine, inputs, origin), state)
        for column, new in zip(states[len(states) - len(made) :], made, strict=True):
            column[:count] = new
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    for register, column in zip(i.outputs, states, strict=True):
        r[register] = take(column, back)


def _item_origin(frame: Frame, i: p.FoldLoop, order: Array, now: Array) -> Origin:
    """Inputs of a fold's body: places, states in sorted order, items at positions."""

    def origin(register: int, item: int) -> tuple[Frame, int, int]:
        in_items = register > i.states
        return frame, i.inputs[register + 1], int((now if in_items else order)[item])

    return origin


def _reduce(i: p.ReduceLoop, frame: Frame, state: Trace) -> Any:
    """Rounds over adjacent pairs of all sequences that are longer than one."""
    r = frame.registers
    lengths, places, *items = (r[k] for k in i.inputs)
    left = _Left(np.arange(len(lengths)), starts(lengths), lengths, items)
    empty = left.owner[lengths == 0]
    finished = [left.ones()]
    for number in range(MAX_ROUNDS):
        left = left.longer()
        if not len(left.owner):
            break
        pair, owner, given = left.pairs()
        # Rounds halve the lengths: a pair is told by its number and its round.
        told = functools.partial(np.add, pair * MAX_ROUNDS, number)
        at_pairs = state.inside(places[owner], i.way, told)
        origin = _owner_origin(frame, i, owner)
        made = yield from run(start(i.combine, [at_pairs, *given], origin), state)
        left = left.halved(pair, made)
        finished.append(left.ones())
    if len(empty):
        origin = _owner_origin(frame, i, empty)
        inputs = [state.inside(places[empty], i.way)]
        made = yield from run(start(i.default, inputs, origin), state)
        finished.append((empty, made))
    owners, columns = zip(*finished, strict=True)
    for register, parts in zip(i.outputs, zip(*columns, strict=True), strict=True):
        r[register] = merge(owners, parts)


@dataclass(frozen=True, eq=False)
class _Left:
    """Sequences that a reduction is at work on.

    Attributes:
      owner: [sequences], their places among all.
      first, lengths: [sequences], where the items of each are in the columns.
      items: columns.
    """

    owner: Array
    first: Array
    lengths: Array
    items: list[Column]

    def ones(self) -> tuple[Array, list[Column]]:
        """The sequences of one item, and these items."""
        chosen = self.lengths == 1
        return self.owner[chosen], [take(x, self.first[chosen]) for x in self.items]

    def longer(self) -> _Left:
        """The sequences of more than one item."""
        chosen = self.lengths > 1
        owner, first = self.owner[chosen], self.first[chosen]
        return _Left(owner, first, self.lengths[chosen], self.items)

    def pairs(self) -> tuple[Array, Array, list[Column]]:
        """Of each pair its number and its owner; columns of left items, then right."""
        count = self.lengths // 2
        pair = numbers(count)
        at = self.first.repeat(count) + 2 * pair
        given = [take(x, k) for k in (at, at + 1) for x in self.items]
        return pair, self.owner.repeat(count), given

    def halved(self, pair: Array, made: list[Column]) -> _Left:
        """The sequences with what was made in the place of pairs."""
        count = self.lengths // 2
        lengths = self.lengths - count
        first = starts(lengths)
        odd = (lengths > count).nonzero()[0]
        positions = [first.repeat(count) + pair, first[odd] + count[odd]]
        last = self.first[odd] + self.lengths[odd] - 1
        items = [
            merge(positions, [new, take(old, last)])
            for new, old in zip(made, self.items, strict=True)
        ]
        return _Left(self.owner, first, lengths, items)


def _owner_origin(frame: Frame, i: p.ReduceLoop, owner: Array) -> Origin:
    """Inputs of a reduction's body are traced back to their sequence as a whole."""
    return lambda register, item: (frame, i.inputs[0], int(owner[item]))
