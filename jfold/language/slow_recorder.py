# SPDX-License-Identifier: Apache-2.0
"""A slow recorder of the rows that generated source records, in the same order.

It evaluates an example block by block, and every row has the path of its data. Tests
compare its rows with those of the source; `find_nan` asks it where a row came from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jfold.base.errors import InputError
from jfold.base.functions import additive_identity
from jfold.language.expression import Expression
from jfold.language.rules_reductions import GROUPS
from jfold.language.source_rounds import items_of
from jfold.language.symbols import Use
from jfold.language.typed import TypedUse
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
from jfold.types import KeyType, SequenceType, TensorType, Type, leaf_types

CONSTANTS, NODES = 'constants', 'nodes'  # the two kinds of tables in a graph


@dataclass(frozen=True, eq=False)
class Row:
    """A stand-in for a tensor: which row of which table of the graph holds it.

    Attributes:
      table: ('shared', type) for constants of the program; ('own', type, bound, site)
        for constants of the example, made at the use `site` or, if `None`, at any;
        ('operation', number); or ('pending',) for an output of a fused operation.
      path: the longest common prefix of the paths of the data that it was made of.
      level: the step of the loop of a recurrent operation, from 1; 0 for a constant.
      use: for an output of an operation that is fused into its reader, the pair of the
        application and `output`.
    """

    table: tuple[Any, ...]
    number: int
    output: int = 0
    path: Path | None = None
    level: int = 0
    use: Any = None


@dataclass(eq=False)
class Rows:
    """A recorder of the rows of one example, by table.

    Attributes:
      stop: a table and a row index; recording that row raises `Misfit`, which ends the
        walk with the path of the data.
      own: per table of the example's constants, the object of the data in each row.
      nodes: per operation, the level and operands of each row.
      results: per result, the tensors of each row.
      labels: per metric, by the number of its result, the label of each row.
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
        """Append an object to a table of the example's constants; return its row."""
        return self._constant(node, x.value, type_, below, x.path, node)

    def length(self, node: TypedUse, n: int, type_: TensorType) -> Any:
        """Append a length to a table of the example's constants; return its row."""
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
        # If few uses of blocks make constants of this type and bound, each use has a
        # table of its own; else they share one.
        if (below, site) not in self.expression.sites[t]:
            site = None
        table = 'own', t, below, site
        rows = self.own.setdefault(table, [])
        return Row(table, self._added(rows, value, table, node, path), 0, path)

    def _added(
        self, rows: list[Any], row: Any, table: object, node: object, path: Path | None
    ) -> int:
        """Append a row and return its index; raise `Misfit` if the row is `stop`."""
        rows.append(row)
        if self.stop == (table, len(rows) - 1):
            raise Misfit('is made here', str(node), path)
        return len(rows) - 1

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
        """Record the reduction of 2 to 8 items, padded with zeros; return outputs."""
        size = next(size for size in GROUPS if size >= len(items))
        if len(items) < size:
            assert isinstance(item, TensorType)
            zero = self.constant(combine, additive_identity(item.shape, item.dtype))
            items = [*items, *[zero] * (size - len(items))]
        o = self.tables.grouping(combine, item, size)
        leaves = [leaf for value in items for leaf in tensor_leaves(value)]
        return in_tuples(item, iter(self._apply(o, leaves, combine)))

    def _apply(self, o: int, operands: list[Any], node: TypedUse) -> list[Row]:
        outputs = range(len(self.tables.listed[o].outputs))
        if o in self.chosen.inside:
            use = Use(o, operands)
            return [Row(('pending',), 0, k, use=(use, k)) for k in outputs]
        operands = self.chosen.outside_inputs(o, operands)
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
        path = common_prefix([row.path for row in operands if row.path is not None])
        number = self._added(rows, (level, operands), table, node, path)
        return [Row(table, number, k, path, level) for k in outputs]

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
                row.append(self._constant('', len(leaf), LENGTH, None, None, site))
                number = next(inner)
                for item in leaf:
                    self._rows(item, leaf_type.item, number, inside)
            else:
                row.append(leaf)
        self.results.setdefault(r, []).append(row)


def explain_row(
    program: Any, example: Any, kind: str, number: int, row: int
) -> InputError | None:
    """Return an error that names block and data behind `row` of table (kind, number).

    The number of the example in the error is 0. Return `None` if there is no such row.

    Args:
      kind: 'constants' of a type, or 'nodes' of an operation.
      number: the number of the type or operation.
      row: the row of its table in the graph of the example alone.
    """
    table: Any = ('operation', number)
    if kind == CONSTANTS:
        # The table of a type in a graph is the tables of all its uses, concatenated.
        all_rows = Rows(program, program.expression)
        all_rows.value(Walk(program.expression.typing, all_rows).run(example))
        for below, site in program.expression.sites.get(number, ()):
            table = 'own', number, below, site
            count = len(all_rows.own.get(table, ()))
            if row < count:
                break
            row -= count
        else:
            return None
    rows = Rows(program, program.expression, (table, row))
    try:
        Walk(program.expression.typing, rows).run(example)
    except Misfit as error:
        return error.input_error()
    return None
