# SPDX-License-Identifier: Apache-2.0
"""Programs in which no operation takes turns: plain JAX, without loops.

Every operation runs once, on all rows that there is room for, behind those that it
reads. There is no buffer that all write to: what an input reads is taken as it is, if
it is all that an operation has made, in order; or is gathered from what those have made
that it may read, one behind the other, and where it is of sums, added up. JAX takes the
gradients.

    round 0     [rows of atoms, 64] ──────── in place ────────▶ round 1
                     └───── gathered, and added up by atom ────▶

Spare rows repeat a real one, and no cotangent flows back through them: where a function
is not defined, zero times infinity would be no number. Of operations that are defined
everywhere spare rows are anything finite, and their cotangents are zero by themselves,
as long as weights are finite: so there is nothing to mask.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfold.base.arrays import Arrays, ByOperation, Varying, array_spec, varied
from jfold.base.jaxprs import is_inexact
from jfold.device.batch import Batch
from jfold.device.buffers import add_at, slice_rows, take
from jfold.device.execution import Execution
from jfold.device.kernel import Weights
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
from jfold.scheduling.slots import ReadMode, read_ways, slots, sums_have_rows
from jfold.scheduling.spec import RECOMPUTE_ALL


@dataclass(frozen=True, eq=False)
class Made:
    """Values of a type that lie one behind the other.

    Attributes:
      first: the row of the first, among all values of the type.
      rows: [count, *shape].
    """

    first: int
    rows: Array


@dataclass(frozen=True, eq=False)
class State:
    """What there is so far.

    Attributes:
      execution: of what runs.
      made: by number of a result of an operation, what it has made; sums of a component
        have theirs together.
      counts: by part of the values, as far as known, how many rows of it are real [].
      anything: parts whose spare rows are anything finite, and repeat no real one.
    """

    execution: Execution
    batch: Batch
    made: dict[int, Made] = field(default_factory=dict)
    counts: dict[int, Array] = field(default_factory=dict)
    anything: set[int] = field(default_factory=set)


def run_once(
    execution: Execution,
    weights: ByOperation,
    indices: Array,
    constants: tuple[Array, ...],
) -> Arrays:
    """The tensors of all results [rows, *shape] each.

    Args:
      weights: by operation [*shape each].
      indices: [size], the index array.
      constants: per type [rows, *shape].
    """
    state = State(execution, Batch(execution.layout, indices, constants))
    for c, component in enumerate(execution.components):
        if summed_at_once(execution.spec, c):
            if component.operations and sums_have_rows(execution.spec):
                _add_up(state, c, component)
        else:
            for o in component.operations:
                _apply(state, o, weights[o])
    return list(_results(state))


def _apply(state: State, o: int, weights: Arrays) -> None:
    """Runs an operation, given its weights [*shape each]."""
    execution, reads = state.execution, _reads(state.execution, o)
    kernel, extent = execution.kernels[o], _extent(state, o, reads)
    inputs = [_rows(state, read, extent) for read in reads]
    real, own = None, weights
    if not extent.anything:
        real, own = extent.real, [_kept_apart(x, extent.count > 0) for x in weights]

    def run(own: Arrays, inputs: Arrays) -> Arrays:
        return kernel.outputs(Weights(own, []), inputs, extent.rows, real)

    if execution.spec.residuals == RECOMPUTE_ALL:
        run = jax.checkpoint(run)
    first = first_results(execution.program)[o]
    for k, x in enumerate(run(own, inputs)):
        state.made[first + k] = Made(execution.layout.value_base[o][k], x)
        part = len(execution.program.types) + first + k
        state.counts[part] = extent.count
        if extent.anything:
            state.anything.add(part)


@dataclass(frozen=True, eq=False)
class Extent:
    """The rows of an operation or a result.

    Attributes:
      rows: how many there are.
      count: how many of them, the first ones, are real [].
      anything: whether the others may be anything finite.
      varying: over which axes of an enclosing `jax.shard_map` arrays vary.
    """

    rows: int
    count: Array
    anything: bool
    varying: Varying | None

    @functools.cached_property
    def real(self) -> Array:
        """Which rows are real [rows] bool."""
        return varied(lax.lt(lax.iota('int32', self.rows), self.count), self.varying)


def _extent(state: State, table: int, reads: Sequence[Read]) -> Extent:
    """That of an operation, or of a result after all of them."""
    layout, count = state.execution.layout, _count(state, table, reads)
    rows = [*layout.region, *layout.results][table]
    anything = _takes_anything(state, table, reads)
    return Extent(rows, count, anything, state.execution.varying)


def _count(state: State, table: int, reads: Sequence[Read]) -> Array:
    """How many rows of an operation, or of a result after all of them, are real [].

    As many as of what is read in place, and of these told by one number: what is alike
    but for the number that it reads XLA would compile once more.
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


