# SPDX-License-Identifier: Apache-2.0
"""The two stages of a layer's function: equations on parameters alone, and the rest.

The early stage, of equations on parameters alone, runs once a training step, and so
does its reverse:

    parameters ─▶ early ─▶ frontier: the weights of a kernel ─┐
                                                              ▼
    inputs ─────────────────────────────────────────────────▶ late, in every tile

In the late stage, a user's reverse rules drop the gradients of spare (padding) rows:
such a rule need not return zero for a cotangent of zero. A rule that is not linear in
the cotangent must see rows one by one, also in a function of whole tiles.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import jax
import numpy as np
from jax import Array
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero
from jax.extend import core

from jfold.base import jaxprs
from jfold.base.arrays import Arrays, cast_varying, masked, varying_axes
from jfold.base.errors import naming_layer
from jfold.base.tracebacks import api_boundary
from jfold.device import xla
from jfold.device.analyses import is_linear
from jfold.device.derivatives import CustomDerivatives
from jfold.device.fixed_order import in_order
from jfold.device.linear import MaybeZeros

Cotangent: TypeAlias = Array | SymbolicZero
if TYPE_CHECKING:
    from jfold.base.jaxprs import Rules

    Pull: TypeAlias = Callable[[Sequence[Array]], tuple[dict[int, Array]]]
    Residuals: TypeAlias = tuple[Array, Arrays, dict[int, Array]]


# Names of primitives that copy what they move.
COPIES = frozenset('concatenate rev slice split stack unstack'.split())


@dataclass(frozen=True, eq=False)
class Hoisted:
    """A jaxpr split in two: equations on its first arguments alone, and all others.

    Attributes:
      early: equations on the first arguments alone; those that only move data are left
        out, unless they copy for a product, or early equations read their results.
      frontier: variables that the late stage reads of the early one, floats first:
        arguments as they are, results, and constants that an enclosing transformation
        traces.
      varying: variables that depend on the other arguments, or on the number of rows.
      name: the name of the layer, for messages.
    """

    closed: core.ClosedJaxpr
    early: list[core.JaxprEqn]
    late: list[core.JaxprEqn]
    frontier: list[core.Var]
    varying: set[core.Var]
    name: str

    def run_early(self, *arguments: Array, reproducible: bool = False) -> Arrays:
        """Run the early stage on `arguments`; return values [*shape] of `frontier`.

        The reverse runs only for results that have a cotangent. JAX's own would run
        rules on zeros for the others, and refuse loops without a reverse. Sums have a
        fixed order if `reproducible`.
        """
        # A constant that is traced outside may have a gradient there. JAX would refuse
        # it as a constant of the rule below, so it is one of the rule's arguments.
        jaxpr, _ = jaxprs.open_jaxpr(self.closed)
        known = jaxprs.environment(self.closed, (), strict=False)
        traced = [v for v, x in known.items() if isinstance(x, jax.core.Tracer)]
        inputs = dict(zip(jaxpr.invars, arguments, strict=False))
        inputs |= {v: known.pop(v) for v in traced}
        if not self.early:
            return jaxprs.run((), inputs, self.frontier)

        def values(operands: Sequence[Array], wanted: Sequence[core.Var]) -> Arrays:
            env = known | dict(zip(names, operands, strict=True))
            return jaxprs.run(jaxprs.slice_for(self.early, wanted), env, wanted)

        names, run = tuple(inputs), in_order if reproducible else lambda f, x: f(x)

        def forward(operands: Arrays) -> Arrays:
            return run(lambda x: values(x, self.frontier), operands)

        @api_boundary
        def pull(operands: Arrays, saved: None, cotangents: MaybeZeros) -> MaybeZeros:
            pairs = zip(self.frontier, cotangents, strict=True)
            used = {v: x for v, x in pairs if x is not None}
            moving = [i for i, x in enumerate(operands) if jaxprs.is_inexact(x)]
            with naming_layer(self.name):
                reverse = _pull(lambda x: values(x, tuple(used)), operands, moving)

                def of_moving(cotangents: Arrays) -> Arrays:
                    return list(reverse(cotangents)[0].values())

                pulled = run(of_moving, list(used.values()))
            by_operand = dict(zip(moving, pulled, strict=True))
            return list(map(by_operand.get, range(len(operands))))

        function = CustomDerivatives(forward, lambda x: (forward(x), None), pull)
        return function(list(inputs.values()))

    def run_late(
        self, frontier: Iterable[Array], arguments: Sequence[Array], rules: Rules
    ) -> Arrays:
        """Run the late stage; return the outputs, each [*shape].

        Args:
          frontier: values of the variables of the frontier.
          arguments: the inputs, which are the last arguments of the jaxpr.
          rules: by primitive, a function that runs in place of its equations.
        """
        jaxpr, _ = jaxprs.open_jaxpr(self.closed)
        env = jaxprs.environment(self.closed, (), strict=False)
        first = len(jaxpr.invars) - len(arguments)
        env |= zip(jaxpr.invars[first:], arguments, strict=True)
        env |= zip(self.frontier, frontier, strict=True)
        return jaxprs.run(self.late, env, jaxpr.outvars, rules)

    def dropping(self, real: Array) -> Rules:
        """Return rules of the late stage, to drop gradients of padding rows.

        Args:
          real: [] bool, whether the one row is real; or [rows] bool for functions of
            whole tiles.
        """

        def rule(equation: core.JaxprEqn, operands: Arrays) -> Arrays:
            if not _has_own_reverse(equation):
                return jaxprs.bind(equation, operands)
            of_rows = _are_in(self.varying, equation)
            return _dropping(equation, operands, of_rows, real)

        names = {e.primitive.name for e in self.late if _has_own_reverse(e)}
        return dict.fromkeys(names, rule)

    @property
    def has_linear_rules(self) -> bool:
        """Return whether users' reverse rules are known to be linear in cotangents."""
        return all(_is_linear(e) for e in self.late if _has_own_reverse(e))


