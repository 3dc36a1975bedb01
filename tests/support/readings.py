# SPDX-License-Identifier: Apache-2.0
"""A schedule beside its graph: what it says, and whether that is right."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import jfold as jf
from jfold.graph import Graph, Table
from jfold.program.components import component_of, components
from jfold.program.operations import Program
from jfold.scheduling.index_array import SUM_ARITY, Section
from jfold.scheduling.layout import active_types, layout, running_components
from jfold.scheduling.schedule import Schedule
from jfold.scheduling.spec import Capacity
from jfold.tracing.record import trace

Array = np.ndarray[Any, Any]


@dataclass
class Reading:
    """A graph beside its schedule.

    Attributes:
      rows: per type and example, the row of each value number.
      level: per type and example, the level of each value number, counted through the
        components, with all the room that the capacity gives them.
    """

    graph: Graph
    schedule: Schedule
    rows: list[list[Array]]
    level: list[list[Array]]

    @property
    def program(self) -> Program:
        """What is scheduled."""
        return self.schedule.spec.program

    @property
    def capacity(self) -> Capacity:
        """What the schedule has room for."""
        return self.schedule.spec.capacity

    @property
    def levels(self) -> tuple[Array, ...]:
        """Per operation, the level of each node in its component."""
        return self.graph.levels

    @property
    def depths(self) -> list[int]:
        """The highest level of each component."""
        return [
            max(int(self.levels[o].max(initial=0)) for o in component.operations)
            for component in components(self.program)
        ]

    def order(self, operation: int) -> Array:
        """The nodes of an operation as they are scheduled."""
        return np.argsort(self.levels[operation], kind='stable')

    def through(self, operation: int) -> Array:
        """The levels of an operation's nodes, counted through the components."""
        tables = self.schedule.sections.tiles
        before = tables[: component_of(self.program)[operation]]
        return sum(table.shape[0] for table in before) + self.levels[operation]

    def inputs(self, of: list[list[Array]], o: int, a: int) -> Array:
        """Rows or levels of what the nodes of an operation take, in its order."""
        table = self.graph.operations[o]
        t = self.program.operations[o].inputs[a]
        return looked_up(of[t], table.columns[1 + a], owners(table))[self.order(o)]

    def result(self, r: int, j: int) -> Array:
        """The rows of one tensor of a result."""
        table = self.graph.results[r]
        t = self.program.results[r].tensors[j]
        return looked_up(self.rows[t], table.columns[j], owners(table))


def owners(table: Table) -> Array:
    """The example of each row of a table."""
    return np.repeat(np.arange(len(table.first) - 1), np.diff(table.first))


def looked_up(of: list[Array], numbers: Array, owner: Array) -> Array:
    """What stands, per example, for the values with the given numbers in it."""
    pairs = zip(owner.tolist(), numbers.tolist(), strict=True)
    return np.array([of[example][number] for example, number in pairs], int)


def read(graph: Graph, schedule: Schedule) -> Reading:
    """Finds the row and the level of each value."""
    reading = Reading(graph, schedule, [], [])
    levels = graph.levels
    program, places = schedule.spec.program, layout(schedule.spec)
    rows, level = [], []
    for t, table in enumerate(graph.constants):
        shared = sum(t == number for number, _ in program.constants)
        own = np.split(shared + np.arange(len(table)), table.first[1:-1])
        own = own[: graph.examples]
        rows.append([[np.arange(shared), each] for each in own])
        level.append([[np.zeros(shared + len(each), int)] for each in own])
    for o, operation in enumerate(program.operations):
        row_of_node = np.empty(len(levels[o]), int)
        row_of_node[np.argsort(levels[o], kind='stable')] = np.arange(len(levels[o]))
        first = graph.operations[o].first
        for t, base in zip(operation.outputs, places.value_base[o], strict=True):
            for e, nodes in enumerate(map(slice, first[:-1], first[1:])):
                rows[t][e].append(base + row_of_node[nodes])
                level[t][e].append(reading.through(o)[nodes])
    reading.rows += [list(map(np.concatenate, x)) for x in rows]
    reading.level += [list(map(np.concatenate, x)) for x in level]
    return reading


def part(r: Reading, section: Section) -> Array:
    """A section of the index array."""
    return np.asarray(section.of(r.schedule.indices))


def reading(model: jf.Model, examples: list[Any], size: int | None = None) -> Reading:
    """The schedule that a model makes, beside its graph."""
    graph = trace(model.program, examples)
    return read(graph, model.schedule(examples, size=size))


# ---- rows and tiles ------------------------------------------------------------------


