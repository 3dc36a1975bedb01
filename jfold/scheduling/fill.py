# SPDX-License-Identifier: Apache-2.0
"""The filling of a schedule's arrays from a selection of examples.

A node is one application of an operation, and has one row. Rows of an operation in a
recurrence are sorted by level, without gaps; rows of other operations are in the order
of the graph, and run in one step, or in as many steps as the capacity has. A selection
numbers the values of each tensor type; all numbers become rows of buffers at once:

    selection    numbers in columns, merged      rows of the buffers of their types
    of examples  0 0 3 | 1 2 4 | ...        ->   12 12 40 | 13 14 41 | ...
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from jfold.base.memo import memoized
from jfold.graph import Array, concatenate_arrays, ranges, shared_counts
from jfold.program.components import (
    LEAVING,
    SUMMANDS,
    Component,
    Place,
    component_of,
    output_places,
    phases,
    results_in,
    segment_sums,
    type_at,
)
from jfold.scheduling.index_array import NOWHERE, Section
from jfold.scheduling.layout import (
    Layout,
    active_types,
    in_buffers,
    layout,
    running_components,
)
from jfold.scheduling.read_modes import ReadMode, has_slots, mode_at, read_modes
from jfold.scheduling.selections import (
    Column,
    Columns,
    Merged,
    Selection,
    columns_at,
    make_columns,
    parts_of,
)
from jfold.scheduling.spec import Spec
from jfold.scheduling.sum_trees import RowUses, write_consumers
from jfold.scheduling.summands import with_pair_tables
from jfold.scheduling.tiles import cores, empty_fraction, strategy_of
from jfold.types import KeyType


def fill(
    selection: Selection, spec: Spec, devices: int = 1
) -> tuple[Array, tuple[Array, ...]]:
    """Return a schedule's indices [size] int32 and constants, per type [capacity, ...].

    Args:
      selection: the examples of the batch, or of one shard.
      spec: one without shards, whose capacity holds the selection.
      devices: the number of devices that share this process's cores.
    """
    if has_slots(spec.program):
        graph = with_pair_tables(selection.every, (*read_modes(spec).values(),))
        if graph is not selection.graph:
            selection = replace(selection, graph=graph, origin=None)
    batch = _make_batch(selection, spec)
    # The array is not cleared before, since every section is written as a whole.
    _write_counts(batch, devices)
    sections = batch.places.sections.owners
    for r, section in enumerate(sections, selection.behind - len(sections)):
        if section.shape != (0,):
            # Spare rows get the index behind the last example's.
            owners = selection.owners(r)
            section.fill(batch.indices, owners, spec.capacity.examples)
    _write_rows(batch)
    return batch.indices, _constants(selection, spec)


# ---- levels and steps ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Batch:
    """A selection of examples, and the index array that it is written into.

    Attributes:
      selection: the examples; its graph may have the tables of `with_pair_tables`.
      spec: of a capacity that holds the selection.
      indices: [size] int32, the index array.
      counts: by operation that may take several steps, the number of nodes on each
        level [levels].
      nodes: by operation, the node of each row [nodes], numbered as in the graph; only
        of operations whose rows are in another order than the graph.
      last_steps: by component that may take several steps, the step at which each
        level ends [levels], from 0.
    """

    selection: Selection
    spec: Spec
    places: Layout
    indices: Array
    counts: dict[int, Array] = field(default_factory=dict)
    nodes: dict[int, Array] = field(default_factory=dict)
    last_steps: dict[int, Array] = field(default_factory=dict)


@memoized
def _in_steps(spec: Spec) -> tuple[tuple[int, Component], ...]:
    """Return (number, component) of each component that may run in several steps."""
    pairs = zip(running_components(spec), layout(spec).sections.tiles, strict=True)
    numbered = enumerate(pairs)
    return tuple((c, part) for c, (part, table) in numbered if table.shape[0] != 1)


def _make_batch(selection: Selection, spec: Spec) -> _Batch:
    """Make a batch: sort nodes by level, assign levels to steps; indices stay unset."""
    places = layout(spec)
    result = _Batch(selection, spec, places, np.empty(places.sections.size, np.int32))
    for c, component in _in_steps(spec):
        for o in component.operations:
            if component.recurrent:
                levels = selection.levels(o)
                counts = np.bincount(levels, minlength=1)[1:]
                if len(counts) > 1:
                    # NumPy sorts 16 bits by radix, which is faster.
                    short = levels.astype(np.int16) if len(counts) < 1 << 15 else levels
                    result.nodes[o] = short.argsort(kind='stable')
            else:
                number = int(selection.totals[len(spec.program.types) + o])
                counts = np.array([number] if number else [], np.intp)
            result.counts[o] = counts
        counted = [result.counts[o] for o in component.operations]
        widths = [places.widths[o] for o in component.operations]
        steps = strategy_of(spec).last_steps(counted, widths, places.trips[c])
        result.last_steps[c] = steps
    return result


def _row_steps(batch: _Batch, t: int) -> Array:
    """Return, for type `t`, the loop step at which each value's level ends [rows].

    Steps are numbered through all components; rows are those behind the constants.
    """
    places, computed = batch.places, batch.spec.capacity.constants[t]
    types = len(batch.spec.program.types)
    steps = np.zeros(places.value_rows[t] - computed, np.int64)
    # A level may take several steps. The reverse pass comes first to the last of them.
    begin = 0
    inside = in_buffers(batch.spec.program)
    for c, component in enumerate(running_components(batch.spec)):
        for o in inside.intersection(component.operations):
            if c in batch.last_steps:
                counts = batch.counts[o]
                last = begin + batch.last_steps[c][: len(counts)].repeat(counts)
            else:
                last = np.full(batch.selection.totals[types + o], begin)
            outputs = batch.spec.program.operations[o].outputs
            for number, base in zip(outputs, places.value_base[o], strict=True):
                if number == t:
                    steps[base - computed :][: len(last)] = last
        begin += places.sections.tiles[c].shape[0]
    return steps


# ---- counts and constants ------------------------------------------------------------


def _write_counts(batch: _Batch, devices: int) -> None:
    """Write the header and the tables of tiles; `devices` is as of `fill`."""
    spec, indices, places = batch.spec, batch.indices, batch.places
    types, tables = len(spec.program.types), batch.selection.behind
    rows = batch.selection.totals[types:tables]
    components, operations, at = _in_one_step(spec)
    header = indices[: places.sections.empty.stop]
    depths, ends = places.sections.depths.of(indices), rows[operations]
    depths[...] = 0
    depths[components[ends > 0]] = 1
    indices[at], indices[at + 1] = 0, ends
    for c, component in _in_steps(spec):
        last = batch.last_steps[c]
        depths[c] = last[-1] + 1 if len(last) else 0
        table = places.sections.tiles[c].of(indices)
        table[depths[c] :] = 0
        for o in component.operations:
            part = table[:, places.column[o] : places.column[o] + 2]
            loops = places.widths[o], places.trips[c]
            strategy_of(spec).write(part, batch.counts[o], last, *loops)
    header[len(depths) : -1] = rows
    header[-1] = empty_fraction(cores(devices)) if spec.program.has_loops else 1


@memoized
def _in_one_step(spec: Spec) -> tuple[Array, Array, Array]:
    """Return components, operations and places of those operations that take one step.

    Each array is [n]. A place `i` is an index into the index array: the operation's
    first row is stored at `indices[i]`, the end of its rows at `indices[i + 1]`.
    """
    places = layout(spec)
    triples = [
        (c, o, places.sections.tiles[c].start + places.column[o])
        for c, component in enumerate(running_components(spec))
        for o in component.operations
        if places.sections.tiles[c].shape[0] == 1
    ]
    components, operations, starts = np.array(triples, np.intp).reshape(-1, 3).T
    return components, operations, starts


def _constants(selection: Selection, spec: Spec) -> tuple[Array, ...]:
    """Return constants per type [capacity, *shape]: the program's, then examples'."""
    arrays, ends = [], [0 for _ in spec.program.types]
    for table, rows in zip(
        selection.graph.constants, spec.capacity.constants, strict=True
    ):
        values = table.columns[0]
        arrays.append(np.zeros((rows, *values.shape[1:]), values.dtype))
    for t, value in spec.program.constants:
        arrays[t][ends[t]] = value
        ends[t] += 1
    for t, table in enumerate(selection.graph.constants):
        if not len(table):
            continue
        values, counts = selection.column(t, 0), selection.counts[t]
        part = arrays[t][ends[t] : ends[t] + len(values)]
        # A random key is two ints: the index of its example, and its number in there.
        if isinstance(spec.program.types[t], KeyType):
            part[:, 0] = selection.owners(t)
            part[:, 1] = ranges(np.zeros_like(counts), counts)
        else:
            part[...] = values
    return tuple(arrays)


# ---- rows of values ------------------------------------------------------------------


@memoized
def _first_rows(spec: Spec) -> Array:
    """Return each value producer's first row in the buffer of its type [parts, 1]."""
    bases, types = layout(spec).value_base, len(spec.program.types)
    first = [
        bases[table - types][k] if table >= types else 0  # constants come first
        for table, k in parts_of(spec.program).places
    ]
    return np.array(first, np.intp)[:, None]


