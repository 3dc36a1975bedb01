# SPDX-License-Identifier: Apache-2.0
"""What the forward pass stores of an operation for its reverse: two policies.

Matrix products are stored, unless they are wanted to be, or have to be, computed again.
Elementwise values are computed again in any case. A policy knows the buffers that it
needs, runs the kernel of a tile in the forward pass, and gives the reverse of a tile or
chunk what was, or would have been, stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from jax import Array

from jfold.base.arrays import Arrays, Specs
from jfold.device.buffers import buffer_of, repeated, slice_rows
from jfold.device.hoisting import external_products, hoisted_products
from jfold.device.kernel import Kernel, Products, Weights
from jfold.device.kernel_reverse import Reverse
from jfold.device.loops import Tile


@dataclass(frozen=True, eq=False)
class SaveProducts:
    """Products are stored; what crosses in the reverse may take their place."""

    stores: ClassVar[bool] = True
    reverse: Reverse

    def hoisted(self, kernel: Kernel) -> tuple[int, ...]:
        """External products that the loop or the reverse reads, by number."""
        if not self.reverse.hoists:
            return ()
        read = {*hoisted_products(kernel), *self.reverse.products_read}
        return tuple(k for k in external_products(kernel) if k in read)

    def buffers(self, region: int, shift: int, known: Collection[int] = ()) -> Specs:
        """Besides known products, with room for what crosses, so many rows further on;
        see `backward`."""
        rows = self.reverse.residuals(known)
        return [buffer_of(region + shift, row) for row in rows]

    def joined(self, known: Products, own: Arrays) -> Arrays:
        """All buffers [rows, ...], given those of known products and the others."""
        return self.reverse.joined(known, own)

    def run(
        self,
        kernel: Kernel,
        weights: Weights,
        inputs: Arrays,
        rows: int,
        known: Products,
    ) -> tuple[Arrays, Arrays]:
        """Outputs and products [rows, ...] each, of inputs [rows, *shape] each and
        hoisted products [rows, ...] each."""
        return self.reverse.save_residuals(weights, inputs, rows, known)

    def residuals(
        self, tile: Tile, saved: Arrays, recomputed: Callable[[], Arrays], real: Array
    ) -> Arrays:
        """Of a tile [rows, ...] each, given buffers [region, ...] each, and which rows
        are real [rows]."""
        found = [slice_rows(buffer, tile.first, tile.rows) for buffer in saved]
        # Like the inputs: a product of one row beside an input of another is no value
        # of the function, and may be where it is not defined.
        return found if tile.count is None else [repeated(x, real) for x in found]


@dataclass(frozen=True, eq=False)
class RecomputeAll:
    """Nothing is stored; the reverse begins with the forward pass of its rows.

    Attributes:
      hoists: whether external products may be stored for the forward pass.
    """

    stores: ClassVar[bool] = False
    hoists: bool

    def hoisted(self, kernel: Kernel) -> tuple[int, ...]:
        """External products that the loop reads, by number, if they may be stored."""
        return hoisted_products(kernel) if self.hoists else ()

    def buffers(self, region: int, shift: int, known: Collection[int] = ()) -> Specs:
        """None."""
        return []

    def joined(self, known: Products, own: Arrays) -> Arrays:
        """None."""
        return own

    def run(
        self,
        kernel: Kernel,
        weights: Weights,
        inputs: Arrays,
        rows: int,
        known: Products,
    ) -> tuple[Arrays, Arrays]:
        """Outputs alone [rows, ...] each, of inputs [rows, *shape] each and hoisted
        products [rows, ...] each."""
        return kernel.with_products(weights, inputs, rows, (), known)

    def residuals(
        self, tile: Tile, saved: Arrays, recomputed: Callable[[], Arrays], real: Array
    ) -> Arrays:
        """From inputs [rows, ...] each, which repeat a row themselves."""
        return recomputed()


Policy: TypeAlias = SaveProducts | RecomputeAll
