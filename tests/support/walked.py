# SPDX-License-Identifier: Apache-2.0
"""Graphs as walks record them: the reference of what source records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jfold.graph import Graph, Table, concatenate
from jfold.language.slow_recorder import Row, Rows
from jfold.language.walk import Walk
from jfold.tracing.convert import to_array
from jfold.tracing.record import trace
from jfold.types import KeyType

Array = np.ndarray[Any, Any]


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
