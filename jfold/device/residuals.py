# SPDX-License-Identifier: Apache-2.0
"""Residuals of the forward pass: a policy that stores products, one that recomputes.

Matrix products are stored, unless a user wants them recomputed, or they have to be.
Elementwise values are recomputed in any case. A policy knows the buffers that it needs,
runs the kernel of a tile in the forward pass, and provides the residuals of a tile or
chunk to the reverse.
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
    """A policy that stores products; stashes of the reverse may take their place."""

    stores: ClassVar[bool] = True
    reverse: Reverse

    def hoisted(self, kernel: Kernel) -> tuple[int, ...]:
        """Return the numbers of external products that the loop or reverse reads."""
        if not self.reverse.hoists:
            return ()
        read = {*hoisted_products(kernel), *self.reverse.products_read}
        return tuple(k for k in external_products(kernel) if k in read)

    def buffers(self, region: int, shift: int, known: Collection[int] = ()) -> Specs:
        """Return specs of residuals but `known` ones, with `shift` rows for stashes."""
        rows = self.reverse.residuals(known)
        return [buffer_spec(region + shift, row) for row in rows]

    def joined(self, known: Products, others: Arrays) -> Arrays:
        """Return all residuals [rows, ...], from known products and the others."""
        return self.reverse.joined(known, others)

    def run(
        self,
        kernel: Kernel,
        weights: Weights,
        inputs: Arrays,
        rows: int,
        known: Products,
    ) -> tuple[Arrays, Arrays]:
        """Return outputs and products [rows, ...] each, given hoisted ones, `known`."""
        return self.reverse.save_residuals(weights, inputs, rows, known)

    def residuals(
        self, tile: Tile, saved: Arrays, recomputed: Callable[[], Arrays], real: Array
    ) -> Arrays:
        """Return the residuals of a tile [rows, ...], of buffers [region, ...] each."""
        rows = [slice_rows(buffer, tile.first, tile.rows) for buffer in saved]
        # Spare rows repeat the first, like inputs: an input of one row with a product
        # of another might lie where the function is not defined.
        return rows if tile.count is None else [repeated(x, real) for x in rows]


@dataclass(frozen=True, eq=False)
class RecomputeAll:
    """A policy that stores nothing: the reverse runs the forward pass of its rows.

    Attributes:
      hoists: whether external products may be stored for the forward pass.
    """

    stores: ClassVar[bool] = False
    hoists: bool

    def hoisted(self, kernel: Kernel) -> tuple[int, ...]:
        """Return the numbers of external products that the loop reads."""
        return hoisted_products(kernel) if self.hoists else ()

    def buffers(self, region: int, shift: int, known: Collection[int] = ()) -> Specs:
        """Return no specs."""
        return []

    def joined(self, known: Products, others: Arrays) -> Arrays:
        """Return no residuals."""
        return others

    def run(
        self,
        kernel: Kernel,
        weights: Weights,
        inputs: Arrays,
        rows: int,
        known: Products,
    ) -> tuple[Arrays, Arrays]:
        """Return outputs alone [rows, ...] each, given hoisted products, `known`."""
        return kernel.with_products(weights, inputs, rows, (), known)

    def residuals(
        self, tile: Tile, saved: Arrays, recomputed: Callable[[], Arrays], real: Array
    ) -> Arrays:
        """Return residuals of a tile [rows, ...], recomputed from its inputs."""
        return recomputed()


Policy: TypeAlias = SaveProducts | RecomputeAll