def stage(
    closed: core.ClosedJaxpr,
    fixed: int,
    name: str,
    other: core.ClosedJaxpr | None = None,
) -> Hoisted:
    """Split a jaxpr: equations on its first `fixed` arguments alone, and all others.

    Args:
      name: of the layer, for messages.
      other: the jaxpr for another number of rows, if the function is of whole tiles;
        equations that differ between the two depend on rows.
    """
    jaxpr, _ = jaxprs.open_jaxpr(closed)
    constants = jaxprs.environment(closed, (), strict=False).items()
    # Constants that are traced outside count as parameters.
    traced = [v for v, x in constants if isinstance(x, jax.core.Tracer)]
    first = [*jaxpr.invars[:fixed], *traced]
    sized = () if other is None else _sized(jaxpr, jaxprs.open_jaxpr(other)[0])
    of_rows, varying = jaxprs.reachable(jaxpr, [*jaxpr.invars[fixed:], *sized])
    fixed_alone = jaxprs.reachable(jaxpr, first)[0] - of_rows
    # A transpose is not worth hoisting: products take a matrix in either orientation.
    # A matrix that is cut or joined is, which XLA might copy in every tile.
    copied = _multiplied_copies(closed)
    work = {
        e for e in fixed_alone if e.primitive.name not in jaxprs.MOVES or e in copied
    }
    results = [v for e in work for v in e.outvars]
    early = jaxprs.slice_for(jaxpr.eqns, results, keep=work)
    # Equations that depend on no argument, as an `iota`, are not hoisted: both stages
    # may run them.
    hoisted = {v for e in early if e in fixed_alone for v in e.outvars}
    # An equation with an effect, as a print, stays though nothing reads its results.
    others = {e for e in jaxpr.eqns if e.effects and e not in work}
    late = jaxprs.slice_for(jaxpr.eqns, jaxpr.outvars, hoisted, keep=others)
    read = jaxprs.read_by(late, jaxpr.outvars)
    frontier = dict.fromkeys(v for v in read if v in hoisted or v in first)
    ordered = sorted(frontier, key=lambda v: not jaxprs.is_inexact(jaxprs.spec(v)))
    return Hoisted(closed, early, late, ordered, varying, name)


def _multiplied_copies(closed: core.ClosedJaxpr) -> set[core.JaxprEqn]:
    """Return equations that copy parts of arrays, or join arrays, for products."""
    equations, found = jaxprs.open_jaxpr(closed)[0].eqns, set[core.JaxprEqn]()
    read = {v for e in jaxprs.products(closed) for v in jaxprs.variables(e.invars)}
    for e in reversed(equations):
        if e.primitive.name in jaxprs.MOVES and read.intersection(e.outvars):
            read.update(jaxprs.variables(e.invars))
            found.update([e] if e.primitive.name in COPIES else ())
    return found


