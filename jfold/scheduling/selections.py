# SPDX-License-Identifier: Apache-2.0
"""A `Selection`: examples chosen of a graph, and their values, merged.

A graph numbers the values of each example from 0 in each type. Merged, all values of a
selection stand in one row, and a number is moved by where those of its type and example
begin:

    type             float32                              int32
    example          0             1                      0      1
    part             a a b c c c   a b b c                d d    d
    in the graph     0 1 2 3 4 5   0 1 2 3                0 1    0
    merged           0 1 2 3 4 5   6 7 8 9                10 11  12

All columns of all tables are moved at once, so that the time of a merge hardly depends
on the number of operations.
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
    concatenated,
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
    """Numbers in a table.

    Attributes:
      space: what is numbered: values of a type; or the rows of a table, whose number is
        above those of all types.
      table: the number of the table: constants per type, operations, results.
      number: which of its columns.
    """

    space: int
    table: int
    number: int


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns that are merged at once, by space.

    Attributes:
      every: the columns.
      spaces, tables: [columns] of each.
      ends: [spaces + 1] where the columns of each space begin.
    """

    every: tuple[Column, ...]
    spaces: Array
    tables: Array
    ends: tuple[int, ...]


def make_columns(every: Sequence[Column], count: int) -> Columns:
    """Return columns, given them by space, of which there are so many."""
    spaces, tables, _ = np.array(every, np.intp).reshape(-1, 3).T
    ends = np.searchsorted(spaces, np.arange(count + 1)).tolist()
    return Columns(tuple(every), spaces, tables, tuple(ends))


@memoized
def value_columns(program: Operations) -> Columns:
    """Return all columns of values: what operations read and results consist of."""
    types, found = len(program.types), []
    for o, operation in enumerate(program.operations, types):
        # In front of its inputs an operation's table has levels.
        found += [Column(t, o, a) for a, t in enumerate(operation.inputs, 1)]
    for r, result in enumerate(program.results, types + len(program.operations)):
        found += [Column(t, r, j) for j, t in enumerate(result.tensors)]
    return make_columns(sorted(found, key=lambda column: column.space), types)


@dataclass(frozen=True, eq=False)
class Merged:
    """The numbers in columns, merged.

    Attributes:
      columns: by space.
      numbers: [rows of all columns] int64, one column behind another.
      lengths: [columns] rows of each.
      ends: [columns + 1] where each begins, and the last ends.
    """

    columns: Columns
    numbers: Array
    lengths: Array
    ends: list[int]

    @cached_property
    def places(self) -> dict[tuple[int, int], int]:
        """Of each column, by its table and number, which it is."""
        return {x[1:]: c for c, x in enumerate(self.columns.every)}

    def column(self, table: int, number: int) -> Array:
        """Return the numbers in a column [rows]."""
        c = self.places[table, number]
        return self.numbers[self.ends[c] : self.ends[c + 1]]


# ---- numbers of values ---------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Parts:
    """Parts of the values of an example, type by type: the program's constants, if it
    has any of the type, its own, and what each operation makes.

    Attributes:
      keys: of each its table, and which output of its rows it is.
      tables: [parts] of each; those of the program's constants are behind all others.
      ends: [types + 1] where the parts of each type begin.
      bounds: the same as an array.
      has_shared: whether the program has constants.
    """

    keys: tuple[tuple[int, int], ...]
    tables: Array
    ends: tuple[int, ...]
    bounds: Array
    has_shared: bool

    def by_example(self, numbers: Array) -> Array:
        """Return numbers [parts, examples] type by type, and of each type example by
        example [cells]."""
        if numbers.shape[1] == 1 or not len(numbers):
            return numbers.ravel()
        bounds = itertools.pairwise(self.ends)
        return concatenated([numbers[a:b].T.ravel() for a, b in bounds])


@memoized
def parts_of(program: Operations) -> Parts:
    """Return the parts of the values of a program's examples."""
    types, shared = len(program.types), shared_counts(program)
    behind = types + len(program.operations) + len(program.results)
    found, ends = [], [0]
    for t, count in enumerate(shared):
        found += [(behind + t, 0)] if count else []
        found += [x[1:] for x in value_parts(program) if x[0] == t]
        ends.append(len(found))
    tables = np.array([table for table, _ in found], np.intp)
    bounds = np.array(ends, np.intp)
    return Parts(tuple(found), tables, tuple(ends), bounds, any(shared))


