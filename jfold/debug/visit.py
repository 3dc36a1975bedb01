# SPDX-License-Identifier: Apache-2.0
"""A `Walk` over the nodes of a graph in topological order, operation by operation.

There are no tiles, buffers and spare rows here: a value has a type and a number, and
the caller stores values. Values of a type are numbered through all examples:

    values of a type   0 1 2 | 3 4 | 5 6 7 8 | 9 ...
                       of the  own   made by
                       program       operations
                       '------- example 0 -------' '-- example 1 ...

Shapes: [values] of a type, [nodes] of an operation, [rows] of a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jfold.graph import Array, Graph, Numbering, numbering, ranges, shared_counts
from jfold.program.components import components
from jfold.program.operations import Operations
from jfold.scheduling.selections import Selection, select


@dataclass(frozen=True, eq=False)
class Walk:
    """A walk over a graph, with the numbers of values that nodes read and make.

    Attributes:
      selection: the selection of all examples of the graph.
      numbers: where in each type an example, its constants and each output begin.
      inputs: per operation and input [nodes], the number of the value read.
      results: per result and tensor [rows], the number of the value returned.
      made: per operation and output [nodes], the number of the value made.
    """

    selection: Selection
    numbers: Numbering
    inputs: tuple[tuple[Array, ...], ...]
    results: tuple[tuple[Array, ...], ...]
    made: tuple[tuple[Array, ...], ...]

    @property
    def program(self) -> Operations:
        """The program that the examples were recorded for."""
        return self.selection.program

    @property
    def graph(self) -> Graph:
        """The graph that is walked over."""
        return self.selection.graph

    @property
    def counts(self) -> list[int]:
        """The number of values of each type, in all examples."""
        return [int(first[-1]) for first in self.numbers.first]

    def shared(self) -> Iterator[tuple[int, Array, Any]]:
        """Yield per constant of the program (type, value numbers [examples], array)."""
        program, first = self.program, self.numbers.first
        before = [0 for _ in program.types]
        for t, value in program.constants:
            yield t, first[t][:-1] + before[t], value
            before[t] += 1
        assert tuple(before) == shared_counts(program)

    def own(self) -> Iterator[tuple[int, Array, Array]]:
        """Yield (type, value numbers [n], array [n, *shape]) of examples' constants."""
        for t, table in enumerate(self.graph.constants):
            numbers = ranges(self.numbers.constants[t], table.counts)
            yield t, numbers, table.columns[0]

    def waves(self) -> Iterator[tuple[int, Array]]:
        """Yield (operation, nodes [n]) in topological order.

        The nodes, indices of rows of the operation's table, are of one level: they do
        not read each other.
        """
        # Components read earlier ones alone, so all levels of one come before the next:
        # levels of two components have nothing to do with each other.
        for component in components(self.program):
            levels = {o: self.graph.levels[o] for o in component.operations}
            last = max((int(x.max(initial=0)) for x in levels.values()), default=0)
            # Nodes sorted by level, so that not all of them are searched at each level.
            sorted_ = {o: np.argsort(x, kind='stable') for o, x in levels.items()}
            for level in range(1, last + 1):
                for o, order in sorted_.items():
                    bounds = np.searchsorted(levels[o][order], [level, level + 1])
                    first, end = bounds.tolist()
                    if first < end:
                        yield o, order[first:end]

    def read(self) -> list[Array]:
        """Return per type which values some result depends on [values] bool."""
        program, used = self.program, [np.zeros(n, bool) for n in self.counts]
        for result, uses in zip(program.results, self.results, strict=True):
            for t, x in zip(result.tensors, uses, strict=True):
                used[t][x] = True
        # In reverse, so that all readers of a value are seen before its node.
        for o, nodes in reversed(list(self.waves())):
            operation = program.operations[o]
            is_read = np.zeros(len(nodes), bool)
            for t, numbers in zip(operation.outputs, self.made[o], strict=True):
                is_read |= used[t][numbers[nodes]]
            for t, x in zip(operation.inputs, self.inputs[o], strict=True):
                used[t][x[nodes[is_read]]] = True
        return used


def make_walk(program: Operations, graph: Graph) -> Walk:
    """Return a walk over a graph.

    Raises:
      ValueError: the graph does not fit the program.
    """
    selection = select(program, graph)
    # A selection numbers values through all types; here each type begins at 0.
    graph, values = selection.graph, selection.values
    numbers = numbering(program, graph)
    types, ends = len(program.types), selection.numbers.ends

    def read(table: int, first: int, numbers: Sequence[int]) -> tuple[Array, ...]:
        # Column 0 of an operation is its level, so its inputs begin at 1.
        columns = enumerate(numbers, first)
        return tuple(values.column(table, k) - ends[t] for k, t in columns)

    operations, results = program.operations, program.results
    behind = types + len(operations)
    pairs = zip(graph.operations, numbers.outputs, strict=True)
    return Walk(
        selection,
        numbers,
        tuple(read(o, 1, x.inputs) for o, x in enumerate(operations, types)),
        tuple(read(r, 0, x.tensors) for r, x in enumerate(results, behind)),
        tuple(
            tuple(ranges(begin, table.counts) for begin in begins)
            for table, begins in pairs
        ),
    )
