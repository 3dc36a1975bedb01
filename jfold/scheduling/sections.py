# SPDX-License-Identifier: Apache-2.0
"""Sections of the index array: where each begins, and its shape.

All data of a batch but constants are one int32 array, so that it is sent at once. Its
sections are declared here, each once with its shape, and laid out; the host writes and
the device reads each section through its `Section`. *Rows* are rows of buffers, of
which each node (an applied operation) has one.

    | depths | counts | rows | empty |         header, depends on the program alone
    | tiles of each component |                the order in which rows are computed
    | inputs of each operation |               the rows of values that they read
    | results |                                the rows of values that are returned
    | consumers, steps, sums of each type |    how cotangents are summed
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import jax

from jfold.graph import Array
from jfold.program.components import (
    SUMMANDS,
    Place,
    component_of,
    components,
    segment_sums,
)
from jfold.program.operations import Operations
from jfold.scheduling.slots import ReadMode, column_modes, slot_numbers, sums_have_rows
from jfold.scheduling.spec import Spec

Indices = TypeVar('Indices', bound=Array | jax.Array)  # on the host or the device
SUM_ARITY = 4  # edge rows that one gather adds up; more are summed in a tree
NOWHERE = 1 << 30  # a row that no buffer has


@dataclass(frozen=True)
class Section:
    """A part of the index array.

    Attributes:
      start: the index of its first number in the index array.
      shape: the shape of its numbers, which are in row-major order.
    """

    start: int
    shape: tuple[int, ...]

    @functools.cached_property
    def stop(self) -> int:
        """The index behind its last number in the index array."""
        return self.start + math.prod(self.shape)

    def __getitem__(self, row: int) -> Section:
        """Return the section of one row of the first axis."""
        _, *shape = self.shape
        return Section(self.start + row * math.prod(shape), tuple(shape))

    @property
    def rows(self) -> list[Section]:
        """The sections of all rows of the first axis."""
        return [self[row] for row in range(self.shape[0])]

    def of(self, indices: Indices) -> Indices:
        """Return this section's numbers [*shape] in an index array; in NumPy a view."""
        part = indices[self.start : self.stop]
        return cast(Indices, part if len(self.shape) == 1 else part.reshape(self.shape))

    def write(self, indices: Array, values: Array) -> None:
        """Write values [*shape] into this section of an index array [size].

        Raises AssertionError if the shape differs.
        """
        _require(values.shape == self.shape, self, values)
        self.of(indices)[...] = values

    def fill(self, indices: Array, values: Array, spare: int) -> None:
        """Write values [n or fewer] into this section [n], and `spare` behind them.

        Raises AssertionError if there are more values, or more axes.
        """
        fits = values.ndim == len(self.shape) == 1 and len(values) <= self.shape[0]
        _require(fits, self, values)
        end = self.start + len(values)
        indices[self.start : end] = values
        indices[end : self.stop] = spare


def _require(fits: bool, section: Section, values: Array) -> None:
    if not fits:
        raise AssertionError(
            f'jfold made a wrong schedule, please report it: {section} was given '
            f'values of shape {values.shape}'
        )


@dataclass(frozen=True, eq=False)
class Header:
    """The sections that every schedule of a program has at the same place.

    Attributes:
      depths: [components] levels of each component; steps, if their number is fixed.
      counts: [operations] nodes of each operation.
      rows: [results] real rows of each result.
      empty: [1] the divisor `n`, where up to 1/n of a wide tile may be empty.
      whole: [size] the four sections above, one after another.
      examples: [] the number of examples, an element of `rows`: the rows of the value.
    """

    depths: Section
    counts: Section
    rows: Section
    empty: Section
    whole: Section
    examples: Section


# ---- inputs of shapes ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Room:
    """The numbers that decide the shapes of sections.

    Attributes:
      spec: the spec of the schedule.
      tables: per component, rows and columns of its table of tiles.
      regions: [operations] rows of each operation in a buffer.
      results: [results] rows of each result.
      computed: [types] rows of the value buffer that are not constants.
      sum_width: [types] sums over edge rows that are taken at once.
    """

    spec: Spec
    tables: Sequence[tuple[int, int]]
    regions: Sequence[int]
    results: Sequence[int]
    computed: Sequence[int]
    sum_width: Sequence[int]

    @property
    def levels(self) -> int:
        """The number of levels, or steps, of all components that there is room for."""
        return sum(rows for rows, _ in self.tables)


