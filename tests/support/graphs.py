# SPDX-License-Identifier: Apache-2.0
"""Comparing graphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from jfold.graph import Graph, ranges
from jfold.program.components import component_of, components
from jfold.program.operations import Program
from jfold.scheduling.selections import select

Array = np.ndarray[Any, Any]


def named(graph: Graph) -> Iterator[tuple[str, Array]]:
    """All arrays of a graph."""
    for kind in ('constants', 'operations', 'results'):
        for n, table in enumerate(getattr(graph, kind)):
            yield f'{kind} {n}: first', table.first
            for k, column in enumerate(table.columns):
                yield f'{kind} {n}: column {k}', column


def same_bits(name: str, left: Any, right: Any) -> None:
    """Two arrays have one type, one shape and the same bits."""
    left, right = np.asarray(left), np.asarray(right)
    assert (left.dtype, left.shape) == (right.dtype, right.shape), name
    assert left.tobytes() == right.tobytes(), f'{name}: {left} is not {right}'


def same(left: Graph, right: Graph) -> None:
    """Two graphs are equal to the bit, with their labels."""
    assert left.examples == right.examples
    for one, two in zip(left.labels, right.labels, strict=True):
        same_bits('labels: first', one.first, two.first)
        assert [x.tolist() for x in one.columns] == [x.tolist() for x in two.columns]
    pairs = zip(named(left), named(right), strict=True)
    for (name, a), (other, b) in pairs:
        assert name == other
        same_bits(name, a, b)


def makers(program: Program, graph: Graph) -> Array:
    """The operation that makes each value, -1 for constants."""
    numbers, types = select(program, graph).numbers, len(program.types)
    result = np.full(numbers.ends[-1], -1)
    for o, table in enumerate(graph.operations):
        for k in range(len(program.operations[o].outputs)):
            result[ranges(numbers.begin(types + o, k), table.counts)] = o
    return result


def reads(program: Program, graph: Graph) -> set[tuple[int, int]]:
    """Pairs of an operation and one whose results it reads in the data."""
    result, producers = set(), makers(program, graph)
    selection = select(program, graph)
    for o, operation in enumerate(program.operations):
        for a in range(len(operation.inputs)):
            numbers = producers[selection.read_at((o, a))]
            result |= {(o, q) for q in np.unique(numbers).tolist() if q >= 0}
    return result


def check_components(program: Program, graph: Graph) -> None:
    """Every operation once; each reads its own component and earlier ones alone."""
    parts, number = components(program), component_of(program)
    listed = [o for part in parts for o in part.operations]
    assert sorted(listed) == list(range(len(program.operations)))
    for part in parts:
        assert list(part.operations) == sorted(part.operations)
        assert part.recurrent or len(part.operations) == 1
    for o, q in reads(program, graph):
        assert number[q] <= number[o]
        assert number[q] < number[o] or parts[number[o]].recurrent


def canonical(program: Any, graph: Graph) -> Graph:
    """The graph with the first of equal constants of the program in place of others."""
    first: dict[Any, int] = {}
    same: list[dict[int, int]] = [{} for _ in program.types]
    for t, value in program.constants:
        number = len(same[t])
        same[t][number] = first.setdefault((t, value.tobytes()), number)

    def renamed(table: Any, types: Any, skip: int) -> Any:
        columns = [
            np.array([same[t].get(x, x) for x in column.tolist()], np.int32)
            for t, column in zip(types, table.columns[skip:], strict=True)
        ]
        return replace(table, columns=(*table.columns[:skip], *columns))

    operations = zip(graph.operations, program.operations, strict=True)
    results = zip(graph.results, program.results, strict=True)
    return replace(
        graph,
        operations=tuple(renamed(x, o.inputs, 1) for x, o in operations),
        results=tuple(renamed(x, r.tensors, 0) for x, r in results),
    )