def _sized(jaxpr: core.Jaxpr, other: core.Jaxpr) -> list[core.Var]:
    """Return variables whose shape differs in `other`; all if the equations differ."""
    outputs, others = ([v for e in x.eqns for v in e.outvars] for x in (jaxpr, other))
    if [e.primitive for e in jaxpr.eqns] != [e.primitive for e in other.eqns]:
        return outputs
    pairs = zip(outputs, others, strict=True)
    return [v for v, w in pairs if jaxprs.spec(v).shape != jaxprs.spec(w).shape]


def _are_in(varying: Container[core.Var], equation: core.JaxprEqn) -> list[bool]:
    """Return, for each operand of an equation, whether it is in `varying`."""
    return [isinstance(v, core.Var) and v in varying for v in equation.invars]


def _pull(
    function: Callable[[Arrays], Arrays], arguments: Arrays, moving: Iterable[int]
) -> Pull:
    """Return the reverse of a function, from `jax.vjp`, to the arguments `moving`.

    The reverse returns cotangents by number of the argument.
    """

    def of_moving(moving: dict[int, Array]) -> Arrays:
        return function([moving.get(i, x) for i, x in enumerate(arguments)])

    pull: Pull = jax.vjp(of_moving, {i: arguments[i] for i in moving})[1]
    return pull


def _has_own_reverse(equation: core.JaxprEqn) -> bool:
    """Return whether an equation is, or contains, a `custom_vjp`."""
    return equation.primitive.name.startswith('custom_vjp_call') or any(
        _has_own_reverse(e)
        for closed in jaxprs.subjaxprs(equation)
        for e in jaxprs.open_jaxpr(closed)[0].eqns
    )


def _is_linear(equation: core.JaxprEqn) -> bool:
    """Return whether an equation's reverse is known to be linear in the cotangents."""
    operands, results = (
        list(map(jaxprs.spec, atoms)) for atoms in (equation.invars, equation.outvars)
    )
    moving, used = (
        [i for i, x in enumerate(specs) if jaxprs.is_inexact(x)]
        for specs in (operands, results)
    )

    def pulled(values: Arrays, cotangents: Arrays) -> Arrays:
        pull = _pull(functools.partial(_bind, equation, used), values, moving)
        return list(pull(cotangents)[0].values())

    # The reverse as a jaxpr of operands, held fixed, and cotangents.
    closed = jax.make_jaxpr(pulled)(operands, [results[i] for i in used])
    return is_linear(closed, len(operands))


def _bind(
    equation: core.JaxprEqn, used: Iterable[int], operands: Sequence[Array]
) -> Arrays:
    """Run an equation on operands; return its results with the numbers in `used`."""
    results = jaxprs.bind(equation, operands)
    return [results[i] for i in used]


def _dropping(
    equation: core.JaxprEqn, operands: Arrays, of_rows: Sequence[bool], real: Array
) -> Arrays:
    """Run an equation, such that its reverse gives padding rows no gradient.

    Args:
      operands: the equation's inputs, of one row or of a whole tile.
      of_rows: by operand, whether it depends on rows. Of a whole tile, only gradients
        of operands that do are masked; those of weights are sums over rows already.
      real: whether a row is real: [] bool for one, [rows] bool for a whole tile.
    """

    def bound(operands: Sequence[Array], real: Array) -> Arrays:
        """Bind the equation, so that under `vmap` each row has results of its own.

        Else, for a result that depends on no row, `vmap` would add up the cotangents of
        all rows, and then count this sum as many times as there are rows.
        """
        values = jaxprs.bind(equation, operands)
        return values if np.ndim(real) else xla.tie_batching(values, [real])

    @jax.custom_vjp
    def results(real: Array, *operands: Array) -> Arrays:
        return bound(operands, real)

    def forward(
        real: CustomVJPPrimal, *operands: CustomVJPPrimal
    ) -> tuple[Arrays, Residuals]:
        moving = {i: x.value for i, x in enumerate(operands) if x.perturbed}
        values = [x.value for x in operands]
        # Bound as without a gradient; else `vmap` may put rows on another axis.
        return bound(values, real.value), (real.value, values, moving)

    def reverse(
        residuals: Residuals, cotangents: Sequence[Cotangent]
    ) -> tuple[Array | None, ...]:
        real, values, moving = residuals
        # Only results with a cotangent are pulled back, so that a user's rule is told
        # that the others are zero. Cotangents are cast to vary over the mesh axes of
        # the rows.
        used = {
            i: x for i, x in enumerate(cotangents) if not isinstance(x, SymbolicZero)
        }
        pull = _pull(functools.partial(_bind, equation, used), values, moving)
        axes = varying_axes(real)
        (pulled,) = pull([cast_varying(x, axes) for x in used.values()])
        # For a whole tile, a weight's cotangent is already a sum over rows. For one row
        # `vmap` adds up later, and rows that are not real contribute zeros.
        dropped = {
            i: x if np.ndim(real) and not of_rows[i] else masked(x, real)
            for i, x in pulled.items()
        }
        return None, *map(dropped.get, range(len(of_rows)))

    results.defvjp(forward, reverse, symbolic_zeros=True)
    return results(real, *operands)


