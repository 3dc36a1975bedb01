# SPDX-License-Identifier: Apache-2.0
"""The growth of capacities, such that a stream of batches needs few of them.

Each new capacity is a program to compile, of seconds; room that a batch does not fill
costs memory alone.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from jfold.scheduling.sections import SUM_ARITY
from jfold.scheduling.spec import Capacity
from jfold.scheduling.staircase import Profile, larger, run_length_encode, steps

Headroom: TypeAlias = Mapping[str, tuple[Any, ...]]

COARSE = 8  # sizes an octave, so that models share few shapes
FINE = 64  # where each row of room is computed


class Stage(enum.IntEnum):
    """The number of times that a capacity was outgrown.

    The value `n` tells how much spare room is added: 1/n of what is needed.
    """

    FIRST = 4
    OUTGROWN = 2
    GROWING = 1


def grow(
    old: Capacity | None,
    need: Capacity,
    chance: Callable[[], Headroom] = dict,
    sizes: int = COARSE,
    stage: Stage = Stage.OUTGROWN,
) -> Capacity:
    """Return a capacity that holds `need`: `old` if it does, else one with spare room.

    Spare room costs memory and its clearing but no arithmetic. All dimensions step up
    together, by half of what is needed, and by as much again if the stream has outgrown
    its capacity more than once: so data that grow need a number of programs that is
    logarithmic in their size.

    Args:
      need: the maximum of the last batches, in each dimension.
      chance: returns, for dimensions that add up over examples, how much more another
        batch may need by chance: a first capacity has no more spare room than that, and
        a quarter at most; the next has no less, up to twice what is needed.
      sizes: how many sizes there are per octave, `COARSE` or `FINE`.
      stage: of a stream that has a capacity; without `old` it is the first.
    """
    if old is not None and old.holds(need):
        return old
    stage = Stage.FIRST if old is None else stage
    more = chance()

    def rows(name: str) -> tuple[int, ...]:
        wanted = getattr(need, name)
        had = getattr(old, name) if old is not None else (0,) * len(wanted)
        unknown = wanted if old is None else (0,) * len(wanted)
        numbers = zip(had, wanted, more.get(name, unknown), strict=True)
        return tuple(_room(*n, sizes, stage) for n in numbers)

    # Once one slot has to be indexed, others are likely to follow: all are indexed at
    # once, so that this costs one more program at most.
    more_indexed = old is not None and any(map(operator.gt, need.indexed, old.indexed))
    indexed = [1 if more_indexed else number for number in need.indexed]
    # A spare level costs no more than a row of a table.
    levels = max(need.levels + need.levels // stage, 32)
    fans = _fans(need, stage)
    return Capacity(
        need.examples,
        max(power_of_two(levels), old.levels if old else 0),
        rows('constants'),
        rows('rows'),
        tuple(map(max, fans, old.fans if old else fans)),
        rows('sums'),
        max(2 * need.stages, old.stages if old else 0),
        rows('metrics'),
        tuple(map(max, indexed, old.indexed if old else indexed)),
        rows('summands'),
        max(need.sum_rows, old.sum_rows if old else 0),
        _profiles(old, need, more, stage),
        need.shards,
    )


def no_headroom(need: Capacity) -> Headroom:
    """Return a headroom of zero, for `grow` where all that is needed is known."""
    names = 'constants', 'rows', 'sums', 'metrics', 'summands'
    rows: dict[str, tuple[Any, ...]] = {
        name: (0,) * len(getattr(need, name)) for name in names
    }
    profiles = [
        tuple((count, (0,) * len(rows)) for count, rows in profile)
        for profile in need.profiles
    ]
    return rows | {'profiles': tuple(profiles)}


def _profiles(
    old: Capacity | None, need: Capacity, more: Headroom, stage: Stage
) -> tuple[Profile, ...]:
    """Return the levels of a grown capacity: wider ones, and some behind the last."""
    wanted = need.profiles
    margins = more.get('profiles', (None,) * len(wanted))
    raised = [_widened(*pair, stage) for pair in zip(wanted, margins, strict=True)]
    had = old.profiles if old is not None else ((),) * len(wanted)
    return tuple(map(larger, raised, had))


def _widened(profile: Profile, margin: Profile | None, stage: Stage) -> Profile:
    """Return the levels of a component, each with a margin, and spare levels.

    A level that is wider than its step, or behind all others, takes a spare one; where
    examples differ much, that happens more often. In a stream that grows each level
    comes twice, which is room for twice as many, or for some of twice the width.
    """
    if not profile:
        return ()
    operations = len(profile[0][1])
    levels = steps(profile, operations)
    spare = -(-levels // 4)
    if margin is not None:  # it may have fewer levels than the profile
        by_chance = steps(margin, operations)[: len(levels)]
        part = spare[: len(by_chance)]
        part[:] = by_chance if stage == Stage.FIRST else np.maximum(part, by_chance)
    # The number of spare levels: more of them the more levels vary.
    spread = min(float(spare.sum() / levels.sum()), 0.5)
    count = 5 + len(levels) // 20 + round(16 * max(spread - 0.1, 0))
    last = np.minimum(levels[-1], -(-levels.sum(0) // len(levels)))
    wider = (levels + spare).repeat(2 if stage == Stage.GROWING else 1, 0)
    return run_length_encode(np.concatenate([wider, [last] * count]))


def _fans(need: Capacity, stage: Stage) -> tuple[int, ...]:
    """Return uses at once [types] as powers of two, for few shapes; 0 stays 0."""
    # A stream that grows will soon need the most, where it needs several.
    least = SUM_ARITY if stage == Stage.GROWING else 0
    return tuple(power_of_two(max(x, least)) if x > 1 else x for x in need.fans)


def _room(had: int, wanted: int, chance: int, sizes: int, stage: Stage) -> int:
    """Return room in one dimension, where `chance` more than `wanted` may be needed."""
    if not had and not wanted:  # operations that no batch has had so far cost nothing
        return 0
    spare = wanted // stage
    if stage == Stage.FIRST:
        spare = min(spare, chance)
    else:  # such a stream may grow by more than chance tells
        spare = max(spare, min(chance, 2 * wanted))
    return max(had, _step(max(wanted + spare, 128), sizes))


def _step(number: int, sizes: int) -> int:
    """Return a number rounded up to one of so many sizes per octave."""
    unit = max(power_of_two(number + 1) // (2 * sizes), 1)
    return -(-number // unit) * unit


def power_of_two(number: int) -> int:
    """Return a number rounded up to a power of two."""
    return 1 << max(number - 1, 0).bit_length()
