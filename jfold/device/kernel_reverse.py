# SPDX-License-Identifier: Apache-2.0
"""The reverse of a kernel, for any function of the user.

It runs in two places. `pull_to_inputs` runs in the loop: from the cotangents of a
tile's outputs to those of its inputs. `pull_to_weights` runs after the loop, over all
rows of the operation: the gradients of its weights, as a few large products, and
cotangents of inputs that no loop waits for, since they come from outside of it alone.

    forward   inputs ─▶ products ─▶ elementwise ─▶ outputs
                           │ residuals, stored        │
    reverse   inputs ◀─ pull_to_inputs ◀──────────── cotangents of outputs
                           │ stashes, stored
              weights ◀─ pull_to_weights

Two forms with one interface give the same gradients: a `SplitReverse` runs nothing in
both places, and a `WholeReverse` runs all in each, for functions whose reverse cannot
be split. Of the latter some properties are empty, since nothing is known or stashed.

*Known* products are computed before the loop (hoisted), by number of the product.
"""

from __future__ import annotations

from typing import TypeAlias

from jfold.base.memo import memoized
from jfold.device.activity import Activity
from jfold.device.kernel import Kernel
from jfold.device.split_reverse import SplitReverse
from jfold.device.whole_reverse import WholeReverse

Reverse: TypeAlias = SplitReverse | WholeReverse


@memoized
def make_reverse(kernel: Kernel, flow: Activity) -> Reverse:
    """Return the split reverse where it is possible, else the whole one.

    It is called only when a gradient is taken: some functions have none, and raise.

    Args:
      kernel: the operation at its shapes.
      flow: the inputs and outputs that cotangents flow through.
    """
    split = SplitReverse(kernel, flow)
    return split if split.is_possible else WholeReverse(kernel, flow)
