# SPDX-License-Identifier: Apache-2.0
"""The memory of an execution: the data of a batch, and buffers, written in place.

Buffers are only read by gathers or slices, and written by `dynamic_update_slice`, never
inside a conditional, so that XLA copies none of them in a loop. In shapes, `size`
counts the rows of a buffer, `count` those read or written, and `*shape` is that of one
row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import jax.numpy as jnp
from jax import Array, lax

from jfold.base.arrays import Arrays, Spec, Varying, array_spec, cast_varying
from jfold.scheduling.index_array import Section, Sections
from jfold.scheduling.layout import Layout

Number: TypeAlias = 'Array | int'

# By number of the type, a buffer [size, *shape]. In the forward pass it has the
# constants of the type, then the values that operations compute. In the reverse it has
# cotangents: an edge row for each use of a value, then sums of uses and a row of zeros.
Buffers: TypeAlias = dict[int, Array]
# By operation, arrays [size, ...] that the forward pass stores for the reverse.
Saved: TypeAlias = dict[int, Arrays]
# By operation, then by number of the stash, arrays [size, ...] that the reverse loops
# store for gradients of weights, unless they overwrite arrays in `Saved`.
Stashes: TypeAlias = dict[int, dict[int, Array]]


@dataclass(frozen=True, eq=False)
class Batch:
    """The data of a batch on the device.

    Attributes:
      layout: the places of rows in buffers, and of sections in the index array.
      indices: [size] int32, the index array: all row numbers and counts of the batch.
      constants: by type [capacity, *shape], where `*shape` is that of one value.
    """

    layout: Layout
    indices: Array
    constants: tuple[Array, ...]

    @property
    def sections(self) -> Sections:
        """The place and the shape of each section of the index array `indices`."""
        return self.layout.sections

    def levels(self, component: int) -> Array:
        """Return the number of levels, or of fixed steps, of a component, [] int32."""
        return self._number(self.sections.depths, component)

    def nodes(self, operation: int) -> Array:
        """Return the number of rows of an operation that are not padding, [] int32."""
        return self._number(self.sections.counts, operation)

    def rows(self, result: int) -> Array:
        """Return the number of rows of a result that are not padding, [] int32."""
        return self._number(self.sections.rows, result)

    @property
    def empty(self) -> Array:
        """The divisor n [] int32: at most 1/n of a wide tile is padding."""
        return self._number(self.sections.empty, 0)

    def tiles(self, operation: int, level: Number) -> list[Array]:
        """Return begin and end [] int32 of an operation's range of rows on a level."""
        section = self.sections.tiles[self.layout.component[operation]]
        first = level * section.shape[1] + self.layout.column[operation]
        return list(self.read(section, first, 2))

    def sums(self, type_: int, step: Number, stage: Number) -> list[Array]:
        """Return, for a round of cotangent sums, the first sum and the number of tiles.

        Both are [] int32. `cotangent_sums.py` says what a round is.

        Args:
          type_: number of the type of the summed cotangents.
          step: number of the level or fixed step, counted through all components.
          stage: number of the round on that level.
        """
        section = self.sections.steps[type_]
        _, stages, numbers = section.shape
        place = numbers * (step * stages + stage)
        return list(self.read(section, place, numbers))

    def read(self, section: Section, first: Number, size: int) -> Array:
        """Return `size` numbers of a section, from the `first`-th on, [size] int32."""
        begin = section.start + first
        if isinstance(begin, int):
            return lax.slice(self.indices, (begin,), (begin + size,))
        return lax.dynamic_slice(
            self.indices, (begin,), (size,), allow_negative_indices=False
        )

    def _number(self, section: Section, place: int) -> Array:
        """Return the `place`-th number of a section, counted from 0, [] int32."""
        return lax.squeeze(self.read(section, place, 1), (0,))


def values_of(values: Buffers, batch: Batch, t: int) -> Array:
    """Return all values [size, *shape] of type `t`: a buffer, or constants alone.

    A type has no buffer if loops compute no value of it, but only read its constants.
    """
    return values[t] if t in values else jnp.asarray(batch.constants[t])


def new_buffer(spec: Spec, extra: Iterator[int], varying: Varying | None) -> Array:
    """Return zeros like `spec`, plus `next(extra)` rows, that vary over `varying`."""
    rows, *shape = spec.shape
    return cast_varying(jnp.zeros((rows + next(extra), *shape), spec.dtype), varying)


def buffer_spec(rows: int, row: Spec) -> Spec:
    """Return the spec of a buffer of `rows` rows, each like `row`."""
    return array_spec((rows, *row.shape), row.dtype)


def take(buffer: Array, rows: Array) -> Array:
    """Return rows [count, ...] of a buffer [size, ...], gathered by row index.

    The indices `rows` [count] int32 must be within the buffer, unless that is empty:
    then the result is zeros.
    """
    if not buffer.shape[0]:  # of a type that does not occur there is nothing to gather
        return jnp.zeros((*rows.shape, *buffer.shape[1:]), buffer.dtype)
    offset_dims = tuple(range(rows.ndim, rows.ndim + buffer.ndim - 1))
    return lax.gather(
        buffer,
        lax.expand_dims(rows, (rows.ndim,)),
        lax.GatherDimensionNumbers(offset_dims, (0,), (0,)),
        (1, *buffer.shape[1:]),
        mode='promise_in_bounds',
    )


def scattered(
    combine: Callable[..., Array], buffer: Array, rows: Array, at: Array
) -> Array:
    """Combine rows [count, ...] with those of a buffer [size, ...] at row indices `at`.

    Args:
      combine: `lax.scatter_add`, `lax.scatter_max` or `lax.scatter_min`.
      at: [count] row indices; rows with an index outside of the buffer are dropped.
    """
    window_dims = tuple(range(1, buffer.ndim))
    dimensions = lax.ScatterDimensionNumbers(window_dims, (0,), (0,))
    return combine(buffer, lax.expand_dims(at, (1,)), rows, dimensions, mode='drop')


def slice_rows(buffer: Array, first: Number, rows: int) -> Array:
    """Return `rows` successive rows of a buffer [size, ...], from row `first` on."""
    return lax.dynamic_slice_in_dim(buffer, first, rows, allow_negative_indices=False)


def write(buffer: Array, rows: Array, first: Number) -> Array:
    """Return a buffer [size, ...], with rows [count, ...] written at row `first`."""
    rows = rows.astype(buffer.dtype)
    return lax.dynamic_update_slice_in_dim(
        buffer, rows, first, 0, allow_negative_indices=False
    )


def interleave(rows: Arrays) -> Array:
    """Interleave the rows of n arrays, each [count, ...], to [n * count, ...]."""
    if len(rows) == 1:
        return rows[0]
    count, *shape = rows[0].shape
    if not shape:
        return jnp.stack(rows, 1).reshape(-1)
    # The arrays are joined side by side to long rows, which are then cut: a TPU would
    # transpose an array that is stacked on a small axis 1.
    return jnp.concatenate(rows, 1).reshape(count * len(rows), *shape)


def sum_arrays(rows: Arrays) -> Array:
    """Return the sum [count, ...] of arrays `rows`, each [count, ...], in order."""
    return functools.reduce(jnp.add, rows)


def repeated(x: Array, real: Array) -> Array:
    """Return `x` [count, ...] with row 0 in each row where `real` [count] is false."""
    real = real.reshape(real.shape + (1,) * (x.ndim - 1))
    return jnp.where(real, x, x[:1])
