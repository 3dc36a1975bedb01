# SPDX-License-Identifier: Apache-2.0
"""The runtime, which computes the results of a schedule from parameters.

Results are differentiable in the parameters; the schedule is data. Functions of
parameters alone run first, in plain JAX. `while_loop` has no reverse mode, so for
programs with loops both passes over the schedule are written out; forward mode is that
of JAX, see `derivatives`.

In shapes, `rows` is the number of rows of a result, and `*shape` the shape of one row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfold.base.arrays import Arrays, ByOperation, cast_varying, masked, varying_axes
from jfold.base.tracebacks import api_boundary
from jfold.device.backward import backward
from jfold.device.buffers import Batch
from jfold.device.derivatives import CustomDerivatives
from jfold.device.execution import Execution, make_execution
from jfold.device.forward import Carry, forward
from jfold.device.linear import MaybeZeros
from jfold.device.outside_loops import apply_all, kept_bytes
from jfold.device.random_keys import Draws, with_keys
from jfold.device.results import gathered
from jfold.scheduling.read_modes import has_slots
from jfold.scheduling.schedule import Schedule, shard_mapped
from jfold.scheduling.shards import Shards
from jfold.scheduling.spec import Spec

if TYPE_CHECKING:
    from chex import ArrayTree

    Results: TypeAlias = list[Arrays]  # by result: tensors, each [rows, ...]
    Params: TypeAlias = Mapping[str, ArrayTree]
    Execute: TypeAlias = Callable[[Params, Schedule], Results]
    # Weights by operation, each [*shape]; outputs computed before the loops, by number,
    # each [rows, *shape]; index array [size]; constants by type.
    Arguments: TypeAlias = tuple[
        ByOperation, Mapping[int, Array], Array, tuple[Array, ...]
    ]


def make_execute() -> Execute:
    """Return a copy of `run`, so that each model has its own cache of traces.

    JAX caches traces by function, and with them a model's data, until the function is
    freed with its model.
    """

    def execute(
        params: Params, schedule: Schedule, draws: Draws | None = None
    ) -> Results:
        return run(params, schedule, draws)

    return execute


def run(params: Params, schedule: Schedule, draws: Draws | None = None) -> Results:
    """Run a schedule on parameters; return the tensors [rows, ...] of each result.

    Rows are in the order of shards. Spare (padding) rows repeat a real one; in results
    with any number of rows they are zero. Results are differentiable with respect to
    `params`; the schedule is data.

    Args:
      params: parameters by layer name; layers that the program does not use are
        ignored.
      draws: the seeds of random keys; `None` if no layer draws.

    Raises:
      KeyError: `params` lacks a layer.
    """
    # `params` may be any mapping, with more layers in it than are used.
    layers = [x for x in schedule.spec.program.layers if x.params is not None]
    used = {layer.name: params[layer.name] for layer in layers}
    shards = schedule.spec.shards
    of_shard = functools.partial(_run_shard, shards)
    results: Results = shard_mapped(of_shard, schedule, used, draws)
    return results if shards is None else _packed(results, schedule)


def _run_shard(
    shards: Shards | None, schedule: Schedule, used: Params, draws: Draws | None
) -> Results:
    """Run one shard of a schedule; return the tensors of each result, each [rows, ...].

    Args:
      used: parameters by name, of the layers that the program uses.
      draws: as of `run`.
    """
    schedule = with_keys(schedule, draws, shards)
    # Gradients flow to parameters alone, not into the data.
    indices, constants = jax.tree.map(
        lax.stop_gradient, (schedule.indices, schedule.constants)
    )
    varying = varying_axes((used, indices, constants))
    used, indices, constants = jax.tree.map(
        lambda x: cast_varying(x, varying), (used, indices, constants)
    )
    spec = schedule.spec
    execution = make_execution(spec, used, varying)
    weights = execution.apart(
        {
            o: kernel.weights_of(kernel.operation.layer.own(used))
            for o, kernel in execution.kernels.items()
        }
    )
    if has_slots(spec.program):
        tensors = apply_all(execution, weights, indices, constants, _in_loops)
    else:
        tensors = _in_loops(execution, weights, {}, indices, constants)
    remaining = iter(tensors)
    results = [[next(remaining) for _ in x.tensors] for x in spec.program.results]
    # Results with any number of rows have zeros behind the real ones.
    for r in execution.program.observed:
        count = schedule.sections.rows[r].of(schedule.indices)
        real = jnp.arange(execution.layout.results[r], dtype=jnp.int32) < count
        results[r] = [masked(x, real) for x in results[r]]
    return results


def _in_loops(execution: Execution, *arguments: *Arguments) -> Arrays:
    """Run the loops of an execution; return the tensors that it computes.

    Each is [rows, *shape]: of a result, or an output of loops that is read after them.
    The reverse pass is written out, since JAX has none for loops of unknown length.
    """
    leaves, structure = jax.tree.flatten(arguments)
    parts = functools.partial(jax.tree.unflatten, structure)
    return CustomDerivatives(
        lambda arguments: _forward(execution, False, *parts(arguments))[0],
        lambda arguments: _forward(execution, True, *parts(arguments)),
        lambda arguments, saved, cotangents: _pull(
            execution, parts(arguments), saved, cotangents
        ),
        lambda tangents: _check_traced(execution, parts(tangents)[0]),
    )(leaves)


def _packed(results: Results, schedule: Schedule) -> Results:
    """Join the sequences of all shards: all items first, all padding last.

    Each shard has padding rows behind its items. Return the results, changed in place.
    """
    program, shards = schedule.spec.program, schedule.spec.shards
    assert shards is not None
    counts = shards.replicated(shard_mapped(_counts, schedule))
    for r, result in enumerate(program.results):
        if result.kind.is_packed:
            tensors = map(shards.replicated, results[r])
            results[r] = [_one_after_another(x, counts[:, r]) for x in tensors]
    return results


def _counts(schedule: Schedule) -> Array:
    """Return how many rows of each result are not padding, [1, results] int32."""
    return jnp.asarray(schedule.sections.rows.of(schedule.indices))[None]


def _one_after_another(x: Array, counts: Array) -> Array:
    """Concatenate the first `counts[i]` rows of each part i of `x`, with zeros behind.

    Args:
      x: [parts * rows, ...], the parts one after another.
      counts: [parts] int32, the number of real rows, the first ones, of each part.
    """
    rows, ends = jnp.arange(len(x)), jnp.cumsum(counts)
    part = jnp.searchsorted(ends, rows, side='right').clip(max=len(counts) - 1)
    before = (ends - counts)[part]
    source = part * (len(x) // len(counts)) + rows - before
    return masked(x.at[source].get(mode='clip'), rows < ends[-1])


def _forward(
    execution: Execution,
    stores: bool,
    weights: ByOperation,
    entering: Mapping[int, Array],
    indices: Array,
    constants: tuple[Array, ...],
) -> tuple[Arrays, Carry]:
    """Run the forward pass; return result tensors, and (values, residuals if `stores`).

    `entering` has outputs computed before the loops, by number, each [rows, *shape].
    """
    policies = execution.policies if stores else execution.forward_alone
    batch = Batch(execution.layout, indices, constants)
    carry = forward(execution, policies, weights, batch, entering)
    return gathered(execution, batch, carry[0]), carry


@api_boundary
def _pull(
    execution: Execution, arguments: Arguments, stored: Carry, cotangents: MaybeZeros
) -> MaybeZeros:
    """Run the reverse pass; return cotangents of the flat arguments, `None` for zeros.

    Args:
      arguments: weights, outputs computed before the loops, index array and constants;
        the last two have no cotangents.
      stored: the values and the residuals that the forward pass stored.
      cotangents: of the tensors of all results, each [rows, *shape], or `None`.
    """
    weights, _, indices, constants = arguments
    pullbacks = execution.pullbacks([x is not None for x in cotangents])
    batch = Batch(execution.layout, indices, constants)
    grads = backward(execution, pullbacks, weights, batch, *stored, cotangents)
    data = None, [None for _ in constants]
    return jax.tree.leaves((*grads, data), is_leaf=lambda x: x is None)


def _check_traced(execution: Execution, tangents: Mapping[int, MaybeZeros]) -> None:
    """Raise TypeError if a weight has a tangent that the reverse pass would drop.

    A function without trained parameters that closes over a value differentiated
    outside has such a tangent.

    Args:
      tangents: by operation, of its weights, each [*shape], or `None` for zero.
    """
    for o, of_weights in tangents.items():
        if any(x is not None for x in of_weights) and not execution.is_trained(o):
            raise TypeError(
                f'{execution.operations[o]!r}: expected a function that is '
                'differentiated with respect to its parameters and inputs alone, got '
                'one that closes over a value that is differentiated outside: make '
                'that value a parameter, `Function(fn, init)`'
            )


def residual_bytes(spec: Spec) -> int:
    """Return the number of bytes of residuals and stashes, which training stores.

    Raises whatever a user's function raises that has no gradient.
    """
    layers = spec.program.layers
    execution = make_execution(spec, {layer.name: layer.params for layer in layers})
    kept = kept_bytes(execution, _in_loops) if has_slots(spec.program) else 0
    looped = execution.loops
    pullbacks = looped.pullbacks([True for _ in looped.tensors])
    specs = []
    for o, policy in looped.policies.items():
        specs += [] if kept else looped.residual_buffers(o, policy.rows())
    for o, pullback in pullbacks.items():
        specs += looped.stash_buffers(o, pullback).values()
    sizes = (math.prod(x.shape) * x.dtype.itemsize for x in specs)
    return int(kept + sum(sizes))
