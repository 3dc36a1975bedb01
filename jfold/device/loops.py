# SPDX-License-Identifier: Apache-2.0
"""The loops of the forward and the reverse pass, in two strategies.

A pass says what runs on a tile. A strategy says how often and in which order it runs,
and how rows are read: trip counts come from the batch in `Loops`, from the capacity in
`FixedLoops`, but for sums that take several tiles. Methods run a function, `step`, on
levels, tiles of a level or chunks, or `run` on tiles of sums of cotangents; they return
the new state.

In the reverse pass levels run from the last to the first, and so do the tiles of each;
a tile runs rows past the end of its level again.

A *chunk* is successive rows of an operation, of any level. In shapes, `size` counts the
rows of a buffer, and `*shape` is that of one row.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import jax.numpy as jnp
from jax import Array, lax

from jfold.base.arrays import Arrays
from jfold.device import xla
from jfold.device.buffers import Batch, Number, slice_rows
from jfold.device.execution import Execution
from jfold.device.xla import Chained, loop_after
from jfold.scheduling.tiles import max_left_over, reverse_widths, strategy_of

Carry = TypeVar('Carry')
State = TypeVar('State')


@dataclass(frozen=True)
class Tile:
    """The rows of an operation that run together, in a loop or as a chunk.

    Attributes:
      operation: number of the operation.
      first: [] int32, index of the first row.
      rows: number of rows.
      count: [] int32, the number of real rows, which come first, maybe more than
        `rows`; `None` if real rows are not told from padding.
    """

    operation: int
    first: Number
    rows: int
    count: Array | None


@dataclass(frozen=True, eq=False)
class Level:
    """A round of a component's loop: a level, or a step of fixed loops.

    A level is the nodes whose inputs all lie on earlier levels; a step is one tile of
    each operation.

    Attributes:
      number: [] int32, counted in its component from 0.
      loop: number of the loop over steps that runs it; 0 if there is only one loop.
    """

    number: Number
    loop: int = 0


LevelStep: TypeAlias = Callable[[Level, State], State]
TileStep: TypeAlias = Callable[[Tile, Carry], Carry]
SumStep: TypeAlias = Callable[[Number, Carry], Carry]
Summed: TypeAlias = tuple[Carry, Arrays]  # a carry; sums of gradients, each [*shape]
ChunkStep: TypeAlias = Callable[[Tile, Carry], Summed[Carry]]


@dataclass(frozen=True, eq=False)
class Loops:
    """The loops of a pass over a batch, the reverse pass if `down`.

    Trip counts come from the batch, and tiles have several widths. A round of sums has
    two numbers: `step`, of a level or fixed step, counted through all components, and
    `stage`, of the round on it.
    """

    execution: Execution
    batch: Batch
    down: bool

    def levels(self, c: int, step: LevelStep[State], state: State) -> State:
        """Run `step` on each level of component `c`; once if it is not recurrent."""
        if not self.execution.components[c].recurrent:
            return step(Level(0), state)
        count = self.batch.levels(c)

        def body(i: Number, state: State) -> State:
            return step(Level(count - 1 - i if self.down else i), state)

        return _repeated(count, body, state)

    def tiles(
        self, o: int, level: Level, step: TileStep[Carry], state: Chained[Carry]
    ) -> Chained[Carry]:
        """Run `step` on wide tiles of `level`, then on narrow ones for rows left over.

        In reverse they run from the last row to the first, so that stashes may be
        written over rows that have been read.
        """
        first, end = self.batch.tiles(o, level.number)

        def up(rows: int, row: Array, carry: Carry) -> tuple[Array, Carry]:
            return row + rows, step(Tile(o, row, rows, end - row), carry)

        def down(rows: int, row: Array, carry: Carry) -> tuple[Array, Carry]:
            # A tile must not reach into the level before, whose cotangents are not
            # complete. Past its end are rows of levels that are done: to run them again
            # writes the same numbers.
            begin = jnp.maximum(row - rows, first)
            return begin, step(Tile(o, begin, rows, None), carry)

        def more(left: Number, row: Array) -> Array:
            return (row - first if self.down else end - row) > left

        row, carry = state.zero + (end if self.down else first), state.carry
        widths = self.batch.layout.widths[o]
        if self.down:
            widths = reverse_widths(widths)
        lefts = max_left_over(widths, self.batch.empty)
        for rows, left in zip(widths, lefts, strict=True):
            run = functools.partial(down if self.down else up, rows)
            row, carry = loop_after(functools.partial(more, left), run, row, carry)
        # This number is zero, since `row` has reached the end, but XLA does not know
        # it.
        return Chained(row - first if self.down else jnp.minimum(row - end, 0), carry)

    def chunks(
        self, o: int, step: ChunkStep[Carry], state: Chained[Summed[Carry]]
    ) -> Chained[Summed[Carry]]:
        """Run `step` on chunks of operation `o` with real rows; add up gradients."""
        rows, nodes = self.batch.layout.chunk[o], self.batch.nodes(o)

        def run(row: Array, carry: Summed[Carry]) -> tuple[Array, Summed[Carry]]:
            return row + rows, self._add_chunk(o, row, step, carry)

        start = jnp.asarray(state.zero, jnp.int32)
        row, carry = loop_after(lambda row: nodes - row > 0, run, start, state.carry)
        return Chained(jnp.minimum(row - nodes, 0), carry)

    def _add_chunk(
        self, o: int, first: Number, step: ChunkStep[Carry], carry: Summed[Carry]
    ) -> Summed[Carry]:
        """Run `step` on a chunk from row `first` on; add the gradients to `carry`."""
        changing, total = carry
        rows, count = self.batch.layout.chunk[o], self.batch.nodes(o) - first
        changing, new = step(Tile(o, first, rows, count), changing)
        return changing, list(map(jnp.add, total, new))

    def sums(
        self, t: int, step: Number, stage: Number, run: SumStep[Carry], carry: Carry
    ) -> Carry:
        """Call `run` on the first row of each tile of sums, round (`step`, `stage`)."""
        first, count = self.batch.sums(t, step, stage)
        width = self.batch.layout.sum_width[t]

        return _repeated(count, lambda i, carry: run(first + i * width, carry), carry)

    def gather(self, buffer: Array, places: Sequence[Array]) -> Arrays:
        """Gather the rows [n, *shape] of a buffer at each index array in `places`."""
        return [xla.take_alone(buffer, rows) for rows in places]

    def slices(self, buffers: Arrays, tile: Tile) -> Arrays:
        """Return each buffer's rows of a tile [rows, ...], by kernels of their own."""
        return xla.isolated_slices(buffers, tile.first, tile.rows)

    def read_once(self, rows: Arrays) -> Arrays:
        """Return `rows` unchanged: a CPU needs no barrier against repeated gathers."""
        return rows


