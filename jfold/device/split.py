# SPDX-License-Identifier: Apache-2.0
"""The split of a jaxpr in two halves, by dependence.

    cotangents ──▶ early half ──▶ early outputs: cotangents of inputs, in the loop
    rows, weights ──▶  │
                       ▼ stashes: stored, one row a node
    rows, weights ──▶ late half ──▶ late outputs: gradients of weights, and cotangents
                                    of inputs that no loop waits for, after the loop

An equation that both halves need runs in the early one, and its result is stashed,
unless it is cheaper to run it twice.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jax.extend import core

from jfold.base import jaxprs
from jfold.base.arrays import Arrays
from jfold.device import xla

if TYPE_CHECKING:
    from jfold.base.jaxprs import Atom, Environment, Rules


@dataclass(frozen=True, eq=False)
class Split:
    """A jaxpr in two halves: the equations that its early outputs need, and the rest.

    Attributes:
      early, late: the equations of each half, in order.
      crossing: stashes, variables that the early half computes and the late one reads.
      linear: variables that depend on the cotangents, which are the last arguments.
    """

    closed: core.ClosedJaxpr
    early: list[core.JaxprEqn]
    late: list[core.JaxprEqn]
    early_outputs: list[Atom]
    late_outputs: list[Atom]
    crossing: list[core.Var]
    linear: set[core.Var]

    def run_early(
        self, arguments: Arrays, known: Environment, rules: Rules
    ) -> tuple[Arrays, Arrays]:
        """Run the early half on the arguments of the jaxpr; return outputs and stashes.

        Values in `known` are not computed again; `rules` has, by primitive, a function
        that runs in place of its equations.
        """
        wanted = [*self.early_outputs, *self.crossing]
        env = jaxprs.environment(self.closed, arguments) | dict(known)
        values = jaxprs.run(self.early, env, wanted, rules)
        count = len(self.early_outputs)
        return values[:count], values[count:]

    def run_late(self, arguments: Arrays, crossing: Arrays, rules: Rules) -> Arrays:
        """Run the late half on the arguments of the jaxpr and on stashes."""
        env = jaxprs.environment(self.closed, arguments)
        env |= zip(self.crossing, crossing, strict=True)
        return jaxprs.run(self.late, env, self.late_outputs, rules)

    @functools.cached_property
    def read(self) -> set[core.Var]:
        """The variables that one of the halves reads."""
        return self._read_late.union(jaxprs.read_by(self.early, self.early_outputs))

    @functools.cached_property
    def _read_late(self) -> set[core.Var]:
        return set(jaxprs.read_by(self.late, self.late_outputs))

    def is_read_before(self, argument: core.Var, variable: core.Var) -> bool:
        """Return whether `variable` is computed after all reads of an argument.

        Then the variable, of the early half, may take the argument's place.
        """
        outputs = [*self.early_outputs, *self.crossing]
        return argument not in self._read_late and xla.is_read_before(
            argument, variable, self.early, outputs
        )


def split(
    closed: core.ClosedJaxpr, late: Sequence[int], fixed: int, cotangents: int
) -> Split:
    """Split a jaxpr in two halves, for its early and for its late outputs.

    Args:
      late: the numbers of the late outputs; all others are early.
      fixed: number of the arguments without rows, which come first. Equations on these
        alone run in both halves, and so do those that cost less than storing results.
      cotangents: number of the arguments that are cotangents, which come last.
    """
    jaxpr, _ = jaxprs.open_jaxpr(closed)
    first = len(jaxpr.invars) - cotangents
    _, pulled = jaxprs.reachable(jaxpr, jaxpr.invars[first:])
    late_outputs = [jaxpr.outvars[i] for i in late]
    early_outputs = [v for i, v in enumerate(jaxpr.outvars) if i not in late]
    # Outputs that the loop wants are early, with all equations that they need.
    early = jaxprs.slice_for(jaxpr.eqns, early_outputs)
    # The results of these equations may be stashed if they have rows, unless they are
    # cheaper to compute twice.
    varying, _ = jaxprs.reachable(jaxpr, jaxpr.invars[fixed:])
    repeated = _repeated(jaxpr, pulled)
    shared = {e for e in early if e in varying and e not in repeated}
    needed = jaxprs.slice_for(jaxpr.eqns, late_outputs)
    late_steps = [e for e in needed if e not in shared]
    computed = {v for e in shared for v in e.outvars}
    read = jaxprs.read_by(late_steps, late_outputs)
    crossing = list(dict.fromkeys(v for v in read if v in computed))
    # Equations that `late_steps` need only through stashes drop out.
    late_steps = jaxprs.slice_for(late_steps, late_outputs, known=computed)
    outputs = early_outputs, late_outputs
    return Split(closed, early, late_steps, *outputs, crossing, pulled)


# Functions that cost less than storing and reading their results.
_CHEAP = xla.REPEATED | frozenset(
    'acos acosh asin asinh atan atan2 atanh cbrt cos cosh div erf erf_inv erfc exp '
    'exp2 expm1 log log1p logistic pow reduce_and reduce_max reduce_min reduce_or '
    'reduce_sum rem round rsqrt sin sinh sqrt tan tanh'.split()
)


def _repeated(jaxpr: core.Jaxpr, pulled: set[core.Var]) -> set[core.JaxprEqn]:
    """Return the equations that are cheaper to run in both halves than to store.

    They read only arguments and results of other such equations. They are all moves of
    data, and cheap equations that depend on no cotangent (no variable in `pulled`).
    """
    at_hand, repeated = {*jaxpr.invars, *jaxpr.constvars}, set[core.JaxprEqn]()
    for equation in jaxpr.eqns:
        inputs = jaxprs.variables(equation.invars)
        # Of equations on cotangents only moves of data are repeated: with all cheap
        # ones most of the reverse would run twice.
        chosen = jaxprs.MOVES if pulled.intersection(inputs) else _CHEAP
        if equation.primitive.name in chosen and at_hand.issuperset(inputs):
            at_hand.update(equation.outvars)
            repeated.add(equation)
    return repeated
