# SPDX-License-Identifier: Apache-2.0
"""Functions with a reverse of their own that have a forward mode as well.

`jax.custom_vjp` refuses forward mode, and a loop of unknown length has no reverse but
one that is written out. Here it is up to what is asked for:

    jvp, linearize     outputs; then tangents by JAX's forward mode
    vjp, grad          outputs and what is saved; then cotangents by the reverse

Both may be differentiated again, which takes no reverse of a reverse: as second
derivatives are symmetric, what a cotangent of gradients gives is the derivative of the
gradients along it.
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
    combine,
    partition,
    refuse,
    sparse,
    spread,
    tangents_of,
)

if TYPE_CHECKING:
    from chex import ArrayTree


@dataclass(frozen=True, eq=False)
class CustomDerivatives:
    """A function of arrays, with a reverse of its own, differentiable in both modes.

    Attributes:
      run: arguments to outputs.
      save: arguments to outputs and, as a pytree, what the reverse is to know.
      pull: arguments, what was saved and cotangents of the outputs to cotangents of the
        arguments.
      check: takes the tangents of the arguments; refuses what `pull` would drop.
    """

    run: Callable[[Arrays], Arrays]
    save: Callable[[Arrays], tuple[Arrays, Any]]
    pull: Callable[[Arrays, Any, MaybeZeros], MaybeZeros]
    check: Callable[[MaybeZeros], None] = lambda tangents: None

    def __call__(self, given: Arrays) -> Arrays:
        """Outputs [*shape each] of arguments [*shape each]."""

        def derived(given: Arrays, tangents: MaybeZeros) -> Derived:
            self.check(tangents)
            outputs, saved = self._save(given)
            return outputs, *self._reverse(len(outputs), given, saved)

        made: Arrays = _differentiable(self.run, derived)(given)
        return made

    def _save(self, given: Arrays) -> tuple[Arrays, Any]:
        """As `save` [*shape each], differentiable: what is saved in forward mode alone.
        In reverse mode all goes by way of the arguments, of which it was made."""

        # By itself again: so there is a derivative of any order in forward mode, though
        # each is made only when it is asked for.
        def derived(given: Arrays, _: MaybeZeros) -> Derived:
            made = self._save(given)
            return made, *self._reverse(len(made[0]), given, made[1])

        made: tuple[Arrays, Any] = _differentiable(self.save, derived)(given)
        return made

    def _reverse(
        self, outputs: int, given: Arrays, saved: ArrayTree
    ) -> tuple[Reverse, Arrays]:
        """The reverse of so many outputs, and what it takes for known [*shape each]."""
        leaves, structure = jax.tree.flatten(saved)
        count = len(given)

        # What was saved goes with the arguments as known, for a rule may close over
        # nothing that is traced; what is beyond the outputs are cotangents of it.
        def pull(known: Arrays, cotangents: MaybeZeros) -> MaybeZeros:
            """Cotangents of what is known [*shape each]."""
            saved = jax.tree.unflatten(structure, known[count:])
            return self._pull(known[:count], saved, cotangents[:outputs])

        def again(
            known: Arrays, along: MaybeZeros, cotangents: MaybeZeros
        ) -> MaybeZeros:
            """As of `_second` [*shape each]."""
            given, moving = known[:count], along[:count]
            return self._second(given, moving, cotangents[:outputs])[1]

        return Reverse(pull, again), [*given, *leaves]

    def _pull(
        self, given: Arrays, saved: ArrayTree, cotangents: MaybeZeros
    ) -> MaybeZeros:
        """As `pull` [*shape each], differentiable."""
        known, structure = jax.tree.flatten((given, cotangents, saved))

        def pull(known: Arrays) -> MaybeZeros:
            given, cotangents, saved = jax.tree.unflatten(structure, known)
            return list(self.pull(given, saved, cotangents))

        def derived(known: Arrays, _: MaybeZeros) -> Derived:
            made = pulling(known)
            shape = jax.tree.structure(made)

            # The reverse of the reverse: with f the function and u the cotangents, pull
            # gives J(x)' u. Along v that has the derivative, for the arguments, of
            # (J(x)' u) v = u' (J(x) v): forward mode over the reverse, since second
            # derivatives are symmetric; and for u simply J(x) v.
            def back(known: Arrays, along: MaybeZeros) -> MaybeZeros:
                given, cotangents, _ = jax.tree.unflatten(structure, known)
                along = jax.tree.unflatten(shape, along)
                outputs, found = self._second(given, along, cotangents)
                live = [x is not None for x in cotangents]
                return [*found, *partition(outputs, live)]

            return made, Reverse(back, refuse), known

        pulling = _differentiable(pull, derived)
        made: MaybeZeros = pulling(known)
        return made

    def _second(
        self, given: Arrays, along: MaybeZeros, cotangents: MaybeZeros
    ) -> tuple[MaybeZeros, MaybeZeros]:
        """The derivatives of the outputs, and of what `pull` makes of cotangents, along
        tangents of the arguments [*shape each]; differentiable in forward mode."""
        known, structure = jax.tree.flatten((given, along, cotangents))
        places = [x is not None for x in along]

        def second(known: Arrays) -> tuple[MaybeZeros, MaybeZeros]:
            given, along, cotangents = jax.tree.unflatten(structure, known)

            def both(moving: Arrays) -> tuple[Arrays, MaybeZeros]:
                arguments = combine(given, spread(moving, places))
                outputs, saved = self.save(arguments)
                return outputs, list(self.pull(arguments, saved, cotangents))

            primals, tangents = partition(given, places), partition(along, places)
            outputs, found = jax.jvp(both, (primals,), (tangents,))[1]
            return list(map(sparse, outputs)), found

        def derived(known: Arrays, _: MaybeZeros) -> Derived:
            return seconds(known), Reverse(refuse, refuse), known

        seconds = _differentiable(second, derived)
        made: tuple[MaybeZeros, MaybeZeros] = seconds(known)
        return made


# What a function makes, a reverse of it, and what that takes for known: the arguments
# and maybe more.
Derived: TypeAlias = tuple[Any, Reverse, Arrays]


def _differentiable(
    function: Callable[[Arrays], Any], derived: Callable[[Arrays, MaybeZeros], Derived]
) -> Callable[[Arrays], Any]:
    """A function of arrays [*shape each] to a pytree, with its derivative.

    Args:
      derived: takes the arguments and their tangents.
    """
    # A rule for forward mode serves both: its tangents are of a primitive that knows
    # its own transpose.
    made = jax.custom_jvp(lambda given: xla.tied(function(given), given))

    def rule(primals: tuple[Arrays], tangents: tuple[Any]) -> tuple[Any, Any]:
        (given,), moving = primals, list(map(sparse, tangents[0]))
        outputs, reverse, known = derived(given, moving)
        leaves, structure = jax.tree.flatten(outputs)
        count = len(given)  # JAX keeps `flat`, which may not keep what is traced

        def flat(known: Arrays) -> Arrays:
            return jax.tree.leaves(function(known[:count]))

        found = tangents_of(flat, reverse, known, moving, leaves)
        pairs = zip(found, leaves, strict=True)
        zero = functools.partial(zero_from_primal, symbolic_zeros=True)
        filled = [zero(x) if t is None else t for t, x in pairs]
        return outputs, jax.tree.unflatten(structure, filled)

    made.defjvp(rule, symbolic_zeros=True)
    return made
