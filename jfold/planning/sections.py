# SPDX-License-Identifier: Apache-2.0
"""Sections of the index array: where each begins, and its shape.

All that a batch tells the device, but for constants, is one int32 array, so that it is
sent at once. Its sections are laid out here and nowhere else; who writes or reads one
does it through its `Section`.

    | depths | counts | rows |                 header, depends on the program alone
    | tiles of each component |                in which order rows are computed
    | inputs of each operation |               what they read
    | results |                                what of it is handed out
    | consumers, steps, sums of each type |    how cotangents are summed
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import jax

from jfold.graph import Array
from jfold.operations import Operations
from jfold.recurrence import components
from jfold.spec import Spec

Indices = TypeVar('Indices', bound=Array | jax.Array)  # of host or device
SUM_ARITY = 4  # edges that one gather adds up; more are summed in a tree
SUM_WIDTH = 64  # sums that are taken at once


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
      whole: all of these, one after another.
      examples: [] how many examples there are: so many rows the value itself has.
    """

    depths: Section
    counts: Section
    rows: Section
    whole: Section
    examples: Section


@dataclass(frozen=True, eq=False)
class Sections:
    """The sections, in their order.

    Attributes:
      header: what tells how much of everything there is.
      tiles: per component [levels, columns], for each of its operations first row, end
        and tiles per width; a row for each step, if their number is fixed.
      inputs: per operation and input [region], rows of the value buffer.
      owners: per result [rows], the example of each; [0] where each has one.
      results: per result and tensor [rows], rows of the value buffer.
      consumers: per type [fan, rows], of each computed row the edge rows to sum.
      steps: per type [levels of all components, stages, 2], first row and number of
        tiles of the sums that a level takes; [0, ...] where there are none.
      sums: per type [SUM_ARITY, sums], the edge rows of each; likewise.
      size: of the index array.
    """

    header: Header
    tiles: tuple[Section, ...]
    inputs: tuple[tuple[Section, ...], ...]
    owners: tuple[Section, ...]
    results: tuple[tuple[Section, ...], ...]
    consumers: tuple[Section, ...]
    steps: tuple[Section, ...]
    sums: tuple[Section, ...]
    size: int


class Cursor:
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


def lay_out(
    spec: Spec,
    tables: Sequence[tuple[int, int]],
    regions: Sequence[int],
    results: Sequence[int],
    computed: Sequence[int],
) -> Sections:
    """The sections of a spec.

    Args:
      tables: per component, rows and columns of its table of tiles.
      regions: [operations] rows of each in a buffer.
      results: [results] rows of each.
      computed: [types] rows of the value buffer that are no constants.
    """
    program, capacity, cursor = spec.program, spec.capacity, Cursor()
    header = _header(program, cursor)
    tiles = tuple(cursor.section(*table) for table in tables)
    inputs = tuple(
        tuple(cursor.section(rows) for _ in operation.inputs)
        for operation, rows in zip(program.operations, regions, strict=True)
    )
    owners, of_results = [], []
    for result, rows in zip(program.results, results, strict=True):
        owners.append(cursor.section(result.kind.owned(rows)))
        of_results.append(tuple(cursor.section(rows) for _ in result.tensors))
    levels = sum(rows for rows, _ in tables)
    consumers, steps, sums = [], [], []
    for fan, rows, summed in zip(capacity.fans, computed, capacity.sums, strict=True):
        consumers.append(cursor.section(fan, rows))
        steps.append(cursor.section(levels if summed else 0, capacity.stages, 2))
        # The last tile of sums may run past their end.
        sums.append(cursor.section(SUM_ARITY, summed + SUM_WIDTH if summed else 0))
    of_types = tuple(consumers), tuple(steps), tuple(sums)
    of_rows = tiles, inputs, tuple(owners), tuple(of_results)
    return Sections(header, *of_rows, *of_types, cursor.next)


def _header(program: Operations, cursor: Cursor) -> Header:
    depths = cursor.section(len(components(program)))
    counts = cursor.section(len(program.operations))
    rows = cursor.section(len(program.results))
    own, *_ = program.value_results
    return Header(depths, counts, rows, Section(0, (cursor.next,)), rows[own])
