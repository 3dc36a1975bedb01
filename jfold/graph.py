# SPDX-License-Identifier: Apache-2.0
"""The `Graph` of examples: for each operation, its nodes as rows of input values.

A graph is arrays of rows, example by example, and the numbers in an example's rows
refer to values of that example alone. So graphs can be stored, cut and concatenated
without changing these numbers.

The *value numbers* of an example count its values of one tensor type: first the
constants of the program, then the example's own constants, then the outputs of each
operation in the program's order, node by node. The graph of an example does not depend
on the examples traced with it: nodes of an operation, rows of a result, and the
constants that one use of a block reads are in the order in which `Block.eval` meets
them: depth first, the parts of a block from left to right, the calls of a lazy function
as it makes them; a value that several parts share is where it is met first. Calls whose
results nothing reads have no rows. Constants of one type are grouped by the use of a
block that makes them, or, with more than four such uses, in the order in which they are
met.

In shapes, `rows` and `nodes` count those of all examples in one table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from jfold.base.memo import cached_property, memoized
from jfold.program.operations import Operations

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Table:
    """A table with any number of rows for each example, one example after another.

    Attributes:
      first: [examples + 1] int64, the index of each example's first row, then the
        number of rows.
      columns: arrays, each [rows, ...].
    """

    first: Array
    columns: tuple[Array, ...]

    @cached_property
    def counts(self) -> Array:
        """The number of rows of each example [examples]."""
        return np.subtract(self.first[1:], self.first[:-1])

    def __len__(self) -> int:
        return int(self.first[-1])

    @cached_property
    def single(self) -> bool:
        """Return whether each example has exactly one row."""
        return bool((self.counts == 1).all())

    def owner(self, row: int) -> int:
        """Return the index of the example that a row belongs to."""
        return int(self.first.searchsorted(row, 'right')) - 1

    def pick(self, examples: Array) -> Table:
        """Return the table of the examples with these indices [n], in this order."""
        if not len(self):
            return Table(np.zeros(len(examples) + 1, np.int64), self.columns)
        if self.single:
            columns = tuple(column.take(examples, 0) for column in self.columns)
            return Table(np.arange(len(examples) + 1), columns)
        begin, counts = self.first[examples], self.counts[examples]
        first = first_of(counts)
        rows = ranges(begin, counts, first)
        return Table(first, tuple(column.take(rows, 0) for column in self.columns))


@dataclass(frozen=True, eq=False)
class Graph:
    """The nodes of examples, each one run of an operation, and what each node reads.

    Attributes:
      examples: the number of examples.
      constants: one table per type, of the examples' own constants; its column: values
        [rows, *shape]. Values of random keys are not used: a key is derived from its
        number in its example.
      operations: one table per operation, of its nodes; its columns: levels [nodes],
        then for each input the value numbers [nodes]. A level is 1 + the highest level
        of those inputs that are results of the node's own component, or 1 if none is.
        Nodes of a component do not depend on others of their level.
      results: one table per result; its columns: for each tensor, value numbers [rows].
      labels: one table per result with labels; its column: objects [rows].
      fits: whether the graph is known to fit its operations, because source recorded it
        or it was checked; other graphs are checked before they are scheduled.
    """

    examples: int
    constants: tuple[Table, ...]
    operations: tuple[Table, ...]
    results: tuple[Table, ...]
    labels: tuple[Table, ...] = ()
    fits: bool = field(default=False, repr=False)

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """The tables of constants by type, then of operations, then of results."""
        return self.constants + self.operations + self.results

    @cached_property
    def first(self) -> Array:
        """The first row of each example in each table, [tables, examples + 1]."""
        return np.array([table.first for table in self.tables])

    @property
    def levels(self) -> tuple[Array, ...]:
        """The levels of all nodes, one array [nodes] per operation."""
        return tuple(table.columns[0] for table in self.operations)

    @property
    def nodes(self) -> int:
        """The number of nodes of all operations and examples."""
        return sum(map(len, self.operations))

    @property
    def nodes_of_examples(self) -> Array:
        """The number of nodes of each example [examples]."""
        zero = np.zeros(self.examples, np.int64)
        return sum((table.counts for table in self.operations), zero)

    @property
    def depth(self) -> int:
        """The highest level of any node; 0 without nodes."""
        return int(max((x.max(initial=0) for x in self.levels), default=0))

    @property
    def kinds(self) -> tuple[tuple[Table, ...], ...]:
        """The tables of each kind: of constants, operations, results and labels."""
        return self.constants, self.operations, self.results, self.labels

    def pick(self, examples: Array) -> Graph:
        """Return the graph of the examples with these indices [n], in this order."""
        constants, operations, results, labels = (
            tuple(x.pick(examples) for x in tables) for tables in self.kinds
        )
        count, fits = len(examples), self.fits
        return Graph(count, constants, operations, results, labels, fits)

    def __str__(self) -> str:
        counts = ', '.join(str(len(x)) for x in self.operations)
        return f'Graph({self.examples} examples, nodes ({counts}), depth {self.depth})'


def labels_of(
    program: Operations, parts: Sequence[Sequence[Table]]
) -> dict[str, Array]:
    """Return metrics' labels [rows], by name; `parts` has the graphs' `labels`."""
    return {
        str(program.results[r].kind.name): np.concatenate(
            [labels[k].columns[0] for labels in parts]
        )
        for k, r in enumerate(program.labelled)
    }


def concatenate(graphs: Sequence[Graph]) -> Graph:
    """Return the graph of all examples of several graphs of one program."""
    if len(graphs) == 1:
        return graphs[0]

    constants, operations, results, labels = (
        tuple(map(_join, zip(*tables, strict=True)))
        for tables in zip(*(graph.kinds for graph in graphs), strict=True)
    )
    examples, fits = sum(x.examples for x in graphs), all(x.fits for x in graphs)
    return Graph(examples, constants, operations, results, labels, fits)


def _join(tables: Sequence[Table]) -> Table:
    counts = np.concatenate([table.counts for table in tables])
    columns = zip(*(table.columns for table in tables), strict=True)
    return Table(first_of(counts), tuple(map(np.concatenate, columns)))


def first_of(counts: Array) -> Array:
    """Return cumulative sums of counts [n] behind a zero: [2, 3] gives [0, 2, 5]."""
    if len(counts) == 1:
        return np.array([0, counts[0]])
    first = np.zeros(len(counts) + 1, np.int64)
    counts.cumsum(out=first[1:])
    return first


def ranges(begin: Array, counts: Array, first: Array | None = None) -> Array:
    """Concatenate ranges of ints: begin [5, 0], counts [2, 1] give [5, 6, 0].

    `first` is `first_of(counts)` if known.
    """
    if len(counts) == 1:
        return np.arange(begin[0], begin[0] + counts[0])
    first = first_of(counts) if first is None else first
    rows: Array = (begin - first[:-1]).repeat(counts)
    rows += np.arange(first[-1])
    return rows


# ---- numbers of values ---------------------------------------------------------------


@memoized
def value_parts(program: Operations) -> tuple[tuple[int, int, int], ...]:
    """Return the indices (type, table, output) of each source of values.

    The sources, or parts, are first the examples' own constants of each type, then the
    outputs of all operations. The table is the index in `constants + operations` of a
    graph; the output is that of the operation.
    """
    types = len(program.types)
    constants = [(t, t, 0) for t in range(types)]
    return *constants, *(
        (t, types + o, k)
        for o, operation in enumerate(program.operations)
        for k, t in enumerate(operation.outputs)
    )


def number_values(
    program: Operations, examples: int, tables: Sequence[Table]
) -> tuple[list[Array], list[Array]]:
    """Number values from 0, per example and type; return first numbers and counts.

    Args:
      tables: the tables of constants, then those of operations.

    Returns:
      The first number in each part of `value_parts` (the constants of a type, or an
      output), and the number of values of each type: lists of arrays [examples].
    """
    zero = np.zeros(examples, np.int64)
    counts = [zero + count if count else zero for count in shared_counts(program)]
    begins = []
    for t, table, _ in value_parts(program):
        begins.append(counts[t])
        counts[t] = counts[t] + tables[table].counts
    return begins, counts


@memoized
def shared_counts(program: Operations) -> tuple[int, ...]:
    """Return the number of constants of each type that a program's examples share."""
    counts = Counter(t for t, _ in program.constants)
    return tuple(counts[t] for t in range(len(program.types)))


def concatenate_arrays(chunks: Sequence[Array]) -> Array:
    """Return `chunks`, each [n, ...], concatenated; a single one as it is."""
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
