# SPDX-License-Identifier: Apache-2.0
"""What the tests of ready layers compare, and with what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from agreement import agree, close

import jfold as jf

RNG = np.random.default_rng(0)


def vectors(count: int, size: int) -> list[Any]:
    """Some drawn vectors."""
    return list(RNG.normal(size=(count, size)).astype('float32'))


def same(
    block: jf.Block, examples: list[Any], by_hand: Callable[[Any, Any], Any]
) -> None:
    """Values, and gradients of their squares, as by hand of parameters and example."""
    model = jf.compile(block)
    params = model.init(jax.random.key(0))

    def loss(params: Any) -> Any:
        return jnp.square(model.apply(params, model.schedule(examples))).sum()

    def expected(params: Any) -> Any:
        return sum(jnp.square(by_hand(params, x)).sum() for x in examples)

    found = model.apply(params, model.schedule(examples))
    close(found, jnp.stack([by_hand(params, x) for x in examples]), 1e-5)
    close(jax.grad(loss)(params), jax.grad(expected)(params), 1e-4)


def checked(block: jf.Block, examples: list[Any]) -> tuple[jf.Model, Any]:
    """A model whose values and gradients are those of its eager twin."""
    model = jf.compile(block)
    params = model.init(jax.random.key(0))
    agree(model, params, examples)
    return model, params


def affine(params: Any, x: Any) -> Any:
    """What `nn.Dense` does."""
    return x @ params['kernel'] + params['bias']
