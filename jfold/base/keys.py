# SPDX-License-Identifier: Apache-2.0
"""Keys of `jax.random` as arrays [..., 2] of uint32, which buffers hold."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jfold.base.errors import short_repr

# One key, or a key for each named stream.
Rngs: TypeAlias = jax.Array | Mapping[str, jax.Array] | None


# With other implementations of keys, `jax.vmap` changes the numbers that are drawn, so
# batches would differ from single examples.
_IMPLEMENTATION = 'threefry2x32'


def check_key(name: str, key: Any, kind: str = 'a PRNG key') -> None:
    """Raise TypeError unless `key` is one PRNG key, rather than an array of keys.

    The message calls the argument `name`, and `kind` what was expected.
    """
    is_array = isinstance(key, jax.Array | np.ndarray)
    is_new = is_array and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    text = f'expected `{name}` as {kind}, got'
    if not is_new and (not is_array or key.dtype != np.uint32 or not key.ndim):
        raise TypeError(f'{text} {short_repr(key)}: pass `jax.random.key(0)`')
    # Keys made by `PRNGKey` are arrays of numbers with one more axis.
    implementation: Any = jax.config.jax_default_prng_impl  # type: ignore[attr-defined]
    size = None if is_new else _numbers_of_key(implementation)
    if not is_new and key.shape[-1] != size:
        raise TypeError(
            f'{text} one of {key.shape[-1]} numbers, not {size}: pass '
            "`jax.random.key(0, impl='rbg')`, which tells its implementation"
        )
    if shape := key.shape if is_new else key.shape[:-1]:
        got = f'an array of {math.prod(shape)} keys'
        raise TypeError(f'{text} {got}: pass one, or take `jax.vmap` over them')


@functools.cache
def _numbers_of_key(implementation: str) -> int:
    """Return how many numbers a key of an implementation of JAX consists of."""
    key = jax.eval_shape(lambda: jax.random.PRNGKey(0, impl=implementation))
    return int(key.shape[0])


def as_key(numbers: jax.Array) -> jax.Array:
    """Return an array [...] of JAX keys from `numbers`, their uint32 data [..., 2]."""
    key: jax.Array = jax.random.wrap_key_data(numbers, impl=_IMPLEMENTATION)
    return key


def node_key(seed: jax.Array, identity: ArrayLike, number: ArrayLike) -> jax.Array:
    """Return `seed` [2] uint32 with `identity` and `number` folded in: one node's key.

    Args:
      seed: [2] uint32, the key data of the stream, such as 'dropout'.
      identity: the id of the example.
      number: the index of the key among the keys of its stream in the example.
    """
    key = as_key(seed)
    for part in (identity, number):
        key = jax.random.fold_in(key, part)
    return jax.random.key_data(key)
