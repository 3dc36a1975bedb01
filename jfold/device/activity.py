# SPDX-License-Identifier: Apache-2.0
"""The arguments of a kernel's reverse, where cotangents flow, and what is stashed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import jax

from jfold.base.arrays import Arrays, Spec
from jfold.device.kernel import Weights

T = TypeVar('T')


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rows:
    """The arguments of the reverse of a tile or chunk.

    Attributes:
      weights: for both passes.
      inputs: [rows, *shape] each.
      residuals: saved by the forward pass [rows, ...] each.
      cotangents: of the live outputs [rows, *shape] each.
      real: [rows] bool, the rows that contribute to gradients of weights.
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
      active: per input, whether it gets one.
    """

    live: tuple[int, ...]
    active: tuple[bool, ...]

    @property
    def places(self) -> list[int]:
        """The numbers of the active inputs."""
        return [a for a, is_active in enumerate(self.active) if is_active]

    def chosen(self, inputs: Sequence[T]) -> list[T]:
        """Return the items of the active inputs, given one item for each input."""
        pairs = zip(inputs, self.active, strict=True)
        return [x for x, is_active in pairs if is_active]

    def merged(self, inputs: Sequence[T], new: Iterable[T]) -> list[T]:
        """Return `inputs` with those of active ones replaced, in order, by `new`."""
        replacements = iter(new)
        pairs = zip(inputs, self.active, strict=True)
        return [next(replacements) if is_active else x for x, is_active in pairs]


@dataclass(frozen=True)
class Stash:
    """A value that the loops of the reverse keep for the gradients of weights.

    Attributes:
      row: the spec of one row.
      is_linear: whether it depends on the cotangents, as a norm does not.
      replaces: number of a residual that `pull_to_inputs` alone reads, whose place it
        takes; `None` if it needs a buffer of its own.
    """

    row: Spec
    is_linear: bool
    replaces: int | None
