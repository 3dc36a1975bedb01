# SPDX-License-Identifier: Apache-2.0
"""The `Graph` of examples: for each operation, its nodes as rows of input values.

All of it is arrays, example by example, and the numbers in one example refer to that
example alone; so graphs can be stored, cut and concatenated without looking inside.

Values of one tensor type are numbered within their example: first the program's
constants, then the example's own, then the outputs of each operation in the program's
order, node by node. The graph of an example does not depend on what it was traced
together with: nodes of an operation, constants and rows of a result are in the order
in which the source records them, example by example.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from jfold.base.memo import cached_property, memoized
from jfold.program.operations import Operations

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of examples, one example after another.

    Attributes:
      first: [examples + 1] int64, where the rows of each example begin.
      columns: arrays [rows, ...].
    """

    first: Array
    columns: tuple[Array, ...]

    @cached_property
    def counts(self) -> Array:
        """Rows per example [examples]."""
        return np.subtract(self.first[1:], self.first[:-1])

    def __len__(self) -> int:
        return int(self.first[-1])

    @cached_property
    def single(self) -> bool:
        """Return whether each example has one row."""
        return bool((self.counts == 1).all())

    def pick(self, examples: Array) -> Table:
        """Return the rows of some examples [n], in that order."""
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
    """The operations that examples run, and what each reads.

    Attributes:
      examples: how many there are.
      constants: per type, the examples' own; columns: values [rows, *shape]. Values of
        keys are not used: a key is made from its number in its example.
      operations: per operation, its nodes; columns: levels [nodes], then per input the
        value numbers [nodes]. A level is 1 + the highest level of those inputs that
        are results of the node's own component, 1 if there are none. Nodes of a
        component do not depend on others of their level.
      results: per result; columns: per tensor the value numbers [rows].
      numbers: the numbering of values, if it is known already.
      labels: per result that has any; columns: objects [rows].
      fits: whether it is known to fit its operations, since source recorded it or it
        was checked; other graphs are checked before they are scheduled.
    """

    examples: int
    constants: tuple[Table, ...]
    operations: tuple[Table, ...]
    results: tuple[Table, ...]
    numbers: Numbering | None = field(default=None, repr=False)
    labels: tuple[Table, ...] = ()
    fits: bool = field(default=False, repr=False)

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """All tables: of constants per type, of operations, of results."""
        return self.constants + self.operations + self.results

    @cached_property
    def first(self) -> Array:
        """The first row of each example in each table [tables, examples + 1]."""
        return np.array([table.first for table in self.tables])

    @property
    def levels(self) -> tuple[Array, ...]:
        """The level of each node [nodes], per operation."""
        return tuple(table.columns[0] for table in self.operations)

    @property
    def nodes(self) -> int:
        """The number of operations that run."""
        return sum(map(len, self.operations))

    @property
    def nodes_of_examples(self) -> Array:
        """The number of operations that each example runs [examples]."""
        nodes = np.zeros(self.examples, np.int64)
        for table in self.operations:
            nodes += table.counts
        return nodes

    @property
    def depth(self) -> int:
        """The highest level of any component."""
        highest = [np.maximum.reduce(x, initial=0) for x in self.levels]
        return int(max(highest, default=0))

    def pick(self, examples: Array) -> Graph:
        """Return the graph of some examples [n], in that order."""
        return Graph(
            len(examples),
            tuple(table.pick(examples) for table in self.constants),
            tuple(table.pick(examples) for table in self.operations),
            tuple(table.pick(examples) for table in self.results),
            labels=tuple(table.pick(examples) for table in self.labels),
            fits=self.fits,
        )

    def __str__(self) -> str:
        counts = ', '.join(str(len(x)) for x in self.operations)
        return f'Graph({self.examples} examples, nodes ({counts}), depth {self.depth})'


def labels_of(
    program: Operations, parts: Sequence[Sequence[Table]]
) -> dict[str, Array]:
    """Return the labels [rows] of each metric that has any, from tables per graph."""
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

    def joined(tables: Iterable[tuple[Table, ...]]) -> tuple[Table, ...]:
        return tuple(map(_join, zip(*tables, strict=True)))

    return Graph(
        sum(graph.examples for graph in graphs),
        joined(graph.constants for graph in graphs),
        joined(graph.operations for graph in graphs),
        joined(graph.results for graph in graphs),
        labels=joined(graph.labels for graph in graphs),
        fits=all(graph.fits for graph in graphs),
    )


