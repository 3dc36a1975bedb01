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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, cast

import jax

from jfold.graph import Array
from jfold.program.components import component_of, components, segment_sums
from jfold.scheduling.read_modes import (
    ReadMode,
    column_modes,
    slot_numbers,
    sums_have_rows,
)
from jfold.scheduling.spec import Spec

Slots: TypeAlias = 'tuple[Section, ...]'  # one per input, or per tensor of a result
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
        """Return the numbers of this section, [*shape], from an index array.

        From a NumPy array they are a view, which can be written into.
        """
        part = indices[self.start : self.stop]
        return cast(Indices, part if len(self.shape) == 1 else part.reshape(self.shape))

    def fill(self, indices: Array, values: Array, spare: int) -> None:
        """Write values [n or fewer] into this section [n], then `spare` up to its end.

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


@dataclass(frozen=True, eq=False)
class Header:
    """The first sections of an index array: counts of levels, nodes and rows.

    Attributes:
      depths: [components] levels of each component; steps, if their number is fixed.
      counts: [operations] nodes of each operation.
      rows: [results] real rows of each result.
      empty: [1] the divisor `n`, where up to 1/n of a wide tile may be empty.
      examples: [] the number of examples: the element of `rows` for the model's value.
    """

    depths: Section
    counts: Section
    rows: Section
    empty: Section
    examples: Section


# ---- all sections --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sections:
    """All sections of an index array: the place and the shape of each.

    Attributes:
      size: the length of the index array.
      tiles: per component [levels, columns], first row and end of each of its
        operations; a row for each step, if the number of steps is fixed.
      summands: per component [summands], the rows of the value buffer to add up, if the
        component is a segment sum and such sums have rows; else [0].
      sums_of: likewise, the row of the component that each summand is added to.
      inputs: per operation and input [region], the row of the value buffer that each
        node reads; [summands], the rows to add up, if the input is read as sums without
        rows; [0] if it is read in place, or the operation is of a segment sum.
      input_sums: per operation and input [summands], the node that each summand is
        added to, if the input is read as sums without rows; else [0].
      owners: per result [rows], the example of each row; [0] if each example has one.
      results: per result and tensor [rows], as `inputs`.
      result_sums: per result and tensor, as `input_sums`.
      consumers: per type [fan, rows], the edge rows to sum for each computed row.
      steps: per type [levels of all components, stages, 2], for each round of sums on
        each level the first sum and the number of tiles, if rounds are counted;
        [0, ...] without sums.
      sums: per type [SUM_ARITY, sums], the edge rows that each sum adds up; [.., 0]
        without sums.
    """

    header: Header
    size: int
    tiles: tuple[Section, ...]
    summands: tuple[Section, ...]
    sums_of: tuple[Section, ...]
    inputs: tuple[tuple[Section, ...], ...]
    input_sums: tuple[tuple[Section, ...], ...]
    owners: tuple[Section, ...]
    results: tuple[tuple[Section, ...], ...]
    result_sums: tuple[tuple[Section, ...], ...]
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

    `computed` [types] counts the rows of value buffers that are not constants, other
    arguments are attributes of the layout.
    """
    program, capacity, allocator = spec.program, spec.capacity, Allocator()
    section = allocator.section
    depths, counts = section(len(components(program))), section(len(program.operations))
    rows, empty = section(len(program.results)), section(1)
    header = Header(depths, counts, rows, empty, rows[program.value_results[0]])
    of_components, of_operations, of_results, of_types = (list[Any]() for _ in range(4))
    for c, table in enumerate(tables):
        count = 0
        if summed_at_once(spec, c) and sums_have_rows(spec):
            sums_of = components(program)[c].operations
            count = sum(region[o] * len(program.operations[o].inputs) for o in sums_of)
        of_components.append((section(*table), section(count), section(count)))
    for o, operation in enumerate(program.operations):
        count = 0 if summed_at_once(spec, component_of(program)[o]) else region[o]
        slots = _slots(allocator, spec, o, len(operation.inputs), count)
        of_operations.append(slots)
    for r, result in enumerate(program.results):
        owners = section(results[r] if result.kind.is_counted else 0)
        numbers = len(program.operations) + r, len(result.tensors)
        of_results.append((owners, *_slots(allocator, spec, *numbers, results[r])))
    levels = sum(steps for steps, _ in tables)
    for t, size in enumerate(computed):
        # Without loops JAX differentiates the program, so no edges are summed here.
        fan = capacity.fans[t] if program.has_loops else 0
        count = capacity.sums[t] if program.has_loops else 0
        consumers = section(fan, size)
        steps = section(levels if count else 0, capacity.stages, 2)
        # The last tile of sums may run past their end.
        sums = section(SUM_ARITY, count + sum_width[t] if count else 0)
        of_types.append((consumers, steps, sums))
    return Sections(
        header,
        allocator.next,
        *_columns(of_components, 3),
        *_columns(of_operations, 2),
        *_columns(of_results, 3),
        *_columns(of_types, 3),
    )


def _columns(rows: Sequence[tuple[Any, ...]], count: int) -> tuple[Any, ...]:
    """Transpose tuples of length `count`: [(1, 2), (3, 4)] -> ((1, 3), (2, 4)).

    Without tuples, return `count` empty ones.
    """
    return tuple(zip(*rows, strict=True)) or ((),) * count


def summed_at_once(spec: Spec, c: int) -> bool:
    """Return whether component `c` is a segment sum, which is added up at once."""
    sums = segment_sums(spec.program)
    return sums.issuperset(components(spec.program)[c].operations)


def _slots(
    allocator: Allocator, spec: Spec, table: int, count: int, rows: int
) -> tuple[Slots, Slots]:
    """Allocate, per input, two sections: rows to read, and the rows to add these to.

    Args:
      table, count: as of `column_modes`.
      rows: the length of a section with an index for each row.
    """
    numbers, summands = slot_numbers(spec.program), spec.capacity.summands
    modes = column_modes(spec, table, count)
    added = [
        summands[numbers[table, a]] if mode is ReadMode.SUMMED else 0
        for a, mode in enumerate(modes)
    ]
    indexed = [rows if mode is ReadMode.INDEXED else 0 for mode in modes]
    reads = tuple(allocator.section(x + y) for x, y in zip(indexed, added, strict=True))
    return reads, tuple(map(allocator.section, added))
