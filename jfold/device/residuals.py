# SPDX-License-Identifier: Apache-2.0
"""What the forward pass stores of an operation for its reverse: two policies.

Matrix products are stored, unless they are wanted to be, or have to be, computed again.
Elementwise values are computed again in any case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from jax import Array

from jfold.device.arrays import Arrays, Specs
from jfold.device.buffers import buffer_of, repeated, slice_rows
from jfold.device.kernel import Kernel, Weights
from jfold.device.loops import Tile
from jfold.device.reverse import Reverse


class Policy(Protocol):
    """What a policy supplies, for one operation."""

    @property
    def stores(self) -> bool:
        """Whether it stores something."""

    def buffers(self, region: int, width: int) -> Specs:
        """The buffers that it needs, for so many rows and rows per tile."""

    def run(
        self, kernel: Kernel, weights: Weights, inputs: Arrays, rows: int
    ) -> tuple[Arrays, Arrays]:
        """Outputs, and what is to be stored [rows, ...] each."""

    def residuals(
        self,
        reverse: Reverse,
        saved: Arrays,
        weights: Weights,
        inputs: Arrays,
        tile: Tile,
        real: Array | None,
    ) -> Arrays:
        """What the reverse reads again [rows, ...] each.

        Args:
          saved: the buffers.
          inputs: [rows, ...] each, spare rows repeating the first.
          real: [rows] bool, which rows are real; `None` if spare rows do no harm.
        """


@dataclass(frozen=True, eq=False)
class SaveProducts:
    """Products are stored; what crosses in the reverse may take their place."""

    reverse: Reverse
    stores: bool = True

    def buffers(self, region: int, width: int) -> Specs:
        """With room for what crosses, a tile further on; see `backward`."""
        return [buffer_of(region + width, row) for row in self.reverse.residuals]

    def run(
        self, kernel: Kernel, weights: Weights, inputs: Arrays, rows: int
    ) -> tuple[Arrays, Arrays]:
        """Outputs and products."""
        return self.reverse.save_residuals(weights, inputs, rows)

    def residuals(
        self,
        reverse: Reverse,
        saved: Arrays,
        weights: Weights,
        inputs: Arrays,
        tile: Tile,
        real: Array | None,
    ) -> Arrays:
        """As stored."""
        found = [slice_rows(buffer, tile.first, tile.rows) for buffer in saved]
        # Like the inputs: a product of one row beside an input of another is no value
        # of the function, and may be where it is not defined.
        return found if real is None else [repeated(x, real) for x in found]


@dataclass(frozen=True, eq=False)
class RecomputeAll:
    """Nothing is stored; the reverse begins with the forward pass of a tile."""

    stores: bool = False

    def buffers(self, region: int, width: int) -> Specs:
        """None."""
        return []

    def run(
        self, kernel: Kernel, weights: Weights, inputs: Arrays, rows: int
    ) -> tuple[Arrays, Arrays]:
        """Outputs alone."""
        return kernel.outputs(weights, inputs, rows), []

    def residuals(
        self,
        reverse: Reverse,
        saved: Arrays,
        weights: Weights,
        inputs: Arrays,
        tile: Tile,
        real: Array | None,
    ) -> Arrays:
        """From inputs, which repeat a row themselves."""
        return reverse.save_residuals(weights, inputs, tile.rows)[1]


RECOMPUTE = RecomputeAll()
