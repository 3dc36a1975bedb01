# SPDX-License-Identifier: Apache-2.0
"""The block that makes a row of a graph, and the row's data."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np

from jfold.language.expression import Expression, PathOnly, Paths
from jfold.language.rules_reduce import GROUPS
from jfold.language.typed import TypedUse
from jfold.language.walk import (
    Located,
    Misfit,
    Path,
    Walk,
    common_prefix,
    in_tuples,
    tensor_leaves,
)
from jfold.tracing.record import trace
from jfold.tracing.unread_rows import rows_read
from jfold.types import TensorType, Type

CONSTANTS, NODES = 'constants', 'nodes'  # the two kinds of tables in a graph


def find_row(
    program: Any, example: Any, kind: str, number: int, row: int
) -> tuple[str, str]:
    """Return the path in the data, and of the block, of a table's row.

    The program is not fused. The row is counted in the graph of the example alone; both
    are empty if there is no such row.

    Args:
      kind: CONSTANTS of a type, or NODES of an operation, with this number.
    """
    expression: Expression = program.expression
    table: Any = number
    if program.source.recording.prunes:
        # The row is counted among those that are left of all that were recorded.
        graph = trace(program, [example], whole=True)
        k = number if kind == CONSTANTS else len(program.types) + number
        left = rows_read(program, graph)[k].nonzero()[0]
        if row >= len(left):
            return '', ''
        row = int(left[row])
    if kind == CONSTANTS:
        # The table of a type is the tables of all its uses, concatenated.
        counting = RowFinder(expression)
        Walk(expression.typing, counting).run(example)
        for use in expression.sites.get(number, ()):
            table = number, *use
            if row < counting.counts[table]:
                break
            row -= counting.counts[table]
    try:
        Walk(expression.typing, RowFinder(expression, table, row)).run(example)
    except Misfit as error:
        return str(error.path or ''), error.where
    return '', ''


class RowFinder(Paths):
    """An evaluator that raises `Misfit` where it makes row `row` of `table`.

    A table is the number of an operation; or, for constants of the example, the number
    of their type, `below`, and the use that makes them, `None` for all other uses.

    Attributes:
      counts: the number of rows so far, by table.
    """

    def __init__(self, expression: Expression, table: Any = None, row: int = 0) -> None:
        super().__init__()
        self.expression, self.table, self.row = expression, table, row
        self.counts: Counter[Any] = Counter()

    def _add(self, table: Any, node: TypedUse, path: Path | None) -> PathOnly:
        if (table, self.counts[table]) == (self.table, self.row):
            raise Misfit('is made here', str(node), path)
        self.counts[table] += 1
        return PathOnly(path)

    def _node(self, o: int, node: TypedUse, operands: list[Any]) -> PathOnly:
        path = common_prefix(x.path for x in operands if x.path is not None)
        return self._add(self.expression.chosen.number.get(o, o), node, path)

    def tensor(
        self, node: TypedUse, x: Located, type_: TensorType, below: int | None
    ) -> object:
        """Count a constant of `type_` and `below` made of `x`; return its path."""
        t = self.expression.tables.type_number(type_)
        own = (below, node) in self.expression.sites[t]
        return self._add((t, below, node if own else None), node, x.path)

    def call(self, node: TypedUse, x: object) -> Any:
        """Count `node` on `x`, if any output is computed; return output paths."""
        assert node.layer is not None and node.origins is not None
        keys = [PathOnly(None) for _ in node.layer.rngs]
        operands = [*keys, *tensor_leaves(node.arranged(x))]
        made = PathOnly(None)
        if node.origins.computed:
            o = self.expression.tables.computing(node)
            made = self._node(o, node, [operands[i] for i in node.origins.reads])
        outputs = []
        for origin in node.origins.outputs:
            if isinstance(origin, np.ndarray):
                outputs.append(PathOnly(None))
            else:
                outputs.append(made if origin is None else operands[origin])
        return in_tuples(node.output, iter(outputs))

    def group(self, combine: TypedUse, item: Type, items: list[Any]) -> Any:
        """Count a node by which `combine` reduces 2 to 8 `items`; return its path."""
        size = next(size for size in GROUPS if size >= len(items))
        o = self.expression.tables.grouping(combine, item, size)
        made = self._node(o, combine, [*tensor_leaves(tuple(items))])
        return in_tuples(item, itertools.repeat(made))
