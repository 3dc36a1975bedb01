# SPDX-License-Identifier: Apache-2.0
"""The reference of generated source: the same rows in the same order, by walking.

It is slow, but every row has the path of the data that it was made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jfold.base.errors import InputError
from jfold.base.functions import additive_identity
from jfold.language.expression import Expression, Paths
from jfold.language.groups import GROUPS
from jfold.language.typed import TypedUse
from jfold.language.values import inside
from jfold.language.walk import (
    Located,
    Misfit,
    Path,
    Walk,
    common_prefix,
    in_tuples,
    plain,
    tensor_leaves,
)
from jfold.program.components import are_recurrent, component_of
from jfold.program.operations import Operations
from jfold.program.result_tables import LENGTH
from jfold.types import (
    KeyType,
    Product,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    VoidType,
)

CONSTANTS, NODES = 'constants', 'nodes'  # the tables of a graph


@dataclass(frozen=True, eq=False)
class Row:
    """A tensor: a row of a table, or the output of a fused operation.

    Attributes:
      table: ('shared', type), the constants of the program; ('own', type, bound, site),
        those of the example; or ('operation', number).
      output: the number of the output of the operation.
      path: the path of the data that all of it was made of.
      pending: the fused operation, which is applied within the one that reads it.
    """

    table: tuple[Any, ...]
    number: int
    output: int = 0
    path: Path | None = None
    level: int = 0
    pending: Any = None


@dataclass(frozen=True, eq=False)
class _Pending:
    """An operation that is fused into the one that reads it."""

    operation: int
    operands: Sequence[Row]


@dataclass(eq=False)
class Rows(Paths):
    """Tensors that are rows of the tables of one example.

    Attributes:
      stop: a table and row; the walk ends with a `Misfit` when that row is recorded.
      own: the constants of the example by table, as objects of the data.
      nodes: per operation, the level and operands of each row.
      results: per result, the tensors of each row.
      labels: per metric, the label of each row.
    """

    program: Operations
    expression: Expression
    stop: tuple[Any, int] | None = None
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
        """Record a constant of the data."""
        return self._constant(node, x.value, type_, below, x.path, node)

    def length(self, node: TypedUse, n: int, type_: TensorType) -> Any:
        """Record a constant that is a length."""
        return self._constant(node, n, type_, None, None, node)

    def _constant(
        self,
        node: Any,
        value: Any,
        type_: TensorType,
        below: Any,
        path: Any,
        site: Any = None,
    ) -> Row:
        t = self.tables.type_number(type_)
        # Where a type has few uses, each has a table of its own.
        if (below, site) not in self.expression.sites[t]:
            site = None
        table = 'own', t, below, site
        values = self.own.setdefault(table, [])
        values.append(value)
        self._check_stop(table, len(values) - 1, node, path)
        return Row(table, len(values) - 1, 0, path)

    def _check_stop(
        self, table: object, row: int, node: object, path: Path | None
    ) -> None:
        if self.stop == (table, row):
            raise Misfit('is made here', str(node), path)

    def constant(self, node: TypedUse, value: object) -> Any:
        """Return the row of a constant of the program."""
        value = np.asarray(value)
        t = self.tables.type_number(TensorType(value.shape, value.dtype))
        # Constants are numbered by type, and equal if their bytes are.
        number = -1
        for other, known in self.tables.constants:
            number += other == t
            same = known.tobytes() == value.tobytes()
            if other == t and known.shape == value.shape and same:
                return Row(('shared', t), number)
        raise AssertionError(f'{node}: no such constant')

    def call(self, node: TypedUse, x: object) -> Any:
        """Apply a layer; outputs that it forwards or are constant need no row."""
        assert node.layer is not None and node.origins is not None
        keys = [
            self._constant(node, None, KeyType(name), None, None)
            for name in node.layer.rngs
        ]
        operands = [*keys, *tensor_leaves(node.arranged(x))]
        computed: Any = iter(())
        if node.origins.computed:
            inputs = [operands[i] for i in node.origins.reads]
            computed = iter(self._apply(self.tables.computing(node), inputs, node))
        outputs = []
        for origin in node.origins.outputs:
            if isinstance(origin, np.ndarray):
                outputs.append(self.constant(node, origin))
            else:
                outputs.append(next(computed) if origin is None else operands[origin])
        return in_tuples(node.output, iter(outputs))

    def group(self, combine: TypedUse, item: Type, items: list[Any]) -> Any:
        """Apply the operation on a group, padded with its identity if too short."""
        size = next(size for size in GROUPS if size >= len(items))
        if len(items) < size:
            assert isinstance(item, TensorType)
            zero = self.constant(combine, additive_identity(item.shape, item.dtype))
            items = [*items, *[zero] * (size - len(items))]
        assert combine.layer is not None
        input_ = TupleType((item,) * size)
        o = self.tables.operation(combine.layer, input_, item, from_left=size > 2)
        leaves = [leaf for value in items for leaf in tensor_leaves(value)]
        return in_tuples(item, iter(self._apply(o, leaves, combine)))

    def _apply(self, o: int, operands: Sequence[Row], node: TypedUse) -> list[Row]:
        outputs = range(len(self.tables.listed[o].outputs))
        if o in self.chosen.inside:
            pending = _Pending(o, operands)
            return [Row(('pending',), 0, k, pending=pending) for k in outputs]
        operands = self._expanded(o, operands)
        o = self.chosen.number.get(o, o)
        # Levels count the steps of a recurrent component, whose operands from other
        # components are all there before.
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
        rows.append((level, [*operands]))
        path = common_prefix([row.path for row in operands if row.path is not None])
        self._check_stop(table, len(rows) - 1, node, path)
        return [Row(table, len(rows) - 1, k, path, level) for k in outputs]

    def _expanded(self, o: int, operands: Sequence[Row]) -> list[Row]:
        """Return the operands of the fused operations inside, then the others."""
        feeds = self.chosen.feeds.get(o, (None,) * len(operands))
        pairs = list(zip(operands, feeds, strict=True))
        expanded: list[Row] = []
        # Several outputs of a fused operation are read, but it is applied once.
        for part in dict.fromkeys(operand.pending for operand, feed in pairs if feed):
            expanded += self._expanded(part.operation, part.operands)
        return expanded + [operand for operand, feed in pairs if not feed]

    def observe(self, node: TypedUse, name: str, x: Any) -> None:
        """Add a row to the result of a metric."""
        typing = self.expression.typing
        r = typing.metric_numbers[name]
        if typing.metrics[name][1]:
            x, label = x
            self.labels.setdefault(r, []).append(plain(label))
        self.results.setdefault(r, []).append([*tensor_leaves(x)])

    def value(self, x: object) -> None:
        """Add the rows of the value of the example."""
        numbers = list(self.program.value_results)
        results = inside(self.program.output, numbers)
        self._rows(x, self.program.output, numbers[0], results)

    def _rows(self, x: Any, type_: Type, r: int, results: Any) -> None:
        """Add the row of a value to result `r`, and those of items to `results`."""
        row: list[Row] = []
        inner = iter(results)
        for leaf, leaf_type in _terminals(x, type_):
            if isinstance(leaf_type, SequenceType):
                site = 'length', r
                length = len(leaf)
                row.append(self._constant('', length, LENGTH, None, None, site))
                number, inner_results = next(inner)
                for item in leaf:
                    self._rows(item, leaf_type.item, number, inner_results)
            else:
                row.append(leaf)
        self.results.setdefault(r, []).append(row)


def _terminals(x: Any, type_: Type) -> Any:
    if isinstance(type_, Product):
        for part, part_type in zip(x, type_, strict=True):
            yield from _terminals(part, part_type)
    elif not isinstance(type_, VoidType):
        yield x, type_


def explain_row(
    program: Any, example: Any, kind: str, number: int, row: int
) -> InputError | None:
    """Return an error with the block and the data path of a row.

    The example has number 0 in it; `None` if the row cannot be found.

    Args:
      kind: 'constants' of a type, or 'nodes' of an operation.
      number: the number of the type or operation.
      row: the row of its table in the graph of the example alone.
    """
    table: Any = ('operation', number)
    if kind == CONSTANTS:
        # A graph has the tables of all uses of a type one after another.
        all_rows = Rows(program, program.expression)
        all_rows.value(Walk(program.expression.typing, all_rows).run(example))
        for below, site in program.expression.sites.get(number, ()):
            table = 'own', number, below, site
            count = len(all_rows.own.get(table, ()))
            if row < count:
                break
            row -= count
    rows = Rows(program, program.expression, (table, row))
    try:
        Walk(program.expression.typing, rows).run(example)
    except Misfit as error:
        return error.input_error()
    return None
