# SPDX-License-Identifier: Apache-2.0
"""Tiles: the rows of an operation that are computed at once, and strategies for them.

Rows of an operation are sorted by level. A tile is a block of rows whose width is fixed
when the program is compiled; how many tiles a level takes is data. With loops there are
two strategies:

    counted   a level of 172 rows, at widths 128, 32 and 4, is run in three loops; in
              reverse from its end, in two:
              |------------- 128 -------------|--32--|4|4|4|
    fixed     steps and their widths come from a staircase; levels of 100, 40, 20 and 7
              rows, in two steps of 64 and three of 32:
              |64|36+|  |32|8+|20+|        and 7 rows would be one step too many

A tile may run past the end of its level, into rows that the next level writes again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias, TypeVar

import jax
import numpy as np

from jfold.graph import Array
from jfold.program.components import Component, component_of, components
from jfold.program.operations import (
    Operation,
    Operations,
    looks_up,
    parameter_bytes,
    row_bytes,
)
from jfold.scheduling.growth import power_of_two
from jfold.scheduling.spec import COUNTED, FIXED, Capacity, Spec
from jfold.scheduling.staircase import (
    NARROW,
    Profile,
    by_level,
    cut,
    is_cut,
    last_steps,
    steps,
)

Part = TypeVar('Part', int, jax.Array)
Widths: TypeAlias = tuple[int, ...]  # rows per tile; counted ones widest first
Trips: TypeAlias = tuple[int, ...]  # trip counts of loops that run one after another

CACHE = 1 << 20  # bytes that fit into the cache of most cores
SUM_WIDTH = 64  # sums over edge rows that are taken at once
MEMORY = 1 << 27  # bytes of an accelerator for the inputs and outputs of a tile
START = 1 << 28  # bytes that an accelerator moves while a step's kernels start

# For sums in a fixed order: XLA multiplies and fuses in ways that depend on the number
# of rows, so the last digits of a row depend on how many rows its tile has, but not on
# its place there. Then each operation has tiles of one width for every capacity.
SAME = 64  # rows of a tile in counted loops
SAME_STEP = 256  # rows of a tile in fixed steps, where each starts kernels
SAME_CHUNK = 512  # rows whose parameter gradients are taken at once
SAME_STEP_CHUNK = 4096  # the same, in fixed steps


def best_strategy() -> str:
    """Return the name of the strategy that suits JAX's default backend."""
    # On an accelerator the host would ask after every round of a counted loop whether
    # there is another, which takes longer than the round.
    return COUNTED if jax.default_backend() == 'cpu' else FIXED


