# SPDX-License-Identifier: Apache-2.0
"""The execution of programs without recurrences: plain JAX, without loops.

Each operation runs a single time, on all rows that there is room for, after those that
it reads. There is no shared buffer. An input that reads all results of an operation, in
order, is these results as they are ("in place"). Any other input is gathered from the
concatenated results that it may read, and added up where it reads sums. JAX takes the
gradients.

    round 0     [rows of atoms, 64] ──────── in place ────────▶ round 1
                     └───── gathered, and added up by atom ────▶

Spare (padding) rows repeat a real one, and no cotangent flows back through them: where
a function is not defined, zero times infinity would be NaN. In operations that are
defined everywhere spare rows are anything finite. As long as weights are finite, the
cotangents of spare rows are zero without a mask.

A *table* is an operation, or a result numbered behind all operations. A *part* of the
values is the constants of a type or one output of an operation, numbered as in
`graph.value_parts`. In shapes, `rows` counts the rows of a table, and `*shape` is that
of one value.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfold.base import jaxprs
from jfold.base.arrays import Arrays, ByOperation, Varying, array_spec, cast_varying
from jfold.base.jaxprs import is_inexact
from jfold.device.batch import Batch
from jfold.device.buffers import add_at, slice_rows, take
from jfold.device.derivatives import Derived, differentiable
from jfold.device.execution import Execution
from jfold.device.linear import MaybeZeros, Reverse
from jfold.graph import shared_counts, value_parts
from jfold.program.components import (
    Component,
    first_results,
    results_in,
    sources,
    union,
)
from jfold.program.operations import ProducerSet
from jfold.scheduling.sections import Section, summed_at_once
from jfold.scheduling.slots import ReadMode, column_modes, slots, sums_have_rows
from jfold.scheduling.spec import RECOMPUTE_ALL


@dataclass(frozen=True, eq=False)
class Produced:
    """The values of one type in successive rows.

    Attributes:
      first: number of the first row, among all values of the type.
      rows: [count, *shape], the values.
    """

    first: int
    rows: Array


@dataclass(frozen=True, eq=False)
class State:
    """The values computed so far.

    Attributes:
      produced: by number of a result of an operation, its rows; all sums of one
        component share one entry.
      counts: by part (the constants of a type, or an output), the number [] of its real
        rows, once it is computed.
      anything: parts whose spare (padding) rows are finite, but repeat no real one.
    """

    execution: Execution
    batch: Batch
    produced: dict[int, Produced] = field(default_factory=dict)
    counts: dict[int, Array] = field(default_factory=dict)
    anything: set[int] = field(default_factory=set)


def apply_all(
    execution: Execution,
    weights: ByOperation,
    indices: Array,
    constants: tuple[Array, ...],
) -> Arrays:
    """Return the tensors of all results, list of arrays, each [rows, *shape].

    Args:
      weights: by operation, list of arrays, each [*shape].
      indices: [size] int32, the index array.
      constants: by type [rows, *shape].
    """
    state = State(execution, Batch(execution.layout, indices, constants))
    for c, component in enumerate(execution.components):
        if summed_at_once(execution.spec, c):
            if component.operations and sums_have_rows(execution.spec):
                _apply_sums(state, c, component)
        else:
            for o in component.operations:
                _apply(state, o, weights[o])
    return _checked(execution, list(_results(state)))


def _checked(execution: Execution, tensors: Arrays) -> Arrays:
    """Return the tensors; their reverse raises if a function has no gradient.

    The error has a note with the name of the layer, which JAX's own error lacks.
    """
    kernels = execution.kernels.values()
    if all(jaxprs.is_straight(kernel.forward(2)) for kernel in kernels):
        return tensors
    return [_checked_tensor(execution, k, x) for k, x in enumerate(tensors)]


def _checked_tensor(execution: Execution, number: int, tensor: Array) -> Array:
    """Return result tensor `number`; its reverse checks, and passes the cotangent on.

    It raises if an operation that the tensor depends on has no gradient.
    """

    def pull(_: Arrays, cotangents: MaybeZeros) -> MaybeZeros:
        execution.pullbacks([k == number for k, _ in enumerate(execution.tensors)])
        return cotangents

    def again(_: Arrays, along: MaybeZeros, cotangents: MaybeZeros) -> MaybeZeros:
        return []  # the identity has no second derivative

    def derived(tensors: Arrays, _: MaybeZeros) -> Derived:
        return tensors, Reverse(pull, again), tensors

    checked: Array
    (checked,) = differentiable(lambda tensors: tensors, derived)([tensor])
    return checked


def _apply(state: State, o: int, weights: Arrays) -> None:
    """Run operation `o` on weights, each [*shape]; add its outputs to `state`."""
    execution, reads = state.execution, _reads(state.execution, o)
    kernel, extent = execution.kernels[o], _extent(state, o, reads)
    inputs = [_rows(state, read, extent) for read in reads]
    real, arrays = None, weights
    if not extent.anything:
        # Without real rows, spare ones could give weights a gradient of NaN.
        real, arrays = extent.real, [_mask_spare(x, extent.count > 0) for x in weights]

    def run(arrays: Arrays, inputs: Arrays) -> Arrays:
        return kernel.outputs(kernel.weights(arrays), inputs, extent.rows, real)

    if execution.spec.residuals == RECOMPUTE_ALL:
        run = jax.checkpoint(run)
    first = first_results(execution.program)[o]
    for k, x in enumerate(run(arrays, inputs)):
        state.produced[first + k] = Produced(execution.layout.value_base[o][k], x)
        part = len(execution.program.types) + first + k
        state.counts[part] = extent.count
        if extent.anything:
            state.anything.add(part)


@dataclass(frozen=True, eq=False)
class Extent:
    """The rows of an operation or a result, real ones first.

    Attributes:
      rows: number of rows.
      count: [] int32, the number of real rows.
      anything: whether the other rows may be anything finite, and need repeat no real
        one.
      varying: the axes of an enclosing `jax.shard_map` that arrays vary over.
    """

    rows: int
    count: Array
    anything: bool
    varying: Varying | None

    @functools.cached_property
    def real(self) -> Array:
        """The mask of the real rows, [rows] bool."""
        return cast_varying(
            lax.lt(lax.iota('int32', self.rows), self.count), self.varying
        )


def _extent(state: State, table: int, reads: Sequence[Read]) -> Extent:
    """Return the extent of a table: an operation, or a result behind all operations."""
    layout, count = state.execution.layout, _count(state, table, reads)
    rows = [*layout.region, *layout.results][table]
    anything = _allows_any_finite(state, table, reads)
    return Extent(rows, count, anything, state.execution.varying)


def _count(state: State, table: int, reads: Sequence[Read]) -> Array:
    """Return the number [] of real rows of a table, an operation or a result.

    Values read in place and their readers share one such scalar: XLA would compile
    equal code again for each scalar that it reads.
    """
    batch, first = state.batch, len(state.execution.operations)
    parts = _in_place_parts(reads)
    known = [state.counts[p] for p in parts if p in state.counts]
    if known:
        (count, *_) = known
    else:
        count = batch.nodes(table) if table < first else batch.rows(table - first)
    state.counts.update(dict.fromkeys(parts, count))
    return count


def _allows_any_finite(state: State, table: int, reads: Sequence[Read]) -> bool:
    """Return whether spare (padding) rows of an operation may be anything finite.

    It must be defined everywhere, and outputs that it reads in place must have such
    spare rows themselves. False for results, and where no mask would be saved.
    """
    execution = state.execution
    if table >= len(execution.operations):
        return False
    kernel, rows = execution.kernels[table], execution.layout.region[table]
    parts = [p for p in _in_place_parts(reads) if p >= len(execution.program.types)]
    is_summed = any(x.mode is ReadMode.SUMMED for x in reads)
    if not (parts or is_summed or kernel.trained_count):
        return False
    return state.anything.issuperset(parts) and kernel.is_defined(rows)


def _in_place_parts(reads: Iterable[Read]) -> list[int]:
    """Return the numbers of the parts (constants or outputs) read in place."""
    return [x.part for x in reads if x.part is not None and x.mode is ReadMode.IN_PLACE]


def _apply_sums(state: State, c: int, component: Component) -> None:
    """Compute all sums of a component as one array of rows; add it to `state`."""
    execution, operations = state.execution, component.operations
    sections, numbers = state.batch.sections, first_results(execution.program)
    (t,) = execution.operations[operations[0]].outputs
    inside = sum(1 << numbers[o] for o in operations)
    inputs = sources(execution.program).inputs
    # Sums of sums are flattened: no summand is a result of this component.
    makers = union(union(inputs[o]) for o in operations) & ~inside
    rows = sum(execution.layout.region[o] for o in operations)
    summands = _read(state, t, makers, sections.summands[c])
    sums = _sums(state, summands, sections.sums_of[c], rows)
    result = Produced(execution.layout.value_base[operations[0]][0], sums)
    state.produced.update(dict.fromkeys((numbers[o] for o in operations), result))


def _mask_spare(x: Array, real: Array, spare: Array | None = None) -> Array:
    """Replace rows that are not real, and stop the gradient through them.

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


