# SPDX-License-Identifier: Apache-2.0
"""The runtime: a schedule and parameters to values, differentiable in the parameters.

`while_loop` has no reverse mode, so both passes are written out, under one
`custom_vjp`; the schedule is data.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from jfold.backward import Backward, no_gradient
from jfold.forward import Forward, Params
from jfold.layout import Spec
from jfold.schedule import Schedule
from jfold.tile import Arrays


def make_execute() -> Callable[[Params, Schedule], tuple[Arrays, list[Arrays]]]:
    """`run` as a function of its own for each model.

    JAX keeps what it has traced of a function, and so a model's data, until that
    function is freed.
    """

    def execute(params: Params, schedule: Schedule) -> tuple[Arrays, list[Arrays]]:
        return run(params, schedule)

    return execute


def run(params: Params, schedule: Schedule) -> tuple[Arrays, list[Arrays]]:
    """The tensors of the result [examples, ...], and of each metric [capacity, ...].

    Differentiable with respect to `params`; the schedule is data.
    """
    frozen = jax.tree.map(lax.stop_gradient, schedule)
    layers = [x for x in schedule.spec.program.layers if x.params is not None]
    # Whatever mapping the user keeps parameters in, and whatever else is in it.
    used = {layer.name: params[layer.name] for layer in layers}
    differentiable = jax.custom_vjp(functools.partial(_run, schedule.spec))
    differentiable.defvjp(
        functools.partial(_run_forward, schedule.spec),
        functools.partial(_run_backward, schedule.spec),
    )
    return differentiable(used, frozen.indices, frozen.constants)


def _run(
    spec: Spec, params: Params, indices: Any, constants: tuple[Any, ...]
) -> tuple[Arrays, list[Arrays]]:
    run = Forward(spec, params, indices, constants)
    values, _ = run.forward(keep=False)
    return run.results(values)


def _run_forward(
    spec: Spec, params: Params, indices: Any, constants: tuple[Any, ...]
) -> tuple[Any, Any]:
    run = Backward(spec, params, indices, constants)
    values, stored = run.forward(keep=not run.recompute)
    return run.results(values), (params, indices, constants, values, stored)


def _run_backward(spec: Spec, residuals: Any, cotangents: Any) -> tuple[Any, Any, Any]:
    params, indices, constants, values, stored = residuals
    run = Backward(spec, params, indices, constants)
    grads = run.backward(values, stored, cotangents)
    return grads, no_gradient(indices), jax.tree.map(no_gradient, constants)


def residual_bytes(spec: Spec) -> int:
    """What the forward pass keeps for the reverse, and what that adds, in bytes.

    Raises whatever a user's function does that has no gradient.
    """
    params = {
        layer.name: layer.params
        for layer in spec.program.layers
        if layer.params is not None
    }
    run = Backward(spec, params, None, ())
    kept = (
        buffer
        for o in run.operations
        for buffer in (
            *([] if run.recompute else run.stored_specs(o)),
            *(each for each in run.crossed_specs(o) if each is not None),
        )
    )
    return sum(int(np.prod(each.shape)) * each.dtype.itemsize for each in kept)