def _join(tables: Sequence[Table]) -> Table:
    counts = np.concatenate([table.counts for table in tables])
    columns = zip(*(table.columns for table in tables), strict=True)
    return Table(first_of(counts), tuple(map(np.concatenate, columns)))


def first_of(counts: Array) -> Array:
    """Return the cumulative sum of counts [n], from zero [n + 1].

    Of ranges one behind another it is where each begins, and where the last ends.
    """
    if len(counts) == 1:
        return np.array([0, counts[0]])
    first = np.zeros(len(counts) + 1, np.int64)
    counts.cumsum(out=first[1:])
    return first


def ranges(begin: Array, counts: Array, first: Array | None = None) -> Array:
    """Return `begin[i], begin[i] + 1, ...`, `counts[i]` of them, for each i.

    Args:
      begin, counts: [n].
      first: [n + 1], `first_of(counts)`, if it is known.
    """
    if len(counts) == 1:
        return np.arange(begin[0], begin[0] + counts[0])
    first = first_of(counts) if first is None else first
    rows: Array = (begin - first[:-1]).repeat(counts)
    rows += np.arange(first[-1])
    return rows


def gather(values: Array, ids: Array) -> Array:
    """Return values [n, ...] at ids [m]."""
    # NumPy is several times as fast with ids as wide as pointers.
    result: Array = values[ids.astype(np.intp, copy=False)]
    return result


def values_before(first: Array, counts: Array) -> Array:
    """Return the number of the first value of each row's example [rows].

    Args:
      first: [examples + 1] the number of each example's first value.
      counts: [examples] rows of each.
    """
    return first[:-1].repeat(counts)


# ---- numbers of values ---------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Numbering:
    """The numbers of values where all examples of a graph stand one after another.

    Attributes:
      first: per type [examples + 1], the number of each example's first value.
      constants: per type [examples], the number of each example's first own constant.
      outputs: per operation and output [examples], that of its first node's.
    """

    first: tuple[Array, ...]
    constants: tuple[Array, ...]
    outputs: tuple[tuple[Array, ...], ...]


def numbering(program: Operations, graph: Graph) -> Numbering:
    """Return the numbering of the values of a graph."""
    if graph.numbers is not None:
        return graph.numbers
    tables = graph.constants + graph.operations
    return number_values(program, graph.examples, tables)[0]


@memoized
def value_parts(program: Operations) -> tuple[tuple[int, int, int], ...]:
    """Return the parts of the values, by number: own constants, then outputs.

    A part is its type, the number of its table, constants first, and the number of the
    output.
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
) -> tuple[Numbering, list[Array]]:
    """Return the numbering, and per part the first number within each example.

    Args:
      tables: of constants, then of operations.
    """
    # Within an example first, as graphs have it; then all examples one after another.
    zero = np.zeros(examples, np.int64)
    ends = [zero + count if count else zero for count in shared_counts(program)]
    begins = []
    for t, table, _ in value_parts(program):
        begins.append(ends[t])
        ends[t] = ends[t] + tables[table].counts
    first = tuple(map(first_of, ends))
    places = begins
    if examples != 1:
        of_parts = (first[t] for t, _, _ in value_parts(program))
        places = [x + y[:-1] for x, y in zip(begins, of_parts, strict=True)]
    numbers = iter(places)
    constants = tuple(itertools.islice(numbers, len(program.types)))
    outputs = tuple(
        tuple(itertools.islice(numbers, len(operation.outputs)))
        for operation in program.operations
    )
    return Numbering(first, constants, outputs), begins


@memoized
def shared_counts(program: Operations) -> tuple[int, ...]:
    """Return the number of constants of each type that the program itself has."""
    counts = Counter(t for t, _ in program.constants)
    return tuple(counts[t] for t in range(len(program.types)))


def concatenate_arrays(chunks: Sequence[Array]) -> Array:
    """Concatenate arrays [n, ...], without a copy if there is one."""
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
