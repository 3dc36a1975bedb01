# SPDX-License-Identifier: Apache-2.0
"""The removal of rows that nothing reads, directly or through other rows.

A lazy function may call a block and drop its value. The row of such a call would be
computed for nothing; and gradients through it, of zero cotangents, might be NaN.

Shapes: [values] of one type, in all examples; [rows] of a table.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from jfold.graph import (
    Array,
    Graph,
    Table,
    first_of,
    number_values,
    ranges,
    value_parts,
)
from jfold.program.operations import Operations
from jfold.types import KeyType


def without_unread(program: Operations, graph: Graph) -> Graph:
    """Return a graph less the rows, of nodes and constants, that no result depends on.

    Constants that stand for random keys stay, since keys are derived from their
    numbers: so what is drawn does not depend on what is read.
    """
    values = _Values(program, graph)
    return values.selected(values.read())


@dataclass(eq=False)
class _Values:
    """The values in a graph, and the rows that make and read them.

    Attributes:
      tables: the tables of constants by type, then of operations.
      starts: per table, and behind the last, the number of rows in those before.
      first: per type [examples + 1], the first value of each example.
      outputs: per table, (type, values [rows]) of each output of its rows.
      operands: per table, then per result, (type, values [rows]) of each operand.
    """

    program: Operations
    graph: Graph

    def __post_init__(self) -> None:
        program, graph = self.program, self.graph
        self.tables = graph.constants + graph.operations
        self.starts = [*itertools.accumulate(map(len, self.tables), initial=0)]
        begins, counts = number_values(program, graph.examples, self.tables)
        self.first = [first_of(x) for x in counts]
        self.outputs: list[list[tuple[int, Array]]] = [[] for _ in self.tables]
        for (t, k, _), begin in zip(value_parts(program), begins, strict=True):
            values = ranges(self.first[t][:-1] + begin, self.tables[k].counts)
            self.outputs[k].append((t, values))
        none: tuple[int, ...] = ()
        types = [none for _ in graph.constants]
        types += [operation.inputs for operation in program.operations]
        types += [result.tensors for result in program.results]
        self.operands = [
            [(t, x) for t, x in zip(ts, self._numbers(ts, table), strict=True)]
            for ts, table in zip(types, graph.tables, strict=True)
        ]

    def _numbers(self, types: tuple[int, ...], table: Table) -> Iterator[Array]:
        """Yield the values [rows] of each operand in a table; they are of `types`."""
        columns = table.columns[len(table.columns) - len(types) :]
        for t, column in zip(types, columns, strict=True):
            yield column + self.first[t][:-1].repeat(table.counts)

    def read(self) -> list[Array]:
        """Return, per table, the mask [rows] of keys and of what results depend on."""
        rows = self.starts[-1]  # in all tables; constants of the program count as one
        makers = [np.full(int(x[-1]), rows) for x in self.first]
        for start, outputs in zip(self.starts, self.outputs, strict=False):
            for t, values in outputs:
                makers[t][values] = np.arange(start, start + len(values))
        operands = [[makers[t][values] for t, values in x] for x in self.operands]
        counts = np.bincount(np.concatenate([[rows], *itertools.chain(*operands)]))
        for k, type_ in enumerate(self.program.types):
            if isinstance(type_, KeyType):
                counts[self.starts[k] : self.starts[k + 1]] += 1
        unread, readers = (counts == 0).nonzero()[0].tolist(), counts.tolist()
        columns = [[column.tolist() for column in x] for x in operands]
        kept = np.ones(rows, bool)
        # One row after another: a chain of them, in NumPy, would take a step each.
        while unread:
            row = unread.pop()
            kept[row] = False
            k = bisect.bisect(self.starts, row) - 1
            for column in columns[k]:
                maker = column[row - self.starts[k]]
                readers[maker] -= 1
                if not readers[maker]:
                    unread.append(maker)
        return np.split(kept, self.starts[1:-1])

    def selected(self, kept: list[Array]) -> Graph:
        """Return the graph of the rows in the masks `kept`, one [rows] per table."""
        masks = [np.ones(int(x[-1]), bool) for x in self.first]
        for k, mask in enumerate(kept):
            for t, values in self.outputs[k]:
                masks[t][values] = mask
        before = [first_of(mask) for mask in masks]  # the number of values kept before
        kept = [*kept, *(np.ones(len(x), bool) for x in self.graph.results)]
        tables = []
        for table, mask, operands in zip(
            self.graph.tables, kept, self.operands, strict=True
        ):
            own = [column[mask] for column in table.columns[: -len(operands) or None]]
            first = first_of(mask)[table.first]
            for t, values in operands:
                start = before[t][self.first[t][:-1]].repeat(np.diff(first))
                own.append((before[t][values[mask]] - start).astype(np.int32))
            tables.append(Table(first, tuple(own)))
        one, two = len(self.graph.constants), len(self.tables)
        return replace(
            self.graph,
            constants=tuple(tables[:one]),
            operations=tuple(tables[one:two]),
            results=tuple(tables[two:]),
        )
