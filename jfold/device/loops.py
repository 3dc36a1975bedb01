# SPDX-License-Identifier: Apache-2.0
"""The loops of both passes, in two strategies.

The passes say what happens to a tile; a strategy says how often, and in which order:

    levels of a component ─▶ tiles of an operation on a level     (in the loops)
    chunks of an operation                                        (after them)

In reverse, levels run from the last to the first, and so do the tiles of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

import jax.numpy as jnp
from jax import Array, lax

from jfold.components import Component, component_of
from jfold.device.arrays import Arrays
from jfold.device.buffers import Edges
from jfold.device.sections import Batch, Number
from jfold.device.xla import Chained, loop_after
from jfold.planning.layout import FIXED, Layout, Spec, layout, running

Carry = TypeVar('Carry')
State = TypeVar('State')


@dataclass(frozen=True)
class Tile:
    """Rows of an operation that run together, in a loop or as a chunk.

    Attributes:
      first: [] int32, the first row.
      rows: how many there are.
      end: [] int32, where the rows of the level, or of the operation, end.
    """

    operation: int
    first: Number
    rows: int
    end: Array

    @property
    def count(self) -> Array:
        """How many rows are real, if not all [] int32."""
        return self.end - self.first


LevelStep: TypeAlias = Callable[[Number, State], State]
TileStep: TypeAlias = Callable[[Tile, Carry], Carry]
# The edges, and gradients of the weights.
ChunkStep: TypeAlias = Callable[[Tile, Edges], tuple[Edges, Arrays]]
Summed: TypeAlias = tuple[Edges, Arrays]


class Loops(Protocol):
    """What a strategy supplies."""

    def levels(
        self, batch: Batch, c: int, step: LevelStep[State], state: State, *, down: bool
    ) -> State:
        """`step(level, state)` for all levels of a component.

        Args:
          down: from the last to the first.
        """

    def tiles(
        self,
        batch: Batch,
        o: int,
        level: Number,
        step: TileStep[Carry],
        state: Chained[Carry],
        *,
        down: bool,
    ) -> Chained[Carry]:
        """`step(tile, carry)` for all tiles of an operation on a level."""

    def chunks(
        self, batch: Batch, o: int, step: ChunkStep, state: Chained[Summed]
    ) -> Chained[Summed]:
        """`step(chunk, edges)` for all rows of an operation, its gradients summed."""


@dataclass(frozen=True, eq=False)
class CountedLoops:
    """As often as the batch says, level by level, with tiles of several widths."""

    layout: Layout
    components: tuple[Component, ...]
    component_of: tuple[int, ...]

    def levels(
        self, batch: Batch, c: int, step: LevelStep[State], state: State, *, down: bool
    ) -> State:
        """As many as the batch has; one where nothing is recurrent."""
        if not self.components[c].recurrent:
            return step(0, state)
        return _levels(batch.levels(c), step, state, down)

    def tiles(
        self,
        batch: Batch,
        o: int,
        level: Number,
        step: TileStep[Carry],
        state: Chained[Carry],
        *,
        down: bool,
    ) -> Chained[Carry]:
        """The widest first, narrow ones for what is left; in reverse as they lie."""
        first, end, *counts = batch.tiles(self.component_of[o], o, level)
        runs = []
        for rows, count in zip(self.layout.widths[o], counts, strict=True):
            runs.append((rows, count, first))
            first = first + count * rows
        for rows, count, start in reversed(runs) if down else runs:
            begin = state.zero + (start + (count - 1) * rows if down else start)
            stride = -rows if down else rows

            def run(
                i: Array,
                carry: Carry,
                begin: Array = begin,
                stride: int = stride,
                rows: int = rows,
            ) -> Carry:
                return step(Tile(o, begin + i * stride, rows, end), carry)

            state = loop_after(run, count, state)
        return state

    def chunks(
        self, batch: Batch, o: int, step: ChunkStep, state: Chained[Summed]
    ) -> Chained[Summed]:
        """As many as there are nodes for."""
        rows = self.layout.chunk[o]
        trips = -(-batch.nodes(o) // rows)

        def run(i: Array, carry: Summed) -> Summed:
            edges, total = carry
            tile = Tile(o, state.zero + i * rows, rows, batch.nodes(o))
            edges, grads = step(tile, edges)
            return edges, list(map(jnp.add, total, grads))

        return loop_after(run, trips, state)


@dataclass(frozen=True, eq=False)
class FixedLoops:
    """As often as the capacity says, with one wide tile of each operation a step.

    For devices apart from the host, which would be asked after every round whether
    there is another.

    Attributes:
      rows: per operation, its capacity.
    """

    layout: Layout
    component_of: tuple[int, ...]
    rows: tuple[int, ...]

    def levels(
        self, batch: Batch, c: int, step: LevelStep[State], state: State, *, down: bool
    ) -> State:
        """The steps of a component, however many its batch needs."""
        return _levels(self.layout.tables[c][0], step, state, down)

    def tiles(
        self,
        batch: Batch,
        o: int,
        level: Number,
        step: TileStep[Carry],
        state: Chained[Carry],
        *,
        down: bool,
    ) -> Chained[Carry]:
        """One; a step that has none repeats the one before."""
        first, end, _ = batch.tiles(self.component_of[o], o, level)
        tile = Tile(o, first, self.layout.widths[o][0], end)
        return Chained(state.zero, step(tile, state.carry))

    def chunks(
        self, batch: Batch, o: int, step: ChunkStep, state: Chained[Summed]
    ) -> Chained[Summed]:
        """As many as the capacity has room for."""
        rows, count = self.layout.chunk[o], batch.nodes(o)

        def run(i: Number, carry: Summed) -> Summed:
            edges, total = carry
            tile = Tile(o, state.zero + i * rows, rows, batch.nodes(o))
            edges, grads = step(tile, edges)
            # What rows give that are all spare may be no number.
            pairs = zip(map(jnp.add, total, grads), total, strict=True)
            return edges, [jnp.where(tile.first < count, x, y) for x, y in pairs]

        trips = -(-self.rows[o] // rows)
        return Chained(state.zero, lax.fori_loop(0, trips, run, state.carry))


def make_loops(spec: Spec) -> Loops:
    """The loops of the strategy of a spec."""
    numbers = component_of(spec.program)
    if spec.strategy == FIXED:
        return FixedLoops(layout(spec), numbers, spec.capacity.rows)
    return CountedLoops(layout(spec), running(spec), numbers)


def _levels(count: Number, step: LevelStep[State], state: State, down: bool) -> State:
    def body(i: Array, state: State) -> State:
        return step(count - 1 - i if down else i, state)

    done: State = lax.fori_loop(0, count, body, state)
    return done
