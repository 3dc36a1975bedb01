# SPDX-License-Identifier: Apache-2.0
"""`Selection`: examples chosen from a graph, and their values, merged.

A graph numbers the values of each example from 0 in each type. Merged, the values of a
selection are numbered through, so the place where those of a type and example begin is
added to their numbers:

    type             float32                              int32
    example          0             1                      0      1
    part             a a b c c c   a b b c                d d    d
    in the graph     0 1 2 3 4 5   0 1 2 3                0 1    0
    merged           0 1 2 3 4 5   6 7 8 9                10 11  12

All columns of all tables are renumbered at once, so that the time of a merge hardly
depends on the number of operations.
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
from jfold.program.operations import Operations
from jfold.scheduling.layout import active_types
from jfold.tracing.check_graph import checked

# ---- columns -------------------------------------------------------------------------


class Column(NamedTuple):
    """A column of numbers in a table.

    Attributes:
      space: what is numbered: values, by the number of their type; or rows of a table,
        by the number of the table, where that is above those of all types.
      table: the number of the table: constants per type, operations, results.
      number: of the column in the table.
    """

    space: int
    table: int
    number: int


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns that are merged at once, in the order of their spaces.

    Attributes:
      every: the columns.
      spaces, tables: [columns] of each.
      ends: [spaces + 1] where the columns of each space begin.
    """

    every: tuple[Column, ...]
    spaces: Array
    tables: Array
    ends: tuple[int, ...]


def make_columns(columns: Sequence[Column], count: int) -> Columns:
    """Return columns that are sorted by space, among `count` spaces."""
    spaces, tables, _ = np.array(columns, np.intp).reshape(-1, 3).T
    ends = np.searchsorted(spaces, np.arange(count + 1)).tolist()
    return Columns(tuple(columns), spaces, tables, tuple(ends))


@memoized
def value_columns(program: Operations) -> Columns:
    """Return all columns of values: inputs of operations and tensors of results."""
    types, columns = len(program.types), []
    for o, operation in enumerate(program.operations, types):
        # Column 0 of an operation has levels.
        columns += [Column(t, o, a) for a, t in enumerate(operation.inputs, 1)]
    for r, result in enumerate(program.results, types + len(program.operations)):
        columns += [Column(t, r, j) for j, t in enumerate(result.tensors)]
    return make_columns(sorted(columns, key=lambda column: column.space), types)


@dataclass(frozen=True, eq=False)
class Merged:
    """The merged numbers in columns.

    Attributes:
      columns: by space.
      numbers: [rows of all columns] int64, one column behind another.
      lengths: [columns] rows of each.
      ends: [columns + 1] where each column begins, and the last ends.
    """

    columns: Columns
    numbers: Array
    lengths: Array
    ends: list[int]

    @cached_property
    def places(self) -> dict[tuple[int, int], int]:
        """The place of each column, by its table and number."""
        return {x[1:]: c for c, x in enumerate(self.columns.every)}

    def column(self, table: int, number: int) -> Array:
        """Return the numbers in a column [rows]."""
        c = self.places[table, number]
        return self.numbers[self.ends[c] : self.ends[c + 1]]


# ---- numbers of values ---------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of the values of an example, type by type.

    Of each type: the program's constants if there are any, the example's own, and the
    outputs of each operation.

    Attributes:
      keys: of each part its table, and the number of the output.
      tables: [parts] of each; those of the program's constants are behind all others.
      ends: [types + 1] where the parts of each type begin.
      bounds: `ends` as an array.
      has_shared: whether the program has constants.
    """

    keys: tuple[tuple[int, int], ...]
    tables: Array
    ends: tuple[int, ...]
    bounds: Array
    has_shared: bool

    def by_example(self, numbers: Array) -> Array:
        """Return numbers [parts, examples] in the order of values [cells].

        That is type by type, and within a type example by example.
        """
        if numbers.shape[1] == 1 or not len(numbers):
            return numbers.ravel()
        bounds = itertools.pairwise(self.ends)
        return concatenate_arrays([numbers[a:b].T.ravel() for a, b in bounds])


@memoized
def parts_of(program: Operations) -> Parts:
    """Return the parts of the values of a program's examples."""
    types, shared = len(program.types), shared_counts(program)
    behind = types + len(program.operations) + len(program.results)
    keys, ends = [], [0]
    for t, count in enumerate(shared):
        keys += [(behind + t, 0)] if count else []
        keys += [x[1:] for x in value_parts(program) if x[0] == t]
        ends.append(len(keys))
    tables = np.array([table for table, _ in keys], np.intp)
    bounds = np.array(ends, np.intp)
    return Parts(tuple(keys), tables, tuple(ends), bounds, any(shared))


