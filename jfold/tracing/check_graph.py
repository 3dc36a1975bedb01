# SPDX-License-Identifier: Apache-2.0
"""The check that a graph from outside fits the operations of a program.

Graphs that generated source records fit by construction. A graph that was read from a
file, traced in another process, or made by another front end is checked before it is
scheduled: a wrong number in it would read a wrong row on the device, silently.

    numbers of the values of one type in one example:

    0 1 2                        | 3 4 5 6                      | 7 8
    constants of the program       constants of the example       outputs of nodes

A node or result may read a value of its own example, made by an operation that
`sources` allows for the input, or any constant. The level of a node must be one more
than the highest level of the inputs that its own component makes; 1 without any.

Shapes: [rows] of a table; [values] of a type, in all examples checked together.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

import numpy as np

from jfold.base.memo import Memoized, memoized
from jfold.graph import (
    Array,
    Graph,
    Table,
    first_of,
    number_values,
    ranges,
    value_parts,
)
from jfold.program.components import (
    component_of,
    components,
    first_results,
    results_in,
    sources,
)
from jfold.program.operations import Operations, ProducerSet, check_operations
from jfold.types import TensorType

NUMBER = TensorType((), 'int32')  # the type of columns of levels and value numbers
BLOCK = 1 << 16  # nodes that are checked together: their arrays stay in the CPU's cache


def checked(operations: Operations, graph: Graph) -> Graph:
    """Check a graph unless it is known to fit; return it with `fits` set.

    Examples picked from it fit too. Raises ValueError as `check_graph`, also if the
    operations are wrong.
    """
    if graph.fits:
        return graph
    _check_once(operations)
    check_graph(operations, graph)
    return replace(graph, fits=True)


_check_once = memoized(check_operations)


def check_graph(operations: Operations, graph: Graph) -> None:
    """Raise ValueError if a graph does not fit the operations.

    The message names the operation, the example and the input. The check takes about
    0.1 us a node on one core, less than tracing took (see the table "from a corpus" of
    `benchmarks/host.py`), and memory for `BLOCK` nodes, or for the largest example. The
    values of constants are not read.
    """
    _check_tables(operations, graph)
    # From here on only the number of constants matters: `pick` need not copy arrays.
    bare = replace(
        graph, constants=tuple(Table(table.first, ()) for table in graph.constants)
    )
    nodes, begin = first_of(graph.nodes_of_examples), 0
    while begin < graph.examples:  # by `BLOCK` nodes at most, or one example
        end = int(np.searchsorted(nodes, nodes[begin] + BLOCK, side='right')) - 1
        end = max(end, begin + 1)
        is_all = end - begin == graph.examples
        part = bare if is_all else bare.pick(np.arange(begin, end))
        _Values(operations, part, begin).check()
        begin = end


# ---- shapes --------------------------------------------------------------------------


def _check_tables(operations: Operations, graph: Graph) -> None:
    """Raise ValueError unless `graph` has the tables and columns of `operations`."""
    of_types = [[type_] for type_ in operations.types]
    of_nodes = [[NUMBER] * (1 + len(op.inputs)) for op in operations.operations]
    of_results = [[NUMBER] * len(result.tensors) for result in operations.results]
    for name, tables, columns in (
        ('constants', graph.constants, of_types),
        ('operations', graph.operations, of_nodes),
        ('results', graph.results, of_results),
    ):
        _require(len(tables), len(columns), f'the number of tables of {name}')
        for n, (table, types) in enumerate(zip(tables, columns, strict=True)):
            _check_table(table, types, f'{name} {n}', graph.examples)
    labelled = [graph.results[r] for r in operations.labelled]
    _require(len(graph.labels), len(labelled), 'the number of tables of labels')
    for n, (table, rows) in enumerate(zip(graph.labels, labelled, strict=True)):
        _require(len(table.columns), 1, f'the number of columns of labels {n}')
        _require(len(table.columns[0]), len(rows), f'the number of labels {n}')
        are_beside = np.array_equal(table.first, rows.first)
        what = f'the equality of `first` of labels {n} and of their results'
        _require(are_beside, True, what)
    for r, result in enumerate(operations.results):
        counts = graph.results[r].counts
        ends = int(counts.min(initial=1)), int(counts.max(initial=1))
        if not result.kind.is_counted:
            what = f'the least and most rows of an example in results {r}'
            _require(ends, (1, 1), what)


def _check_table(
    table: Table, types: Sequence[TensorType], what: str, examples: int
) -> None:
    """Raise ValueError unless a table has columns of `types`, and a range per example.

    Messages call the table `what`.
    """
    _require(table.first.shape, (examples + 1,), f'the shape of `first` of {what}')
    steps = np.diff(table.first, prepend=0)
    _require(int(steps.min(initial=0)), 0, f'the lowest step of `first` of {what}')
    _require(int(table.first[0]), 0, f'the beginning of `first` of {what}')
    _require(len(table.columns), len(types), f'the number of columns of {what}')
    for k, (column, type_) in enumerate(zip(table.columns, types, strict=True)):
        shape = len(table), *type_.shape
        _require(column.shape, shape, f'the shape of column {k} of {what}')
        _require(column.dtype, type_.dtype, f'the dtype of column {k} of {what}')


def _require(got: object, expected: object, what: str) -> None:
    if got != expected:
        raise ValueError(f'graph: expected {what} to be {expected}, got {got}')


# ---- values --------------------------------------------------------------------------


class _Values(Memoized):
    """The values of some examples of a graph, with their producers and levels.

    Attributes:
      graph: the graph of these examples alone.
      before: the number of examples before them in the whole graph, for messages.
      first: per type [examples + 1], the index of each example's first value.
      results: the index of each operation's first output; then the count of outputs.
      producers: per type [values], the index of the output that made each value, among
        the outputs of all operations; the count of outputs for constants.
      levels: per type [values], the level of each value's node; 0 for constants.
    """

    def __init__(self, operations: Operations, graph: Graph, before: int) -> None:
        self.operations, self.graph, self.before = operations, graph, before
        tables, types = graph.constants + graph.operations, len(graph.constants)
        begins, counts = number_values(operations, graph.examples, tables)
        self.first = tuple(map(first_of, counts))
        sizes = [int(x[-1]) for x in self.first]
        self.results = first_results(operations)
        self.producers = [np.full(size, self.results[-1], np.int32) for size in sizes]
        self.levels = [np.zeros(size, np.int32) for size in sizes]
        outputs = zip(value_parts(operations)[types:], begins[types:], strict=True)
        for output, ((t, table, _), begin) in enumerate(outputs):
            rows = ranges(self.first[t][:-1] + begin, tables[table].counts)
            self.producers[t][rows] = output
            self.levels[t][rows] = tables[table].columns[0]

    @memoized
    def levels_in(self, c: int, t: int) -> Array:
        """Return levels [values] of the values of type `t`; 0 outside component `c`."""
        is_own = np.zeros(self.results[-1] + 1, bool)
        for o in components(self.operations)[c].operations:
            is_own[self.results[o] : self.results[o + 1]] = True
        return np.where(is_own[self.producers[t]], self.levels[t], 0)

    def check(self) -> None:
        """Raise ValueError if an operand of a node or result, or a level, is wrong."""
        allowed = sources(self.operations)
        for o, table in enumerate(self.graph.operations):
            self._check_nodes(o, table, allowed.inputs[o])
        for r, table in enumerate(self.graph.results):
            for k, t in enumerate(self.operations.results[r].tensors):
                what, makers = f'result {r}, tensor {k}', allowed.results[r][k]
                self._look_up(t, table, table.columns[k], makers, what)

    def _check_nodes(
        self, o: int, table: Table, allowed: Sequence[ProducerSet]
    ) -> None:
        """Check levels of operation `o`, and that input k reads only `allowed[k]`."""
        operation, c = self.operations.operations[o], component_of(self.operations)[o]
        recurrent = components(self.operations)[c].recurrent
        levels, *inputs = table.columns
        below = np.zeros(len(table), np.int32)
        for a, (t, column) in enumerate(zip(operation.inputs, inputs, strict=True)):
            what = f'{operation!r}, input {a}'
            rows = self._look_up(t, table, column, allowed[a], what)
            if recurrent:
                np.maximum(below, self.levels_in(c, t)[rows], out=below)
        wrong = (levels != below + 1).nonzero()[0]
        if len(wrong):
            row = wrong[0]
            expected = f'level {below[row] + 1}, one above the inputs that operations'
            text = f'{expected} make which take turns with it, got {levels[row]}'
            self._refuse(table, row, repr(operation), text)

    def _look_up(
        self, t: int, table: Table, column: Array, makers: ProducerSet, what: str
    ) -> Array:
        """Return `column` [rows] of `table` as indices among all values of type `t`.

        Raise ValueError, which calls the column `what`, if a value number exceeds those
        of its row's example, or is of an output outside of the set `makers`.
        """
        limit = np.diff(self.first[t]).astype(np.uint32).repeat(table.counts)
        # Cast to unsigned, negative numbers are above all limits too.
        wrong = (column.astype(np.uint32) >= limit).nonzero()[0]
        if len(wrong):
            row = wrong[0]
            expected = f'a number of {limit[row]} values {self.operations.types[t]}'
            self._refuse(table, row, what, f'{expected}, got {column[row]}')
        rows = column + self.first[t][:-1].repeat(table.counts)
        is_allowed = np.zeros(self.results[-1] + 1, bool)
        is_allowed[[*results_in(makers), -1]] = True  # the last stands for constants
        # The common case, in which no producer is looked up for each row.
        if is_allowed[self.producers[t]].all():
            return rows
        wrong = (~is_allowed[self.producers[t][rows]]).nonzero()[0]
        if len(wrong):
            row = wrong[0]
            number = self.producers[t][rows[row]]
            got = self.operations.operations[bisect.bisect(self.results, number) - 1]
            text = f'what `sources` says, got a result of {got}'
            self._refuse(table, row, what, text)
        return rows

    def _refuse(self, table: Table, row: int, what: str, text: str) -> NoReturn:
        example = self.before + table.owner(row)
        raise ValueError(f'graph: {what}, example {example}: expected {text}')
