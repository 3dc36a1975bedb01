# SPDX-License-Identifier: Apache-2.0
"""Keys of `jax.random` as arrays [..., 2] of uint32, which buffers hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jfold.base.errors import short_repr

# One key, or a key for each named stream.
Rngs: TypeAlias = jax.Array | Mapping[str, jax.Array] | None


class DrawOptions(NamedTuple):
    """The arguments of `Block.eval` that decide about random draws."""

    rngs: Rngs
    id: int
    deterministic: bool


# Other implementations draw different numbers under `jax.vmap` than without it.
_IMPLEMENTATION = 'threefry2x32'


def check_key(name: str, key: Any, kind: str = 'a PRNG key') -> None:
    """Raise an error unless an argument is one key.

    Raises:
      TypeError: it is no key, or an array of several.
    """
    is_array = isinstance(key, jax.Array | np.ndarray)
    is_new = is_array and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not is_new and (not is_array or key.dtype != np.uint32 or not key.ndim):
        raise TypeError(
            f'expected `{name}` as {kind}, got {short_repr(key)}: pass '
            '`jax.random.key(0)`'
        )
    # Keys made by `PRNGKey` are arrays of numbers with one more axis.
    if shape := key.shape if is_new else key.shape[:-1]:
        raise TypeError(
            f'expected `{name}` as {kind}, got an array of {math.prod(shape)} keys: '
            'pass one, or take `jax.vmap` over them'
        )


def as_key(numbers: jax.Array) -> jax.Array:
    """Return the keys [...] for numbers [..., 2]."""
    key: jax.Array = jax.random.wrap_key_data(numbers, impl=_IMPLEMENTATION)
    return key


def node_key(seed: jax.Array, identity: ArrayLike, number: ArrayLike) -> jax.Array:
    """Return the numbers [2] of the key of one node.

    Args:
      seed: [2] uint32, the key of the stream.
      identity: the id of the example.
      number: the place of the key among those of the stream in the example.
    """
    key = as_key(seed)
    for part in (identity, number):
        key = jax.random.fold_in(key, part)
    return jax.random.key_data(key)
