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

In shapes, `rows` is the number of rows of a tile (neighbouring rows of one level) or of
a chunk (rows of any levels), and `*shape` the shape of one row.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax

from jfold.base.arrays import Arrays, Spec
from jfold.device.kernel import Weights


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rows:
    """The operands of an operation's reverse on some of its rows.

    Attributes:
      weights: the weights, and their transposes for both passes.
      inputs: list of arrays, each [rows, *shape].
      residuals: list of arrays that the forward pass stored or that were recomputed,
        each [rows, ...].
      cotangents: list of arrays, each [rows, *shape], of the outputs that have one.
      real: [rows] bool, whether the row counts in gradients of weights.
    """

    weights: Weights
    inputs: Arrays
    residuals: Arrays
    cotangents: Arrays
    real: jax.Array

    @property
    def count(self) -> int:
        """The number of rows."""
        return int(self.real.shape[0])


@dataclass(frozen=True)
class Activity:
    """The inputs and outputs of an operation that cotangents flow through.

    Attributes:
      live: numbers of the outputs that have a cotangent.
      active: by input, whether its cotangent is computed.
    """

    live: tuple[int, ...]
    active: tuple[bool, ...]

    @property
    def places(self) -> list[int]:
        """The numbers of the active inputs, those whose cotangent is computed."""
        return [a for a, is_active in enumerate(self.active) if is_active]


@dataclass(frozen=True)
class Stash:
    """A value that the reverse loops store for the gradients of weights.

    Attributes:
      row: the spec (shape and dtype) of one row.
      is_linear: whether it depends on the cotangents; a norm of an input does not.
      replaces: number of a residual in whose buffer it is stored, since only
        `pull_to_inputs` reads that residual; `None` if it has a buffer of its own.
    """

    row: Spec
    is_linear: bool
    replaces: int | None
