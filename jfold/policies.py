# SPDX-License-Identifier: Apache-2.0
"""Scheduling policies: pure functions that give a `Graph` other levels.

All give the same values. A batch is what runs at once: the nodes of one operation at
one level; fewer batches mean fewer, wider tiles. Tracing levels as soon as possible,
which splits operations that feed nothing recurrent (outputs and losses at every node of
a tree) over all depths; `sinks_last` puts these behind everything else, in one batch
each.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jfold.graph import Graph
from jfold.program import Program

Array = np.ndarray[Any, Any]


def shortest(program: Program, graph: Graph) -> Graph:
    """The graph under the policy that needs the fewest batches."""
    return min(graph, sinks_last(program, graph), key=batches)


def batches(graph: Graph) -> int:
    """How many pairs of an operation and a level there are."""
    return sum(int((np.bincount(x) > 0).sum()) for x in graph.levels if len(x))


def sinks_last(program: Program, graph: Graph) -> Graph:
    """Moves operations whose results only results and other such operations read."""
    users = _users(program, graph)
    sinks = _sinks(users)
    rest = [x for o, x in enumerate(graph.levels) if o not in sinks]
    depth = max((int(x.max(initial=0)) for x in rest), default=0)
    rank: dict[int, int] = {}
    for o in sinks:  # each behind the sinks that it reads
        above = [rank[p] for p in sinks if o in users[p]]
        rank[o] = 1 + max(above, default=0)
    levels = [
        np.full_like(x, depth + rank[o]) if o in rank else x
        for o, x in enumerate(graph.levels)
    ]
    return dataclasses.replace(graph, levels=tuple(levels))


def _sinks(users: list[set[int]]) -> list[int]:
    """Operations that feed nothing recurrent, those that feed others first."""
    found: list[int] = []
    while True:
        more = [
            o for o, reads in enumerate(users) if o not in found and reads <= set(found)
        ]
        if not more:
            return found[::-1]
        found += more


def _users(program: Program, graph: Graph) -> list[set[int]]:
    """Of each operation, which operations read its results in this batch."""
    users: list[set[int]] = [set() for _ in program.operations]
    first = [len(x) for x in graph.constants]
    for producer, operation in enumerate(program.operations):
        for t in operation.outputs:
            begin, first[t] = first[t], first[t] + len(graph.levels[producer])
            for consumer, values in _reads(program, graph, t):
                if consumer not in users[producer] and _within(values, begin, first[t]):
                    users[producer].add(consumer)
    return users


def _reads(program: Program, graph: Graph, t: int) -> list[tuple[int, Array]]:
    """The operations that take values of a type, and which they take."""
    return [
        (o, values)
        for o, operation in enumerate(program.operations)
        for number, values in zip(operation.inputs, graph.inputs[o], strict=True)
        if number == t
    ]


def _within(values: Array, begin: int, end: int) -> bool:
    return bool(((values >= begin) & (values < end)).any())
