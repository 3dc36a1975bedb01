# SPDX-License-Identifier: Apache-2.0
"""The forward pass: from a batch and weights to values and residuals.

Components run one after another: first the products that `hoisting` takes out of the
loop, then a loop over levels, with an inner loop over tiles for each operation and tile
width. `README.md` draws what a tile reads and writes.

In shapes, `rows` counts the rows of a tile or buffer, and `*shape` is that of one
value.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias

import jax.numpy as jnp
from jax import Array

from jfold.base.arrays import Arrays, ByOperation, array_spec, cast_varying
from jfold.device import xla
from jfold.device.buffers import Batch, Buffers, Saved, new_buffer, values_of, write
from jfold.device.execution import Execution, Policy
from jfold.device.hoisting import inputs_read
from jfold.device.kernel import Weights
from jfold.device.loops import Level, Loops, Tile, make_loops
from jfold.device.xla import Chained
from jfold.program.components import output_places
from jfold.scheduling.layout import in_buffers

Carry: TypeAlias = tuple[Buffers, Saved]


def forward(
    execution: Execution,
    policies: Mapping[int, Policy],
    arrays: ByOperation,
    batch: Batch,
    entering: Mapping[int, Array],
) -> Carry:
    """Run the forward pass; return the buffers of all values, and the residuals.

    Args:
      policies: by operation, which of its residuals are stored.
      arrays: by operation, its weights, each [*shape].
      entering: by number of the output, the rows [rows, *shape] of outputs that were
        computed before the loops and are read in them.
    """
    weights = {o: kernel.weights(arrays[o]) for o, kernel in execution.kernels.items()}
    loops = make_loops(execution, batch, down=False)
    hoisted: dict[int, dict[int, Array]] = {}

    # The batch, the weights and hoisted products are loop-invariant; the carry has only
    # buffers that are written.
    def run_tile(tile: Tile, carry: Carry) -> Carry:
        values, saved = carry
        o = tile.operation
        kernel = execution.kernels[o]
        # Hoisted products of spare rows are arbitrary: nobody reads their results.
        products = loops.slices(list(hoisted[o].values()), tile)
        known = dict(zip(hoisted[o], products, strict=True))
        read = inputs_read(kernel, tuple(known)) if known else range(len(kernel.types))
        inputs = gather_inputs(loops, values, tile, read)
        inputs, known = execution.apart((inputs, known))
        result = policies[o].run(weights[o], inputs, tile.rows, known)
        outputs, stored = execution.apart(result)
        pairs = zip(saved[o], stored, strict=True)
        new = [xla.write_alone(buffer, x, tile.first) for buffer, x in pairs]
        saved = saved | {o: new}
        return _write_outputs(execution, values, tile, read, inputs, outputs), saved

    def run_level(c: int, level: Level, state: Chained[Carry]) -> Chained[Carry]:
        for o in execution.components[c].operations:
            state = loops.tiles(o, level, run_tile, state)
        return state

    extra = xla.extra_rows(even=True)
    values = _new_values(execution, batch, entering, extra)
    saved = {
        o: [
            new_buffer(x, extra, execution.varying)
            for x in execution.residual_buffers(o, policy.rows(policy.hoisted))
        ]
        for o, policy in policies.items()
    }
    zero = cast_varying(jnp.zeros((), jnp.int32), execution.varying)
    state = Chained(zero, (values, saved))
    # No operation reads results of a later component, so each component has a loop of
    # its own, with no more levels than its own nodes are deep.
    for c, component in enumerate(execution.components):
        if component.operations:
            for o in component.operations:
                state, hoisted[o] = _hoist(
                    loops, weights[o], policies[o], o, state, extra
                )
            state = loops.levels(c, functools.partial(run_level, c), state)
    values, saved = state.carry
    joined = {o: policies[o].joined(hoisted.get(o, {}), x) for o, x in saved.items()}
    return values, joined


def gather_inputs(
    loops: Loops, values: Buffers, tile: Tile, read: Collection[int] | None = None
) -> Arrays:
    """Return the inputs of a tile, each [rows, *shape]; zeros for those not in `read`.

    All are read if `read` is left out. Spare (padding) rows, if the tile counts its
    real ones, repeat the first: the values that their indices point to may not be
    computed yet.
    """
    execution, batch = loops.execution, loops.batch
    types = execution.operations[tile.operation].inputs
    gathered: dict[int, Array] = {}

    def index(place: int) -> Array:
        """Return the row numbers [rows] of the values of input `place` of the tile."""
        section = batch.sections.reads[tile.operation, place]
        rows = batch.read(section, tile.first, tile.rows)
        if tile.count is None:
            return rows
        return jnp.where(jnp.arange(tile.rows) < tile.count, rows, rows[0])

    for group in execution.layout.together[tile.operation]:
        if chosen := [place for place in group if read is None or place in read]:
            buffer = values_of(values, batch, types[group[0]])
            arrays = loops.gather(buffer, list(map(index, chosen)))
            gathered |= zip(chosen, arrays, strict=True)
    specs = execution.kernels[tile.operation].inputs(tile.rows)
    return [
        gathered[a] if a in gathered else jnp.zeros(x.shape, x.dtype)
        for a, x in enumerate(specs)
    ]


def _write_outputs(
    execution: Execution,
    values: Buffers,
    tile: Tile,
    gathered: Collection[int],
    inputs: Arrays,
    outputs: Arrays,
) -> Buffers:
    """Write a tile's `outputs` to the buffers `values`; return the new buffers.

    XLA writes them after it has read the inputs.

    Args:
      gathered: numbers of the inputs that were read from `values`.
      inputs, outputs: of the tile, each [rows, *shape].
    """
    o = tile.operation
    operation, bases = execution.operations[o], execution.layout.value_base[o]
    # An output that does not depend on inputs of its own type could be written before
    # these are read, and XLA would copy the buffer for that: so it is tied to them.
    reads = execution.kernels[o].reads
    for t, base, x, known in zip(operation.outputs, bases, outputs, reads, strict=True):
        read = [
            rows
            for a, rows in enumerate(inputs)
            if operation.inputs[a] == t and a in gathered and a not in known
        ]
        after = xla.write_after(read, x, tile.first)
        written = xla.write_alone(values[t], after, tile.first, base)
        values = values | {t: written}
    return values


# ---- hoisted products ----------------------------------------------------------------


def _hoist(
    loops: Loops,
    weights: Weights,
    policy: Policy,
    o: int,
    state: Chained[Carry],
    extra: Iterator[int],
) -> tuple[Chained[Carry], dict[int, Array]]:
    """Compute the loop-invariant products of operation `o`, `policy.hoisted`.

    Return the new state, and a dict from each product's number to a buffer [rows, ...]
    that has the product for all rows of the operation; `extra` is for `new_buffer`.
    """
    execution, (values, _) = loops.execution, state.carry
    kernel, numbers = policy.kernel, policy.hoisted
    if not numbers:
        return state, {}
    specs = execution.residual_buffers(o, list(map(kernel.product_row, numbers)))
    new = [new_buffer(x, extra, execution.varying) for x in specs]
    read = inputs_read(kernel, (), numbers)

    def chunk(tile: Tile, buffers: Arrays) -> tuple[Arrays, Arrays]:
        inputs = execution.apart(gather_inputs(loops, values, tile, read))
        _, products = kernel.run(weights, inputs, tile.rows, numbers, outputs=False)
        pairs = zip(buffers, execution.apart(products), strict=True)
        return [write(buffer, x, tile.first) for buffer, x in pairs], []

    # Chained, so that XLA runs this loop between those before and after it.
    done = loops.chunks(o, chunk, Chained(state.zero, (new, [])))
    buffers = dict(zip(numbers, done.carry[0], strict=True))
    return Chained(done.zero, state.carry), buffers


# ---- new buffers ---------------------------------------------------------------------


def _new_values(
    execution: Execution,
    batch: Batch,
    entering: Mapping[int, Array],
    extra: Iterator[int],
) -> Buffers:
    """Return new value buffers, by type, that hold constants and outputs `entering`.

    All other rows are zeros; `extra` is for `new_buffer`.
    """
    program, inside = execution.program, in_buffers(execution.program)
    values = {}
    for t in sorted({t for o in inside for t in program.operations[o].outputs}):
        type_, size = program.types[t], execution.layout.value_rows[t]
        spec = array_spec((size, *type_.shape), type_.dtype)
        values[t] = new_buffer(spec, extra, execution.varying)
        if execution.spec.capacity.constants[t]:
            values[t] = write(values[t], jnp.asarray(batch.constants[t]), 0)
    for number, rows in entering.items():
        o, k = output_places(program)[number]
        t, base = program.operations[o].outputs[k], execution.layout.value_base[o][k]
        values[t] = write(values[t], rows, base)
    return values
