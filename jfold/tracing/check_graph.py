# SPDX-License-Identifier: Apache-2.0
"""The check of graphs from outside against the operations of a program.

Graphs that generated source records fit by construction. One that was read from a file,
traced in another process, or made by another front end is checked before it is
scheduled: a wrong number in it would read a wrong row on the device, silently.

    operation cell, example 3, input 1:      0 1 2 | 3 4 5 6 | 7 8      values
                                             shared   own      nodes'

A value that is read has to be one of its example, made by one of the producers that
the program states for the input. The level of a node has to be one more than that of
the highest of those of its inputs that its own component makes.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from jfold.base.memo import Memoized, memoized
from jfold.graph import (
    Array,
    Graph,
    Table,
    number_values,
    numbering,
    ranges,
    values_before,
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

NUMBER = TensorType((), 'int32')  # of levels and values
BLOCK = 1 << 16  # nodes that are checked together: their arrays stay in the cache


def checked(operations: Operations, graph: Graph) -> Graph:
    """Return the graph, checked and marked as fitting, unless it is marked.

    What is picked from a graph that fits is marked too, and costs nothing here.

    Raises:
      ValueError: the operations or the graph are wrong; see `check_graph`.
    """
    if graph.fits:
        return graph
    _check_once(operations)
    check_graph(operations, graph)
    # Its own numbering of values was not checked: make it anew.
    numbers = numbering(operations, replace(graph, numbers=None))
    return replace(graph, numbers=numbers, fits=True)


@memoized
def _check_once(operations: Operations) -> None:
    check_operations(operations)


def check_graph(operations: Operations, graph: Graph) -> None:
    """Refuse a graph that does not fit.

    Takes about 0.1 us a node on one core, less than tracing took (see the table "from a
    corpus" of `benchmarks/host.py`), and memory for some ten thousand nodes. The values
    of constants are not read.

    Raises:
      ValueError: something does not fit; the message names the operation, the example
        and the input.
    """
    _check_tables(operations, graph)
    # Only the numbers of constants matter from here on.
    bare = replace(
        graph, constants=tuple(Table(table.first, ()) for table in graph.constants)
    )
    for first, last in _blocks(graph):
        is_all = last - first == graph.examples
        part = bare if is_all else bare.pick(np.arange(first, last))
        _check_values(_values(operations, part, first))


def _blocks(graph: Graph) -> Iterator[tuple[int, int]]:
    """Yield ranges of examples of at most `BLOCK` nodes, or of a single one."""
    nodes = np.zeros(graph.examples + 1, np.int64)
    for table in graph.operations:
        nodes += table.first
    begin = 0
    while begin < graph.examples:
        end = int(np.searchsorted(nodes, nodes[begin] + BLOCK, side='right')) - 1
        end = max(end, begin + 1)
        yield begin, end
        begin = end


# ---- shapes --------------------------------------------------------------------------


def _check_tables(operations: Operations, graph: Graph) -> None:
    """Refuse tables or columns that the operations do not have."""
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
    expected = [len(graph.results[r]) for r in operations.labelled]
    labels = [len(table.columns[0]) for table in graph.labels]
    _require(labels, expected, 'the numbers of labels')
    for r, result in enumerate(operations.results):
        counts = graph.results[r].counts
        rows = int(counts.min(initial=1)), int(counts.max(initial=1))
        if not result.kind.is_counted:
            what = f'the least and most rows of an example in results {r}'
            _require(rows, (1, 1), what)


def _check_table(
    table: Table, types: Sequence[TensorType], what: str, examples: int
) -> None:
    """Refuse a table whose columns are not of the types."""
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


@dataclass(frozen=True, eq=False)
class _Values(Memoized):
    """The values of some examples of a graph, and their producers.

    Attributes:
      graph: of these examples.
      before: how many examples come before them.
      first: per type [examples + 1], the number of each example's first value.
      producers: per type [values], the number of each among the outputs of all
        operations; the number of outputs for constants.
      levels: per type [values], the level of the node that makes each; 0 for constants.
    """

    operations: Operations
    graph: Graph
    before: int
    first: tuple[Array, ...]
    producers: list[Array]
    levels: list[Array]

    @memoized
    def levels_in(self, c: int, t: int) -> Array:
        """Return the levels [values] of a type; 0 for values of other components."""
        first = first_results(self.operations)
        is_own = np.zeros(first[-1] + 1, bool)
        for o in components(self.operations)[c].operations:
            is_own[first[o] : first[o + 1]] = True
        return np.where(is_own[self.producers[t]], self.levels[t], 0)


def _values(operations: Operations, graph: Graph, before: int) -> _Values:
    """Number the values of examples."""
    tables = graph.constants + graph.operations
    numbers, _ = number_values(operations, graph.examples, tables)
    sizes = [int(first[-1]) for first in numbers.first]
    results = itertools.count()
    constants = first_results(operations)[-1]
    producers = [np.full(size, constants, np.int32) for size in sizes]
    levels = [np.zeros(size, np.int32) for size in sizes]
    for o, operation in enumerate(operations.operations):
        table = graph.operations[o]
        for t, begin in zip(operation.outputs, numbers.outputs[o], strict=True):
            rows = ranges(begin, table.counts)
            producers[t][rows] = next(results)
            levels[t][rows] = table.columns[0]
    return _Values(operations, graph, before, numbers.first, producers, levels)


def _check_values(values: _Values) -> None:
    """Refuse numbers of values that do not exist, or that must not be read."""
    operations, graph = values.operations, values.graph
    allowed = sources(operations)
    for o, table in enumerate(graph.operations):
        _check_nodes(values, o, table, allowed.inputs[o])
    for r, table in enumerate(graph.results):
        for k, t in enumerate(operations.results[r].tensors):
            makers, what = allowed.results[r][k], f'result {r}, tensor {k}'
            _look_up(values, t, table, table.columns[k], makers, what)


def _check_nodes(
    values: _Values, o: int, table: Table, allowed: Sequence[ProducerSet]
) -> None:
    """Refuse wrong inputs or levels of the nodes of an operation."""
    operation, c = values.operations.operations[o], component_of(values.operations)[o]
    recurrent = components(values.operations)[c].recurrent
    levels, *inputs = table.columns
    below = np.zeros(len(table), np.int32)
    for a, (t, column) in enumerate(zip(operation.inputs, inputs, strict=True)):
        what = f'{operation!r}, input {a}'
        rows = _look_up(values, t, table, column, allowed[a], what)
        if recurrent:
            np.maximum(below, values.levels_in(c, t)[rows], out=below)
    wrong = (levels != below + 1).nonzero()[0]
    if len(wrong):
        row = wrong[0]
        expected = f'level {below[row] + 1}, one above the inputs that operations make'
        text = f'{expected} which take turns with it, got {levels[row]}'
        _refuse(values, table, row, repr(operation), text)


def _look_up(
    values: _Values, t: int, table: Table, column: Array, makers: ProducerSet, what: str
) -> Array:
    """Return the rows [n] in all values of a type, if `makers` made them."""
    operations = values.operations
    limit = np.diff(values.first[t]).astype(np.uint32).repeat(table.counts)
    # Unsigned, negative numbers are above all limits.
    wrong = (column.astype(np.uint32) >= limit).nonzero()[0]
    if len(wrong):
        row = wrong[0]
        expected = f'a number of {limit[row]} values {operations.types[t]}'
        _refuse(values, table, row, what, f'{expected}, got {column[row]}')
    rows = column + values_before(values.first[t], table.counts)
    is_allowed = np.zeros(first_results(operations)[-1] + 1, bool)
    is_allowed[[*results_in(makers), -1]] = True
    if is_allowed[values.producers[t]].all():  # the common case, and a shorter array
        return rows
    wrong = (~is_allowed[values.producers[t][rows]]).nonzero()[0]
    if len(wrong):
        row = wrong[0]
        number = values.producers[t][rows[row]]
        owner = bisect.bisect_right(first_results(operations), number) - 1
        got = operations.operations[owner]
        _refuse(values, table, row, what, f'what `sources` says, got a result of {got}')
    return rows


def _refuse(values: _Values, table: Table, row: int, what: str, text: str) -> NoReturn:
    example = values.before + int(np.searchsorted(table.first, row, side='right')) - 1
    raise ValueError(f'graph: {what}, example {example}: expected {text}')