def kept_bytes(execution: Execution) -> int:
    """Return the number of bytes that JAX stores for the reverse.

    Raises:
      Exception: whatever a function without a gradient raises.
    """
    execution.pullbacks([True for _ in execution.tensors])
    weights = {o: kernel.weight_specs for o, kernel in execution.kernels.items()}
    pairs = zip(execution.spec.capacity.constants, execution.program.types, strict=True)
    constants = tuple(array_spec((rows, *t.shape), t.dtype) for rows, t in pairs)
    indices = array_spec((execution.layout.sections.size,), jnp.int32)

    def pull(
        weights: ByOperation, indices: Array, constants: tuple[Array, ...]
    ) -> object:
        """Return the reverse as `jax.vjp` does, a pytree of its residuals."""
        floats = {o: list(filter(is_inexact, x)) for o, x in weights.items()}

        def run(floats: ByOperation) -> Arrays:
            all_weights = {o: x + weights[o][len(x) :] for o, x in floats.items()}
            return apply_all(execution, all_weights, indices, constants)

        return jax.vjp(run, floats)[1]

    kept = jax.tree.leaves(jax.eval_shape(pull, weights, indices, constants))
    return sum(x.size * x.dtype.itemsize for x in kept)


# ---- slots ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Read:
    """A slot (input of an operation or tensor of a result) on the device.

    Attributes:
      mode: whether rows are read in place, gathered by an index, or summed.
      type: number of its type.
      makers: the results of operations that it may read, as a bit set.
      part: number of the part that it reads whole, where it reads in place.
      section: the section of the index array with the rows that it reads.
      sums: the section with the row that each of these is added to, if it is summed.
    """

    mode: ReadMode
    type: int
    makers: ProducerSet
    part: int | None
    section: Section
    sums: Section


