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
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import jax

from jfold.graph import Array, shared_counts, value_parts
from jfold.program.components import (
    LEAVING,
    SUMMANDS,
    Place,
    components,
    makers_at,
    output_places,
    outputs_of,
    phases,
    results_in,
    segment_sums,
    sources,
    union,
)
from jfold.program.operations import Operations, ProducerSet
from jfold.scheduling.read_modes import ReadMode, mode_at, slots
from jfold.scheduling.spec import Spec

Indices = TypeVar('Indices', bound=Array | jax.Array)  # on the host or the device
SUM_ARITY = 4  # edge rows that one gather adds up; more are summed in a tree
NOWHERE = 1 << 30  # a row that no buffer has


@dataclass(frozen=True)
class Section:
    """A part of the index array, from number `start` on, in row-major order."""

    start: int
    shape: tuple[int, ...]

    @functools.cached_property
    def stop(self) -> int:
        """The index, in the whole array, behind the section's last number."""
        return self.start + math.prod(self.shape)

    def __getitem__(self, row: int) -> Section:
        """Return item `row` of the first axis, as a section without that axis."""
        _, *shape = self.shape
        return Section(self.start + row * math.prod(shape), tuple(shape))

    @property
    def rows(self) -> list[Section]:
        """The items of the first axis, as sections without that axis."""
        return [self[row] for row in range(self.shape[0])]

    def of(self, indices: Indices) -> Indices:
        """Return the numbers [*shape] of this section of the index array `indices`.

        Of a NumPy array they are a view, which can be written into.
        """
        part = indices[self.start : self.stop]
        return cast(Indices, part if len(self.shape) == 1 else part.reshape(self.shape))

    def fill(self, indices: Array, values: Array, spare: int) -> None:
        """Write `values` [n or fewer], then `spare`, to this section [n] of `indices`.

        Raises AssertionError if there are more values, or more axes.
        """
        if not values.ndim == len(self.shape) == 1 or len(values) > self.shape[0]:
            raise AssertionError(
                f'jfold made a wrong schedule, please report it: {self} was given '
                f'values of shape {values.shape}'
            )
        end = self.start + len(values)
        indices[self.start : end] = values
        indices[end : self.stop] = spare


@dataclass(frozen=True)
class Sections:
    """All sections of an index array: the place and the shape of each.

    A segment sum is one reader, of all its summands, if such sums have rows. Its place
    is column `SUMMANDS` of its first operation.

    Attributes:
      size: the length of the index array.
      depths: [components] levels of each component; steps, if their number is fixed.
      counts: [operations] nodes of each operation.
      rows: [results] real rows of each result.
      empty: [1] the divisor `n`, where up to 1/n of a wide tile may be empty.
      examples: [] the number of examples: the element of `rows` for the model's value.
      tiles: per component [levels, columns], first row and end of each of its
        operations; a row for each step, if the number of steps is fixed.
      reads: by place, rows of the value buffer. Of an input or a result's tensor, the
        one that each row reads [rows]; of a segment sum, or a slot that reads sums
        without rows, those to add up [summands]; of a slot that reads in place or as
        another does, or an input of a segment sum's operation, none [0]. Where summands
        are in place, 1 for each row of a slot that nothing is added to [rows], and none
        of a sum [0]. Of an output that leaves loops, those that are read outside of
        loops, each once.
      targets: by place, the row of the sum or slot that each of the summands in `reads`
        is added to [summands], or each value of a producer that is read in place; a row
        that no buffer has, if to none. [0] for places without summands.
      owners: per result [rows], the example of each row; [0] if each example has one.
      consumers: per type [fan, rows], the edge rows to sum for each computed row.
      steps: per type [levels of all components, stages, 2], for each round of sums on
        each level the first sum and the number of tiles, if rounds are counted;
        [0, ...] without sums.
      sums: per type [SUM_ARITY, sums], the edge rows that each sum adds up; [.., 0]
        without sums.
    """

    size: int
    depths: Section
    counts: Section
    rows: Section
    empty: Section
    examples: Section
    tiles: tuple[Section, ...]
    reads: dict[Place, Section]
    targets: dict[Place, Section]
    owners: tuple[Section, ...]
    consumers: tuple[Section, ...]
    steps: tuple[Section, ...]
    sums: tuple[Section, ...]


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
        """Allocate numbers for a section with the given axes; return the section."""
        return Section(self.take(math.prod(shape)), shape)


