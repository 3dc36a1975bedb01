# SPDX-License-Identifier: Apache-2.0
"""Shapes: the capacities of a schedule, and where everything lies in its arrays.

A compiled program depends on a `Spec` and nothing else: the program and a capacity.
`Layout` is what follows from a spec by arithmetic.

On the device each tensor type has one *value buffer*, [constants, then a region of rows
per operation and output], and, if gradients flow through it, one *edge buffer*, where
each use of a value leaves a cotangent: [a region per operation and input, results,
sums, one row of zeros]. All indices of a batch are one int32 array, whose
sections are laid out here too.
"""

from __future__ import annotations

import functools
import operator
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jfold.components import Component, components
from jfold.kept import Owner, kept
from jfold.operations import Operation, Operations

SUM_ARITY = 4  # edges that one gather adds up; more are summed in a tree
SUM_WIDTH = 64
NARROW = 64  # rows; tiles of fewer share matrices that are transposed once
CACHE = 1 << 20  # bytes that most cores have near
RESIDUALS = SAVE_PRODUCTS, RECOMPUTE_ALL = 'save products', 'recompute all'
STRATEGIES = COUNTED, FIXED = 'counted', 'fixed'


@dataclass(frozen=True)
class Capacity:
    """How much fits into a schedule. Only shapes: the counts of a batch are data.

    Attributes:
      examples: rows of the results, exactly.
      levels: the most of a component.
      constants: per type.
      rows: nodes per operation.
      fans: per type, how many uses of a value are gathered at once; 0 where no
        gradient flows.
      sums: per type, rows for sums over wider uses.
      stages: how many rounds such sums take.
      metrics: values per metric.
    """

    examples: int
    levels: int
    constants: tuple[int, ...]
    rows: tuple[int, ...]
    fans: tuple[int, ...]
    sums: tuple[int, ...]
    stages: int
    metrics: tuple[int, ...]

    def __or__(self, other: Capacity) -> Capacity:
        """The least capacity that holds what either holds, of training and validation.

        >>> one = Capacity(8, 5, (0,), (70,), (1,), (0,), 0, ())
        >>> either = one | Capacity(8, 9, (0,), (60,), (1,), (0,), 0, ())
        >>> either.levels, either.rows
        (9, (70,))
        """
        if not isinstance(other, Capacity):
            return NotImplemented
        larger: dict[str, Any] = {
            each.name: tuple(map(max, x, y)) if isinstance(x, tuple) else max(x, y)
            for each in fields(self)
            for x, y in [(getattr(self, each.name), getattr(other, each.name))]
        }
        return Capacity(**larger)

    @functools.cached_property
    def numbers(self) -> tuple[int, ...]:
        """All numbers in a row."""
        of_types = *self.constants, *self.fans, *self.sums
        rows = *self.rows, *self.metrics
        return self.examples, self.levels, self.stages, *of_types, *rows

    def dimensions(self) -> Iterable[tuple[str, int]]:
        """Every number with a name that tells what it counts."""
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, tuple):
                for index, number in enumerate(value):
                    yield f'{each.name}[{index}]', number
            else:
                yield each.name, value


Chance: TypeAlias = Mapping[str, tuple[int, ...]]


