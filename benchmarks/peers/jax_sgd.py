# SPDX-License-Identifier: Apache-2.0
"""What the programs that use JAX share: all but the way from trees to roots."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
from protocol import RATE, Clock, Program, Tree, Weights, Workload


class JaxProgram(Program):
    """A plan on the host, one jitted function on the device."""

    packages = ('jax', 'jaxlib')

    def __init__(self, workload: Workload, weights: Weights, threads: int) -> None:
        self.workload = workload
        self.params = jax.tree.map(jax.numpy.asarray, weights)
        self._forward = jax.jit(self.roots)
        self._step = jax.jit(partial(sgd, self.roots), donate_argnums=0)
        self._compiling = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, duration: float, **_: Any) -> None:
        if event == '/jax/core/compile/backend_compile_duration':
            self._compiling += duration

    def plan(self, trees: list[Tree]) -> Any:
        """What `roots` needs to know of the trees; arrays."""
        raise NotImplementedError

    def roots(self, params: Weights, plan: Any) -> jax.Array:
        """The h [trees, H] of the roots."""
        raise NotImplementedError

    def infer(self, trees: list[Tree], clock: Clock) -> Any:
        plan = self.plan(trees)
        clock.built()
        return np.asarray(self._forward(self.params, plan))

    def train(self, trees: list[Tree], clock: Clock) -> float:
        plan = self.plan(trees)
        clock.built()
        self.params, loss = self._step(self.params, plan)
        jax.block_until_ready(self.params)
        return float(loss)

    def weights(self) -> Weights:
        return jax.tree.map(np.asarray, self.params)

    def compiling(self) -> float:
        return self._compiling


def sgd(roots: Any, params: Weights, plan: Any) -> tuple[Weights, jax.Array]:
    """The weights after one step, and the loss before it."""
    loss, grads = jax.value_and_grad(mean_loss)(params, roots, plan)
    return descend(params, grads), loss


def mean_loss(params: Weights, roots: Any, plan: Any) -> jax.Array:
    """The mean over trees of the sum of the root's h."""
    return roots(params, plan).sum(1).mean()


def descend(params: Weights, grads: Weights) -> Weights:
    """The weights after a step against the gradients."""
    return jax.tree.map(lambda p, g: p - RATE * g, params, grads)


def cell(params: Weights, left: jax.Array, right: jax.Array) -> jax.Array:
    """c beside h [..., 2H] of nodes from those of their children."""
    c_left, h_left = jax.numpy.split(left, 2, axis=-1)
    c_right, h_right = jax.numpy.split(right, 2, axis=-1)
    both = jax.numpy.concatenate([h_left, h_right], axis=-1)
    return state(both @ params.kernel + params.bias, c_left, c_right)


def state(gates: jax.Array, c_left: jax.Array, c_right: jax.Array) -> jax.Array:
    """c beside h [..., 2H] from gates [..., 5H] before they are squashed."""
    i, o, u, forget, keep = jax.numpy.split(gates, 5, axis=-1)
    c = jax.nn.sigmoid(i) * jax.numpy.tanh(u)
    c += jax.nn.sigmoid(forget) * c_left + jax.nn.sigmoid(keep) * c_right
    h = jax.nn.sigmoid(o) * jax.numpy.tanh(c)
    return jax.numpy.concatenate([c, h], axis=-1)
