# SPDX-License-Identifier: Apache-2.0
"""A batch on the device; all reading of its index array, section by section."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from jax import Array, lax

from jfold.scheduling.layout import Layout
from jfold.scheduling.sections import Section, Sections

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

    @property
    def sections(self) -> Sections:
        """The parts of `indices`."""
        return self.layout.sections

    def levels(self, component: int) -> Array:
        """How many levels of a component run [], or steps if their number is fixed."""
        return self._number(self.sections.header.depths, component)

    def nodes(self, operation: int) -> Array:
        """How many rows of an operation stand for nodes []."""
        return self._number(self.sections.header.counts, operation)

    def rows(self, result: int) -> Array:
        """How many rows of a result are real []."""
        return self._number(self.sections.header.rows, result)

    @property
    def empty(self) -> Array:
        """The part of a wide tile [] that may be empty: one of so many."""
        return self._number(self.sections.header.empty, 0)

    def tiles(self, operation: int, level: Number) -> list[Array]:
        """Of an operation on a level: first row, end [] each."""
        component = self.layout.component[operation]
        columns = self.layout.tables[component][1]
        first = level * columns + self.layout.column[operation]
        return list(self.read(self.sections.tiles[component], first, 2))

    def sums(self, type_: int, step: Number, stage: Number) -> list[Array]:
        """First row and number of tiles of the sums that one round makes [] each."""
        section = self.sections.steps[type_]
        _, stages, numbers = section.shape
        place = numbers * (step * stages + stage)
        return list(self.read(section, place, numbers))

    def read(self, section: Section, first: Number, size: int) -> Array:
        """Numbers of a section [rows], from the first on [size]."""
        begin = section.start + first
        if isinstance(begin, int):
            return lax.slice(self.indices, (begin,), (begin + size,))
        return lax.dynamic_slice(
            self.indices, (begin,), (size,), allow_negative_indices=False
        )

    def _number(self, section: Section, place: int) -> Array:
        """One number of a section []."""
        return lax.squeeze(self.read(section, place, 1), (0,))
