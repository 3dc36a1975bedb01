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
`WholeReverse` all in either, for functions whose reverse cannot be split. Either says

    residuals          one row of each array that `save_residuals` returns
    crossing           the arrays that cross between the two places
    cotangents_read    of each input's cotangent, the outputs' it depends on, as far as
                       that is known

and does, with what is of a weight [*shape] each and all else [rows, ...] each,

    weights            adds to the weights what tiles of both passes share
    save_residuals     inputs to outputs and residuals, in the forward pass
    pull_to_inputs     to cotangents of the active inputs, and what crosses
    pull_to_weights    what crosses to gradients of the trained weights
"""

from __future__ import annotations

from typing import TypeAlias

from jfold.device.kernel import Kernel
from jfold.device.rows import Flow
from jfold.device.split_reverse import SplitReverse
from jfold.device.whole_reverse import WholeReverse
from jfold.kept import kept

Reverse: TypeAlias = SplitReverse | WholeReverse


@kept
def make_reverse(kernel: Kernel, flow: Flow) -> Reverse:
    """The split form where it is possible, the whole form elsewhere.

    Looked for only when a gradient is taken: some functions have none.
    """
    split = SplitReverse(kernel, flow)
    return split if split.is_possible else WholeReverse(kernel, flow)
