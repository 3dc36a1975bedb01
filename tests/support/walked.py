# SPDX-License-Identifier: Apache-2.0
"""Graphs as walks record them: the reference of what source records."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jfold.base.functions import additive_identity
from jfold.graph import Graph, Table, concatenate
from jfold.language.expression import Expression
from jfold.language.rules_reduce import GROUPS
from jfold.language.source_rounds import items_of
from jfold.language.symbols import Use
from jfold.language.typed import TypedUse
from jfold.language.walk import Located, Walk, in_tuples, plain, tensor_leaves
from jfold.program.components import are_recurrent, component_of
from jfold.program.operations import Operations
from jfold.program.result_tables import LENGTH
from jfold.tracing.convert import to_array
from jfold.tracing.record import trace
from jfold.types import KeyType, SequenceType, TensorType, Type, leaf_types

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Row:
    """A stand-in for a tensor: which row of which table of the graph holds it.

    Attributes:
      table: ('shared', type) for constants of the program; ('own', type, bound, site)
        for constants of the example, made at the use `site` or, if `None`, at any;
        ('operation', number); or ('pending',) for an output of a fused operation.
      level: the step of the loop of a recurrent operation, from 1; 0 for a constant.
      use: for an output of an operation that is fused into its reader, the pair of the
        application and `output`.
    """

    table: tuple[Any, ...]
    number: int
    output: int = 0
    level: int = 0
    use: Any = None


@dataclass(eq=False)
class Rows:
    """A recorder of the rows of one example, by table, in the order of the source.

    Attributes:
      own: per table of the example's constants, the object of the data in each row.
      nodes: per operation, the level and operands of each row.
      results: per result, the tensors of each row.
      labels: per metric, by the number of its result, the label of each row.
    """

    program: Operations
    expression: Expression
    own: dict[tuple[Any, ...], list[Any]] = field(default_factory=dict)
    nodes: dict[int, list[tuple[int, list[Row]]]] = field(default_factory=dict)
    results: dict[int, list[list[Row]]] = field(default_factory=dict)
    labels: dict[int, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tables, self.chosen = self.expression.tables, self.expression.chosen
        self.part = component_of(self.program)
        self.recurrent = are_recurrent(self.program)

    def tensor(
        self, node: TypedUse, x: Located, type_: TensorType, below: int | None
    ) -> Any:
        """Append an object to a table of the example's constants; return its row."""
        return self._constant(x.value, type_, below, node)

    def _constant(
        self, value: Any, type_: TensorType, below: Any = None, site: Any = None
    ) -> Row:
        t = self.tables.type_number(type_)
        # If few uses of blocks make constants of this type and bound, each use has a
        # table of its own; else they share one.
        if (below, site) not in self.expression.sites[t]:
            site = None
        table = 'own', t, below, site
        rows = self.own.setdefault(table, [])
        rows.append(value)
        return Row(table, len(rows) - 1)

    def constant(self, node: TypedUse, value: object) -> Any:
        """Return the row of an array [*shape] among the constants of the program."""
        value = np.asarray(value)
        t = self.tables.type_number(TensorType(value.shape, value.dtype))
        numbered = zip(self.tables.places, self.tables.constants, strict=True)
        for number, (other, known) in numbered:
            if other == t and known.tobytes() == value.tobytes():
                return Row(('shared', t), number - 1)
        raise AssertionError(f'{node}: no such constant')

    def call(self, node: TypedUse, x: object) -> Any:
        """Record a layer's use as a row if any output is computed; return outputs."""
        assert node.layer is not None and node.origins is not None
        keys = [self._constant(None, KeyType(name)) for name in node.layer.rngs]
        operands = [*keys, *tensor_leaves(node.arranged(x))]

        def apply(inputs: list[Row]) -> list[Row]:
            return self._apply(self.tables.computing(node), inputs)

        constant = functools.partial(self.constant, node)
        outputs = node.origins.outputs_of(operands, apply, constant)
        return in_tuples(node.output, iter(outputs))

    def group(self, combine: TypedUse, item: Type, items: list[Any]) -> Any:
        """Record the reduction of 2 to 8 items, padded with zeros; return outputs."""
        size = next(size for size in GROUPS if size >= len(items))
        if len(items) < size:
            assert isinstance(item, TensorType)
            zero = self.constant(combine, additive_identity(item.shape, item.dtype))
            items = [*items, *[zero] * (size - len(items))]
        o = self.tables.grouping(combine, item, size)
        leaves = [leaf for value in items for leaf in tensor_leaves(value)]
        return in_tuples(item, iter(self._apply(o, leaves)))

    def _apply(self, o: int, operands: list[Any]) -> list[Row]:
        outputs = range(len(self.tables.listed[o].outputs))
        if o in self.chosen.inside:
            use = Use(o, operands)
            return [Row(('pending',), 0, k, use=(use, k)) for k in outputs]
        operands = self.chosen.outside_inputs(o, operands, lambda _, x: x.use[0].inputs)
        o = self.chosen.number.get(o, o)
        # A level is a step of the loop of one recurrent component. Only operands of the
        # same component count: all others are computed before that loop.
        level = 1
        if self.recurrent[o]:
            levels = [
                row.level
                for row in operands
                if row.table[0] == 'operation'
                and self.part[row.table[1]] == self.part[o]
            ]
            level = 1 + max(levels, default=0)
        rows, table = self.nodes.setdefault(o, []), ('operation', o)
        rows.append((level, operands))
        return [Row(table, len(rows) - 1, k, level) for k in outputs]

    def observe(self, node: TypedUse, name: str, x: Any) -> None:
        """Append a row for `x`, a value or a (value, label) pair, to a metric."""
        typing = self.expression.typing
        r = typing.metric_numbers[name]
        if typing.metrics[name][1]:
            x, label = x
            self.labels.setdefault(r, []).append(plain(label))
        self.results.setdefault(r, []).append([*tensor_leaves(x)])

    def value(self, x: object) -> None:
        """Append `x`, the value of the example, to the result tables."""
        inside = items_of(self.program)
        self._rows(x, self.program.output, next(iter(inside)), inside)

    def _rows(self, x: Any, type_: Type, r: int, inside: dict[int, list[int]]) -> None:
        """Append a row for `x` to table `r`, and rows for items to those `inside`."""
        row: list[Row] = []
        inner = iter(inside[r])
        for leaf, leaf_type in zip(tensor_leaves(x), leaf_types(type_), strict=True):
            if isinstance(leaf_type, SequenceType):
                site = 'length', r
                row.append(self._constant(len(leaf), LENGTH, None, site))
                number = next(inner)
                for item in leaf:
                    self._rows(item, leaf_type.item, number, inside)
            else:
                row.append(leaf)
        self.results.setdefault(r, []).append(row)