@dataclass(frozen=True, eq=False)
class Numbers:
    """The numbers of merged values.

    Attributes:
      parts: of the values.
      cells: [cells] values of each part of each example, as `Parts.by_example`.
      places: [cells + 1] the number of the first value of each.
      examples: the number of examples.
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
        first = np.empty((len(self.parts.ends) - 1, self.examples), np.intp)
        for row, (a, b) in zip(first, itertools.pairwise(self.parts.ends), strict=True):
            row[:] = self._of_cells(a, b)
        return first

    @cached_property
    def ends(self) -> list[int]:
        """The number of the first value of each type [types + 1]."""
        ends: list[int] = self.places[self.parts.bounds * self.examples].tolist()
        return ends

    def begin(self, table: int, output: int) -> Array:
        """Return the number of the first value of a part [examples]."""
        p = self.parts.keys.index((table, output))
        t = next(t for t, end in enumerate(self.parts.ends[1:]) if p < end)
        a, b = self.parts.ends[t : t + 2]
        return self._of_cells(a, b, p - a)

    def _of_cells(self, a: int, b: int, part: int = 0) -> Array:
        """Return the first numbers [examples] of a part of a type, of `a` to `b`."""
        return self.places[a * self.examples + part : b * self.examples : b - a]


@dataclass(frozen=True, eq=False)
class Demands:
    """The numbers of rows, levels and sums that each example needs.

    Attributes:
      added: [examples, numbers], of which a batch needs the sum: constants per type,
        nodes per operation, rows of sums per type, values per metric, summands per
        slot.
      highest: [examples, numbers], of which a batch needs the maximum: levels, fans per
        type, stages; for each slot whether it is indexed, and whether sums have rows.
    """

    added: Array
    highest: Array

    def pick(self, examples: Array) -> Demands:
        """Return the demands of some examples [n]."""
        return Demands(self.added[examples], self.highest[examples])


# ---- selections ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Selection(Memoized):
    """Examples of a graph, in some order; one may be there several times.

    Attributes:
      program: that they were recorded for.
      graph: that they are chosen from, known to fit the program.
      examples: [n] numbers in the graph; `None` for all of them in order.
      known: the demands of each, if they are known.
      origin: the selection of all examples, which memos are stored on.
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
        """Return some of them [n], in that order."""
        examples = which if self.examples is None else self.examples[which]
        known = None if self.known is None else self.known.pick(which)
        return Selection(self.program, self.graph, examples, known, self.every)

    @property
    def labels(self) -> tuple[Table, ...]:
        """The labels of rows of metrics, of these examples alone."""
        tables, examples = self.graph.labels, self.examples
        if examples is None:
            return tables
        return tuple(table.pick(examples) for table in tables)

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
        """The number of rows of all examples in each table [tables]."""
        return self.counts[:, 0] if len(self) == 1 else self.counts.sum(1)

    @cached_property
    def _rows(self) -> list[Array]:
        """The rows of the chosen examples in each table of the graph."""
        rows = ranges(self._begin.ravel(), self.counts.ravel())
        ends = first_of(self.totals).tolist()
        return [rows[a:b] for a, b in itertools.pairwise(ends)]

    def column(self, table: int, number: int) -> Array:
        """Return a column of a table [rows, ...], of these examples alone."""
        column = self.graph.tables[table].columns[number]
        return column if self.examples is None else column.take(self._rows[table], 0)

    def levels(self, o: int) -> Array:
        """Return the level of each node of an operation [nodes]."""
        return self.column(len(self.program.types) + o, 0)

    @memoized
    def owners(self, table: int) -> Array:
        """Return the example of each row of a table [rows]."""
        return np.arange(len(self)).repeat(self.counts[table])

    # ---- merged ----------------------------------------------------------------------

    @cached_property
    def numbers(self) -> Numbers:
        """The numbers of merged values."""
        parts, counts = parts_of(self.program), self.counts
        if parts.has_shared:
            shared = np.array(shared_counts(self.program))[:, None].repeat(len(self), 1)
            counts = np.concatenate([counts[: self.behind], shared])
        cells = parts.by_example(counts[parts.tables])
        return Numbers(parts, cells, first_of(cells), len(self))

    @property
    def behind(self) -> int:
        """The number of tables of a program's graph."""
        program = self.program
        return len(program.types) + len(program.operations) + len(program.results)

    @cached_property
    def before(self) -> Array:
        """The number of rows of the examples before each, per table [tables, n]."""
        result = np.zeros(self.counts.shape, np.intp)
        if len(self) > 1:
            np.cumsum(self.counts[:, :-1], axis=1, out=result[:, 1:])
        return result

    def merge(self, columns: Columns) -> Merged:
        """Return the merged numbers in columns."""
        counts, begin = self.counts[columns.tables], self.numbers.first
        if len(columns.spaces) and columns.spaces[-1] >= len(begin):
            begin = np.concatenate([begin, self.before[len(begin) :]])
        # The number where its space and example begin, for each row of each column.
        numbers = begin[columns.spaces].ravel().repeat(counts.ravel())
        in_graph = [self.column(table, number) for _, table, number in columns.every]
        if in_graph:
            numbers += concatenate_arrays(in_graph)
        lengths = self.totals[columns.tables]
        return Merged(columns, numbers, lengths, [0, *lengths.cumsum().tolist()])

    @cached_property
    def values(self) -> Merged:
        """The merged numbers of all values that are read."""
        return self.merge(value_columns(self.program))

    def made(self, o: int) -> Array:
        """Return the numbers of the results of an operation of one output [nodes]."""
        table = len(self.program.types) + o
        return ranges(self.numbers.begin(table, 0), self.counts[table])


def select(program: Operations, graph: Graph) -> Selection:
    """Return all examples of a graph, which is checked unless it is known to fit.

    The check takes about 0.1 us a node.

    Raises:
      ValueError: it does not fit the program.
    """
    return Selection(program, checked(program, graph))


# ---- uses ----------------------------------------------------------------------------


@memoized
def use_counts(selection: Selection) -> Array:
    """Return how often each value is read [values]; 0 for constants of active types."""
    numbers, shared = selection.numbers, shared_counts(selection.program)
    counts = np.bincount(selection.values.numbers, minlength=numbers.ends[-1])
    for t in active_types(selection.program):
        # Constants have no cotangents, so their uses need no edges. They are the first
        # values of each example.
        if shared[t] or selection.totals[t]:
            constants = selection.counts[t] + shared[t]
            counts[ranges(numbers.first[t], constants)] = 0
    return counts