Shape: TypeAlias = tuple[int, ...]
PART = 'part'


class Part(NamedTuple):
    """A declaration of the sections in one field of `Sections`.

    Neighbouring fields with the same owners are laid out owner by owner.

    Attributes:
      owners: takes a `Room`; returns a collection as long as there are owners, which
        are components, operations, results or types.
      shapes: takes a `Room` and the number of an owner; returns the shape of the
        owner's section, or a list of shapes if it has several sections.
    """

    owners: Callable[[Room], Sized]
    shapes: Callable[[Room, int], Shape | list[Shape]]


COMPONENTS = operator.attrgetter('tables')
OPERATIONS = operator.attrgetter('regions')
RESULTS = operator.attrgetter('results')
TYPES = operator.attrgetter('computed')


def _per(
    owners: Callable[[Room], Sized],
    shapes: Callable[[Room, int], Shape | list[Shape]],
) -> Any:
    """Return a dataclass field that declares sections; arguments as of `Part`."""
    return field(metadata={PART: Part(owners, shapes)})


# ---- declarations --------------------------------------------------------------------


def summed_at_once(spec: Spec, c: int) -> bool:
    """Return whether component `c` is segment sums, which are added up at once.

    So are those that are recurrent, and yet run outside of loops.
    """
    sums = segment_sums(spec.program)
    return sums.issuperset(components(spec.program)[c].operations)


def _summands(room: Room, c: int) -> Shape:
    if not (summed_at_once(room.spec, c) and sums_have_rows(room.spec)):
        return (0,)
    operations = room.spec.program.operations
    sums = components(room.spec.program)[c].operations
    return (sum(room.regions[o] * len(operations[o].inputs) for o in sums),)


def _inputs(room: Room, o: int) -> list[Shape]:
    at_once = summed_at_once(room.spec, component_of(room.spec.program)[o])
    rows = 0 if at_once else room.regions[o]
    return _slots(room, o, len(room.spec.program.operations[o].inputs), rows)


def _owners(room: Room, r: int) -> Shape:
    return (room.spec.program.results[r].kind.owned(room.results[r]),)


def _results(room: Room, r: int) -> list[Shape]:
    program = room.spec.program
    table, count = len(program.operations) + r, len(program.results[r].tensors)
    return _slots(room, table, count, room.results[r])


def _slots(room: Room, table: int, count: int, rows: int) -> list[Shape]:
    """Return the section shape of each input of an operation or tensor of a result.

    Args:
      table: the number of the operation, or behind all operations that of the result.
      count: the number of inputs, or of tensors in the result.
      rows: the length of a section with an index for each row.
    """
    numbers, summands = slot_numbers(room.spec.program), room.spec.capacity.summands
    modes = column_modes(room.spec, table, count)
    room_of = {ReadMode.IN_PLACE: 0, ReadMode.INDEXED: rows}
    return [
        (summands[numbers[table, a]] if mode is ReadMode.SUMMED else room_of[mode],)
        for a, mode in enumerate(modes)
    ]


def _input_sums(room: Room, o: int) -> list[Shape]:
    return _summed(room, o, _inputs(room, o))


def _result_sums(room: Room, r: int) -> list[Shape]:
    return _summed(room, len(room.spec.program.operations) + r, _results(room, r))


def _summed(room: Room, table: int, shapes: list[Shape]) -> list[Shape]:
    modes = column_modes(room.spec, table, len(shapes))
    pairs = zip(shapes, modes, strict=True)
    return [shape if mode is ReadMode.SUMMED else (0,) for shape, mode in pairs]


def _consumers(room: Room, t: int) -> Shape:
    # Without loops JAX differentiates the program, so no edges are summed here.
    fan = room.spec.capacity.fans[t] if room.spec.has_loops else 0
    return fan, room.computed[t]


def _steps(room: Room, t: int) -> Shape:
    return room.levels if _rows_of_sums(room, t) else 0, room.spec.capacity.stages, 2


def _rows_of_sums(room: Room, t: int) -> int:
    return room.spec.capacity.sums[t] if room.spec.has_loops else 0


def _sums(room: Room, t: int) -> Shape:
    rows = _rows_of_sums(room, t)
    # The last tile of sums may run past their end.
    return SUM_ARITY, rows + room.sum_width[t] if rows else 0


