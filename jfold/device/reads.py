# SPDX-License-Identifier: Apache-2.0
"""The rows that operations outside of loops and results of a program read.

A *slot* is an input of an operation outside of loops, or a tensor of a result. It is
read in place (row i reads row i), or gathered by an index from constants and outputs of
operations. Sums are added up where they are read, or have rows of their own.

A *table* is an operation, or a result numbered behind all operations. A *part* of the
values is the constants of a type or one output of an operation, numbered as in
`graph.value_parts`. *Makers* are the outputs of operations that a slot may read, as a
bit set. A *section* of the index array has the numbers of the rows that a slot reads,
among all values of its type. In shapes, `rows` counts the rows of a table, and `*shape`
is that of one value.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfold.base.arrays import Varying, cast_varying
from jfold.base.jaxprs import is_inexact
from jfold.device.buffers import Batch, scattered, slice_rows, take
from jfold.device.execution import Execution
from jfold.graph import shared_counts
from jfold.program.components import (
    Place,
    makers_at,
    output_places,
    results_in,
    type_at,
)
from jfold.program.operations import ADD, MAXIMUM, ProducerSet
from jfold.scheduling.read_modes import ReadMode, read_modes, shared_reads, slots


@dataclass(frozen=True, eq=False)
class Produced:
    """An array of values of one type, which have successive numbers from `first` on.

    Attributes:
      first: number of the first value, among all values of the type.
      rows: [count, *shape], the values.
    """

    first: int
    rows: Array


@dataclass(frozen=True, eq=False)
class State:
    """The values that operations outside of loops have computed so far.

    Attributes:
      produced: by number of an output, its rows; all segment sums of one component
        share one entry.
      counts: by part, the number [] of its real rows, once it is computed.
      anything: parts whose spare (padding) rows are finite, but repeat no real one.
      gathered: by place, the rows that an indexed slot reads, which others may share.
    """

    execution: Execution
    batch: Batch
    produced: dict[int, Produced] = field(default_factory=dict)
    counts: dict[int, Array] = field(default_factory=dict)
    anything: set[int] = field(default_factory=set)
    gathered: dict[Place, Array] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Extent:
    """The number of rows of an operation or a result, with and without padding.

    Attributes:
      rows: number of rows.
      count: [] int32, the number of real rows.
      anything: whether padding rows may hold any finite numbers; else they repeat a
        real row.
      varying: the axes of an enclosing `jax.shard_map` that arrays vary over.
    """

    rows: int
    count: Array
    anything: bool
    varying: Varying | None

    @functools.cached_property
    def real(self) -> Array:
        """The mask [rows] bool, true for rows that are not padding."""
        real = lax.lt(lax.iota('int32', self.rows), self.count)
        return cast_varying(real, self.varying)


def mask_spare(x: Array, real: Array, spare: Array | None = None) -> Array:
    """Stop the gradient through padding rows of `x`; replace these by `spare` if given.

    Args:
      x: [rows, ...], or [*shape] if `real` is one bool.
      real: [rows] bool, or [] bool for all of `x`.
      spare: the replacement, of the shape of `x`; if left out, `x`, of which only the
        gradient is stopped.
    """
    if spare is None and not is_inexact(x):
        return x
    mask = lax.broadcast_in_dim(real, x.shape, range(real.ndim))
    return lax.select(mask, x, lax.stop_gradient(x if spare is None else spare))


# ---- slots ---------------------------------------------------------------------------


def part_in_place(execution: Execution, place: Place) -> int | None:
    """Return the part that the slot `place` reads in place; `None` if it gathers."""
    is_in_place = read_modes(execution.spec)[place] is ReadMode.IN_PLACE
    return slots(execution.program)[place].part if is_in_place else None


def read_rows(state: State, place: Place, extent: Extent) -> Array:
    """Return the rows [rows, *shape] that the slot `place` reads.

    Spare (padding) rows repeat the last real one, and no cotangent flows back from
    them; if `extent.anything`, they are anything finite.
    """
    execution, program = state.execution, state.execution.program
    mode, makers = read_modes(execution.spec)[place], makers_at(program, place)
    t, part = type_at(program, place), part_in_place(execution, place)
    if part is not None:
        values = _in_place(state, t, part, extent.rows)
    elif mode.adds:
        values = summed(state, place, makers, extent.rows)
    else:
        values = _indexed(state, place, extent.rows)
    is_indexed = mode in (ReadMode.INDEXED, ReadMode.SHARED)
    if not extent.rows:
        return values
    if extent.anything:
        if not is_indexed:
            return values
        return mask_spare(values, extent.real, lax.full_like(values, 0))
    if is_indexed and not makers:
        return values  # constants, to which no cotangent flows back anyway
    if is_indexed or _repeats(state, part, extent.rows):
        return mask_spare(values, extent.real)
    last = slice_rows(values, jnp.maximum(extent.count - 1, 0), 1)
    return mask_spare(values, extent.real, jnp.broadcast_to(last, values.shape))


def _indexed(state: State, place: Place, rows: int) -> Array:
    """Return the rows [rows, *shape] that a slot, or its twin, reads by an index."""
    program = state.execution.program
    source = shared_reads(state.execution.spec).get(place, place)
    if source not in state.gathered:
        t, makers = type_at(program, source), makers_at(program, source)
        state.gathered[source] = read_values(state, t, makers, source)
    values = state.gathered[source]
    # In a capacity put together by hand the twin may have more or fewer rows, or none.
    if rows <= len(values):
        return values[:rows]
    spare = values[-1:] if len(values) else zeros_of(state, type_at(program, place), 1)
    return jnp.concatenate([values, spare.repeat(rows - len(values), 0)])


def _repeats(state: State, part: int | None, rows: int) -> bool:
    """Return whether padding rows of a part that is read in place repeat real rows.

    Padding rows of an output do if padding rows of its operation's inputs do. False for
    `None`, where nothing is read in place.
    """
    program = state.execution.program
    if part is None or part in state.anything:
        return False
    number = part - len(program.types)  # of an output; less than zero for constants
    regions = state.execution.layout.region
    # If the operation has fewer rows, `_in_place` appends zeros.
    return number >= 0 and regions[output_places(program)[number][0]] >= rows


def _in_place(state: State, t: int, part: int, rows: int) -> Array:
    """Return `rows` rows [rows, *shape] of `part`, of type `t`, without a gather."""
    program = state.execution.program
    number = part - len(program.types)  # of an output
    if number < 0:
        values = jnp.asarray(state.batch.constants[t])[shared_counts(program)[t] :]
    elif number in state.produced:
        values = state.produced[number].rows
    else:  # there is no room for it, so no row is read
        return zeros_of(state, t, rows)
    # If a user has put a capacity together by hand, a reader may have more or fewer
    # rows than what it reads.
    spare = [(0, rows - len(values)), *[(0, 0)] * (values.ndim - 1)]
    return jnp.pad(values, spare) if rows > len(values) else values[:rows]


def summed(state: State, place: Place, makers: ProducerSet, rows: int) -> Array:
    """Return segment sums, or maxima or minima without a gradient, [rows, *shape].

    Sums without summands are zero.

    Args:
      place: a slot that adds up values, or a sum itself.
      makers: the outputs that it may add up, sums among them that have no rows.
    """
    program, batch = state.execution.program, state.batch
    slot, t = slots(program)[place], type_at(program, place)
    reads, section = batch.sections.reads[place], batch.sections.targets[place]
    in_place = read_modes(state.execution.spec)[place] is ReadMode.SUMMED_IN_PLACE
    if in_place:
        assert slot.part is not None
        summands = _in_place(state, t, slot.part, *section.shape)
    else:
        summands = read_values(state, t, makers, place)
    to = batch.read(section, 0, *section.shape)
    if slot.combines != ADD:
        return _extrema(state, summands, to, rows, slot.combines)
    wide = _wide(summands)
    # The additive identity of floats is -0.0, but a sum of nothing is 0.0.
    nothing = lax.full((rows,), -0.0 if is_inexact(wide) else 0, wide.dtype)
    if in_place and reads.shape[0]:
        is_empty = lax.gt(batch.read(reads, 0, rows), jnp.int32(0))
        nothing = lax.select(is_empty, lax.full_like(nothing, 0), nothing)
    start = lax.broadcast_in_dim(nothing, (rows, *wide.shape[1:]), (0,))
    # A CPU's scatter adds one row after another, in the order of the batch.
    start = cast_varying(start, state.execution.varying)
    sums = scattered(lax.scatter_add, start, wide, to)
    return sums.astype(summands.dtype)


def _extrema(state: State, items: Array, to: Array, rows: int, combines: str) -> Array:
    """Return segment maxima or minima [rows, *shape] of items [n, *shape].

    Item k belongs to row `to[k]`; rows without items are zero. `combines` is 'maximum'
    or 'minimum'.
    """
    is_largest = combines == MAXIMUM
    if is_inexact(items):
        least = -np.inf if is_largest else np.inf
    else:
        info = np.iinfo(items.dtype)
        least = info.min if is_largest else info.max
    shape = rows, *items.shape[1:]
    start = cast_varying(lax.full(shape, least, items.dtype), state.execution.varying)
    combine = lax.scatter_max if is_largest else lax.scatter_min
    result = scattered(combine, start, lax.stop_gradient(items), to)
    zeros = cast_varying(lax.full((rows,), 0, jnp.int32), state.execution.varying)
    count = scattered(lax.scatter_add, zeros, lax.full_like(to, 1), to)
    has_items = lax.broadcast_in_dim(lax.gt(count, jnp.int32(0)), shape, (0,))
    return lax.select(has_items, result, lax.full_like(result, 0))


def read_values(state: State, t: int, makers: ProducerSet, place: Place) -> Array:
    """Gather the values [rows, *shape] of type number `t` that `place` reads.

    They are constants, or outputs in `makers`, computed in loops or outside of them.
    """
    parts, section = list(_parts(state, t, makers)), state.batch.sections.reads[place]
    rows = state.batch.read(section, 0, *section.shape)
    if not parts:
        return zeros_of(state, t, *section.shape)
    values = jnp.concatenate([part.rows for part in parts])
    # In reverse the cotangents of all uses of a value are added up, hence `_wide`.
    at = _among(parts, rows)
    return take(_wide(values), at).astype(values.dtype)


def zeros_of(state: State, t: int, rows: int) -> Array:
    """Return zeros [rows, *shape] of type `t`, where there is nothing to read."""
    type_ = state.execution.program.types[t]
    zeros = jnp.zeros((rows, *type_.shape), type_.dtype)
    return cast_varying(zeros, state.execution.varying)


def _wide(x: Array) -> Array:
    """Return `x`, with 16-bit floats widened to float32, for long sums."""
    narrow = is_inexact(x) and x.dtype.itemsize < np.dtype('float32').itemsize
    return x.astype('float32') if narrow else x


def _parts(state: State, t: int, makers: ProducerSet) -> Iterator[Produced]:
    """Yield the constants of type `t`, then the results in `makers`, by row number."""
    constants = state.batch.constants[t]
    if len(constants):
        yield Produced(0, jnp.asarray(constants))
    produced = [state.produced[r] for r in results_in(makers) if r in state.produced]
    by_row = {x.first: x for x in produced}
    yield from (by_row[first] for first in sorted(by_row))


def _among(parts: Iterable[Produced], rows: Array) -> Array:
    """Map row numbers [n] among all values to rows in the concatenation of `parts`."""
    first, *others = parts
    shift, before = -first.first, len(first.rows)
    # Where a batch reads nothing at all, all rows are 0, and may be before `first`.
    place = lax.max(lax.add(rows, np.int32(shift)), np.int32(0)) if shift else rows
    for part in others:
        if shift != before - part.first:  # else there is nothing between the two
            # Rows move by the gaps between parts, which the concatenation leaves out.
            shift = before - part.first
            is_later = lax.ge(rows, np.int32(part.first))
            place = lax.select(is_later, lax.add(rows, np.int32(shift)), place)
        before += len(part.rows)
    return place
