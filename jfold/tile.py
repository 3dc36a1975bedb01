# SPDX-License-Identifier: Apache-2.0
"""One operation on a tile of rows, and its reverse, for any function of the user.

`jax.vjp` of the vmapped function under `jax.checkpoint`, with the policy that keeps
matrix products, returns a pytree. Its leaves that *are* parameters or inputs are at
hand again in the reverse pass; the rest has an axis of rows and is stored. There the
same pytree is made once more, around the stored rows; what is not asked of it then is
dead code, which XLA removes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfold.layers import pack, to_spec
from jfold.program import Operation
from jfold.types import TensorType, TupleType

Arrays = list[Any]


@dataclass(frozen=True)
class Stored:
    """A leaf of a reverse that is stored: the axis of its rows, and one row's spec."""

    axis: int
    row: jax.ShapeDtypeStruct


@dataclass(eq=False)
class Tile:
    """An operation with its parameters; inputs and outputs are flat lists of arrays.

    Attributes:
      types: of its inputs.
      active: per input, whether a gradient flows into it.
    """

    operation: Operation
    params: Any
    types: tuple[TensorType, ...]
    active: tuple[bool, ...]

    @property
    def moves(self) -> bool:
        """Whether a gradient flows through it."""
        return any(self.active)

    def outputs(self, inputs: Sequence[Any], rows: int) -> Arrays:
        """Runs the operation on `rows` rows."""
        call = self._batched(self.operation.layer.call, rows)
        return list(jax.tree.leaves(call(self.params, *self._arguments(inputs))))

    def keep(self, inputs: Sequence[Any], rows: int) -> tuple[Arrays, Arrays]:
        """Outputs, and what the reverse needs, rows first."""
        outputs, reverse = self._linearized(self.params, inputs, rows)
        kept = [
            jnp.moveaxis(leaf, stored.axis, 0)
            for leaf, stored in zip(jax.tree.leaves(reverse), self._leaves, strict=True)
            if stored is not None
        ]
        return outputs, kept

    def reverse(self, inputs: Sequence[Any], kept: Arrays, rows: int) -> Any:
        """Cotangents of outputs to those of trained parameters and active inputs."""
        _, reverse = self._linearized(self.params, inputs, rows)
        leaves, structure = jax.tree.flatten(reverse)
        rest = iter(kept)
        revived = [
            leaf if stored is None else jnp.moveaxis(next(rest), 0, stored.axis)
            for leaf, stored in zip(leaves, self._leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, revived)

    @property
    def stored(self) -> list[jax.ShapeDtypeStruct]:
        """One row of each array that `keep` returns."""
        return [stored.row for stored in self._leaves if stored is not None]

    @functools.cached_property
    def _leaves(self) -> list[Stored | None]:
        two, three = self._shapes(2), self._shapes(3)
        return [_stored(*pair) for pair in zip(two, three, strict=True)]

    def _shapes(self, rows: int) -> list[jax.ShapeDtypeStruct | None]:
        """Of each leaf of the reverse, its spec, or `None` if it is at hand."""
        found: list[jax.ShapeDtypeStruct | None] = []

        def look(params: Any, inputs: Arrays) -> None:
            _, reverse = self._linearized(params, inputs, rows)
            known = {id(x) for x in jax.tree.leaves((params, inputs))}
            for leaf in jax.tree.leaves(reverse):
                spec = jax.eval_shape(jnp.asarray, leaf)
                found.append(None if id(leaf) in known else spec)

        jax.eval_shape(look, self.params, [to_spec(t, rows) for t in self.types])
        return found

    def _linearized(
        self, params: Any, inputs: Sequence[Any], rows: int
    ) -> tuple[Arrays, Any]:
        policy = jax.checkpoint_policies.dots_saveable
        layer = self.operation.layer
        call = jax.checkpoint(layer.call, policy=policy, prevent_cse=False)
        call = self._batched(call, rows)
        trained, rest = partition(params)
        moving = [x for x, active in zip(inputs, self.active, strict=True) if active]

        def outputs(trained: Arrays, moving: Arrays) -> Arrays:
            moved = iter(moving)
            given = [
                next(moved) if active else x
                for x, active in zip(inputs, self.active, strict=True)
            ]
            joined = combine(trained, rest, params)
            return list(jax.tree.leaves(call(joined, *self._arguments(given))))

        made, reverse = jax.vjp(outputs, trained, moving)
        return made, reverse

    def _arguments(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        packed = pack(TupleType(self.operation.arguments), list(inputs))
        return tuple(packed)

    def _batched(self, call: Callable[..., Any], rows: int) -> Callable[..., Any]:
        if self.operation.layer.batched:
            return call
        axes = (None, *(0 for _ in self.operation.arguments))
        return jax.vmap(call, axes, axis_size=rows)


def _stored(two: Any, three: Any) -> Stored | None:
    """What differs between two and three rows has rows, at the axis that differs."""
    if two is None:
        return None
    pairs = zip(two.shape, three.shape, strict=True)
    axes = [axis for axis, (a, b) in enumerate(pairs) if a != b]
    if len(axes) != 1:
        return None
    row = np.delete(two.shape, axes[0]).tolist()
    return Stored(axes[0], jax.eval_shape(lambda: jnp.zeros(row, two.dtype)))


# ---- parameters: what is trained, and the rest ---------------------------------------


def is_trained(x: Any) -> bool:
    """Whether a parameter has a gradient; integers have none."""
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def partition(params: Any) -> tuple[Arrays, Arrays]:
    """The leaves that are trained, and the others."""
    leaves = jax.tree.leaves(params)
    trained = [x for x in leaves if is_trained(x)]
    return trained, [x for x in leaves if not is_trained(x)]


def combine(trained: Arrays, rest: Arrays, params: Any) -> Any:
    """The inverse of `partition`, in the structure of `params`."""
    leaves, structure = jax.tree.flatten(params)
    parts = {True: iter(trained), False: iter(rest)}
    return jax.tree.unflatten(structure, [next(parts[is_trained(x)]) for x in leaves])
