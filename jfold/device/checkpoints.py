# SPDX-License-Identifier: Apache-2.0
"""Functions within `jax.checkpoint`, without what their parameters alone decide.

As one equation such a function depends on rows altogether, so the weights in it that
are made of parameters would be made in every tile. They are taken out:

    checkpoint(parameters, rows)   ->   weights = early(parameters)
                                        checkpoint(weights, rows)

Nothing is kept for them that is not kept anyway, since weights are kept for a step.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
from jax.extend import core

from jfold.base import jaxprs
from jfold.base.arrays import Arrays

NAMES = 'checkpoint', 'remat', 'remat2'  # of the primitive, by versions of JAX


def taken_out(closed: core.ClosedJaxpr, of_rows: Sequence[bool]) -> core.ClosedJaxpr:
    """A jaxpr in which what does not depend on rows is outside of `jax.checkpoint`.

    Args:
      of_rows: of each argument, whether it does.
    """
    jaxpr, _ = jaxprs.opened(closed)
    if not any(e.primitive.name in NAMES for e in jaxpr.eqns):
        return closed
    rows = [v for v, varies in zip(jaxpr.invars, of_rows, strict=True) if varies]
    _, varying = jaxprs.dependent(jaxpr, rows)

    def rule(equation: core.JaxprEqn, operands: Arrays) -> Arrays:
        inputs = equation.invars
        vary = [isinstance(v, core.Var) and v in varying for v in inputs]
        return _cut(equation, operands, vary)

    rules = dict.fromkeys(NAMES, rule)
    specs = list(map(jaxprs.spec, jaxpr.invars))
    return jaxprs.trace(lambda *x: jaxprs.evaluate(closed, x, rules), specs)


def _cut(equation: core.JaxprEqn, operands: Arrays, of_rows: Sequence[bool]) -> Arrays:
    """The results [*shape each] of a checkpoint, what depends on no rows before it."""
    inner, constants = _traced(equation, of_rows)
    rows = [v for v, varies in zip(inner.invars, of_rows, strict=True) if varies]
    depend, varying = jaxprs.dependent(inner, rows)
    # What prints or checks something is there for its effect: nothing reads it.
    late = [e for e in inner.eqns if e in depend or e.effects]
    read = jaxprs.variables([v for e in late for v in e.invars] + inner.outvars)
    made = varying.union(v for e in late for v in e.outvars)
    frontier = [v for v in dict.fromkeys(read) if v not in made]
    env = dict(zip(inner.constvars, constants, strict=True))
    env |= zip(inner.invars, operands, strict=True)
    rest = [e for e in inner.eqns if e not in late]
    outside = jaxprs.run(jaxprs.needed(rest, frontier), env, frontier)

    def inside(*values: jax.Array) -> Arrays:
        known = dict(zip([*frontier, *rows], values, strict=True))
        return jaxprs.run(late, known, inner.outvars)

    options = {name: equation.params[name] for name in ('prevent_cse', 'policy')}
    return list(jax.checkpoint(inside, **options)(*outside, *(env[v] for v in rows)))


def _traced(
    equation: core.JaxprEqn, of_rows: Sequence[bool]
) -> tuple[core.Jaxpr, Sequence[jax.Array]]:
    """The jaxpr in a checkpoint and its constants [*shape each], without nested `jit`s,
    and itself cut inside."""
    whole = functools.partial(_run, equation.params['jaxpr'])
    closed = jaxprs.trace(whole, list(map(jaxprs.spec, equation.invars)))
    return jaxprs.opened(taken_out(closed, of_rows))


def _run(inner: core.Jaxpr, *operands: jax.Array) -> Arrays:
    env = dict(zip(inner.invars, operands, strict=True))
    return jaxprs.run(inner.eqns, env, inner.outvars)