def grow(
    old: Capacity | None, need: Capacity, chance: Callable[[], Chance] = dict
) -> Capacity:
    """The capacity for `need`: `old` if it fits, else one with room to spare.

    Growing is rare and generous, since spare room costs memory and its clearing but no
    arithmetic: every dimension that is close to full grows by a quarter, and those that
    were too small by half at least, so that a stream meets few shapes.

    Args:
      chance: gives, for dimensions that add up over examples, how much more another
        batch may need by chance; a first capacity spares no more than that. A stream
        that outgrows it is more than chance.
    """
    if old is not None and all(map(operator.ge, old.numbers, need.numbers)):
        return old
    more = chance() if old is None else {}

    def rows(name: str) -> tuple[int, ...]:
        wanted = getattr(need, name)
        had = getattr(old, name) if old is not None else (0,) * len(wanted)
        return tuple(map(_room, had, wanted, more.get(name, wanted)))

    levels = max(need.levels + need.levels // 4, 32)
    return Capacity(
        need.examples,
        max(_power(levels), old.levels if old else 0),
        rows('constants'),
        rows('rows'),
        tuple(map(max, _fans(need), old.fans if old else _fans(need))),
        rows('sums'),
        max(2 * need.stages, old.stages if old else 0),
        rows('metrics'),
    )


def _fans(need: Capacity) -> tuple[int, ...]:
    return tuple(_power(fan) if fan else 0 for fan in need.fans)


def _room(had: int, wanted: int, chance: int) -> int:
    if not had and not wanted:
        return 0
    if had and wanted > had:
        wanted = chance = max(wanted, int(had * 1.5))
    return max(had, _step(max(wanted + min(wanted // 4, chance), 128)))


def _step(number: int) -> int:
    """Rounded up to one of eight steps an octave."""
    unit = max(_power(number + 1) // 16, 1)
    return -(-number // unit) * unit


def _power(number: int) -> int:
    """Rounded up to a power of two."""
    return 1 << max(number - 1, 0).bit_length()


@dataclass(frozen=True)
class Spec(Owner):
    """What a compiled program depends on; static and hashable.

    Attributes:
      residuals: what the forward pass keeps; one of `RESIDUALS`.
      strategy: how often loops run. 'counted': as often as the batch says, level by
        level, with tiles of several widths. 'fixed': as often as the capacity says,
        with one wide tile of each operation a step; for devices apart from the host,
        which would be asked after every round whether there is another.
    """

    program: Operations
    capacity: Capacity
    residuals: str = SAVE_PRODUCTS
    strategy: str = COUNTED


@dataclass(frozen=True)
class SpecKey:
    """A spec in the tree of a schedule: equal where specs are, but without the program.

    Caches of JAX that outlive every function keep trees; with it they would keep all
    data of the program.
    """

    program: weakref.ref[Operations]
    capacity: Capacity
    residuals: str
    strategy: str

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.program, self.capacity, self.residuals, self.strategy))

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        # JAX puts this into its error about schedules that do not stack.
        return (
            f'{self.capacity} of {self.program()!r}, expected of all that are stacked; '
            'make them with one `size`, after `model.precompile`'
        )

    @property
    def spec(self) -> Spec:
        """The spec that the key stands for.

        Raises:
          ReferenceError: the model and its schedules have been deleted.
        """
        program = self.program()
        if program is None:
            raise ReferenceError(
                'expected the model that made this schedule, got a tree of one that '
                'was deleted: keep the model while its schedules are in use'
            )
        return _specs(program)[self]


@kept
def key_of(spec: Spec) -> SpecKey:
    """The key of a spec, which can be looked up from now on."""
    program = weakref.ref(spec.program)
    key = SpecKey(program, spec.capacity, spec.residuals, spec.strategy)
    _specs(spec.program).setdefault(key, spec)
    return key


@kept
def _specs(program: Operations) -> dict[SpecKey, Spec]:
    """The specs of a program, by their keys."""
    return {}


def best_strategy() -> str:
    """The strategy that suits the backend."""
    return COUNTED if jax.default_backend() == 'cpu' else FIXED


def cores() -> int:
    """The cores that this process may use, whichever thread asks."""
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(os.getpid()))
    return os.cpu_count() or 1


# ---- what an operation needs ---------------------------------------------------------


@kept
def tile_widths(spec: Spec) -> tuple[tuple[int, ...], ...]:
    """Per operation, rows per tile, widest first."""
    recurrent = {
        o
        for each in components(spec.program)
        if each.recurrent
        for o in each.operations
    }
    widths = _counted_widths if spec.strategy == COUNTED else _fixed_widths
    return tuple(
        widths(spec, o, o in recurrent) for o in range(len(spec.program.operations))
    )


def _counted_widths(spec: Spec, o: int, recurrent: bool) -> tuple[int, ...]:
    """Larger weights want wider tiles, since a tile reads them once; much beyond 256
    rows a tile no longer stays in cache. Narrow tiles serve levels near the roots."""
    if not recurrent:
        return 256, 32, 4
    size = parameter_bytes(spec.program.operations[o])
    if size >= 1 << 20:
        return 256, 64, 16
    return (128, 32, 8) if size >= 1 << 19 else (64, 16, 4)


def _fixed_widths(spec: Spec, o: int, recurrent: bool) -> tuple[int, ...]:
    """Twice the rows of a level, so that most levels take one step; not narrow, so that
    the program is the same for any batch."""
    rows = spec.capacity.rows[o]
    if recurrent:
        rows = 2 * rows // max(spec.capacity.levels, 1)
    return (min(max(_power(rows), NARROW), 1024),)


def parameter_bytes(operation: Operation) -> int:
    """The size of an operation's parameters."""
    leaves = jax.tree.leaves(operation.layer.params)
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in leaves)


def row_bytes(program: Operations, operation: Operation) -> int:
    """The size of one node's inputs and outputs."""
    types = [program.types[n] for n in operation.inputs + operation.outputs]
    return sum(t.size * t.dtype.itemsize for t in types) or 4


def has_gradient(operation: Operation) -> bool:
    """Whether an operation has parameters that are trained."""
    leaves = jax.tree.leaves(operation.layer.params)
    return any(jnp.issubdtype(x.dtype, jnp.inexact) for x in leaves)


@kept
def active_types(program: Operations) -> frozenset[int]:
    """The types through which gradients flow: made, somewhere, from parameters."""
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


@kept
def running(spec: Spec) -> tuple[Component, ...]:
    """The components, without the operations that there is no room for: what no batch
    has had so far costs nothing."""
    return tuple(
        replace(
            each, operations=tuple(o for o in each.operations if spec.capacity.rows[o])
        )
        for each in components(spec.program)
    )


# ---- layout --------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Layout:
    """Where things lie. Tuples go by operation, type or result as in the program.

    Attributes:
      region: per operation, its rows in a buffer: capacity, one tile to overrun into,
        whole chunks.
      results: per result, its rows.
      chunk: per operation, rows per step of the deferred parameter gradients.
      widths: per operation, rows per tile, widest first.
      column: per operation, where its numbers begin in a row of its component's table
        of tiles.
      tables: per component, rows and columns of its table of tiles: as many rows as
        levels, or steps if their number is fixed.
      value_base: per operation and output, the first row in the value buffer.
      value_rows: per type.
      edge_base: per operation and input; -1 where no gradient flows.
      edge_results, edge_sums: likewise, per result and tensor, and per type.
      edge_rows: per type, the row of zeros at the end included.
      sections: start in the index array by name; see `build`.
      size: of the index array.
    """

    region: tuple[int, ...]
    results: tuple[int, ...]
    chunk: tuple[int, ...]
    widths: tuple[tuple[int, ...], ...]
    column: tuple[int, ...]
    tables: tuple[tuple[int, int], ...]
    value_base: tuple[tuple[int, ...], ...]
    value_rows: tuple[int, ...]
    edge_base: tuple[tuple[int, ...], ...]
    edge_results: tuple[tuple[int, ...], ...]
    edge_sums: tuple[int, ...]
    edge_rows: tuple[int, ...]
    sections: dict[Any, int]
    size: int


class _Cursor:
    """Hands out consecutive places."""

    def __init__(self) -> None:
        self.next = 0

    def take(self, size: int) -> int:
        first, self.next = self.next, self.next + size
        return first


@kept
def layout(spec: Spec) -> Layout:
    """The layout of a spec."""
    program, capacity = spec.program, spec.capacity
    chunk = tuple(
        _chunk(program, operation, rows)
        for operation, rows in zip(program.operations, capacity.rows, strict=True)
    )
    widths = tile_widths(spec)
    region = tuple(
        max(rows + widest, -(-rows // size) * size) if rows else 0
        for (widest, *_), rows, size in zip(widths, capacity.rows, chunk, strict=True)
    )
    values = [_Cursor() for _ in program.types]
    for cursor, rows in zip(values, capacity.constants, strict=True):
        cursor.take(rows)
    value_base = tuple(
        tuple(values[t].take(rows) for t in operation.outputs)
        for operation, rows in zip(program.operations, region, strict=True)
    )
    value_rows = tuple(cursor.next for cursor in values)
    results = _result_rows(spec)
    edges = _edges(spec, region, results)
    sections = _sections(spec, region, results, value_rows)
    columns, tables = _tables(spec)
    places = (value_base, value_rows, *edges, *sections)
    return Layout(region, results, chunk, widths, columns, tables, *places)


def _chunk(program: Operations, operation: Operation, rows: int) -> int:
    """Rows whose parameter gradients are taken at once.

    Each chunk costs a pass over the parameters, so a chunk's rows should outweigh them:
    one chunk for a large embedding table, several for a matrix. Beyond that, a chunk
    that stays in cache is faster.
    """
    size = row_bytes(program, operation)
    balanced = parameter_bytes(operation) // size
    near = _power(min(512, CACHE // size) + 1) // 2
    return max(min(max(near, balanced), rows), 1)


def _result_rows(spec: Spec) -> tuple[int, ...]:
    """Per result, how many rows there is room for."""
    capacity, observed = spec.capacity, iter(spec.capacity.metrics)
    return tuple(
        capacity.examples if result.per_example else next(observed)
        for result in spec.program.results
    )


_Edges: TypeAlias = tuple[
    tuple[tuple[int, ...], ...],
    tuple[tuple[int, ...], ...],
    tuple[int, ...],
    tuple[int, ...],
]


def _edges(spec: Spec, region: tuple[int, ...], results: tuple[int, ...]) -> _Edges:
    program, capacity = spec.program, spec.capacity
    active = active_types(program)
    cursors = [_Cursor() for _ in program.types]

    def take(number: int, rows: int) -> int:
        return cursors[number].take(rows) if number in active else -1

    base = tuple(
        tuple(take(t, rows) for t in operation.inputs)
        for operation, rows in zip(program.operations, region, strict=True)
    )
    of_results = tuple(
        tuple(take(t, rows) for t in result.tensors)
        for result, rows in zip(program.results, results, strict=True)
    )
    sums = tuple(
        take(t, rows + SUM_WIDTH if rows else 0) for t, rows in enumerate(capacity.sums)
    )
    rows = tuple(cursor.take(1) + 1 for cursor in cursors)
    return base, of_results, sums, rows


def _sections(
    spec: Spec,
    region: tuple[int, ...],
    results: tuple[int, ...],
    value_rows: tuple[int, ...],
) -> tuple[dict[Any, int], int]:
    program, capacity = spec.program, spec.capacity
    cursor = _Cursor()
    sections: dict[Any, int] = {  # the first four are written as one
        'depth': cursor.take(len(components(program))),
        'examples': cursor.take(1),
        'counts': cursor.take(len(program.operations)),
        'observed': cursor.take(len(program.observed)),
    }
    tables = _tables(spec)[1]
    for c, (levels, columns) in enumerate(tables):
        sections['tiles', c] = cursor.take(levels * columns)
    steps = 2 * capacity.stages * sum(levels for levels, _ in tables)
    for o, operation in enumerate(program.operations):
        for a in range(len(operation.inputs)):
            sections['input', o, a] = cursor.take(region[o])
    for r, result in enumerate(program.results):
        if not result.per_example:
            sections['example', r] = cursor.take(results[r])
        for j in range(len(result.tensors)):
            sections['result', r, j] = cursor.take(results[r])
    for t, fan in enumerate(capacity.fans):
        for f in range(fan):
            rows = value_rows[t] - capacity.constants[t]
            sections['consumer', t, f] = cursor.take(rows)
        if capacity.sums[t]:
            sections['steps', t] = cursor.take(steps)
            for f in range(SUM_ARITY):
                rows = capacity.sums[t] + SUM_WIDTH
                sections['sum', t, f] = cursor.take(rows)
    return sections, cursor.next


def _tables(spec: Spec) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """`Layout.column` and `Layout.tables`.

    A row has, per operation, the first row, the end, and a count per width.
    """
    widths = tile_widths(spec)
    column = [0 for _ in widths]
    tables = []
    for component in running(spec):
        cursor = _Cursor()
        rows = spec.capacity.levels if component.recurrent else 1
        for o in component.operations:
            column[o] = cursor.take(2 + len(widths[o]))
            if spec.strategy == FIXED:  # the most that so many levels and rows take
                rows += spec.capacity.rows[o] // widths[o][0]
        tables.append((rows, cursor.next))
    return tuple(column), tuple(tables)
