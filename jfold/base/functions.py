# SPDX-License-Identifier: Apache-2.0
"""Functions of tensors: means, items, and zeros that change no sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def additive_identity(
    shape: tuple[int, ...], dtype: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    """Return an array [*shape] that changes no sum: -0.0, or 0 for ints and bools.

    Adding 0.0 would turn -0.0 into 0.0.
    """
    zeros = np.zeros(shape, dtype)
    return -zeros if jnp.issubdtype(dtype, jnp.inexact) else zeros


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


def mean_of_rows(rows: jax.Array, count: jax.Array) -> jax.Array:
    """Return `rows` [n, ...] summed and divided by `count` []; 0 if `count` is 0.

    As in `jnp.mean`, it is computed in float32 or wider; ints and bools give floats.
    All but `count` of the rows, anywhere in the array, have to be zero.
    """
    is_inexact = jnp.issubdtype(rows.dtype, jnp.inexact)
    wide = jnp.result_type(rows.dtype if is_inexact else float)
    wide = jnp.dtype(jnp.float32) if wide.itemsize < 4 else wide
    mean = ratio(rows.sum(0, dtype=wide), count)
    return mean.astype(rows.dtype) if is_inexact else mean


_ITEMS: dict[tuple[Any, ...], Callable[[Any], Any]] = {}  # the cache of `take_item`


def take_item(key: object) -> Callable[[Any], Any]:
    """Return the function `x -> x[key]`, one object (so one layer) per distinct key.

    Raises:
      TypeError: `key` is not hashable, nor a slice, nor a tuple of such keys.
    """

    def item(x: Any) -> Any:
        if hint := why_no_item(key, x.shape):
            got = f'{x.dtype}[{",".join(map(str, x.shape))}]'
            raise TypeError(
                f'expected a tensor with an item {key!r}, got {got}; {hint}'
            )
        return x[key]

    return _ITEMS.setdefault(_frozen(key), item)


def why_no_item(key: Any, shape: tuple[int, ...]) -> str:
    """Return a hint if an array of a shape has no item `key`; else ''."""
    # NumPy checks the key, since JAX clamps an index that is out of range.
    try:
        np.broadcast_to(np.False_, shape)[key]
    except (IndexError, TypeError, ValueError):
        if not shape:
            return 'leave it out, for a scalar has no items'
        return 'take ints within its shape, and slices'
    return ''


def _frozen(key: object) -> tuple[Any, ...]:
    """Return a key as a hashable tuple of class and value: `True` differs from 1."""
    if isinstance(key, slice):
        return slice, key.start, key.stop, key.step
    return (tuple, *map(_frozen, key)) if isinstance(key, tuple) else (type(key), key)
