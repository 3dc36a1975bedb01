# SPDX-License-Identifier: Apache-2.0
"""Tiles: how many rows of an operation are computed at once, and in which rounds.

Rows of an operation are sorted by level. A tile is a number of them that is fixed when
the program is compiled; how many tiles a level takes is data. With loops there are two
strategies:

    counted   a level of 172 rows, at widths 128, 32 and 4, is run in three loops; in
              reverse from its end, in two:
              |------------- 128 -------------|--32--|4|4|4|
    fixed     steps and their widths as a staircase tells; levels of 100, 40, 20 and 7
              rows, in two steps of 64 and three of 32:
              |64|36+|  |32|8+|20+|        and 7 rows would be one step too many

A tile may run past the end of its level, into rows that the next level writes again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, TypeAlias

import jax
import numpy as np

from jfold.base.memo import memoized
from jfold.graph import Array
from jfold.program.components import Component, component_of, components
from jfold.program.costs import looks_up, parameter_bytes, row_bytes
from jfold.program.operations import Operation, Operations
from jfold.scheduling.growth import power_of_two
from jfold.scheduling.sections import SUM_ARITY
from jfold.scheduling.spec import COUNTED, FIXED, ONCE, Capacity, Spec
from jfold.scheduling.staircase import NARROW, Profile, cut, is_cut, last_steps, steps
from jfold.scheduling.widths import Widths, tiles

Trips: TypeAlias = tuple[int, ...]  # of loops one behind another
Groups: TypeAlias = tuple[tuple[int, ...], ...]  # of inputs

CACHE = 1 << 20  # bytes that most cores have near
SUM_WIDTH = 64  # sums that are taken at once
MEMORY = 1 << 27  # bytes that an accelerator spares for what a tile reads and makes
START = 1 << 28  # bytes that it moves while the kernels of a step start, both ways


def best_strategy() -> str:
    """The strategy that suits the backend.

    A device apart from the host would be asked after every round whether there is
    another, which takes longer than the round.
    """
    return COUNTED if jax.default_backend() == 'cpu' else FIXED


def cores(devices: int) -> int:
    """The cores that this process may use for each of its devices, whichever thread
    asks."""
    if hasattr(os, 'sched_getaffinity'):
        found = len(os.sched_getaffinity(os.getpid()))
    else:
        found = os.cpu_count() or 1
    return max(found // devices, 1)


# ---- of all operations ---------------------------------------------------------------


@memoized
def chunk_rows(spec: Spec) -> tuple[int, ...]:
    """By operation, how many rows' parameter gradients are taken at once."""
    pairs = zip(spec.program.operations, spec.capacity.rows, strict=True)
    chunk = strategy_of(spec).chunk
    return tuple(chunk(spec.program, operation, rows) for operation, rows in pairs)


@memoized
def tile_widths(spec: Spec) -> tuple[Widths, ...]:
    """The widths of each operation."""
    strategy, parts = strategy_of(spec), components(spec.program)
    numbers = enumerate(component_of(spec.program))
    return tuple(strategy.widths(spec, o, parts[c]) for o, c in numbers)


# ---- strategies ----------------------------------------------------------------------


# Each has eight methods, and those with loops two more:
#
#   fitted      a capacity as its specs have it
#   widths      of an operation
#   chunk       rows of an operation whose parameter gradients are taken at once
#   region      rows of a buffer that tiles of an operation reach
#   sum_width   how many sums, of so many and of so many bytes each, are taken at once
#   together    the numbers of inputs of given types, in groups of one type each, that
#               are read, and whose cotangents are written, at once
#   trips       of each loop over the steps of a component, one behind another: as many
#               as there are rows in the table of its tiles
#   tiles       of a table of first rows and ends [steps, 2] how many tiles of each
#               width its steps have [steps, widths]; the widths, the trips, and the
#               part of a wide tile that may be empty
#
#   last_steps  the step at which each level of a component ends [levels], from 0; of
#               each of its operations nodes per level [levels or fewer] and the widths;
#               and the trips
#   write       of an operation nodes per level [levels or fewer], with `last_steps`,
#               the widths and the trips, into its part of the table [steps, 2] int32:
#               first row and end; zero behind the last step
#
# and says whether steps are `fixed` by the capacity.


