# SPDX-License-Identifier: Apache-2.0
"""A batch on the device, and all reads of its index array, by section."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from jax import Array, lax

from jfold.scheduling.layout import Layout
from jfold.scheduling.sections import Section, Sections

Number: TypeAlias = 'Array | int'


@dataclass(frozen=True, eq=False)
class Batch:
    """The data of a batch on the device.

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
        """The sections of `indices`."""
        return self.layout.sections

    def levels(self, component: int) -> Array:
        """Return the number of levels [] of a component; of steps if that is fixed."""
        return self._number(self.sections.header.depths, component)

    def nodes(self, operation: int) -> Array:
        """Return the number of real rows of an operation []."""
        return self._number(self.sections.header.counts, operation)

    def rows(self, result: int) -> Array:
        """Return the number of real rows of a result []."""
        return self._number(self.sections.header.rows, result)

    @property
    def empty(self) -> Array:
        """The part of a wide tile that may be empty, as a divisor []."""
        return self._number(self.sections.header.empty, 0)

    def tiles(self, operation: int, level: Number) -> list[Array]:
        """Return the first row and the end [] of an operation on a level."""
        component = self.layout.component[operation]
        columns = self.layout.tables[component][1]
        first = level * columns + self.layout.column[operation]
        return list(self.read(self.sections.tiles[component], first, 2))

    def sums(self, type_: int, step: Number, stage: Number) -> list[Array]:
        """Return the first row and the number of tiles [] of one round of sums."""
        section = self.sections.steps[type_]
        _, stages, numbers = section.shape
        place = numbers * (step * stages + stage)
        return list(self.read(section, place, numbers))

    def read(self, section: Section, first: Number, size: int) -> Array:
        """Return `size` numbers of a section, from number `first` on [size]."""
        begin = section.start + first
        if isinstance(begin, int):
            return lax.slice(self.indices, (begin,), (begin + size,))
        return lax.dynamic_slice(
            self.indices, (begin,), (size,), allow_negative_indices=False
        )

    def _number(self, section: Section, place: int) -> Array:
        """Return one number of a section []."""
        return lax.squeeze(self.read(section, place, 1), (0,))
