# SPDX-License-Identifier: Apache-2.0
"""The check whether a reverse is linear in its cotangents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jfold.device.analyses import is_linear

LINEAR: dict[str, Callable[..., Any]] = {
    'a sum': lambda w, x, y: x + 2 * y,
    'products with weights': lambda w, x, y: w * x + y @ w,
    'a quotient of one': lambda w, x, y: x / w,
    'a choice by weights': lambda w, x, y: jnp.where(w > 0, x, y),
    'nothing': lambda w, x, y: jnp.zeros(3),
    'parts': lambda w, x, y: sum(jnp.unstack(jnp.stack([x, y]))),
    'a product with zero': lambda w, x, y: 0 * x * y,
    'a product by groups of rows': lambda w, x, y: lax.ragged_dot(
        jnp.stack([x, y]), w.reshape(1, 3, 1), jnp.array([2])
    ),
    'rows of a table': lambda w, x, y: jnp.zeros(3).at[0].add(x[1]),
    'a jaxpr within': lambda w, x, y: jax.jit(lambda z: w * z)(x),
}
OTHERS: dict[str, Callable[..., Any]] = {
    'a product of two': lambda w, x, y: x * y,
    'a matrix product of two': lambda w, x, y: x @ y,
    'a square': lambda w, x, y: x * x,
    'a quotient by one': lambda w, x, y: w / x,
    'a constant more': lambda w, x, y: x + w,
    'a choice by one': lambda w, x, y: jnp.where(x > 0, x, y),
    'a sine': lambda w, x, y: jnp.sin(x),
    'an unknown primitive': lambda w, x, y: lax.cumlogsumexp(x),
    'whole numbers': lambda w, x, y: x.astype('int32').astype('float32'),
    'a jaxpr within': lambda w, x, y: jax.jit(lambda z: z * z)(x),
}


def checked(fn: Callable[..., Any]) -> bool:
    """Whether a function is found linear in all arguments but the first."""
    return is_linear(jax.make_jaxpr(fn)(*[jnp.ones(3)] * 3), fixed=1)


@pytest.mark.parametrize('name', LINEAR)
def test_linear(name: str) -> None:
    assert checked(LINEAR[name])


@pytest.mark.parametrize('name', OTHERS)
def test_not_linear(name: str) -> None:
    assert not checked(OTHERS[name])
