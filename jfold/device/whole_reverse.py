# SPDX-License-Identifier: Apache-2.0
"""The whole reverse of a kernel, run in both places.

XLA frees each place from what it is not asked for. It serves functions whose reverse
cannot be split: with loops or conditionals in which weights and inputs meet.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import jax
import jax.numpy as jnp

from jfold.base import jaxprs
from jfold.base.arrays import Arrays, Spec, Specs, one_row, row_axis, spec_of
from jfold.device import fixed_order
from jfold.device.activity import Activity, Rows, Stash
from jfold.device.kernel import Kernel, Products, Weights

# A pytree, too: `jax.vjp` returns it.
Pullback: TypeAlias = Callable[[Arrays], tuple[Arrays, Arrays]]


@dataclass(frozen=True, eq=False)
class WholeReverse:
    """The reverse as the pytree that `jax.vjp` returns; see `Reverse`.

    Under `jax.checkpoint`, its leaves are weights and inputs, which are at hand in the
    reverse pass, and products, which are stored. Nothing crosses.
    """

    crossing: ClassVar[Sequence[Stash]] = ()
    late_inputs: ClassVar[tuple[int, ...]] = ()
    products_read: ClassVar[tuple[int, ...]] = ()
    hoists: ClassVar[bool] = False
    kernel: Kernel
    flow: Activity

    @property
    def early_inputs(self) -> tuple[int, ...]:
        """All active ones."""
        return tuple(self.flow.places)

    @property
    def cotangents_read(self) -> dict[int, set[int]]:
        """Nothing is known."""
        return {a: set() for a in self.flow.places}

    def residuals(self, known: Collection[int] = ()) -> Specs:
        """The leaves that are not at hand."""
        pairs = zip(self._leaves(2), self._axes, strict=True)
        return [one_row(x, a) for x, a in pairs if x is not None and a is not None]

    def weights(self, arrays: Arrays) -> Weights:
        """Arrays [*shape each]: nothing is known of what the reverse reads."""
        return self.kernel.weights(arrays)

    def save_residuals(
        self, weights: Weights, inputs: Arrays, rows: int, known: Products
    ) -> tuple[Arrays, Arrays]:
        """Outputs, and the leaves to be stored [rows, *shape] each."""
        real = self.kernel.all_real(rows)
        outputs, pullback = self._linearized(weights.arrays, inputs, real, rows)
        pairs = zip(jax.tree.leaves(pullback), self._axes, strict=True)
        return outputs, [jnp.moveaxis(x, a, 0) for x, a in pairs if a is not None]

    def joined(self, known: Products, own: Arrays) -> Arrays:
        """The leaves that are not at hand [rows, ...] each."""
        return own

    def pull_to_inputs(self, given: Rows) -> tuple[Arrays, Arrays]:
        """Cotangents of inputs [rows, *shape each], by the whole reverse; what belongs
        to weights is dead code."""
        return self._pulled(given)[1], []

    def pull_to_weights(self, given: Rows, crossing: Arrays) -> tuple[Arrays, Arrays]:
        """Gradients [*shape each], by the whole reverse, and no cotangents; what
        belongs to inputs alone is dead code."""
        return self._pulled(given)[0], []

    def _pulled(self, given: Rows) -> tuple[Arrays, Arrays]:
        """Gradients of trained weights [*shape each], and cotangents of active inputs
        [rows, *shape each]."""
        if not self.kernel.reproducible:
            return self._revived(given)(given.cotangents)

        def pulled(given: Rows) -> Arrays:
            return list(itertools.chain(*self._revived(given)(given.cotangents)))

        made, count = fixed_order.in_order(pulled, given), self.kernel.trained_count
        return made[:count], made[count:]

    def _revived(self, given: Rows) -> Pullback:
        """The reverse around what was stored of it."""
        _, pullback = self._linearized(
            given.weights.arrays, given.inputs, given.real, given.count
        )
        # The leaves just made are replaced by stored ones, and so are dead code.
        leaves, structure = jax.tree.flatten(pullback)
        rest = iter(given.residuals)
        revived = [
            leaf if axis is None else jnp.moveaxis(next(rest), 0, axis)
            for leaf, axis in zip(leaves, self._axes, strict=True)
        ]
        made: Pullback = jax.tree.unflatten(structure, revived)
        return made

    @functools.cached_property
    def _axes(self) -> list[int | None]:
        """Of each leaf, the row axis if it is to be stored."""
        pairs = zip(self._leaves(2), self._leaves(3), strict=True)
        return [None if a is None or b is None else row_axis(a, b) for a, b in pairs]

    def _leaves(self, rows: int) -> list[Spec | None]:
        """Of each leaf of the reverse, its spec, or `None` if it is at hand."""
        found: list[Spec | None] = []

        def look(weights: Arrays, inputs: Arrays, real: jax.Array) -> None:
            _, pullback = self._linearized(weights, inputs, real, rows)
            # What is at hand is the same object, not one that is equal.
            at_hand = {id(x) for x in jax.tree.leaves((weights, inputs, real))}
            for leaf in jax.tree.leaves(pullback):
                found.append(None if id(leaf) in at_hand else spec_of(leaf))

        *rest, real = self.kernel.row_specs(rows)
        count = self.kernel.weight_count
        jax.eval_shape(look, rest[:count], rest[count:], real)
        return found

    def _linearized(
        self, weights: Arrays, inputs: Arrays, real: jax.Array, rows: int
    ) -> tuple[Arrays, Pullback]:
        """The outputs [rows, *shape] each, and the reverse of those that are live, from
        weights [*shape each], inputs [rows, *shape each] and which are real [rows]."""
        policy = jax.checkpoint_policies.dots_saveable
        forward, end = self.kernel.forward(rows), self.kernel.trained_count

        @functools.partial(jax.checkpoint, policy=policy, prevent_cse=False)
        def run(*arguments: jax.Array) -> Arrays:
            """The outputs [rows, *shape] each."""
            return jaxprs.evaluate(forward, arguments, self.kernel.rules)

        # All outputs are made, those without a cotangent beside the reverse.
        def outputs(trained: Arrays, moving: Arrays) -> tuple[Arrays, Arrays]:
            """Those that are live, and all [rows, *shape] each."""
            given = self.flow.merged(inputs, moving)
            made = run(*trained, *weights[end:], *given, real)
            return [made[k] for k in self.flow.live], made

        _, pullback, made = jax.vjp(
            outputs, list(weights[:end]), self.flow.chosen(inputs), has_aux=True
        )
        return made, pullback
