# SPDX-License-Identifier: Apache-2.0
"""The runtime: a schedule and parameters to values, and its reverse.

Forward: component after component; one loop over the levels of each, in it, per
operation and tile width, an inner loop over tiles. A tile gathers its inputs from the
value buffers, runs the vmapped operation and writes its rows in place. Reverse, under
one `custom_vjp`, for which `while_loop` has no rule: the same backwards. A tile
*gathers* the cotangents of its outputs from where the consumers left them and writes
those of its inputs to edge rows of its own, so nothing is scattered and sums have a
fixed order. Matrix products of the forward pass are kept, elementwise values are
computed again. Parameter gradients are taken over all rows of an operation in large
chunks: of recurrent operations after all loops, from what these left in the place of
the products; of others at once.

No buffer-sized copy may appear inside a loop: buffers are only read by gathers or
slices, and written by `dynamic_update_slice`, never inside a conditional.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jfold.components import component_of
from jfold.layout import (
    FIXED,
    RECOMPUTE_ALL,
    SUM_ARITY,
    SUM_WIDTH,
    Layout,
    Spec,
    active_types,
    has_gradient,
    layout,
    running,
)
from jfold.program import Program
from jfold.schedule import Schedule
from jfold.tile import Arrays, Rows, Tile, combine, make_tile, partition

Params = dict[str, Any]
State: TypeAlias = tuple[Any, Any]  # a zero that is handed on, and the buffers
LevelStep: TypeAlias = Callable[[Any, State], State]
TileStep: TypeAlias = Callable[..., Any]


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
    values, stored = run.forward(keep=not run.recompute)
    return run.results(values), (params, indices, constants, values, stored)


def _run_backward(spec: Spec, residuals: Any, cotangents: Any) -> tuple[Any, Any, Any]:
    params, indices, constants, values, stored = residuals
    run = _Run(spec, params, indices, constants)
    grads = run.backward(values, stored, cotangents)
    return grads, _no_gradient(indices), jax.tree.map(_no_gradient, constants)


_run.defvjp(_run_forward, _run_backward)


def _no_gradient(x: Any) -> Any:
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.zeros_like(x)
    return np.zeros(x.shape, jax.dtypes.float0)


def tiles(program: Program, params: Sequence[Any]) -> list[Tile]:
    """The tile of each operation, given what the parameters of each look like."""
    active = active_types(program)
    return [
        make_tile(
            operation,
            of_operation,
            tuple(program.types[t] for t in operation.inputs),
            tuple(t in active for t in operation.inputs),
        )
        for operation, of_operation in zip(program.operations, params, strict=True)
    ]


# ---- a whole schedule ----------------------------------------------------------------


class _Run:
    """One execution while it is traced: constants of the trace, and the two passes."""

    def __init__(
        self, spec: Spec, params: Params, indices: Any, constants: tuple[Any, ...]
    ) -> None:
        self.program, self.capacity = spec.program, spec.capacity
        self.layout: Layout = layout(spec)
        self.components = running(spec)
        self.indices, self.constant = indices, constants
        self.active = active_types(spec.program)
        self.layers = params
        self.params = [params.get(o.layer.name) for o in self.program.operations]
        self.tiles = tiles(self.program, self.params)
        self.recompute = spec.residuals == RECOMPUTE_ALL
        self.fixed = spec.strategy == FIXED
        self._buffers = itertools.count(0, 2)
        self.computed = {t for o in self.program.operations for t in o.outputs}

    # ---- reading the index array

    def index(self, name: Any, first: Any, size: int) -> Any:
        """Part of a section of the index array."""
        begin = self.layout.sections[name] + first
        return lax.dynamic_slice(self.indices, (begin,), (size,))

    def scalar(self, name: Any, at: Any = 0) -> Any:
        """One number of the index array."""
        return self.index(name, at, 1)[0]

    def component(
        self, c: int, step: LevelStep, state: State, down: bool = False
    ) -> State:
        """`step(level, state)` for all levels of a component, or its fixed steps.

        Args:
          down: from the last to the first.
        """
        recurrent = self.components[c].recurrent
        count = self.scalar('depth', c) if recurrent else 1
        if self.fixed:
            count = self.layout.tables[c][0]
        if not recurrent and not self.fixed:
            return step(0, state)

        def body(i: Any, state: State) -> State:
            return step(count - 1 - i if down else i, state)

        done: State = lax.fori_loop(0, count, body, state)
        return done

    def level(
        self,
        tile: TileStep,
        c: int,
        operations: Sequence[int],
        level: Any,
        state: State,
        down: bool = False,
    ) -> State:
        """`tile(operation, first, end, rows, carry)` for all tiles of a level."""
        # Each loop starts from what the one before has counted. Without this chain XLA
        # may reorder two loops, and copies a buffer that one reads and one writes.
        before, carry = state
        _, columns = self.layout.tables[c]
        for o in operations:
            widths = self.layout.widths[o]
            at = level * columns + self.layout.column[o]
            first, end, *counts = self.index(('tiles', c), at, 2 + len(widths))
            if self.fixed:
                carry = tile(o, first=first, end=end, rows=widths[0], carry=carry)
                continue
            runs = []
            for rows, count in zip(widths, counts, strict=True):
                runs.append((rows, count, first))
                first = first + count * rows
            for rows, count, start in reversed(runs) if down else runs:
                step = functools.partial(tile, o, end=end, rows=rows)
                begin = before + (start + (count - 1) * rows if down else start)
                step = functools.partial(_step_at, step, begin, -rows if down else rows)
                done, carry = _repeat(step, count, carry)
                before = done - count
        return before, carry

    # ---- forward

    def forward(self, keep: bool) -> tuple[dict[int, Any], list[Arrays]]:
        """Value buffers of computed types, and what the reverse pass needs."""
        values = {t: self._new_values(t) for t in sorted(self.computed)}
        stored = [self._new_stored(o) if keep else [] for o in self._operations]
        tile = functools.partial(self._forward_tile, keep=keep)
        state: State = jnp.zeros((), jnp.int32), (values, stored)
        for c, component in enumerate(self.components):
            if not component.operations:
                continue
            level = functools.partial(self.level, tile, c, component.operations)
            state = self.component(c, level, state)
        values, stored = state[1]
        return values, stored

    def runs(self, o: int) -> bool:
        """Whether there is room for an operation."""
        return self.capacity.rows[o] > 0

    @property
    def _operations(self) -> range:
        return range(len(self.tiles))

    def _new_values(self, t: int) -> Any:
        type_ = self.program.types[t]
        buffer = self._zeros(self.layout.value_rows[t], type_.shape, type_.dtype)
        if not self.capacity.constants[t]:
            return buffer
        return _write(buffer, jnp.asarray(self.constant[t]), 0)

    def _new_stored(self, o: int) -> Arrays:
        """Buffers with an operation's rows, for what the forward pass stores."""
        if not self._reverses(o):
            return []
        # With room for what crosses, a tile further on; see `_backward_tile`.
        rows = self.layout.region[o] + self.layout.widths[o][0]
        specs = self.tiles[o].reverse.stored
        return [self._zeros(rows, s.shape, s.dtype) for s in specs]

    def _new_crossed(self, o: int) -> list[Any]:
        """Buffers for what crosses; `None` for what takes the place of something."""
        if not self.defers(o):
            return []
        rows, reverse = self.layout.region[o], self.tiles[o].reverse
        return [
            self._zeros(rows, s.shape, s.dtype) if j is None else None
            for s, j in zip(reverse.crossing, reverse.replaced, strict=True)
        ]

    def _zeros(self, rows: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """A new buffer, a few rows longer than the one before.

        Of two buffers of one shape XLA makes one, and copies it.
        """
        return jnp.zeros((rows + next(self._buffers), *shape), dtype)

    def _forward_tile(
        self, o: int, first: Any, end: Any, rows: int, carry: Any, *, keep: bool
    ) -> Any:
        values, stored = carry
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
        reads = self.tiles[o].reads
        for t, base, x, known in zip(
            operation.outputs, bases, made, reads, strict=True
        ):
            read = _others(t, operation.inputs, inputs, known)
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
        if not self.runs(o):
            return False
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
        crossed = [self._new_crossed(o) for o in self._operations]
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
            edges = self._all_sums(c, 0, edges)
            before, edges, grads[first] = self._whole(
                first, before, values, stored, edges
            )
            state = before, (edges, stored, crossed)
        before, (edges, stored, crossed) = state
        for o in filter(self.runs, self._operations):
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
            return first, _write(buffer, _sum(buffer, indices), base + row)

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
            yield _sum(edges[t], indices)

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
        for k, (x, j) in enumerate(
            zip(crossing, self.tiles[o].reverse.replaced, strict=True)
        ):
            if j is None:
                new[k] = _write(new[k], x, first)
            else:
                kept[j] = _write(kept[j], x, first + self.layout.widths[o][0])
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
            kept = self.tiles[o].reverse.keep(self.params[o], inputs, rows)[1]
        else:
            kept = [_slice(b, first, rows) for b in stored[o]]
        if real is not None:
            is_real = jnp.arange(rows) < real
            kept = [_repeated(x, is_real) for x in kept]
            cotangents = [
                x if x.dtype == jax.dtypes.float0 else _masked(x, is_real)
                for x in cotangents
            ]
        return Rows(self.params[o], inputs, kept, cotangents, rows)

    def _left(
        self, o: int, edges: Any, moving: Arrays, cotangents: Arrays, first: Any
    ) -> Any:
        """The edges, with the cotangents of the inputs of rows."""
        edges, rest = dict(edges), zip(moving, self.tiles[o].reverse.pulls, strict=True)
        operation = self.program.operations[o]
        for t, base in zip(operation.inputs, self.layout.edge_base[o], strict=True):
            if t in self.active:
                x, known = next(rest)
                read = _others(t, operation.outputs, cotangents, known)
                edges[t] = _write(edges[t], _after(read, x, first), base + first)
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
        done, carry = _repeat(step, trips, carry)
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
                _slice(b, first, rows)
                if j is None
                else _slice(stored[o][j], first + self.layout.widths[o][0], rows)
                for b, j in zip(crossed, reverse.replaced, strict=True)
            ]
            crossing = [
                (_masked if linear else _repeated)(x, is_real)
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


def _step_at(step: Any, start: Any, stride: int, i: Any, carry: Any) -> Any:
    return step(first=start + i * stride, carry=carry)


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


def _others(
    t: int, types: Sequence[int], arrays: Sequence[Any], known: set[int]
) -> Arrays:
    """The arrays of a type, without those whose places are known."""
    pairs = enumerate(zip(types, arrays, strict=True))
    return [x for place, (n, x) in pairs if n == t and place not in known]


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