@dataclass(frozen=True, eq=False)
class Numbers:
    """The numbers of merged values.

    Attributes:
      parts: of the values.
      cells: [cells] values of each part of each example, as `Parts.by_example`.
      places: [cells + 1] the number of the first of each.
      examples: how many there are.
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
        found = np.empty((len(self.parts.ends) - 1, self.examples), np.intp)
        for row, (a, b) in zip(found, itertools.pairwise(self.parts.ends), strict=True):
            row[:] = self._of_cells(a, b)
        return found

    @cached_property
    def ends(self) -> list[int]:
        """The number of the first value of each type [types + 1]."""
        found: list[int] = self.places[self.parts.bounds * self.examples].tolist()
        return found

    def begin(self, table: int, output: int) -> Array:
        """Return the number of the first value of a part [examples]."""
        p = self.parts.keys.index((table, output))
        t = next(t for t, end in enumerate(self.parts.ends[1:]) if p < end)
        a, b = self.parts.ends[t : t + 2]
        return self._of_cells(a, b, p - a)

    def _of_cells(self, a: int, b: int, part: int = 0) -> Array:
        """Return the numbers of the first values [examples] of a part of those of a
        type, which are parts `a` to `b`."""
        return self.places[a * self.examples + part : b * self.examples : b - a]


@dataclass(frozen=True, eq=False)
class Demands:
    """What each example needs.

    Attributes:
      added: [examples, numbers], what adds up over a batch: constants per type, nodes
        per operation, rows of sums per type, values per metric, summands per slot.
      highest: [examples, numbers], what only the largest decides: levels, fans per
        type, stages; of each slot whether it is indexed, and whether sums have rows.
    """

    added: Array
    highest: Array

    def pick(self, examples: Array) -> Demands:
        """Return the demands of the given examples [n]."""
        return Demands(self.added[examples], self.highest[examples])


# ---- selections ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Selection(Memoized):
    """Examples of a graph, in some order; one may be there several times.

    Attributes:
      program: what they were recorded for.
      graph: which they are chosen of, known to fit the program.
      examples: [n] which of them; `None` for all, as they are.
      known: what each demands, where that is known.
      origin: all examples of the graph, which keep what they were prepared for.
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
        """All examples of the graph."""
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
        """Where in each table of the graph the rows of each example begin
        [tables, n]."""
        first, examples = self.graph.first, self.examples
        return first[:, :-1] if examples is None else first.take(examples, 1)

    @cached_property
    def counts(self) -> Array:
        """Rows of each example in each table [tables, n]."""
        first, examples = self.graph.first, self.examples
        end = first[:, 1:] if examples is None else first.take(examples + 1, 1)
        counts: Array = end - self._begin
        return counts

    @cached_property
    def totals(self) -> Array:
        """Rows of all examples in each table [tables]."""
        return self.counts[:, 0] if len(self) == 1 else self.counts.sum(1)

    @cached_property
    def _rows(self) -> list[Array]:
        """Per table, where in it the rows of the chosen examples are."""
        every = ranges(self._begin.ravel(), self.counts.ravel())
        ends = first_of(self.totals).tolist()
        return [every[a:b] for a, b in itertools.pairwise(ends)]

    def column(self, table: int, number: int) -> Array:
        """Return a column of a table [rows, ...], of these examples alone."""
        found = self.graph.tables[table].columns[number]
        return found if self.examples is None else found.take(self._rows[table], 0)

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
        """How merged values are numbered."""
        parts, counts = parts_of(self.program), self.counts
        if parts.has_shared:
            own = np.array(shared_counts(self.program))[:, None].repeat(len(self), 1)
            counts = np.concatenate([counts[: self.behind], own])
        cells = parts.by_example(counts[parts.tables])
        return Numbers(parts, cells, first_of(cells), len(self))

    @property
    def behind(self) -> int:
        """How many tables the graph of a program has."""
        program = self.program
        return len(program.types) + len(program.operations) + len(program.results)

    @cached_property
    def before(self) -> Array:
        """Rows of the examples before each, in each table [tables, n]."""
        found = np.zeros(self.counts.shape, np.intp)
        if len(self) > 1:
            np.cumsum(self.counts[:, :-1], axis=1, out=found[:, 1:])
        return found

    def merge(self, columns: Columns) -> Merged:
        """Return the numbers in columns, merged."""
        counts, begin = self.counts[columns.tables], self.numbers.first
        if len(columns.spaces) and columns.spaces[-1] >= len(begin):
            begin = np.concatenate([begin, self.before[len(begin) :]])
        numbers = begin[columns.spaces].ravel().repeat(counts.ravel())
        found = [self.column(table, number) for _, table, number in columns.every]
        if found:
            numbers += concatenated(found)
        lengths = self.totals[columns.tables]
        return Merged(columns, numbers, lengths, [0, *lengths.cumsum().tolist()])

    @cached_property
    def values(self) -> Merged:
        """All that is read."""
        return self.merge(value_columns(self.program))

    def made(self, o: int) -> Array:
        """Return the number of each value that an operation of one output makes
        [nodes]."""
        table = len(self.program.types) + o
        return ranges(self.numbers.begin(table, 0), self.counts[table])


def select(program: Operations, graph: Graph) -> Selection:
    """Return all examples of a graph: one that is not known to fit is `checked` here,
    in about 0.1 us a node.

    Raises:
      ValueError: it does not fit the program.
    """
    return Selection(program, checked(program, graph))


# ---- uses ----------------------------------------------------------------------------


@memoized
def use_counts(selection: Selection) -> Array:
    """Return how often each value is read [values]; 0 for constants of types through
    which gradients flow."""
    numbers, shared = selection.numbers, shared_counts(selection.program)
    counts = np.bincount(selection.values.numbers, minlength=numbers.ends[-1])
    for t in active_types(selection.program):
        # They have no cotangents, so it does not matter how often they are read. They
        # are the first values of each example.
        if shared[t] or selection.totals[t]:
            own = selection.counts[t] + shared[t]
            counts[ranges(numbers.first[t], own)] = 0
    return counts
