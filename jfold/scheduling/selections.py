# SPDX-License-Identifier: Apache-2.0
"""`Selection`: examples chosen from a graph, and their values, merged.

A graph numbers the values of each example from 0 in each tensor type. A merge numbers
all values of a selection in one sequence: the numbers of an example and type are offset
by the number of their first value. A *part* is the values of one producer, which are
constants of the type or an output of an operation. A *cell* is a part in one example:

    type             float32                              int32
    example          0             1                      0      1
    part             a a b c c c   a b b c                d d    d
    in the graph     0 1 2 3 4 5   0 1 2 3                0 1    0
    merged           0 1 2 3 4 5   6 7 8 9                10 11  12

All columns of all tables are renumbered at once, so that the time of a merge hardly
depends on the number of operations. Tables are those of the graph: constants per type,
nodes (applied operations) per operation, rows per result, and tables of summands.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jfold.base.memo import Memoized, cached_property, memoized
from jfold.graph import (
    Array,
    Graph,
    Table,
    concatenate_arrays,
    first_of,
    ranges,
    shared_counts,
    value_parts,
)
from jfold.program.components import (
    Place,
    operand_types,
    output_places,
    phases,
    results_in,
)
from jfold.program.operations import Operations
from jfold.scheduling.layout import active_types
from jfold.tracing.check_graph import checked

# ---- columns -------------------------------------------------------------------------


class Column(NamedTuple):
    """A reference to a column of a graph's table.

    Attributes:
      space: what the entries number: values of the type `space` or, above the number of
        types, rows of the table `space`.
    """

    space: int
    table: int
    number: int


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns of value or row numbers, sorted by `space`.

    Attributes:
      spaces, tables: [columns] the `space` and the `table` of each.
      ends: [spaces + 1] the index in `every` where the columns of each space begin.
    """

    every: tuple[Column, ...]
    spaces: Array
    tables: Array
    ends: tuple[int, ...]

    @cached_property
    def places(self) -> dict[Column, int]:
        """The index of each column in `every`."""
        return {column: c for c, column in enumerate(self.every)}


def make_columns(columns: Sequence[Column], count: int) -> Columns:
    """Make `Columns` from columns sorted by `space`, for `count` spaces."""
    spaces, tables, _ = np.array(columns, np.intp).reshape(-1, 3).T
    ends = spaces.searchsorted(np.arange(count + 1)).tolist()
    return Columns(tuple(columns), spaces, tables, tuple(ends))


@memoized
def columns_at(program: Operations) -> dict[Place, Column]:
    """Return, by place, the column of the numbers of the values that are read there."""
    types, operations = len(program.types), len(program.operations)
    # Column 0 of an operation has levels.
    return {
        (table, a): Column(t, types + table, a + (table < operations))
        for table, operands in enumerate(operand_types(program))
        for a, t in enumerate(operands)
    }


@memoized
def value_columns(program: Operations) -> Columns:
    """Return the columns of the numbers of values that operations and results read."""
    columns = sorted(columns_at(program).values(), key=lambda column: column.space)
    return make_columns(columns, len(program.types))


@memoized
def loop_columns(program: Operations) -> tuple[Columns, Columns]:
    """Return the value columns of operations in loops, and of all other readers."""
    types, operations = len(program.types), range(len(program.operations))
    tables = {types + o for o in operations if o not in program.applied}
    every = value_columns(program).every
    looped = [x for x in every if x.table in tables]
    others = [x for x in every if x.table not in tables]
    return make_columns(looped, types), make_columns(others, types)


@dataclass(frozen=True, eq=False)
class Merged:
    """The entries of columns, with values numbered through a selection's examples.

    Attributes:
      numbers: [rows of all columns] int64, one column behind another.
      lengths: [columns] the number of rows of each column.
      ends: [columns + 1] where in `numbers` each column begins, and the last ends.
    """

    columns: Columns
    numbers: Array
    lengths: Array
    ends: list[int]


# ---- numbers of values ---------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts (producers of values) that `value_parts` lists, sorted by type.

    Attributes:
      places: by (table, output) of each part, its number and the number of its type.
      tables: [parts] the number of each part's table.
      bounds: [types + 1] where the parts of each type begin.
      shared: [parts, 1] how many of the program's constants precede the part's values.
    """

    places: dict[tuple[int, int], tuple[int, int]]
    tables: Array
    bounds: Array
    shared: Array

    def by_example(self, numbers: Array) -> Array:
        """Flatten numbers [parts, examples]: by type, then example, then part [cells].

        This is the order of merged values.
        """
        if numbers.shape[1] == 1 or not len(numbers):
            return numbers.ravel()
        bounds = itertools.pairwise(self.bounds.tolist())
        return concatenate_arrays([numbers[a:b].T.ravel() for a, b in bounds])


@memoized
def parts_of(program: Operations) -> Parts:
    """Return the producers of the values of a program's examples."""
    parts = sorted(value_parts(program))  # constants of a type come before its outputs
    places = {(table, k): (p, t) for p, (t, table, k) in enumerate(parts)}
    types, tables, _ = np.array(parts, np.intp).reshape(-1, 3).T
    bounds = np.searchsorted(types, np.arange(len(program.types) + 1))
    constants = [*shared_counts(program), *(0 for _ in program.operations)]
    shared = np.array(constants, np.intp)[tables, None]
    return Parts(places, tables, bounds, shared)


