# SPDX-License-Identifier: Apache-2.0
"""The reverse pass: gradients of the parameters, given cotangents of the results.

The loops of the forward pass, backwards. A tile *gathers* the cotangents of its outputs
from where the consumers left them and writes those of its inputs to edge rows of its
own, so nothing is scattered and sums have a fixed order. Matrix products of the forward
pass are kept, or computed again like elementwise values. Parameter gradients are taken
over all rows of an operation in large chunks: of recurrent operations after all loops,
from what these left in the place of the products; of others at once.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jfold.components import component_of
from jfold.device.buffers import (
    after,
    buffer_of,
    gather_sum,
    masked,
    others,
    repeat,
    repeated,
    slice_rows,
    write,
)
from jfold.device.forward import Forward, State, TileStep
from jfold.device.plan import Plan, Pulls
from jfold.device.reverse import Reverse, Rows
from jfold.device.stages import is_zero
from jfold.device.tile import Arrays
from jfold.operations import Operations
from jfold.planning.layout import SUM_ARITY, SUM_WIDTH


class Backward(Forward):
    """One execution in reverse, for results that have cotangents."""

    def __init__(self, plan: Plan, pulls: Pulls, *arrays: Any) -> None:
        super().__init__(plan, *arrays)
        self.pulls = pulls
        self._buffers = itertools.count(1, 2)  # none as long as one of the forward pass
        self.touched = _touched(self.program, pulls)

    def reverse(self, o: int) -> Reverse:
        """The reverse of an operation that has one."""
        pull = self.pulls[o]
        assert pull is not None
        return self.plan.reverse(o, pull)

    def moves(self, o: int) -> bool:
        """Whether cotangents flow through an operation."""
        pull = self.pulls[o]
        return pull is not None and any(pull.active)

    def trains(self, o: int) -> bool:
        """Whether the weights of an operation get gradients."""
        return self.pulls[o] is not None and self.plan.trains(o)

    def recomputes(self, o: int) -> bool:
        """Whether products are computed again: as wanted, or since those that were kept
        are for more cotangents than there are."""
        return self.plan.kept[o] is not self.reverse(o)

    def crossed_specs(self, o: int) -> list[jax.ShapeDtypeStruct | None]:
        """Buffers for what crosses; `None` for what takes the place of something."""
        if not self.defers(o):
            return []
        rows, reverse = self.layout.region[o], self.reverse(o)
        return [
            buffer_of(rows, each) if j is None else None
            for each, j in zip(reverse.crossing, reverse.replaced, strict=True)
        ]

    def backward(
        self, values: dict[int, Any], stored: list[Arrays], cotangents: Any
    ) -> list[Arrays | None]:
        """Gradients of the weights of each operation, given the cotangents of the
        results; `None` for zero."""
        self.weights = {
            o: self.reverse(o).both_weights(self.leaves[o])
            for o in self.operations
            if self.pulls[o]
        }
        edges = {t: self._new_edges(t, cotangents) for t in sorted(self.touched)}
        crossed = [self._new(self.crossed_specs(o)) for o in self.operations]
        zero = self.varied(jnp.zeros((), jnp.int32))
        state: State = zero, (edges, stored, crossed)
        grads: dict[int, Arrays] = {}
        for c in reversed(range(len(self.components))):
            state = self._backward_component(c, values, state, grads)
        before, (edges, stored, crossed) = state
        for o in filter(self.trains, self.operations):
            if self.defers(o):
                grads[o] = self._deferred(o, values, stored, edges, crossed[o])
            elif o not in grads:
                before, edges, grads[o] = self._whole(o, before, values, stored, edges)
        return [self._of_weights(o, grads.get(o)) for o in self.operations]

    def _backward_component(
        self, c: int, values: Any, state: State, grads: dict[int, Arrays]
    ) -> State:
        """The reverse of a component; gradients of one that runs once are noted."""
        operations = [o for o in self.components[c].operations if self.pulls[o]]
        if not operations:
            return state
        first, *_ = operations
        if self.is_recurrent(first) or not self.trains(first):
            moving = list(filter(self.moves, operations))
            tile = functools.partial(self._backward_tile, values=values)
            level = functools.partial(self._backward_level, tile, c, moving)
            return self.component(c, level, state, down=True)
        before, (edges, stored, crossed) = state
        # Filed under the last step that runs, as of any level.
        last = jnp.maximum(self.scalar('depth', c) - 1, 0)
        edges = self._all_sums(c, last, edges)
        before, edges, grads[first] = self._whole(first, before, values, stored, edges)
        return before, (edges, stored, crossed)

    def _of_weights(self, o: int, grads: Arrays | None) -> Any:
        """The gradients of an operation's weights; `None`, which is known to be zero
        whatever the values, for those that nothing reads that has a cotangent."""
        if grads is None:
            return None
        tile, live = self.plan.tile(o), self.reverse(o).live
        found: list[Any] = [None for _ in self.leaves[o]]
        for w, grad in enumerate(grads):
            if any(tile.reads_weight(k, w) for k in live):
                found[w] = grad
        return found

    def is_recurrent(self, o: int) -> bool:
        """Whether an operation is of a recurrent component."""
        return self.components[component_of(self.program)[o]].recurrent

    def defers(self, o: int) -> bool:
        """Whether gradients of weights wait for what crosses from the loops."""
        return self.trains(o) and self.is_recurrent(o) and not self.recomputes(o)

    def _new_edges(self, t: int, cotangents: Any) -> Any:
        type_ = self.program.types[t]
        buffer = self._zeros(self.layout.edge_rows[t], type_.shape, type_.dtype)
        for r, result in enumerate(self.program.results):
            for j, number in enumerate(result.tensors):
                if number == t and not is_zero(cotangents[r][j]):
                    base = self.layout.edge_results[r][j]
                    buffer = write(buffer, cotangents[r][j], base)
        return buffer

    def _backward_level(
        self, tile: TileStep, c: int, moving: Sequence[int], level: Any, state: State
    ) -> State:
        before, (edges, stored, crossed) = state
        state = before, (self._all_sums(c, level, edges), stored, crossed)
        return self.level(tile, c, moving, level, state, down=True)

    def _all_sums(self, c: int, level: Any, edges: Any) -> Any:
        """The edges, with the sums of what a level of a component made."""
        operations = [self.program.operations[o] for o in self.components[c].operations]
        made = {t for each in operations for t in each.outputs}
        for t in sorted(made & self.touched):
            if self.capacity.sums[t]:
                step = self._first_step(c) + level
                edges = edges | {t: self._sums(t, step, edges[t])}
        return edges

    def _first_step(self, c: int) -> int:
        """How many levels the components before one have room for."""
        return sum(levels for levels, _ in self.layout.tables[:c])

    def _sums(self, t: int, step: Any, buffer: Any) -> Any:
        """Sums the uses of a level's values that have many."""
        base, stages = self.layout.edge_sums[t], self.capacity.stages

        def tile(i: Any, carry: Any) -> Any:
            first, buffer = carry
            row = first + i * SUM_WIDTH
            indices = [
                self.index(('sum', t, f), row, SUM_WIDTH) for f in range(SUM_ARITY)
            ]
            return first, write(buffer, gather_sum(buffer, indices), base + row)

        def stage(s: Any, buffer: Any) -> Any:
            at = 2 * (step * stages + s)
            first, count = self.index(('steps', t), at, 2)
            return lax.fori_loop(0, count, tile, (first, buffer))[1]

        return lax.fori_loop(0, stages, stage, buffer)

    def _cotangents(self, o: int, edges: Any, first: Any, rows: int) -> Iterator[Any]:
        """Of each live output of a tile, summed over the uses of its values."""
        operation, bases = self.program.operations[o], self.layout.value_base[o]
        for k in self.reverse(o).live:
            t = operation.outputs[k]
            at = bases[k] - self.capacity.constants[t] + first
            fans = range(self.capacity.fans[t])
            indices = [self.index(('consumer', t, f), at, rows) for f in fans]
            yield gather_sum(edges[t], indices)

    def _backward_tile(
        self, o: int, first: Any, end: Any, rows: int, carry: Any, *, values: Any
    ) -> Any:
        edges, stored, crossed = carry
        given = self._given(o, values, stored, edges, first, rows)
        moving, crossing = self.reverse(o).move(given)
        edges = self._left(o, edges, moving, given.cotangents, first)
        if not self.defers(o):
            return edges, stored, crossed
        kept, new = list(stored[o]), list(crossed[o])
        # Products make room a widest tile further on, where they have been read: tiles
        # run from the last rows to the first. Rows done again still find their own.
        for k, (x, j) in enumerate(
            zip(crossing, self.reverse(o).replaced, strict=True)
        ):
            if j is None:
                new[k] = write(new[k], x, first)
            else:
                kept[j] = write(kept[j], x, first + self.layout.widths[o][0])
        return edges, _put(stored, o, kept), _put(crossed, o, new)

    def _given(
        self,
        o: int,
        values: Any,
        stored: list[Arrays],
        edges: Any,
        first: Any,
        rows: int,
        real: Any = None,
    ) -> Rows:
        """What the reverse of rows is given.

        Rows from number `real` on, if given, repeat the first, with a cotangent of
        zero: on zeros an operation may give NaN, and zero times NaN is NaN.
        """
        inputs = self._inputs(o, values, first, rows, real)
        cotangents = list(self._cotangents(o, edges, first, rows))
        is_real = self.varied(jnp.arange(rows) < (rows if real is None else real))
        if self.recomputes(o):
            kept = self.reverse(o).keep(self.weights[o], inputs, rows)[1]
        else:
            kept = [slice_rows(b, first, rows) for b in stored[o]]
        if real is not None:
            if not self.recomputes(o):  # from inputs that repeat a row
                kept = [repeated(x, is_real) for x in kept]
            cotangents = [masked(x, is_real) for x in cotangents]
        return Rows(self.weights[o], inputs, kept, cotangents, is_real, rows)

    def _left(
        self, o: int, edges: Any, moving: Arrays, cotangents: Arrays, first: Any
    ) -> Any:
        """The edges, with the cotangents of the inputs of rows."""
        edges, reverse = dict(edges), self.reverse(o)
        operation = self.program.operations[o]
        rest = zip(moving, reverse.pulls, strict=True)
        live = [operation.outputs[k] for k in reverse.live]
        bases = self.layout.edge_base[o]
        inputs = zip(operation.inputs, bases, reverse.active, strict=True)
        for t, base, active in inputs:
            if active:
                x, known = next(rest)
                read = others(t, live, cotangents, known)
                edges[t] = write(edges[t], after(read, x, first), base + first)
        return edges

    def _chunks(
        self, o: int, chunk: Callable[[Any, Any], Any], before: Any, carry: Any
    ) -> Any:
        """`chunk(first, edges)` over all rows of an operation, its gradients summed.

        Takes and gives what `level` does; the carry is the edges and the sums so far.
        """
        rows, count = self.layout.chunk[o], self.scalar('counts', o)

        def step(i: Any, carry: Any) -> Any:
            first, (edges, total) = before + i * rows, carry
            edges, grads = chunk(first, edges)
            new = list(map(jnp.add, total, grads))
            if self.fixed:  # what rows give that are all spare may be no number
                pairs = zip(new, total, strict=True)
                new = [jnp.where(first < count, x, y) for x, y in pairs]
            return edges, new

        if self.fixed:
            trips = -(-self.capacity.rows[o] // rows)
            return before, lax.fori_loop(0, trips, step, carry)
        trips = -(-count // rows)
        done, carry = repeat(step, trips, carry)
        return done - trips, carry

    def _deferred(
        self, o: int, values: Any, stored: list[Arrays], edges: Any, crossed: Arrays
    ) -> Arrays:
        """The gradients of an operation's trained parameters, over all its rows, from
        what crossed."""
        rows, reverse = self.layout.chunk[o], self.reverse(o)

        def chunk(first: Any, edges: Any) -> Any:
            real = self.scalar('counts', o) - first
            given = self._given(o, values, stored, edges, first, rows, real)
            is_real = jnp.arange(rows) < real
            crossing = [
                slice_rows(b, first, rows)
                if j is None
                else slice_rows(stored[o][j], first + self.layout.widths[o][0], rows)
                for b, j in zip(crossed, reverse.replaced, strict=True)
            ]
            crossing = [
                (masked if linear else repeated)(x, is_real)
                for x, linear in zip(crossing, reverse.linear, strict=True)
            ]
            return edges, reverse.train(given, crossing)

        _, (_, total) = self._chunks(o, chunk, 0, (edges, self._no_grads(o)))
        return list(total)

    def _whole(
        self, o: int, before: Any, values: Any, stored: list[Arrays], edges: Any
    ) -> tuple[Any, Any, Arrays]:
        """The edges, and the gradients of an operation's trained parameters: the whole
        reverse over all its rows at once."""
        rows, reverse = self.layout.chunk[o], self.reverse(o)
        moves = self.moves(o) and not self.is_recurrent(o)

        def chunk(first: Any, edges: Any) -> Any:
            real = self.scalar('counts', o) - first
            given = self._given(o, values, stored, edges, first, rows, real)
            moving, crossing = reverse.move(given)
            if moves:
                edges = self._left(o, edges, moving, given.cotangents, first)
            return edges, reverse.train(given, crossing)

        start = edges, self._no_grads(o)
        before, (edges, total) = self._chunks(o, chunk, before, start)
        return before, edges, total

    def _no_grads(self, o: int) -> Arrays:
        leaves = self.leaves[o][: self.plan.tile(o).trained_count]
        return [self.varied(jnp.zeros_like(x)) for x in leaves]


def _touched(program: Operations, pulls: Pulls) -> set[int]:
    """The types of values that have cotangents."""
    found: set[int] = set()
    for operation, pull in zip(program.operations, pulls, strict=True):
        if pull is not None:
            pairs = zip(operation.inputs, pull.active, strict=True)
            found.update(operation.outputs[k] for k in pull.live)
            found.update(t for t, active in pairs if active)
    return found


def _put(arrays: list[Arrays], o: int, new: Arrays) -> list[Arrays]:
    return [*arrays[:o], new, *arrays[o + 1 :]]
