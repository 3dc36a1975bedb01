# SPDX-License-Identifier: Apache-2.0
"""Scheduling policies: pure functions that give the nodes of a graph other levels.

All give the same values. A batch is what runs at once: the nodes of one operation at
one level; fewer batches mean fewer, wider tiles. Tracing levels as soon as possible,
which splits operations that feed nothing recurrent (outputs and losses at every node of
a tree) over all depths; `sinks_last` puts these behind everything else, in one batch
each.
"""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

import numpy as np

from jfold.graph import highest

Array = np.ndarray[Any, Any]
Levels: TypeAlias = tuple[Array, ...]  # per operation, the level of each node


def shortest(levels: Levels, users: Array) -> Levels:
    """The levels under the policy that needs the fewest batches.

    Args:
      levels: as traced.
      users: [operations, operations] bool, whether the second reads what the first
        makes.
    """
    sinks = _sinks(users)
    if not sinks:
        return levels
    return min(levels, sinks_last(levels, users), key=batches)


def batches(levels: Levels) -> int:
    """How many pairs of an operation and a level there are."""
    return sum(int(np.count_nonzero(np.bincount(x))) for x in levels)


def sinks_last(levels: Levels, users: Array) -> Levels:
    """Moves operations whose results only results and other such operations read."""
    sinks = _sinks(users)
    depth = highest(x for o, x in enumerate(levels) if o not in sinks)
    rank: dict[int, int] = {}
    for o in sinks:  # each behind the sinks that it reads
        above = [rank[p] for p in rank if users[p, o]]
        rank[o] = 1 + max(above, default=0)
    return tuple(
        np.full_like(x, depth + rank[o]) if o in rank else x
        for o, x in enumerate(levels)
    )


def _sinks(users: Array) -> tuple[int, ...]:
    """Operations that feed nothing recurrent, those that feed others first."""
    return _sinks_of(users.tobytes(), len(users))


@functools.lru_cache(maxsize=1024)
def _sinks_of(users: bytes, operations: int) -> tuple[int, ...]:
    left = np.frombuffer(users, bool).reshape(operations, operations)
    found: list[int] = []
    while True:
        rest = np.ones(operations, bool)
        rest[found] = False
        more = np.flatnonzero(rest & ~left[:, rest].any(axis=1)).tolist()
        if not more:
            return tuple(found[::-1])
        found += more
