# SPDX-License-Identifier: Apache-2.0
"""What the reverse of a kernel is given: rows, and where cotangents flow; what crosses
in it."""

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
    """What the reverse of a tile or chunk is given.

    Attributes:
      weights: for both passes.
      inputs: [rows, *shape] each.
      residuals: what was saved of these rows [rows, ...] each.
      cotangents: of the live outputs [rows, *shape] each.
      real: [rows] bool, whose contribution to gradients of weights counts.
    """

    weights: Weights
    inputs: Arrays
    residuals: Arrays
    cotangents: Arrays
    real: jax.Array

    @property
    def count(self) -> int:
        """How many rows there are."""
        return int(self.real.shape[0])


@dataclass(frozen=True)
class Activity:
    """How cotangents flow through an operation.

    Attributes:
      live: the outputs that have a cotangent.
      active: per input, whether it gets one.
    """

    live: tuple[int, ...]
    active: tuple[bool, ...]

    @property
    def places(self) -> list[int]:
        """The numbers of the active inputs."""
        return [a for a, is_active in enumerate(self.active) if is_active]

    def chosen(self, inputs: Sequence[T]) -> list[T]:
        """The active ones, of what there is of each input."""
        pairs = zip(inputs, self.active, strict=True)
        return [x for x, is_active in pairs if is_active]

    def merged(self, inputs: Sequence[T], new: Iterable[T]) -> list[T]:
        """What there is of each input, of the active ones from `new`."""
        rest = iter(new)
        pairs = zip(inputs, self.active, strict=True)
        return [next(rest) if is_active else x for x, is_active in pairs]


@dataclass(frozen=True)
class Stash:
    """What the reverse in the loops hands on to the gradients of weights.

    Attributes:
      row: one of the array.
      is_linear: whether it depends on the cotangents, as a norm that crosses does not.
      replaces: a residual that `pull_to_inputs` alone reads, whose place it takes;
        `None` if it needs its own.
    """

    row: Spec
    is_linear: bool
    replaces: int | None
