# SPDX-License-Identifier: Apache-2.0
"""Keys of `jax.random` as numbers [..., 2] uint32, which buffers hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import jax
from jax.typing import ArrayLike

# A key, or one by stream.
Rngs: TypeAlias = jax.Array | Mapping[str, jax.Array] | None


class Drawing(NamedTuple):
    """What one example draws with, when it is evaluated; see `Block.eval`."""

    rngs: Rngs
    id: int
    deterministic: bool


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
