# SPDX-License-Identifier: Apache-2.0
"""The reverse of a kernel, for any function of the user.

It runs in two places. `pull_to_inputs` runs in the loop: from the cotangents of a
tile's outputs to those of its inputs. `pull_to_weights` runs after the loop, over all
rows of the operation: the gradients of its weights, as a few large products.

    forward   inputs ─▶ products ─▶ elementwise ─▶ outputs
                           │ residuals, stored        │
    reverse   inputs ◀─ pull_to_inputs ◀──────────── cotangents of outputs
                           │ what crosses, stored
              weights ◀─ pull_to_weights

Two forms give the same gradients: a `SplitReverse` runs nothing in both places, and a
`WholeReverse` all in either, for functions whose reverse cannot be split.
"""

from __future__ import annotations

from typing import Protocol, cast

from jfold.device.arrays import Arrays, Specs
from jfold.device.kernel import Kernel, Weights
from jfold.device.rows import Rows
from jfold.device.split_reverse import SplitReverse
from jfold.device.whole_reverse import WholeReverse


class Reverse(Protocol):
    """What each form of the reverse supplies; rows come first in all that is stored."""

    @property
    def kernel(self) -> Kernel:
        """What it is the reverse of."""

    @property
    def live(self) -> tuple[int, ...]:
        """The outputs that have a cotangent."""

    @property
    def active(self) -> tuple[bool, ...]:
        """Per input, whether it gets one."""

    @property
    def residuals(self) -> Specs:
        """One row of each array that `save_residuals` returns."""

    @property
    def crossing(self) -> Specs:
        """One row of each array that crosses to `pull_to_weights`."""

    @property
    def linear(self) -> tuple[bool, ...]:
        """Of each that crosses, whether it depends on the cotangents, as not all do."""

    @property
    def replaced(self) -> tuple[int | None, ...]:
        """Of each that crosses, a residual that `pull_to_inputs` alone reads, whose
        place it takes; `None` if it needs a place of its own."""

    @property
    def cotangents_read(self) -> list[set[int]]:
        """The places in `live` that each cotangent of an active input depends on, as
        far as is known."""

    def weights(self, arrays: Arrays) -> Weights:
        """Weights for tiles of all widths, in both passes."""

    def save_residuals(
        self, weights: Weights, inputs: Arrays, rows: int
    ) -> tuple[Arrays, Arrays]:
        """Outputs, and what the reverse reads again [rows, ...] each."""

    def pull_to_inputs(self, given: Rows) -> tuple[Arrays, Arrays]:
        """Cotangents of the active inputs, and what crosses [rows, ...] each."""

    def pull_to_weights(self, given: Rows, crossing: Arrays) -> Arrays:
        """Gradients of the trained weights, summed over the rows that are real."""


def make_reverse(
    kernel: Kernel, live: tuple[int, ...], active: tuple[bool, ...]
) -> Reverse:
    """The split form where it is possible, the whole form elsewhere; made once.

    Looked for only when a gradient is taken: some functions have none.

    Args:
      live: the outputs that have a cotangent.
      active: per input, whether it gets one.
    """
    key = live, active
    if key not in kernel.reverses:
        split = SplitReverse(kernel, live, active)
        whole = WholeReverse(kernel, live, active)
        kernel.reverses[key] = split if split.is_possible else whole
    return cast(Reverse, kernel.reverses[key])
