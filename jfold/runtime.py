# SPDX-License-Identifier: Apache-2.0
"""The runtime: a schedule and parameters to values, and its reverse.

Forward: one loop over levels; in it, per operation and tile width, an inner loop over
tiles. A tile gathers its inputs from the value buffers, runs the vmapped operation and
writes its rows in place. Reverse, under one `custom_vjp`, for which `while_loop` has no
rule: the same loop backwards. A tile *gathers* the cotangents of its outputs from where
the consumers left them and writes those of its inputs to edge rows of its own, so
nothing is scattered and sums have a fixed order. Matrix products of the forward pass
are kept, elementwise values are computed again; parameter gradients are deferred until
after the loop and taken over all rows of an operation in large chunks.

No buffer-sized copy may appear inside a loop: buffers are only read by gathers or
slices, and written by `dynamic_update_slice`, never inside a conditional.
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

from jfold.layout import (
    SUM_ARITY,
    SUM_WIDTH,
    Layout,
    Spec,
    active_types,
    has_gradient,
    layout,
)
from jfold.program import Operation
from jfold.schedule import Schedule
from jfold.tile import Arrays, Rows, Tile, combine, make_tile, partition

Params = dict[str, Any]


def execute(params: Params, schedule: Schedule) -> tuple[Arrays, list[Arrays]]:
    """The tensors of the result [examples, ...], and of each metric [capacity, ...].

    Differentiable with respect to `params`; the schedule is data.
    """
    frozen = jax.tree.map(lax.stop_gradient, schedule)
    layers = [x for x in schedule.spec.program.layers if x.params is not None]
    # Whatever mapping the user keeps parameters in, and whatever else is in it.
    used = {layer.name: params[layer.name] for layer in layers}
    return _run(schedule.spec, used, frozen.indices, frozen.constants)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(
    spec: Spec, params: Params, indices: Any, constants: tuple[Any, ...]
) -> tuple[Arrays, list[Arrays]]:
    run = _Run(spec, params, indices, constants)
    values, _ = run.forward(keep=False)
    return run.results(values)


def _run_forward(
    spec: Spec, params: Params, indices: Any, constants: tuple[Any, ...]
) -> tuple[Any, Any]:
    run = _Run(spec, params, indices, constants)
    values, kept = run.forward(keep=True)
    return run.results(values), (params, indices, constants, values, kept)


def _run_backward(spec: Spec, residuals: Any, cotangents: Any) -> tuple[Any, Any, Any]:
    params, indices, constants, values, kept = residuals
    run = _Run(spec, params, indices, constants)
    grads = run.backward(values, kept, cotangents)
    return grads, _no_gradient(indices), jax.tree.map(_no_gradient, constants)


_run.defvjp(_run_forward, _run_backward)


def _no_gradient(x: Any) -> Any:
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.zeros_like(x)
    return np.zeros(x.shape, jax.dtypes.float0)


# ---- a whole schedule ----------------------------------------------------------------


class _Run:
    """One execution while it is traced: constants of the trace, and the two passes."""

    def __init__(
        self, spec: Spec, params: Params, indices: Any, constants: tuple[Any, ...]
    ) -> None:
        self.program, self.capacity = spec.program, spec.capacity
        self.layout: Layout = layout(spec)
        self.indices, self.constant = indices, constants
        self.active = active_types(spec.program)
        self.layers = params
        self.params = [params.get(o.layer.name) for o in self.program.operations]
        self.tiles = list(map(self._tile, self.program.operations, self.params))
        self._buffers = itertools.count(0, 2)
        self.computed = {t for o in self.program.operations for t in o.outputs}

    def _tile(self, operation: Operation, params: Any) -> Tile:
        types = tuple(self.program.types[t] for t in operation.inputs)
        active = tuple(t in self.active for t in operation.inputs)
        return make_tile(operation, params, types, active)

    # ---- reading the index array

    def index(self, name: Any, first: Any, size: int) -> Any:
        """Part of a section of the index array."""
        begin = self.layout.sections[name] + first
        return lax.dynamic_slice(self.indices, (begin,), (size,))

    def scalar(self, name: Any, at: Any = 0) -> Any:
        """One number of the index array."""
        return self.index(name, at, 1)[0]

    def level(
        self,
        tile: Callable[..., Any],
        level: Any,
        operations: Sequence[int],
        carry: Any,
    ) -> Any:
        """`tile(operation, start, end, width, i, carry)` for all tiles of a level."""
        # Each loop starts from what the one before has counted. Without this chain XLA
        # may reorder two loops, and copies a buffer that one reads and one writes.
        before: Any = 0
        for o in operations:
            widths = self.layout.widths[o]
            at = level * self.layout.column[-1] + self.layout.column[o]
            first, end, *counts = self.index('tiles', at, 2 + len(widths))
            first = first + before
            for width, count in zip(widths, counts, strict=True):
                step = functools.partial(tile, o, first, end, width)
                done, carry = _repeat(step, count, carry)
                first = first + done * width
                before = done - count
        return carry

    # ---- forward

    def forward(self, keep: bool) -> tuple[dict[int, Any], list[Arrays]]:
        """Value buffers of computed types, and what the reverse pass needs."""
        values = {t: self._new_values(t) for t in sorted(self.computed)}
        stored = [self._new_rows(o, 'stored') if keep else [] for o in self._operations]
        step = functools.partial(self._forward_level, keep=keep)
        done: tuple[dict[int, Any], list[Arrays]] = lax.fori_loop(
            0, self.scalar('depth'), step, (values, stored)
        )
        return done

    @property
    def _operations(self) -> range:
        return range(len(self.tiles))

    def _forward_level(self, level: Any, carry: Any, keep: bool) -> Any:
        tile = functools.partial(self._forward_tile, keep=keep)
        return self.level(tile, level, self._operations, carry)

    def _new_values(self, t: int) -> Any:
        type_ = self.program.types[t]
        buffer = self._zeros(self.layout.value_rows[t], type_.shape, type_.dtype)
        if not self.capacity.constants[t]:
            return buffer
        return _write(buffer, jnp.asarray(self.constant[t]), 0)

    def _new_rows(self, o: int, kind: str) -> Arrays:
        """Buffers with an operation's rows, for what is 'stored' or 'crossing'."""
        if not self._reverses(o):
            return []
        specs = getattr(self.tiles[o].reverse, kind)
        rows = self.layout.region[o]
        return [self._zeros(rows, s.shape, s.dtype) for s in specs]

    def _zeros(self, rows: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """A new buffer, a few rows longer than the one before.

        Of two buffers of one shape XLA makes one, and copies it.
        """
        return jnp.zeros((rows + next(self._buffers), *shape), dtype)

    def _forward_tile(
        self, o: int, start: Any, end: Any, rows: int, i: Any, carry: Any, *, keep: bool
    ) -> Any:
        (values, stored), first = carry, start + i * rows
        # Past the end of the level inputs are not there yet: repeat a real row.
        inputs = self._inputs(o, values, first, rows, real=end - first)
        if keep and self._reverses(o):
            made, kept = self.tiles[o].reverse.keep(self.params[o], inputs, rows)
            written = [
                _write(b, x, first) for b, x in zip(stored[o], kept, strict=True)
            ]
            stored = [*stored[:o], written, *stored[o + 1 :]]
        else:
            made = self.tiles[o].outputs(self.params[o], inputs, rows)
        values = dict(values)
        operation = self.program.operations[o]
        bases = self.layout.value_base[o]
        for t, base, x in zip(operation.outputs, bases, made, strict=True):
            read = _of_type(t, operation.inputs, inputs)
            values[t] = _write(values[t], _after(read, x, first), base + first)
        return values, stored

    def _inputs(
        self, o: int, values: dict[int, Any], first: Any, rows: int, real: Any = None
    ) -> Arrays:
        """Inputs of rows; those from number `real` on, if given, repeat the first."""
        inputs = []
        for a, t in enumerate(self.program.operations[o].inputs):
            index = self.index(('input', o, a), first, rows)
            if real is not None:
                index = jnp.where(jnp.arange(rows) < real, index, index[0])
            inputs.append(_take(self._buffer(values, t), index))
        return inputs

    def _buffer(self, values: dict[int, Any], t: int) -> Any:
        return values[t] if t in values else jnp.asarray(self.constant[t])

    # ---- what the forward pass stores for the reverse pass

    def _reverses(self, o: int) -> bool:
        """Whether the reverse pass has anything to do for an operation."""
        operation = self.program.operations[o]
        return has_gradient(operation) or self.tiles[o].moves

    # ---- results

    def results(self, values: dict[int, Any]) -> tuple[Arrays, list[Arrays]]:
        """Tensors of the result and of each metric, spare rows zero."""
        examples = self.capacity.examples
        outputs = [
            _take(self._buffer(values, t), self.index(('output', j), 0, examples))
            for j, t in enumerate(self.program.output_types)
        ]
        return outputs, [self._metric(m, values) for m in self._metrics]

    @property
    def _metrics(self) -> range:
        return range(len(self.program.metrics))

    def _metric(self, m: int, values: dict[int, Any]) -> Arrays:
        size = self.capacity.metrics[m]
        found = [
            _take(self._buffer(values, t), self.index(('metric', m, j), 0, size))
            for j, t in enumerate(self.program.metrics[m][2])
        ]
        return [_masked(x, self._observed(m)) for x in found]

    def _observed(self, m: int) -> Any:
        """Which rows of a metric are real."""
        return jnp.arange(self.capacity.metrics[m]) < self.scalar('observed', m)

    # ---- reverse

    def backward(
        self, values: dict[int, Any], stored: list[Arrays], cotangents: Any
    ) -> Params:
        """Gradients of the parameters, given the cotangents of the results."""
        self._buffers = itertools.count(1, 2)  # none as long as one of the forward pass
        edges = {t: self._new_edges(t, cotangents) for t in sorted(self.active)}
        crossed = [self._new_rows(o, 'crossing') for o in self._operations]
        step = functools.partial(self._backward_level, values=values, stored=stored)
        depth = self.scalar('depth')
        edges, crossed = lax.fori_loop(0, depth, step, (edges, crossed))
        grads: dict[str, list[Arrays]] = {name: [] for name in self.layers}
        for o, operation in enumerate(self.program.operations):
            if has_gradient(operation):
                grad = self._deferred(o, values, stored[o], edges, crossed[o])
                grads[operation.layer.name].append(grad)
        return {name: self._full(name, found) for name, found in grads.items()}

    def _full(self, name: str, grads: list[Arrays]) -> Any:
        """The sum of a layer's gradients, in the structure of its parameters."""
        trained, rest = partition(self.layers[name])
        total = [functools.reduce(jnp.add, x) for x in zip(*grads, strict=True)]
        zeros = list(map(_no_gradient, rest))
        total = total or list(map(jnp.zeros_like, trained))
        return combine(total, zeros, self.layers[name])

    def _new_edges(self, t: int, cotangents: Any) -> Any:
        outputs, metrics = cotangents
        type_ = self.program.types[t]
        buffer = self._zeros(self.layout.edge_rows[t], type_.shape, type_.dtype)
        for j, number in enumerate(self.program.output_types):
            if number == t:
                buffer = _write(buffer, outputs[j], self.layout.edge_outputs[j])
        for m in self._metrics:
            for j, number in enumerate(self.program.metrics[m][2]):
                if number == t:
                    rows = _masked(metrics[m][j], self._observed(m))
                    buffer = _write(buffer, rows, self.layout.edge_metrics[m][j])
        return buffer

    def _backward_level(
        self, i: Any, carry: Any, *, values: dict[int, Any], stored: list[Arrays]
    ) -> Any:
        level = self.scalar('depth') - 1 - i
        edges, crossed = carry
        for t in sorted(self.active):
            if self.capacity.sums[t]:
                edges = edges | {t: self._sums(t, level, edges[t])}
        tile = functools.partial(self._backward_tile, values=values, stored=stored)
        moving = [o for o in self._operations if self.tiles[o].moves]
        return self.level(tile, level, moving, (edges, crossed))

    def _sums(self, t: int, level: Any, buffer: Any) -> Any:
        """Sums the uses of this level's values that have many."""
        base, stages = self.layout.edge_sums[t], self.capacity.stages

        def tile(i: Any, carry: Any) -> Any:
            first, buffer = carry
            row = first + i * SUM_WIDTH
            indices = [
                self.index(('sum', t, f), row, SUM_WIDTH) for f in range(SUM_ARITY)
            ]
            return first, _write(buffer, _sum(buffer, indices), base + row)

        def stage(s: Any, buffer: Any) -> Any:
            at = 2 * (level * stages + s)
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
            yield _sum(edges[t], indices)

    def _backward_tile(
        self,
        o: int,
        start: Any,
        end: Any,
        rows: int,
        i: Any,
        carry: Any,
        *,
        values: dict[int, Any],
        stored: list[Arrays],
    ) -> Any:
        (edges, crossed), first = carry, start + i * rows
        inputs = self._inputs(o, values, first, rows)
        kept = [_slice(b, first, rows) for b in stored[o]]
        cotangents = list(self._cotangents(o, edges, first, rows))
        given = Rows(self.params[o], inputs, kept, cotangents, rows)
        moving, crossing = self.tiles[o].reverse.move(given)
        edges, rest = dict(edges), iter(moving)
        operation = self.program.operations[o]
        for t, base in zip(operation.inputs, self.layout.edge_base[o], strict=True):
            if t in self.active:
                read = _of_type(t, operation.outputs, cotangents)
                x = _after(read, next(rest), first)
                edges[t] = _write(edges[t], x, base + first)
        pairs = zip(crossed[o], crossing, strict=True)
        written = [_write(b, x, first) for b, x in pairs]
        return edges, [*crossed[:o], written, *crossed[o + 1 :]]

    def _deferred(
        self, o: int, values: Any, stored: Arrays, edges: Any, crossed: Arrays
    ) -> Arrays:
        """The gradients of an operation's trained parameters, over all its rows."""
        rows = self.layout.chunk[o]
        count = self.scalar('counts', o)
        reverse = self.tiles[o].reverse

        def chunk(i: Any, total: Arrays) -> Arrays:
            first = i * rows
            real = jnp.arange(rows) < count - first
            # Rows that stand for no node repeat a real one, with a cotangent of zero:
            # on zeros the operation may give NaN, and zero times NaN is NaN.
            inputs = self._inputs(o, values, first, rows, real=count - first)
            kept = [_repeated(_slice(b, first, rows), real) for b in stored]
            crossing = [
                (_masked if linear else _repeated)(_slice(b, first, rows), real)
                for b, linear in zip(crossed, reverse.linear, strict=True)
            ]
            cotangents = [
                x if x.dtype == jax.dtypes.float0 else _masked(x, real)
                for x in self._cotangents(o, edges, first, rows)
            ]
            given = Rows(self.params[o], inputs, kept, cotangents, rows)
            grads = reverse.train(given, crossing)
            return list(map(jnp.add, total, grads))

        zeros = [jnp.zeros_like(x) for x in partition(self.params[o])[0]]
        total: Arrays = lax.fori_loop(0, -(-count // rows), chunk, zeros)
        return total


def _repeat(step: Callable[[Any, Any], Any], count: Any, carry: Any) -> Any:
    """How often `step(i, carry)` ran, which is `count`, and the last carry."""

    def body(state: Any) -> Any:
        i, carry = state
        return i + 1, step(i, carry)

    start = jnp.zeros((), jnp.int32)
    return lax.while_loop(lambda state: state[0] < count, body, (start, carry))


# ---- buffers -------------------------------------------------------------------------


def _take(buffer: Any, rows: Any) -> Any:
    if not buffer.shape[0]:  # of a type that does not occur there is nothing to gather
        return jnp.zeros((*rows.shape, *buffer.shape[1:]), buffer.dtype)
    return buffer.at[rows].get(mode='promise_in_bounds')


def _slice(buffer: Any, first: Any, rows: int) -> Any:
    return lax.dynamic_slice_in_dim(buffer, first, rows)


def _write(buffer: Any, rows: Any, first: Any) -> Any:
    rows = rows.astype(buffer.dtype)
    return lax.dynamic_update_slice_in_dim(buffer, rows, first, 0)


def _of_type(t: int, types: Sequence[int], arrays: Sequence[Any]) -> Arrays:
    return [x for n, x in zip(types, arrays, strict=True) if n == t]


def _after(read: Arrays, x: Any, first: Any) -> Any:
    """`x`, in a form that XLA cannot compute before what was `read` of a buffer.

    Where a result does not depend on an input of its own type, XLA may write the one
    before it reads the other, and then copies the whole buffer for each tile.
    """
    for each in read:
        x = jnp.where(first >= 0, x.astype(each.dtype), each)
    return x


def _sum(buffer: Any, indices: list[Any]) -> Any:
    return functools.reduce(jnp.add, [_take(buffer, rows) for rows in indices])


def _by_row(mask: Any, x: Any) -> Any:
    return mask.reshape(mask.shape + (1,) * (x.ndim - 1))


def _masked(x: Any, real: Any) -> Any:
    return jnp.where(_by_row(real, x), x, jnp.zeros((), x.dtype))


def _repeated(x: Any, real: Any) -> Any:
    return jnp.where(_by_row(real, x), x, x[:1])
