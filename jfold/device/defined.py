# SPDX-License-Identifier: Apache-2.0
"""A check that functions and their derivatives are finite on finite arguments.

For a function that passes, spare (padding) rows need no mask in the reverse pass: their
cotangents are zero, and zero times a finite derivative is zero. For `log` at zero it
would be zero times infinity, NaN. Overflow is ignored. Functions that the check does
not know fail it.

Derivatives that a user defines by `custom_jvp` are checked too, if `own_rules` is true;
it is false within the jaxpr of such a derivative.
"""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax.extend import core

from jfold.base import jaxprs
from jfold.base.arrays import Arrays

# Primitives that are defined everywhere, whatever their parameters.
_DEFINED = jaxprs.MOVES | frozenset(
    'abs add add_any ceil clamp conv_general_dilated copy cos cumsum dot_general '
    'dynamic_slice erf erfc floor iota logistic max min mul neg pad reduce_sum round '
    'select_n sign sin square stop_gradient sub tanh'.split()
)


def is_defined(closed: core.ClosedJaxpr, own_rules: bool = True) -> bool:
    """Return whether a jaxpr and its derivative are finite on finite arguments."""
    jaxpr, constants = jaxprs.open_jaxpr(closed)
    equations = all(_is_defined(equation, own_rules) for equation in jaxpr.eqns)
    return equations and all(map(_is_finite, constants))


def _is_defined(equation: core.JaxprEqn, own_rules: bool) -> bool:
    """Return whether an equation and its derivative are finite on finite operands.

    False if that is not known.
    """
    name, params = equation.primitive.name, equation.params
    # Integers have no gradient, and are never NaN.
    if not any(jaxprs.is_inexact(jaxprs.spec(v)) for v in equation.outvars):
        return True
    literals = [v.val for v in equation.invars if isinstance(v, core.Literal)]
    if not all(map(_is_finite, literals)):
        return False
    if name == 'jit':
        return is_defined(params['jaxpr'], own_rules)
    if name == 'custom_jvp_call':
        plain = is_defined(params['call_jaxpr'], False)
        return plain and (not own_rules or is_defined(_derivative(equation), False))
    if name == 'div':
        return isinstance(equation.invars[1], core.Literal) and literals[-1] != 0
    if name == 'integer_pow':
        return bool(params['y'] >= 0)
    if name == 'gather':  # this mode fills rows outside of the operand with NaN
        return params['mode'] is not lax.GatherScatterMode.FILL_OR_DROP
    return name in _DEFINED


def _is_finite(constant: object) -> bool:
    """Return whether a constant [*shape] is known to be finite everywhere.

    True for integers, false for values that an enclosing transformation traces.
    """
    if not jaxprs.is_inexact(jax.typeof(constant)):
        return True
    is_known = not isinstance(constant, jax.core.Tracer)
    return is_known and bool(np.isfinite(np.asarray(constant)).all())


def _derivative(equation: core.JaxprEqn) -> core.ClosedJaxpr:
    """Return the jaxpr of an equation's `jax.jvp`, with respect to float operands."""
    specs = list(map(jaxprs.spec, equation.invars))
    moving = [i for i, x in enumerate(specs) if jaxprs.is_inexact(x)]

    def pushed(operands: Arrays, tangents: Arrays) -> tuple[Arrays, Arrays]:
        def of_moving(*values: jax.Array) -> Arrays:
            known = dict(enumerate(operands)) | dict(zip(moving, values, strict=True))
            return jaxprs.bind(equation, list(known.values()))

        values = [operands[i] for i in moving]
        result: tuple[Arrays, Arrays] = jax.jvp(of_moving, values, tangents)
        return result

    return jax.make_jaxpr(pushed)(specs, [specs[i] for i in moving])
