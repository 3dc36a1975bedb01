# SPDX-License-Identifier: Apache-2.0
"""What source records, by walking: slow, and with the way to what each row was made of.

The reference of generated source: both make the same rows in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jfold.base.errors import InputError
from jfold.base.functions import additive_identity
from jfold.language.expression import Expression, Nothing
from jfold.language.groups import GROUPS
from jfold.language.typed import Typed
from jfold.language.values import inside
from jfold.language.walk import (
    At,
    Misfit,
    Path,
    Walk,
    common,
    in_tuples,
    plain,
    tensors_in,
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

Array = np.ndarray[Any, Any]
CONSTANTS, NODES = 'constants', 'nodes'  # the tables of a graph


@dataclass(frozen=True, eq=False)
class Row:
    """A tensor: a row of a table, or a part of an operation that is not applied yet.

    Attributes:
      table: 'shared' constants, 'own' ones with their type and bound, or an operation.
      output: which of the operation's.
      path: the way to the data that all of it was made of.
    """

    table: tuple[Any, ...]
    number: int
    output: int = 0
    path: Path | None = None
    level: int = 0
    pending: Any = None


@dataclass(frozen=True, eq=False)
class _Pending:
    """An operation that is a part of the one that reads it."""

    operation: int
    given: Sequence[Row]


@dataclass(eq=False)
class Rows(Nothing):
    """Tensors that are rows of tables, of one example.

    Attributes:
      stop: the table and row at whose making the walk is to end.
      own: constants by type and bound, as they are in the data.
      nodes: per operation, levels and inputs.
      results: per result, rows.
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

    def tensor(self, node: Typed, x: At, type_: TensorType, below: int | None) -> Any:
        """A new constant."""
        return self._constant(node, x.value, type_, below, x.path, node)

    def length(self, node: Typed, n: int, type_: TensorType) -> Any:
        """A new constant."""
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
        known = self.expression.sites[t]
        if (below, site) not in known:
            site = None
        key = 'own', t, below, site
        found = self.own.setdefault(key, [])
        found.append(value)
        self._made(key, len(found) - 1, node, path)
        return Row(key, len(found) - 1, 0, path)

    def _made(self, table: object, row: int, node: object, path: Path | None) -> None:
        if self.stop == (table, row):
            raise Misfit('is made here', str(node), path)

    def constant(self, node: Typed, value: object) -> Any:
        """A constant of the program."""
        value = np.asarray(value)
        t = self.tables.type_number(TensorType(value.shape, value.dtype))
        number = -1
        for other, known in self.tables.constants:
            number += other == t
            same = known.tobytes() == value.tobytes()
            if other == t and known.shape == value.shape and same:
                return Row(('shared', t), number)
        raise AssertionError(f'{node}: no such constant')

    def call(self, node: Typed, x: object) -> Any:
        """Applies an operation; the rest of its results are where they were."""
        assert node.layer is not None and node.origins is not None
        keys = [
            self._constant(node, None, KeyType(name), None, None)
            for name in node.layer.rngs
        ]
        given = [*keys, *tensors_in(node.arranged(x))]
        made: Any = iter(())
        if node.origins.computed:
            inputs = [given[i] for i in node.origins.reads]
            made = iter(self._apply(self.tables.computing(node), inputs, node))
        outputs = []
        for origin in node.origins.outputs:
            if isinstance(origin, np.ndarray):
                outputs.append(self.constant(node, origin))
            else:
                outputs.append(next(made) if origin is None else given[origin])
        return in_tuples(node.output, iter(outputs))

    def group(self, combine: Typed, item: Type, items: list[Any]) -> Any:
        """Applies the operation on so many items, or on more with what fills these."""
        size = next(size for size in GROUPS if size >= len(items))
        if len(items) < size:
            assert isinstance(item, TensorType)
            zero = self.constant(combine, additive_identity(item.shape, item.dtype))
            items = [*items, *[zero] * (size - len(items))]
        assert combine.layer is not None
        given = TupleType((item,) * size)
        o = self.tables.operation(combine.layer, given, item, from_left=size > 2)
        leaves = [leaf for each in items for leaf in tensors_in(each)]
        return in_tuples(item, iter(self._apply(o, leaves, combine)))

    def _apply(self, o: int, given: Sequence[Row], node: Typed) -> list[Row]:
        outputs = range(len(self.tables.listed[o].outputs))
        if o in self.chosen.inside:
            pending = _Pending(o, given)
            return [Row(('pending',), 0, k, pending=pending) for k in outputs]
        given = self._expanded(o, given)
        o = self.chosen.number.get(o, o)
        level = 1
        if self.recurrent[o]:
            own = [
                each.level
                for each in given
                if each.table[0] == 'operation'
                and self.part[each.table[1]] == self.part[o]
            ]
            level = 1 + max(own, default=0)
        rows, table = self.nodes.setdefault(o, []), ('operation', o)
        rows.append((level, [*given]))
        path = common([each.path for each in given if each.path is not None])
        self._made(table, len(rows) - 1, node, path)
        return [Row(table, len(rows) - 1, k, path, level) for k in outputs]

    def _expanded(self, o: int, given: Sequence[Row]) -> list[Row]:
        feeds = self.chosen.feeds.get(o, (None,) * len(given))
        pairs = list(zip(given, feeds, strict=True))
        made: list[Row] = []
        for each in dict.fromkeys(each.pending for each, feed in pairs if feed):
            made += self._expanded(each.operation, each.given)
        return made + [each for each, feed in pairs if not feed]

    def observe(self, node: Typed, name: str, x: Any) -> None:
        """Adds a row to a result."""
        typing = self.expression.typing
        r = typing.metric_numbers[name]
        if typing.metrics[name][1]:
            x, label = x
            self.labels.setdefault(r, []).append(plain(label))
        self.results.setdefault(r, []).append([*tensors_in(x)])

    def value(self, x: object) -> None:
        """Adds the rows of the value of the example."""
        numbers = list(self.program.value_results)
        self._rows(
            x, self.program.output, numbers[0], inside(self.program.output, numbers)
        )

    def _rows(self, x: Any, type_: Type, r: int, inside: Any) -> None:
        row: list[Row] = []
        inner = iter(inside)
        for leaf, of in _terminals(x, type_):
            if isinstance(of, SequenceType):
                site = 'length', r
                length = len(leaf)
                row.append(self._constant('', length, LENGTH, None, None, site))
                number, more = next(inner)
                for item in leaf:
                    self._rows(item, of.item, number, more)
            else:
                row.append(leaf)
        self.results.setdefault(r, []).append(row)


def _terminals(x: Any, type_: Type) -> Any:
    if isinstance(type_, Product):
        for each, of in zip(x, type_, strict=True):
            yield from _terminals(each, of)
    elif not isinstance(type_, VoidType):
        yield x, type_


def where_made(
    program: Any, example: Any, kind: str, number: int, row: int
) -> InputError | None:
    """Names the path in an example, and the block, that a row was made of; as example
    0. `None` if it cannot be told.

    Args:
      kind: 'constants', of a type, or 'nodes', of an operation.
      number: that of the type or operation.
      row: of its table in the graph of the example alone.
    """
    table: Any = ('operation', number)
    if kind == CONSTANTS:
        every = Rows(program, program.expression)
        every.value(Walk(program.expression.typing, every).run(example))
        for below, site in program.expression.sites.get(number, ()):
            table = 'own', number, below, site
            count = len(every.own.get(table, ()))
            if row < count:
                break
            row -= count
    rows = Rows(program, program.expression, (table, row))
    try:
        Walk(program.expression.typing, rows).run(example)
    except Misfit as error:
        return error.told()
    return None