def _takes_anything(state: State, table: int, reads: Sequence[Read]) -> bool:
    """Whether an operation is defined on anything finite, and in its spare rows reads
    nothing else; if that saves anything."""
    execution = state.execution
    if table >= len(execution.operations):
        return False
    kernel, rows = execution.kernels[table], execution.layout.region[table]
    made = [p for p in _in_place_parts(reads) if p >= len(execution.program.types)]
    is_summed = any(x.way is ReadMode.SUMMED for x in reads)
    if not (made or is_summed or kernel.trained_count):
        return False
    return state.anything.issuperset(made) and kernel.is_defined(rows)


def _in_place_parts(reads: Iterable[Read]) -> list[int]:
    """The parts of the values that are read in place."""
    return [x.part for x in reads if x.part is not None and x.way is ReadMode.IN_PLACE]


def _add_up(state: State, c: int, component: Component) -> None:
    """Takes all sums of a component."""
    execution, operations = state.execution, component.operations
    sections, numbers = state.batch.sections, first_results(execution.program)
    (t,) = execution.operations[operations[0]].outputs
    own = sum(1 << numbers[o] for o in operations)
    makers = (
        union(union(sources(execution.program).inputs[o]) for o in operations) & ~own
    )
    rows = sum(execution.layout.region[o] for o in operations)
    summands = _read(state, t, makers, sections.summands[c])
    sums = _sums(state, summands, sections.sums_of[c], rows)
    made = Made(execution.layout.value_base[operations[0]][0], sums)
    state.made.update(dict.fromkeys((numbers[o] for o in operations), made))


def _kept_apart(x: Array, real: Array, spare: Array | None = None) -> Array:
    """`x` [rows, ...], or [*shape] for one bool; what is not real is `spare`, of the
    same shape, or `x` still, and no cotangent flows back from it."""
    if spare is None and not is_inexact(x):
        return x
    mask = lax.broadcast_in_dim(real, x.shape, range(real.ndim))
    return lax.select(mask, x, lax.stop_gradient(x if spare is None else spare))


def kept_bytes(execution: Execution) -> int:
    """What JAX keeps for the reverse, in bytes."""
    weights = {o: kernel.weight_specs for o, kernel in execution.kernels.items()}
    pairs = zip(execution.spec.capacity.constants, execution.program.types, strict=True)
    constants = tuple(array_spec((rows, *t.shape), t.dtype) for rows, t in pairs)
    indices = array_spec((execution.layout.sections.size,), jnp.int32)

    def pull(
        weights: ByOperation, indices: Array, constants: tuple[Array, ...]
    ) -> object:
        """The reverse, a pytree of what it reads."""
        floats = {o: list(filter(is_inexact, x)) for o, x in weights.items()}

        def run(floats: ByOperation) -> Arrays:
            whole = {o: x + weights[o][len(x) :] for o, x in floats.items()}
            return run_once(execution, whole, indices, constants)

        return jax.vjp(run, floats)[1]

    kept = jax.tree.leaves(jax.eval_shape(pull, weights, indices, constants))
    return sum(x.size * x.dtype.itemsize for x in kept)


# ---- what is read --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Read:
    """A slot on the device.

    Attributes:
      type: number of its type.
      makers: the operations' results that it may be of.
      part: of which it is all rows, where it is read in place.
      section: of what it reads.
      sums: of the rows that this is added to.
    """

    way: ReadMode
    type: int
    makers: ProducerSet
    part: int | None
    section: Section
    sums: Section


def _reads(execution: Execution, table: int) -> list[Read]:
    """The slots of an operation, or of a result after all of them."""
    program, sections = execution.program, execution.layout.sections
    types = [each.inputs for each in program.operations]
    types += [each.tensors for each in program.results]
    made, count = sources(program), len(types[table])
    of_table = (
        (made.inputs + made.results)[table],
        [slot.part for slot in slots(program) if slot.table == table],
        (sections.inputs + sections.results)[table],
        (sections.input_sums + sections.result_sums)[table],
    )
    ways = read_ways(execution.spec, table, count)
    return [Read(*x) for x in zip(ways, types[table], *of_table, strict=True)]


def _results(state: State) -> Iterator[Array]:
    """The tensors of all results [rows, *shape]."""
    first = len(state.execution.operations)
    for table in range(first, first + len(state.execution.program.results)):
        reads = _reads(state.execution, table)
        extent = _extent(state, table, reads)
        for read in reads:
            yield _rows(state, read, extent)


