# SPDX-License-Identifier: Apache-2.0
"""The buffers of an execution, whose rows are read and written in place.

Buffers are only read by gathers or slices, and written by `dynamic_update_slice`, never
inside a conditional, so that XLA copies none of them in a loop.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfold.base.arrays import Arrays, Spec, Varying, array_spec, varied
from jfold.device.batch import Batch, Number


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Values:
    """What operations have made.

    Attributes:
      buffers: by type, of those that operations make [constants + regions, *shape].
    """

    buffers: dict[int, Array]

    def of(self, batch: Batch, t: int) -> Array:
        """The values of a type [rows, *shape], be they constants alone."""
        constants = batch.constants[t]
        return self.buffers[t] if t in self.buffers else jnp.asarray(constants)

    def written(self, t: int, rows: Array, first: Number) -> Values:
        """With rows [count, *shape] from number `first` on."""
        return Values(self.buffers | {t: write(self.buffers[t], rows, first)})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Edges:
    """Cotangents, where the uses of values have left them.

    Attributes:
      buffers: by type, of those that have cotangents [uses, *shape].
    """

    buffers: dict[int, Array]

    def written(self, t: int, rows: Array, first: Number) -> Edges:
        """With rows [count, *shape] from number `first` on."""
        return Edges(self.buffers | {t: write(self.buffers[t], rows, first)})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Residuals:
    """What is stored for later, row by row of each operation.

    Attributes:
      saved: by operation, by the forward pass for the reverse [rows, ...] each.
      crossing: by operation, by the loops of the reverse for the gradients of weights,
        by number [rows, ...] each, but for what takes the place of something saved.
    """

    saved: dict[int, Arrays]
    crossing: dict[int, dict[int, Array]]

    def with_saved(self, o: int, rows: Arrays, first: Number) -> Residuals:
        """With rows [count, ...] of an operation from number `first` on."""
        pairs = zip(self.saved[o], rows, strict=True)
        saved = [write(buffer, x, first) for buffer, x in pairs]
        return Residuals(self.saved | {o: saved}, self.crossing)

    def replaced(self, o: int, saved: Arrays, crossing: dict[int, Array]) -> Residuals:
        """With other buffers of one operation [rows, ...] each."""
        return Residuals(self.saved | {o: saved}, self.crossing | {o: crossing})


def new_buffer(spec: Spec, extra: Iterator[int], varying: Varying | None) -> Array:
    """Zeros [rows, ...], some more than asked for; see `xla.extra_rows`."""
    rows, *shape = spec.shape
    return varied(jnp.zeros((rows + next(extra), *shape), spec.dtype), varying)


def buffer_of(rows: int, row: Spec) -> Spec:
    """The spec of rows of a kind [rows, *row]."""
    return array_spec((rows, *row.shape), row.dtype)


def take(buffer: Array, rows: Array) -> Array:
    """Rows [count, ...] of a buffer [size, ...] at the given places [count]."""
    if not buffer.shape[0]:  # of a type that does not occur there is nothing to gather
        return jnp.zeros((*rows.shape, *buffer.shape[1:]), buffer.dtype)
    whole = tuple(range(rows.ndim, rows.ndim + buffer.ndim - 1))
    return lax.gather(
        buffer,
        lax.expand_dims(rows, (rows.ndim,)),
        lax.GatherDimensionNumbers(whole, (0,), (0,)),
        (1, *buffer.shape[1:]),
        mode='promise_in_bounds',
    )


def add_at(buffer: Array, rows: Array, at: Array) -> Array:
    """The buffer [size, ...] with rows [count, ...] added, one after another, at the
    given places [count]; but for those that it does not have."""
    whole = tuple(range(1, buffer.ndim))
    return lax.scatter_add(
        buffer,
        lax.expand_dims(at, (1,)),
        rows,
        lax.ScatterDimensionNumbers(whole, (0,), (0,)),
        mode='drop',
    )


def slice_rows(buffer: Array, first: Number, rows: int) -> Array:
    """Rows of a buffer [size, ...], one after another [rows, ...]."""
    return lax.dynamic_slice_in_dim(buffer, first, rows, allow_negative_indices=False)


def write(buffer: Array, rows: Array, first: Number) -> Array:
    """The buffer [size, ...] with rows [count, ...] written from number `first` on."""
    rows = rows.astype(buffer.dtype)
    return lax.dynamic_update_slice_in_dim(
        buffer, rows, first, 0, allow_negative_indices=False
    )


def beside(rows: Arrays) -> Array:
    """The first row of each of several [count, ...], then all second ones, and so on
    [several * count, ...]."""
    if len(rows) == 1:
        return rows[0]
    count, *shape = rows[0].shape
    if not shape:
        return jnp.stack(rows, 1).reshape(-1)
    # Long rows, which are then cut: a TPU turns arrays of [count, several] round.
    return jnp.concatenate(rows, 1).reshape(count * len(rows), *shape)


def added(rows: Arrays) -> Array:
    """The sum [count, ...] of rows [count, ...] each, from the first on."""
    return functools.reduce(jnp.add, rows)


def repeated(x: Array, real: Array) -> Array:
    """Rows [count, ...], the first in place of those that are not real [count]."""
    real = real.reshape(real.shape + (1,) * (x.ndim - 1))
    return jnp.where(real, x, x[:1])
