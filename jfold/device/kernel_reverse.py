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

Two forms give the same gradients: a `SplitReverse` runs nothing in both places, and a
`WholeReverse` runs all in each, for functions whose reverse cannot be split. Both have
the attributes

    hoists             whether it can take products that are hoisted from the loop
    products_read      the products that it reads, by number, as far as that is known
    residuals          one row of each array that `save_residuals` returns
    crossing           the stashes, arrays that cross between the two places
    early_inputs       the active inputs whose cotangents the loop takes
    late_inputs        those whose cotangents are taken with the gradients of weights
    cotangents_read    for each active input, the live outputs whose cotangents its own
                       depends on, as far as that is known

and the methods, where arrays of weights are [*shape] and all others [rows, ...] each,

    weights            adds to the weights what tiles of both passes share
    save_residuals     inputs and known products to outputs and the other residuals, in
                       the forward pass
    joined             known products and the other residuals to all residuals
    pull_to_inputs     rows to cotangents of the early inputs, and stashes
    pull_to_weights    rows and stashes to gradients of the trained weights, and
                       cotangents of the late inputs
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
    """Return the split reverse where it is possible, the whole one elsewhere. Call it
    only when a gradient is taken: some functions have none."""
    split = SplitReverse(kernel, flow)
    return split if split.is_possible else WholeReverse(kernel, flow)
