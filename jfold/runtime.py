# SPDX-License-Identifier: Apache-2.0
"""The runtime: a schedule and parameters to values, differentiable in the parameters.

What depends on parameters alone is computed first, by JAX as it stands. `while_loop`
has no reverse mode, so both passes over what is left are written out, under one
`custom_vjp`; the schedule is data.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import custom_vjp_primal_tree_values

from jfold.device.backward import Backward
from jfold.device.buffers import masked
from jfold.device.forward import Forward
from jfold.device.plan import Plan, make_plan
from jfold.device.stages import is_zero
from jfold.device.tile import Arrays
from jfold.language.layers import varied, varying_axes
from jfold.planning.layout import Spec, layout
from jfold.schedule import Schedule
from jfold.tracebacks import boundary

Params = Mapping[str, Any]
Results = list[Arrays]  # per result and tensor [rows, ...]
Execute = Callable[[Params, Schedule], Results]


def make_execute() -> Execute:
    """`run` as a function of its own for each model.

    JAX keeps what it has traced of a function, and so a model's data, until that
    function is freed.
    """

    def execute(params: Params, schedule: Schedule) -> Results:
        return run(params, schedule)

    return execute


def run(params: Params, schedule: Schedule) -> Results:
    """The tensors of each result [rows, ...].

    Spare rows repeat a real one; in results with any number of rows they are zero.
    Differentiable with respect to `params`; the schedule is data.
    """
    indices, constants = jax.tree.map(
        lax.stop_gradient, (schedule.indices, schedule.constants)
    )
    # Whatever mapping the user keeps parameters in, and whatever else is in it.
    layers = [x for x in schedule.spec.program.layers if x.params is not None]
    used = {layer.name: params[layer.name] for layer in layers}
    varying = varying_axes((used, indices, constants))
    used, indices, constants = jax.tree.map(
        lambda x: varied(x, varying), (used, indices, constants)
    )
    plan = make_plan(schedule.spec, used, varying)
    differentiable = jax.custom_vjp(functools.partial(_run, plan))
    differentiable.defvjp(
        functools.partial(_run_forward, plan),
        functools.partial(_run_backward, plan),
        symbolic_zeros=True,
    )
    results: Results = differentiable(_weights(plan, used), indices, constants)
    for place, r in enumerate(schedule.spec.program.observed):
        rows = jnp.arange(layout(schedule.spec).results[r])
        real = rows < schedule.section('observed', place + 1)[place]
        results[r] = [masked(x, real) for x in results[r]]
    return results


def _weights(plan: Plan, params: Params) -> list[Arrays]:
    """The weights of each operation."""
    pairs = zip(plan.program.operations, plan.tiles, strict=True)
    return [tile.hoisted(params.get(o.layer.name)) if tile else [] for o, tile in pairs]


def _run(
    plan: Plan, weights: list[Arrays], indices: Any, constants: tuple[Any, ...]
) -> Results:
    run = Forward(plan, weights, indices, constants)
    values, _ = run.forward(keep=False)
    return run.results(values)


def _run_forward(
    plan: Plan, weights: Any, indices: Any, constants: Any
) -> tuple[Any, Any]:
    _check_traced(plan, weights)
    arrays: Any = custom_vjp_primal_tree_values(  # type: ignore[no-untyped-call]
        (weights, indices, constants)
    )
    run = Forward(plan, *arrays)
    values, stored = run.forward(keep=True)
    return run.results(values), (arrays, values, stored)


@boundary
def _run_backward(plan: Plan, residuals: Any, cotangents: Any) -> tuple[Any, Any, Any]:
    arrays, values, stored = residuals
    used = jax.tree.map(lambda x: not is_zero(x), cotangents)
    run = Backward(plan, plan.pulls(used), *arrays)
    return run.backward(values, stored, cotangents), None, None


def _check_traced(plan: Plan, weights: list[Any]) -> None:
    """Refuses to drop the gradient of what functions without parameters close over."""
    for o, leaves in enumerate(weights):
        if any(x.perturbed for x in leaves) and not plan.trains(o):
            raise TypeError(
                f'{plan.program.operations[o]!r}: expected a function that is '
                'differentiated with respect to its parameters and inputs alone, got '
                'one that closes over a value that is differentiated outside: make '
                'that value a parameter, `Function(fn, init)`'
            )


def residual_bytes(spec: Spec) -> int:
    """What the forward pass keeps for the reverse, and what that adds, in bytes.

    Raises whatever a user's function does that has no gradient.
    """
    layers = spec.program.layers
    plan = make_plan(spec, {layer.name: layer.params for layer in layers})
    run = Backward(plan, plan.all_pulls, [], None, ())
    for o in filter(run.pulls.__getitem__, run.operations):
        run.reverse(o)  # a function without a gradient says so
    kept = (
        buffer
        for o in run.operations
        for buffer in (
            *run.stored_specs(o),
            *(each for each in run.crossed_specs(o) if each is not None),
        )
    )
    return sum(int(np.prod(each.shape)) * each.dtype.itemsize for each in kept)
