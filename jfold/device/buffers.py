# SPDX-License-Identifier: Apache-2.0
"""What loops do with buffers: reading and writing rows in place, in a certain order.

Buffers are only read by gathers or slices, and written by `dynamic_update_slice`, never
inside a conditional, so that XLA copies none of them in a loop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jfold.language.layers import array_spec

Arrays = list[Any]


def buffer_of(rows: int, row: Any) -> jax.ShapeDtypeStruct:
    """The spec of rows of a kind."""
    return array_spec((rows, *row.shape), row.dtype)


def take(buffer: Any, rows: Any) -> Any:
    """Rows of a buffer at the given places."""
    if not buffer.shape[0]:  # of a type that does not occur there is nothing to gather
        return jnp.zeros((*rows.shape, *buffer.shape[1:]), buffer.dtype)
    return buffer.at[rows].get(mode='promise_in_bounds')


def slice_rows(buffer: Any, first: Any, rows: int) -> Any:
    """Rows of a buffer, one after another."""
    return lax.dynamic_slice_in_dim(buffer, first, rows)


def write(buffer: Any, rows: Any, first: Any) -> Any:
    """The buffer with rows written from number `first` on."""
    rows = rows.astype(buffer.dtype)
    return lax.dynamic_update_slice_in_dim(buffer, rows, first, 0)


def others(
    t: int, types: Sequence[int], arrays: Sequence[Any], known: set[int]
) -> Arrays:
    """The arrays of a type, without those whose places are known."""
    pairs = enumerate(zip(types, arrays, strict=True))
    return [x for place, (n, x) in pairs if n == t and place not in known]


def after(read: Arrays, x: Any, first: Any) -> Any:
    """`x`, in a form that XLA cannot compute before what was `read` of a buffer.

    Where a result does not depend on an input of its own type, XLA may write the one
    before it reads the other, and then copies the whole buffer for each tile.
    """
    for each in read:
        x = jnp.where(first >= 0, x.astype(each.dtype), each)
    return x


def gather_sum(buffer: Any, indices: list[Any]) -> Any:
    """The sum of several rows of a buffer, for each place."""
    return functools.reduce(jnp.add, [take(buffer, rows) for rows in indices])


def _by_row(mask: Any, x: Any) -> Any:
    return mask.reshape(mask.shape + (1,) * (x.ndim - 1))


def masked(x: Any, real: Any) -> Any:
    """Rows, zero where they are not real."""
    return jnp.where(_by_row(real, x), x, jnp.zeros((), x.dtype))


def repeated(x: Any, real: Any) -> Any:
    """Rows, the first in place of those that are not real."""
    return jnp.where(_by_row(real, x), x, x[:1])


# ---- loops ---------------------------------------------------------------------------


def step_at(step: Any, start: Any, stride: int, i: Any, carry: Any) -> Any:
    """`step` on the rows of round `i`, at a stride from the first."""
    return step(first=start + i * stride, carry=carry)


def repeat(step: Callable[[Any, Any], Any], count: Any, carry: Any) -> Any:
    """How often `step(i, carry)` ran, which is `count`, and the last carry."""

    def body(state: Any) -> Any:
        i, carry = state
        return i + 1, step(i, carry)

    start = jnp.zeros((), jnp.int32)
    return lax.while_loop(lambda state: state[0] < count, body, (start, carry))