def check_tiles(r: Reading) -> None:
    """Tiles of a level begin at its first row and cover its rows.

    They may run past the end, by less than the last of them, but not out of the region.
    """
    region = layout(r.schedule.spec).region
    for o in range(len(r.program.operations)):
        widths = np.array(layout(r.schedule.spec).widths[o])
        depth = r.depths[component_of(r.program)[o]] if r.capacity.rows[o] else 0
        counts = np.bincount(r.levels[o], minlength=depth + 1)[1:]
        table = r.schedule.tiles(o)
        assert table.shape == (depth, 2 + len(widths))
        assert table[:, 0].tolist() == (np.cumsum(counts) - counts).tolist()
        assert table[:, 1].tolist() == np.cumsum(counts).tolist()
        assert (table[:, 2:] >= 0).all()
        overrun = table[:, 2:] @ widths - counts
        assert (overrun >= 0).all()
        for row, extra in zip(table[:, 2:], overrun, strict=True):
            assert extra < min(widths[row > 0], default=1)
        ends = table[:, 0] + table[:, 2:] @ widths
        assert ends.max(initial=0) <= region[o]


def check_inputs(r: Reading) -> None:
    """Each row reads what its node reads, from a lower level; spare rows repeat."""
    sections = r.schedule.sections
    for o, operation in enumerate(r.program.operations):
        levels = r.through(o)[r.order(o)]
        for a in range(len(operation.inputs)):
            found = part(r, sections.reads[o, a])
            real, spare = found[: len(levels)], found[len(levels) :]
            assert real.tolist() == r.inputs(r.rows, o, a).tolist()
            assert (r.inputs(r.level, o, a) < levels).all()
            assert len(levels) == 0 or set(spare) <= set(real)


def check_header(r: Reading) -> None:
    """The counts, and the rows of results."""
    examples, spare = r.graph.examples, r.capacity.examples - r.graph.examples
    sections = r.schedule.sections
    assert r.schedule.depths.tolist() == r.depths
    assert r.schedule.depth == sum(r.depths)
    assert r.schedule.counts.tolist() == [len(x) for x in r.levels]
    assert int(r.schedule.counts.sum()) == r.graph.nodes
    assert part(r, sections.examples) == examples
    assert r.schedule.mask.tolist() == [True] * examples + [False] * spare
    sizes = layout(r.schedule.spec).results
    assert sizes == (r.capacity.examples, *r.capacity.metrics)
    for n, result in enumerate(r.program.results):
        for j in range(len(result.tensors)):
            place = len(r.program.operations) + n, j
            found = part(r, sections.reads[place]).tolist()
            rows = r.result(n, j).tolist()
            assert found == rows + (rows or [0])[-1:] * (sizes[n] - len(rows))
    counts = part(r, sections.rows).tolist()
    assert counts == list(map(len, r.graph.results))
    for n in r.program.observed:
        example, count = owners(r.graph.results[n]), counts[n]
        found = part(r, sections.owners[n])
        assert found[:count].tolist() == example.tolist()
        assert (found[count:] == r.capacity.examples).all()


def check_constants(r: Reading) -> None:
    """They stand first: the program's, then the examples' in the order of the graph."""
    for t, found in enumerate(r.schedule.constants):
        (own,) = r.graph.constants[t].columns
        shared = [value for number, value in r.program.constants if number == t]
        expected = np.concatenate([*(x[None] for x in shared), own])
        np.testing.assert_array_equal(expected, found[: len(expected)])


# ---- consumers -----------------------------------------------------------------------


@dataclass(frozen=True)
class Cotangent:
    """That of a value in a row: what a sum reads has that of the sum."""

    row: int


def uses(r: Reading, t: int) -> Iterator[tuple[int, int | Cotangent]]:
    """Each use of a computed value of a type: its row, and the edge row of the use or
    whose cotangent it has."""
    places = layout(r.schedule.spec)
    for o, operation in enumerate(r.program.operations):
        for a, number in enumerate(operation.inputs):
            if number == t:
                used = enumerate(r.inputs(r.rows, o, a).tolist())
                if operation.is_sum:
                    base = places.value_base[o][0]
                    yield from ((row, Cotangent(base + i)) for i, row in used)
                else:
                    base, step = places.edges[o, a]
                    yield from ((row, base + step * i) for i, row in used)
    for n, result in enumerate(r.program.results):
        for j, number in enumerate(result.tensors):
            if number == t:
                base, _ = places.edges[len(r.program.operations) + n, j]
                found = enumerate(r.result(n, j).tolist())
                yield from ((row, base + i) for i, row in found)


def edges_of(r: Reading, t: int) -> dict[int, Counter[int]]:
    """By row of a computed value of a type, how often its cotangent has each edge
    row."""
    used: dict[int, list[int | Cotangent]] = {}
    for row, use in uses(r, t):
        if row >= r.capacity.constants[t]:
            used.setdefault(row, []).append(use)

    def of(row: int) -> Iterator[int]:
        for use in used.get(row, ()):
            yield from [use] if isinstance(use, int) else of(use.row)

    return {row: Counter(of(row)) for row in used}


def made_by_sums(r: Reading, t: int) -> set[int]:
    """The rows of the values of a type that sums make, whose cotangents no tile asks
    for."""
    base = layout(r.schedule.spec).value_base
    return {
        base[o][0] + i
        for o, operation in enumerate(r.program.operations)
        if operation.is_sum and operation.outputs == (t,)
        for i in range(len(r.levels[o]))
    }


