# SPDX-License-Identifier: Apache-2.0
"""Keys of `jax.random` as numbers [..., 2] uint32, which buffers hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jfold.errors import expect

# A key, or one by stream.
Rngs: TypeAlias = jax.Array | Mapping[str, jax.Array] | None


class Drawing(NamedTuple):
    """What one example draws with, when it is evaluated; see `Block.eval`."""

    rngs: Rngs
    id: int
    deterministic: bool


def check_key(name: str, key: object, kind: str = 'a PRNG key') -> None:
    """Refuses what is not one key, old or new.

    Raises:
      TypeError: it is none, or several.
    """
    is_array = isinstance(key, jax.Array | np.ndarray)
    expect(name, key, is_array, kind, 'pass `jax.random.key(0)`')
    assert isinstance(key, jax.Array | np.ndarray)
    is_new = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    is_old = key.dtype == np.uint32 and key.ndim > 0
    if several := key.shape if is_new or not is_old else key.shape[:-1]:
        raise TypeError(
            f'expected `{name}` as {kind}, got an array {key.dtype}{list(several)}: '
            'pass one of several, as `keys[0]`, or map over them by `jax.vmap`'
        )


# Other kinds draw something else of a key beside others, under `jax.vmap`, than alone.
_KIND = 'threefry2x32'


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
