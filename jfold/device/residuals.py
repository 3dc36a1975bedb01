# SPDX-License-Identifier: Apache-2.0
"""The residuals of the forward pass: policies that store or recompute products.

Matrix products are stored, unless a user wants them recomputed, or they have to be.
Elementwise values are recomputed in any case. A policy knows the buffers that it needs,
runs the kernel of a tile in the forward pass, and provides the residuals of a tile or
chunk to the reverse.

Products are numbered by their order in the kernel's jaxpr; hoisted ones, called
`known`, are computed before the loop. In shapes, `rows` counts the rows of a tile or
chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from jax import Array

from jfold.base.arrays import Arrays, Specs
from jfold.device.buffers import buffer_spec, repeated, slice_rows
from jfold.device.hoisting import external_products, hoisted_products
from jfold.device.kernel import Kernel, Products, Weights
from jfold.device.kernel_reverse import Reverse
from jfold.device.loops import Tile


@dataclass(frozen=True, eq=False)
class SaveProducts:
    """A policy that stores products; stashes of the reverse may take their place.

    Attributes:
      reverse: of the kernel; it says which products it reads.
    """

    stores: ClassVar[bool] = True
    reverse: Reverse

    def hoisted(self, kernel: Kernel) -> tuple[int, ...]:
        """Return the numbers of hoisted products that loop or reverse reads."""
        if not self.reverse.hoists:
            return ()
        read = {*hoisted_products(kernel), *self.reverse.products_read}
        return tuple(k for k in external_products(kernel) if k in read)

    def buffers(self, region: int, shift: int, known: Collection[int] = ()) -> Specs:
        """Return the specs of buffers for residuals, except hoisted products.

        Args:
          region: number of rows of the operation.
          shift: number of further rows, for stashes that lie so much further on.
          known: numbers of the hoisted products.
        """
        rows = self.reverse.residuals(known)
        return [buffer_spec(region + shift, row) for row in rows]

    def joined(self, known: Products, others: Arrays) -> Arrays:
        """Return all residuals, each [rows, ...], in the order that the reverse reads.

        Args:
          known: by number, hoisted products [rows, ...].
          others: the other residuals, each [rows, ...].
        """
        return self.reverse.joined(known, others)

    def run(
        self,
        kernel: Kernel,
        weights: Weights,
        inputs: Arrays,
        rows: int,
        known: Products,
    ) -> tuple[Arrays, Arrays]:
        """Run a tile; return outputs, and residuals except hoisted products.

        Args:
          inputs: list of arrays, each [rows, *shape].
          known: by number, hoisted products [rows, ...].

        Returns:
          Two lists of arrays, each [rows, ...].
        """
        return self.reverse.save_residuals(weights, inputs, rows, known)

    def residuals(
        self, tile: Tile, saved: Arrays, recomputed: Callable[[], Arrays], real: Array
    ) -> Arrays:
        """Return the residuals of a tile or chunk, each [rows, ...], read from buffers.

        Args:
          saved: buffers of all residuals, each [region, ...].
          recomputed: returns residuals computed from the inputs; not called.
          real: [rows] bool, which rows of a chunk are no padding.
        """
        rows = [slice_rows(buffer, tile.first, tile.rows) for buffer in saved]
        # Spare rows repeat the first, like inputs: an input of one row with a product
        # of another might lie where the function is not defined.
        return rows if tile.count is None else [repeated(x, real) for x in rows]


@dataclass(frozen=True, eq=False)
class RecomputeAll:
    """A policy that stores nothing: the reverse runs the forward pass of its rows.

    Attributes:
      hoists: whether hoisted products may be stored while the forward pass runs.
    """

    stores: ClassVar[bool] = False
    hoists: bool

    def hoisted(self, kernel: Kernel) -> tuple[int, ...]:
        """Return the numbers of hoisted products that the loop reads."""
        return hoisted_products(kernel) if self.hoists else ()

    def buffers(self, region: int, shift: int, known: Collection[int] = ()) -> Specs:
        """Return no specs, since nothing is stored for the reverse."""
        return []

    def joined(self, known: Products, others: Arrays) -> Arrays:
        """Return the empty list `others`: there are no residuals."""
        return others

    def run(
        self,
        kernel: Kernel,
        weights: Weights,
        inputs: Arrays,
        rows: int,
        known: Products,
    ) -> tuple[Arrays, Arrays]:
        """Run a tile; return outputs, each [rows, *shape], and no residuals."""
        return kernel.with_products(weights, inputs, rows, (), known)

    def residuals(
        self, tile: Tile, saved: Arrays, recomputed: Callable[[], Arrays], real: Array
    ) -> Arrays:
        """Return the residuals, each [rows, ...], recomputed from the inputs."""
        return recomputed()


Policy: TypeAlias = SaveProducts | RecomputeAll
