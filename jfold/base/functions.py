# SPDX-License-Identifier: Apache-2.0
"""Functions of tensors inside the blocks that jfold provides."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfold.base.structs import is_leaf


@functools.cache
def concatenate(axis: int, flatten: bool) -> Callable[..., jax.Array]:
    """Return the function that joins tensors along an axis, one object per axis."""

    def concat(*inputs: jax.Array) -> jax.Array:
        arrays = jax.tree.leaves(inputs) if flatten else inputs
        nested = [type(x).__name__ for x in inputs if not is_leaf(x)]
        if nested and not flatten:
            raise TypeError(f'expected tensors, got a {nested[0]}; pass `flatten=True`')
        if len(dtypes := sorted({x.dtype.name for x in arrays})) > 1:
            raise TypeError(f'expected tensors of one dtype, got {dtypes}; cast them')
        return jnp.concatenate([jnp.atleast_1d(x) for x in arrays], axis)

    return concat


def additive_identity(
    shape: tuple[int, ...], dtype: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    """Return the additive identity [*shape]: -0.0 for floats, as 0.0 + -0.0 is 0.0."""
    zeros = np.zeros(shape, dtype)
    return -zeros if jnp.issubdtype(dtype, jnp.inexact) else zeros


def shifted_exp(x: jax.Array, largest: jax.Array) -> jax.Array:
    """Return `exp(x - largest)`; the gradient of `largest` cancels in a softmax."""
    return jnp.exp(x - jax.lax.stop_gradient(largest))


def ratio(total: jax.Array, count: jax.Array) -> jax.Array:
    """Return `total / max(count, 1)`, in float32 at least: float16 counts to 2048."""
    is_inexact, is_float = (
        jnp.issubdtype(x.dtype, jnp.inexact) for x in (total, count)
    )
    wide = count.dtype if is_float else jnp.result_type(float)
    if is_inexact:
        wide = jnp.float32 if total.dtype.itemsize < 4 else total.dtype
    result = total.astype(wide) / jnp.maximum(count, 1).astype(wide)
    return result.astype(total.dtype) if is_inexact else result


def take_item(key: object) -> Callable[[Any], Any]:
    """Return the function `x[key]`, one object per key, so that its uses are one layer.

    Raises:
      TypeError: the key is not made of slices and what can be hashed.
    """
    return _take_item(_frozen(key))


@functools.cache
def _take_item(frozen: tuple[Any, ...]) -> Callable[[Any], Any]:
    key = _thawed(frozen)

    def item(x: Any) -> Any:
        return x[key]

    return item


def _frozen(key: object) -> tuple[Any, ...]:
    """Return a key as a hashable value: slices are not, and `True` equals 1."""
    if isinstance(key, slice):
        return slice, key.start, key.stop, key.step
    return (tuple, *map(_frozen, key)) if isinstance(key, tuple) else (type(key), key)


def _thawed(frozen: tuple[Any, ...]) -> object:
    type_, *parts = frozen
    if type_ is tuple:
        return tuple(map(_thawed, parts))
    return slice(*parts) if type_ is slice else parts[0]


def stack(*items: Any) -> Any:
    """Stack tensors, or tuples of them, along a new leading axis."""
    return jax.tree.map(lambda *x: jnp.stack(x), *items)
