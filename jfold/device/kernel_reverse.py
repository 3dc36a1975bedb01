# SPDX-License-Identifier: Apache-2.0
"""The reverse of a kernel, for any function of the user.

It runs in two places. `pull_to_inputs` runs in the loop: from the cotangents of a
tile's outputs to those of its inputs. `pull_to_weights` runs after the loop, over all
rows of the operation: the gradients of its weights, as a few large products, and
cotangents of inputs that no loop waits for, since they come from outside of it alone.

    forward   inputs ─▶ products ─▶ elementwise ─▶ outputs
                           │ residuals, stored        │
    reverse   inputs ◀─ pull_to_inputs ◀──────────── cotangents of outputs
                           │ what crosses, stored
              weights ◀─ pull_to_weights

Two forms give the same gradients: a `SplitReverse` runs nothing in both places, and a
`WholeReverse` all in either, for functions whose reverse cannot be split. Either says

    hoists             whether products of the forward pass may be known before
    products_read      those that it reads, by number, as far as that is known
    residuals          one row of each array that `save_residuals` returns
    crossing           the arrays that cross between the two places
    early_inputs       the active inputs whose cotangents the loop takes
    late_inputs        those whose cotangents are taken with the gradients of weights
    cotangents_read    of each active input's cotangent, the outputs' it depends on, as
                       far as that is known

and does, with what is of a weight [*shape] each and all else [rows, ...] each,

    weights            adds to the weights what tiles of both passes share
    save_residuals     inputs and known products to outputs and the other residuals, in
                       the forward pass
    joined             known products and the other residuals to all residuals
    pull_to_inputs     to cotangents of the early inputs, and what crosses
    pull_to_weights    what crosses to gradients of the trained weights, and cotangents
                       of the late inputs
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
    """The split form where it is possible, the whole form elsewhere.

    Looked for only when a gradient is taken: some functions have none.
    """
    split = SplitReverse(kernel, flow)
    return split if split.is_possible else WholeReverse(kernel, flow)
