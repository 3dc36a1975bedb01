# SPDX-License-Identifier: Apache-2.0
"""Filling the arrays of a spec with what a graph says.

Rows of an operation are sorted by level and dense. For the reverse pass each value row
knows its *consumers*, the edge rows where its uses leave their cotangents; the few
values with many uses get sums in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from jfold.graph import Array, Graph, Table, concatenated, gather, ranges, shared_counts
from jfold.planning.layout import Layout, active_types, layout, running
from jfold.planning.sections import (
    SUM_ARITY,
    Section,
    Sections,
)
from jfold.planning.tiles import cores, in_loops
from jfold.planning.uses import (
    NO_USES,
    RowUses,
    SumTree,
    Uses,
    adding,
    followed,
    in_order,
    sum_tree,
    whole_cotangents,
)
from jfold.planning.widths import empty_part
from jfold.recurrence import Component, are_recurrent
from jfold.spec import Spec
from jfold.types import KeyType

ALL = slice(None)  # nodes in the order in which they are


@dataclass(frozen=True, eq=False)
class _Batch:
    """What is to be written, and where.

    Attributes:
      uses: of the graph.
      spec: which has room for it.
      places: the layout of the spec.
      components: those that run.
      indices: [size] int32, the index array.
      cores: of this process, for each of its devices.
    """

    uses: Uses
    spec: Spec
    places: Layout
    components: tuple[Component, ...]
    indices: Array
    cores: int

    @property
    def graph(self) -> Graph:
        """What is computed."""
        return self.uses.graph

    @property
    def sections(self) -> Sections:
        """The parts of the index array."""
        return self.places.sections


def fill(uses: Uses, spec: Spec, devices: int = 1) -> tuple[Array, tuple[Array, ...]]:
    """The index array [size] int32, and the constants of each type [capacity, *shape].

    Args:
      uses: of the graph, for which `spec` must have room.
      devices: how many run such schedules at a time, on the cores of this process.
    """
    places = layout(spec)
    # Not cleared before: each section is written whole.
    indices = np.empty(places.sections.size, np.int32)
    batch = _Batch(uses, spec, places, running(spec), indices, cores(devices))
    order = _order_of(batch)
    rows = _value_rows(batch, order)
    _write_header(batch, order)
    _write_tiles(batch, order)
    counts = [table.counts for table in uses.graph.results]
    write_owners(spec, places.sections, counts, indices)
    active = active_types(spec.program)
    used = _write_rows(batch, order, rows, active)
    for t in sorted(active):
        _write_consumers(batch, order, t, used[t])
    return indices, constants_of(uses.graph.constants, spec)


# ---- the order of nodes --------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Order:
    """In which order, and at which steps, nodes run.

    Attributes:
      counts: per operation, how many nodes each level has [levels].
      nodes: per operation, its nodes in the order of their rows [nodes].
      last_steps: per component, the step at which each level ends [levels], from 0.
      depths: [components] how many levels or steps run.
    """

    counts: tuple[Array, ...]
    nodes: tuple[Array | slice, ...]
    last_steps: tuple[Array, ...]
    depths: tuple[int, ...]


def _order_of(batch: _Batch) -> _Order:
    """The order of the nodes of a graph."""
    last_steps = in_loops(batch.spec).last_steps
    levels, widths = batch.graph.levels, batch.places.widths
    counts = tuple(map(_of_levels, levels, are_recurrent(batch.spec.program)))
    steps = tuple(
        last_steps(
            [counts[o] for o in each.operations],
            [widths[o] for o in each.operations],
            trips,
        )
        for each, trips in zip(batch.components, batch.places.trips, strict=True)
    )
    depths = tuple(int(last[-1]) + 1 if len(last) else 0 for last in steps)
    return _Order(counts, tuple(map(_by_level, levels, counts)), steps, depths)


def _of_levels(levels: Array, recurrent: bool) -> Array:
    """How many nodes each level has [levels], of the levels of nodes [nodes]."""
    if recurrent:
        return np.bincount(levels, minlength=1)[1:]
    return np.array([len(levels)] if len(levels) else [], np.intp)


def _by_level(levels: Array, counts: Array) -> Array | slice:
    """The stable order of nodes by level [nodes], of which there are `counts` each."""
    if len(counts) < 2:
        return ALL
    small = len(counts) <= 1 << 15  # sixteen bits are sorted by radix
    return (levels.astype(np.int16) if small else levels).argsort(kind='stable')


# ---- rows of values ------------------------------------------------------------------


def _value_rows(batch: _Batch, order: _Order) -> list[Array]:
    """Per type, the row of the value buffer of each value [values]."""
    program, graph, numbers = batch.spec.program, batch.graph, batch.uses.numbers
    # As wide as pointers, for NumPy indexes by such numbers several times as fast, and
    # writes to them twice as fast what is as wide.
    rows = [np.empty(int(first[-1]), np.intp) for first in numbers.first]
    shared, bases = shared_counts(program), batch.places.value_base
    for t, table in enumerate(graph.constants):
        own = np.arange(shared[t], shared[t] + len(table))
        _put(rows[t], numbers.constants[t], table, own)
        # Every example numbers the program's constants; a batch holds them once.
        for n in range(shared[t]):
            rows[t][numbers.first[t][:-1] + n] = n
    for o, operation in enumerate(program.operations):
        table = graph.operations[o]
        # Nodes are numbered as traced, rows go by level.
        place = np.arange(len(table))
        if (nodes := order.nodes[o]) is not ALL:
            place[nodes] = place.copy()
        outputs = zip(operation.outputs, numbers.outputs[o], bases[o], strict=True)
        for t, begin, base in outputs:
            _put(rows[t], begin, table, place + base)
    return rows


def _put(rows: Array, begin: Array, table: Table, values: Array) -> None:
    """Writes the values [rows] of a table, each example's where `begin` [examples]
    says."""
    if len(values) == len(rows):  # all there are
        rows[:] = values
    elif len(begin) == 1:
        rows[begin[0] : begin[0] + len(values)] = values
    elif len(values):
        rows[ranges(begin, table.counts)] = values


def constants_of(tables: Sequence[Table], spec: Spec) -> tuple[Array, ...]:
    """The constants of each type [capacity, *shape], the program's first; of keys the
    example and the number in it.

    Args:
      tables: per type, the examples' own.
    """
    made, ends = [], [0 for _ in spec.program.types]
    for table, rows in zip(tables, spec.capacity.constants, strict=True):
        own = table.columns[0]
        made.append(np.zeros((rows, *own.shape[1:]), own.dtype))
    for t, value in spec.program.constants:
        made[t][ends[t]] = value
        ends[t] += 1
    for t, table in enumerate(tables):
        own = made[t][ends[t] : ends[t] + len(table)]
        if isinstance(spec.program.types[t], KeyType):
            own[:, 0] = np.arange(len(table.counts)).repeat(table.counts)
            own[:, 1] = ranges(np.zeros_like(table.counts), table.counts)
        else:
            own[...] = table.columns[0]
    return tuple(made)


# ---- what the forward pass reads -----------------------------------------------------


def _write_header(batch: _Batch, order: _Order) -> None:
    """Counts of everything whose number is data."""
    graph = batch.graph
    counts = map(len, graph.operations + graph.results)
    numbers = np.array([*order.depths, *counts, empty_part(batch.cores)], np.int32)
    batch.sections.header.whole.write(batch.indices, numbers)


def _write_tiles(batch: _Batch, order: _Order) -> None:
    """The tiles of every component, level by level or step by step."""
    write, places = in_loops(batch.spec).write, batch.places
    for c, component in enumerate(batch.components):
        table = batch.sections.tiles[c].of(batch.indices)
        table[order.depths[c] :] = 0
        for o in component.operations:
            part = table[:, places.column[o] : places.column[o] + 2]
            rest = order.last_steps[c], places.widths[o], places.trips[c]
            write(part, order.counts[o], *rest)


def write_owners(
    spec: Spec, sections: Sections, counts: Sequence[Array], indices: Array
) -> None:
    """Whose the rows of results are, where there is room to say it.

    Args:
      counts: per result, the rows of each example [examples].
      indices: [size].
    """
    for each, section in zip(counts, sections.owners, strict=True):
        if section.shape != (0,):
            # Spare rows belong to an example that is not there.
            owners = np.repeat(np.arange(len(each)), each)
            section.fill(indices, owners, spec.capacity.examples)


def _write_rows(
    batch: _Batch, order: _Order, rows: list[Array], active: frozenset[int]
) -> list[list[RowUses]]:
    """The rows that operations read and results consist of; per type that cotangents
    flow through, its uses, constants' too, in parts.

    Args:
      rows: per type, the row of each value [values].
      active: types of which uses are asked for.
    """
    program, uses, places = batch.spec.program, batch.uses, batch.places
    sections = places.sections
    used: list[list[RowUses]] = [[] for _ in program.types]

    def write(
        t: int, section: Section, values: Array, edge: int, step: int = 1
    ) -> None:
        """Fills a section [n or more] by values [n], whose edges begin at `edge`."""
        found = gather(rows[t], values)
        # Spare rows repeat a real one: on zeros a function may give no number.
        section.fill(batch.indices, found, found[-1] if len(found) else 0)
        if t in active:
            end = edge + step * len(found)
            edges = np.arange(edge, end, step, dtype=np.int32)
            used[t].append(RowUses(found, edges))

    for o, operation in enumerate(program.operations):
        for a, t in enumerate(operation.inputs):
            values = uses.inputs[o][a][order.nodes[o]]
            write(t, sections.inputs[o][a], values, *places.edges[o][a])
    for r, result in enumerate(program.results):
        for j, t in enumerate(result.tensors):
            values = uses.results[r][j]
            write(t, sections.results[r][j], values, places.edge_results[r][j])
    return used


# ---- what the reverse pass reads -----------------------------------------------------


def _write_consumers(
    batch: _Batch, order: _Order, t: int, used: Sequence[RowUses]
) -> None:
    """Which edge rows the cotangent of each computed value of a type is summed of: a
    table [fan, rows]."""
    places, computed = batch.places, batch.spec.capacity.constants[t]
    zero, table = places.edge_rows[t] - 1, places.sections.consumers[t]
    uses = RowUses(*map(concatenated, zip(*used, strict=True))) if used else NO_USES
    # Constants lie first in the buffer of values, and have no cotangents.
    if computed:
        uses = uses.chosen((uses.rows >= computed).nonzero()[0])
        uses = RowUses(uses.rows - computed, uses.edges)
    by_sums = bool(adding(batch.spec.program, t))
    if by_sums or batch.spec.capacity.sums[t]:
        uses = _summed(batch, order, t, uses)
    _write_columns(table.of(batch.indices), uses, zero, unique=not by_sums)


def _summed(batch: _Batch, order: _Order, t: int, uses: RowUses) -> RowUses:
    """The uses that are left of some [uses] when the sums are taken, which this
    writes."""
    most, tree, zero = _most_uses(batch, t), None, batch.places.edge_rows[t] - 1
    if batch.spec.capacity.sums[t]:
        base = batch.places.edge_sums[t]
        tree = sum_tree(uses, most, base, zero)
        rounds = _rounds(batch, order, t, tree)
        tree = in_order(tree, rounds, base)
        uses = tree.left
    is_whole = (most < SUM_ARITY)[uses.rows]
    whole = whole_cotangents(uses.chosen(is_whole), len(most), zero)
    uses = uses.chosen(~is_whole)
    if tree is not None:
        table = followed(tree.table, whole)
        _write_sums(batch, t, replace(tree, table=table), np.sort(rounds))
    return RowUses(uses.rows, followed(uses.edges, whole))


def _write_columns(table: Array, uses: RowUses, zero: int, *, unique: bool) -> None:
    """Writes a table of the uses of values [most, rows].

    One column of the table takes a use of each value, whichever is written last; the
    next column the uses that are not in it, and so on:

        value   uses         column 0   1   2   3
          0     4 9 12             12   9   4   -
          1     5                   5   -   -   -
          2     6 13               13   6   -   -

    Args:
      unique: whether no two uses have one edge row.
    """
    table[...] = zero
    rows, edges = uses
    for f, column in enumerate(table):
        if f + 1 == len(table):
            column[rows] = edges  # all others are in the columns before
            return
        # A sum may use a value twice, and has one edge row: so uses are counted.
        numbers = edges if unique else np.arange(len(rows), dtype=np.int32)
        column[rows] = numbers
        written = column[rows]
        if not unique:
            column[rows] = edges[written]
        left = (written != numbers).nonzero()[0]
        rows, edges = rows[left], edges[left]


def _most_uses(batch: _Batch, t: int) -> Array:
    """How many uses may be left of the value of each computed row of a type [rows]."""
    places, computed = batch.places, batch.spec.capacity.constants[t]
    most = np.full(places.value_rows[t] - computed, SUM_ARITY, np.int8)
    for o in adding(batch.spec.program, t):
        first = places.value_base[o][0] - computed
        most[first : first + places.region[o]] = 1
    return most


def _rounds(batch: _Batch, order: _Order, t: int, tree: SumTree) -> Array:
    """In which round of the reverse pass each sum of a type is taken [sums]."""
    stages = batch.spec.capacity.stages
    # All uses of what a level makes are of later levels or components, so the reverse
    # pass has them when it comes to the level, and takes its sums then.
    steps: Array = _row_steps(batch, order, t)[tree.values]
    return steps * stages + tree.stages


def _write_sums(batch: _Batch, t: int, tree: SumTree, rounds: Array) -> None:
    """Writes the sums of a type, in the order of their rounds [sums]."""
    places, sections = batch.places, batch.sections
    steps = sections.steps[t].of(batch.indices)
    steps[...] = 0
    for f in range(SUM_ARITY):
        edges, zero = tree.table[:, f], places.edge_rows[t] - 1
        sections.sums[t][f].fill(batch.indices, edges, zero)
    taken, count = np.unique(rounds, return_counts=True)
    flat = steps.reshape(-1, 2)
    width = places.sum_width[t]
    flat[taken, 0], flat[taken, 1] = count.cumsum() - count, -(-count // width)


def _row_steps(batch: _Batch, order: _Order, t: int) -> Array:
    """Of each computed row of a type, the last step of its level [rows], counted
    through the components."""
    places, computed = batch.places, batch.spec.capacity.constants[t]
    steps = np.zeros(places.value_rows[t] - computed, np.int64)
    # A level may take several steps; in reverse it begins with the last of them.
    begin = 0
    for c, component in enumerate(batch.components):
        for o in component.operations:
            levels = batch.graph.levels[o][order.nodes[o]]
            of_rows = begin + order.last_steps[c][levels - 1]
            outputs = batch.spec.program.operations[o].outputs
            for number, base in zip(outputs, places.value_base[o], strict=True):
                if number == t:
                    steps[base - computed :][: len(of_rows)] = of_rows
        begin += places.tables[c][0]
    return steps
