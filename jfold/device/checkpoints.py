# SPDX-License-Identifier: Apache-2.0
"""The hoisting out of `jax.checkpoint` of equations that depend on parameters alone.

A checkpoint is one equation, which depends on rows, so weights that it derives from
parameters would be computed in every tile. They are hoisted out of it:

    checkpoint(parameters, rows)   ->   weights = early(parameters)
                                        checkpoint(weights, rows)

This stores nothing more, since weights are stored for a whole step anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax.extend import core

from jfold.base import jaxprs
from jfold.base.arrays import Arrays

NAMES = 'checkpoint', 'remat', 'remat2'  # of the primitive, by versions of JAX


def hoist_from_checkpoints(
    closed: core.ClosedJaxpr, of_rows: Sequence[bool]
) -> core.ClosedJaxpr:
    """Move equations on parameters alone out of the `jax.checkpoint`s of a jaxpr.

    Args:
      closed: the jaxpr; returned as it is if it has no `jax.checkpoint`.
      of_rows: by argument, whether it depends on rows (nodes), as parameters do not.
    """
    jaxpr, _ = jaxprs.open_jaxpr(closed)
    if not any(e.primitive.name in NAMES for e in jaxpr.eqns):
        return closed
    rows = [v for v, varies in zip(jaxpr.invars, of_rows, strict=True) if varies]
    _, varying = jaxprs.reachable(jaxpr, rows)

    def rule(equation: core.JaxprEqn, operands: Arrays) -> Arrays:
        inputs = equation.invars
        vary = [isinstance(v, core.Var) and v in varying for v in inputs]
        return _cut(equation, operands, vary)

    return jaxprs.rewritten(closed, dict.fromkeys(NAMES, rule))


def _cut(equation: core.JaxprEqn, operands: Arrays, of_rows: Sequence[bool]) -> Arrays:
    """Run a `jax.checkpoint`, but run its equations on parameters alone outside of it.

    Args:
      operands: list of arrays, each [*shape].
      of_rows: by operand, whether it depends on rows (nodes), as parameters do not.

    Returns:
      The results, each [*shape].
    """
    # Nested `jit`s are inlined, and checkpoints within are cut in the same way.
    closed = jaxprs.inlined(equation.params['jaxpr'])
    inner, constants = jaxprs.open_jaxpr(hoist_from_checkpoints(closed, of_rows))
    rows = [v for v, varies in zip(inner.invars, of_rows, strict=True) if varies]
    depend, varying = jaxprs.reachable(inner, rows)
    # An equation with an effect, as a print, stays though nothing reads its results.
    late = [e for e in inner.eqns if e in depend or e.effects]
    read = jaxprs.read_by(late, inner.outvars)
    computed = varying.union(v for e in late for v in e.outvars)
    # Variables that late equations read, computed outside: the new operands.
    frontier = [v for v in dict.fromkeys(read) if v not in computed]
    env = dict(zip(inner.constvars, constants, strict=True))
    env |= zip(inner.invars, operands, strict=True)
    hoisted = [e for e in inner.eqns if e not in late]
    outside = jaxprs.run(jaxprs.slice_for(hoisted, frontier), env, frontier)

    def inside(*values: jax.Array) -> Arrays:
        known = dict(zip([*frontier, *rows], values, strict=True))
        return jaxprs.run(late, known, inner.outvars)

    options = {name: equation.params[name] for name in ('prevent_cse', 'policy')}
    return list(jax.checkpoint(inside, **options)(*outside, *(env[v] for v in rows)))
