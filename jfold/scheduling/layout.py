# SPDX-License-Identifier: Apache-2.0
"""`Layout`: the places of rows in buffers and of sections in the index array.

On the device each tensor type has one *value buffer*,

    | constants | rows of operation 0, output 0 | output 1 | operation 1 ... |

and, if gradients flow through it (an *active* type), one *edge buffer*, where each use
of a value leaves a cotangent:

    | rows of operation 0, input 0 | input 1 | ... | results | sums | a row of zeros |

or, where each write starts a kernel, an operation's inputs of the type have their rows
interleaved. A row is called by its number in its buffer. All indices of a batch are one
array, whose sections `index_array.py` lays out. All places follow from a `Spec` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import jax.numpy as jnp

from jfold.base.memo import memoized
from jfold.program.components import (
    LEAVING,
    Component,
    Place,
    component_of,
    components,
    outputs_of,
    phases,
    results_in,
    type_at,
)
from jfold.program.operations import Operation, Operations
from jfold.scheduling.index_array import (
    SUM_ARITY,
    Allocator,
    Sections,
    allocate_sections,
)
from jfold.scheduling.spec import Spec
from jfold.scheduling.tiles import (
    MEMORY,
    SUM_WIDTH,
    even_parts,
    strategy_at,
    strategy_of,
)

# ---- components and active types -----------------------------------------------------


def has_gradient(operation: Operation) -> bool:
    """Return whether an operation has trainable (floating-point) parameters."""
    leaves, _ = operation.layer.leaves
    return any(jnp.issubdtype(x.dtype, jnp.inexact) for x in leaves)


@memoized
def active_types(program: Operations) -> frozenset[int]:
    """Return the numbers of the types through which gradients flow.

    These are differentiable types of which an operation makes values from parameters,
    or from values of such types.
    """
    # To a fixed point, since in a recurrence later operations feed earlier ones.
    active: set[int] = set()
    while True:
        before = len(active)
        for operation in program.operations:
            if has_gradient(operation) or active.intersection(operation.inputs):
                active.update(
                    n for n in operation.outputs if program.types[n].differentiable
                )
        if len(active) == before:
            return frozenset(active)


@memoized
def running_components(spec: Spec) -> tuple[Component, ...]:
    """Return the components, less the operations without rows in the capacity."""
    # So an operation that no batch has used so far costs nothing.
    rows = spec.capacity.rows
    return tuple(
        replace(part, operations=tuple(o for o in part.operations if rows[o]))
        for part in components(spec.program)
    )


# ---- layout --------------------------------------------------------------------------

Numbers: TypeAlias = tuple[int, ...]
Groups: TypeAlias = tuple[Numbers, ...]  # groups of numbers of inputs
Edges: TypeAlias = dict[Place, tuple[int, int]]  # first row, distance to the next row


@dataclass(frozen=True)
class Layout:
    """The places of rows in buffers and of sections in the index array.

    An *edge row* holds the cotangent of one use of a value. The edge row -1 stands for
    a use through which no gradient flows.

    Attributes:
      region: [operations] rows of each operation in a buffer: its capacity, and room
        for a tile (rows that run at once) that passes its end, and for whole chunks.
      results: [results] rows of each result.
      chunk: [operations] rows per pass outside of the loop over levels, for hoisted
        products and for gradients of parameters.
      widths: per operation, rows per tile, as `Strategy.widths` orders them.
      component: [operations] the number of each operation's component.
      column: [operations] a column of the component's table of tiles: the operation's
        first row on each level. The next column has the end of its rows.
      trips: per component, the trip count of each of its loops; its table of tiles has
        a row per trip.
      value_base: per operation and output, the first row in the value buffer; a row
        behind the buffer's end for outputs that no loop computes or reads.
      value_rows: [types] rows of each value buffer.
      together: per operation, groups of inputs of one type that are read at once, and
        whose cotangents are written at once.
      edges: by place, the edge row of its first row, and the distance to that of the
        next. Places are inputs in loops, outputs that leave loops and, if all
        operations are in loops, tensors of results. An operand of a sum has no edge
        rows: it has `~row` and -1, where `row` is the sum's first row, counted behind
        the constants.
      edge_sums: [types] the edge row of the first sum; -1 for inactive types.
      edge_rows: [types] rows of each edge buffer, with the row of zeros at the end.
      sum_width: [types] the number of sums of edge rows that one tile computes.
      sections: the sections of the index array.
    """

    region: Numbers
    results: Numbers
    chunk: Numbers
    widths: tuple[Numbers, ...]
    component: Numbers
    column: Numbers
    trips: tuple[Numbers, ...]
    value_base: tuple[Numbers, ...]
    value_rows: Numbers
    together: tuple[Groups, ...]
    edges: Edges
    edge_sums: Numbers
    edge_rows: Numbers
    sum_width: Numbers
    sections: Sections


@memoized
def layout(spec: Spec) -> Layout:
    """Compute the places of rows in buffers, and of sections, from a spec."""
    program, capacity = spec.program, spec.capacity
    region, chunk, widths, together = _of_operations(spec)
    counted, examples = iter(capacity.metrics), capacity.examples
    kinds = (result.kind for result in program.results)
    results = tuple(next(counted) if x.is_counted else examples for x in kinds)
    column, tables, trips = _tables(spec)
    base, ends = _values(spec, region)
    computed = [x - y for x, y in zip(ends, capacity.constants, strict=True)]
    sums = tuple(_sum_width(spec, t) for t in range(len(program.types)))
    sections = allocate_sections(spec, tables, region, results, computed, sums)
    edges = _edges(spec, region, results, base, together, sums, sections)
    of_rows = region, results, chunk, widths, component_of(program), column, trips
    return Layout(*of_rows, base, ends, together, *edges, sums, sections)


def _sum_width(spec: Spec, t: int) -> int:
    """Return the number of sums of type `t` that one tile computes."""
    rows, type_ = spec.capacity.sums[t], spec.program.types[t]
    if not strategy_of(spec).fixed:
        return SUM_WIDTH
    # If one tile takes all sums, each round of a fixed step runs it, which costs less
    # than to ask how many there are. Of more, a round takes those of its level.
    size = type_.size * type_.dtype.itemsize * (SUM_ARITY + 1)
    parts, width = even_parts(rows, size, MEMORY)
    return width if parts == 1 else max(rows // max(spec.capacity.levels, 1), SUM_WIDTH)


def _of_operations(
    spec: Spec,
) -> tuple[Numbers, Numbers, tuple[Numbers, ...], tuple[Groups, ...]]:
    """Return `Layout.region`, `Layout.chunk`, `Layout.widths` and `Layout.together`."""
    program, parts = spec.program, components(spec.program)
    region, chunks, widths, together = [], [], [], []
    for o, operation in enumerate(program.operations):
        strategy, rows = strategy_at(spec, o), spec.capacity.rows[o]
        part = parts[component_of(program)[o]]
        chunk = strategy.chunk(program, operation, rows)
        of_tiles = strategy.widths(spec, o, part)
        # The last tile of a level may run past its end. Tiles of the one level of fixed
        # steps, or outside of loops, begin at multiples of their width.
        is_even = o in program.applied or (strategy.fixed and not part.recurrent)
        unit = of_tiles[0] or 1
        reached = -(-rows // unit) * unit if is_even else rows + max(of_tiles)
        # Room for all tiles, and a multiple of the chunk.
        region.append(max(reached, -(-rows // chunk) * chunk) if rows else 0)
        chunks.append(chunk)
        widths.append(of_tiles)
        # With fixed steps each read or write is a kernel, so inputs of one type are
        # read at once. On a CPU that would copy their cotangents.
        kinds = operation.inputs if strategy.fixed else range(len(operation.inputs))
        groups: dict[int, Numbers] = {}
        for a, kind in enumerate(kinds):
            groups[kind] = *groups.get(kind, ()), a
        together.append(tuple(groups.values()))
    return tuple(region), tuple(chunks), tuple(widths), tuple(together)


def _values(spec: Spec, region: Numbers) -> tuple[tuple[Numbers, ...], Numbers]:
    """Return `Layout.value_base` and `Layout.value_rows`, given `Layout.region`."""
    allocators = [Allocator() for _ in spec.program.types]
    # Constants first, so that a row's number alone tells whether it has a cotangent.
    for allocator, rows in zip(allocators, spec.capacity.constants, strict=True):
        allocator.take(rows)
    base: list[Numbers] = [()] * len(region)
    # Operations whose results are in no buffer are numbered behind the buffer's end.
    inside = in_buffers(spec.program)
    ends: Numbers = ()
    for o in sorted(range(len(region)), key=lambda o: o not in inside):
        if o not in inside:
            ends = ends or tuple(allocator.next for allocator in allocators)
        outputs = spec.program.operations[o].outputs
        base[o] = tuple(allocators[t].take(region[o]) for t in outputs)
    return tuple(base), ends or tuple(allocator.next for allocator in allocators)


@memoized
def in_buffers(program: Operations) -> frozenset[int]:
    """Return the numbers of the operations whose outputs are stored in value buffers.

    They are those in loops, and those that loops read; all, if nothing runs in loops.
    """
    used = phases(program).entering | phases(program).looped
    outputs = enumerate(outputs_of(program))
    return frozenset(o for o, x in outputs if used & x or not program.has_loops)


def _edges(
    spec: Spec,
    region: Numbers,
    results: Numbers,
    value_base: Sequence[Numbers],
    together: Sequence[Groups],
    sum_width: Numbers,
    sections: Sections,
) -> tuple[Edges, Numbers, Numbers]:
    """Allocate edge rows for inputs in loops, for values that leave them, and for sums.

    Arguments are attributes of `Layout`; return its `edges`, `edge_sums` and
    `edge_rows`.
    """
    program, active = spec.program, active_types(spec.program)
    allocators = [Allocator() for _ in program.types]
    edges: Edges = {}

    def take(t: int, rows: int) -> int:
        """Allocate edge rows of type `t`; return the first, -1 if `t` is inactive."""
        return allocators[t].take(rows) if t in active else -1

    for o, operation in enumerate(program.operations):
        if o in program.applied:
            continue
        if operation.is_sum:
            # Every operand of a sum has the cotangent of the sum. So operands read the
            # edge row of the sum's own use, which `resolve_edges` puts in for `~row`.
            (t,), (first,) = operation.outputs, value_base[o]
            step = ~(first - spec.capacity.constants[t]), -1
            edges |= {(o, a): step for a, _ in enumerate(operation.inputs)}
            continue
        for group in together[o]:
            base = take(operation.inputs[group[0]], region[o] * len(group))
            for number, a in enumerate(group):
                edges[o, a] = (-1, 1) if base < 0 else (base + number, len(group))
    for number in results_in(phases(program).leaving):
        place = LEAVING, number
        (rows,) = sections.reads[place].shape
        edges[place] = take(type_at(program, place), rows), 1
    if not program.applied:
        for r, result in enumerate(program.results):
            for j, t in enumerate(result.tensors):
                edges[len(program.operations) + r, j] = take(t, results[r]), 1
    counts = enumerate(spec.capacity.sums)
    sums = tuple(take(t, rows + sum_width[t] if rows else 0) for t, rows in counts)
    # Nothing is ever written to the last row, so it stays zero: buffers begin as zeros.
    ends = tuple(allocator.take(1) + 1 for allocator in allocators)
    return edges, sums, ends


def _tables(
    spec: Spec,
) -> tuple[Numbers, tuple[tuple[int, int], ...], tuple[Numbers, ...]]:
    """Return `Layout.column`, the shapes of tables of tiles, and `Layout.trips`."""
    column = [0 for _ in spec.program.operations]
    tables, trips = [], []
    pairs = zip(components(spec.program), running_components(spec), strict=True)
    for component, runs in pairs:
        for place, o in enumerate(runs.operations):
            column[o] = 2 * place  # first row and end
        strategy = strategy_at(spec, component.operations[0])
        trips.append(strategy.trips(spec, component))
        tables.append((sum(trips[-1]), 2 * len(runs.operations)))
    return tuple(column), tuple(tables), tuple(trips)