class FixedLoops(Loops):
    """The loops with trip counts from the capacity: one tile per operation a step."""

    def levels(self, c: int, step: LevelStep[State], state: State) -> State:
        """Run `step` on each `Level` that component `c` has room for.

        Levels with tiles of one width are one loop; the loops run one after another.
        """
        trips = self.batch.layout.trips[c]
        before = itertools.accumulate(trips, initial=0)
        runs = list(enumerate(zip(trips, before, strict=False)))
        for loop, (count, first) in reversed(runs) if self.down else runs:
            start = first + count - 1 if self.down else first

            def run(
                i: Number, state: State, start: int = start, loop: int = loop
            ) -> State:
                return step(Level(start - i if self.down else start + i, loop), state)

            state = _repeated(count, run, state)
        return state

    def tiles(
        self, o: int, level: Level, step: TileStep[Carry], state: Chained[Carry]
    ) -> Chained[Carry]:
        """Run `step` on the tile of operation `o` on `level`; return the new state.

        On a level where `o` has no tile, another of its tiles runs, to the same values.
        """
        first, end = self.batch.tiles(o, level.number)
        rows = self.batch.layout.widths[o][level.loop]
        tile = Tile(o, first, rows, None if self.down else end - first)
        return Chained(state.zero, step(tile, state.carry))

    def chunks(
        self, o: int, step: ChunkStep[Carry], state: Chained[Summed[Carry]]
    ) -> Chained[Summed[Carry]]:
        """Run `step` on all rows that operation `o` has room for; add up gradients."""
        rows, count = self.batch.layout.chunk[o], self.batch.nodes(o)

        def run(i: Number, carry: Summed[Carry]) -> Summed[Carry]:
            first = state.zero + i * rows
            changing, new = self._add_chunk(o, first, step, carry)
            # A chunk without real rows may give NaN: its sums are not added.
            pairs = zip(new, carry[1], strict=True)
            return changing, [jnp.where(first < count, x, y) for x, y in pairs]

        trips = -(-self.execution.spec.capacity.rows[o] // rows)
        return Chained(state.zero, _repeated(trips, run, state.carry))

    def sums(
        self, t: int, step: Number, stage: Number, run: SumStep[Carry], carry: Carry
    ) -> Carry:
        """Call `run` on sums of round (`step`, `stage`); on all if one tile suffices.

        On all, it computes sums of past rounds again, to the same values, and those of
        coming rounds too early: these are computed again in their round.
        """
        if self.execution.spec.capacity.sums[t] > self.batch.layout.sum_width[t]:
            return super().sums(t, step, stage, run, carry)
        return run(0, carry)

    def gather(self, buffer: Array, places: Sequence[Array]) -> Arrays:
        """Gather the rows [n, *shape] of a buffer at each index array in `places`."""
        return xla.gathered(buffer, places)

    def slices(self, buffers: Arrays, tile: Tile) -> Arrays:
        """Return the rows of a tile, each [rows, ...], from buffers [size, ...].

        XLA may fuse them with their readers: kernels of their own take time to start.
        """
        return [slice_rows(buffer, tile.first, tile.rows) for buffer in buffers]

    def read_once(self, rows: Arrays) -> Arrays:
        """Return `rows` unchanged, behind a barrier: XLA gathers them only once."""
        return xla.materialized(rows)


def _repeated(
    count: Number, step: Callable[[Number, Carry], Carry], carry: Carry
) -> Carry:
    """Run `carry = step(i, carry)` for i below `count`; no loop if that is 1."""
    if isinstance(count, int) and count == 1:
        return step(0, carry)
    done: Carry = lax.fori_loop(0, count, step, carry)
    return done


def make_loops(execution: Execution, batch: Batch, down: bool) -> Loops:
    """Return the loops of a forward pass, or of a reverse pass if `down`."""
    strategy = FixedLoops if strategy_of(execution.spec).fixed else Loops
    return strategy(execution, batch, down)
