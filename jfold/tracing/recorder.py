# SPDX-License-Identifier: Apache-2.0
"""The lists that a recording function has filled → a `Graph`.

It knows no blocks: any function of examples will do that puts rows on tapes and says,
per example, how long they are then.

    ends [examples] of [tapes]    lengths of all tapes behind each example
    tapes                         lists: of objects, for constants and labels; else of
                                  numbers of rows, so many a row

The number of a row is `level << LEVEL | maker << ROW | entries before it`; see
`jfold.language.lines`.
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
    """An input of an operation, or a tensor in rows of a result.

    Attributes:
      tape: where its entries are; -1 if it is made in step.
      place: in a row of the tape.
      width: how many entries a row of the tape has.
      maker: who makes it in step.
    """

    tape: int = -1
    place: int = 0
    width: int = 1
    maker: int = -1


@dataclass(frozen=True)
class Place:
    """Where rows are.

    Attributes:
      end: which of the ends counts them.
      unit: how many of these are a row.
      columns: where each input is.
    """

    end: int
    unit: int
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Recording:
    """Where what is recorded stands on tapes.

    Attributes:
      tapes: how many there are.
      ends: how many of them are counted behind each example.
      level: the bit at which levels begin.
      constants: per type, the tapes of those of examples, with their ends and bounds.
      makers: per type, the number of each among all, what it is of, 'constants' and an
        end, or 'operation', its number and the output.
      operations: where the rows of each are; `None` without any.
      results: the same.
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
    """The graph of what was recorded for a program.

    Raises:
      BadItem: an entry of a tape of constants is none of its type.
    """
    return _reader(program, recording).graph(examples, ends, tapes)


@memoized
def _reader(program: Operations, recording: Recording) -> Reader:
    return Reader(program, recording)