def _reads(execution: Execution, table: int) -> list[Read]:
    """Return how the inputs of an operation, or the tensors of a result, are read."""
    program, sections = execution.program, execution.layout.sections
    types = [operation.inputs for operation in program.operations]
    types += [result.tensors for result in program.results]
    producers, count = sources(program), len(types[table])
    of_table = (
        (producers.inputs + producers.results)[table],
        [slot.part for slot in slots(program) if slot.table == table],
        (sections.inputs + sections.results)[table],
        (sections.input_sums + sections.result_sums)[table],
    )
    modes = column_modes(execution.spec, table, count)
    return [Read(*x) for x in zip(modes, types[table], *of_table, strict=True)]


def _results(state: State) -> Iterator[Array]:
    """Yield the tensors of all results, each [rows, *shape], in order."""
    first = len(state.execution.operations)
    for table in range(first, first + len(state.execution.program.results)):
        reads = _reads(state.execution, table)
        extent = _extent(state, table, reads)
        for read in reads:
            yield _rows(state, read, extent)


def _rows(state: State, read: Read, extent: Extent) -> Array:
    """Return the rows that an input or a result tensor reads, [rows, *shape].

    Spare (padding) rows repeat the last real one, and no cotangent flows back from
    them; if `extent.anything`, they are anything finite.
    """
    if read.mode is ReadMode.IN_PLACE:
        values = _in_place(state, read, extent.rows)
    else:
        values = _read(state, read.type, read.makers, read.section)
    if read.mode is ReadMode.SUMMED:
        values = _sums(state, values, read.sums, extent.rows)
    if not extent.rows:
        return values
    if extent.anything:
        if read.mode is not ReadMode.INDEXED:
            return values
        return _mask_spare(values, extent.real, lax.full_like(values, 0))
    if read.mode is ReadMode.INDEXED and not read.makers:
        return values  # constants, to which no cotangent flows back anyway
    if read.mode is ReadMode.INDEXED or _repeats(state, read, extent.rows):
        return _mask_spare(values, extent.real)
    last = slice_rows(values, jnp.maximum(extent.count - 1, 0), 1)
    return _mask_spare(values, extent.real, jnp.broadcast_to(last, values.shape))


