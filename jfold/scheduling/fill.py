# SPDX-License-Identifier: Apache-2.0
"""Filling the arrays of a spec with what a selection of examples says.

All numbers of values become rows of buffers at once, with loops and without:

    selection    numbers in columns, merged      rows of the buffers of their types
    of examples  0 0 3 | 1 2 4 | ...        ->   12 12 40 | 13 14 41 | ...
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from jfold.base.memo import memoized
from jfold.graph import Array, ranges, shared_counts
from jfold.program.components import components
from jfold.scheduling.consumers import write_consumers
from jfold.scheduling.layout import active_types, layout, running
from jfold.scheduling.levels import Batch, in_steps, levels_of
from jfold.scheduling.sections import NOWHERE, Section, summed_at_once
from jfold.scheduling.selections import (
    Column,
    Columns,
    Merged,
    Selection,
    make_columns,
    parts_of,
)
from jfold.scheduling.slots import ReadMode, slots, sums_have_rows, ways
from jfold.scheduling.spec import ONCE, Spec
from jfold.scheduling.sum_trees import RowUses
from jfold.scheduling.summands import with_sums
from jfold.scheduling.tiles import cores, in_loops
from jfold.scheduling.widths import empty_part
from jfold.types import KeyType


def fill(
    selection: Selection, spec: Spec, devices: int = 1
) -> tuple[Array, tuple[Array, ...]]:
    """Return the index array [size] int32, and the constants of each type
    [capacity, *shape].

    Args:
      spec: must have room for the selection.
      devices: how many run such schedules at a time, on the cores of this process.
    """
    if spec.strategy == ONCE:
        graph = with_sums(selection.every, ways(spec))
        if graph is not selection.graph:
            selection = replace(selection, graph=graph, origin=None)
    places = layout(spec)
    # Not cleared before: each section is written whole.
    indices = np.empty(places.sections.size, np.int32)
    levels = levels_of(selection, spec)
    batch = Batch(selection, spec, places, levels, indices)
    _write_counts(batch, devices)
    _write_owners(batch)
    _write_rows(batch)
    return indices, _constants(selection, spec)


# ---- how much there is ---------------------------------------------------------------


def _write_counts(batch: Batch, devices: int) -> None:
    """Write the header, and the tiles of each component."""
    spec, indices, places = batch.spec, batch.indices, batch.places
    types, tables = len(spec.program.types), batch.selection.behind
    rows = batch.selection.totals[types:tables]
    components, operations, at = _in_one_step(spec)
    header = np.zeros(places.sections.header.whole.stop, np.int32)
    depths, ends = header[: len(places.tables)], rows[operations]
    depths[components[ends > 0]] = 1
    indices[at], indices[at + 1] = 0, ends
    for c, component in in_steps(spec):
        last = batch.levels.last_steps[c]
        depths[c] = last[-1] + 1 if len(last) else 0
        table = places.sections.tiles[c].of(indices)
        table[depths[c] :] = 0
        for o in component.operations:
            part = table[:, places.column[o] : places.column[o] + 2]
            rest = places.widths[o], places.trips[c]
            in_loops(spec).write(part, batch.levels.counts[o], last, *rest)
    header[len(depths) : -1] = rows
    header[-1] = 1 if spec.strategy == ONCE else empty_part(cores(devices))
    places.sections.header.whole.write(indices, header)


@memoized
def _in_one_step(spec: Spec) -> tuple[Array, Array, Array]:
    """Return of the operations that run in one step [n] their components, their
    numbers, and where the two numbers of their tiles are."""
    places = layout(spec)
    found = [
        (c, o, places.sections.tiles[c].start + places.column[o])
        for c, component in enumerate(running(spec))
        for o in component.operations
        if places.tables[c][0] == 1
    ]
    components, operations, starts = np.array(found, np.intp).reshape(-1, 3).T
    return components, operations, starts


def _write_owners(batch: Batch) -> None:
    """Write whose the rows of results are, where there is room to say it."""
    sections, tables = batch.places.sections.owners, batch.selection.behind
    for r, section in enumerate(sections, tables - len(sections)):
        if section.shape != (0,):
            # Spare rows belong to an example that is not there.
            owners = batch.selection.owners(r)
            section.fill(batch.indices, owners, batch.spec.capacity.examples)


def _constants(selection: Selection, spec: Spec) -> tuple[Array, ...]:
    """Return the constants of each type [capacity, *shape], the program's first; of
    keys the example and the number in it."""
    made, ends = [], [0 for _ in spec.program.types]
    for table, rows in zip(
        selection.graph.constants, spec.capacity.constants, strict=True
    ):
        own = table.columns[0]
        made.append(np.zeros((rows, *own.shape[1:]), own.dtype))
    for t, value in spec.program.constants:
        made[t][ends[t]] = value
        ends[t] += 1
    for t, table in enumerate(selection.graph.constants):
        if not len(table):
            continue
        found, counts = selection.column(t, 0), selection.counts[t]
        own = made[t][ends[t] : ends[t] + len(found)]
        if isinstance(spec.program.types[t], KeyType):
            own[:, 0] = selection.owners(t)
            own[:, 1] = ranges(np.zeros_like(counts), counts)
        else:
            own[...] = found
    return tuple(made)


# ---- rows of values ------------------------------------------------------------------


@memoized
def _first_rows(spec: Spec) -> Array:
    """Return the first row of each part of the values [parts, 1]."""
    program, bases = spec.program, layout(spec).value_base
    types, shared = len(program.types), shared_counts(program)
    behind = types + len(program.operations) + len(program.results)
    found = [
        0
        if table >= behind
        else shared[table]
        if table < types
        else bases[table - types][k]
        for table, k in parts_of(program).keys
    ]
    return np.array(found, np.intp)[:, None]


def _value_rows(batch: Batch) -> Array:
    """Return the row of each value in the buffer of its type [values]."""
    selection, spec = batch.selection, batch.spec
    numbers, types = selection.numbers, len(spec.program.types)
    before = selection.before
    if numbers.parts.has_shared:
        # Every example numbers the program's constants; a batch holds them once.
        none = np.zeros((types, len(selection)), before.dtype)
        before = np.concatenate([before[: selection.behind], none])
    begin = before[numbers.parts.tables] + _first_rows(spec)
    rows = ranges(numbers.parts.by_example(begin), numbers.cells, numbers.places)
    for o, nodes in batch.levels.nodes.items():
        # Nodes are numbered as recorded, rows go by level.
        place, counts = np.empty(len(nodes), np.intp), selection.counts[types + o]
        place[nodes] = np.arange(len(nodes))
        for k, base in enumerate(batch.places.value_base[o]):
            own = ranges(numbers.begin(types + o, k), counts)
            rows[own] = place + base
    return rows


# ---- what is read --------------------------------------------------------------------


class _Target(NamedTuple):
    """Where the rows of a column are written.

    Attributes:
      before: what is taken off each row.
      spare: what spare places hold; -1 for the last row that there is.
      operation: whose nodes read them; -1 of results and sums.
      edge, step: the edge row of the first, and how far it is to that of the next.
    """

    section: Section
    before: int = 0
    spare: int = -1
    operation: int = -1
    edge: int = -1
    step: int = 1


@dataclass(frozen=True, eq=False)
class _Reads:
    """What a schedule says of what is read.

    Attributes:
      columns: of the graph, and of its tables of sums.
      targets: where each is written.
      edges, steps: [columns] int32 of these.
    """

    columns: Columns
    targets: tuple[_Target, ...]
    edges: Array
    steps: Array


@memoized
def _reads(spec: Spec) -> _Reads:
    """Return what a schedule says of what is read."""
    found = _of_slots if spec.strategy == ONCE else _in_graph
    both = sorted(found(spec), key=lambda pair: pair[0].space)
    columns, targets = [x for x, _ in both], tuple(x for _, x in both)
    edges = np.array([x.edge for x in targets], np.int32)
    steps = np.array([x.step for x in targets], np.int32)
    program = spec.program
    spaces = len(program.types) + len(program.operations) + len(program.results)
    return _Reads(make_columns(columns, spaces), targets, edges, steps)


def _in_graph(spec: Spec) -> Iterator[tuple[Column, _Target]]:
    """Yield all that operations read, and results consist of."""
    program, places = spec.program, layout(spec)
    inputs, results = places.sections.inputs, places.sections.results
    types, last = len(program.types), -1
    for o, operation in enumerate(program.operations):
        for a, t in enumerate(operation.inputs):
            target = _Target(inputs[o][a], 0, last, o, *places.edges[o][a])
            yield Column(t, types + o, 1 + a), target
    for r, result in enumerate(program.results, types + len(program.operations)):
        own = r - types - len(program.operations)
        for j, t in enumerate(result.tensors):
            edge = places.edge_results[own][j]
            yield Column(t, r, j), _Target(results[own][j], 0, last, -1, edge)


def _of_slots(spec: Spec) -> Iterator[tuple[Column, _Target]]:
    """Yield what slots read that are not read in place, and what is summed."""
    program, sections = spec.program, layout(spec).sections
    types, operations = len(program.types), len(program.operations)
    own, to = sections.inputs + sections.results, sections.input_sums
    to += sections.result_sums
    behind = types + operations + len(program.results)
    for slot, way in zip(slots(program), ways(spec), strict=True):
        table, target = types + slot.table, _Target(own[slot.table][slot.column])
        if way is ReadMode.INDEXED:
            yield (
                Column(slot.type, table, slot.column + (slot.table < operations)),
                target,
            )
        elif way is ReadMode.SUMMED:
            yield Column(slot.type, behind, 0), target
            # Spare ones are added to a row that is not there.
            rows = _Target(to[slot.table][slot.column], spare=NOWHERE)
            yield Column(table, behind, 1), rows
            behind += 1
    for c, component in enumerate(components(program)):
        if summed_at_once(spec, c) and sums_have_rows(spec):
            (t,) = program.operations[component.operations[0]].outputs
            yield Column(t, behind, 0), _Target(sections.summands[c])
            here = running(spec)[c].operations
            before = layout(spec).value_base[here[0]][0] if here else 0
            yield Column(t, behind, 1), _Target(sections.sums_of[c], before, NOWHERE)
            behind += 1


def _write_rows(batch: Batch) -> None:
    """Write the rows that are read; in loops also where cotangents of them are."""
    spec, indices, types = batch.spec, batch.indices, len(batch.spec.program.types)
    reads = _reads(spec)
    has_loops = spec.strategy != ONCE  # and so all values are read by number
    selection = batch.selection
    merged = selection.values if has_loops else selection.merge(reads.columns)
    of_values = merged.ends[reads.columns.ends[types]]
    rows = merged.numbers
    found = _value_rows(batch).take(rows[:of_values])
    if of_values < len(rows):
        found = np.concatenate([found, rows[of_values:]])
    pairs = zip(reads.targets, itertools.pairwise(merged.ends), strict=True)
    for (section, before, spare, o, _, _), (a, b) in pairs:
        own, nodes = found[a:b], batch.levels.nodes.get(o)
        if nodes is not None:
            own[...] = own.take(nodes)
        if before:
            own = own - before
        # Spare rows repeat a real one: on zeros a function may give no number.
        section.fill(indices, own, spare if spare >= 0 else own[-1] if b > a else 0)
    if has_loops:  # else JAX itself takes gradients
        edges = _edges(reads, merged)
        for t in active_types(spec.program):
            begin, end = reads.columns.ends[t : t + 2]
            of_type = slice(merged.ends[begin], merged.ends[end])
            write_consumers(batch, t, RowUses(found[of_type], edges[of_type]))


def _edges(reads: _Reads, merged: Merged) -> Array:
    """Return the edge row of each use of a value [uses] int32."""
    begin = np.array(merged.ends[:-1], np.int32)
    places = np.arange(merged.ends[-1], dtype=np.int32)
    edges: Array = (reads.edges - reads.steps * begin).repeat(merged.lengths)
    edges += reads.steps.repeat(merged.lengths) * places
    return edges
