# SPDX-License-Identifier: Apache-2.0
"""The forward pass: a batch and weights to values.

Component after component; one loop over the levels of each, in it, per operation and
tile width, an inner loop over tiles. A tile gathers its inputs from the value buffers,
runs the kernel and writes its rows in place:

    values of a type    constants | rows of one output | rows of another | ...
                            │              ▲
                            └─ gathered ─▶ tile: rows of one level, or of its end
                                           and spare ones, which the next level
                                           writes again
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import jax.numpy as jnp
from jax import Array

from jfold.device import xla
from jfold.device.arrays import Arrays, ByOperation, Specs, array_spec, varied
from jfold.device.buffers import Residuals, Values, new_buffer, write
from jfold.device.loops import Level, Loops, Tile, make_loops
from jfold.device.plan import Plan
from jfold.device.residuals import Policy
from jfold.device.sections import Batch
from jfold.device.xla import Chained

Carry: TypeAlias = tuple[Values, Residuals]


def forward(
    plan: Plan, policies: Mapping[int, Policy], arrays: ByOperation, batch: Batch
) -> Carry:
    """All values, and what the reverse pass needs.

    Args:
      policies: by operation, what is stored.
      arrays: by operation, its weights [*shape each].
    """
    weights = {o: kernel.weights(arrays[o]) for o, kernel in plan.kernels.items()}
    loops = make_loops(plan.spec, batch, down=False)

    # All of the batch and the weights is constant to the loops, which carry what they
    # write alone.
    def run_tile(tile: Tile, carry: Carry) -> Carry:
        values, residuals = carry
        o = tile.operation
        inputs = plan.apart(gather_inputs(plan, loops, values, tile))
        kernel = plan.kernels[o]
        made = policies[o].run(kernel, weights[o], inputs, tile.rows)
        outputs, saved = plan.apart(made)
        residuals = residuals.with_saved(o, saved, tile.first)
        return _write_outputs(plan, values, tile, inputs, outputs), residuals

    def run_level(c: int, level: Level, state: Chained[Carry]) -> Chained[Carry]:
        for o in plan.components[c].operations:
            state = loops.tiles(o, level, run_tile, state)
        return state

    extra = xla.extra_rows(even=True)
    carry = _new_values(plan, batch, extra), _new_residuals(plan, policies, extra)
    state = Chained(varied(jnp.zeros((), jnp.int32), plan.varying), carry)
    # No operation of a component reads what one of a later component gives, so each has
    # its own loop over levels, which then is as long as its own nodes are deep.
    for c, component in enumerate(plan.components):
        if component.operations:
            level = functools.partial(run_level, c)
            state = loops.levels(c, level, state)
    return state.carry


def gather_inputs(plan: Plan, loops: Loops, values: Values, tile: Tile) -> Arrays:
    """The inputs of a tile [rows, *shape] each.

    Spare rows, if they are told from others, repeat the first: what they read may not
    be there yet.
    """
    batch, types = loops.batch, plan.operations[tile.operation].inputs
    found: dict[int, Array] = {}
    for group in plan.layout.together[tile.operation]:
        rows = [_input_rows(batch, tile, place) for place in group]
        made = loops.gather(values.of(batch, types[group[0]]), rows)
        found |= dict(zip(group, made, strict=True))
    return [found[place] for place in range(len(types))]


def _input_rows(batch: Batch, tile: Tile, place: int) -> Array:
    """Where one input of a tile is in the buffer of its type [rows]."""
    section = batch.sections.inputs[tile.operation][place]
    index = batch.read(section, tile.first, tile.rows)
    if tile.count is None:
        return index
    return jnp.where(jnp.arange(tile.rows) < tile.count, index, index[0])


def _write_outputs(
    plan: Plan, values: Values, tile: Tile, inputs: Arrays, outputs: Arrays
) -> Values:
    """The values, with the outputs of a tile [rows, *shape] each, made from its inputs
    [rows, *shape] each."""
    o = tile.operation
    operation, bases = plan.operations[o], plan.layout.value_base[o]
    # A row that does not depend on the buffer it goes to could be written before that
    # is read, for which XLA would copy it: so the row is tied to what was read.
    reads = plan.kernels[o].reads
    for t, base, x, known in zip(operation.outputs, bases, outputs, reads, strict=True):
        read = xla.others(t, operation.inputs, inputs, known)
        values = values.written(t, xla.after(read, x, tile.first), base + tile.first)
    return values


# ---- new buffers ---------------------------------------------------------------------


def _new_values(plan: Plan, batch: Batch, extra: Iterator[int]) -> Values:
    """Zeros, behind the constants of each type."""
    buffers = {}
    for t in sorted({t for each in plan.operations for t in each.outputs}):
        type_, rows = plan.program.types[t], plan.layout.value_rows[t]
        spec = array_spec((rows, *type_.shape), type_.dtype)
        buffers[t] = new_buffer(spec, extra, plan.varying)
        if plan.spec.capacity.constants[t]:
            buffers[t] = write(buffers[t], jnp.asarray(batch.constants[t]), 0)
    return Values(buffers)


def _new_residuals(
    plan: Plan, policies: Mapping[int, Policy], extra: Iterator[int]
) -> Residuals:
    saved = {
        o: [new_buffer(spec, extra, plan.varying) for spec in specs]
        for o, specs in saved_specs(plan, policies).items()
    }
    return Residuals(saved, {})


def saved_specs(plan: Plan, policies: Mapping[int, Policy]) -> dict[int, Specs]:
    """By operation, the buffers for what the forward pass stores."""
    region = plan.layout.region
    return {o: x.buffers(region[o], plan.shift(o)) for o, x in policies.items()}
