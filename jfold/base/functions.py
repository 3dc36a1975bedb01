# SPDX-License-Identifier: Apache-2.0
"""The tensor functions that blocks such as `Concat`, `Sum` or `Mean` apply."""

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
    """Return a function `concat(*inputs)` that joins tensors along an axis.

    Scalars count as vectors [1]; with `flatten`, inputs may be pytrees of tensors. Else
    these raise TypeError, and so do different dtypes. The function is cached, so that
    all its uses are one layer.
    """

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
    """Return zeros [*shape], for floats -0.0: adding 0.0 turns -0.0 into 0.0."""
    zeros = np.zeros(shape, dtype)
    return -zeros if jnp.issubdtype(dtype, jnp.inexact) else zeros


def shifted_exp(x: jax.Array, largest: jax.Array) -> jax.Array:
    """Return `exp(x - largest)`, with no gradient to `largest`: a softmax has none."""
    return jnp.exp(x - jax.lax.stop_gradient(largest))


def ratio(total: jax.Array, count: jax.Array) -> jax.Array:
    """Return `total / max(count, 1)`, computed in float32 or wider.

    A float16 counts to 2048 only. The result has the dtype of `total` if that dtype is
    inexact, else of `count` if that is inexact, else JAX's default float.
    """
    is_inexact, is_float = (
        jnp.issubdtype(x.dtype, jnp.inexact) for x in (total, count)
    )
    wide = count.dtype if is_float else jnp.result_type(float)
    if is_inexact:
        wide = jnp.float32 if total.dtype.itemsize < 4 else total.dtype
    result = total.astype(wide) / jnp.maximum(count, 1).astype(wide)
    return result.astype(total.dtype) if is_inexact else result


def as_inexact(x: jax.Array) -> jax.Array:
    """Return floats as they are; ints and bools, whose sums may wrap, as float32."""
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.float32)


def mean_of_rows(rows: jax.Array, count: jax.Array) -> jax.Array:
    """Return the sum [...] of rows [n, ...] divided by their number; 0 without any.

    As in `jnp.mean`, it is computed in float32 or wider; ints and bools give floats.

    Args:
      count: [] the number of rows that count; the others are zero.
    """
    is_inexact = jnp.issubdtype(rows.dtype, jnp.inexact)
    wide = jnp.result_type(rows.dtype if is_inexact else float)
    wide = jnp.dtype(jnp.float32) if wide.itemsize < 4 else wide
    mean = ratio(rows.sum(0, dtype=wide), count)
    return mean.astype(rows.dtype) if is_inexact else mean


def take_item(key: object) -> Callable[[Any], Any]:
    """Return the function from `x` to `x[key]`, cached so that its uses are one layer.

    Raises:
      TypeError: `key` is not hashable, nor a slice, nor a tuple of such keys.
    """
    return _take_item(_frozen(key))


@functools.cache
def _take_item(frozen: tuple[Any, ...]) -> Callable[[Any], Any]:
    key = _thawed(frozen)

    def item(x: Any) -> Any:
        return x[key]

    return item


def _frozen(key: object) -> tuple[Any, ...]:
    """Return a key as a hashable tuple, its class first: `True` equals 1."""
    if isinstance(key, slice):
        return slice, key.start, key.stop, key.step
    return (tuple, *map(_frozen, key)) if isinstance(key, tuple) else (type(key), key)


def _thawed(frozen: tuple[Any, ...]) -> object:
    type_, *parts = frozen
    if type_ is tuple:
        return tuple(map(_thawed, parts))
    return slice(*parts) if type_ is slice else parts[0]


def stack(*items: Any) -> Any:
    """Return tensors, or pytrees of them leaf by leaf, stacked along a new axis 0."""
    return jax.tree.map(lambda *x: jnp.stack(x), *items)