@dataclass(frozen=True, eq=False)
class Numbers:
    """The value numbers of a selection: one range, a cell, per producer and example.

    The program's constants are the first values of the cell of an example's constants.

    Attributes:
      cells: [cells] how many values each cell has, in the order of `Parts.by_example`.
      places: [cells + 1] the number of the first value of each cell.
    """

    parts: Parts
    cells: Array
    places: Array
    examples: int

    @cached_property
    def first(self) -> Array:
        """The number of the first value of each type and example [types, examples]."""
        if self.examples == 1:
            return self.places[self.parts.bounds[:-1]][:, None]
        first = np.empty((len(self.parts.bounds) - 1, self.examples), np.intp)
        bounds = itertools.pairwise(self.parts.bounds.tolist())
        for row, (a, b) in zip(first, bounds, strict=True):
            row[:] = self._of_cells(a, a, b)
        return first

    @cached_property
    def ends(self) -> list[int]:
        """The number of each type's first value; last, the total count [types + 1]."""
        ends: list[int] = self.places[self.parts.bounds * self.examples].tolist()
        return ends

    def begin(self, table: int, output: int) -> Array:
        """Return, per example, the merged index of a producer's first value [examples].

        The producer is output `output` of the operation with table `table`; or, with
        `output` 0, an example's own constants.
        """
        p, t = self.parts.places[table, output]
        a, b = self.parts.bounds[t : t + 2]
        begin: Array = self._of_cells(p, a, b) + self.parts.shared[p]
        return begin

    def _of_cells(self, p: int, a: int, b: int) -> Array:
        """Return part `p`'s first numbers [examples]; its type has parts `a` to `b`."""
        return self.places[a * self.examples + p - a : b * self.examples : b - a]


@dataclass(frozen=True, eq=False)
class Demands:
    """The numbers of rows, levels and sums that each example needs.

    The fields of `Capacity` explain the numbers.

    Attributes:
      added: [examples, numbers] int32, of which a batch needs the sum: constants per
        type, nodes per operation, rows of sums per type, rows per result with any
        number of rows, summands per slot.
      highest: [examples, numbers] int32, of which a batch needs the maximum: levels,
        fans per type, stages; per slot whether it is indexed, then whether the sums
        that it reads have rows; whether pairs of `twins` differ.
    """

    added: Array
    highest: Array

    def pick(self, examples: Array) -> Demands:
        """Return the demands of the examples at indices `examples` [n]."""
        return Demands(self.added[examples], self.highest[examples])


