# SPDX-License-Identifier: Apache-2.0
"""The reverse pass: from cotangents of the results to gradients of the weights.

It runs the loops of the forward pass backwards; `README.md` draws what a tile reads and
writes. Each use of a value writes its cotangent to an *edge row* of its own, so nothing
is scattered, and sums have a fixed order.

Gradients of weights are computed over all rows of an operation, in large chunks. The
kind of the operation decides when:

    not recurrent       together with the cotangents of its inputs
    recurrent           after all loops, from *stashes*: values that the loops stored,
                        many of them in the buffers of products already read
    recurrent, with     right after the loop of its component, with the cotangents of
      late inputs       these inputs, which come from outside of the recurrence

In shapes, `rows` counts the rows of a tile or chunk, and `*shape` is that of one value
or weight.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import jax.numpy as jnp
from jax import Array

from jfold.base.arrays import Arrays, ByOperation, array_spec, cast_varying, masked
from jfold.device import xla
from jfold.device.buffers import (
    Batch,
    Buffers,
    Number,
    Saved,
    Stashes,
    interleave,
    new_buffer,
    repeated,
    slice_rows,
    sum_arrays,
    write,
)
from jfold.device.cotangent_sums import has_sums, sum_uses
from jfold.device.execution import Execution, Pullback
from jfold.device.forward import gather_inputs
from jfold.device.kernel import Weights
from jfold.device.kernel_reverse import Rows
from jfold.device.linear import MaybeZeros, partition
from jfold.device.loops import Level, Loops, Tile, make_loops
from jfold.device.xla import Chained
from jfold.program.components import output_places, phases, results_in, type_at
from jfold.scheduling.layout import active_types

Carry: TypeAlias = tuple[Buffers, Saved, Stashes]
State: TypeAlias = Chained[Carry]
# Bytes of residuals of a row, from which the reverse has kernels of its own on a CPU:
# chains of tree-LSTM cells, H = 128, train in 0.75 of the time, lists in 1.03, and all
# of 256 in 0.94 to 0.97 (`against.py`).
ALONE = 1 << 11


@dataclass(frozen=True, eq=False)
class Reads:
    """The data that the reverse pass reads and never writes.

    Attributes:
      pullbacks: by operation, its reverse; only of operations that cotangents reach.
      weights: by operation that cotangents reach, its weights.
      values: the buffers of all values of the forward pass.
    """

    pullbacks: Mapping[int, Pullback]
    weights: Mapping[int, Weights]
    values: Buffers
    loops: Loops

    @property
    def execution(self) -> Execution:
        """The kernels, layout and tensors of the program."""
        return self.loops.execution


def backward(
    execution: Execution,
    pullbacks: Mapping[int, Pullback],
    arrays: ByOperation,
    batch: Batch,
    values: Buffers,
    saved: Saved,
    cotangents: MaybeZeros,
) -> tuple[dict[int, list[Array | None]], dict[int, Array | None]]:
    """Return gradients of weights, and cotangents of outputs computed before loops.

    The first dict maps an operation to the gradient [*shape] of each of its weights,
    the second an output to its cotangents [rows, *shape]; `None` stands for zeros.

    Args:
      pullbacks: by operation, its reverse; only of operations that cotangents reach.
      arrays: by operation, its weights, each [*shape].
      values, saved: all values and residuals of the forward pass.
      cotangents: of `execution.tensors`, in that order, each [rows, *shape] or `None`.
    """
    weights = {o: x.reverse.weights(arrays[o]) for o, x in pullbacks.items()}
    reads = Reads(pullbacks, weights, values, make_loops(execution, batch, down=True))
    # Cotangents of results are edges, too: a result is one more use of a value.
    carry = _new_carry(reads, cotangents, saved)
    state = Chained(cast_varying(jnp.zeros((), jnp.int32), execution.varying), carry)
    grads: dict[int, Arrays] = {}
    for c in reversed(range(len(execution.components))):
        # Operations that no cotangent reaches do not run, even within a component.
        operations = [o for o in execution.components[c].operations if o in pullbacks]
        if operations and pullbacks[first := operations[0]].runs_at_once:
            # All rows are of one level here, and the schedule lists the sums of a level
            # at the last of its steps.
            state = _sum_uses(reads, c, jnp.maximum(batch.levels(c) - 1, 0), state)
            state, grads[first] = _after_loops(reads, first, state)
        elif has_sums(execution, operations) or any(
            pullbacks[o].to_inputs for o in operations
        ):
            level = functools.partial(_pull_level, reads, c, operations)
            state = reads.loops.levels(c, level, state)
        # Late cotangents are read by other components, never by a loop of this one, so
        # one pass after its loops computes them.
        for o in operations:
            if pullbacks[o].reverse.late_inputs:
                state, grads[o] = _after_loops(reads, o, state)
    # The other gradients of weights come last, in chunks of rows of any level: few
    # large products in place of many small ones.
    for o, pullback in pullbacks.items():
        if pullback.to_weights and o not in grads:
            state, grads[o] = _after_loops(reads, o, state)
    gradients = {
        o: _gradients(reads, o, grads.get(o), len(x)) for o, x in arrays.items()
    }
    return gradients, _of_entering(reads, state)


def _of_entering(reads: Reads, state: State) -> dict[int, Array | None]:
    """Return the cotangents of outputs that are computed before loops and read in them.

    By number of the output, each [rows, *shape]; `None` stands for zeros.
    """
    program, layout = reads.execution.program, reads.execution.layout
    numbers = list(results_in(phases(program).entering))
    places = [output_places(program)[n] for n in numbers]
    # All rows are of one level, the first of their component.
    for c in sorted({layout.component[o] for o, _ in places}, reverse=True):
        state = _sum_uses(reads, c, 0, state)
    edges = state.carry[0]
    result: dict[int, Array | None] = {}
    for number, (o, k) in zip(numbers, places, strict=True):
        t, rows = program.operations[o].outputs[k], layout.region[o]
        result[number] = None
        if rows and t in edges:
            result[number] = _cotangent(reads, edges, t, layout.value_base[o][k], rows)
    return result


def _pull_level(
    reads: Reads, c: int, operations: Sequence[int], level: Level, state: State
) -> State:
    """Run the reverse of `operations` of component `c` on a level; return the state."""
    # All consumers of this level are in later levels or components, so have run.
    state = _sum_uses(reads, c, level.number, state)
    # XLA can run a single write after all reads of the buffer. With several it might
    # copy the buffer: see `xla.materialized`.
    writes = has_sums(reads.execution, operations) + _edge_writes(reads, operations)
    tile = functools.partial(_pull_tile, reads, writes > 1)
    for o in operations:
        if reads.pullbacks[o].to_inputs:
            state = reads.loops.tiles(o, level, tile, state)
    return state


def _edge_writes(reads: Reads, operations: Sequence[int]) -> int:
    """Count writes of one tile per operation to edge buffers that these tiles read."""
    execution = reads.execution
    running = [o for o in operations if reads.pullbacks[o].to_inputs]
    flows = {o: reads.pullbacks[o].reverse.flow for o in running}
    read = {execution.operations[o].outputs[k] for o in running for k in flows[o].live}
    return sum(
        execution.operations[o].inputs[group[0]] in read
        and any(a in reads.pullbacks[o].reverse.early_inputs for a in group)
        for o in running
        for group in execution.layout.together[o]
    )


def _pull_tile(reads: Reads, several: bool, tile: Tile, carry: Carry) -> Carry:
    """Run the reverse of a tile; return new `carry`: edges, residuals and stashes.

    Rows that an earlier tile reversed, of this level or past its end, read the same as
    before, so the same numbers are written to the same places.

    Args:
      several: whether edge buffers are written more than once in a level.
    """
    edges, saved, stashes = carry
    pullback = reads.pullbacks[tile.operation]
    rows = reads.execution.apart(_rows(reads, tile, edges, saved))
    # Else XLA might gather again after the first write, and copy the buffer for that.
    if several:
        rows = replace(rows, cotangents=reads.loops.read_once(rows.cotangents))
    pull = pullback.reverse.pull_to_inputs
    if sum(x.size * x.dtype.itemsize for x in rows.residuals) >= ALONE * tile.rows:
        pull = functools.partial(xla.isolated, pull)
    moving, crossing = reads.execution.apart(pull(rows))
    early = dict(zip(pullback.reverse.early_inputs, moving, strict=True))
    edges = _write_edges(reads, tile, edges, early, rows.cotangents)
    if pullback.defers:
        saved, stashes = _write_stashes(reads, tile, saved, stashes, crossing)
    return edges, saved, stashes


def _sum_uses(reads: Reads, c: int, level: Number, state: State) -> State:
    """Sum the cotangents of each often-used value of a level; return the new state."""
    edges, saved, stashes = state.carry
    edges = sum_uses(reads.loops, c, level, edges)
    return Chained(state.zero, (edges, saved, stashes))


# ---- rows of an operation ------------------------------------------------------------


def _rows(reads: Reads, tile: Tile, edges: Buffers, saved: Saved) -> Rows:
    """Gather the operands of the reverse of a tile or chunk from `edges` and `saved`.

    Spare (padding) rows of a chunk repeat the first row, with a cotangent of zero: on
    zeros an operation may give NaN, and zero times NaN is NaN.
    """
    o, rows, execution = tile.operation, tile.rows, reads.execution
    pullback, weights = reads.pullbacks[o], reads.weights[o]
    # Inputs are gathered once more rather than stored.
    inputs = gather_inputs(reads.loops, reads.values, tile)
    types, bases = execution.operations[o].outputs, execution.layout.value_base[o]
    cotangents = [
        _cotangent(reads, edges, types[k], bases[k] + tile.first, rows)
        for k in pullback.reverse.flow.live
    ]
    real = jnp.arange(rows) < (rows if tile.count is None else tile.count)
    real = cast_varying(real, execution.varying)

    if pullback.stores:
        residuals = [slice_rows(x, tile.first, rows) for x in saved[o]]
        # Spare rows repeat the first, in residuals as in inputs: an input of one row
        # beside a product of another might lie where the function is not defined.
        if tile.count is not None:
            residuals = [repeated(x, real) for x in residuals]
    else:
        _, residuals = pullback.reverse.save_residuals(weights, inputs, rows, {})
    if tile.count is not None:
        cotangents = [masked(x, real) for x in cotangents]
    return Rows(weights, inputs, residuals, cotangents, real)


def _cotangent(reads: Reads, edges: Buffers, t: int, first: Number, rows: int) -> Array:
    """Return the cotangents [rows, *shape] of `rows` values: sums of rows of `edges`.

    Row `first` of the value buffer of type `t` is the first of these values.
    """
    # Constants have no cotangents, so the section has no entries for them. A value with
    # fewer uses than others reads the row of zeros in place of the rest.
    at = first - reads.execution.spec.capacity.constants[t]
    batch = reads.loops.batch
    uses = batch.sections.consumers[t].rows
    indices = [batch.read(section, at, rows) for section in uses]
    return sum_arrays(reads.loops.gather(edges[t], indices))


def _write_edges(
    reads: Reads,
    tile: Tile,
    edges: Buffers,
    moving: Mapping[int, Array],
    cotangents: Arrays,
) -> Buffers:
    """Write the cotangents of a tile's inputs to `edges`; return the new buffers.

    Args:
      moving: by number of the input, its cotangents [rows, *shape].
      cotangents: of the live outputs, each [rows, *shape], read from `edges`; XLA has
        to read them before it writes.
    """
    operation = reads.execution.operations[tile.operation]
    reverse = reads.pullbacks[tile.operation].reverse
    live = [operation.outputs[k] for k in reverse.flow.live]
    outputs = list(enumerate(zip(live, cotangents, strict=True)))
    tied: dict[int, Array] = {}
    for a, x in moving.items():
        t = operation.inputs[a]
        known = reverse.cotangents_read[a]
        read = [y for k, (type_, y) in outputs if type_ == t and k not in known]
        tied[a] = xla.write_after(read, x.astype(edges[t].dtype), tile.first)
    # Each input of an operation has edge rows of its own, as many as the operation has
    # rows: writes are dense, and no two uses of a value write to the same place.
    for group in reads.execution.layout.together[tile.operation]:
        if chosen := [a for a in group if a in tied]:
            t = operation.inputs[group[0]]
            base, step = reads.execution.layout.edges[tile.operation, group[0]]
            first, none = base + step * tile.first, jnp.zeros_like(tied[chosen[0]])
            old = [none for _ in group]
            if any(a in reverse.early_inputs and a not in tied for a in group):
                # The rows of a group's inputs alternate. Those of inputs that are not
                # written now were written by the loop, and stay.
                rows = slice_rows(edges[t], first, step * tile.rows)
                old = [rows[k::step] for k in range(step)]
            pairs = zip(group, old, strict=True)
            rows = interleave([tied.get(a, x) for a, x in pairs])
            edges = edges | {t: write(edges[t], rows, first)}
    return edges


# ---- stashes: from the loops to the gradients of weights -----------------------------


def _write_stashes(
    reads: Reads, tile: Tile, saved: Saved, stashes: Stashes, crossing: Arrays
) -> tuple[Saved, Stashes]:
    """Write a tile's stashes `crossing` [rows, ...]; return the new `saved`, `stashes`.

    To save memory, a stash may be stored in `saved`, in the buffer of a product, as
    many rows further on as the widest tile has. Products there have been read already,
    since tiles run from the last rows to the first. With tiles of two rows:

        p0 p1 p2 p3 p4 p5 __ __     products of six rows, before any tile has run
        p0 p1 p2 p3 p4 p5 c4 c5     rows 4 and 5 have run
        p0 p1 p2 p3 c2 c3 c4 c5     rows 2 and 3 have run

    Rows past the end of a level run again, and need their products again. Due to the
    offset, only rows that have not run yet overwrite these. `xla.is_read_before`
    decides which buffers can be shared without XLA copying them.
    """
    o = tile.operation
    shift = reads.execution.shift(o)
    residuals, buffers = list(saved[o]), dict(stashes[o])
    pairs = zip(crossing, reads.pullbacks[o].reverse.crossing, strict=True)
    for k, (x, stash) in enumerate(pairs):
        if (place := stash.replaces) is None:
            buffers[k] = write(buffers[k], x, tile.first)
        else:
            residuals[place] = write(residuals[place], x, tile.first + shift)
    return saved | {o: residuals}, stashes | {o: buffers}


def _read_stashes(
    reads: Reads, tile: Tile, saved: Saved, stashes: Stashes, real: Array
) -> Iterator[Array]:
    """Yield a tile's stashes [rows, ...], which loops stored in `saved` or `stashes`.

    Rows that are not `real` [rows] are zero, or repeat the first where zero may give
    NaN.
    """
    o = tile.operation
    shift = reads.execution.shift(o)
    for k, stash in enumerate(reads.pullbacks[o].reverse.crossing):
        if stash.replaces is None:
            x = slice_rows(stashes[o][k], tile.first, tile.rows)
        else:
            x = slice_rows(saved[o][stash.replaces], tile.first + shift, tile.rows)
        # Zeros would give NaN for a stash that the gradients divide by, such as a norm
        # or the sum of a softmax: its spare rows repeat a real one.
        yield masked(x, real) if stash.is_linear else repeated(x, real)


# ---- gradients of weights ------------------------------------------------------------


def _after_loops(reads: Reads, o: int, state: State) -> tuple[State, Arrays]:
    """Compute the gradients of the weights of operation `o`, over all of its rows.

    Return the new state, and the gradients, each [*shape]. If the operation defers
    them, they are computed from stashes. If not, both halves of the reverse run here:
    nothing is stored in between, and XLA drops results that nobody uses as dead code.
    """
    pullback, (edges, saved, stashes) = reads.pullbacks[o], state.carry
    reverse, execution = pullback.reverse, reads.execution
    # Integers come last among weights, and have no gradient.
    trained = reads.weights[o].arrays[: execution.kernels[o].trained_count]
    zeros = [cast_varying(jnp.zeros_like(x), execution.varying) for x in trained]

    def chunk(tile: Tile, edges: Buffers) -> tuple[Buffers, Arrays]:
        rows, moving = _rows(reads, tile, edges, saved), list[Array]()
        if pullback.defers:
            crossing = list(_read_stashes(reads, tile, saved, stashes, rows.real))
            rows, crossing = execution.apart((rows, crossing))
        else:
            rows = execution.apart(rows)
            moving, crossing = reverse.pull_to_inputs(rows)
        grads, late = reverse.pull_to_weights(rows, crossing)
        grads, late = execution.apart((grads[: len(zeros)], late))
        written = dict(zip(reverse.late_inputs, late, strict=True))
        if pullback.to_inputs and pullback.runs_at_once:
            written |= zip(reverse.early_inputs, moving, strict=True)
        return _write_edges(reads, tile, edges, written, rows.cotangents), grads

    # If the loop only reads edges, which are complete by now, it need not wait for the
    # loop before.
    only_reads = pullback.defers and not reverse.late_inputs
    start = Chained(0 if only_reads else state.zero, (edges, zeros))
    done = reads.loops.chunks(o, chunk, start)
    edges, grads = done.carry
    if only_reads:
        return state, grads
    return Chained(done.zero, (edges, saved, stashes)), grads


def _gradients(
    reads: Reads, o: int, grads: Arrays | None, count: int
) -> list[Array | None]:
    """Return gradients of all `count` weights of operation `o`, `None` for zeros.

    `grads` has the gradients of trained weights, each [*shape]; it may be `None`. If no
    output with a cotangent reads a weight, its gradient is zero, whatever the values.
    """
    result: list[Array | None] = [None for _ in range(count)]
    for w, grad in enumerate(grads or []):
        live = reads.pullbacks[o].reverse.flow.live
        if any(w in reads.execution.kernels[o].depends[k] for k in live):
            result[w] = grad
    return result


# ---- new buffers ---------------------------------------------------------------------


def _new_carry(reads: Reads, cotangents: MaybeZeros, saved: Saved) -> Carry:
    """Return the carry that the reverse loops start from: all buffers that they change.

    `saved` is among them; new ones are zeros, but for `cotangents` of results.
    """
    execution, extra = reads.execution, xla.extra_rows(even=False)
    program, layout = execution.program, execution.layout
    places = [(type_at(program, x), layout.edges[x][0]) for x in execution.tensors]
    edges: Buffers = {}
    for t in sorted(_types(reads)):
        type_, size = execution.program.types[t], execution.layout.edge_rows[t]
        spec = array_spec((size, *type_.shape), type_.dtype)
        edges[t] = new_buffer(spec, extra, execution.varying)
        for (type_number, edge), x in zip(places, cotangents, strict=True):
            if type_number == t and x is not None:
                edges[t] = write(edges[t], x, edge)
    stashes = {
        o: {
            k: new_buffer(spec, extra, execution.varying)
            for k, spec in execution.stash_buffers(o, pullback).items()
        }
        for o, pullback in reads.pullbacks.items()
    }
    return edges, saved, stashes


def _types(reads: Reads) -> set[int]:
    """Return the numbers of the tensor types that have cotangents."""
    execution = reads.execution
    outputs = [t for x in execution.operations for t in x.outputs]
    entering = phases(execution.program).entering & execution.trainable
    types = {outputs[n] for n in results_in(entering)}
    types &= active_types(execution.program)
    for o, pullback in reads.pullbacks.items():
        operation, flow = reads.execution.operations[o], pullback.reverse.flow
        types.update(operation.outputs[k] for k in flow.live)
        types.update(partition(operation.inputs, flow.active))
    return types
