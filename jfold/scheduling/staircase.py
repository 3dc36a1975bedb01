# SPDX-License-Identifier: Apache-2.0
"""Staircases: the steps of a recurrence, fixed beforehand, with a few tile widths.

In a step each operation runs one tile, a block of rows. Trees are wide at their leaves
and narrow at their roots, so one width cannot fit all levels. The *profile* of a batch
is how many rows of each operation every level has; that of a capacity is a staircase,
which has segments of steps, with one width per operation in each segment:

    rows of levels   340 170 110  80  60  40 30 20 10  6  3  2  1  1
    staircase        |384|192|128 128| 64 64 64 64 64 64 64 64 64 64 |

A batch takes the steps one after another. A level takes as many as its widest operation
needs, and the next level begins with the next step. So whatever the levels of a batch
are, the batch fits if its last level ends within the steps: a level that is wider than
its step takes a second step, of which the staircase has some to spare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from jfold.graph import Array

Segment: TypeAlias = tuple[int, tuple[int, ...]]  # steps; rows of each operation
Profile: TypeAlias = tuple[Segment, ...]  # of the operations of one component

NARROW = 64  # rows, the least width; products of fewer rows share transposed matrices
SEGMENTS = 4  # the most segments of a staircase
BLOCKS = 48  # the most blocks of levels, between which segments are cut
HALVINGS = 5  # widths that are tried for a segment: its widest level, halved repeatedly


def run_length_encode(levels: Array) -> Profile:
    """Encode rows per level [levels, operations] as a profile: pairs (count, rows).

    `[[5], [5], [2]] -> ((2, (5,)), (1, (2,)))`
    """
    if not len(levels):
        return ()
    changes = (levels[1:] != levels[:-1]).any(1).nonzero()[0] + 1
    first = np.append(0, changes)
    counts = np.diff(first, append=len(levels)).tolist()
    rows = map(tuple, levels[first].tolist())
    return tuple(zip(counts, rows, strict=True))


def by_level(counts: Sequence[Array]) -> Array:
    """Stack `counts`, each [levels or fewer], to an array [levels, operations]."""
    levels = np.zeros((max(map(len, counts), default=0), len(counts)), np.int64)
    for column, rows in zip(levels.T, counts, strict=True):
        column[: len(rows)] = rows
    return levels


def steps(profile: Profile, operations: int) -> Array:
    """Expand a profile, pairs (count, rows), to one row per step [steps, operations].

    An empty profile does not tell the number of operations.
    """
    counts = [count for count, _ in profile]
    rows = np.array([x for _, x in profile], np.int64)
    return rows.reshape(len(profile), operations).repeat(counts, 0)


def larger(one: Profile, two: Profile) -> Profile:
    """Return the profile that has, at each step, the larger rows of two profiles."""
    count = max((len(rows) for _, rows in one + two), default=0)
    short, long = sorted((steps(x, count) for x in (one, two)), key=len)
    np.maximum(long[: len(short)], short, out=long[: len(short)])
    return run_length_encode(long)


def last_steps(levels: Array, profile: Profile) -> Array | None:
    """Return each level's last step in a profile; `None` if the steps are too few.

    The result is [levels], with steps counted from 0. `levels` [levels, operations] has
    the rows of each level.
    """
    left, before, result = levels, 0, [np.zeros(0, np.int64)]
    for trips, rows in profile:
        if not len(left):
            break
        # The steps that each level would take in this segment. Levels that end within
        # it are done. No number of tiles of width 0 holds rows.
        widths = np.array(rows)
        tiles = -(-left // np.maximum(widths, 1))
        tiles[(widths == 0) & (left > 0)] = np.iinfo(np.int32).max
        taken = np.maximum(tiles.max(1, initial=0), 1)
        ends = taken.cumsum()
        done = int(np.searchsorted(ends, trips, side='right'))
        result.append(before + ends[:done] - 1)
        # The remaining steps of the segment run a part of the next level, so that later
        # segments have fewer of its rows to run.
        remaining = trips - int(ends[done - 1] if done else 0)
        left = left[done:]
        if remaining and len(left):
            left = left.copy()
            left[0] = np.maximum(left[0] - remaining * widths, 0)
        before += trips
    return None if len(left) else np.concatenate(result)


def fits(levels: Profile, profile: Profile) -> bool:
    """Return whether the levels of one profile fit into the steps of another."""
    if not levels:
        return True
    return last_steps(steps(levels, len(levels[0][1])), profile) is not None


# ---- cutting -------------------------------------------------------------------------


def is_cut(profile: Profile) -> bool:
    """Return whether a profile has few enough segments, all of allowed tile widths."""
    rows = np.array([rows for _, rows in profile], np.int64)
    return len(profile) <= SEGMENTS and bool((_rounded(rows) == rows).all())


def cut(levels: Array, step: float, row: Array, most: Sequence[int]) -> Profile:
    """Return the cheapest staircase that holds `levels`, by costs per step and row.

    It has at most `SEGMENTS` segments, which are runs of steps with equal tile widths.

    Args:
      levels: [levels, operations] the rows of each level.
      step: the cost of a step, whatever its rows.
      row: [operations] the cost of a row of each operation.
      most: [operations] the rows of a tile that memory allows; less counts as `NARROW`.
    """
    if not len(levels):
        return ()
    # Neighbouring levels are joined into blocks, with the maximum of their rows.
    first = np.arange(0, len(levels), -(-len(levels) // BLOCKS))
    counts = np.diff(first, append=len(levels))
    blocks = np.maximum.reduceat(levels, first, axis=0)
    limit = 1 << np.log2(np.maximum(most, NARROW)).astype(np.int64)
    price, trips, widths = _prices(counts, blocks, step, row, limit)
    number = len(blocks)
    # By dynamic programming: `best[s][j]` is the price of the blocks before j in s
    # segments, of which the last one begins at `cuts[s][j]`.
    best = [np.append(0.0, np.full(number, np.inf))]
    cuts = []
    for _ in range(SEGMENTS):
        total = best[-1][:-1, None] + price
        begin = total.argmin(0)
        cuts.append(begin)
        best.append(np.append(np.inf, total[begin, np.arange(number)]))
    # Each segment is a loop to compile: one more should save about a step.
    chosen = int(np.argmin([x[-1] + s * step for s, x in enumerate(best[1:])])) + 1
    segments, end = [], number
    for begins in reversed(cuts[:chosen]):
        begin = int(begins[end - 1])
        rows = tuple(widths[begin, end - 1].tolist())
        segments.append((int(trips[begin, end - 1]), rows))
        end = begin
    return tuple(reversed(segments))


def _prices(
    counts: Array, blocks: Array, step: float, row: Array, limit: Array
) -> tuple[Array, Array, Array]:
    """Return price, count and widths of the cheapest equal steps per range of blocks.

    The steps hold all levels of the blocks in the range. All results are
    [blocks, blocks], by the first and the last block; widths, those of tiles, have a
    further axis, [operations]. If the last is before the first, the price is infinite.

    Args:
      counts: [blocks] the number of levels in each block.
      blocks: [blocks, operations] the most rows of a level in each block.
      step, row: as of `cut`.
      limit: [operations] the widest tile of each operation.
    """
    number, operations = blocks.shape
    price = np.full((number, number), np.inf)
    trips = np.zeros((number, number), np.int64)
    widths = np.zeros((number, number, operations), np.int64)
    for i in range(number):
        # Widths to try: the widest level of the segment, halved up to four times.
        most = np.maximum.accumulate(blocks[i:], 0)  # [ends, operations]
        tried = -(-most // (1 << np.arange(HALVINGS))[:, None, None])
        tried = np.minimum(_rounded(tried), limit)
        # [halvings, ends, blocks, operations]
        tiles = -(-blocks[i:] // tried[:, :, None])
        taken = np.maximum(tiles.max(-1), 1) * counts[i:]
        taken = np.tril(taken).sum(-1)  # [halvings, ends]
        costs = taken * (step + tried @ row)
        chosen, ends = costs.argmin(0), np.arange(number - i)
        price[i, i:] = costs[chosen, ends]
        trips[i, i:] = taken[chosen, ends]
        widths[i, i:] = tried[chosen, ends]
    return price, trips, widths


def _rounded(rows: Array) -> Array:
    """Round numbers of rows up to allowed tile widths: multiples of `NARROW`.

    There are at most four widths per octave: `[70, 300, 1100] -> [128, 320, 1280]`.
    """
    rows = np.maximum(rows, 1)
    unit = np.maximum(1 << np.maximum(np.int64(np.log2(rows)) - 2, 0), NARROW)
    widths: Array = -(-rows // unit) * unit
    return widths
