# SPDX-License-Identifier: Apache-2.0
"""Graphs are checked where they come in from outside, against their operations.

Those that source records fit by construction, and are not looked at again. One that was
read from a file, traced in another process, or stated by another front end is checked
on its way to a schedule: a wrong number in it would be a wrong row on the device, where
nobody could tell.

    operation cell, example 3, input 1:      0 1 2 | 3 4 5 6 | 7 8      values
                                             shared   own      nodes'

A value that is read has to be one of its example, made by an operation that the input
is stated to read; and a node's level one more than those of the values among its inputs
that its own component makes.
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
BLOCK = 1 << 16  # nodes that are looked at at once: they stay in the cache


def checked(operations: Operations, graph: Graph) -> Graph:
    """The graph, which is known to fit: checked, with its operations, if it was not.

    Costs what `check_graph` does, once for what it returns and all that is picked from
    that; nothing for graphs that are known to fit.

    Raises:
      ValueError: as of `check_graph` and `check_operations`.
    """
    if graph.fits:
        return graph
    _check_once(operations)
    check_graph(operations, graph)
    # How it says that its values are numbered was not looked at.
    numbers = numbering(operations, replace(graph, numbers=None))
    return replace(graph, numbers=numbers, fits=True)


@memoized
def _check_once(operations: Operations) -> None:
    check_operations(operations)


def check_graph(operations: Operations, graph: Graph) -> None:
    """Refuses a graph that does not fit.

    Takes some passes of NumPy over the arrays, about 0.1 us a node on one core, less
    than tracing them took (the table "from a corpus" of `benchmarks/host.py` has both),
    and memory for some ten thousand nodes; the constants' values are not read.

    Raises:
      ValueError: something does not fit; the message names the operation, the example
        and the input.
    """
    _check_tables(operations, graph)
    # Which values there are follows from the number of constants.
    bare = replace(
        graph, constants=tuple(Table(table.first, ()) for table in graph.constants)
    )
    for first, last in _blocks(graph):
        whole = last - first == graph.examples
        part = bare if whole else bare.pick(np.arange(first, last))
        _check_values(_values(operations, part, first))


def _blocks(graph: Graph) -> Iterator[tuple[int, int]]:
    """Ranges of examples with not too many nodes, or of a single one."""
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
    """Refuses tables and columns other than the operations ask for."""
    of_types = [[each] for each in operations.types]
    of_nodes = [[NUMBER] * (1 + len(each.inputs)) for each in operations.operations]
    of_results = [[NUMBER] * len(each.tensors) for each in operations.results]
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
    """Refuses a table whose columns are not of the types."""
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
    """The values of some examples of a graph, and what makes them.

    Attributes:
      graph: of these examples.
      before: how many examples come before them.
      first: per type [examples + 1], the number of each example's first value.
      made: per type [values], the number of the result that each is, through all
        operations; that behind the last for constants.
      levels: per type [values], that of the node that makes each; 0 for constants.
    """

    operations: Operations
    graph: Graph
    before: int
    first: tuple[Array, ...]
    made: list[Array]
    levels: list[Array]

    @memoized
    def levels_in(self, c: int, t: int) -> Array:
        """The levels of the values of a type [values]; 0 of other components'."""
        first = first_results(self.operations)
        own = np.zeros(first[-1] + 1, bool)
        for o in components(self.operations)[c].operations:
            own[first[o] : first[o + 1]] = True
        return np.where(own[self.made[t]], self.levels[t], 0)


def _values(operations: Operations, graph: Graph, before: int) -> _Values:
    tables = graph.constants + graph.operations
    numbers, _ = number_values(operations, graph.examples, tables)
    sizes = [int(first[-1]) for first in numbers.first]
    results = itertools.count()
    constants = first_results(operations)[-1]
    made = [np.full(size, constants, np.int32) for size in sizes]
    levels = [np.zeros(size, np.int32) for size in sizes]
    for o, operation in enumerate(operations.operations):
        table = graph.operations[o]
        for t, begin in zip(operation.outputs, numbers.outputs[o], strict=True):
            rows = ranges(begin, table.counts)
            made[t][rows] = next(results)
            levels[t][rows] = table.columns[0]
    return _Values(operations, graph, before, numbers.first, made, levels)


def _check_values(values: _Values) -> None:
    """Refuses numbers of values that there are not, or that must not be read there."""
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
    """Refuses inputs and levels of an operation's nodes."""
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
    """The rows [n] among all values of numbers [n] of a type, if they may be read."""
    operations = values.operations
    limit = np.diff(values.first[t]).astype(np.uint32).repeat(table.counts)
    # As unsigned numbers, negative ones are above all limits.
    wrong = (column.astype(np.uint32) >= limit).nonzero()[0]
    if len(wrong):
        row = wrong[0]
        expected = f'a number of {limit[row]} values {operations.types[t]}'
        _refuse(values, table, row, what, f'{expected}, got {column[row]}')
    rows = column + values_before(values.first[t], table.counts)
    may = np.zeros(first_results(operations)[-1] + 1, bool)
    may[[*results_in(makers), -1]] = True
    all_ = may[values.made[t]].all()  # as is most often so
    wrong = wrong if all_ else (~may[values.made[t][rows]]).nonzero()[0]
    if len(wrong):
        row = wrong[0]
        number = values.made[t][rows[row]]
        owner = bisect.bisect_right(first_results(operations), number) - 1
        got = operations.operations[owner]
        _refuse(values, table, row, what, f'what `sources` says, got a result of {got}')
    return rows


def _refuse(values: _Values, table: Table, row: int, what: str, text: str) -> NoReturn:
    example = values.before + int(np.searchsorted(table.first, row, side='right')) - 1
    raise ValueError(f'graph: {what}, example {example}: expected {text}')
