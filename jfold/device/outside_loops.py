# SPDX-License-Identifier: Apache-2.0
"""The execution of operations outside of loops, as plain JAX.

Each operation runs a single time, on all rows that there is room for, after the
operations that it reads. There are no value buffers. If an input reads all results of
an operation, in order, these results are its rows as they are ("in place"). Any other
input is gathered from the concatenated results that it may read, and added up where it
reads sums. JAX derives the gradients.

    round 0     [rows of atoms, 64] ──────── in place ────────▶ round 1
                     └───── gathered, and added up by atom ────▶

Spare (padding) rows repeat a real one, and no cotangent flows back through them: where
a function is not defined, zero times infinity would be NaN. In operations that are
defined everywhere spare rows are anything finite. As long as weights are finite, the
cotangents of spare rows are zero without a mask.

A table is an operation, or a result numbered behind all operations. A part is the
constants of a type, or one output of an operation. In shapes, `rows` counts the rows of
a table, and `*shape` is that of one value. Outputs are numbered through all operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from jfold.base import jaxprs
from jfold.base.arrays import Arrays, ByOperation, array_spec
from jfold.base.jaxprs import is_inexact
from jfold.device.buffers import Batch
from jfold.device.derivatives import Derived, differentiable
from jfold.device.execution import Execution
from jfold.device.linear import MaybeZeros, Reverse
from jfold.device.reads import (
    Extent,
    Produced,
    State,
    mask_spare,
    part_in_place,
    read_rows,
    summed,
    zeros_of,
)
from jfold.program.components import (
    SUMMANDS,
    Place,
    components,
    first_results,
    operand_types,
    output_places,
    phases,
    results_in,
    segment_sums,
    sources,
    union,
)
from jfold.scheduling.read_modes import read_modes
from jfold.scheduling.spec import RECOMPUTE_ALL

# The function of `runtime` that runs the loops: it takes their execution, the weights,
# the outputs computed before the loops, by number, the index array and the constants;
# it returns the tensors of `Execution.loops`.
InLoops: TypeAlias = Callable[..., Arrays]


def apply_all(
    execution: Execution,
    weights: ByOperation,
    indices: Array,
    constants: tuple[Array, ...],
    in_loops: InLoops,
) -> Arrays:
    """Run a whole program; return the tensors of all results, each [rows, *shape].

    Operations outside of loops run here, as plain JAX; `in_loops` runs the others.

    Args:
      weights: by operation, list of arrays, each [*shape].
      indices: [size] int32, the index array.
      constants: by type [rows, *shape].
    """
    state = State(execution, Batch(execution.layout, indices, constants))
    order = phases(execution.program)
    for c in order.before:
        _apply_component(state, c, weights)
    if order.loops:
        entering = {n: _entering(state, n) for n in results_in(order.entering)}
        looped = {o: weights[o] for o in execution.loops.kernels}
        rows = in_loops(execution.loops, looped, entering, indices, constants)
        for (_, number), x in zip(execution.loops.tensors, rows, strict=True):
            o, k = output_places(execution.program)[number]
            if len(x):
                base = execution.layout.value_base[o][k]
                state.produced[number] = Produced(base, x)
    for c in order.behind:
        _apply_component(state, c, weights)
    first = len(execution.operations)
    tables = range(first, first + len(execution.program.results))
    tensors = [x for table in tables for x in _read_table(state, table)[1]]
    return _checked(execution, tensors)


def _apply_component(state: State, c: int, weights: ByOperation) -> None:
    """Run component `c` outside of loops; add its outputs to `state`."""
    program, running = state.execution.program, state.execution.components[c].operations
    place = components(program)[c].operations[0], SUMMANDS
    if place in state.batch.sections.reads and running:
        _apply_sums(state, place, running)
    for o in running:
        if o not in segment_sums(program):
            _apply(state, o, weights[o])


def _entering(state: State, number: int) -> Array:
    """Return all rows [rows, *shape] of output `number`, for operations in loops."""
    execution = state.execution
    o, k = output_places(execution.program)[number]
    t, rows = execution.operations[o].outputs[k], execution.layout.region[o]
    if number not in state.produced:  # there is no room for it, so no row is read
        return zeros_of(state, t, rows)
    produced = state.produced[number]
    # Segment sums of a component share one array, where these need not be the first.
    first = execution.layout.value_base[o][k] - produced.first
    return produced.rows[first : first + rows]


def _checked(execution: Execution, tensors: Arrays) -> Arrays:
    """Return `tensors` unchanged; their reverse raises if some layer has no gradient.

    The error has a note with the name of the layer.
    """
    kernels = execution.kernels.values()
    if all(jaxprs.is_straight(kernel.forward(2)) for kernel in kernels):
        return tensors
    return [_checked_tensor(execution, k, x) for k, x in enumerate(tensors)]


def _checked_tensor(execution: Execution, number: int, tensor: Array) -> Array:
    """Return `tensor`, of index `number` in `execution.tensors`, as `_checked` does."""

    def pull(_: Arrays, cotangents: MaybeZeros) -> MaybeZeros:
        execution.pullbacks([k == number for k, _ in enumerate(execution.tensors)])
        return cotangents

    def again(_: Arrays, along: MaybeZeros, cotangents: MaybeZeros) -> MaybeZeros:
        return []  # the identity has no second derivative

    def derived(tensors: Arrays, _: MaybeZeros) -> Derived:
        return tensors, Reverse(pull, again), tensors

    checked: Array
    (checked,) = differentiable(lambda tensors: tensors, derived)([tensor])
    return checked


def _apply(state: State, o: int, weights: Arrays) -> None:
    """Run operation `o` on weights, each [*shape]; add its outputs to `state`."""
    execution, (extent, inputs) = state.execution, _read_table(state, o)
    kernel, real, arrays = execution.kernels[o], None, weights
    if not extent.anything:
        # Without real rows, spare ones could give weights a gradient of NaN.
        real, arrays = extent.real, [mask_spare(x, extent.count > 0) for x in weights]

    def run(arrays: Arrays, inputs: Arrays) -> Arrays:
        return kernel.run(kernel.weights(arrays), inputs, extent.rows, real=real)[0]

    if execution.spec.residuals == RECOMPUTE_ALL:
        run = jax.checkpoint(run)
    first = first_results(execution.program)[o]
    for k, x in enumerate(run(arrays, inputs)):
        state.produced[first + k] = Produced(execution.layout.value_base[o][k], x)
        part = len(execution.program.types) + first + k
        state.counts[part] = extent.count
        if extent.anything:
            state.anything.add(part)


def _read_table(state: State, table: int) -> tuple[Extent, Arrays]:
    """Return the `Extent` (numbers of rows) of a table, and the values that it reads.

    The values are an array [rows, *shape] for each input of an operation, or for each
    tensor of a result.
    """
    batch, execution = state.batch, state.execution
    layout, first = execution.layout, len(execution.operations)
    columns = operand_types(execution.program)[table]
    places = [(table, a) for a, _ in enumerate(columns)]
    found = [part_in_place(execution, place) for place in places]
    parts = [part for part in found if part is not None]
    # Values read in place and their readers share one scalar, since XLA would compile
    # equal code again for each.
    known = [state.counts[part] for part in parts if part in state.counts]
    if known:
        (count, *_) = known
    else:
        count = batch.nodes(table) if table < first else batch.rows(table - first)
    state.counts.update(dict.fromkeys(parts, count))
    rows = [*layout.region, *layout.results][table]
    anything = table < first and _allows_any_finite(state, table, places, parts)
    extent = Extent(rows, count, anything, execution.varying)
    return extent, [read_rows(state, place, extent) for place in places]


def _allows_any_finite(
    state: State, o: int, places: Sequence[Place], parts: Sequence[int]
) -> bool:
    """Return whether padding rows of operation `o` may hold arbitrary finite numbers.

    They may if `o` is finite on all finite inputs, and if padding rows of the outputs
    that it reads in place may. Else they repeat a real row. False where no mask would
    be saved.

    Args:
      places: the places of its inputs.
      parts: the parts that it reads in place.
    """
    execution = state.execution
    kernel, rows = execution.kernels[o], execution.layout.region[o]
    types, modes = len(execution.program.types), read_modes(execution.spec)
    outputs = [part for part in parts if part >= types]
    is_summed = any(modes[place].adds for place in places)
    if not (outputs or is_summed or kernel.trained_count):
        return False
    return state.anything.issuperset(outputs) and kernel.is_defined(rows)


def _apply_sums(state: State, place: Place, operations: Sequence[int]) -> None:
    """Compute all segment sums of a component as one array; add it to `state`.

    Args:
      place: the place at which their summands are read.
      operations: the component's operations that have rows.
    """
    execution = state.execution
    program, numbers = execution.program, first_results(execution.program)
    inside = sum(1 << numbers[o] for o in operations)
    # Sums of sums are flattened: no summand is a result of this component.
    makers = union(union(sources(program).inputs[o]) for o in operations) & ~inside
    rows = sum(execution.layout.region[o] for o in operations)
    sums = summed(state, place, makers, rows)
    result = Produced(execution.layout.value_base[operations[0]][0], sums)
    state.produced.update(dict.fromkeys((numbers[o] for o in operations), result))


def kept_bytes(execution: Execution, in_loops: InLoops) -> int:
    """Return the bytes that JAX stores for the reverse of operations outside of loops.

    Raises:
      Exception: whatever a function without a gradient raises.
    """
    execution.pullbacks([True for _ in execution.tensors])
    weights = {o: kernel.weight_specs for o, kernel in execution.kernels.items()}
    pairs = zip(execution.spec.capacity.constants, execution.program.types, strict=True)
    constants = tuple(array_spec((rows, *t.shape), t.dtype) for rows, t in pairs)
    indices = array_spec((execution.layout.sections.size,), jnp.int32)

    def pull(
        weights: ByOperation, indices: Array, constants: tuple[Array, ...]
    ) -> object:
        """Return the function that `jax.vjp` returns, a pytree of residuals."""
        floats = {o: list(filter(is_inexact, x)) for o, x in weights.items()}

        def run(floats: ByOperation) -> Arrays:
            all_weights = {o: x + weights[o][len(x) :] for o, x in floats.items()}
            return apply_all(execution, all_weights, indices, constants, in_loops)

        return jax.vjp(run, floats)[1]

    kept = jax.tree.leaves(jax.eval_shape(pull, weights, indices, constants))
    return sum(x.size * x.dtype.itemsize for x in kept)
