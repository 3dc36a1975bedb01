# SPDX-License-Identifier: Apache-2.0
"""The data of a batch on the device, and reads of its index array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from jax import Array, lax

from jfold.scheduling.index_array import Section, Sections
from jfold.scheduling.layout import Layout

Number: TypeAlias = 'Array | int'


@dataclass(frozen=True, eq=False)
class Batch:
    """The data of a batch on the device.

    Attributes:
      layout: the places of rows in buffers, and of sections in the index array.
      indices: [size] int32, the index array: all row numbers and counts of the batch.
      constants: by type [capacity, *shape], where `*shape` is that of one value.
    """

    layout: Layout
    indices: Array
    constants: tuple[Array, ...]

    @property
    def sections(self) -> Sections:
        """The place and the shape of each section of the index array `indices`."""
        return self.layout.sections

    def levels(self, component: int) -> Array:
        """Return the number of levels of a component in this batch, [] int32.

        It is the number of steps of its loops where the capacity fixes that.
        """
        return self._number(self.sections.header.depths, component)

    def nodes(self, operation: int) -> Array:
        """Return the number of rows of an operation that are not padding, [] int32."""
        return self._number(self.sections.header.counts, operation)

    def rows(self, result: int) -> Array:
        """Return the number of rows of a result that are not padding, [] int32."""
        return self._number(self.sections.header.rows, result)

    @property
    def empty(self) -> Array:
        """The divisor n [] int32: a wide tile may be up to 1/n empty (padding)."""
        return self._number(self.sections.header.empty, 0)

    def tiles(self, operation: int, level: Number) -> list[Array]:
        """Return begin and end [] int32 of an operation's range of rows on a level."""
        component = self.layout.component[operation]
        columns = self.layout.tables[component][1]
        first = level * columns + self.layout.column[operation]
        return list(self.read(self.sections.tiles[component], first, 2))

    def sums(self, type_: int, step: Number, stage: Number) -> list[Array]:
        """Return where round `stage` of cotangent sums begins, and its number of tiles.

        Both are [] int32; the first is the number of a sum.

        Cotangents of values with many uses are added up a few at a time, round after
        round; a tile is some sums that are computed together.

        Args:
          type_: number of the type of the summed cotangents.
          step: number of the level or step, counted through all components.
          stage: number of the round at that step.
        """
        section = self.sections.steps[type_]
        _, stages, numbers = section.shape
        place = numbers * (step * stages + stage)
        return list(self.read(section, place, numbers))

    def read(self, section: Section, first: Number, size: int) -> Array:
        """Return `size` numbers of a section, from the `first`-th on, [size] int32."""
        begin = section.start + first
        if isinstance(begin, int):
            return lax.slice(self.indices, (begin,), (begin + size,))
        return lax.dynamic_slice(
            self.indices, (begin,), (size,), allow_negative_indices=False
        )

    def _number(self, section: Section, place: int) -> Array:
        """Return the `place`-th number of a section, counted from 0, [] int32."""
        return lax.squeeze(self.read(section, place, 1), (0,))
