# SPDX-License-Identifier: Apache-2.0
"""The reverse of a kernel in one piece, run both in and after the loop.

It serves functions whose reverse cannot be split: loops or conditionals that read both
weights and inputs. In the loop the gradients of weights are not used, and after it the
cotangents of inputs: XLA drops both as dead code.

In shapes, `rows` counts the rows of a tile or chunk, and `*shape` is that of one value
or weight.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive

from jfold.base import jaxprs
from jfold.base.arrays import Arrays, Spec, Specs, one_row, row_axis, spec_of
from jfold.base.memo import memoized
from jfold.device import fixed_order
from jfold.device.kernel import Kernel, Products, Weights
from jfold.device.kernel_reverse import Activity, Rows, SplitReverse, Stash
from jfold.device.linear import partition, replace_list

# A map from cotangents of outputs to cotangents of weights and inputs: the result of
# `jax.vjp`, a pytree.
Pullback: TypeAlias = Callable[[Arrays], tuple[Arrays, Arrays]]
Reverse: TypeAlias = 'SplitReverse | WholeReverse'


@memoized
def make_reverse(kernel: Kernel, flow: Activity) -> Reverse:
    """Return a kernel's reverse for `flow`: in two halves if possible, else one piece.

    Raises:
      Exception: whatever JAX raises of a function that has no gradient.
    """
    split = SplitReverse(kernel, flow)
    return split if split.is_possible else WholeReverse(kernel, flow)


@dataclass(frozen=True, eq=False)
class WholeReverse:
    """The reverse of a kernel in one piece, the pytree that `jax.vjp` returns.

    Under `jax.checkpoint`, its leaves are weights and inputs, which are at hand in the
    reverse pass, and products, which are stored. There are no stashes.
    """

    crossing: ClassVar[Sequence[Stash]] = ()
    late_inputs: ClassVar[tuple[int, ...]] = ()
    products_read: ClassVar[tuple[int, ...]] = ()
    hoists: ClassVar[bool] = False
    kernel: Kernel
    flow: Activity

    @property
    def early_inputs(self) -> tuple[int, ...]:
        """The numbers of all inputs that have a cotangent."""
        return tuple(self.flow.places)

    @property
    def cotangents_read(self) -> dict[int, set[int]]:
        """The outputs known to be needed for the cotangent of each active input: none.

        So the cotangent is written only after the cotangents of all outputs are read.
        """
        return {a: set() for a in self.flow.places}

    def residuals(self, known: Collection[int] = ()) -> Specs:
        """Return the spec of a row of each stored leaf of the reverse.

        No product is computed before the loop, so `known` is empty.
        """
        pairs = zip(self._leaves(2), self._axes, strict=True)
        return [one_row(x, a) for x, a in pairs if x is not None and a is not None]

    def weights(self, arrays: Arrays) -> Weights:
        """Bundle `arrays`, weights [*shape], with transposes that `forward` reads."""
        return self.kernel.weights(arrays)

    def save_residuals(
        self, weights: Weights, inputs: Arrays, rows: int, known: Products
    ) -> tuple[Arrays, Arrays]:
        """Run the kernel by `jax.vjp`; return outputs, residuals; `known` is empty."""
        real = self.kernel.all_real(rows)
        outputs, pullback = self._linearized(weights.arrays, inputs, real)
        pairs = zip(jax.tree.leaves(pullback), self._axes, strict=True)
        return outputs, [jnp.moveaxis(x, a, 0) for x, a in pairs if a is not None]

    def pull_to_inputs(self, rows: Rows) -> tuple[Arrays, Arrays]:
        """Return cotangents of inputs, each [rows, *shape], and no stashes: `[]`."""
        return self._pulled(rows)[1], []

    def pull_to_weights(self, rows: Rows, crossing: Arrays) -> tuple[Arrays, Arrays]:
        """Return weights' gradients [*shape], no cotangents; `crossing` is empty."""
        return self._pulled(rows)[0], []

    def _pulled(self, rows: Rows) -> tuple[Arrays, Arrays]:
        """Run the reverse; return gradients of weights and cotangents of inputs."""

        def pulled(rows: Rows) -> Arrays:
            weights, inputs, real = rows.weights.arrays, rows.inputs, rows.real
            _, pullback = self._linearized(weights, inputs, real)
            # Stored leaves replace those just made, whose computation so becomes dead
            # code.
            leaves, structure = jax.tree.flatten(pullback)
            remaining = iter(rows.residuals)
            revived = [
                leaf if axis is None else jnp.moveaxis(next(remaining), 0, axis)
                for leaf, axis in zip(leaves, self._axes, strict=True)
            ]
            pull: Pullback = jax.tree.unflatten(structure, revived)
            return list(itertools.chain(*pull(rows.cotangents)))

        ordered = self.kernel.reproducible
        results = fixed_order.in_order(pulled, rows) if ordered else pulled(rows)
        count = self.kernel.trained_count
        return results[:count], results[count:]

    @functools.cached_property
    def _axes(self) -> list[int | None]:
        """The axis of rows of each leaf of the reverse; `None` if not stored."""
        pairs = zip(self._leaves(2), self._leaves(3), strict=True)
        return [None if a is None or b is None else row_axis(a, b) for a, b in pairs]

    def _leaves(self, rows: int) -> list[Spec | None]:
        """Return the specs of leaves of the reverse on `rows` rows; `None` if at hand.

        A weight, input or mask is at hand, and not stored.
        """
        specs: list[Spec | None] = []

        def look(weights: Arrays, inputs: Arrays, real: jax.Array) -> None:
            _, pullback = self._linearized(weights, inputs, real)
            # Leaves at hand are recognized by identity, not by equality.
            at_hand = {id(x) for x in jax.tree.leaves((weights, inputs, real))}
            for leaf in jax.tree.leaves(pullback):
                specs.append(None if id(leaf) in at_hand else spec_of(leaf))

        real = self.kernel.spec((rows,), bool)
        weights, inputs = self.kernel.weight_specs, self.kernel.inputs(rows)
        jax.eval_shape(look, weights, inputs, real)
        return specs

    def _linearized(
        self, weights: Arrays, inputs: Arrays, real: jax.Array
    ) -> tuple[Arrays, Pullback]:
        """Return all outputs, each [rows, *shape], and their reverse.

        The reverse takes cotangents of those outputs alone that have one (`flow.live`).
        Rows that are not `real` [rows] do not count in gradients of weights.
        """
        forward, end = self.kernel.forward(len(real)), self.kernel.trained_count

        # Products are saved; the pullback computes all else again.
        @functools.partial(jax.checkpoint, policy=_is_saved, prevent_cse=False)
        def run(*arguments: jax.Array) -> Arrays:
            return jaxprs.evaluate(forward, arguments, self.kernel.rules)

        # All outputs are computed; those without a cotangent have no reverse.
        def outputs(trained: Arrays, moving: Arrays) -> tuple[Arrays, Arrays]:
            all_inputs = replace_list(inputs, moving, self.flow.active)
            results = run(*trained, *weights[end:], *all_inputs, real)
            return [results[k] for k in self.flow.live], results

        moving = partition(inputs, self.flow.active)
        _, pullback, results = jax.vjp(outputs, weights[:end], moving, has_aux=True)
        return results, pullback


def _is_saved(primitive: Primitive, *operands: Any, **params: Any) -> bool:
    """Return whether an equation is a product of real numbers: a policy of JAX.

    JAX fails to save complex ones: it rounds what it saves, as if it were real.
    """
    products = jax.checkpoint_policies.dots_saveable
    is_complex = any(jnp.issubdtype(x.dtype, jnp.complexfloating) for x in operands)
    return products(primitive, *operands, **params) and not is_complex