@dataclass(frozen=True, eq=False)
class Sections:
    """The sections of an index array, in their order; each is declared with its shape.

    An edge row is where a use of a value leaves its cotangent.

    Attributes:
      header: the numbers of levels, nodes and rows.
      size: the length of the index array.
      tiles: per component [levels, columns], first row and end of each of its
        operations; a row for each step, if the number of steps is fixed.
      summands: per component [summands], the rows of the value buffer to add up, if the
        component is sums of sums and sums have rows; else [0].
      sums_of: likewise, the row of the component that each summand is added to.
      inputs: per operation and input [region], the row of the value buffer that each
        node reads; [summands], the rows to add up, if the input is read as sums without
        rows; [0] if it is read in place, or the operation is a sum of sums.
      input_sums: per operation and input [summands], the node that each summand is
        added to, if the input is read as sums without rows; else [0].
      owners: per result [rows], the example of each row; [0] if each example has one.
      results: per result and tensor [rows], as `inputs`.
      result_sums: per result and tensor, as `input_sums`.
      consumers: per type [fan, rows], the edge rows to sum for each computed row.
      steps: per type [levels of all components, stages, 2], first sum and number of
        tiles of the sums that each round of a level takes; [0, ...] without sums.
      sums: per type [SUM_ARITY, sums], the edge rows that each sum adds up; [.., 0]
        without sums.
    """

    header: Header
    size: int
    tiles: tuple[Section, ...] = _per(COMPONENTS, lambda room, c: room.tables[c])
    summands: tuple[Section, ...] = _per(COMPONENTS, _summands)
    sums_of: tuple[Section, ...] = _per(COMPONENTS, _summands)
    inputs: tuple[tuple[Section, ...], ...] = _per(OPERATIONS, _inputs)
    input_sums: tuple[tuple[Section, ...], ...] = _per(OPERATIONS, _input_sums)
    owners: tuple[Section, ...] = _per(RESULTS, _owners)
    results: tuple[tuple[Section, ...], ...] = _per(RESULTS, _results)
    result_sums: tuple[tuple[Section, ...], ...] = _per(RESULTS, _result_sums)
    consumers: tuple[Section, ...] = _per(TYPES, _consumers)
    steps: tuple[Section, ...] = _per(TYPES, _steps)
    sums: tuple[Section, ...] = _per(TYPES, _sums)


def section_of(program: Operations, sections: Sections, place: Place) -> Section:
    """Return the section of what is read from loops at a place."""
    table, column = place
    if column == SUMMANDS:
        return sections.summands[component_of(program)[table]]
    return (sections.inputs + sections.results)[table][column]


# ---- layout --------------------------------------------------------------------------


class Allocator:
    """An allocator of consecutive ranges of numbers; `next` is the first free one."""

    def __init__(self) -> None:
        self.next = 0

    def take(self, size: int) -> int:
        """Allocate `size` numbers, and return the first of them."""
        first, self.next = self.next, self.next + size
        return first

    def section(self, *shape: int) -> Section:
        """Allocate and return a section of a shape."""
        return Section(self.take(math.prod(shape)), shape)

    def sections(self, shapes: Shape | list[Shape]) -> object:
        """Allocate a section of one shape, or a tuple of sections for a list."""
        if isinstance(shapes, list):
            return tuple(self.section(*shape) for shape in shapes)
        return self.section(*shapes)


def allocate_sections(room: Room) -> Sections:
    """Return the sections of an index array, one behind another without gaps."""
    allocator = Allocator()
    header = _header(room.spec.program, allocator)
    parts = {x.name: x.metadata[PART] for x in fields(Sections) if PART in x.metadata}
    sections: dict[str, list[Any]] = {name: [] for name in parts}
    for owners, group in itertools.groupby(parts, lambda name: parts[name].owners):
        names = [*group]
        for number in range(len(owners(room))):
            for name in names:
                shapes = parts[name].shapes(room, number)
                sections[name].append(allocator.sections(shapes))
    laid_out = {name: tuple(x) for name, x in sections.items()}
    return Sections(header, allocator.next, **laid_out)


def _header(program: Operations, allocator: Allocator) -> Header:
    depths = allocator.section(len(components(program)))
    counts = allocator.section(len(program.operations))
    rows, empty = allocator.section(len(program.results)), allocator.section(1)
    header, value = Section(0, (allocator.next,)), program.value_results[0]
    return Header(depths, counts, rows, empty, header, rows[value])