def sums(r: Reading, t: int) -> dict[int, list[int]]:
    """What each sum of a type adds up, by edge row, zeros left out."""
    places = layout(r.schedule.spec)
    zero = places.edge_rows[t] - 1
    if not r.capacity.sums[t]:
        return {}
    table = part(r, r.schedule.sections.sums[t])
    assert table.shape == (SUM_ARITY, r.capacity.sums[t] + places.sum_width[t])
    return {
        places.edge_sums[t] + i: [x for x in each if x != zero]
        for i, each in enumerate(table.T.tolist())
    }


def summed_at(r: Reading, t: int) -> dict[int, tuple[int, int]]:
    """The level and the stage at which each sum is taken, by edge row."""
    found: dict[int, tuple[int, int]] = {}
    if not r.capacity.sums[t]:
        return found
    places = layout(r.schedule.spec)
    base, width = places.edge_sums[t], places.sum_width[t]
    steps = part(r, r.schedule.sections.steps[t])
    for level, stage in np.argwhere(steps[:, :, 1]).tolist():
        first, count = steps[level, stage].tolist()
        # A tile runs past its end into sums that come before it in reverse, or after
        # it at the same level: a row belongs to the last that covers it.
        rows = range(base + first, base + first + count * width)
        found |= dict.fromkeys(rows, (level + 1, stage))
    return found


def check_consumers(r: Reading) -> None:
    """A value's consumers, sums taken apart, are exactly its uses, each once."""
    places = layout(r.schedule.spec)
    for t in sorted(active_types(r.program)):
        parts, zero = sums(r, t), places.edge_rows[t] - 1
        expected, by_sums = edges_of(r, t), made_by_sums(r, t)
        constants = r.capacity.constants[t]
        table = part(r, r.schedule.sections.consumers[t])
        assert len(table) == r.capacity.fans[t]
        for row, edges in enumerate(table.T.tolist(), constants):
            found = Counter(_leaves([e for e in edges if e != zero], parts))
            wanted = Counter[int]() if row in by_sums else expected.get(row, Counter())
            assert found == wanted


def _leaves(edges: list[int], parts: dict[int, list[int]]) -> Iterator[int]:
    for edge in edges:
        if edge in parts:
            assert parts[edge], 'a sum of nothing'
            yield from _leaves(parts[edge], parts)
        else:
            yield edge


def check_sums(r: Reading) -> None:
    """A sum is taken at the level of its value, after the sums that it reads; where
    these are of another value, a sum of that, at the level of it."""
    for t in sorted(active_types(r.program)):
        parts, at = sums(r, t), summed_at(r, t)
        level_of = dict(zip(_flat(r.rows[t]), _flat(r.level[t]), strict=True))
        constants = r.capacity.constants[t]
        for column in part(r, r.schedule.sections.consumers[t]).tolist():
            for row, edge in enumerate(column, constants):
                waiting = [edge] if edge in parts else []
                # The reverse pass runs from the last level to the first.
                assert all(at[each][0] >= level_of[row] for each in waiting)
                while waiting:
                    each = waiting.pop()
                    inner = [e for e in parts[each] if e in parts]
                    level, stage = at[each]
                    assert all((-at[e][0], at[e][1]) < (-level, stage) for e in inner)
                    waiting += inner


def _flat(of: list[Array]) -> list[int]:
    return list(itertools.chain.from_iterable(x.tolist() for x in of))


def check(r: Reading) -> None:
    """All of it."""
    check_header(r)
    check_constants(r)
    check_tiles(r)
    check_inputs(r)
    check_consumers(r)
    check_sums(r)


# ---- a fixed number of steps ---------------------------------------------------------


def ready_at(r: Reading) -> list[Array]:
    """Per operation, the step at which each row is computed first, counted through the
    components; every row once at least, in tiles that stay in the region."""
    places, before = layout(r.schedule.spec), 0
    found = [np.full(len(x), -1) for x in r.levels]
    for c, component in enumerate(running_components(r.schedule.spec)):
        table = part(r, r.schedule.sections.tiles[c])
        for o in component.operations:
            column = places.column[o]
            widths = np.repeat(places.widths[o], places.trips[c]).tolist()
            own = table[:, column : column + 2].tolist()
            for step, ((first, end), width) in enumerate(zip(own, widths, strict=True)):
                assert 0 <= first <= max(end, 0)
                assert first + width <= places.region[o]
                rows = found[o][first : min(end, first + width)]
                rows[rows < 0] = before + step
        before += len(table)
    assert all((x >= 0).all() for x in found)
    return found


def check_fixed(r: Reading) -> None:
    """Whatever a row reads is computed at a step before."""
    places, ready = layout(r.schedule.spec), ready_at(r)
    made: dict[tuple[int, int], int] = {}
    for o, operation in enumerate(r.program.operations):
        for t, base in zip(operation.outputs, places.value_base[o], strict=True):
            rows = enumerate(ready[o].tolist(), base)
            made |= {(t, row): step for row, step in rows}
    for o, operation in enumerate(r.program.operations):
        for a, t in enumerate(operation.inputs):
            rows = r.inputs(r.rows, o, a).tolist()
            steps = [made.get((t, row), -1) for row in rows]
            assert (np.array(steps, int) < ready[o]).all()
