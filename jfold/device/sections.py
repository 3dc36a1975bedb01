# SPDX-License-Identifier: Apache-2.0
"""A batch on the device; all reading of its index array, section by section."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from jax import Array, lax

from jfold.planning.layout import Layout
from jfold.planning.sections import SUM_WIDTH, Section

Number: TypeAlias = 'Array | int'


@dataclass(frozen=True, eq=False)
class Batch:
    """What the device is told of a batch.

    Attributes:
      layout: where everything lies.
      indices: [size] int32.
      constants: per type [capacity, *shape].
    """

    layout: Layout
    indices: Array
    constants: tuple[Array, ...]

    def levels(self, component: int) -> Array:
        """How many levels of a component run [], or steps if their number is fixed."""
        return self._number(self.layout.sections.header.depths, component)

    def nodes(self, operation: int) -> Array:
        """How many rows of an operation stand for nodes []."""
        return self._number(self.layout.sections.header.counts, operation)

    def tiles(self, operation: int, level: Number) -> list[Array]:
        """Of an operation on a level: first row, end, tiles of each width [] each."""
        component = self.layout.component[operation]
        columns = self.layout.tables[component][1]
        first = level * columns + self.layout.column[operation]
        size = 2 + len(self.layout.widths[operation])
        return list(self._read(self.layout.sections.tiles[component], first, size))

    def inputs(self, operation: int, place: int, first: Number, rows: int) -> Array:
        """The rows of the value buffer that rows of an operation read [rows]."""
        section = self.layout.sections.inputs[operation][place]
        return self._read(section, first, rows)

    def results(self, section: Section) -> Array:
        """The rows of the value buffer that a result consists of [rows]."""
        return self._read(section, 0, *section.shape)

    def consumers(self, type_: int, use: int, first: Number, rows: int) -> Array:
        """The edge rows where a certain use of values left its cotangents [rows]."""
        return self._read(self.layout.sections.consumers[type_][use], first, rows)

    def sums(self, type_: int, step: Number, stage: Number) -> list[Array]:
        """First row and number of tiles of the sums that one round makes [] each."""
        section = self.layout.sections.steps[type_]
        _, stages, numbers = section.shape
        place = numbers * (step * stages + stage)
        return list(self._read(section, place, numbers))

    def summands(self, type_: int, place: int, first: Number) -> Array:
        """One of the edge rows that each sum of a tile adds up [SUM_WIDTH]."""
        section = self.layout.sections.sums[type_][place]
        return self._read(section, first, SUM_WIDTH)

    def _read(self, section: Section, first: Number, size: int) -> Array:
        begin = section.start + first
        return lax.dynamic_slice(self.indices, (begin,), (size,))

    def _number(self, section: Section, place: int) -> Array:
        return self._read(section, place, 1)[0]
