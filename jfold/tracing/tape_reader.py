# SPDX-License-Identifier: Apache-2.0
"""The reader of tapes: makes a `Graph` of the lists that a recording function filled.

This part knows no blocks. Any function of examples will do that appends to lists, the
tapes, and returns them with `ends`, the lengths of some tapes after each example:

    ends     [examples] tuples, each [ends]: an *end* is the index of such a tape here
    tapes    lists: of objects, for constants and labels; else of row numbers, one entry
             for each operand of a row, on one tape or on several

A row number says which row is read: `level << Recording.level | maker << ROW | index`,
where *maker* numbers the producer, one output of an operation or one tape of constants,
from 1; maker 0 are the constants of the program, with indices from 1. The index counts
from the start of the batch; see `jfold.language.symbols`. A value number of a `Graph`
counts from the start of the example. An operand is *in step* if row i always reads row
i of one maker: then no tape records it.

Shapes: [rows] of a table, [nodes] of an operation, [entries] of all tapes of row
numbers, [makers] with 0, [ends] as above.
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
from jfold.program.components import (
    are_recurrent,
    component_of,
    output_places,
    results_in,
    sources,
)
from jfold.program.operations import Operation, Operations
from jfold.tracing.convert import to_bounded
from jfold.types import KeyType, TensorType

Array = np.ndarray[Any, Any]
ROW = 30  # bits of the index in a row number
ENTRY = (1 << ROW) - 1  # their mask


@dataclass(frozen=True)
class Column:
    """The position of an operand's entries on a tape; if in step, the operand's maker.

    Attributes:
      tape: the index of the tape with its row numbers; -1 if it is in step.
      place: the index of its entry among the `width` entries of a row.
      width: the number of entries on the tape for each row.
      maker: the maker it reads in step; else -1.
    """

    tape: int = -1
    place: int = 0
    width: int = 1
    maker: int = -1


@dataclass(frozen=True)
class Place:
    """The tapes on which the rows of an operation or a result are recorded.

    Attributes:
      end: the index in `ends` of the length of the tape that counts the rows.
      unit: the number of entries on this tape for each row.
      columns: the place of each input, or of each tensor of a result.
    """

    end: int
    unit: int
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Recording:
    """The layout of the tapes that a recording function fills.

    Attributes:
      ends: the number of tapes whose lengths are noted after each example.
      level: the lowest bit of the level in a row number.
      constants: per type, (tape, end, below) of each tape of constants of examples;
        `below` is the bound of its ints, or `None`.
      makers: per type, (maker, 'constants', end, 0) or (maker, 'operation', operation,
        output) of each maker of its values.
      operations: per operation, the place of its rows; `None` if it is never applied.
      results: per result, the place of its rows; `None` if no row is ever recorded.
      labels: per result with labels, the tape of labels; -1 if none is ever recorded.
      shared: the indices of the program's constants, in the order in which the source
        names them.
    """

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
    """Return the graph recorded on `tapes`; the lengths `ends` separate its examples.

    Raises:
      BadItem: an object on a tape of constants does not fit its type or bound; the
        error has the number of its example.
    """
    return _reader(program, recording).graph(examples, ends, tapes)


@memoized
def _reader(program: Operations, recording: Recording) -> Reader:
    return Reader(program, recording)


class Reader:
    """A reader of tapes, with all that depends on the program alone computed once.

    Attributes:
      numbered: by tape of row numbers, the place of its rows and the entries per row.
      parts: by maker, (part, end): the index in `value_parts` of the values in its
        rows; and, if several tapes of constants have one type and so share a part, the
        end of the maker's tape, else `None`.
      levels: per operation, the inputs that its own recurrent component may make; a
        node is one level above the highest of these.
      masks: by (operation, input), if another recurrence may make the input too:
        [makers] bool, whether a maker is in the operation's own component.
      low: the bit mask that takes the maker out of `row_number >> ROW`.
    """

    def __init__(self, program: Operations, recording: Recording) -> None:
        self.program, self.recording = program, recording
        p, r = program, recording
        places = [x for x in (*r.operations, *r.results) if x is not None]
        columns = [(place, column) for place in places for column in place.columns]
        numbered = {x.tape: (place, x.width) for place, x in columns if x.tape >= 0}
        self.numbered = dict(sorted(numbered.items()))
        self.parts: dict[int, tuple[int, int | None]] = {}
        number = {x: n for n, x in enumerate(output_places(p), len(p.types))}
        for t, makers in enumerate(r.makers):
            shares = len(r.constants[t]) > 1
            for maker, origin, which, output in makers:
                if origin == 'operation':
                    self.parts[maker] = number[which, output], None
                else:
                    self.parts[maker] = t, which if shares else None
        self.levels: list[list[int]] = [[] for _ in p.operations]
        self.masks: dict[tuple[int, int], Array] = {}
        for o, is_recurrent in enumerate(are_recurrent(p)):
            if is_recurrent:
                self._find_levels(o, p.operations[o])
        self.low = (1 << (r.level - ROW)) - 1

    def _find_levels(self, o: int, operation: Operation) -> None:
        """Set `levels` and `masks` of the recurrent operation with index `o`."""
        p, part = self.program, component_of(self.program)
        places, recurrent = output_places(p), are_recurrent(p)
        for k, producers in enumerate(sources(p).inputs[o]):
            owners = {places[x][0] for x in results_in(producers)}
            if part[o] not in {part[x] for x in owners}:
                continue  # levels are counted within a component
            self.levels[o].append(k)
            # Row numbers from another recurrence have levels too: mask these.
            if any(recurrent[x] and part[x] != part[o] for x in owners):
                mask = self.masks[o, k] = np.zeros(1 + max(self.parts), bool)
                for number, origin, x, *_ in self.recording.makers[operation.inputs[k]]:
                    mask[number] = origin == 'operation' and part[x] == part[o]

    # ---- the graph

    def graph(
        self, examples: int, ends: list[tuple[int, ...]], tapes: Sequence[list[Any]]
    ) -> Graph:
        """Return the graph recorded on `tapes`; the arguments are as in `graph_of`."""
        p, r, e = self.program, self.recording, examples
        # Lengths of tapes before each example; a last row of zeros, for empty tables.
        firsts = np.zeros((r.ends + 1, e + 1), np.int64)
        if e:
            firsts[:-1, 1:] = np.array(ends, np.int64).reshape(e, r.ends).T
        constants, before = self._constants(tapes, firsts)
        begin = [_first(place, firsts) for place in r.operations]
        tables = [*constants, *(Table(first, ()) for first in begin)]
        begins, _ = number_values(p, e, tables)
        # Tapes count rows from the start of the batch, a graph from that of an example.
        shifts = self._shifts(tables, begins, before, firsts)
        entries = self._entries(tapes, firsts, shifts)
        operations = []
        for o, first in enumerate(begin):
            columns = self._node_columns(o, int(first[-1]), entries)
            operations.append(Table(first, columns))
        results = [self._result(n, x, entries, firsts) for n, x in enumerate(r.results)]
        labels = []
        for k, n in enumerate(p.labelled):
            values = np.empty(len(results[n]), object)
            if r.labels[k] >= 0:
                values[:] = tapes[r.labels[k]]
            labels.append(Table(results[n].first, (values,)))
        rows = tuple(constants), tuple(operations), tuple(results)
        return Graph(e, *rows, tuple(labels), fits=True)

    def _constants(
        self, tapes: Sequence[list[Any]], firsts: Array
    ) -> tuple[list[Table], dict[int, Array]]:
        """Return a table of constants per type, and offsets of tapes that share a type.

        Where several tapes hold constants of a type, an example's constants stand tape
        by tape in the table. The offsets are by the end of such a tape: [examples], how
        many constants the example has on the tapes before it.
        """
        result, before = list[Table](), dict[int, Array]()
        for type_, parts, values in zip(
            self.program.types,
            self.recording.constants,
            self._objects(tapes, firsts),
            strict=True,
        ):
            if not parts:
                empty = np.zeros((0, *type_.shape), type_.dtype)
                result.append(Table(firsts[-1], (empty,)))
            elif len(parts) == 1:
                result.append(Table(firsts[parts[0][1]], (values[0],)))
            else:
                counts = [np.diff(firsts[end]) for _, end, _ in parts]
                ahead = np.cumsum([np.zeros_like(counts[0]), *counts], 0)
                before |= {end: x for (_, end, _), x in zip(parts, ahead, strict=False)}
                # Reorder from tape by tape to example by example, within each by tape.
                joined = np.concatenate(values)
                if firsts.shape[1] > 2:
                    whose = [np.arange(len(x)).repeat(x) for x in counts]
                    joined = joined[np.concatenate(whose).argsort(kind='stable')]
                result.append(Table(first_of(ahead[-1]), (joined,)))
        return result, before

    def _objects(self, tapes: Sequence[list[Any]], firsts: Array) -> list[list[Array]]:
        """Return, per type, the objects on each of its tapes as an array.

        Of several tapes that do not fit, the error is about the first example.
        """
        result, errors = list[list[Array]](), list[BadItem]()
        for type_, parts in zip(
            self.program.types, self.recording.constants, strict=True
        ):
            result.append([])
            for tape, end, below in parts:
                try:
                    array = _converted(tapes[tape], type_, below, firsts[end])
                    result[-1].append(array)
                except BadItem as error:
                    errors.append(error)
        try:
            if errors:
                raise min(errors, key=lambda error: error.example or 0)
        finally:
            errors.clear()  # whose tracebacks hold this frame: a reference cycle
        return result

    def _shifts(
        self,
        tables: list[Table],
        begins: list[Array],
        before: dict[int, Array],
        firsts: Array,
    ) -> Array:
        """Return shifts [makers, examples] from row numbers' indices to value numbers.

        Args:
          begins: per part [examples], the number of its first value in each example.
          before: by end, the offsets that `_constants` returns.
        """
        makers, examples = 1 + max(self.parts, default=0), firsts.shape[1] - 1
        shifts = np.zeros((makers, examples), np.int64)
        shifts[0] = -1  # indices of constants of the program begin at 1
        owner = [x for _, x, _ in value_parts(self.program)]
        for maker, (part, end) in self.parts.items():
            first = tables[owner[part]].first if end is None else firsts[end]
            np.subtract(begins[part], first[:-1], out=shifts[maker])
            if end is not None:
                shifts[maker] += before[end]
        return shifts

    def _entries(
        self, tapes: Sequence[list[Any]], firsts: Array, shifts: Array
    ) -> _Entries:
        """Decode the row numbers on all tapes to value numbers, by adding `shifts`."""
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
        rows = raw.astype(np.int32)  # keeps the lowest 32 bits, so the index
        rows &= ENTRY
        rows += shifts.astype(np.int32).ravel()[which]
        starts = dict(
            zip(self.numbered, itertools.accumulate([0, *sizes]), strict=False)
        )
        return _Entries(raw, rows, starts, firsts, shifts)

    def makers_of(self, raw: Array) -> Array:
        """Return the producer's number [n] in each row number of `raw` [n] int64."""
        makers = raw >> ROW
        makers &= self.low
        return makers

    def _node_columns(self, o: int, rows: int, entries: _Entries) -> tuple[Array, ...]:
        """Return the columns [rows] of operation `o`: levels, then one per input."""
        place = self.recording.operations[o]
        if place is None or not rows:
            inputs = self.program.operations[o].inputs
            return (np.zeros(0, np.int32),) * (1 + len(inputs))
        values = entries.columns(place, rows)
        if not self.levels[o]:
            return np.ones(rows, np.int32), *values
        # A node is one level above the highest of its inputs from its own component.
        highest = np.zeros(rows, np.int64)
        for k in self.levels[o]:
            if place.columns[k].tape < 0:  # in step, so not of a recurrence
                continue
            raw = entries.raw[entries.on_tape(place.columns[k], rows)]
            level = raw >> self.recording.level
            if (o, k) in self.masks:
                level *= self.masks[o, k][self.makers_of(raw)]
            np.maximum(highest, level, out=highest)
        highest += 1
        return highest.astype(np.int32), *values

    def _result(
        self, n: int, place: Place | None, entries: _Entries, firsts: Array
    ) -> Table:
        """Return the table of result `n`, with value numbers [rows] per tensor."""
        tensors = self.program.results[n].tensors
        if n == self.program.value_results[0]:
            first = np.arange(firsts.shape[1])
        else:
            first = _first(place, firsts)
        if place is None:
            return Table(first, (np.zeros(0, np.int32),) * len(tensors))
        return Table(first, tuple(entries.columns(place, int(first[-1]))))