def _value_rows(batch: _Batch) -> Array:
    """Return the row of each value in the buffer of its type [values]."""
    selection, spec = batch.selection, batch.spec
    numbers, types = selection.numbers, len(spec.program.types)
    begin = selection.before[numbers.parts.tables] + _first_rows(spec)
    rows = ranges(numbers.parts.by_example(begin), numbers.cells, numbers.places)
    for t, count in enumerate(shared_counts(spec.program)):
        if count:
            # Every example numbers the program's constants; a buffer holds them once.
            row = np.arange(count)
            rows[numbers.first[t][:, None] + row] = row
    for o, nodes in batch.nodes.items():
        # Values are numbered in the order of recording, rows are sorted by level.
        place, counts = np.empty(len(nodes), np.intp), selection.counts[types + o]
        place[nodes] = np.arange(len(nodes))
        for k, base in enumerate(batch.places.value_base[o]):
            values = ranges(numbers.begin(types + o, k), counts)
            rows[values] = place + base
    return rows


# ---- reads ---------------------------------------------------------------------------


class _Target(NamedTuple):
    """A place in the index array for the rows that one input or result reads.

    Attributes:
      before: a number that is subtracted from each row.
      spare: the number that fills the section's end; -1 to repeat the last row.
      operation: the operation whose nodes read the rows; -1 for results and sums.
      edge: the edge row, where a use leaves its cotangent, of the first use.
      step: the distance from the edge row of a use to that of the next.
    """

    section: Section
    before: int = 0
    spare: int = -1
    operation: int = -1
    edge: int = -1
    step: int = 1


