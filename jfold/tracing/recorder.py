# SPDX-License-Identifier: Apache-2.0
"""The lists that a recording function has filled → a `Graph`.

This part knows no blocks. Any function of examples will do that appends rows to tapes
and returns their lengths after each example.

    ends [examples] of [tapes]    lengths of tapes after each example
    tapes                         lists: of objects, for constants and labels; else of
                                  numbers of rows, one or more a row

The number of a row is `level << LEVEL | maker << ROW | index`; see
`jfold.language.tapes`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jfold.base.errors import BadItem
from jfold.base.memo import memoized
from jfold.graph import Graph, Table, first_of, number_values, value_parts
from jfold.program.components import are_recurrent, component_of, results_in, sources
from jfold.program.operations import Operation, Operations
from jfold.tracing.convert import check_below, to_array
from jfold.types import KeyType, TensorType

Array = np.ndarray[Any, Any]
ROW = 30
ENTRY = (1 << ROW) - 1


@dataclass(frozen=True)
class Column:
    """The place of an input of an operation, or of a tensor of a result.

    Attributes:
      tape: the tape of its entries; -1 if it is in step, one value of a maker a row.
      place: the index of its entry in a row of the tape.
      width: the number of entries in a row of the tape.
      maker: the maker, if in step.
    """

    tape: int = -1
    place: int = 0
    width: int = 1
    maker: int = -1


@dataclass(frozen=True)
class Place:
    """The place of the rows of an operation or a result.

    Attributes:
      end: the index of the end that counts their entries.
      unit: the number of entries a row.
      columns: the place of each input.
    """

    end: int
    unit: int
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Recording:
    """The layout of tapes.

    Attributes:
      tapes: the number of tapes.
      ends: the number of tapes whose lengths are recorded after each example.
      level: the lowest bit of the level in a number.
      constants: per type, the tapes of constants of examples, with ends and bounds.
      makers: per type, (number, 'constants', end, 0) or (number, 'operation',
        operation, output) of each.
      operations: the place of the rows of each; `None` without any.
      results: the place of the rows of each; `None` without any.
      labels: per result with labels, their tape; -1 without any.
      shared: the constants of the program in the order in which they are named.
    """

    tapes: int
    ends: int
    level: int
    constants: tuple[tuple[tuple[int, int, int | None], ...], ...]
    makers: tuple[tuple[tuple[int, str, int, int], ...], ...]
    operations: tuple[Place | None, ...]
    results: tuple[Place | None, ...]
    labels: tuple[int, ...]
    shared: tuple[int, ...] = ()


def graph_of(
    program: Operations,
    recording: Recording,
    examples: int,
    ends: list[tuple[int, ...]],
    tapes: Sequence[list[Any]],
) -> Graph:
    """Return the graph of what was recorded for a program.

    Raises:
      BadItem: an entry of a tape of constants is none of its type.
    """
    return _reader(program, recording).graph(examples, ends, tapes)


@memoized
def _reader(program: Operations, recording: Recording) -> Reader:
    return Reader(program, recording)


class Reader:
    """A reader of tapes, with what can be prepared before there are any.

    Attributes:
      program: the program whose operations are applied.
      recording: the layout of the tapes.
      numbered: the tapes of numbers of rows, each with the place of the rows and the
        number of entries in a row.
      parts: per maker, the part of the values of an example that its rows are; see
        `value_parts`. For constants also their end, if several tapes share a part.
      levels: per operation, the inputs whose levels count.
      masks: for inputs that may come from other recurrences too, the makers whose
        levels count [makers].
    """

    def __init__(self, program: Operations, recording: Recording) -> None:
        self.program, self.recording = program, recording
        p, r = program, recording
        places = [x for x in (*r.operations, *r.results) if x is not None]
        columns = [(place, column) for place in places for column in place.columns]
        numbered = {x.tape: (place, x.width) for place, x in columns if x.tape >= 0}
        self.numbered = dict(sorted(numbered.items()))
        self.parts = self._parts()
        self.recurrent = are_recurrent(p)
        self.levels: list[list[int]] = []
        self.masks: dict[tuple[int, int], Array] = {}
        for o, operation in enumerate(p.operations):
            self.levels.append([])
            if self.recurrent[o]:
                self._find_levels(o, operation)
        # The bits of a maker, once an index is shifted out.
        self.low = (1 << (r.level - ROW)) - 1

    def _parts(self) -> dict[int, tuple[int, int | None]]:
        """Return per maker its part, and its end if tapes share the part."""
        p, r = self.program, self.recording
        outputs = itertools.count(len(p.types))
        number = {
            (o, k): next(outputs)
            for o, operation in enumerate(p.operations)
            for k, _ in enumerate(operation.outputs)
        }
        result: dict[int, tuple[int, int | None]] = {}
        for t, makers in enumerate(r.makers):
            for maker, origin, which, output in makers:
                if origin == 'operation':
                    result[maker] = number[which, output], None
                else:
                    shares = len(r.constants[t]) > 1
                    result[maker] = t, which if shares else None
        return result

    def _find_levels(self, o: int, operation: Operation) -> None:
        """Set the inputs of a recurrent operation whose levels count."""
        p, part = self.program, component_of(self.program)
        owner = [o for o, op in enumerate(p.operations) for _ in op.outputs]
        for k, producers in enumerate(sources(p).inputs[o]):
            owners = {owner[x] for x in results_in(producers)}
            if part[o] not in {part[x] for x in owners}:
                continue  # levels are counted within a component
            self.levels[o].append(k)
            # Numbers from another recurrence have levels too, which are to be ignored.
            if any(self.recurrent[x] and part[x] != part[o] for x in owners):
                mask = self.masks[o, k] = np.zeros(1 + max(self.parts), bool)
                for number, origin, x, *_ in self.recording.makers[operation.inputs[k]]:
                    mask[number] = origin == 'operation' and part[x] == part[o]

    # ---- the graph

    def graph(
        self, examples: int, ends: list[tuple[int, ...]], tapes: Sequence[list[Any]]
    ) -> Graph:
        """Return the graph of tapes; see `graph_of`."""
        p, r, e = self.program, self.recording, examples
        firsts = np.zeros((r.ends, e + 1), np.int64)
        if e:
            firsts[:, 1:] = np.array(ends, np.int64).reshape(e, r.ends).T
        none = np.zeros(e + 1, np.int64)
        constants, before = self._constants(tapes, firsts, none)
        begin = [_first(place, firsts, none) for place in r.operations]
        tables = [*constants, *(Table(first, ()) for first in begin)]
        numbering, begins = number_values(p, e, tables)
        # On tapes rows are counted over the batch, in a graph over their example.
        shifts = self._shifts(tables, begins, before, firsts)
        entries = self._entries(tapes, firsts, shifts)
        operations = []
        for o, place in enumerate(r.operations):
            operations.append(Table(begin[o], self._node_columns(o, place, entries)))
        results = [self._result(n, x, entries, firsts) for n, x in enumerate(r.results)]
        labels = []
        for k, n in enumerate(p.labelled):
            values = np.empty(len(results[n]), object)
            if r.labels[k] >= 0:
                values[:] = tapes[r.labels[k]]
            labels.append(Table(results[n].first, (values,)))
        rows = tuple(constants), tuple(operations), tuple(results)
        return Graph(e, *rows, numbering, tuple(labels), fits=True)

    def _constants(
        self, tapes: Sequence[list[Any]], firsts: Array, none: Array
    ) -> tuple[list[Table], dict[int, Array]]:
        """Return tables of the constants of examples by type, and offsets by end.

        The offsets [examples] count the constants of the type before those of the end.
        """
        result, before = list[Table](), dict[int, Array]()
        for type_, parts in zip(
            self.program.types, self.recording.constants, strict=True
        ):
            values = [
                _converted(tapes[tape], type_, below, firsts[end])
                for tape, end, below in parts
            ]
            if not parts:
                empty = np.zeros((0, *type_.shape), type_.dtype)
                result.append(Table(none, (empty,)))
            elif len(parts) == 1:
                result.append(Table(firsts[parts[0][1]], (values[0],)))
            else:
                counts = [np.diff(firsts[end]) for _, end, _ in parts]
                ahead = np.cumsum([np.zeros_like(counts[0]), *counts], 0)
                before |= {end: x for (_, end, _), x in zip(parts, ahead, strict=False)}
                # Tape after tape becomes example after example, tape after tape within.
                joined = np.concatenate(values)
                if len(none) > 2:
                    whose = [np.arange(len(x)).repeat(x) for x in counts]
                    joined = joined[np.concatenate(whose).argsort(kind='stable')]
                result.append(Table(first_of(ahead[-1]), (joined,)))
        return result, before

    def _shifts(
        self,
        tables: list[Table],
        begins: list[Array],
        before: dict[int, Array],
        firsts: Array,
    ) -> Array:
        """Return offsets [makers, examples] from indices of rows to value numbers."""
        types = len(self.program.types)
        shifts = np.zeros(
            (1 + max(self.parts, default=0), firsts.shape[1] - 1), np.int64
        )
        shifts[0] = -1  # constants of the program are numbered from 1
        owner = [x for _, x, _ in value_parts(self.program)]
        for maker, (part, end) in self.parts.items():
            if part >= types:
                first = tables[owner[part]].first
            else:
                first = tables[part].first if end is None else firsts[end]
            np.subtract(begins[part], first[:-1], out=shifts[maker])
            if end is not None:
                shifts[maker] += before[end]
        return shifts

    def _entries(
        self, tapes: Sequence[list[Any]], firsts: Array, shifts: Array
    ) -> _Entries:
        """Return all numbers of rows, decoded together."""
        lists = [tapes[tape] for tape in self.numbered]
        sizes = list(map(len, lists))
        raw = np.fromiter(itertools.chain(*lists), np.int64, sum(sizes))
        which = self.makers_of(raw)
        examples = firsts.shape[1] - 1
        if examples > 1 and lists:
            counts = [
                np.diff(firsts[place.end]) // place.unit * width
                for place, width in self.numbered.values()
            ]
            # One flat index of (maker, example): faster than indexing with two arrays.
            which *= examples
            whose = np.tile(np.arange(examples), len(lists))
            which += whose.repeat(np.concatenate(counts))
        rows = raw.astype(np.int32)  # keeps the lowest bits
        rows &= ENTRY
        rows += shifts.astype(np.int32).ravel()[which]
        starts = dict(
            zip(self.numbered, itertools.accumulate([0, *sizes]), strict=False)
        )
        return _Entries(raw, rows, starts, firsts, shifts)

    def makers_of(self, raw: Array) -> Array:
        """Return the makers [n] of numbers of rows [n] int64."""
        makers = raw >> ROW
        makers &= self.low
        return makers

    def _node_columns(
        self, o: int, place: Place | None, entries: _Entries
    ) -> tuple[Array, ...]:
        """Return the levels of nodes [rows], and one column [rows] per input."""
        inputs = len(self.program.operations[o].inputs)
        rows = 0 if place is None else entries.rows(place)
        if place is None or not rows:
            return (np.zeros(0, np.int32),) * (1 + inputs)
        values = entries.columns(place, entries.numbers, rows)
        if not self.levels[o]:
            return np.ones(rows, np.int32), *values
        # A row is one level above the highest of its inputs.
        highest = np.zeros(rows, np.int64)
        raw = entries.columns(place, entries.raw, rows, steps=False)
        for k in self.levels[o]:
            if raw[k] is None:  # in step, so not of a recurrence
                continue
            level = raw[k] >> self.recording.level
            if (o, k) in self.masks:
                level *= self.masks[o, k][self.makers_of(raw[k])]
            np.maximum(highest, level, out=highest)
        highest += 1
        return highest.astype(np.int32), *values

    def _result(
        self, n: int, place: Place | None, entries: _Entries, firsts: Array
    ) -> Table:
        """Return the table of a result."""
        tensors = self.program.results[n].tensors
        first = np.zeros(firsts.shape[1], np.int64)
        if n == self.program.value_results[0]:
            first = np.arange(firsts.shape[1])
        elif place is not None:
            first = _first(place, firsts, first)
        if place is None:
            return Table(first, (np.zeros(0, np.int32),) * len(tensors))
        rows = int(first[-1])
        return Table(first, tuple(entries.columns(place, entries.numbers, rows)))


@dataclass(frozen=True, eq=False)
class _Entries:
    """The entries of the tapes of numbers, one tape after another.

    Attributes:
      raw: numbers of rows, as recorded [entries] int64.
      numbers: numbers of values in their examples [entries] int32.
      starts: the first entry of each tape.
      firsts: the lengths of tapes before each example [ends, examples + 1].
      shifts: offsets from indices of rows to value numbers [makers, examples].
    """

    raw: Array
    numbers: Array
    starts: dict[int, int]
    firsts: Array
    shifts: Array

    def rows(self, place: Place) -> int:
        """Return the number of rows."""
        return int(self.firsts[place.end, -1]) // place.unit

    def columns(
        self, place: Place, entries: Array, rows: int, steps: bool = True
    ) -> list[Any]:
        """Return each column [rows]; `None` for one in step, unless `steps`."""
        result: list[Any] = []
        for column in place.columns:
            if column.tape >= 0:
                start = self.starts[column.tape] + column.place
                end = self.starts[column.tape] + rows * column.width
                result.append(entries[start : end : column.width])
            else:
                result.append(
                    self._in_step(column.maker, place, rows) if steps else None
                )
        return result

    def _in_step(self, maker: int, place: Place, rows: int) -> Array:
        """Return the numbers of the values of a maker, one a row [rows]."""
        shift = self.shifts[maker]
        if len(shift) == 1:
            return np.arange(shift[0], shift[0] + rows, dtype=np.int32)
        counts = np.diff(self.firsts[place.end]) // place.unit
        numbers: Array = np.arange(rows) + shift.repeat(counts)
        return numbers.astype(np.int32)


def _first(place: Place | None, firsts: Array, none: Array) -> Array:
    """Return the first row of each example [examples + 1]."""
    if place is None:
        return none
    entries = firsts[place.end]
    first: Array = entries if place.unit == 1 else entries // place.unit
    return first


def _converted(
    items: list[Any], type_: TensorType, below: int | None, first: Array
) -> Array:
    """Return constants as an array [items, *shape]."""
    if isinstance(type_, KeyType):  # a random key depends on its number alone
        return np.zeros((len(items), *type_.shape), type_.dtype)
    try:
        values = to_array(items, type_)
        if below is not None:
            check_below(values, below)
    except BadItem as error:
        error.example = int(np.searchsorted(first, error.index, side='right')) - 1
        raise
    return values
