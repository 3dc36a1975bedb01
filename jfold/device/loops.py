# SPDX-License-Identifier: Apache-2.0
"""The loops of both passes, in two strategies.

The passes say what happens to a tile; a strategy says how often, and in which order.
Both have seven methods:

    levels     of a component: `step(level, state)`, of steps if they are fixed
    tiles      of an operation on a level: `step(tile, carry)`
    chunks     of an operation, outside of loops over levels: `step(chunk, carry)`, what
               it gives besides summed
    sums       tiles of a round of sums: `step(i, carry)`
    gather     rows of a buffer at several places
    slice      rows of a buffer that are those of a tile
    read_once  rows of a buffer that a tile goes on to write to

In the reverse pass levels run from the last to the first, and so do the tiles of each,
and a tile takes rows past the end of its level as they are.
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
from jfold.device.batch import Batch, Number
from jfold.device.buffers import slice_rows, take
from jfold.device.xla import Chained, loop_after
from jfold.scheduling.layout import running
from jfold.scheduling.spec import Spec
from jfold.scheduling.tiles import strategy_of
from jfold.scheduling.widths import left_over, reverse_widths

Carry = TypeVar('Carry')
State = TypeVar('State')


@dataclass(frozen=True)
class Tile:
    """Rows of an operation that run together, in a loop or as a chunk.

    Attributes:
      first: [] int32, the first row.
      rows: how many there are.
      count: [] int32, how many of them stand for nodes; `None` if all are taken as
        they are.
    """

    operation: int
    first: Number
    rows: int
    count: Array | None


@dataclass(frozen=True, eq=False)
class Level:
    """Which level, or step if their number is fixed.

    Attributes:
      number: [] int32, of its component.
      loop: which of the loops over steps runs it.
    """

    number: Number
    loop: int


LevelStep: TypeAlias = Callable[[Level, State], State]
TileStep: TypeAlias = Callable[[Tile, Carry], Carry]
SumStep: TypeAlias = Callable[[Number, Carry], Carry]
Summed: TypeAlias = tuple[Carry, Arrays]  # what changes; sums [*shape], of gradients
ChunkStep: TypeAlias = Callable[[Tile, Carry], Summed[Carry]]


@dataclass(frozen=True, eq=False)
class _Pass:
    """One pass over a batch, with what both strategies share.

    Attributes:
      down: whether it is the reverse pass.
    """

    spec: Spec
    batch: Batch
    down: bool

    def _add_chunk(
        self, o: int, first: Number, step: ChunkStep[Carry], carry: Summed[Carry]
    ) -> Summed[Carry]:
        """What a chunk has changed, and the sums with its own."""
        changing, total = carry
        rows, count = self.batch.layout.chunk[o], self.batch.nodes(o) - first
        changing, new = step(Tile(o, first, rows, count), changing)
        return changing, list(map(jnp.add, total, new))


class CountedLoops(_Pass):
    """As often as the batch says, level by level, with tiles of several widths."""

    def levels(self, c: int, step: LevelStep[State], state: State) -> State:
        """As many as the batch has; one where nothing is recurrent."""
        if not running(self.spec)[c].recurrent:
            return step(Level(0, 0), state)
        count = self.batch.levels(c)

        def body(i: Array, state: State) -> State:
            return step(Level(count - 1 - i if self.down else i, 0), state)

        done: State = lax.fori_loop(0, count, body, state)
        return done

    def tiles(
        self, o: int, level: Level, step: TileStep[Carry], state: Chained[Carry]
    ) -> Chained[Carry]:
        """Wide ones, then narrow ones for what is left; in reverse from the last row to
        the first, so that what crosses may be written over rows that have been read."""
        first, end = self.batch.tiles(o, level.number)

        def up(rows: int, row: Array, carry: Carry) -> tuple[Array, Carry]:
            return row + rows, step(Tile(o, row, rows, end - row), carry)

        def down(rows: int, row: Array, carry: Carry) -> tuple[Array, Carry]:
            # A tile has no row of the levels before; past its end are rows that are
            # done, which it takes as they are.
            begin = jnp.maximum(row - rows, first)
            return begin, step(Tile(o, begin, rows, None), carry)

        def more(left: Number, row: Array) -> Array:
            return (row - first if self.down else end - row) > left

        row, carry = state.zero + (end if self.down else first), state.carry
        widths = self.batch.layout.widths[o]
        if self.down:
            widths = reverse_widths(widths)
        for rows, left in zip(widths, left_over(widths, self.batch.empty), strict=True):
            run = functools.partial(down if self.down else up, rows)
            row, carry = loop_after(functools.partial(more, left), run, row, carry)
        return Chained(row - first if self.down else jnp.minimum(row - end, 0), carry)

    def chunks(
        self, o: int, step: ChunkStep[Carry], state: Chained[Summed[Carry]]
    ) -> Chained[Summed[Carry]]:
        """As many as there are nodes for."""
        rows, nodes = self.batch.layout.chunk[o], self.batch.nodes(o)

        def run(row: Array, carry: Summed[Carry]) -> tuple[Array, Summed[Carry]]:
            return row + rows, self._add_chunk(o, row, step, carry)

        start = jnp.asarray(state.zero, jnp.int32)
        row, carry = loop_after(lambda row: nodes - row > 0, run, start, state.carry)
        return Chained(jnp.minimum(row - nodes, 0), carry)

    def sums(self, t: int, count: Array, step: SumStep[Carry], carry: Carry) -> Carry:
        """As many [] as the batch has."""
        done: Carry = lax.fori_loop(0, count, step, carry)
        return done

    def gather(self, buffer: Array, places: Sequence[Array]) -> Arrays:
        """Rows [n, *shape] each of a buffer [size, *shape] at places [n] each: a CPU
        reads them where they are needed."""
        return [take(buffer, each) for each in places]

    def slice(self, buffer: Array, tile: Tile) -> Array:
        """The rows of a tile [rows, ...] in a buffer [region, ...], read at once."""
        return xla.sliced(buffer, tile.first, tile.rows)

    def read_once(self, rows: Arrays) -> Arrays:
        """As they are [rows, *shape] each: what XLA does for a CPU copies nothing."""
        return rows


class FixedLoops(_Pass):
    """As often as the capacity says, with one tile of each operation a step."""

    def levels(self, c: int, step: LevelStep[State], state: State) -> State:
        """The steps of a component, however many its batch needs, in a loop for each
        width."""
        trips = self.batch.layout.trips[c]
        before = itertools.accumulate(trips, initial=0)
        runs = list(enumerate(zip(trips, before, strict=False)))
        for loop, (count, first) in reversed(runs) if self.down else runs:
            start = first + count - 1 if self.down else first
            run = functools.partial(self._step, step, loop, start)
            state = _repeated(count, run, state)
        return state

    def _step(
        self, step: LevelStep[State], loop: int, start: int, i: Number, state: State
    ) -> State:
        return step(Level(start - i if self.down else start + i, loop), state)

    def tiles(
        self, o: int, level: Level, step: TileStep[Carry], state: Chained[Carry]
    ) -> Chained[Carry]:
        """One; a step that has none repeats the one before."""
        first, end = self.batch.tiles(o, level.number)
        rows = self.batch.layout.widths[o][level.loop]
        tile = Tile(o, first, rows, None if self.down else end - first)
        return Chained(state.zero, step(tile, state.carry))

    def chunks(
        self, o: int, step: ChunkStep[Carry], state: Chained[Summed[Carry]]
    ) -> Chained[Summed[Carry]]:
        """As many as the capacity has room for."""
        rows, count = self.batch.layout.chunk[o], self.batch.nodes(o)

        def run(i: Number, carry: Summed[Carry]) -> Summed[Carry]:
            first = state.zero + i * rows
            changing, new = self._add_chunk(o, first, step, carry)
            # What rows give that are all spare may be no number.
            pairs = zip(new, carry[1], strict=True)
            return changing, [jnp.where(first < count, x, y) for x, y in pairs]

        trips = -(-self.spec.capacity.rows[o] // rows)
        return Chained(state.zero, _repeated(trips, run, state.carry))

    def sums(self, t: int, count: Array, step: SumStep[Carry], carry: Carry) -> Carry:
        """As many as there is room for, mostly one; what is too many is made again."""
        room, rows = self.spec.capacity.sums[t], self.batch.layout.sum_width[t]
        return _repeated(-(-room // rows), step, carry)

    def gather(self, buffer: Array, places: Sequence[Array]) -> Arrays:
        """Rows [n, *shape] each of a buffer [size, *shape] at places [n] each."""
        return xla.gathered(buffer, places)

    def slice(self, buffer: Array, tile: Tile) -> Array:
        """The rows of a tile [rows, ...] in a buffer [region, ...], read where they are
        needed: each kernel costs its start."""
        return slice_rows(buffer, tile.first, tile.rows)

    def read_once(self, rows: Arrays) -> Arrays:
        """Made [rows, *shape] each, before anything that depends on them."""
        return xla.materialized(rows)


def _repeated(
    count: int, step: Callable[[Number, Carry], Carry], carry: Carry
) -> Carry:
    """`step(i, carry)` for i [] from 0 on; once is no loop."""
    if count == 1:
        return step(0, carry)
    done: Carry = lax.fori_loop(0, count, step, carry)
    return done


Loops: TypeAlias = CountedLoops | FixedLoops


def make_loops(spec: Spec, batch: Batch, down: bool) -> Loops:
    """The loops of a pass, by the strategy of a spec."""
    strategy = FixedLoops if strategy_of(spec).fixed else CountedLoops
    return strategy(spec, batch, down)
