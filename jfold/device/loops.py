# SPDX-License-Identifier: Apache-2.0
"""The loops of both passes, in two strategies.

The passes say what happens to a tile; a strategy says how often, and in which order.
Both have three methods:

    levels   of a component: `step(level, state)`
    tiles    of an operation on a level: `step(tile, carry)`
    chunks   of an operation, after all loops: `step(chunk, edges)`, gradients summed

`down` is the reverse pass: levels run from the last to the first, and so do the tiles
of each, and a tile takes rows past the end of its level as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import jax.numpy as jnp
from jax import Array, lax

from jfold.components import Component, component_of
from jfold.device.arrays import Arrays
from jfold.device.buffers import Edges
from jfold.device.sections import Batch, Number
from jfold.device.xla import Chained, loop_after
from jfold.planning.layout import Layout, layout, running
from jfold.spec import FIXED, Spec

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


Summed: TypeAlias = tuple[Edges, Arrays]  # the edges; gradients of weights [*shape]
LevelStep: TypeAlias = Callable[[Number, State], State]
TileStep: TypeAlias = Callable[[Tile, Carry], Carry]
ChunkStep: TypeAlias = Callable[[Tile, Edges], Summed]


@dataclass(frozen=True, eq=False)
class CountedLoops:
    """As often as the batch says, level by level, with tiles of several widths."""

    layout: Layout
    components: tuple[Component, ...]
    component_of: tuple[int, ...]

    def levels(
        self, batch: Batch, c: int, step: LevelStep[State], state: State, down: bool
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
        down: bool,
    ) -> Chained[Carry]:
        """Wide ones, then narrow ones for what is left."""
        first, end, *counts = batch.tiles(self.component_of[o], o, level)
        runs = []
        for rows, count in zip(self.layout.widths[o], counts, strict=True):
            runs.append((rows, count, first))
            first = first + count * rows
        # In reverse from the last row to the first, so that what crosses may be written
        # over rows that have been read.
        for rows, count, start in reversed(runs) if down else runs:
            begin = state.zero + (start + (count - 1) * rows if down else start)
            stride = -rows if down else rows
            run = _tile_step(step, o, rows, begin, stride, None if down else end)
            state = loop_after(run, count, state)
        return state

    def chunks(
        self, batch: Batch, o: int, step: ChunkStep, state: Chained[Summed]
    ) -> Chained[Summed]:
        """As many as there are nodes for."""
        rows = self.layout.chunk[o]
        trips = -(-batch.nodes(o) // rows)

        def run(i: Number, carry: Summed) -> Summed:
            return _add_chunk(batch, o, state.zero + i * rows, rows, step, carry)

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
        self, batch: Batch, c: int, step: LevelStep[State], state: State, down: bool
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
        down: bool,
    ) -> Chained[Carry]:
        """One; a step that has none repeats the one before."""
        first, end, _ = batch.tiles(self.component_of[o], o, level)
        rows = self.layout.widths[o][0]
        tile = Tile(o, first, rows, None if down else end - first)
        return Chained(state.zero, step(tile, state.carry))

    def chunks(
        self, batch: Batch, o: int, step: ChunkStep, state: Chained[Summed]
    ) -> Chained[Summed]:
        """As many as the capacity has room for."""
        rows, count = self.layout.chunk[o], batch.nodes(o)

        def run(i: Number, carry: Summed) -> Summed:
            first = state.zero + i * rows
            edges, new = _add_chunk(batch, o, first, rows, step, carry)
            # What rows give that are all spare may be no number.
            pairs = zip(new, carry[1], strict=True)
            return edges, [jnp.where(first < count, x, y) for x, y in pairs]

        trips = -(-self.rows[o] // rows)
        return Chained(state.zero, lax.fori_loop(0, trips, run, state.carry))


Loops: TypeAlias = CountedLoops | FixedLoops


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


def _tile_step(
    step: TileStep[Carry],
    o: int,
    rows: int,
    begin: Array,
    stride: int,
    end: Array | None,
) -> Callable[[Array, Carry], Carry]:
    """`step` on tile number `i` of those that begin at a stride."""

    def run(i: Array, carry: Carry) -> Carry:
        first = begin + i * stride
        return step(Tile(o, first, rows, None if end is None else end - first), carry)

    return run


def _add_chunk(
    batch: Batch, o: int, first: Number, rows: int, step: ChunkStep, carry: Summed
) -> Summed:
    """The edges behind a chunk, and the gradients with its own."""
    edges, total = carry
    edges, grads = step(Tile(o, first, rows, batch.nodes(o) - first), edges)
    return edges, list(map(jnp.add, total, grads))
