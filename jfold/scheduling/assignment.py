# SPDX-License-Identifier: Apache-2.0
"""The assignment of the examples of a batch to shards."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jfold.base.errors import check_at_least, check_spare_rows, result_rows
from jfold.graph import Array
from jfold.scheduling.selections import Selection
from jfold.scheduling.shards import Shards


@dataclass(frozen=True, eq=False)
class ShardAssignment:
    """The examples of a batch that each shard has.

    Attributes:
      shards: the devices to share them; `None` for one device, which has them all.
      rows: of the results of a shard.
      examples: per shard, the numbers of its examples in the batch [rows or fewer]; of
        this process's shards alone, if other processes have examples of their own.
    """

    shards: Shards | None
    rows: int
    examples: tuple[Array, ...]

    def parts(self, selection: Selection) -> list[Selection]:
        """Return the part of a selection that each shard has."""
        if self.shards is None:
            return [selection]
        return [selection.pick(examples) for examples in self.examples]

    @property
    def own(self) -> tuple[int, ...]:
        """The shards of this process, as places in `examples`."""
        if self.shards is None or len(self.examples) < self.shards.count:
            return tuple(range(len(self.examples)))
        return self.shards.own

    @property
    def of_rows(self) -> tuple[Array, Array]:
        """The example of each row, and whether it is real, both [shards * rows].

        Spare rows of a shard repeat its last example, or that of the shard before.
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
    """Assign examples in order, to shards or all to one device.

    Args:
      size: rows of the results, those of all shards; when left out as few as hold them.

    Raises:
      TypeError, ValueError: `size` is no int, too few, far too many, or cannot be
        divided.
    """
    if shards is None:
        return ShardAssignment(
            None, result_rows(size, examples), (np.arange(examples),)
        )
    rows = rows_of_shard('size', shards, examples, size)
    return assign_in_order(shards, rows, examples)


def assign_in_order(
    shards: Shards, rows: int, examples: int, count: int | None = None
) -> ShardAssignment:
    """Assign examples in order, `rows` to each of the first `count` shards."""
    count = shards.count if count is None else count
    ends = [min(shard * rows, examples) for shard in range(count + 1)]
    parts = itertools.pairwise(ends)
    return ShardAssignment(shards, rows, tuple(np.arange(a, b) for a, b in parts))


def assign_evenly(
    shards: Shards, rows: int, work: Sequence[int], count: int | None = None
) -> ShardAssignment:
    """Assign examples so that all shards have about the same work.

    Largest first, each to the shard with the least so far that has room (Graham, Bounds
    on multiprocessing timing anomalies, 1969); in a shard examples keep their order.
    Every process computes the same.

    Args:
      rows: the most examples of a shard.
      work: of each example.
      count: of shards to assign to, if not to all.
    """
    count = shards.count if count is None else count
    parts: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, shard) for shard in range(count)]  # a heap
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
    """Return the rows of results of each shard, as few as examples need by default.

    Args:
      name: of the argument that `rows`, of all shards, was passed as.
      count: of shards, if not all of them are meant.

    Raises:
      TypeError, ValueError: `rows` are too few, far too many, or cannot be divided.
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
