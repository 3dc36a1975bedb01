# SPDX-License-Identifier: Apache-2.0
"""Sections of the index array: where each begins, and its shape.

All that a batch tells the device, but for constants, is one int32 array, so that it is
sent at once. Its sections are declared here, each once with its shape, and laid out;
who writes or reads one does it through its `Section`.

    | depths | counts | rows | empty |         header, depends on the program alone
    | tiles of each component |                in which order rows are computed
    | inputs of each operation |               what they read
    | results |                                what of it is handed out
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
from jfold.program.components import component_of, components
from jfold.program.operations import Operations
from jfold.scheduling.slots import ReadMode, read_ways, slot_numbers, sums_have_rows
from jfold.scheduling.spec import ONCE, Spec

Indices = TypeVar('Indices', bound=Array | jax.Array)  # of host or device
SUM_ARITY = 4  # edges that one gather adds up; more are summed in a tree
NOWHERE = 1 << 30  # a row that no buffer has


@dataclass(frozen=True)
class Section:
    """A part of the index array.

    Attributes:
      start: the place of its first number.
      shape: of what it holds; rows of the last axis lie together.
    """

    start: int
    shape: tuple[int, ...]

    @functools.cached_property
    def stop(self) -> int:
        """The place behind its last number."""
        return self.start + math.prod(self.shape)

    def __getitem__(self, row: int) -> Section:
        """One row of its first axis."""
        _, *shape = self.shape
        return Section(self.start + row * math.prod(shape), tuple(shape))

    @property
    def rows(self) -> list[Section]:
        """All rows of its first axis."""
        return [self[row] for row in range(self.shape[0])]

    def of(self, indices: Indices) -> Indices:
        """The section [*shape] of an index array [size]; of NumPy's arrays, a view."""
        part = indices[self.start : self.stop]
        return cast(Indices, part if len(self.shape) == 1 else part.reshape(self.shape))

    def write(self, indices: Array, values: Array) -> None:
        """Writes values [*shape] into an index array [size]."""
        _require(values.shape == self.shape, self, values)
        self.of(indices)[...] = values

    def fill(self, indices: Array, values: Array, spare: int) -> None:
        """Writes values [n or fewer] into a section [n], and `spare` behind them."""
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
      depths: [components] how many levels of each run; of steps, if their number is
        fixed.
      counts: [operations] nodes of each.
      rows: [results] rows of each.
      empty: [1] the part of a wide tile that may be empty: one of so many.
      whole: all of these, one after another.
      examples: [] how many examples there are: so many rows the value itself has.
    """

    depths: Section
    counts: Section
    rows: Section
    empty: Section
    whole: Section
    examples: Section


# ---- what shapes follow from ---------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Room:
    """What there is room for.

    Attributes:
      spec: of the schedule.
      tables: per component, rows and columns of its table of tiles.
      regions: [operations] rows of each in a buffer.
      results: [results] rows of each.
      computed: [types] rows of the value buffer that are no constants.
      sum_width: [types] sums that are taken at once.
    """

    spec: Spec
    tables: Sequence[tuple[int, int]]
    regions: Sequence[int]
    results: Sequence[int]
    computed: Sequence[int]
    sum_width: Sequence[int]

    @property
    def levels(self) -> int:
        """Those of all components."""
        return sum(rows for rows, _ in self.tables)


Shape: TypeAlias = tuple[int, ...]
PART = 'part'


class Part(NamedTuple):
    """How sections of a name are laid out: one behind another, with those of other
    names that are of the same things, thing by thing.

    Attributes:
      things: what has sections of their own, as many as there are in the room.
      shapes: of the room and the number of a thing; of one section, or of several.
    """

    things: Callable[[Room], Sized]
    shapes: Callable[[Room, int], Shape | list[Shape]]


COMPONENTS = operator.attrgetter('tables')
OPERATIONS = operator.attrgetter('regions')
RESULTS = operator.attrgetter('results')
TYPES = operator.attrgetter('computed')


def _each(
    things: Callable[[Room], Sized],
    shapes: Callable[[Room, int], Shape | list[Shape]],
) -> Any:
    """Declares a section, or several, of each component, operation, result or type."""
    return field(metadata={PART: Part(things, shapes)})


# ---- declarations --------------------------------------------------------------------


def summed_at_once(spec: Spec, c: int) -> bool:
    """Whether a component is sums that are all taken at once, of what is in the end
    added up."""
    component = components(spec.program)[c]
    return spec.strategy == ONCE and component.recurrent


def _summands(room: Room, c: int) -> Shape:
    if not (summed_at_once(room.spec, c) and sums_have_rows(room.spec)):
        return (0,)
    operations = room.spec.program.operations
    own = components(room.spec.program)[c].operations
    return (sum(room.regions[o] * len(operations[o].inputs) for o in own),)


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
    """Of each of the slots of a table, so many as it has columns, what it reads."""
    found = read_ways(room.spec, table, count)
    return [_room_of(room.spec, table, a, way, rows) for a, way in enumerate(found)]


def _room_of(spec: Spec, table: int, column: int, way: ReadMode, rows: int) -> Shape:
    if way is ReadMode.SUMMED:
        return (spec.capacity.summands[slot_numbers(spec.program)[table, column]],)
    return (rows if way is ReadMode.INDEXED else 0,)


def _input_sums(room: Room, o: int) -> list[Shape]:
    return _summed(room, o, _inputs(room, o))


def _result_sums(room: Room, r: int) -> list[Shape]:
    return _summed(room, len(room.spec.program.operations) + r, _results(room, r))


def _summed(room: Room, table: int, shapes: list[Shape]) -> list[Shape]:
    found = read_ways(room.spec, table, len(shapes))
    pairs = zip(shapes, found, strict=True)
    return [shape if way is ReadMode.SUMMED else (0,) for shape, way in pairs]


def _consumers(room: Room, t: int) -> Shape:
    # Where nothing is in loops, JAX itself takes gradients.
    fan = 0 if room.spec.strategy == ONCE else room.spec.capacity.fans[t]
    return fan, room.computed[t]


def _steps(room: Room, t: int) -> Shape:
    return room.levels if _rows_of_sums(room, t) else 0, room.spec.capacity.stages, 2


def _rows_of_sums(room: Room, t: int) -> int:
    return 0 if room.spec.strategy == ONCE else room.spec.capacity.sums[t]


def _sums(room: Room, t: int) -> Shape:
    summed = _rows_of_sums(room, t)
    # The last tile of sums may run past their end.
    return SUM_ARITY, summed + room.sum_width[t] if summed else 0


@dataclass(frozen=True, eq=False)
class Sections:
    """The sections, in their order: each is declared here, with its shape.

    Attributes:
      header: what tells how much of everything there is.
      size: of the index array.
      tiles: per component [levels, columns], for each of its operations first row and
        end; a row for each step, if their number is fixed.
      summands: per component that is sums, where these are taken at once [summands],
        rows of the value buffer; [0] of others.
      sums_of: likewise, to which row of the component each is added.
      inputs: per operation and input [region], rows of the value buffer; [0] of sums
        that are taken at once, and of what is read in place; [summands] of a slot that
        is summed.
      input_sums: likewise, of a slot that is summed to which of its rows each is added;
        [0] of others.
      owners: per result [rows], the example of each; [0] where each has one.
      results: per result and tensor [rows], rows of the value buffer, or as of inputs.
      result_sums: as `input_sums`.
      consumers: per type [fan, rows], of each computed row the edge rows to sum.
      steps: per type [levels of all components, stages, 2], first row and number of
        tiles of the sums that a level takes; [0, ...] where there are none.
      sums: per type [SUM_ARITY, sums], the edge rows of each; likewise.
    """

    header: Header
    size: int
    tiles: tuple[Section, ...] = _each(COMPONENTS, lambda room, c: room.tables[c])
    summands: tuple[Section, ...] = _each(COMPONENTS, _summands)
    sums_of: tuple[Section, ...] = _each(COMPONENTS, _summands)
    inputs: tuple[tuple[Section, ...], ...] = _each(OPERATIONS, _inputs)
    input_sums: tuple[tuple[Section, ...], ...] = _each(OPERATIONS, _input_sums)
    owners: tuple[Section, ...] = _each(RESULTS, _owners)
    results: tuple[tuple[Section, ...], ...] = _each(RESULTS, _results)
    result_sums: tuple[tuple[Section, ...], ...] = _each(RESULTS, _result_sums)
    consumers: tuple[Section, ...] = _each(TYPES, _consumers)
    steps: tuple[Section, ...] = _each(TYPES, _steps)
    sums: tuple[Section, ...] = _each(TYPES, _sums)


# ---- layout --------------------------------------------------------------------------


class Allocator:
    """Hands out consecutive places."""

    def __init__(self) -> None:
        self.next = 0

    def take(self, size: int) -> int:
        """The first of so many places."""
        first, self.next = self.next, self.next + size
        return first

    def section(self, *shape: int) -> Section:
        """A section of the given shape."""
        return Section(self.take(math.prod(shape)), shape)

    def sections(self, shapes: Shape | list[Shape]) -> object:
        """A section of a shape, or one of each."""
        if isinstance(shapes, list):
            return tuple(self.section(*shape) for shape in shapes)
        return self.section(*shapes)


def lay_out(room: Room) -> Sections:
    """The sections of all that there is room for."""
    cursor = Allocator()
    header = _header(room.spec.program, cursor)
    parts = {x.name: x.metadata[PART] for x in fields(Sections) if PART in x.metadata}
    made: dict[str, list[Any]] = {name: [] for name in parts}
    for things, names in itertools.groupby(parts, lambda name: parts[name].things):
        together = [*names]
        for number in range(len(things(room))):
            for name in together:
                made[name].append(cursor.sections(parts[name].shapes(room, number)))
    laid_out = {name: tuple(sections) for name, sections in made.items()}
    return Sections(header, cursor.next, **laid_out)


def _header(program: Operations, cursor: Allocator) -> Header:
    depths = cursor.section(len(components(program)))
    counts = cursor.section(len(program.operations))
    rows, empty = cursor.section(len(program.results)), cursor.section(1)
    own, *_ = program.value_results
    whole = Section(0, (cursor.next,))
    return Header(depths, counts, rows, empty, whole, rows[own])
