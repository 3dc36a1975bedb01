# SPDX-License-Identifier: Apache-2.0
"""Scheduling: a `Graph` to a `Schedule`, the arrays that drive the compiled program.

Rows of an operation are sorted by level and dense: the tiles of a level may run past
its end, into rows that the next level writes again. Trip counts are data. For the
reverse pass each value row knows its *consumers*, the edge rows where its uses leave
their cotangents; the few values with many uses get sums in between, in a fixed order.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfold.components import Component, component_of, components
from jfold.graph import (
    Graph,
    Table,
    among_all,
    concatenated,
    gather,
    numbering,
    ranges,
    shared_counts,
)
from jfold.operations import Operation
from jfold.planning.layout import (
    FIXED,
    SUM_ARITY,
    SUM_WIDTH,
    Layout,
    Spec,
    SpecKey,
    active_types,
    cores,
    key_of,
    layout,
    running,
)

Array = np.ndarray[Any, Any]


@jax.tree_util.register_pytree_node_class
@dataclass(eq=False)
class Schedule:
    """A batch, ready for the device: a pytree with a static, hashable spec.

    Attributes:
      indices: [size] int32, all indices and counts; sections are named in `layout`.
      constants: per type [capacity, *shape].
      spec: what a compiled program depends on.
      seconds: how long building took; `None` after a pytree transformation.
    """

    indices: Any
    constants: tuple[Any, ...]
    spec: Spec
    seconds: float | None = None

    def tree_flatten(self) -> tuple[tuple[Any, ...], SpecKey]:
        """For JAX: the arrays, and what is static."""
        return (self.indices, self.constants), key_of(self.spec)

    @classmethod
    def tree_unflatten(cls, key: SpecKey, children: tuple[Any, Any]) -> Schedule:
        """For JAX: the inverse of `tree_flatten`."""
        indices, constants = children
        return cls(indices, constants, key.spec)

    def section(self, name: Any, size: int) -> Any:
        """A named part of `indices`."""
        first = layout(self.spec).sections[name]
        return self.indices[first : first + size]

    @property
    def examples(self) -> int:
        """How many rows the results have: examples, and spare rows if asked for."""
        return self.spec.capacity.examples

    @property
    def mask(self) -> Any:
        """Which rows of the results are examples [examples] bool.

        The others repeat the last example, without its gradient: a loss weighs by this.
        """
        return jnp.arange(self.examples) < self.section('examples', 1)

    @property
    def depth(self) -> int:
        """How many levels run, those of one component after those of another."""
        return int(self.depths.sum())

    @property
    def depths(self) -> Array:
        """How many levels of each component run; of steps, if their number is fixed."""
        return np.asarray(self.section('depth', len(components(self.spec.program))))

    @property
    def counts(self) -> Array:
        """Nodes per operation."""
        return np.asarray(self.section('counts', len(self.spec.program.operations)))

    def tiles(self, operation: int) -> Array:
        """Per level of its component [depth, 2 + widths]: first row, end, then tiles
        per width."""
        places = layout(self.spec)
        component = component_of(self.spec.program)[operation]
        _, columns = places.tables[component]
        depth = int(self.depths[component])
        table = np.asarray(self.section(('tiles', component), depth * columns))
        first = places.column[operation]
        size = 2 + len(places.widths[operation])
        if not self.spec.capacity.rows[operation]:
            return np.zeros((0, size), np.int32)
        return table.reshape(depth, columns)[:, first : first + size]

    def __repr__(self) -> str:
        try:
            data = f'{int(self.counts.sum())} nodes, depth {self.depth}'
        except (TypeError, ValueError, jax.errors.JAXTypeError):
            data = 'traced'
        return f'Schedule({self.examples} examples, {data})'


def abstract(spec: Spec) -> Schedule:
    """A schedule of shapes and types alone, for compiling ahead of time."""
    struct: Any = jax.ShapeDtypeStruct
    constants = tuple(
        struct((rows, *t.shape), jax.dtypes.canonicalize_dtype(t.dtype))
        for rows, t in zip(spec.capacity.constants, spec.program.types, strict=True)
    )
    return Schedule(struct((layout(spec).size,), np.int32), constants, spec)


# ---- building ------------------------------------------------------------------------


def build(graph: Graph, spec: Spec) -> Schedule:
    """Fills the arrays of `spec`, which must hold the graph.

    Sections of `indices`, by name, for component c, operation o, type t, result r:
      'depth', 'examples', 'counts', 'observed': how many levels per component,
        examples, nodes, rows of results that may have any number
      ('tiles', c): [levels, columns] per operation first row, end, and tiles per width
      ('input', o, a): rows of the value buffer
      ('result', r, j): likewise; ('example', r): examples
      ('consumer', t, f): per computed value row, the f-th edge row to sum
      ('steps', t): [levels of all components, stages, 2] first row and tiles of the
        sums of a level
      ('sum', t, f): per sum, the f-th edge row
    """
    writer = _Writer(graph, spec)
    writer.write_header()
    writer.write_tiles()
    writer.write_inputs()
    writer.write_results()
    for t in sorted(active_types(spec.program)):
        writer.write_consumers(t)
    return Schedule(writer.flat, writer.constants(), spec)


class _Writer:
    """Writes the sections of one schedule."""

    def __init__(self, graph: Graph, spec: Spec) -> None:
        self.graph = graph
        self.program = spec.program
        self.components = running(spec)
        self.capacity = spec.capacity
        self.layout: Layout = layout(spec)
        self.flat = np.empty(self.layout.size, np.int32)
        self.levels = graph.levels
        self.counts = [np.bincount(x, minlength=1)[1:] for x in self.levels]
        self.fixed = spec.strategy == FIXED
        self.depths = list(map(self._depth, self.components))
        self.order = list(map(_order, self.levels, self.counts))
        self.first: tuple[Array, ...] = ()
        self.rows = self._value_rows()
        # Per type: where its values are used, as (value rows, first edge row).
        self.used: list[list[tuple[Array, int]]] = [[] for _ in spec.program.types]

    def _depth(self, component: Component) -> int:
        """How many levels or steps of a component run."""
        if self.fixed:
            return int(self._last_steps(component).max(initial=-1)) + 1
        return self._levels(component)

    def _levels(self, component: Component) -> int:
        return max([len(self.counts[o]) for o in component.operations], default=0)

    @functools.cached_property
    def last_step(self) -> list[Array]:
        """Per component, the last step of each level, from 0."""
        return list(map(self._last_steps, self.components))

    def _last_steps(self, component: Component) -> Array:
        steps = np.ones(self._levels(component), np.int64)
        if self.fixed:
            for o in component.operations:
                counts, width = self.counts[o], self.layout.widths[o][0]
                part = steps[: len(counts)]
                np.maximum(part, -(-counts // width), out=part)
        return steps.cumsum() - 1

    def section(self, name: Any, size: int) -> Array:
        """A named part of the index array, to be written."""
        first = self.layout.sections[name]
        return self.flat[first : first + size]

    def fill(self, name: Any, size: int, values: Array, spare: int) -> None:
        """Writes values, then `spare` to the end of the section."""
        section = self.section(name, size)
        section[: len(values)] = values
        section[len(values) :] = spare

    def constants(self) -> tuple[Array, ...]:
        """The constants of each type, the program's first, with room to spare."""
        shared: list[list[Array]] = [[] for _ in self.program.types]
        for t, value in self.program.constants:
            shared[t].append(value)
        return tuple(
            _padded(own, table.columns[0], rows)
            for own, table, rows in zip(
                shared, self.graph.constants, self.capacity.constants, strict=True
            )
        )

    def _value_rows(self) -> list[Array]:
        """Per type, the row of each value, example by example."""
        numbers = numbering(self.program, self.graph)
        self.first = numbers.first
        rows = [np.empty(int(first[-1]), np.intp) for first in numbers.first]
        shared = shared_counts(self.program)
        for t, table in enumerate(self.graph.constants):
            own = np.arange(shared[t], shared[t] + len(table), dtype=np.int32)
            _write_values(rows[t], numbers.constants[t], table, own)
            for place in range(shared[t]):
                rows[t][numbers.first[t][:-1] + place] = place
        for o, operation in enumerate(self.program.operations):
            self._place_nodes(o, operation, numbers.outputs[o], rows)
        return rows

    def _place_nodes(
        self, o: int, operation: Operation, begin: tuple[Array, ...], rows: list[Array]
    ) -> None:
        """Writes the rows of an operation's outputs."""
        table = self.graph.operations[o]
        place = np.empty(len(table), np.int32)
        place[self.order[o]] = np.arange(len(table), dtype=np.int32)
        bases = self.layout.value_base[o]
        for t, first, base in zip(operation.outputs, begin, bases, strict=True):
            _write_values(rows[t], first, table, place + np.int32(base))

    def rows_of(self, t: int, values: Array, counts: Array) -> Array:
        """The rows of values, `counts` of them per example."""
        return gather(self.rows[t], among_all(values, self.first[t], counts))

    def write_header(self) -> None:
        """Counts of everything whose number is data."""
        graph = self.graph
        observed = [graph.results[r] for r in self.program.observed]
        counts = map(len, [*graph.operations, *observed])
        numbers = [*self.depths, graph.examples, *counts]
        self.section('depth', len(numbers))[:] = numbers

    def write_tiles(self) -> None:
        """The tiles of every component, level by level or step by step."""
        for c, component in enumerate(self.components):
            rows, columns = self.layout.tables[c]
            flat = self.section(('tiles', c), rows * columns)
            flat[self.depths[c] * columns :] = 0
            table = flat.reshape(rows, columns)
            for o in component.operations:
                column, widths = self.layout.column[o], self.layout.widths[o]
                part = table[:, column : column + 2 + len(widths)]
                if self.fixed:
                    _write_fixed(part, self.counts[o], widths[0], self.last_step[c])
                else:
                    _write_tiles(part[: self.depths[c]], self.counts[o], widths)

    def write_inputs(self) -> None:
        """The input rows of every operation."""
        for o, operation in enumerate(self.program.operations):
            table = self.graph.operations[o]
            for a, t in enumerate(operation.inputs):
                values = table.columns[1 + a]
                rows = self.rows_of(t, values, table.counts)[self.order[o]]
                spare = rows[-1] if len(rows) else 0
                self.fill(('input', o, a), self.layout.region[o], rows, spare)
                self.used[t].append((rows, self.layout.edge_base[o][a]))

    def write_results(self) -> None:
        """The rows of results, and of those with any number whose example each is."""
        for r in self.program.observed:
            counts = self.graph.results[r].counts
            example = np.repeat(np.arange(self.graph.examples), counts)
            size = self.layout.results[r]
            self.fill(('example', r), size, example, self.capacity.examples)
        for r, result in enumerate(self.program.results):
            table = self.graph.results[r]
            for j, t in enumerate(result.tensors):
                rows = self.rows_of(t, table.columns[j], table.counts)
                spare = rows[-1] if len(rows) else 0
                self.fill(('result', r, j), self.layout.results[r], rows, spare)
                self.used[t].append((rows, self.layout.edge_results[r][j]))

    def write_consumers(self, t: int) -> None:
        """Which edge rows the cotangent of each computed value is summed of."""
        computed = self.capacity.constants[t]
        used = self.used[t] or [(np.zeros(0, np.intp), 0)]
        rows = concatenated([rows for rows, _ in used])
        edges = concatenated(
            [np.arange(base, base + len(rows), dtype=np.int32) for rows, base in used]
        )
        if computed:
            kept = np.flatnonzero(rows >= computed)
            rows, edges = rows[kept] - computed, edges[kept]
        if self.capacity.sums[t]:
            rows, edges = self._write_sums(t, rows, edges)
        size = self.layout.value_rows[t] - computed
        zero = self.layout.edge_rows[t] - 1
        for f in range(self.capacity.fans[t]):
            table = self.section(('consumer', t, f), size)
            table[:] = zero
            table[rows] = edges  # of several uses one stays; the others go on
            if f + 1 < self.capacity.fans[t]:
                left = np.flatnonzero(table[rows] != edges)
                rows, edges = rows[left], edges[left]

    def _write_sums(self, t: int, rows: Array, edges: Array) -> tuple[Array, Array]:
        """Sums the uses of values that have many; the uses that are left."""
        base, zero = self.layout.edge_sums[t], self.layout.edge_rows[t] - 1
        steps = self._row_steps(t)
        tables, keys, made, stage = [], [], 0, 0
        while np.bincount(rows, minlength=1).max() > SUM_ARITY:
            wide = np.bincount(rows)[rows] > SUM_ARITY
            table, targets = _groups(rows[wide], edges[wide], zero)
            new = np.arange(base + made, base + made + len(targets), dtype=np.int32)
            rows = np.concatenate([rows[~wide], targets])
            edges = np.concatenate([edges[~wide], new])
            tables.append(table)
            keys.append(np.stack([steps[targets], np.full(len(targets), stage)]))
            made, stage = made + len(targets), stage + 1
        key = np.concatenate([np.zeros((2, 0), np.int64), *keys], axis=1)
        order = np.lexsort((key[1], key[0]))
        place = np.empty(made, np.int32)
        place[order] = np.arange(base, base + made)

        def placed(edge: Array) -> Array:
            is_sum = (edge >= base) & (edge < base + made)
            return np.where(is_sum, place[np.where(is_sum, edge - base, 0)], edge)

        if made:
            table, edges = placed(np.concatenate(tables)[order]), placed(edges)
        else:
            table = np.zeros((0, SUM_ARITY), np.int32)
        size = self.capacity.sums[t] + SUM_WIDTH
        for f in range(SUM_ARITY):
            self.fill(('sum', t, f), size, table[:, f], zero)
        self._write_steps(t, key[:, order])
        return rows, edges

    def _write_steps(self, t: int, key: Array) -> None:
        shape = (sum(rows for rows, _ in self.layout.tables), self.capacity.stages, 2)
        steps = self.section(('steps', t), int(np.prod(shape))).reshape(shape)
        steps[:] = 0
        step, stage = key
        groups, first, count = np.unique(
            step * self.capacity.stages + stage,
            return_index=True,
            return_counts=True,
        )
        flat = steps.reshape(-1, 2)
        flat[groups, 0], flat[groups, 1] = first, -(-count // SUM_WIDTH)

    def _row_steps(self, t: int) -> Array:
        """Of each computed row of a type, the last step of its level, counted through
        the components."""
        computed = self.capacity.constants[t]
        steps = np.zeros(self.layout.value_rows[t] - computed, np.int64)
        begin = 0
        for component, last_step, (size, _) in zip(
            self.components, self.last_step, self.layout.tables, strict=True
        ):
            for o in component.operations:
                of_rows = begin + last_step[self.levels[o][self.order[o]] - 1]
                outputs = self.program.operations[o].outputs
                bases = self.layout.value_base[o]
                for number, base in zip(outputs, bases, strict=True):
                    if number == t:
                        first = base - computed
                        steps[first : first + len(of_rows)] = of_rows
            begin += size
        return steps


def _write_values(rows: Array, begin: Array, table: Table, values: Array) -> None:
    """Writes what belongs to the rows of a table, whose examples' parts begin there."""
    if len(begin) == 1:
        rows[begin[0] : begin[0] + len(values)] = values
    elif len(values):
        rows[ranges(begin, table.counts)] = values


def _order(levels: Array, counts: Array) -> Array | slice:
    """The stable order of nodes by level, of which there are so many each."""
    if len(counts) < 2:
        return slice(None)
    small = len(counts) <= 1 << 15  # sixteen bits are sorted by radix
    return np.argsort(levels.astype(np.int16) if small else levels, kind='stable')


def _write_tiles(part: Array, counts: Array, widths: tuple[int, ...]) -> None:
    """First row, end and tiles per width of each level, 1 to depth."""
    if len(counts) < len(part):
        counts = np.append(counts, np.zeros(len(part) - len(counts), np.int64))
    ends = counts.cumsum()
    part[:, 1] = ends
    part[:, 0] = ends - counts
    if len(part) and ends[-1] < MANY:
        part[:, 2:] = _tiles_of_few(widths, cores()).take(counts, 0)
    else:
        part[:, 2:] = tiles(counts, widths, cores())


MANY = 4096


@functools.lru_cache(maxsize=32)
def _tiles_of_few(widths: tuple[int, ...], cores: int) -> Array:
    return tiles(np.arange(MANY), widths, cores)


def tiles(rows: Array, widths: tuple[int, ...], cores: int) -> Array:
    """Tiles per width [..., widths] for numbers of rows.

    A wide tile that is half full is faster than narrow ones on several cores, which
    gain little from those. On one core, where rows cost the same in both, it must be
    nearly full. So the order of sums, and last digits, depend on the cores.
    """
    found = np.empty((len(rows), len(widths)), np.int32)
    part = 2 if cores > 1 else 6  # of a wide tile, which may be empty
    for column, width in enumerate(widths):
        empty = width - 1 if width == widths[-1] else width // part - 1
        found[:, column] = (rows + empty) // width
        rows = np.maximum(rows - found[:, column] * width, 0)
    return found


def _write_fixed(part: Array, counts: Array, width: int, last: Array) -> None:
    """First row, end and a tile of each step, given the last step of each level.

    A step without a tile of the operation, before, between or behind its levels,
    repeats the tile before it, which changes nothing.
    """
    part[:, :2], part[:, 2] = 0, 1
    if not len(last):
        return
    level = np.repeat(np.arange(len(last)), np.diff(last, prepend=-1))
    left = np.zeros(len(last), np.int64)
    left[: len(counts)] = counts
    end = left.cumsum()
    within = np.arange(len(level)) - np.append(0, last[:-1] + 1)[level]
    first = (end - left)[level] + within * width
    first[first >= end[level]] = 0
    np.maximum.accumulate(first, out=first)
    part[: len(level), 0], part[: len(level), 1] = first, end[level]
    part[len(level) :, :2] = first[-1], end[-1]


def _padded(shared: list[Array], own: Array, rows: int) -> Array:
    result = np.zeros((rows, *own.shape[1:]), own.dtype)
    for place, value in enumerate(shared):
        result[place] = value
    result[len(shared) : len(shared) + len(own)] = own
    return result


def _groups(rows: Array, edges: Array, zero: int) -> tuple[Array, Array]:
    """Uses in groups per value: edge rows [groups, arity], and the value of each."""
    order = np.argsort(rows, kind='stable')
    rows, edges = rows[order], edges[order]
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    uses = np.diff(first, append=len(rows))
    within = np.arange(len(rows)) - np.repeat(first, uses)
    begins = within % SUM_ARITY == 0
    group = np.cumsum(begins) - 1
    table = np.full((int(begins.sum()), SUM_ARITY), zero, np.int32)
    table[group, within % SUM_ARITY] = edges
    return table, rows[begins]
