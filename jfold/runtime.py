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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jfold.layers import pack
from jfold.layout import (
    SUM_ARITY,
    SUM_WIDTH,
    Layout,
    Spec,
    active_types,
    has_gradient,
    layout,
    tile_column,
    tile_columns,
    tile_widths,
)
from jfold.program import Operation
from jfold.schedule import Schedule
from jfold.types import TupleType

Arrays = list[Any]
Params = dict[str, Any]


def execute(params: Params, schedule: Schedule) -> tuple[Arrays, list[Arrays]]:
    """The tensors of the result [examples, ...], and of each metric [capacity, ...].

    Differentiable with respect to `params`; the schedule is data.
    """
    frozen = jax.tree.map(lax.stop_gradient, schedule)
    return _run(schedule.spec, params, frozen.indices, frozen.constants)


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


# ---- one operation on one tile -------------------------------------------------------


@dataclass(frozen=True)
class Tile:
    """An operation as the runtime sees it: flat lists of arrays with a row axis."""

    operation: Operation
    active: tuple[bool, ...]  # per input, whether a gradient flows into it

    def outputs(self, params: Any, inputs: Sequence[Any], rows: int) -> Arrays:
        """Runs the operation on `rows` rows."""
        return list(jax.tree.leaves(self._call(rows)(params, *self._arguments(inputs))))

    def linearized(
        self, params: Any, inputs: Sequence[Any], rows: int
    ) -> tuple[Arrays, Any]:
        """Outputs, and the reverse as a pytree whose leaves are what it remembers.

        Only products of matrices are remembered beside parameters and inputs.
        """
        trained, rest = _partition(params)
        moving = [x for x, active in zip(inputs, self.active, strict=True) if active]
        policy = jax.checkpoint_policies.dots_saveable
        call = self._call(rows, policy)

        def outputs(trained: Arrays, moving: Arrays) -> Arrays:
            moved = iter(moving)
            given = [
                next(moved) if active else x
                for x, active in zip(inputs, self.active, strict=True)
            ]
            joined = _join(trained, rest, params)
            return list(jax.tree.leaves(call(joined, *self._arguments(given))))

        return jax.vjp(outputs, trained, moving)

    def _arguments(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        arguments = pack(TupleType(self.operation.arguments), list(inputs))
        return tuple(arguments)

    def _call(self, rows: int, policy: Any = None) -> Callable[..., Any]:
        layer = self.operation.layer
        call = layer.call
        if policy is not None:
            call = jax.checkpoint(call, policy=policy, prevent_cse=False)
        if layer.batched:
            return call
        axes = (None, *(0 for _ in self.operation.arguments))
        return jax.vmap(call, axes, axis_size=rows)

    def remembered(self, params: Any, specs: Sequence[Any]) -> list[int | None]:
        """Of each leaf of the reverse, the row axis of what must be stored, or `None`.

        What is a parameter, an input, or has no rows is at hand in the reverse pass.
        """
        shapes = [self._shapes(params, specs, rows) for rows in (2, 3)]
        return [
            None if known else _row_axis(a, b)
            for (a, known), (b, _) in zip(*shapes, strict=True)
        ]

    def _shapes(
        self, params: Any, specs: Sequence[Any], rows: int
    ) -> list[tuple[tuple[int, ...], bool]]:
        found: list[tuple[tuple[int, ...], bool]] = []

        def look(params: Any, inputs: Arrays) -> None:
            _, reverse = self.linearized(params, inputs, rows)
            known = {id(x) for x in jax.tree.leaves((params, inputs))}
            leaves = jax.tree.leaves(reverse)
            found.extend((np.shape(x), id(x) in known) for x in leaves)

        tiles = [jax.ShapeDtypeStruct((rows, *s.shape), s.dtype) for s in specs]
        jax.eval_shape(look, params, tiles)
        return found


def _row_axis(two: tuple[int, ...], three: tuple[int, ...]) -> int | None:
    axes = [i for i, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
    return axes[0] if len(axes) == 1 else None


def _is_trained(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def _partition(params: Any) -> tuple[Arrays, Arrays]:
    leaves = jax.tree.leaves(params)
    trained = [x for x in leaves if _is_trained(x)]
    return trained, [x for x in leaves if not _is_trained(x)]


def _join(trained: Arrays, rest: Arrays, params: Any) -> Any:
    leaves, structure = jax.tree.flatten(params)
    parts = iter(trained), iter(rest)
    return jax.tree.unflatten(
        structure, [next(parts[0] if _is_trained(x) else parts[1]) for x in leaves]
    )


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
        operations = self.program.operations
        self.tiles = [
            Tile(o, tuple(t in self.active for t in o.inputs)) for o in operations
        ]
        self.params = [params.get(o.layer.name) for o in operations]
        self.computed = {t for o in operations for t in o.outputs}
        self._known_axes: dict[int, list[int | None]] = {}

    # ---- reading the index array

    def index(self, name: Any, first: Any, size: int) -> Any:
        """Part of a section of the index array."""
        begin = self.layout.sections[name] + first
        return lax.dynamic_slice(self.indices, (begin,), (size,))

    def scalar(self, name: Any, at: Any = 0) -> Any:
        """One number of the index array."""
        return self.index(name, at, 1)[0]

    def loop(
        self, tile: Callable[..., Any], level: Any, operation: int, carry: Any
    ) -> Any:
        """`tile(operation, first row, width, carry)` for the tiles of a level."""
        widths = tile_widths(self.program.operations[operation])
        column = tile_column(self.program, operation)
        at = level * tile_columns(self.program) + column
        first, *counts = self.index('tiles', at, 1 + len(widths))
        for width, count in zip(widths, counts, strict=True):

            def body(i: Any, carry: Any, width: int = width, first: Any = first) -> Any:
                return tile(operation, first + i * width, width, carry)

            carry = lax.fori_loop(0, count, body, carry)
            first = first + count * width
        return carry

    # ---- forward

    def forward(self, keep: bool) -> tuple[dict[int, Any], list[Arrays]]:
        """Value buffers of computed types, and what the reverse pass needs."""
        values = {t: self._new_values(t) for t in sorted(self.computed)}
        stored = [self._new_stored(o) if keep else [] for o in self._operations]
        return lax.fori_loop(
            0,
            self.scalar('depth'),
            lambda level, carry: self._forward_level(level, carry, keep),
            (values, stored),
        )

    @property
    def _operations(self) -> range:
        return range(len(self.tiles))

    def _forward_level(self, level: Any, carry: Any, keep: bool) -> Any:
        def tile(o: int, first: Any, rows: int, carry: Any) -> Any:
            return self._forward_tile(o, first, rows, carry, keep)

        for o in self._operations:
            carry = self.loop(tile, level, o, carry)
        return carry

    def _new_values(self, t: int) -> Any:
        type_ = self.program.types[t]
        buffer = jnp.zeros((self.layout.value_rows[t], *type_.shape), type_.dtype)
        if not self.capacity.constants[t]:
            return buffer
        return _write(buffer, jnp.asarray(self.constant[t]), 0)

    def _new_stored(self, o: int) -> Arrays:
        specs = self._stored_specs(o)
        return [jnp.zeros((self.layout.region[o], *s.shape), s.dtype) for s in specs]

    def _forward_tile(
        self, o: int, first: Any, rows: int, carry: Any, keep: bool
    ) -> Any:
        values, stored = carry
        inputs = self._inputs(o, values, first, rows)
        if keep and self._reverses(o):
            made, reverse = self.tiles[o].linearized(self.params[o], inputs, rows)
            kept = self._kept(o, reverse)
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
            values[t] = _write(values[t], x, base + first)
        return values, stored

    def _inputs(self, o: int, values: dict[int, Any], first: Any, rows: int) -> Arrays:
        types = self.program.operations[o].inputs
        return [
            _take(self._buffer(values, t), self.index(('input', o, a), first, rows))
            for a, t in enumerate(types)
        ]

    def _buffer(self, values: dict[int, Any], t: int) -> Any:
        return values[t] if t in values else jnp.asarray(self.constant[t])

    # ---- what the forward pass stores for the reverse pass

    def _reverses(self, o: int) -> bool:
        """Whether the reverse pass has anything to do for an operation."""
        operation = self.program.operations[o]
        return has_gradient(operation) or any(self.tiles[o].active)

    def _input_specs(self, o: int) -> list[Any]:
        types = [self.program.types[t] for t in self.program.operations[o].inputs]
        return [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types]

    def _axes(self, o: int) -> list[int | None]:
        if o not in self._known_axes:
            specs = self._input_specs(o)
            self._known_axes[o] = self.tiles[o].remembered(self.params[o], specs)
        return self._known_axes[o]

    def _stored_specs(self, o: int) -> list[Any]:
        if not self._reverses(o):
            return []
        specs: list[Any] = []

        def look(params: Any, inputs: Arrays) -> None:
            _, reverse = self.tiles[o].linearized(params, inputs, 2)
            kept = self._kept(o, reverse)
            specs.extend(jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in kept)

        tiles = [
            jax.ShapeDtypeStruct((2, *s.shape), s.dtype) for s in self._input_specs(o)
        ]
        jax.eval_shape(look, self.params[o], tiles)
        return specs

    def _kept(self, o: int, reverse: Any) -> Arrays:
        """The leaves of a reverse to be stored, rows first."""
        leaves = jax.tree.leaves(reverse)
        axes = self._axes(o)
        return [
            jnp.moveaxis(x, axis, 0)
            for x, axis in zip(leaves, axes, strict=True)
            if axis is not None
        ]

    def _revived(self, o: int, inputs: Arrays, stored: Arrays, rows: int) -> Any:
        """The reverse of a tile around what was stored of it."""
        _, reverse = self.tiles[o].linearized(self.params[o], inputs, rows)
        leaves, structure = jax.tree.flatten(reverse)
        rest = iter(stored)
        axes = self._axes(o)
        leaves = [
            x if axis is None else jnp.moveaxis(next(rest), 0, axis)
            for x, axis in zip(leaves, axes, strict=True)
        ]
        return jax.tree.unflatten(structure, leaves)

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
        edges = {t: self._new_edges(t, cotangents) for t in sorted(self.active)}
        depth = self.scalar('depth')
        edges = lax.fori_loop(
            0,
            depth,
            lambda i, edges: self._backward_level(depth - 1 - i, edges, values, stored),
            edges,
        )
        grads: Params = {}
        for o, operation in enumerate(self.program.operations):
            if has_gradient(operation):
                name, grad = (
                    operation.layer.name,
                    self._deferred(o, values, stored, edges),
                )
                add = functools.partial(jax.tree.map, jnp.add)
                grads[name] = add(grads[name], grad) if name in grads else grad
        return {
            layer.name: self._full(layer.name, grads)
            for layer in self.program.layers
            if layer.params is not None
        }

    def _full(self, name: str, grads: Params) -> Any:
        """Gradients in the structure of the parameters."""
        found = [o.layer.name for o in self.program.operations]
        if name not in found:
            layer = next(x for x in self.program.layers if x.name == name)
            return jax.tree.map(
                lambda x: _no_gradient(jnp.zeros(x.shape, x.dtype)), layer.params
            )
        params = self.params[found.index(name)]
        _, rest = _partition(params)
        return _join(grads.get(name, []), [_no_gradient(x) for x in rest], params)

    def _new_edges(self, t: int, cotangents: Any) -> Any:
        outputs, metrics = cotangents
        type_ = self.program.types[t]
        buffer = jnp.zeros((self.layout.edge_rows[t], *type_.shape), type_.dtype)
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
        self, level: Any, edges: Any, values: dict[int, Any], stored: list[Arrays]
    ) -> Any:
        def tile(o: int, first: Any, rows: int, edges: Any) -> Any:
            return self._backward_tile(o, first, rows, edges, values, stored)

        for t in sorted(self.active):
            if self.capacity.sums[t]:
                edges = edges | {t: self._sums(t, level, edges[t])}
        for o in self._operations:
            if any(self.tiles[o].active):
                edges = self.loop(tile, level, o, edges)
        return edges

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
        self, o: int, first: Any, rows: int, edges: Any, values: Any, stored: Any
    ) -> Any:
        inputs = self._inputs(o, values, first, rows)
        kept = [_slice(b, first, rows) for b in stored[o]]
        reverse = self._revived(o, inputs, kept, rows)
        _, moving = reverse(list(self._cotangents(o, edges, first, rows)))
        edges, moving = dict(edges), iter(moving)
        operation = self.program.operations[o]
        for t, base in zip(operation.inputs, self.layout.edge_base[o], strict=True):
            if t in self.active:
                edges[t] = _write(edges[t], next(moving), base + first)
        return edges

    def _deferred(
        self, o: int, values: Any, stored: list[Arrays], edges: Any
    ) -> Arrays:
        """The gradients of an operation's trained parameters, over all its rows."""
        rows = self.layout.chunk[o]
        count = self.scalar('counts', o)

        def chunk(i: Any, total: Arrays) -> Arrays:
            first = i * rows
            real = jnp.arange(rows) < count - first
            inputs = self._inputs(o, values, first, rows)
            # Rows that stand for no node repeat a real one, with a cotangent of zero:
            # on zeros the operation may give NaN, and zero times NaN is NaN.
            kept = [_repeated(_slice(b, first, rows), real) for b in stored[o]]
            cotangents = [
                x if x.dtype == jax.dtypes.float0 else _masked(x, real)
                for x in self._cotangents(o, edges, first, rows)
            ]
            trained, _ = self._revived(o, inputs, kept, rows)(cotangents)
            return list(map(jnp.add, total, trained))

        zeros = [jnp.zeros_like(x) for x in _partition(self.params[o])[0]]
        return lax.fori_loop(0, -(-count // rows), chunk, zeros)


# ---- buffers -------------------------------------------------------------------------


def _take(buffer: Any, rows: Any) -> Any:
    return buffer.at[rows].get(mode='promise_in_bounds')


def _slice(buffer: Any, first: Any, rows: int) -> Any:
    start = (first,) + (0,) * (buffer.ndim - 1)
    return lax.dynamic_slice(buffer, start, (rows, *buffer.shape[1:]))


def _write(buffer: Any, rows: Any, first: Any) -> Any:
    start = (first,) + (0,) * (buffer.ndim - 1)
    return lax.dynamic_update_slice(buffer, rows.astype(buffer.dtype), start)


def _sum(buffer: Any, indices: list[Any]) -> Any:
    return functools.reduce(jnp.add, [_take(buffer, rows) for rows in indices])


def _by_row(mask: Any, x: Any) -> Any:
    return mask.reshape(mask.shape + (1,) * (x.ndim - 1))


def _masked(x: Any, real: Any) -> Any:
    return jnp.where(_by_row(real, x), x, jnp.zeros((), x.dtype))


def _repeated(x: Any, real: Any) -> Any:
    return jnp.where(_by_row(real, x), x, x[:1])
