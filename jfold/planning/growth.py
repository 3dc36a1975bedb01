# SPDX-License-Identifier: Apache-2.0
"""How capacities grow, so that a stream of batches meets few of them.

Each new capacity is a program to compile, of seconds; room that a batch does not fill
costs memory alone.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from jfold.spec import Capacity
from jfold.staircase import Profile, larger, runs, steps

Chance: TypeAlias = Mapping[str, tuple[Any, ...]]

COARSE = 8  # sizes an octave, so that models share few shapes
FINE = 64  # where each row of room is computed


def grow(
    old: Capacity | None,
    need: Capacity,
    chance: Callable[[], Chance] = dict,
    sizes: int = COARSE,
) -> Capacity:
    """The capacity for `need`: `old` if it fits, else one with room to spare.

    Growing is rare and generous, since spare room costs memory and its clearing but no
    arithmetic: every dimension that is close to full grows by a quarter, and those that
    were too small by half at least, so that a stream meets few shapes.

    Args:
      chance: gives, for dimensions that add up over examples, how much more another
        batch may need by chance; a first capacity spares no more than that. A stream
        that outgrows it is more than chance.
      sizes: of which there are so many an octave: `COARSE` or `FINE`.
    """
    if old is not None and old.holds(need):
        return old
    # The examples of a first batch tell how others like it may differ; of a stream
    # that has outgrown its capacity they no longer do.
    more = chance() if old is None else {}

    def rows(name: str) -> tuple[int, ...]:
        wanted = getattr(need, name)
        had = getattr(old, name) if old is not None else (0,) * len(wanted)
        rooms = zip(had, wanted, more.get(name, wanted), strict=True)
        return tuple(_room(*each, sizes) for each in rooms)

    # One slot that has to be indexed may be followed by others: all are at once, so
    # that there is one program more at most.
    more_indexed = old is not None and any(map(operator.gt, need.indexed, old.indexed))
    indexed = [1 if more_indexed else number for number in need.indexed]
    # A level costs no more than a row of a table: their number may double.
    levels = max(need.levels + need.levels // 4, 32)
    return Capacity(
        need.examples,
        max(power_of_two(levels), old.levels if old else 0),
        rows('constants'),
        rows('rows'),
        tuple(map(max, _fans(need), old.fans if old else _fans(need))),
        rows('sums'),
        max(2 * need.stages, old.stages if old else 0),
        rows('metrics'),
        tuple(map(max, indexed, old.indexed if old else indexed)),
        rows('summands'),
        max(need.sum_rows, old.sum_rows if old else 0),
        _profiles(old, need, more),
        need.shards,
    )


def _profiles(
    old: Capacity | None, need: Capacity, more: Chance
) -> tuple[Profile, ...]:
    """The levels that another batch may have: wider ones, and some behind the last, and
    all that there was room for."""
    wanted = need.profiles
    margins = more.get('profiles', (None,) * len(wanted))
    raised = map(_raised, wanted, margins)
    had = old.profiles if old is not None else ((),) * len(wanted)
    return tuple(map(larger, raised, had))


def _raised(profile: Profile, margin: Profile | None) -> Profile:
    """The levels of a component, each with a margin, and spare ones.

    A level that is wider than its step, or behind all others, takes a spare one; where
    examples differ much, that happens more often.
    """
    if not profile:
        return ()
    operations = len(profile[0][1])
    levels = steps(profile, operations)
    spare = -(-levels // 4)
    if margin is not None:  # of some batches alone, which may have fewer levels
        of_batch = steps(margin, operations)[: len(levels)]
        spare[: len(of_batch)] = of_batch
    unlike = min(float(spare.sum() / levels.sum()), 0.5)
    count = 5 + len(levels) // 20 + round(16 * max(unlike - 0.1, 0))
    last = np.minimum(levels[-1], -(-levels.sum(0) // len(levels)))
    return runs(np.concatenate([levels + spare, [last] * count]))


def _fans(need: Capacity) -> tuple[int, ...]:
    """A power of two of uses at once [types]: three shapes in all; 0 stays 0."""
    return tuple(power_of_two(fan) if fan else 0 for fan in need.fans)


def _room(had: int, wanted: int, chance: int, sizes: int) -> int:
    """Room in one dimension, where `chance` more than `wanted` may be needed."""
    if not had and not wanted:  # what no batch has had so far costs nothing
        return 0
    # A stream that grows would otherwise outgrow each new capacity with the next batch.
    if had and wanted > had:
        wanted = chance = max(wanted, int(had * 1.5))
    return max(had, _step(max(wanted + min(wanted // 4, chance), 128), sizes))


def _step(number: int, sizes: int) -> int:
    """Rounded up to one of so many sizes an octave."""
    unit = max(power_of_two(number + 1) // (2 * sizes), 1)
    return -(-number // unit) * unit


def power_of_two(number: int) -> int:
    """Rounded up to a power of two."""
    return 1 << max(number - 1, 0).bit_length()