def recorded(program: Any, examples: Sequence[Any]) -> Graph:
    """The graph of examples, which walks record."""
    if not examples:
        return trace(program, [])
    return concatenate([_recorded(program, example) for example in examples])


def _recorded(program: Any, example: Any) -> Graph:
    rows = Rows(program, program.expression)
    rows.value(Walk(program.expression.typing, rows).run(example))
    types = range(len(program.types))
    first: dict[tuple[Any, ...], int] = {}
    ends = [0 for _ in types]
    for t, _ in program.constants:
        ends[t] += 1
    constants = []
    for t in types:
        values = []
        for below, site in program.expression.sites.get(t, ()):
            key = 'own', t, below, site
            first[key] = ends[t]
            own = rows.own.get(key, [])
            ends[t] += len(own)
            values += own
        type_ = program.types[t]
        if isinstance(type_, KeyType):
            column = np.zeros((len(values), *type_.shape), type_.dtype)
        else:
            column = to_array(values, type_)
        constants.append(_table(len(values), column))
    for o, operation in enumerate(program.operations):
        for k, t in enumerate(operation.outputs):
            first['operation', o, k] = ends[t]
            ends[t] += len(rows.nodes.get(o, ()))

    def number(row: Row) -> int:
        if row.table[0] == 'shared':
            return row.number
        key = (*row.table, row.output) if row.table[0] == 'operation' else row.table
        return first[key] + row.number

    def columns(table: Sequence[Sequence[Row]], width: int) -> list[Array]:
        made = [[number(row[k]) for row in table] for k in range(width)]
        return [np.array(x, np.int32) for x in made]

    operations = []
    for o, operation in enumerate(program.operations):
        found = rows.nodes.get(o, [])
        levels = np.array([level for level, _ in found], np.int32)
        inputs = columns([given for _, given in found], len(operation.inputs))
        operations.append(_table(len(found), levels, *inputs))
    results, labels = [], []
    for r, result in enumerate(program.results):
        given = rows.results.get(r, [])
        results.append(_table(len(given), *columns(given, len(result.tensors))))
    for r in program.labelled:
        values = np.empty(len(rows.labels.get(r, [])), object)
        values[:] = rows.labels.get(r, [])
        labels.append(_table(len(values), values))
    tables = tuple(constants), tuple(operations), tuple(results)
    return Graph(1, *tables, labels=tuple(labels))


def _table(count: int, *columns: Array) -> Table:
    return Table(np.array([0, count]), columns)