def _rows(state: State, read: Read, extent: Extent) -> Array:
    """What a slot reads [rows, *shape].

    Spare rows repeat the last real one, and no cotangent flows back from them; or are
    finite, if that is enough.
    """
    if read.way is ReadMode.IN_PLACE:
        found = _in_place(state, read, extent.rows)
    else:
        found = _read(state, read.type, read.makers, read.section)
    if read.way is ReadMode.SUMMED:
        found = _sums(state, found, read.sums, extent.rows)
    if not extent.rows:
        return found
    if extent.anything:
        if read.way is not ReadMode.INDEXED:
            return found
        return _kept_apart(found, extent.real, lax.full_like(found, 0))
    if read.way is ReadMode.INDEXED and not read.makers:
        return found  # constants, to which no cotangent flows back anyway
    if read.way is ReadMode.INDEXED or _repeats(state, read, extent.rows):
        return _kept_apart(found, extent.real)
    last = slice_rows(found, jnp.maximum(extent.count - 1, 0), 1)
    return _kept_apart(found, extent.real, jnp.broadcast_to(last, found.shape))


def _repeats(state: State, read: Read, rows: int) -> bool:
    """Whether spare rows of what is read in place repeat the last real one: they do in
    all that an operation has made, if in its inputs they do."""
    program = state.execution.program
    if read.part is None or read.way is not ReadMode.IN_PLACE:
        return False
    _, table, _ = value_parts(program)[read.part]
    o = table - len(program.types)
    is_made = o >= 0 and read.part not in state.anything
    return is_made and state.execution.layout.region[o] >= rows


def _in_place(state: State, read: Read, rows: int) -> Array:
    """All rows of a part [rows, *shape]."""
    program = state.execution.program
    assert read.part is not None
    t, table, k = value_parts(program)[read.part]
    if table < len(program.types):
        own = jnp.asarray(state.batch.constants[t])[shared_counts(program)[t] :]
    else:
        number = first_results(program)[table - len(program.types)] + k
        if number not in state.made:  # nor is there any row to read
            return _zeros(state, t, rows)
        own = state.made[number].rows
    # Of a capacity that was put together by hand one may have more room than the other.
    spare = [(0, rows - len(own)), *[(0, 0)] * (own.ndim - 1)]
    return jnp.pad(own, spare) if rows > len(own) else own[:rows]


def _sums(state: State, summands: Array, section: Section, rows: int) -> Array:
    """What is added up [rows, *shape], of summands [n, *shape] whose rows are in a
    section [n]."""
    wide, to = _wide(summands), state.batch.read(section, 0, *section.shape)
    # Of floats, -0.0 is what makes no difference.
    nothing = -0.0 if is_inexact(wide) else 0
    zeros = lax.full((rows, *wide.shape[1:]), nothing, wide.dtype)
    # In the order of the batch, on a CPU: its scatter adds one after another.
    sums = add_at(varied(zeros, state.execution.varying), wide, to)
    return sums.astype(summands.dtype)


def _read(state: State, t: int, makers: ProducerSet, section: Section) -> Array:
    """Values of a type [rows, *shape], which some operations have made, or constants.

    Args:
      section: of the index array [rows], with their rows among all values of the type.
    """
    parts = list(_parts(state, t, makers))
    rows = state.batch.read(section, 0, *section.shape)
    if not parts:
        return _zeros(state, t, *section.shape)
    values = jnp.concatenate([part.rows for part in parts])
    # In reverse the cotangents of a value are added up, as many as it has uses.
    at = _among(parts, rows)
    return take(_wide(values), at).astype(values.dtype)


def _zeros(state: State, t: int, rows: int) -> Array:
    """Of a type, where there is nothing to read [rows, *shape]."""
    type_ = state.execution.program.types[t]
    return varied(jnp.zeros((rows, *type_.shape), type_.dtype), state.execution.varying)


def _wide(x: Array) -> Array:
    """Numbers that can be added up one by one: in 16 bits little would be left."""
    narrow = is_inexact(x) and x.dtype.itemsize < np.dtype('float32').itemsize
    return x.astype('float32') if narrow else x


def _parts(state: State, t: int, makers: ProducerSet) -> Iterator[Made]:
    """Where such values are, in the order of their rows."""
    constants = state.batch.constants[t]
    if len(constants):
        yield Made(0, jnp.asarray(constants))
    found = {
        state.made[r].first: state.made[r]
        for r in results_in(makers)
        if r in state.made
    }
    yield from (found[first] for first in sorted(found))


def _among(parts: Iterable[Made], rows: Array) -> Array:
    """Where rows [n] are among values that lie one part behind the other [n]."""
    first, *others = parts
    shift, before = -first.first, len(first.rows)
    # Where a batch reads nothing at all, row 0 stands in all places.
    place = lax.max(lax.add(rows, np.int32(shift)), np.int32(0)) if shift else rows
    for part in others:
        if shift != before - part.first:  # else there is nothing between the two
            shift = before - part.first
            is_later = lax.ge(rows, np.int32(part.first))
            place = lax.select(is_later, lax.add(rows, np.int32(shift)), place)
        before += len(part.rows)
    return place