def allocate_sections(
    spec: Spec,
    tables: Sequence[tuple[int, int]],
    region: Sequence[int],
    results: Sequence[int],
    computed: Sequence[int],
    sum_width: Sequence[int],
) -> Sections:
    """Lay out the sections of an index array one behind another, given numbers of rows.

    `tables` are the shapes of `Sections.tiles`; `computed` [types] counts the rows of
    value buffers behind the constants; other arguments are attributes of `Layout`.
    """
    program, capacity, allocator = spec.program, spec.capacity, Allocator()
    section, sums = allocator.section, segment_sums(spec.program)
    depths, counts = section(len(components(program))), section(len(program.operations))
    rows, empty = section(len(program.results)), section(1)
    summands = dict(zip(slots(program), capacity.summands, strict=False))
    reads, targets = dict[Place, Section](), dict[Place, Section]()
    tiles, owners, consumers, steps, of_edges = (list[Section]() for _ in range(5))

    def allocate(place: Place, rows: int) -> None:
        """Allocate `reads` and `targets` of a reader with `rows` rows or summands."""
        mode, added = mode_at(spec, place), 0
        is_sum = place[1] == SUMMANDS
        if mode in (ReadMode.IN_PLACE, ReadMode.SHARED):
            rows = 0
        elif mode is ReadMode.SUMMED:
            rows = added = rows if is_sum else summands[place]
        elif mode is ReadMode.SUMMED_IN_PLACE:
            added = _of_part(spec, region, place)
            rows = 0 if is_sum else rows
        reads[place], targets[place] = section(rows), section(added)

    for part, table in zip(components(program), tables, strict=True):
        tiles.append(section(*table))
        place = part.operations[0], SUMMANDS
        if sums.issuperset(part.operations) and mode_at(spec, place).adds:
            inputs = ((o, program.operations[o].inputs) for o in part.operations)
            allocate(place, sum(region[o] * len(x) for o, x in inputs))
    for o, operation in enumerate(program.operations):
        for a, _ in enumerate(operation.inputs):
            allocate((o, a), 0 if o in sums else region[o])
    for r, result in enumerate(program.results):
        owners.append(section(results[r] if result.kind.is_counted else 0))
        for j, _ in enumerate(result.tensors):
            allocate((len(program.operations) + r, j), results[r])
    leaving = phases(program).leaving
    rows_read = _rows_read(program, reads) if leaving else Counter[int]()
    for number in results_in(leaving):
        o, _ = output_places(program)[number]
        reads[LEAVING, number] = section(min(region[o], rows_read[number]))
    levels = sum(rows for rows, _ in tables)
    for t, size in enumerate(computed):
        # Without loops JAX differentiates the program, so no edges are summed here.
        fan = capacity.fans[t] if program.has_loops else 0
        count = capacity.sums[t] if program.has_loops else 0
        consumers.append(section(fan, size))
        steps.append(section(levels if count else 0, capacity.stages, 2))
        # The last tile of sums may run past their end.
        of_edges.append(section(SUM_ARITY, count + sum_width[t] if count else 0))
    header = depths, counts, rows, empty, rows[program.value_results[0]]
    of_types = map(tuple, (consumers, steps, of_edges))
    readers = tuple(tiles), reads, targets, tuple(owners)
    return Sections(allocator.next, *header, *readers, *of_types)


def _of_part(spec: Spec, region: Sequence[int], place: Place) -> int:
    """Return how many rows the producer has whose values a slot adds up in place."""
    number = slots(spec.program)[place].part
    assert number is not None
    t, table, _ = value_parts(spec.program)[number]
    if table < len(spec.program.types):
        return spec.capacity.constants[t] - shared_counts(spec.program)[t]
    return region[table - len(spec.program.types)]


def _rows_read(program: Operations, reads: Mapping[Place, Section]) -> Counter[int]:
    """Count, by output, the rows of all sections outside of loops that may read it."""
    inputs, outputs = sources(program).inputs, outputs_of(program)
    # A reader of sums without rows reads their summands, which may be sums, too.
    summed: dict[int, ProducerSet] = {}

    def with_summands(makers: ProducerSet) -> ProducerSet:
        return makers | union(x for o, x in summed.items() if outputs[o] & makers)

    for part in components(program):
        if segment_sums(program).issuperset(part.operations):
            makers = with_summands(union(union(inputs[o]) for o in part.operations))
            summed |= dict.fromkeys(part.operations, makers)
    counts = Counter[int]()
    for (table, column), section in reads.items():
        if table < len(program.operations) and table not in program.applied:
            continue
        is_sum = column == SUMMANDS
        makers = summed[table] if is_sum else makers_at(program, (table, column))
        makers = with_summands(makers)
        for number in results_in(makers):
            counts[number] += math.prod(section.shape)
    return counts
