# SPDX-License-Identifier: Apache-2.0
"""The derivatives of functions with a written-out reverse, in both modes.

`jax.custom_vjp` refuses forward mode, and a loop of unknown length has no reverse but
one that is written out. Here the mode decides what runs:

    jvp, linearize     outputs; then tangents by JAX's forward mode
    vjp, grad          outputs and residuals; then cotangents by the reverse

Both may be differentiated again, without a reverse of the written-out reverse. Second
derivatives are symmetric, so the pullback of a cotangent v of the gradients is the
derivative of the gradients along v, which forward mode computes.

Arguments and outputs are lists of arrays, each [*shape]; so are tangents and
cotangents, with `None` for zeros.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
from jax.custom_derivatives import zero_from_primal

from jfold.base.arrays import Arrays
from jfold.device import xla
from jfold.device.linear import (
    MaybeZeros,
    Reverse,
    maybe_zero,
    partition,
    refuse,
    replace_list,
    tangents_of,
)

if TYPE_CHECKING:
    from chex import ArrayTree


@dataclass(frozen=True, eq=False)
class CustomDerivatives:
    """A function of arrays with its own reverse, differentiable in both modes.

    Attributes:
      run: maps arguments to outputs.
      save: maps arguments to outputs and residuals, a pytree.
      pull: maps arguments, residuals and cotangents of the outputs to cotangents of the
        arguments.
      check: takes the tangents of the arguments; raises if `pull` would drop one.
    """

    run: Callable[[Arrays], Arrays]
    save: Callable[[Arrays], tuple[Arrays, Any]]
    pull: Callable[[Arrays, Any, MaybeZeros], MaybeZeros]
    check: Callable[[MaybeZeros], None] = lambda tangents: None

    def __call__(self, arguments: Arrays) -> Arrays:
        """Return the outputs, each [*shape], for arguments, each [*shape]."""

        def derived(arguments: Arrays, tangents: MaybeZeros) -> Derived:
            self.check(tangents)
            (outputs, _), reverse, known = self._derived(arguments)
            return outputs, reverse, known

        result: Arrays = differentiable(self.run, derived)(arguments)
        return result

    def _save(self, arguments: Arrays) -> tuple[Arrays, Any]:
        """Run `self.save` as a differentiable function; return outputs and residuals.

        Only forward mode differentiates residuals; reverse mode goes through arguments.
        """
        # `_save` is called in its own rule: so forward mode has derivatives of any
        # order, each traced only when it is asked for.
        saving = differentiable(self.save, lambda x, _: self._derived(x))
        result: tuple[Arrays, Any] = saving(arguments)
        return result

    def _derived(self, arguments: Arrays) -> Derived:
        """Return outputs and residuals, their reverse, and its operands.

        These operands are the arguments and the leaves of the residuals.
        """
        outputs, saved = self._save(arguments)
        leaves, structure = jax.tree.flatten(saved)
        count, live = len(arguments), len(outputs)

        # Residuals are operands beside the arguments, since a rule may not close over
        # traced values. Cotangents behind those of the outputs are of residuals: they
        # are dropped.
        def pull(known: Arrays, cotangents: MaybeZeros) -> MaybeZeros:
            saved = jax.tree.unflatten(structure, known[count:])
            return self._pull(known[:count], saved, cotangents[:live])

        def again(
            known: Arrays, along: MaybeZeros, cotangents: MaybeZeros
        ) -> MaybeZeros:
            arguments, moving = known[:count], along[:count]
            return self._second(arguments, moving, cotangents[:live])[1]

        return (outputs, saved), Reverse(pull, again), [*arguments, *leaves]

    def _pull(
        self, arguments: Arrays, saved: ArrayTree, cotangents: MaybeZeros
    ) -> MaybeZeros:
        """Run `self.pull` differentiably, with residuals `saved`; return cotangents."""
        known, structure = jax.tree.flatten((arguments, cotangents, saved))

        def pull(known: Arrays) -> MaybeZeros:
            arguments, cotangents, saved = jax.tree.unflatten(structure, known)
            return list(self.pull(arguments, saved, cotangents))

        def derived(known: Arrays, _: MaybeZeros) -> Derived:
            result = pulling(known)
            shape = jax.tree.structure(result)

            # The reverse of `pull`. With J the Jacobian at arguments x, `pull` maps
            # cotangents u to J(x)' u. The pullback of this map takes v to cotangents of
            # u, J(x) v, and to cotangents of x, the gradient of u' J(x) v. Second
            # derivatives are symmetric, so the latter is also the derivative of J(x)' u
            # along v, which forward mode gives.
            def back(known: Arrays, along: MaybeZeros) -> MaybeZeros:
                arguments, cotangents, _ = jax.tree.unflatten(structure, known)
                along = jax.tree.unflatten(shape, along)
                outputs, gradients = self._second(arguments, along, cotangents)
                live = [x is not None for x in cotangents]
                return [*gradients, *partition(outputs, live)]

            return result, Reverse(back, refuse), known

        pulling = differentiable(pull, derived)
        result: MaybeZeros = pulling(known)
        return result

    def _second(
        self, arguments: Arrays, along: MaybeZeros, cotangents: MaybeZeros
    ) -> tuple[MaybeZeros, MaybeZeros]:
        """Return tangents of outputs and of gradients, for argument tangents `along`.

        The gradients are the result of `pull` for `cotangents`.
        """
        known, structure = jax.tree.flatten((arguments, along, cotangents))
        places = [x is not None for x in along]

        def second(known: Arrays) -> tuple[MaybeZeros, MaybeZeros]:
            arguments, along, cotangents = jax.tree.unflatten(structure, known)

            def both(moving: Arrays) -> tuple[Arrays, MaybeZeros]:
                moved = replace_list(arguments, moving, places)
                outputs, saved = self.save(moved)
                return outputs, list(self.pull(moved, saved, cotangents))

            primals, tangents = partition(arguments, places), partition(along, places)
            outputs, gradients = jax.jvp(both, (primals,), (tangents,))[1]
            return list(map(maybe_zero, outputs)), gradients

        def derived(known: Arrays, _: MaybeZeros) -> Derived:
            return seconds(known), Reverse(refuse, refuse), known

        seconds = differentiable(second, derived)
        result: tuple[MaybeZeros, MaybeZeros] = seconds(known)
        return result


# The results of a function, its reverse, and the operands that the reverse takes beside
# cotangents: the arguments, and maybe residuals.
Derived: TypeAlias = tuple[Any, Reverse, Arrays]


def differentiable(
    function: Callable[[Arrays], Any], derived: Callable[[Arrays, MaybeZeros], Derived]
) -> Callable[[Arrays], Any]:
    """Return `function` with the derivative `derived`, for forward and reverse mode.

    `derived` maps arguments and their tangents to results, the reverse, and the
    operands of the reverse beside cotangents.
    """
    # A rule for forward mode serves both modes: it computes tangents by a primitive of
    # which JAX knows the transpose.
    with_rule = jax.custom_jvp(
        lambda arguments: xla.tie_batching(function(arguments), arguments)
    )

    def rule(primals: tuple[Arrays], tangents: tuple[Any]) -> tuple[Any, Any]:
        (arguments,), moving = primals, list(map(maybe_zero, tangents[0]))
        outputs, reverse, known = derived(arguments, moving)
        leaves, structure = jax.tree.flatten(outputs)
        count = len(arguments)  # JAX keeps `flat`, so it must close over no tracer

        def flat(known: Arrays) -> Arrays:
            return jax.tree.leaves(function(known[:count]))

        output_tangents = tangents_of(flat, reverse, known, moving, leaves)
        pairs = zip(output_tangents, leaves, strict=True)
        zero = functools.partial(zero_from_primal, symbolic_zeros=True)
        filled = [zero(x) if t is None else t for t, x in pairs]
        return outputs, jax.tree.unflatten(structure, filled)

    with_rule.defjvp(rule, symbolic_zeros=True)
    return with_rule
