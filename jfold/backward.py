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
import numpy as np
from jax import lax

from jfold.buffers import (
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
from jfold.components import component_of
from jfold.forward import Forward, Params, State, TileStep
from jfold.layout import SUM_ARITY, SUM_WIDTH, has_gradient
from jfold.tile import Arrays, Rows, combine, partition


class Backward(Forward):
    """One execution with its reverse."""

    def crossed_specs(self, o: int) -> list[jax.ShapeDtypeStruct | None]:
        """Buffers for what crosses; `None` for what takes the place of something."""
        if not self.defers(o):
            return []
        rows, reverse = self.layout.region[o], self.tiles[o].reverse
        return [
            buffer_of(rows, each) if j is None else None
            for each, j in zip(reverse.crossing, reverse.replaced, strict=True)
        ]

    def backward(
        self, values: dict[int, Any], stored: list[Arrays], cotangents: Any
    ) -> Params:
        """Gradients of the parameters, given the cotangents of the results."""
        self._buffers = itertools.count(1, 2)  # none as long as one of the forward pass
        self.weights = {
            o: self.tiles[o].reverse.both_weights(self.params[o])
            for o in filter(self.reverses, self.operations)
        }
        edges = {t: self._new_edges(t, cotangents) for t in sorted(self.active)}
        crossed = [self._new(self.crossed_specs(o)) for o in self.operations]
        state: State = jnp.zeros((), jnp.int32), (edges, stored, crossed)
        tile = functools.partial(self._backward_tile, values=values)
        grads: dict[int, Arrays] = {}
        operations = self.program.operations
        for c in reversed(range(len(self.components))):
            if not self.components[c].operations:
                continue
            moving = [o for o in self.components[c].operations if self.tiles[o].moves]
            level = functools.partial(self._backward_level, tile, c, moving)
            first, *_ = self.components[c].operations
            if self.is_recurrent(first) or not has_gradient(operations[first]):
                state = self.component(c, level, state, down=True)
                continue
            before, (edges, stored, crossed) = state
            # Filed under the last step that runs, as of any level.
            last = jnp.maximum(self.scalar('depth', c) - 1, 0)
            edges = self._all_sums(c, last, edges)
            before, edges, grads[first] = self._whole(
                first, before, values, stored, edges
            )
            state = before, (edges, stored, crossed)
        before, (edges, stored, crossed) = state
        for o in filter(self.runs, self.operations):
            if self.defers(o):
                grads[o] = self._deferred(o, values, stored, edges, crossed[o])
            elif has_gradient(operations[o]) and o not in grads:
                before, edges, grads[o] = self._whole(o, before, values, stored, edges)
        return self._by_layer(grads)

    def _by_layer(self, grads: dict[int, Arrays]) -> Params:
        found: dict[str, list[Arrays]] = {name: [] for name in self.layers}
        for o, grad in sorted(grads.items()):
            found[self.program.operations[o].layer.name].append(grad)
        return {name: self._full(name, grads) for name, grads in found.items()}

    def is_recurrent(self, o: int) -> bool:
        """Whether an operation is of a recurrent component."""
        return self.components[component_of(self.program)[o]].recurrent

    def defers(self, o: int) -> bool:
        """Whether parameter gradients wait for what crosses from the loops."""
        trained = has_gradient(self.program.operations[o])
        wanted = trained and self.is_recurrent(o) and not self.recompute
        return wanted and self.runs(o)

    def _full(self, name: str, grads: list[Arrays]) -> Any:
        """The sum of a layer's gradients, in the structure of its parameters."""
        trained, rest = partition(self.layers[name])
        total = [functools.reduce(jnp.add, x) for x in zip(*grads, strict=True)]
        zeros = list(map(no_gradient, rest))
        total = total or list(map(jnp.zeros_like, trained))
        return combine(total, zeros, self.layers[name])

    def _new_edges(self, t: int, cotangents: Any) -> Any:
        outputs, metrics = cotangents
        type_ = self.program.types[t]
        buffer = self._zeros(self.layout.edge_rows[t], type_.shape, type_.dtype)
        for j, number in enumerate(self.program.output_types):
            if number == t:
                buffer = write(buffer, outputs[j], self.layout.edge_outputs[j])
        for m in self._metrics:
            for j, number in enumerate(self.program.metrics[m][2]):
                if number == t:
                    rows = masked(metrics[m][j], self._observed(m))
                    buffer = write(buffer, rows, self.layout.edge_metrics[m][j])
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
        for t in sorted({t for each in operations for t in each.outputs} & self.active):
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
        """Of each output of a tile, summed over the uses of its values."""
        operation = self.program.operations[o]
        bases = self.layout.value_base[o]
        for k, (t, base) in enumerate(zip(operation.outputs, bases, strict=True)):
            type_ = self.program.types[operation.outputs[k]]
            if t not in self.active:
                shape = (rows, *type_.shape)
                inexact = jnp.issubdtype(type_.dtype, jnp.inexact)
                yield (
                    jnp.zeros(shape, type_.dtype)
                    if inexact
                    else np.zeros(shape, jax.dtypes.float0)
                )
                continue
            at = base - self.capacity.constants[t] + first
            fans = range(self.capacity.fans[t])
            indices = [self.index(('consumer', t, f), at, rows) for f in fans]
            yield gather_sum(edges[t], indices)

    def _backward_tile(
        self, o: int, first: Any, end: Any, rows: int, carry: Any, *, values: Any
    ) -> Any:
        edges, stored, crossed = carry
        given = self._given(o, values, stored, edges, first, rows)
        moving, crossing = self.tiles[o].reverse.move(given)
        edges = self._left(o, edges, moving, given.cotangents, first)
        if not self.defers(o):
            return edges, stored, crossed
        kept, new = list(stored[o]), list(crossed[o])
        # Products make room a widest tile further on, where they have been read: tiles
        # run from the last rows to the first. Rows done again still find their own.
        for k, (x, j) in enumerate(
            zip(crossing, self.tiles[o].reverse.replaced, strict=True)
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
        if self.recompute:
            kept = self.tiles[o].reverse.keep(self.weights[o], inputs, rows)[1]
        else:
            kept = [slice_rows(b, first, rows) for b in stored[o]]
        if real is not None:
            is_real = jnp.arange(rows) < real
            if not self.recompute:  # from inputs that repeat a row
                kept = [repeated(x, is_real) for x in kept]
            cotangents = [
                x if x.dtype == jax.dtypes.float0 else masked(x, is_real)
                for x in cotangents
            ]
        return Rows(self.weights[o], inputs, kept, cotangents, rows)

    def _left(
        self, o: int, edges: Any, moving: Arrays, cotangents: Arrays, first: Any
    ) -> Any:
        """The edges, with the cotangents of the inputs of rows."""
        edges, rest = dict(edges), zip(moving, self.tiles[o].reverse.pulls, strict=True)
        operation = self.program.operations[o]
        for t, base in zip(operation.inputs, self.layout.edge_base[o], strict=True):
            if t in self.active:
                x, known = next(rest)
                read = others(t, operation.outputs, cotangents, known)
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
        rows, reverse = self.layout.chunk[o], self.tiles[o].reverse

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
        rows, reverse = self.layout.chunk[o], self.tiles[o].reverse
        moves = self.tiles[o].moves and not self.is_recurrent(o)

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
        return [jnp.zeros_like(x) for x in partition(self.params[o])[0]]


def _put(arrays: list[Arrays], o: int, new: Arrays) -> list[Arrays]:
    return [*arrays[:o], new, *arrays[o + 1 :]]


def no_gradient(x: Any) -> Any:
    """What stands for the gradient of data."""
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.zeros_like(x)
    return np.zeros(x.shape, jax.dtypes.float0)
