# SPDX-License-Identifier: Apache-2.0
"""The residuals of the forward pass: the products that are stored for the reverse.

Matrix products are stored, unless a user wants them recomputed, or they have to be.
Elementwise values are recomputed in any case.

Products are numbered by their order in the kernel's jaxpr; hoisted ones, called
`known`, are computed before the loop. In shapes, `rows` counts the rows of a tile.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass

from jfold.base.arrays import Arrays, Specs
from jfold.device.hoisting import external_products, hoisted_products
from jfold.device.kernel import Kernel, Products, Weights
from jfold.device.kernel_reverse import KernelReverse


@dataclass(frozen=True, eq=False)
class Policy:
    """The choice of the matrix products of an operation that the forward pass stores.

    Attributes:
      kernel: the kernel of the operation.
      reverse: the reverse whose residuals are stored, or stashes in their place; if
        `None`, nothing is, and a reverse runs the forward pass of its rows.
      hoists: whether hoisted products may be stored while the forward pass runs.
    """

    kernel: Kernel
    reverse: KernelReverse | None
    hoists: bool

    @functools.cached_property
    def hoisted(self) -> tuple[int, ...]:
        """The numbers of products that are computed before the loop and read later."""
        if not self.hoists:
            return ()
        of_reverse = self.reverse.products_read if self.reverse else ()
        read = {*hoisted_products(self.kernel), *of_reverse}
        return tuple(k for k in external_products(self.kernel) if k in read)

    def rows(self, known: Collection[int] = ()) -> Specs:
        """Return the specs of one row of each residual, except products in `known`.

        Args:
          known: numbers of the products computed before the loop.
        """
        return self.reverse.residuals(known) if self.reverse else []

    def run(
        self, weights: Weights, inputs: Arrays, rows: int, known: Products
    ) -> tuple[Arrays, Arrays]:
        """Run a tile; return its outputs, and its residuals except products in `known`.

        Args:
          inputs: list of arrays, each [rows, *shape].
          known: by number, products [rows, ...] computed before the loop.

        Returns:
          Two lists of arrays, each [rows, ...].
        """
        if self.reverse:
            return self.reverse.save_residuals(weights, inputs, rows, known)
        return self.kernel.with_products(weights, inputs, rows, (), known)

    def joined(self, known: Products, others: Arrays) -> Arrays:
        """Join products computed before the loop with the other residuals.

        Return all, each [rows, ...], in the order in which the reverse reads them.

        Args:
          known: by number, products [rows, ...] computed before the loop.
          others: the other residuals, each [rows, ...].
        """
        if not self.reverse or not known:
            return others
        read, remaining = self.reverse.products_read, iter(others)
        return [known[k] if k in known else next(remaining) for k in read]
