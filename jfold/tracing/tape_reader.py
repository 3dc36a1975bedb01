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

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
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
from jfold.program.operations import Operations
from jfold.tracing.convert import to_bounded
from jfold.types import KeyType

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
      constants: per type, (tape, end, below, maker) of each tape of constants of
        examples; `below` is the bound of its ints, or `None`.
      makers: (maker, operation, output) of each output of operations.
      operations: per operation, the place of its rows; `None` if it is never applied.
      results: per result, the place of its rows; `None` if no row is ever recorded.
      labels: per result with labels, the tape of labels; -1 if none is ever recorded.
      shared: the indices of the program's constants, in the order in which the source
        names them.
      prunes: whether rows that nothing reads are removed from graphs.
    """

    ends: int
    level: int
    constants: tuple[tuple[tuple[int, int, int | None, int], ...], ...]
    makers: tuple[tuple[int, int, int], ...]
    operations: tuple[Place | None, ...]
    results: tuple[Place | None, ...]
    labels: tuple[int, ...]
    shared: tuple[int, ...] = ()
    prunes: bool = False


class _Layout:
    """The facts for reading tapes that depend on the program, not on the batch.

    Attributes:
      numbered: by tape of row numbers, (place, width): the `Place` of the rows that it
        records, and its number of entries per row.
      parts: by maker, (part, end): the index in `value_parts` of the values that it
        makes, and for a tape of constants its end, else `None`.
      levels: per operation, (input, mask) of each input that its own recurrent
        component may make; a node is one level above the highest of these. If another
        recurrence may make it too, the mask [makers] bool tells which makers are in
        the operation's own component; else it is `None`.
      tables: by maker, the index of the table of its rows among those of constants and
        operations, or `None` and the end of its tape of constants.
      in_step: (maker, place) of each operand that is in step.
      prunable: the makers of each table whose rows are removed if nothing reads them.
    """

    def __init__(self, program: Operations, recording: Recording) -> None:
        p, r = program, recording
        places = [x for x in (*r.operations, *r.results) if x is not None]
        columns = [(place, column) for place in places for column in place.columns]
        numbered = {x.tape: (place, x.width) for place, x in columns if x.tape >= 0}
        self.numbered = dict(sorted(numbered.items()))
        self.parts: dict[int, tuple[int, int | None]] = {}
        for t, tapes in enumerate(r.constants):
            self.parts |= {maker: (t, end) for _, end, _, maker in tapes}
        number = {x: n for n, x in enumerate(output_places(p), len(p.types))}
        self.parts |= {maker: (number[o, k], None) for maker, o, k in r.makers}
        self.levels = [list(self._levels(p, r, o)) for o in range(len(p.operations))]
        owner = [x for _, x, _ in value_parts(p)]
        self.tables = [
            (owner[part], end) for _, (part, end) in sorted(self.parts.items())
        ]
        self.in_step = [(x.maker, place) for place, x in columns if x.tape < 0]
        makers = defaultdict[int, list[int]](list)
        for maker, o, _ in r.makers:
            makers[o].append(maker)
        self.prunable = [*makers.values()]
        for type_, tapes in zip(p.types, r.constants, strict=True):
            if not isinstance(type_, KeyType):  # by whose numbers keys are derived
                self.prunable += [[maker] for *_, maker in tapes]

    def _levels(
        self, p: Operations, r: Recording, o: int
    ) -> Iterator[tuple[int, Array | None]]:
        """Yield (input, mask) for each input that decides the level of operation `o`.

        These are the inputs that its own recurrent component may make. The mask
        [makers] bool, or `None`, is as in the attribute `levels`.
        """
        part, places, recurrent = component_of(p), output_places(p), are_recurrent(p)
        place = r.operations[o]
        if place is None or not recurrent[o]:
            return
        for k, producers in enumerate(sources(p).inputs[o]):
            owners = {places[x][0] for x in results_in(producers)}
            # Levels are counted within a component; what is in step is outside of it.
            if part[o] not in {part[x] for x in owners} or place.columns[k].tape < 0:
                continue
            mask = None
            # Row numbers from another recurrence have levels too: mask these.
            if any(recurrent[x] and part[x] != part[o] for x in owners):
                mask = np.zeros(1 + max(self.parts), bool)
                for number, x, _ in r.makers:
                    mask[number] = part[x] == part[o]
            yield k, mask


_layout = memoized(_Layout)


class TapeReader:
    """A reader of the tapes of a batch; the lengths `ends` separate its examples.

    Raises:
      BadItem: an object on a tape of constants does not fit its type or bound; the
        error has the number of its example.

    Attributes:
      firsts: [ends + 1, examples + 1], the lengths of tapes before each example; a last
        row of zeros, for empty tables.
      tables: those of constants, then those of operations, still without columns.
      before: by end, if several tapes hold constants of a type: [examples], how many
        constants the example has on the tapes before it.
      shifts: [makers, examples], what to add to an index to get a value number. Tapes
        count rows from the start of the batch, a graph from that of an example.
      raw: [entries] int64, the row numbers on all tapes, one tape after another.
      numbers: [entries] int32, the value number, in its example, of each row in `raw`.
      starts: by tape, the index of its first entry.
    """

    def __init__(
        self,
        program: Operations,
        recording: Recording,
        examples: int,
        ends: list[tuple[int, ...]],
        tapes: Sequence[list[Any]],
    ) -> None:
        self.program, self.recording, self.tapes = program, recording, tapes
        self.layout = _layout(program, recording)
        self.examples = examples
        self.firsts = np.zeros((recording.ends + 1, examples + 1), np.int64)
        if examples:
            lengths = np.array(ends, np.int64).reshape(examples, recording.ends)
            self.firsts[:-1, 1:] = lengths.T
        self.before: dict[int, Array] = {}
        self.tables = self._constants()
        self.tables += [Table(self._first(x), ()) for x in recording.operations]
        self.shifts = self._shifts()
        self._decode()

    def graph(self) -> Graph:
        """Return the graph recorded on the tapes."""
        p, r, types = self.program, self.recording, len(self.program.types)
        results = tuple(self._result(n, x) for n, x in enumerate(r.results))
        labels = []
        for tape, n in zip(r.labels, p.labelled, strict=True):
            values = np.empty(len(results[n]), object)
            if tape >= 0:
                values[:] = self.tapes[tape]
            labels.append(Table(results[n].first, (values,)))
        operations = tuple(
            Table(table.first, self._node_columns(o, len(table)))
            for o, table in enumerate(self.tables[types:])
        )
        constants = tuple(self.tables[:types])
        rows = constants, operations, results
        return Graph(self.examples, *rows, tuple(labels), fits=True)

    def reads_all(self) -> bool:
        """Return whether no row can be removed: each that could be is read."""
        sizes = [1 + len(self.recording.shared)]
        for table, end in self.layout.tables:
            first = self.tables[table].first if end is None else self.firsts[end]
            sizes.append(int(first[-1]))
        first = list(itertools.accumulate(sizes, initial=0))
        is_read = np.zeros(first[-1], bool)
        is_read[np.array(first)[self._makers_of(self.raw)] + (self.raw & ENTRY)] = True
        for maker, place in self.layout.in_step:
            rows = int(self._first(place)[-1])
            is_read[first[maker] : first[maker] + rows] = True
        for makers in self.layout.prunable:
            outputs = [is_read[first[x] : first[x + 1]] for x in makers]
            if not functools.reduce(np.logical_or, outputs).all():
                return False
        return True

    def _first(self, place: Place | None) -> Array:
        """Return `Table.first` [examples + 1] for `place`; zeros if it is `None`."""
        first: Array = self.firsts[-1 if place is None else place.end]
        return first if place is None or place.unit == 1 else first // place.unit

    def _constants(self) -> list[Table]:
        """Return a table of constants per type; set `before`.

        Where several tapes hold constants of a type, an example's constants stand tape
        by tape in the table.
        """
        result = list[Table]()
        of_types = zip(self.program.types, self.recording.constants, strict=True)
        for (type_, parts), values in zip(of_types, self._objects(), strict=True):
            if not parts:
                empty = np.zeros((0, *type_.shape), type_.dtype)
                result.append(Table(self.firsts[-1], (empty,)))
            elif len(parts) == 1:
                result.append(Table(self.firsts[parts[0][1]], (values[0],)))
            else:
                firsts = np.array([self.firsts[end] for _, end, *_ in parts])
                counts = firsts[:, 1:] - firsts[:, :-1]
                ahead = np.zeros((len(parts) + 1, self.examples), np.int64)
                counts.cumsum(0, out=ahead[1:])
                for (_, end, *_), offsets in zip(parts, ahead, strict=False):
                    self.before[end] = offsets
                joined = np.concatenate(values)
                if self.examples > 1:  # from tape by tape to example by example
                    whose = [np.arange(self.examples).repeat(x) for x in counts]
                    joined = joined[np.concatenate(whose).argsort(kind='stable')]
                result.append(Table(first_of(ahead[-1]), (joined,)))
        return result

    def _objects(self) -> list[list[Array]]:
        """Return, per type, the objects on each of its tapes as an array [n, *shape].

        Raise BadItem for the first example that has an object that does not fit.
        """
        result, errors = list[list[Array]](), list[BadItem]()
        types = self.program.types
        for type_, parts in zip(types, self.recording.constants, strict=True):
            result.append([])
            for tape, end, below, _ in parts:
                items = self.tapes[tape]
                if isinstance(type_, KeyType):  # computed later, from their numbers
                    array = np.zeros((len(items), *type_.shape), type_.dtype)
                    result[-1].append(array)
                    continue
                try:
                    result[-1].append(to_bounded(items, type_, below))
                except BadItem as error:
                    place = self.firsts[end].searchsorted(error.index, side='right')
                    error.example = int(place) - 1
                    errors.append(error)
        try:
            if errors:
                raise min(errors, key=lambda error: error.example or 0)
        finally:
            errors.clear()  # whose tracebacks hold this frame: a reference cycle
        return result

    def _shifts(self) -> Array:
        parts = self.layout.parts
        shifts = np.zeros((1 + max(parts, default=0), self.examples), np.int64)
        shifts[0] = -1  # indices of constants of the program begin at 1
        begins, _ = number_values(self.program, self.examples, self.tables)
        owner = [x for _, x, _ in value_parts(self.program)]
        for maker, (part, end) in parts.items():
            first = self.tables[owner[part]].first if end is None else self.firsts[end]
            np.subtract(begins[part], first[:-1], out=shifts[maker])
            if end in self.before:
                shifts[maker] += self.before[end]
        return shifts

    def _decode(self) -> None:
        """Set `raw`, `numbers` and `starts`: value numbers are row numbers, shifted."""
        numbered, examples = self.layout.numbered, self.examples
        lists = [self.tapes[tape] for tape in numbered]
        sizes = list(map(len, lists))
        self.raw = np.fromiter(itertools.chain(*lists), np.int64, sum(sizes))
        which = self._makers_of(self.raw)
        if examples > 1 and lists:
            counts = [
                np.diff(self.firsts[place.end]) // place.unit * width
                for place, width in numbered.values()
            ]
            # One flat index of (maker, example): faster than indexing with two arrays.
            which *= examples
            whose = np.tile(np.arange(examples), len(lists))
            which += whose.repeat(np.concatenate(counts))
        self.numbers = self.raw.astype(np.int32)  # the lowest 32 bits, so the index
        self.numbers &= ENTRY
        self.numbers += self.shifts.astype(np.int32).ravel()[which]
        starts = itertools.accumulate([0, *sizes])
        self.starts = dict(zip(numbered, starts, strict=False))

    def _makers_of(self, raw: Array) -> Array:
        """Return the producer's number [n] in each row number of `raw` [n] int64."""
        makers = raw >> ROW
        makers &= (1 << (self.recording.level - ROW)) - 1
        return makers

    def _node_columns(self, o: int, rows: int) -> tuple[Array, ...]:
        """Return the columns [rows] of operation `o`: levels, then one per input."""
        place = self.recording.operations[o]
        if place is None or not rows:
            inputs = self.program.operations[o].inputs
            return (np.zeros(0, np.int32),) * (1 + len(inputs))
        values = self._columns(place, rows)
        if not self.layout.levels[o]:
            return np.ones(rows, np.int32), *values
        # A node is one level above the highest of its inputs from its own component.
        highest = np.zeros(rows, np.int64)
        for k, mask in self.layout.levels[o]:
            raw = self.raw[self._on_tape(place.columns[k], rows)]
            level = raw >> self.recording.level
            if mask is not None:
                level *= mask[self._makers_of(raw)]
            np.maximum(highest, level, out=highest)
        highest += 1
        return highest.astype(np.int32), *values

    def _result(self, n: int, place: Place | None) -> Table:
        """Return table `n` of results, at `place`: value numbers [rows] per tensor."""
        is_value = n == self.program.value_results[0]
        first = np.arange(self.examples + 1) if is_value else self._first(place)
        if place is None:
            tensors = self.program.results[n].tensors
            return Table(first, (np.zeros(0, np.int32),) * len(tensors))
        return Table(first, tuple(self._columns(place, int(first[-1]))))

    def _columns(self, place: Place, rows: int) -> list[Array]:
        """Return the value numbers [rows] of each operand in `place.columns`."""
        return [
            self._in_step(column.maker, place, rows)
            if column.tape < 0
            else self.numbers[self._on_tape(column, rows)]
            for column in place.columns
        ]

    def _on_tape(self, column: Column, rows: int) -> slice:
        """Return the slice of `numbers` for `rows` rows of `column`, on a tape."""
        start = self.starts[column.tape]
        return slice(start + column.place, start + rows * column.width, column.width)

    def _in_step(self, maker: int, place: Place, rows: int) -> Array:
        """Return value numbers [rows] of `maker` that rows of `place` read in step."""
        shift = self.shifts[maker]
        if len(shift) == 1:
            return np.arange(shift[0], shift[0] + rows, dtype=np.int32)
        counts = np.diff(self.firsts[place.end]) // place.unit
        numbers: Array = np.arange(rows) + shift.repeat(counts)
        return numbers.astype(np.int32)