@dataclass(frozen=True, eq=False)
class _Reads:
    """The inputs and results that read by row index, with the places of the indices.

    Attributes:
      columns: columns of the graph, its tables of summands included.
      targets: per column, its place in the index array.
      edges, steps: [columns] `edge` and `step` of each target.
      uses: per type, first and end of the range of columns whose uses have edge rows:
        those of operations in loops; if all are in loops, those of results too.
    """

    columns: Columns
    targets: tuple[_Target, ...]
    edges: Array
    steps: Array
    uses: tuple[tuple[int, int], ...]


@memoized
def _reads(spec: Spec) -> _Reads:
    """Return the inputs and results that read by row index, and the indices' places."""
    # Stable: among columns of one space, those of operations in loops come first.
    ordered = sorted(_targets(spec), key=lambda x: (x[0].space, x[1].operation < 0))
    columns, targets = [x for x, _ in ordered], tuple(x for _, x in ordered)
    edges = np.array([x.edge for x in targets], np.int32)
    steps = np.array([x.step for x in targets], np.int32)
    program, types = spec.program, len(spec.program.types)
    spaces = types + len(program.operations) + len(program.results)
    made = make_columns(columns, spaces)
    bounds = itertools.pairwise(made.ends[: types + 1])
    inside = [x.operation >= 0 or not program.applied for x in targets]
    uses = tuple((a, a + sum(inside[a:b])) for a, b in bounds)
    return _Reads(made, targets, edges, steps, uses)


def _targets(spec: Spec) -> Iterator[tuple[Column, _Target]]:
    """Yield (column, target) for each input and result tensor that reads by index.

    A slot that is read in place yields nothing. Where values are added up, one column
    has the summands, and another the row that each summand is added to.
    """
    program, places = spec.program, layout(spec)
    reads, adds = places.sections.reads, places.sections.targets
    types, operations = len(program.types), len(program.operations)
    for (o, a), column in columns_at(program).items():
        edges = places.edges.get((o, a), (-1, 1))
        in_loops = o < operations and o not in program.applied
        target = _Target(reads[o, a], 0, -1, o if in_loops else -1, *edges)
        if o not in segment_sums(program) and mode_at(spec, (o, a)) is ReadMode.INDEXED:
            yield column, target
    # The tables of `with_pair_tables` stand behind all others, in the order of slots.
    behind = types + operations + len(program.results)
    added = (place for place, mode in read_modes(spec).items() if mode.adds)
    for table, place in enumerate(added, behind):
        t, space, before = type_at(program, place), types + place[0], 0
        if place[1] == SUMMANDS:
            c = component_of(program)[place[0]]
            here = running_components(spec)[c].operations
            space, before = t, places.value_base[here[0]][0] if here else 0
        by_index = read_modes(spec)[place] is ReadMode.SUMMED
        if by_index:
            yield Column(t, table, 0), _Target(reads[place])
        # Spare summands are added to a row that no buffer has.
        yield Column(space, table, int(by_index)), _Target(adds[place], before, NOWHERE)