# ---- selections ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Selection(Memoized):
    """Examples of a graph, in some order; an example may occur several times.

    Attributes:
      graph: the graph that examples are chosen from, known to fit the program.
      examples: [n] indices of examples in the graph; `None` for all in order.
      known: the demands of each chosen example; `None` if not yet computed.
      origin: the selection of all examples, on which memos are stored; `None` if this
        is that selection.
    """

    program: Operations
    graph: Graph
    examples: Array | None = None
    known: Demands | None = None
    origin: Selection | None = None

    def __len__(self) -> int:
        return self.graph.examples if self.examples is None else len(self.examples)

    @property
    def every(self) -> Selection:
        """The selection of all examples of the graph."""
        return self.origin or self

    def pick(self, which: Array) -> Selection:
        """Return a selection of the examples at indices `which` [n] in this one."""
        examples = which if self.examples is None else self.examples[which]
        known = None if self.known is None else self.known.pick(which)
        return Selection(self.program, self.graph, examples, known, self.every)

    @property
    def labels(self) -> tuple[Table, ...]:
        """The tables of metrics' labels, with the rows of the chosen examples alone."""
        if self.examples is None:
            return self.graph.labels
        return tuple(table.pick(self.examples) for table in self.graph.labels)

    @cached_property
    def _begin(self) -> Array:
        """The first row of each example in each table of the graph [tables, n]."""
        first, examples = self.graph.first, self.examples
        return first[:, :-1] if examples is None else first.take(examples, 1)

    @cached_property
    def counts(self) -> Array:
        """The number of rows of each example in each table [tables, n]."""
        first, examples = self.graph.first, self.examples
        end = first[:, 1:] if examples is None else first.take(examples + 1, 1)
        counts: Array = end - self._begin
        return counts

    @cached_property
    def totals(self) -> Array:
        """The number of rows of all chosen examples, in each table [tables]."""
        return self.counts[:, 0] if len(self) == 1 else self.counts.sum(1)

    @cached_property
    def _rows(self) -> list[Array]:
        """The indices of the chosen examples' rows in the graph, per table [rows]."""
        rows = ranges(self._begin.ravel(), self.counts.ravel())
        ends = first_of(self.totals).tolist()
        return [rows[a:b] for a, b in itertools.pairwise(ends)]

    def column(self, table: int, number: int) -> Array:
        """Return column `number` of a table [rows, ...], of chosen examples alone."""
        column = self.graph.tables[table].columns[number]
        return column if self.examples is None else column.take(self._rows[table], 0)

    def levels(self, o: int) -> Array:
        """Return the level of each node of operation `o` [nodes]."""
        return self.column(len(self.program.types) + o, 0)

    @memoized
    def owners(self, table: int) -> Array:
        """Return, per row of a table, its example's index in the selection [rows]."""
        return np.arange(len(self)).repeat(self.counts[table])

    # ---- merged ----------------------------------------------------------------------

    @cached_property
    def numbers(self) -> Numbers:
        """The numbering of values through all chosen examples."""
        parts = parts_of(self.program)
        cells = parts.by_example(self.counts[parts.tables] + parts.shared)
        return Numbers(parts, cells, first_of(cells), len(self))

    @property
    def behind(self) -> int:
        """The number of tables for types, operations and results; others follow."""
        program = self.program
        return len(program.types) + len(program.operations) + len(program.results)

    @cached_property
    def before(self) -> Array:
        """The number of rows of all examples before each one, per table [tables, n]."""
        result = np.zeros(self.counts.shape, np.intp)
        if len(self) > 1:
            np.cumsum(self.counts[:, :-1], axis=1, out=result[:, 1:])
        return result

    def merge(self, columns: Columns) -> Merged:
        """Return the entries of columns, with values numbered through all examples."""
        counts, begin = self.counts[columns.tables], self.numbers.first
        if len(columns.spaces) and columns.spaces[-1] >= len(begin):
            begin = np.concatenate([begin, self.before[len(begin) :]])
        # For each row of each column, the number at which its space and example begin.
        numbers = begin[columns.spaces].ravel().repeat(counts.ravel())
        in_graph = [self.column(table, number) for _, table, number in columns.every]
        if in_graph:
            numbers += concatenate_arrays(in_graph)
        lengths = self.totals[columns.tables]
        return Merged(columns, numbers, lengths, [0, *lengths.cumsum().tolist()])

    @cached_property
    def values(self) -> Merged:
        """The numbers of the values that operations and results read."""
        return self.merge(value_columns(self.program))

    def read_at(self, place: Place) -> Array:
        """Return the numbers of the values that are read at a place [rows]."""
        merged, column = self.values, columns_at(self.program)[place]
        c = merged.columns.places[column]
        return merged.numbers[merged.ends[c] : merged.ends[c + 1]]

    def outputs_of(self, o: int, k: int = 0) -> Array:
        """Return the number of output `k` of each node of operation `o` [nodes]."""
        table = len(self.program.types) + o
        return ranges(self.numbers.begin(table, k), self.counts[table])


def select(program: Operations, graph: Graph) -> Selection:
    """Select all examples of a graph, after a check that it fits the program.

    The check takes about 0.1 us a node; a graph that is known to fit is not checked.

    Raises:
      ValueError: the graph does not fit the program.
    """
    return Selection(program, checked(program, graph))


# ---- uses ----------------------------------------------------------------------------


@memoized
def use_counts(selection: Selection, in_loops: bool) -> Array:
    """Return the reads per value [values]; 0 for constants of types with gradients.

    With `in_loops` all reads of a loop's output from outside count as one, since they
    leave one cotangent; reads of other values from outside do not count.
    """
    program = selection.program
    numbers, shared = selection.numbers, shared_counts(program)
    if not in_loops:
        counts = np.bincount(selection.values.numbers, minlength=numbers.ends[-1])
    else:
        looped, others = map(selection.merge, loop_columns(program))
        counts = np.bincount(looped.numbers, minlength=numbers.ends[-1])
        is_read = np.zeros(len(counts), bool)
        is_read[others.numbers] = True
        for number in results_in(phases(program).leaving):
            values = selection.outputs_of(*output_places(program)[number])
            counts[values] += is_read[values]
    for t in active_types(program):
        # Constants have no cotangents, so their uses need no edges. They are the first
        # values of each example.
        if shared[t] or selection.totals[t]:
            constants = selection.counts[t] + shared[t]
            counts[ranges(numbers.first[t], constants)] = 0
    return counts