def cores(devices: int) -> int:
    """Return the number of cores that this process may use for each of its devices."""
    if hasattr(os, 'sched_getaffinity'):  # asked of the process, not of the thread
        count = len(os.sched_getaffinity(os.getpid()))
    else:
        count = os.cpu_count() or 1
    return max(count // devices, 1)


# ---- tiles of several widths, whose number batches decide ----------------------------


def empty_fraction(cores: int) -> int:
    """Return n, such that up to 1/n of a wide tile may be empty.

    On several cores a wide tile that is half full is faster than narrow tiles, which
    do not fill the cores. On one core a row costs the same in both, so a wide tile must
    be nearly full. So the order of sums, and last digits, depend on the cores.
    """
    return 2 if cores > 1 else 6


def reverse_widths(widths: Widths) -> Widths:
    """Return the tile widths of the reverse pass: the widest and the narrowest.

    A width takes twice as long to compile as in the forward pass.
    """
    return widths[:1] + widths[1:][-1:]


def max_left_over(widths: Widths, empty: Part) -> list[Part | int]:
    """Return, per tile width, how many rows at most are left to narrower tiles.

    By these numbers the host counts the tiles, and a loop decides whether it runs one
    more. `empty` is the result of `empty_fraction`; an array [] on the device.
    """
    left: list[Part | int] = [width - width // empty for width in widths]
    left[-1] = 0
    return left


def tiles(rows: Array, widths: Widths, empty: int) -> Array:
    """Divide each number of rows [n] into tiles; return counts [n, widths] int32.

    A wide tile may be empty by a part, 1 / `empty`: with widths 128, 32 and 4, 200 rows
    take `[2, 0, 0]` if `empty` is 2, and `[1, 2, 2]` if it is 6.
    """
    counts = np.empty((len(rows), len(widths)), np.int32)
    pairs = zip(widths, max_left_over(widths, empty), strict=True)
    for column, (width, left) in enumerate(pairs):
        counts[:, column] = np.maximum(-((left - rows) // width), 0)
        rows = np.maximum(rows - counts[:, column] * width, 0)
    return counts


# ---- strategies ----------------------------------------------------------------------


@dataclass(frozen=True)
class Strategy:
    """A strategy to divide rows into tiles: here, outside of loops, into one tile.

    The strategies of loops override its methods. A component's loops run one after
    another; `trips` are their trip counts, `widths` the widths of an operation's tiles.
    A `table` [steps, 2] has an operation's first row and the end of its rows per step;
    `empty` is the result of `empty_fraction`.

    Attributes:
      reproducible: whether all tiles have one width, so that sums have a fixed order.
      fixed: whether the capacity fixes the number of steps.
    """

    reproducible: bool = False
    fixed: ClassVar[bool] = False

    def fitted(self, program: Operations, capacity: Capacity) -> Capacity:
        """Reduce a capacity to what the strategy uses: here without levels and sums.

        A spec gets this capacity. Fields that are not used are zero or empty, and
        profiles are staircases.
        """
        zero = tuple(0 for _ in program.types)
        return replace(capacity, levels=0, fans=zero, sums=zero, stages=0, profiles=())

    def widths(self, spec: Spec, o: int, component: Component) -> Widths:
        """Return the tile widths of operation `o`: here one, of all its rows."""
        return (spec.capacity.rows[o],)

    def chunk(self, program: Operations, operation: Operation, rows: int) -> int:
        """Return how many of `rows` share a pass for parameter gradients: here all."""
        return max(rows, 1)

    def trips(self, spec: Spec, component: Component) -> Trips:
        """Return the trip counts of the loops over a component's steps: here one step.

        The sum is the number of rows in the table of tiles.
        """
        return (1,)

    def last_steps(
        self, counts: Sequence[Array], widths: Sequence[Widths], trips: Trips
    ) -> Array:
        """Return the step at which each level of a component ends [levels], from 0.

        Args:
          counts: per operation, the nodes on each level [levels or fewer].
          widths: per operation, the widths of its tiles.
        """
        return np.arange(max(map(len, counts), default=0))

    def write(
        self, table: Array, counts: Array, last: Array, widths: Widths, trips: Trips
    ) -> None:
        """Write each step's first row and end into `table` [steps or more, 2].

        Args:
          counts: the nodes on each level [levels or fewer].
          last: the result of `last_steps`.
        """
        part, ends = table[: len(last)], counts.cumsum()
        part[: len(ends), 0] = ends - counts
        part[: len(ends), 1] = ends
        part[len(ends) :] = ends[-1] if len(ends) else 0

    def tiles(self, table: Array, widths: Widths, trips: Trips, empty: int) -> Array:
        """Return how many tiles of each width each step takes [steps, widths] int.

        Here each step takes one tile, of the width of the loop that runs the step.
        """
        return np.eye(len(trips), dtype=int).repeat(trips, 0)[: len(table)]


class Counted(Strategy):
    """The strategy of loops that run as often as a batch needs, wide tiles first."""

    def fitted(self, program: Operations, capacity: Capacity) -> Capacity:
        """Return the capacity without profiles: a level may have any number of rows."""
        return replace(capacity, profiles=())

    def widths(self, spec: Spec, o: int, component: Component) -> Widths:
        """Return one to three tile widths, by the size of the operation's parameters.

        Large weights want wide tiles, since a tile reads them once; much beyond 256
        rows a tile no longer stays in cache. Small weights want wide tiles, since a
        narrow one takes little more than its start. Narrow tiles serve levels near the
        roots. Each width takes time to compile, so there are two where a third gains
        little, and one for a cheap operation that is not recurrent.
        """
        if self.reproducible:
            return (SAME,)
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
        """Return how many rows share one pass for parameter gradients.

        They have as many bytes as the parameters or the cache, the larger of the two,
        since a pass writes the gradients of all parameters; at most `rows`. If
        `reproducible`, the number is fixed, but all `rows` for a look-up.
        """
        same = self.reproducible
        # Parameters of unknown size; a look-up adds up in one order, however many rows.
        if operation.layer.external or (same and looks_up(program, operation)):
            return max(rows, 1)
        if same:
            return SAME_CHUNK
        size = row_bytes(program, operation)
        balanced = parameter_bytes(operation) // size
        in_cache = power_of_two(min(512, CACHE // size) + 1) // 2
        return max(min(max(in_cache, balanced), rows), 1)

    def trips(self, spec: Spec, component: Component) -> Trips:
        """Return one trip count: the capacity's levels, or 1 without a recurrence."""
        return (spec.capacity.levels if component.recurrent else 1,)

    def tiles(self, table: Array, widths: Widths, trips: Trips, empty: int) -> Array:
        """Return how many tiles of each width each level takes [levels, widths]."""
        return tiles(table[:, 1] - table[:, 0], widths, empty)


class Fixed(Strategy):
    """The strategy of steps that the capacity fixes, each with a tile per operation."""

    fixed: ClassVar[bool] = True

    def fitted(self, program: Operations, capacity: Capacity) -> Capacity:
        """Return the capacity with a staircase in place of each profile."""
        pairs = zip(components(program), capacity.profiles, strict=False)
        stairs = tuple(self._cut(program, *pair) for pair in pairs)
        return replace(capacity, profiles=stairs)

    def _cut(
        self, program: Operations, component: Component, profile: Profile
    ) -> Profile:
        """Return the cheapest staircase for a profile; a staircase, or (), as it is.

        Costs are in bytes that an accelerator moves in the same time. A step costs the
        start of its kernels and a pass over the parameters; a row costs the bytes it
        moves, and one byte per hundred arithmetic operations. A step is taken to cost
        no more than the rows of a mean level, or there would be many spare rows where
        rows are cheap.
        """
        if not profile:
            return ()
        operations = [program.operations[o] for o in component.operations]
        levels = steps(profile, len(operations))
        if self.reproducible:
            taken = np.maximum((-(-levels // SAME_STEP)).max(1), 1)
            return ((int(taken.sum()), (SAME_STEP,) * len(operations)),)
        if is_cut(profile):
            return profile
        sizes = [row_bytes(program, operation) for operation in operations]
        weights = [parameter_bytes(operation) for operation in operations]
        row = np.array([x + y / 200 for x, y in zip(sizes, weights, strict=True)])
        mean = float((levels @ row).mean())
        step = min(float(START * len(operations) + sum(weights)), mean)
        return cut(levels, step, row, [MEMORY // size for size in sizes])

    def _stairs(self, spec: Spec, component: Component) -> Profile:
        """Return a component's steps: pairs (count, tile width of each operation)."""
        operations, capacity = component.operations, spec.capacity
        rows, same = [capacity.rows[o] for o in operations], self.reproducible
        if not component.recurrent:
            size = row_bytes(spec.program, spec.program.operations[operations[0]])
            count, width = even_parts(rows[0], size, 2 * MEMORY)
            count = -(-rows[0] // SAME_STEP) if same else count
            stairs: Profile = ((count, (width,)),)
        elif capacity.profiles:
            c = component_of(spec.program)[operations[0]]
            stairs = capacity.profiles[c] or ((0, (NARROW,) * len(rows)),)
        else:
            # Any batch that fits the capacity: each level wastes less than one tile of
            # each operation, and all other tiles are full.
            levels = max(capacity.levels, 1)
            mean = (power_of_two(2 * n // levels) for n in rows)
            widths = [SAME_STEP if same else min(max(n, NARROW), 1024) for n in mean]
            full = sum(n // width for n, width in zip(rows, widths, strict=True))
            stairs = ((full + levels, tuple(widths)),)
        if not same:
            return stairs
        # XLA would unroll a single step and fuse it differently.
        return ((max(sum(n for n, _ in stairs), 2), (SAME_STEP,) * len(rows)),)

    def widths(self, spec: Spec, o: int, component: Component) -> Widths:
        """Return the tile width of operation `o` in each of the loops over steps."""
        place = component.operations.index(o)
        return tuple(rows[place] for _, rows in self._stairs(spec, component))

    def chunk(self, program: Operations, operation: Operation, rows: int) -> int:
        """Return rows per gradient pass: all for a look-up, else as memory allows."""
        same = self.reproducible
        # The reverse of a look-up is a scatter, which takes no memory. In a loop it
        # would start kernels again and again, and on a TPU run row by row.
        if looks_up(program, operation) or (same and operation.layer.external):
            return max(rows, 1)
        if same:
            return SAME_STEP_CHUNK
        return even_parts(rows, row_bytes(program, operation), MEMORY // 2)[1]

    def trips(self, spec: Spec, component: Component) -> Trips:
        """Return a trip count per loop; a loop's steps have the same tile widths."""
        return tuple(count for count, _ in self._stairs(spec, component))

    def last_steps(
        self, counts: Sequence[Array], widths: Sequence[Widths], trips: Trips
    ) -> Array:
        """Return the step at which each level of a component ends [levels], from 0.

        Raises AssertionError if the capacity does not hold the batch.
        """
        profile = tuple(zip(trips, zip(*widths, strict=True), strict=False))
        last = last_steps(by_level(counts), profile)
        assert last is not None, 'the capacity does not hold the batch'
        return last

    def write(
        self, table: Array, counts: Array, last: Array, widths: Widths, trips: Trips
    ) -> None:
        """Write first row and end of each step's tile into `table` [steps, 2].

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
        # `room` is the number of rows that all steps before a step can take, `within`
        # the number that steps before it in the same level can take.
        room = np.append(0, np.repeat(widths, trips).cumsum())[: len(level)]
        within = room - room[np.append(0, last[:-1] + 1)][level]
        first = (end - left)[level] + within
        first[first >= end[level]] = 0
        np.maximum.accumulate(first, out=first)
        table[: len(level), 0], table[: len(level), 1] = first, end[level]
        table[len(level) :] = first[-1], end[-1]


def even_parts(rows: int, size: int, memory: int) -> tuple[int, int]:
    """Split rows evenly into parts of about `memory` bytes; return parts, rows of one.

    A row has `size` bytes, and a part has at least one row.
    """
    count = max(-(-rows * size // memory), 1)
    return count, max(-(-rows // count), 1)


# ---- all strategies ------------------------------------------------------------------

_OF_LOOPS = {COUNTED: Counted, FIXED: Fixed}


def strategy_for(program: Operations, name: str | None, reproducible: bool) -> Strategy:
    """Return the strategy of a program: a plain `Strategy` if it has no loops.

    Args:
      name: one of `STRATEGIES`; `None` for the one that suits the backend.
      reproducible: whether sums have a fixed order.
    """
    if not program.has_loops:
        return Strategy()
    return _OF_LOOPS[name or best_strategy()](reproducible)


def strategy_of(spec: Spec) -> Strategy:
    """Return the strategy of loops that the options of a spec choose."""
    return strategy_for(spec.program, spec.strategy, spec.reproducible)


def strategy_at(spec: Spec, o: int) -> Strategy:
    """Return the strategy of operation `o`: outside of loops, a plain `Strategy`."""
    return Strategy() if o in spec.program.applied else strategy_of(spec)


def without_unused(program: Operations, need: Capacity) -> Capacity:
    """Return `need`; for a program without loops, with zeros in fields of loops."""
    return need if program.has_loops else Strategy().fitted(program, need)
