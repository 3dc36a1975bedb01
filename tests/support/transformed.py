# SPDX-License-Identifier: Apache-2.0
"""A small model of trees, whose `apply` is transformed, and what is expected of it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import interpreter
import jax
import jax.numpy as jnp
import numpy as np
from agreement import close
from binary_trees import binary, binary_tree, chain, embedding

import jfold as jf
from jfold.scheduling.spec import RESIDUALS, STRATEGIES

RNG = np.random.default_rng(0)
TREES = [*(binary_tree(RNG, n) for n in (1, 5, 7)), chain(3)]


@functools.cache
def model(
    residuals: str = RESIDUALS[0], strategy: str = STRATEGIES[0], wide: bool = False
) -> jf.Model:
    """A small tree network, with a product of parameters alone; `wide`: in float64."""

    def init(key: Any, *_: Any) -> Any:
        left, right = jax.random.normal(key, (2, 3, 6))
        return {'left': left[:, :2], 'right': right[:2], 'bias': jnp.full(3, 0.1)}

    def cell(params: Any, left: Any, right: Any) -> Any:
        matrix = jnp.tanh(params['left'] @ params['right'])
        return jnp.tanh(matrix @ jnp.concatenate([left, right]) + params['bias'])

    with jax.enable_x64(wide):
        block = binary(jf.Scalar('int32') >> embedding(3), jf.Function(cell, init))
        return jf.compile(block, residuals=residuals, strategy=strategy)


def params(seed: int = 0) -> Any:
    """Its parameters."""
    return model().init(jax.random.key(seed))


def schedule(trees: Any = TREES) -> jf.Schedule:
    """Of a batch of four trees, or another of the same capacity."""
    return model().schedule(trees)


def loss(params: Any, schedule: jf.Schedule) -> Any:
    """A number for a batch."""
    return (model().apply(params, schedule) ** 3).sum()


def eager(params: Any, trees: Any = TREES) -> Any:
    """The same by the eager twin."""
    return sum((model().eval(tree, params) ** 3).sum() for tree in trees)


def direction(params: Any) -> Any:
    """A tangent of parameters."""
    return jax.tree.map(
        lambda x: jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape), params
    )


def stacked(trees: list[Any]) -> Any:
    """Pytrees with a leading axis."""
    return jax.tree.map(lambda *x: jnp.stack(x), *trees)


PAIRS = list(zip(RESIDUALS, STRATEGIES, strict=True))


def agrees_in_float64(derived: Any, residuals: str, strategy: str) -> Any:
    """A derivative of the loss, which is that of its eager twin."""
    with jax.enable_x64(True):
        chosen = model(residuals, strategy, wide=True)
        weights, batch = chosen.init(jax.random.key(0)), chosen.schedule(TREES)

        def total(weights: Any) -> Any:
            return (chosen.apply(weights, batch) ** 3).sum()

        def twin(weights: Any) -> Any:
            return sum((chosen.eval(x, weights) ** 3).sum() for x in TREES)

        got = jax.jit(derived(total))(weights)
        close(got, interpreter.called(derived(twin), weights), 1e-9)
        return got


def init(key: Any, *_: Any) -> Any:
    """One."""
    return jnp.ones(())


def read(paths: list[str]) -> list[bytearray]:
    """What files hold."""
    return [bytearray(Path(path).read_bytes()) for path in paths]
