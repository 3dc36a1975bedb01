# SPDX-License-Identifier: Apache-2.0
"""What the tests of ready layers compare, and with what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import interpreter
import jax
import jax.numpy as jnp
import numpy as np
from agreement import agree, close, parameters

import jfold as jf

RNG = np.random.default_rng(0)


def vectors(count: int, size: int) -> list[Any]:
    """Some drawn vectors."""
    return list(RNG.normal(size=(count, size)).astype('float32'))


def same(
    block: jf.Block, examples: list[Any], by_hand: Callable[[Any, Any], Any]
) -> None:
    """Values, and gradients of their squares, as by hand of parameters and example.

    Both are run by NumPy, in double precision.
    """
    model = jf.compile(block)
    params, schedule = parameters(model), model.schedule(examples)

    def found(params: Any) -> Any:
        values = model.apply(params, schedule)
        return jnp.square(values).sum(), values

    def expected(params: Any) -> Any:
        values = jnp.stack([by_hand(params, x) for x in examples])
        return jnp.square(values).sum(), values

    got, want = (jax.value_and_grad(fn, has_aux=True) for fn in (found, expected))
    (_, values), grads = interpreter.called(got, params)
    (_, expected_values), expected_grads = interpreter.called(want, params)
    close(values, expected_values, 1e-5)
    close(grads, expected_grads, 1e-4)


def checked(block: jf.Block, examples: list[Any]) -> tuple[jf.Model, Any]:
    """A model whose values and gradients are those of its eager twin."""
    model = jf.compile(block)
    params = model.init(jax.random.key(0))
    agree(model, params, examples)
    return model, params


def affine(params: Any, *parts: Any) -> Any:
    """What `nn.Dense` does with vectors side by side."""
    return jnp.concatenate(parts, -1) @ params['kernel'] + params['bias']