# ---- parameters inside of `jax.checkpoint` -------------------------------------------

# A checkpoint is one equation, which depends on rows, so weights that it derives from
# parameters would be computed in every tile. They are hoisted out of it:
#
#     checkpoint(parameters, rows)   ->   weights = early(parameters)
#                                         checkpoint(weights, rows)
#
# This stores nothing more, since weights are stored for a whole step anyway.
_CHECKPOINT = 'remat2'  # the name of the primitive


def hoist_from_checkpoints(
    closed: core.ClosedJaxpr, of_rows: Sequence[bool]
) -> core.ClosedJaxpr:
    """Move equations on parameters alone out of the `jax.checkpoint`s of a jaxpr.

    Args:
      closed: the jaxpr; returned as it is if it has no `jax.checkpoint`.
      of_rows: by argument, whether it depends on rows, as parameters do not.
    """
    jaxpr, _ = jaxprs.open_jaxpr(closed)
    if not any(e.primitive.name == _CHECKPOINT for e in jaxpr.eqns):
        return closed
    rows = [v for v, varies in zip(jaxpr.invars, of_rows, strict=True) if varies]
    _, varying = jaxprs.reachable(jaxpr, rows)

    def rule(equation: core.JaxprEqn, operands: Arrays) -> Arrays:
        return _cut(equation, operands, _are_in(varying, equation))

    return jaxprs.rewritten(closed, {_CHECKPOINT: rule})


def _cut(equation: core.JaxprEqn, operands: Arrays, of_rows: Sequence[bool]) -> Arrays:
    """Run a `jax.checkpoint`, but run its equations on parameters alone outside of it.

    `of_rows` says of each operand whether it depends on rows, as parameters do not.
    """
    # Nested `jit`s are inlined, and checkpoints within are cut as well.
    closed = jaxprs.inlined(equation.params['jaxpr'])
    closed = hoist_from_checkpoints(closed, of_rows)
    inner, _ = jaxprs.open_jaxpr(closed)
    rows = [v for v, varies in zip(inner.invars, of_rows, strict=True) if varies]
    depend, varying = jaxprs.reachable(inner, rows)
    # An equation with an effect, as a print, stays though nothing reads its results.
    late = [e for e in inner.eqns if e in depend or e.effects]
    read = jaxprs.read_by(late, inner.outvars)
    computed = varying.union(v for e in late for v in e.outvars)
    # Variables that late equations read, computed outside: the new operands.
    frontier = [v for v in dict.fromkeys(read) if v not in computed]
    env = jaxprs.environment(closed, operands)
    hoisted = [e for e in inner.eqns if e not in late]
    outside = jaxprs.run(jaxprs.slice_for(hoisted, frontier), env, frontier)

    def inside(*values: Array) -> Arrays:
        known = dict(zip([*frontier, *rows], values, strict=True))
        return jaxprs.run(late, known, inner.outvars)

    options = {name: equation.params[name] for name in ('prevent_cse', 'policy')}
    return list(jax.checkpoint(inside, **options)(*outside, *(env[v] for v in rows)))