class Reader:
    """Reads tapes; what can be known before there are any is found once.

    Attributes:
      program: whose operations are applied.
      recording: where everything stands.
      numbered: the tapes of numbers of rows, with the rows and how many entries these
        have each.
      parts: per maker, which part of the values of an example its rows are, as of
        `value_parts`; of constants also the end, if others are before them there.
      levels: per operation, the inputs whose levels count.
      masks: of those that others of recurrent components may make too, the makers
        whose levels do count [makers].
    """

    def __init__(self, program: Operations, recording: Recording) -> None:
        self.program, self.recording = program, recording
        p, r = program, recording
        places = [x for x in (*r.operations, *r.results) if x is not None]
        columns = itertools.chain(*(x.columns for x in places))
        found = {x.tape: x.width for x in columns if x.tape >= 0}
        of_tapes = {x.tape: y for y in places for x in y.columns if x.tape >= 0}
        self.numbered = {tape: (of_tapes[tape], w) for tape, w in sorted(found.items())}
        self.parts = self._parts()
        self.recurrent = are_recurrent(p)
        self.levels: list[list[int]] = []
        self.masks: dict[tuple[int, int], Array] = {}
        for o, operation in enumerate(p.operations):
            self.levels.append([])
            if self.recurrent[o]:
                self._find_levels(o, operation)
        self.low = (1 << (r.level - ROW)) - 1

    def _parts(self) -> dict[int, tuple[int, int | None]]:
        """By maker its part, and its end if it shares the part with others."""
        p, r = self.program, self.recording
        outputs = itertools.count(len(p.types))
        number = {
            (o, k): next(outputs)
            for o, operation in enumerate(p.operations)
            for k, _ in enumerate(operation.outputs)
        }
        found: dict[int, tuple[int, int | None]] = {}
        for t, of in enumerate(r.makers):
            for maker, kind, which, output in of:
                if kind == 'operation':
                    found[maker] = number[which, output], None
                else:
                    shares = len(r.constants[t]) > 1
                    found[maker] = t, which if shares else None
        return found

    def _find_levels(self, o: int, operation: Operation) -> None:
        p, part = self.program, component_of(self.program)
        owner = [o for o, each in enumerate(p.operations) for _ in each.outputs]
        for k, may in enumerate(sources(p).inputs[o]):
            made = {owner[x] for x in results_in(may)}
            if part[o] not in {part[x] for x in made}:
                continue
            self.levels[o].append(k)
            if any(self.recurrent[x] and part[x] != part[o] for x in made):
                mask = self.masks[o, k] = np.zeros(1 + max(self.parts), bool)
                for number, kind, x, *_ in self.recording.makers[operation.inputs[k]]:
                    mask[number] = kind == 'operation' and part[x] == part[o]

    # ---- the graph

    def graph(
        self, examples: int, ends: list[tuple[int, ...]], tapes: Sequence[list[Any]]
    ) -> Graph:
        """See `graph_of`."""
        p, r, e = self.program, self.recording, examples
        firsts = np.zeros((r.ends, e + 1), np.int64)
        if e:
            firsts[:, 1:] = np.array(ends, np.int64).reshape(e, r.ends).T
        none = np.zeros(e + 1, np.int64)
        constants, before = self._constants(tapes, firsts, none)
        begin = [_first(each, firsts, none) for each in r.operations]
        tables = [*constants, *(Table(first, ()) for first in begin)]
        numbering, begins = number_values(p, e, tables)
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
        made = tuple(constants), tuple(operations), tuple(results)
        return Graph(e, *made, numbering, tuple(labels), fits=True)

    def _constants(
        self, tapes: Sequence[list[Any]], firsts: Array, none: Array
    ) -> tuple[list[Table], dict[int, Array]]:
        """Those of examples, by type; by end, how many of its type each example has
        before its own."""
        made, before = list[Table](), dict[int, Array]()
        for type_, of in zip(self.program.types, self.recording.constants, strict=True):
            values = [
                _converted(tapes[tape], type_, below, firsts[end])
                for tape, end, below in of
            ]
            if not of:
                empty = np.zeros((0, *type_.shape), type_.dtype)
                made.append(Table(none, (empty,)))
            elif len(of) == 1:
                made.append(Table(firsts[of[0][1]], (values[0],)))
            else:
                counts = [np.diff(firsts[end]) for _, end, _ in of]
                ahead = np.cumsum([np.zeros_like(counts[0]), *counts], 0)
                before |= {end: x for (_, end, _), x in zip(of, ahead, strict=False)}
                joined = np.concatenate(values)
                if len(none) > 2:
                    whose = [np.arange(len(x)).repeat(x) for x in counts]
                    joined = joined[np.concatenate(whose).argsort(kind='stable')]
                made.append(Table(first_of(ahead[-1]), (joined,)))
        return made, before

    def _shifts(
        self,
        tables: list[Table],
        begins: list[Array],
        before: dict[int, Array],
        firsts: Array,
    ) -> Array:
        """What makes rows of makers numbers of values [makers, examples]."""
        types = len(self.program.types)
        shifts = np.zeros(
            (1 + max(self.parts, default=0), firsts.shape[1] - 1), np.int64
        )
        shifts[0] = -1  # of the program's constants, which are told from 1
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
        """All numbers of rows, decoded at once."""
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
            # Makers times examples, flat: of two indices NumPy would make one too.
            which *= examples
            whose = np.tile(np.arange(examples), len(lists))
            which += whose.repeat(np.concatenate(counts))
        rows = raw.astype(np.int32)  # the lowest bits
        rows &= ENTRY
        rows += shifts.astype(np.int32).ravel()[which]
        starts = dict(
            zip(self.numbered, itertools.accumulate([0, *sizes]), strict=False)
        )
        return _Entries(raw, rows, starts, firsts, shifts)

    def makers_of(self, raw: Array) -> Array:
        """The numbers of the makers [n] of numbers of rows [n] int64."""
        makers = raw >> ROW
        makers &= self.low
        return makers

    def _node_columns(
        self, o: int, place: Place | None, entries: _Entries
    ) -> tuple[Array, ...]:
        """The levels of nodes [rows], and what they read [rows] each."""
        inputs = len(self.program.operations[o].inputs)
        rows = 0 if place is None else entries.rows(place)
        if place is None or not rows:
            return (np.zeros(0, np.int32),) * (1 + inputs)
        values = entries.columns(place, entries.numbers, rows)
        if not self.levels[o]:
            return np.ones(rows, np.int32), *values
        highest = np.zeros(rows, np.int64)
        raw = entries.columns(place, entries.raw, rows, steps=False)
        for k in self.levels[o]:
            if raw[k] is None:  # made in step, by what takes no turns
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
        tensors, first = self.program.results[n].tensors, entries.none
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
    """The entries of tapes of numbers, one tape behind another.

    Attributes:
      raw: as they were recorded [entries] int64.
      numbers: of values in their examples [entries] int32.
      starts: by tape, its first.
      firsts: [ends, examples + 1], where what is counted of each example begins.
      shifts: [makers, examples], between rows and numbers of values.
    """

    raw: Array
    numbers: Array
    starts: dict[int, int]
    firsts: Array
    shifts: Array

    @property
    def none(self) -> Array:
        """Where rows begin that there are none of [examples + 1]."""
        return np.zeros(self.firsts.shape[1], np.int64)

    def rows(self, place: Place) -> int:
        """How many rows there are."""
        return int(self.firsts[place.end, -1]) // place.unit

    def columns(
        self, place: Place, entries: Array, rows: int, steps: bool = True
    ) -> list[Any]:
        """Each column [rows]; `None` of those made in step, unless `steps`."""
        made: list[Any] = []
        for each in place.columns:
            if each.tape >= 0:
                start = self.starts[each.tape] + each.place
                end = self.starts[each.tape] + rows * each.width
                made.append(entries[start : end : each.width])
            else:
                made.append(self._in_step(each.maker, place, rows) if steps else None)
        return made

    def _in_step(self, maker: int, place: Place, rows: int) -> Array:
        """The numbers of values of a maker, one a row [rows]."""
        shift = self.shifts[maker]
        if len(shift) == 1:
            return np.arange(shift[0], shift[0] + rows, dtype=np.int32)
        counts = np.diff(self.firsts[place.end]) // place.unit
        numbers: Array = np.arange(rows) + shift.repeat(counts)
        return numbers.astype(np.int32)


def _first(place: Place | None, firsts: Array, none: Array) -> Array:
    """Where the rows of each example begin [examples + 1]."""
    if place is None:
        return none
    first = firsts[place.end]
    made: Array = first if place.unit == 1 else first // place.unit
    return made


def _converted(
    items: list[Any], type_: TensorType, below: int | None, first: Array
) -> Array:
    """Constants as an array [items, *shape]."""
    if isinstance(type_, KeyType):  # told by their numbers alone
        return np.zeros((len(items), *type_.shape), type_.dtype)
    try:
        values = to_array(items, type_)
        if below is not None:
            check_below(values, below)
    except BadItem as error:
        error.example = int(np.searchsorted(first, error.index, side='right')) - 1
        raise
    return values