def _write_rows(batch: _Batch) -> None:
    """Write the rows that inputs and results read, and the edge rows to add up."""
    spec, indices, types = batch.spec, batch.indices, len(batch.spec.program.types)
    reads = _reads(spec)
    selection = batch.selection
    # In loops all reads are indexed.
    in_slots = has_slots(spec.program)
    merged = selection.merge(reads.columns) if in_slots else selection.values
    of_values = merged.ends[reads.columns.ends[types]]
    rows = merged.numbers
    # Numbers of values become rows of buffers. Behind them are numbers that are rows
    # already, which summands are added to.
    rows_of = _value_rows(batch)
    values = rows_of.take(rows[:of_values])
    leaving = _write_leaving(batch, reads, merged, rows_of, values)
    has_tables = of_values < len(rows)
    rows = np.concatenate([values, rows[of_values:]]) if has_tables else values
    pairs = zip(reads.targets, itertools.pairwise(merged.ends), strict=True)
    for (section, before, spare, o, *_), (a, b) in pairs:
        column, nodes = rows[a:b], batch.nodes.get(o)
        if nodes is not None:
            column[...] = column.take(nodes)
        if before:
            column = column - before
        # Spare rows repeat a real one: on zeros a function may return NaN.
        last = column[-1] if b > a else 0
        section.fill(indices, column, spare if spare >= 0 else last)
    for place, mode in read_modes(spec).items():
        if mode is ReadMode.SUMMED_IN_PLACE and place[1] != SUMMANDS:
            _write_empty(batch, place)
    if spec.program.has_loops:  # else JAX itself differentiates the program
        # Row i of a column has the edge row `edge + step * i`.
        begins = np.array(merged.ends[:-1], np.int32)
        edges = (reads.edges - reads.steps * begins).repeat(merged.lengths)
        places = np.arange(len(edges), dtype=np.int32)
        edges += reads.steps.repeat(merged.lengths) * places
        for t in active_types(spec.program):
            begin, end = reads.uses[t]
            of_type = slice(merged.ends[begin], merged.ends[end])
            parts = [RowUses(rows[of_type], edges[of_type]), *leaving[t]]
            uses = RowUses(*map(concatenate_arrays, zip(*parts, strict=True)))
            steps = _row_steps(batch, t) if spec.capacity.sums[t] else None
            write_consumers(spec, indices, t, uses, steps)


def _write_empty(batch: _Batch, place: Place) -> None:
    """Write which rows of a slot nothing is added to, given the targets."""
    sections, indices = batch.places.sections, batch.indices
    is_empty = sections.reads[place].of(indices)
    rows = sections.targets[place].of(indices)
    is_empty[:] = 1
    is_empty[rows[rows < len(is_empty)]] = 0


def _write_leaving(
    batch: _Batch, reads: _Reads, merged: Merged, rows_of: Array, values: Array
) -> list[list[RowUses]]:
    """Write which rows of loops' outputs are read outside; return their uses, per type.

    Args:
      merged: the numbers of the values that the columns of `reads` read.
      rows_of: [values] the row of each value in the buffer of its type.
      values: the buffer row of each number in `merged`, changed in place: where an
        output of loops is read outside, it becomes the output's `value_base` plus the
        place among the output's rows that are read outside.
    """
    places, program = batch.places, batch.spec.program
    uses: list[list[RowUses]] = [[] for _ in program.types]
    numbers = [*results_in(phases(program).leaving)]
    if not numbers:
        return uses
    # The columns that are read outside of loops stand behind the others of their type.
    types = sorted({type_at(program, (LEAVING, number)) for number in numbers})
    bounds = [(reads.uses[t][1], reads.columns.ends[t + 1]) for t in types]
    outside = [slice(merged.ends[a], merged.ends[b]) for a, b in bounds]
    is_read, moved = np.zeros(len(rows_of), bool), rows_of.copy()
    for part in outside:
        is_read[merged.numbers[part]] = True
    for number in numbers:
        place, (o, k) = (LEAVING, number), output_places(program)[number]
        outputs = batch.selection.outputs_of(o, k)
        leaving = outputs[is_read[outputs]]
        count, rows = np.arange(len(leaving)), rows_of[leaving]
        section = places.sections.reads[place]
        section.fill(batch.indices, rows, rows[-1] if len(rows) else 0)
        moved[leaving] = places.value_base[o][k] + count
        edges = places.edges[place][0] + count
        uses[type_at(program, place)].append(RowUses(rows, edges))
    for part in outside:
        values[part] = moved[merged.numbers[part]]
    return uses