class Counted:
    """As many rounds as the batch says, level by level, with tiles of several widths:
    wide ones for most rows, narrow ones for what is left and for small levels."""

    fixed: ClassVar[bool] = False

    def fitted(self, program: Operations, capacity: Capacity) -> Capacity:
        """Whatever the levels are."""
        return replace(capacity, profiles=())

    def widths(self, spec: Spec, o: int, component: Component) -> Widths:
        """Larger weights want wider tiles, since a tile reads them once; much beyond
        256 rows a tile no longer stays in cache. So do small ones: a narrow tile of
        theirs takes little more than its start. Narrow tiles serve levels near the
        roots. A width takes as long to compile whatever it is for, so what gains little
        from a third has two, and what multiplies little and takes no turns has one."""
        operation = spec.program.operations[o]
        size = parameter_bytes(operation)
        if not component.recurrent:
            if size < 1 << 16 or looks_up(spec.program, operation):
                return (64,)
            return (256, 16) if size >= 1 << 19 else (128, 8)
        if not size:
            return 256, 16
        if size < 1 << 16:
            return 128, 32, 4
        if size >= 1 << 20:
            return 256, 64, 16
        return (128, 32, 8) if size >= 1 << 19 else (64, 16, 4)

    def chunk(self, program: Operations, operation: Operation, rows: int) -> int:
        """Rows that outweigh the parameters, and that stay in cache beyond that.

        Each chunk costs a pass over the parameters: so one chunk for a large embedding
        table, several for a matrix.
        """
        if operation.layer.external:  # nobody knows how large it is
            return max(rows, 1)
        size = row_bytes(program, operation)
        balanced = parameter_bytes(operation) // size
        near = power_of_two(min(512, CACHE // size) + 1) // 2
        return max(min(max(near, balanced), rows), 1)

    def region(self, rows: int, widths: Widths, component: Component) -> int:
        """A tile may begin in the last row that stands for a node."""
        return rows + widths[0]

    def sum_width(self, rows: int, size: int) -> int:
        """A few: a round takes as many tiles as it needs."""
        return SUM_WIDTH

    def together(self, types: Sequence[int]) -> Groups:
        """Each on its own: what is apart needs no copy to be put together."""
        return tuple((a,) for a in range(len(types)))

    def trips(self, spec: Spec, component: Component) -> Trips:
        """A step for each level."""
        return (spec.capacity.levels if component.recurrent else 1,)

    def last_steps(
        self, counts: Sequence[Array], widths: Sequence[Widths], trips: Trips
    ) -> Array:
        """Every level is one step [levels]."""
        return np.arange(max(map(len, counts), default=0))

    def write(
        self,
        table: Array,
        counts: Array,
        last: Array,
        widths: Widths,
        trips: Trips,
    ) -> None:
        """Into a table [levels or more, 2], for counts [levels or fewer]."""
        part, ends = table[: len(last)], counts.cumsum()
        part[: len(ends), 0] = ends - counts
        part[: len(ends), 1] = ends
        part[len(ends) :] = ends[-1] if len(ends) else 0

    def tiles(self, table: Array, widths: Widths, trips: Trips, empty: int) -> Array:
        """As many as the rows of a level take."""
        return tiles(table[:, 1] - table[:, 0], widths, empty)


class Fixed:
    """As many steps as the capacity says, each with one tile of every operation, in a
    few loops of different widths."""

    fixed: ClassVar[bool] = True

    def fitted(self, program: Operations, capacity: Capacity) -> Capacity:
        """The profiles as staircases: of all that hold them the cheapest."""
        pairs = zip(capacity.profiles, components(program), strict=False)
        stairs = (_cut(program, component, profile) for profile, component in pairs)
        return replace(capacity, profiles=tuple(stairs))

    def widths(self, spec: Spec, o: int, component: Component) -> Widths:
        """One for each loop over steps."""
        place = component.operations.index(o)
        return tuple(rows[place] for _, rows in _stairs(spec, component))

    def chunk(self, program: Operations, operation: Operation, rows: int) -> int:
        """As many as memory allows. All that look up rows of a table: their reverse is
        a scatter, which costs an accelerator no memory, but in a loop starts, and on a
        TPU is run row by row."""
        if looks_up(program, operation):
            return max(rows, 1)
        return even_parts(rows, row_bytes(program, operation), MEMORY // 2)[1]

    def region(self, rows: int, widths: Widths, component: Component) -> int:
        """A tile may begin in the last row that stands for a node; not those of a level
        alone, which begin at multiples of their width."""
        if component.recurrent:
            return rows + max(widths)
        return -(-rows // widths[0]) * widths[0]

    def sum_width(self, rows: int, size: int) -> int:
        """All, if memory allows: the rounds of every step take as many tiles. What is
        of another round is the same as it was, or made again before it is read."""
        return even_parts(rows, size * (SUM_ARITY + 1), MEMORY)[1]

    def together(self, types: Sequence[int]) -> Groups:
        """All of a type: each read and each write starts kernels."""
        kinds = dict.fromkeys(types)
        return tuple(tuple(a for a, t in enumerate(types) if t == k) for k in kinds)

    def trips(self, spec: Spec, component: Component) -> Trips:
        """As the staircase says."""
        return tuple(count for count, _ in _stairs(spec, component))

    def last_steps(
        self, counts: Sequence[Array], widths: Sequence[Widths], trips: Trips
    ) -> Array:
        """A level ends [levels] when the operation with the most tiles is through."""
        levels = np.zeros((max(map(len, counts), default=0), len(counts)), np.int64)
        for column, each in zip(levels.T, counts, strict=True):
            column[: len(each)] = each
        profile = tuple(zip(trips, zip(*widths, strict=True), strict=False))
        last = last_steps(levels, profile)
        assert last is not None, 'the capacity does not hold the batch'
        return last

    def write(
        self,
        table: Array,
        counts: Array,
        last: Array,
        widths: Widths,
        trips: Trips,
    ) -> None:
        """Into a table [steps, 2], a tile of each step.

        A step without a tile of the operation, before, between or behind its levels,
        repeats the tile before it, which changes nothing.
        """
        table[...] = 0
        if not len(last):
            return
        level = np.repeat(np.arange(len(last)), np.diff(last, prepend=-1))
        left = np.zeros(len(last), np.int64)
        left[: len(counts)] = counts
        end = left.cumsum()
        # The rows that all steps before have room for, of them those of the own level.
        room = np.append(0, np.repeat(widths, trips).cumsum())[: len(level)]
        within = room - room[np.append(0, last[:-1] + 1)][level]
        first = (end - left)[level] + within
        first[first >= end[level]] = 0
        np.maximum.accumulate(first, out=first)
        table[: len(level), 0], table[: len(level), 1] = first, end[level]
        table[len(level) :] = first[-1], end[-1]

    def tiles(self, table: Array, widths: Widths, trips: Trips, empty: int) -> Array:
        """One, of the width of the loop."""
        return np.eye(len(trips), dtype=int).repeat(trips, 0)[: len(table)]


class Once:
    """No loops: every operation runs once, on all rows that there is room for."""

    fixed: ClassVar[bool] = False

    def fitted(self, program: Operations, capacity: Capacity) -> Capacity:
        """Whatever the levels are, and however often values are used."""
        none = tuple(0 for _ in program.types)
        made = replace(capacity, fans=none, sums=none, profiles=())
        return replace(made, levels=0, stages=0)

    def widths(self, spec: Spec, o: int, component: Component) -> Widths:
        """All rows."""
        return (spec.capacity.rows[o],)

    def chunk(self, program: Operations, operation: Operation, rows: int) -> int:
        """All rows."""
        return max(rows, 1)

    def region(self, rows: int, widths: Widths, component: Component) -> int:
        """Nothing runs past their end."""
        return rows

    def sum_width(self, rows: int, size: int) -> int:
        """Whatever: nothing is summed in rounds."""
        return SUM_WIDTH

    def together(self, types: Sequence[int]) -> Groups:
        """Each on its own."""
        return tuple((a,) for a in range(len(types)))

    def trips(self, spec: Spec, component: Component) -> Trips:
        """One."""
        return (1,)

    def tiles(self, table: Array, widths: Widths, trips: Trips, empty: int) -> Array:
        """One."""
        return np.ones((len(table), 1), int)


def even_parts(rows: int, size: int, memory: int) -> tuple[int, int]:
    """In how many parts rows of so many bytes are taken, and how many rows each has."""
    count = max(-(-rows * size // memory), 1)
    return count, max(-(-rows // count), 1)


def _cut(program: Operations, component: Component, profile: Profile) -> Profile:
    """The staircase that holds a profile.

    A step costs the time in which its kernels start, and a pass over parameters; a row
    what it moves and multiplies: in bytes, of which an accelerator moves one in the
    time of a hundred operations. Where rows cost little beside steps there is a limit
    to how many are spare: a step costs no more than the rows of a mean level.
    """
    if not profile or is_cut(profile):
        return profile
    own = [program.operations[o] for o in component.operations]
    levels = steps(profile, len(own))
    sizes = [row_bytes(program, each) for each in own]
    weights = [parameter_bytes(each) for each in own]
    row = np.array([x + y / 200 for x, y in zip(sizes, weights, strict=True)])
    mean = float((levels @ row).mean())
    step = min(float(START * len(own) + sum(weights)), mean)
    return cut(levels, step, row, [MEMORY // size for size in sizes])


def _stairs(spec: Spec, component: Component) -> Profile:
    """The steps of a component, with the widths of its operations."""
    own, capacity = component.operations, spec.capacity
    if not component.recurrent:
        (o,) = own
        size = row_bytes(spec.program, spec.program.operations[o])
        count, rows = even_parts(capacity.rows[o], size, 2 * MEMORY)
        return ((count, (rows,)),)
    if not capacity.profiles:
        return _worst_case(spec, own)
    c = component_of(spec.program)[own[0]]
    return capacity.profiles[c] or ((0, (NARROW,) * len(own)),)


def _worst_case(spec: Spec, operations: Sequence[int]) -> Profile:
    """The most steps that so many levels and rows take, of one width, for capacities
    without profiles: each level wastes less than a tile of each operation, and all
    others are full."""
    levels = max(spec.capacity.levels, 1)
    rows = [spec.capacity.rows[o] for o in operations]
    widths = [min(max(power_of_two(2 * n // levels), NARROW), 1024) for n in rows]
    full = sum(n // width for n, width in zip(rows, widths, strict=True))
    return ((full + levels, tuple(widths)),)


# ---- sums in a fixed order -----------------------------------------------------------

# XLA multiplies, and fuses what is around, as suits the number of rows: the same row
# among others of another number may differ in its last digits, but not in another place
# among as many. So each operation has tiles of one width, and chunks of one length, and
# neither depends on the capacity.

SAME = 64  # rows of a tile, in loops that run as often as a batch says
SAME_STEP = 256  # and of a step, where each starts kernels
SAME_CHUNK = 512  # rows whose parameter gradients are taken at once
SAME_STEP_CHUNK = 4096


def same_chunk(program: Operations, operation: Operation, rows: int, chunk: int) -> int:
    """Rows whose parameter gradients are taken at once: all that look up rows of a
    table, of which the sum has one order in any number of rows."""
    is_table = looks_up(program, operation) or operation.layer.external
    return max(rows, 1) if is_table else chunk


class CountedAlike(Counted):
    """As `Counted`, with tiles of one width."""

    def widths(self, spec: Spec, o: int, component: Component) -> Widths:
        """One for all rows."""
        return (SAME,)

    def chunk(self, program: Operations, operation: Operation, rows: int) -> int:
        """As many, whatever the room."""
        return same_chunk(program, operation, rows, SAME_CHUNK)


class FixedAlike(Fixed):
    """As `Fixed`, with steps of one width."""

    def fitted(self, program: Operations, capacity: Capacity) -> Capacity:
        """The profiles as that many steps as their levels take."""
        pairs = zip(capacity.profiles, components(program), strict=False)
        stairs = (_alike(profile, len(each.operations)) for profile, each in pairs)
        return replace(capacity, profiles=tuple(stairs))

    def widths(self, spec: Spec, o: int, component: Component) -> Widths:
        """One for all rows."""
        return (SAME_STEP,)

    def chunk(self, program: Operations, operation: Operation, rows: int) -> int:
        """As many, whatever the room."""
        return same_chunk(program, operation, rows, SAME_STEP_CHUNK)

    def trips(self, spec: Spec, component: Component) -> Trips:
        """Two at least: of one XLA makes no loop, and fuses it with what is around."""
        own, capacity = component.operations, spec.capacity
        if not component.recurrent:
            return (max(-(-capacity.rows[own[0]] // SAME_STEP), 2),)
        if not capacity.profiles:
            full = sum(capacity.rows[o] // SAME_STEP for o in own)
            return (max(full + capacity.levels, 2),)
        profile = capacity.profiles[component_of(spec.program)[own[0]]]
        return (max(sum(count for count, _ in profile), 2),)


def _alike(profile: Profile, operations: int) -> Profile:
    """The steps of one width that take the levels of a profile."""
    if not profile:
        return ()
    taken = -(-steps(profile, operations) // SAME_STEP)
    count = int(np.maximum(taken.max(1), 1).sum())
    return ((count, (SAME_STEP,) * operations),)


# ---- which there are -----------------------------------------------------------------

InLoops: TypeAlias = Counted | Fixed
Strategy: TypeAlias = InLoops | Once
_STRATEGIES: dict[tuple[str, bool], Strategy] = {
    (ONCE, False): Once(),
    (COUNTED, False): Counted(),
    (FIXED, False): Fixed(),
    (COUNTED, True): CountedAlike(),
    (FIXED, True): FixedAlike(),
}


def strategy_named(name: str | None, reproducible: bool) -> Strategy:
    """A strategy, or that which suits the backend."""
    return _STRATEGIES[name or best_strategy(), reproducible]


def strategy_of(spec: Spec) -> Strategy:
    """The strategy that a spec names."""
    return strategy_named(spec.strategy, spec.reproducible)


def in_loops(spec: Spec) -> InLoops:
    """The same of a spec of a program that has loops."""
    strategy = strategy_of(spec)
    assert not isinstance(strategy, Once)
    return strategy


def asked(program: Operations, need: Capacity, strategy: str | None) -> Capacity:
    """What a batch needs of a capacity, without numbers that no shape follows from."""
    return Once().fitted(program, need) if strategy == ONCE else need
