# SPDX-License-Identifier: Apache-2.0
"""The nodes of a graph, one operation after another, each behind what it reads.

There are no tiles, buffers and spare rows here: a value is told by its type and its
number, and whoever walks keeps values as he likes.

    values of a type   0 1 2 | 3 4 | 5 6 7 8 | 9 ...
                       of the  own   made by
                       program       operations
                       '------- example 0 -------' '-- example 1 ...
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
    """A graph, with what is walked over.

    Attributes:
      selection: of all its examples.
      numbers: how their values are numbered.
      inputs: per operation and input, the value that each node reads [nodes].
      results: per result and tensor, the value of each row [rows].
      made: per operation and output, the value that each node makes [nodes].
    """

    selection: Selection
    numbers: Numbering
    inputs: tuple[tuple[Array, ...], ...]
    results: tuple[tuple[Array, ...], ...]
    made: tuple[tuple[Array, ...], ...]

    @property
    def program(self) -> Operations:
        """What the examples were recorded for."""
        return self.selection.program

    @property
    def graph(self) -> Graph:
        """What is walked over."""
        return self.selection.graph

    @property
    def counts(self) -> list[int]:
        """Per type, how many values there are."""
        return [int(first[-1]) for first in self.numbers.first]

    def shared(self) -> Iterator[tuple[int, Array, Any]]:
        """Constants of the program: the type, the number in each example [examples],
        and the value."""
        program, first = self.program, self.numbers.first
        before = [0 for _ in program.types]
        for t, value in program.constants:
            yield t, first[t][:-1] + before[t], value
            before[t] += 1
        assert tuple(before) == shared_counts(program)

    def own(self) -> Iterator[tuple[int, Array, Array]]:
        """Constants of examples: the type, their numbers [n], and what they are
        [n, *shape]."""
        for t, table in enumerate(self.graph.constants):
            numbers = ranges(self.numbers.constants[t], table.counts)
            yield t, numbers, table.columns[0]

    def waves(self) -> Iterator[tuple[int, Array]]:
        """Operations with nodes [n] that read nothing of each other, in order."""
        # Components read earlier ones alone, so each goes through all its levels at
        # once: levels of two components have nothing to do with each other.
        for component in components(self.program):
            levels = {o: self.graph.levels[o] for o in component.operations}
            last = max((int(x.max(initial=0)) for x in levels.values()), default=0)
            # Sorted once, or every level would look at all nodes.
            sorted_ = {o: np.argsort(x, kind='stable') for o, x in levels.items()}
            for level in range(1, last + 1):
                for o, order in sorted_.items():
                    bounds = np.searchsorted(levels[o][order], [level, level + 1])
                    first, end = bounds.tolist()
                    if first < end:
                        yield o, order[first:end]

    def read(self) -> list[Array]:
        """Per type, the values [values] that a result is made of; the others, as items
        that are cut off and outputs that nobody takes, matter to nobody."""
        program, found = self.program, [np.zeros(n, bool) for n in self.counts]
        for result, uses in zip(program.results, self.results, strict=True):
            for t, x in zip(result.tensors, uses, strict=True):
                found[t][x] = True
        for o, nodes in reversed(list(self.waves())):
            operation, made = program.operations[o], self.made[o]
            outputs = zip(operation.outputs, made, strict=True)
            is_read = np.zeros(len(nodes), bool)
            for t, numbers in outputs:
                is_read |= found[t][numbers[nodes]]
            for t, x in zip(operation.inputs, self.inputs[o], strict=True):
                found[t][x[nodes[is_read]]] = True
        return found


def make_walk(program: Operations, graph: Graph) -> Walk:
    """The walk over a graph."""
    selection = select(program, graph)
    # Merged, the values of all types are in one row; here each type has its own.
    graph, values = selection.graph, selection.values
    numbers = numbering(program, graph)
    types, ends = len(program.types), selection.numbers.ends

    def read(table: int, first: int, numbers: Sequence[int]) -> tuple[Array, ...]:
        # An operation's levels stand before its inputs, so those begin at 1.
        columns = enumerate(numbers, first)
        return tuple(values.column(table, k) - ends[t] for k, t in columns)

    operations, results = program.operations, program.results
    behind = types + len(operations)
    pairs = zip(graph.operations, numbers.outputs, strict=True)
    return Walk(
        selection,
        numbers,
        tuple(read(o, 1, each.inputs) for o, each in enumerate(operations, types)),
        tuple(read(r, 0, each.tensors) for r, each in enumerate(results, behind)),
        tuple(tuple(ranges(x, each.counts) for x in begins) for each, begins in pairs),
    )