@dataclass(frozen=True, eq=False)
class _Entries:
    """The recorded row numbers of all tapes, one tape after another.

    Attributes:
      raw: [entries] int64, row numbers as they were recorded.
      numbers: [entries] int32, the value numbers in the example that they stand for.
      starts: by tape, the index of its first entry.
      firsts: [ends + 1, examples + 1], the lengths of tapes before each example.
      shifts: [makers, examples], what to add to an index to get a value number.
    """

    raw: Array
    numbers: Array
    starts: dict[int, int]
    firsts: Array
    shifts: Array

    def columns(self, place: Place, rows: int) -> list[Array]:
        """Return the value numbers [rows] of each operand."""
        return [
            self._in_step(column.maker, place, rows)
            if column.tape < 0
            else self.numbers[self.on_tape(column, rows)]
            for column in place.columns
        ]

    def on_tape(self, column: Column, rows: int) -> slice:
        """Return the slice of entries that belong to an operand recorded on a tape."""
        start = self.starts[column.tape]
        return slice(start + column.place, start + rows * column.width, column.width)

    def _in_step(self, maker: int, place: Place, rows: int) -> Array:
        """Return the value numbers [rows] of all rows of producer `maker`, in order."""
        shift = self.shifts[maker]
        if len(shift) == 1:
            return np.arange(shift[0], shift[0] + rows, dtype=np.int32)
        counts = np.diff(self.firsts[place.end]) // place.unit
        numbers: Array = np.arange(rows) + shift.repeat(counts)
        return numbers.astype(np.int32)


def _first(place: Place | None, firsts: Array) -> Array:
    """Return each example's first row [examples + 1]; zeros if `place` is `None`."""
    first: Array = firsts[-1 if place is None else place.end]
    if place is not None and place.unit > 1:
        first = first // place.unit
    return first


def _converted(
    items: list[Any], type_: TensorType, below: int | None, first: Array
) -> Array:
    """Return a tape's objects as an array [items, *shape]; an error names the example.

    Args:
      first: [examples + 1], the index of each example's first item.
    """
    if isinstance(type_, KeyType):  # random keys are computed later, from their numbers
        return np.zeros((len(items), *type_.shape), type_.dtype)
    try:
        return to_bounded(items, type_, below)
    except BadItem as error:
        error.example = int(np.searchsorted(first, error.index, side='right')) - 1
        raise
