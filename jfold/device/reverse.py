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
    crossing           one row of each array that crosses between the two places
    linear             of each that crosses, whether it depends on the cotangents, as
                       not all do: a norm may cross, too
    replaced           of each that crosses, a residual that `pull_to_inputs` alone
                       reads, whose place it takes; `None` if it needs its own
    cotangents_read    of each input's cotangent, the outputs' it depends on, as far as
                       that is known
"""

from __future__ import annotations

from typing import TypeAlias, cast

from jfold.device.kernel import Kernel
from jfold.device.split_reverse import SplitReverse
from jfold.device.whole_reverse import WholeReverse

Reverse: TypeAlias = SplitReverse | WholeReverse


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
