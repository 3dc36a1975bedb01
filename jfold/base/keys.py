# SPDX-License-Identifier: Apache-2.0
"""Keys of `jax.random` as numbers [..., 2] uint32, which buffers hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jfold.base.errors import short_repr

# A key, or one by stream.
Rngs: TypeAlias = jax.Array | Mapping[str, jax.Array] | None


class Drawing(NamedTuple):
    """What one example draws with, when it is evaluated; see `Block.eval`."""

    rngs: Rngs
    id: int
    deterministic: bool


# Other kinds draw something else of a key beside others, under `jax.vmap`, than alone.
_KIND = 'threefry2x32'


def check_key(name: str, key: Any, kind: str = 'a PRNG key') -> None:
    """Refuses an argument that is no key, or several.

    Raises:
      TypeError: it is not.
    """
    is_array = isinstance(key, jax.Array | np.ndarray)
    is_new = is_array and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not is_new and (not is_array or key.dtype != np.uint32 or not key.ndim):
        raise TypeError(
            f'expected `{name}` as {kind}, got {short_repr(key)}: pass '
            '`jax.random.key(0)`'
        )
    if several := key.shape if is_new else key.shape[:-1]:  # numbers, as of `PRNGKey`
        raise TypeError(
            f'expected `{name}` as {kind}, got an array of {math.prod(several)} keys: '
            'pass one, or take `jax.vmap` over them'
        )


def as_key(numbers: jax.Array) -> jax.Array:
    """The keys [...] of numbers [..., 2]."""
    key: jax.Array = jax.random.wrap_key_data(numbers, impl=_KIND)
    return key


def key_of(seed: jax.Array, identity: ArrayLike, number: ArrayLike) -> jax.Array:
    """The numbers [2] of the key of a node.

    Args:
      seed: [2] uint32, of its stream.
      identity: of its example.
      number: of the key among those of its stream in the example.
    """
    key = as_key(seed)
    for part in (identity, number):
        key = jax.random.fold_in(key, part)
    return jax.random.key_data(key)