def _repeats(state: State, read: Read, rows: int) -> bool:
    """Return whether spare (padding) rows of values read in place repeat a real row.

    The spare rows of all outputs of an operation do, if those of its inputs do.
    """
    program = state.execution.program
    if read.part is None or read.mode is not ReadMode.IN_PLACE:
        return False
    _, table, _ = value_parts(program)[read.part]
    o = table - len(program.types)
    is_made = o >= 0 and read.part not in state.anything
    return is_made and state.execution.layout.region[o] >= rows


def _in_place(state: State, read: Read, rows: int) -> Array:
    """Return all constants of a type, or all of an output, [rows, *shape]."""
    program = state.execution.program
    assert read.part is not None
    t, table, k = value_parts(program)[read.part]
    if table < len(program.types):
        values = jnp.asarray(state.batch.constants[t])[shared_counts(program)[t] :]
    else:
        number = first_results(program)[table - len(program.types)] + k
        if number not in state.produced:  # there is no room for it, so no row is read
            return _zeros(state, t, rows)
        values = state.produced[number].rows
    # In a capacity that was put together by hand, a reader may have more or fewer rows.
    spare = [(0, rows - len(values)), *[(0, 0)] * (values.ndim - 1)]
    return jnp.pad(values, spare) if rows > len(values) else values[:rows]


def _sums(state: State, summands: Array, section: Section, rows: int) -> Array:
    """Return sums [rows, *shape] of summands [n, *shape].

    Args:
      section: of the index array, [n] numbers: the row of the sum that each summand
        adds to.
      rows: number of sums; those without summands are zero.
    """
    wide, to = _wide(summands), state.batch.read(section, 0, *section.shape)
    # The additive identity of floats is -0.0.
    nothing = -0.0 if is_inexact(wide) else 0
    zeros = lax.full((rows, *wide.shape[1:]), nothing, wide.dtype)
    # A CPU's scatter adds one row after another, in the order of the batch.
    sums = add_at(cast_varying(zeros, state.execution.varying), wide, to)
    return sums.astype(summands.dtype)


def _read(state: State, t: int, makers: ProducerSet, section: Section) -> Array:
    """Return values of type `t`, gathered from constants and results, [rows, *shape].

    Args:
      makers: the results of operations that may be read, as a bit set.
      section: of the index array, [rows] numbers of rows among all values of the type.
    """
    parts = list(_parts(state, t, makers))
    rows = state.batch.read(section, 0, *section.shape)
    if not parts:
        return _zeros(state, t, *section.shape)
    values = jnp.concatenate([part.rows for part in parts])
    # In reverse the cotangents of all uses of a value are added up, hence `_wide`.
    at = _among(parts, rows)
    return take(_wide(values), at).astype(values.dtype)


def _zeros(state: State, t: int, rows: int) -> Array:
    """Return zeros [rows, *shape] of type `t`, where there is nothing to read."""
    type_ = state.execution.program.types[t]
    return cast_varying(
        jnp.zeros((rows, *type_.shape), type_.dtype), state.execution.varying
    )


def _wide(x: Array) -> Array:
    """Return `x`, with 16-bit floats widened to float32, for long sums."""
    narrow = is_inexact(x) and x.dtype.itemsize < np.dtype('float32').itemsize
    return x.astype('float32') if narrow else x


def _parts(state: State, t: int, makers: ProducerSet) -> Iterator[Produced]:
    """Yield the constants of type `t` and results of `makers`, in the order of rows."""
    constants = state.batch.constants[t]
    if len(constants):
        yield Produced(0, jnp.asarray(constants))
    by_row = {
        state.produced[r].first: state.produced[r]
        for r in results_in(makers)
        if r in state.produced
    }
    yield from (by_row[first] for first in sorted(by_row))


def _among(parts: Iterable[Produced], rows: Array) -> Array:
    """Return indices [n] into the concatenation of `parts`, for rows [n] of a type."""
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
