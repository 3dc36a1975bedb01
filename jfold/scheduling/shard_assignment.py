# SPDX-License-Identifier: Apache-2.0
"""The assignment of the examples of a batch to shards."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jfold.base.arguments import check_at_least, check_spare_rows, result_rows
from jfold.graph import Array
from jfold.scheduling.selections import Selection
from jfold.scheduling.shards import Shards


@dataclass(frozen=True, eq=False)
class ShardAssignment:
    """The assignment of a batch's examples to the shards that compute them.

    Attributes:
      shards: the devices that share the examples; `None` for one device, which has all.
      rows: the number of rows of the results of each shard.
      examples: per shard, the indices of its examples in the batch [rows or fewer]; of
        this process's shards alone, if other processes have examples of their own.
    """

    shards: Shards | None
    rows: int
    examples: tuple[Array, ...]

    def parts(self, selection: Selection) -> list[Selection]:
        """Split a batch's selection into one per shard listed in `self.examples`."""
        if self.shards is None:
            return [selection]
        return [selection.pick(examples) for examples in self.examples]

    @property
    def own(self) -> tuple[int, ...]:
        """The indices in `self.examples` of the shards that run in this process."""
        if self.shards is None or len(self.examples) < self.shards.count:
            return tuple(range(len(self.examples)))
        return self.shards.own

    @property
    def of_rows(self) -> tuple[Array, Array]:
        """The example index of each result row, and a mask of real (not spare) rows.

        Both are [shards * rows]. Spare rows of a shard repeat its last example; if it
        has none, the last of the shards before; if these have none, example 0. For
        examples `[0, 1]` and `[2]` in 2 rows each, the indices are `[0, 1, 2, 2]`.
        """
        order, last = [], 0
        for examples in self.examples:
            last = int(examples[-1]) if len(examples) else last
            spare = np.full(self.rows - len(examples), last)
            order.append(np.append(examples, spare))
        counts = np.array([*map(len, self.examples)])
        mask = np.arange(self.rows) < counts[:, None]
        return np.concatenate(order).astype(np.int64), mask.ravel()


def default_assignment(
    examples: int, size: int | None = None, shards: Shards | None = None
) -> ShardAssignment:
    """Assign examples to shards in order; without shards, all to one device.

    Args:
      examples: the number of examples.
      size: rows of the results, of all shards; by default as few as hold the examples.

    Raises:
      TypeError, ValueError: as of `rows_of_shard`.
    """
    if shards is None:
        rows = result_rows(size, examples)
        return ShardAssignment(None, rows, (np.arange(examples),))
    rows = rows_of_shard('size', shards, examples, size)
    return assign_in_order(shards, rows, examples)


def assign_in_order(
    shards: Shards, rows: int, examples: int, count: int | None = None
) -> ShardAssignment:
    """Assign examples to the first `count` shards, in order, `rows` to each.

    The last shards may get fewer or none. By default `count` is the number of shards.
    """
    count = shards.count if count is None else count
    ends = [min(shard * rows, examples) for shard in range(count + 1)]
    parts = itertools.pairwise(ends)
    return ShardAssignment(shards, rows, tuple(np.arange(a, b) for a, b in parts))


def assign_evenly(shards: Shards, rows: int, work: Sequence[int]) -> ShardAssignment:
    """Assign examples so that all shards have about the same work.

    Examples are taken in order of falling work; each goes to the shard with the least
    work so far that has room (Graham, Bounds on multiprocessing timing anomalies,
    1969). In a shard examples keep their order. All processes compute the same result.

    Args:
      rows: the most examples of a shard.
      work: the work of each example, as the number of its nodes.
    """
    parts: list[list[int]] = [[] for _ in range(shards.count)]
    loads = [(0, shard) for shard in range(shards.count)]  # a heap of shards with room
    for example in sorted(range(len(work)), key=lambda k: (-work[k], k)):
        load, shard = loads[0]
        parts[shard].append(example)
        if len(parts[shard]) < rows:
            heapq.heapreplace(loads, (load + work[example], shard))
        else:
            heapq.heappop(loads)
    return ShardAssignment(
        shards, rows, tuple(np.sort(np.array(x, np.int64)) for x in parts)
    )


def rows_of_shard(
    name: str,
    shards: Shards,
    examples: int,
    rows: int | None = None,
    count: int | None = None,
) -> int:
    """Return the rows per shard: `rows / count`, or the fewest that hold all examples.

    Args:
      name: the name of `rows` in the user's call, for errors.
      examples: the number of examples.
      rows: rows of all shards; by default as few as hold the examples.
      count: the number of shards that have these rows; all by default.

    Raises:
      TypeError: `rows` is no int.
      ValueError: `rows` is less than `examples`, far more, or no multiple of `count`.
    """
    count = shards.count if count is None else count
    if rows is None:
        return -(-examples // count)
    per_shard, remainder = divmod(check_at_least(name, rows, 0), count)
    if remainder:
        raise ValueError(
            f'expected `{name}` as a multiple of {count}, the number of shards, got '
            f'{rows}: pass {(per_shard + 1) * count}'
        )
    if rows < examples:
        raise ValueError(
            f'expected at most {rows} examples, as `{name}` says, got {examples}'
        )
    check_spare_rows(name, rows, examples)
    return per_shard
