# SPDX-License-Identifier: Apache-2.0
"""The growth of capacities, such that a stream of batches needs few of them.

Each new capacity is a program, which takes seconds to compile; room that a batch does
not fill costs memory alone.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from jfold.scheduling.index_array import SUM_ARITY
from jfold.scheduling.spec import Capacity
from jfold.scheduling.staircase import Profile, run_length_encode, steps

ADDED = 'constants', 'rows', 'sums', 'metrics', 'summands'  # fields that add up
# For fields in `ADDED`, and for `profiles`, how much more may be needed by chance.
Headroom: TypeAlias = Mapping[str, tuple[Any, ...]]

# How often batches may bring unused operations before all operations get room.
KINDS = 2
COARSE = 8  # sizes per octave, so that models share few shapes
FINE = 64  # sizes per octave where every row of room is computed, used or not


class Stage(enum.IntEnum):
    """A count of how often batches outgrew a capacity: never, once, or more often.

    The value `n` tells how much spare room is added: 1/n of what is needed.
    """

    FIRST = 4
    OUTGROWN = 2
    GROWING = 1


def grow(
    old: Capacity | None,
    need: Capacity,
    more: Headroom = MappingProxyType({}),
    stage: Stage = Stage.OUTGROWN,
) -> Capacity:
    """Return a capacity that holds `need`, and `old` unless `None`, with spare room.

    Spare room costs memory and its clearing but no arithmetic. All dimensions step up
    together, by half of what is needed, or by all of it if the stream of batches has
    outgrown its capacity more than once: so data that grow need a number of programs
    that is logarithmic in their size.

    Args:
      old: the largest capacity in use, which does not hold `need`, if there is one.
      need: the maximum of the last batches, in each dimension.
      more: for dimensions that add up over examples, how much more another batch may
        need by chance: a first capacity has no more spare room than that, and a quarter
        at most; the next has no less, up to twice what is needed.
      stage: how often the stream has outgrown `old`; not used if `old` is `None`.
    """
    stage = Stage.FIRST if old is None else stage
    # Slots tell that operations run outside of loops, on every row of room.
    sizes = FINE if need.indexed else COARSE

    def rows(name: str) -> tuple[int, ...]:
        wanted = getattr(need, name)
        zeros = (0,) * len(wanted)
        had, unknown = (getattr(old, name), zeros) if old else (zeros, wanted)
        numbers = zip(had, wanted, more.get(name, unknown), strict=True)
        return tuple(_room(*n, sizes, stage) for n in numbers)

    def of_slots(name: str) -> tuple[int, ...]:
        # Once one slot (a place where operations read) needs more, others are likely to
        # follow: all get it at once, which costs one more program at most.
        wanted: tuple[int, ...] = getattr(need, name)
        is_more = old is not None and any(map(operator.gt, wanted, getattr(old, name)))
        return (1,) * len(wanted) if is_more else wanted

    # A spare level costs no more than a row of the table of tiles.
    levels = max(need.levels + need.levels // stage, 32)
    # Where values have several uses in a stream that grows, they soon have the most.
    fan = SUM_ARITY if stage == Stage.GROWING else 0
    margins = more.get('profiles', (None,) * len(need.profiles))
    profiles = zip(need.profiles, margins, strict=True)
    added: dict[str, Any] = {name: rows(name) for name in ADDED}
    new = replace(
        need,
        levels=power_of_two(levels),
        fans=tuple(power_of_two(max(x, fan)) if x > 1 else x for x in need.fans),
        stages=2 * need.stages,
        indexed=of_slots('indexed'),
        sum_rows=of_slots('sum_rows'),
        apart=of_slots('apart'),
        profiles=tuple(_widened(*pair, stage) for pair in profiles),
        **added,
    )
    return new if old is None else old | new


def with_all_operations(old: Capacity, need: Capacity) -> Capacity:
    """Return `need` with room for the operations of which neither capacity has rows.

    Each gets as many rows as the largest operation that is in `need` but not in `old`.
    """

    def filled(name: str) -> tuple[int, ...]:
        pairs = [*zip(getattr(old, name), getattr(need, name), strict=True)]
        most = max((wanted for had, wanted in pairs if not had), default=0)
        return tuple(wanted if had or wanted else most for had, wanted in pairs)

    def widened(profile: Profile) -> Profile:
        rows = steps(profile, len(profile[0][1]) if profile else 0)
        most = rows.max(1, initial=0, keepdims=True)
        return run_length_encode(np.where(rows.any(0), rows, most))

    names = 'constants', 'rows', 'metrics', 'summands'
    numbers: dict[str, Any] = {name: filled(name) for name in names}
    return replace(need, **numbers, profiles=tuple(map(widened, need.profiles)))


def no_headroom(need: Capacity) -> Headroom:
    """Return zeros to pass as `more` to `grow`: no batch will need more than `need`."""
    zeros = {name: (0,) * len(getattr(need, name)) for name in ADDED}
    parts = ([(n, (0,) * len(rows)) for n, rows in x] for x in need.profiles)
    return {**zeros, 'profiles': tuple(map(tuple, parts))}


def _widened(profile: Profile, margin: Profile | None, stage: Stage) -> Profile:
    """Return a profile with every level widened, and with spare levels at the end.

    A level of a batch that is wider than that of the capacity takes two of its levels,
    and a batch may have more levels: spare levels serve both. There are more of them
    where examples differ much. `Stage.GROWING` has each level twice, which is room for
    twice as many levels, or for some of twice the width.

    Args:
      profile: runs of equal levels: how many, and the rows of each operation on them.
      margin: a profile of the rows that a level may have more by chance. At
        `Stage.FIRST` just these are added, later a quarter at least. `None` if unknown;
        then, and for levels behind its end, a quarter is added.
    """
    if not profile:
        return ()
    operations = len(profile[0][1])
    levels = steps(profile, operations)
    spare = -(-levels // 4)
    if margin is not None:  # a margin may have fewer levels than the profile
        by_chance = steps(margin, operations)[: len(levels)]
        part = spare[: len(by_chance)]
        part[:] = by_chance if stage == Stage.FIRST else np.maximum(part, by_chance)
    # The number of spare levels: more of them the more levels vary.
    spread = min(float(spare.sum() / levels.sum()), 0.5)
    count = 5 + len(levels) // 20 + round(16 * max(spread - 0.1, 0))
    last = np.minimum(levels[-1], -(-levels.sum(0) // len(levels)))
    wider = (levels + spare).repeat(2 if stage == Stage.GROWING else 1, 0)
    return run_length_encode(np.concatenate([wider, [last] * count]))


def _room(had: int, wanted: int, chance: int, sizes: int, stage: Stage) -> int:
    """Return a number of a capacity: at least `had`, and `wanted` with spare room.

    Args:
      chance: how much more than `wanted` may be needed by chance.
      sizes, stage: as of `grow`.
    """
    # An operation that no batch has used so far costs nothing.
    if not had and not wanted:
        return 0
    spare = wanted // stage
    if stage == Stage.FIRST:
        spare = min(spare, chance)
    else:  # a stream that has outgrown a capacity may grow by more than chance
        spare = max(spare, min(chance, 2 * wanted))
    number = max(wanted + spare, 128)
    # Rounded up to one of `sizes` sizes per power of two, such as 72 for 70.
    unit = max(power_of_two(number + 1) // (2 * sizes), 1)
    return max(had, -(-number // unit) * unit)


def power_of_two(number: int) -> int:
    """Round a number up to a power of two: 5 -> 8."""
    return 1 << max(number - 1, 0).bit_length()
