# SPDX-License-Identifier: Apache-2.0
"""Two analyses of jaxprs: whether one is finite everywhere, and whether it is linear.

A function passes the first if it and its derivatives are finite on finite arguments.
Then spare (padding) rows need no mask in the reverse pass: their cotangents are zero,
and zero times a finite derivative is zero. For `log` at zero it would be zero times
infinity, NaN. Overflow is ignored.

A reverse that is linear in the cotangents may run on many rows at once; any other runs
on each row by itself. What an analysis does not know fails it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeAlias

import jax
import numpy as np
from jax import lax
from jax.extend import core

from jfold.base import jaxprs
from jfold.base.arrays import Arrays

# ---- finite everywhere ---------------------------------------------------------------

# Primitives that are defined everywhere, whatever their parameters.
_DEFINED = jaxprs.MOVES | frozenset(
    'abs add add_any ceil clamp conv_general_dilated copy cos cumsum dot_general '
    'dynamic_slice erf erfc floor iota logistic max min mul neg pad reduce_sum round '
    'select_n sign sin square stop_gradient sub tanh'.split()
)


def is_defined(closed: core.ClosedJaxpr, own_rules: bool = True) -> bool:
    """Return whether a jaxpr and its derivative are finite on finite arguments.

    If `own_rules`, a derivative that a user defines by `custom_jvp` is checked as well.
    """
    jaxpr, constants = jaxprs.open_jaxpr(closed)
    equations = all(_is_defined(equation, own_rules) for equation in jaxpr.eqns)
    return equations and all(map(_is_finite, constants))


def _is_defined(equation: core.JaxprEqn, own_rules: bool) -> bool:
    """Return whether `is_defined` holds for one equation; `own_rules` is as there."""
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


# ---- linear --------------------------------------------------------------------------


class Form(enum.Enum):
    """The dependence of a value on the varying arguments of a jaxpr, such as linear."""

    ZERO = enum.auto()
    FIXED = enum.auto()  # independent of those arguments
    LINEAR = enum.auto()
    OTHER = enum.auto()  # none of these, or not known


Forms: TypeAlias = Sequence[Form]

# Primitives linear in all operands together. A user's own kernel is taken to be linear
# in cotangents, since nobody can look into it.
_SUMS = frozenset(
    'add add_any broadcast_in_dim concatenate convert_element_type copy cumsum '
    'ffi_call neg pad pallas_call pure_callback real reduce_sum reshape '
    'rev slice split squeeze stack sub transpose unstack'.split()
)
# Linear in each operand, where the others are fixed.
_PRODUCTS = frozenset('conv_general_dilated dot_general mul ragged_dot_general'.split())
# Linear in the operands at these places together, where the others are fixed.
_LINEAR_OPERANDS = {
    'div': (0,),
    'dynamic_slice': (0,),
    'dynamic_update_slice': (0, 1),
    'gather': (0,),
    'scatter-add': (0, 2),
}
# Primitives that call a jaxpr, one among their parameters.
_CALLS = frozenset('closed_call custom_jvp_call jit remat2'.split())


def is_linear(closed: core.ClosedJaxpr, fixed: int) -> bool:
    """Return whether a jaxpr is linear in all but its first `fixed` arguments."""
    count = len(jaxprs.open_jaxpr(closed)[0].invars)
    forms = [Form.FIXED] * fixed + [Form.LINEAR] * (count - fixed)
    return {Form.ZERO, Form.LINEAR}.issuperset(_results(closed, forms))


def _results(closed: core.ClosedJaxpr, arguments: Forms) -> list[Form]:
    """Return the forms of a jaxpr's results, given the forms of its arguments."""
    jaxpr, _ = jaxprs.open_jaxpr(closed)
    forms = dict(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: jaxprs.Atom) -> Form:
        if isinstance(atom, core.Literal):
            return Form.FIXED if atom.val else Form.ZERO
        return forms.get(atom, Form.FIXED)

    for equation in jaxpr.eqns:
        results = _equation_forms(equation, list(map(read, equation.invars)))
        forms |= zip(equation.outvars, results, strict=True)
    return list(map(read, jaxpr.outvars))


def _equation_forms(equation: core.JaxprEqn, operands: Forms) -> Forms:
    """Return the forms of an equation's results, given the forms of its operands."""
    name = equation.primitive.name
    if name in _CALLS:
        (called,) = jaxprs.subjaxprs(equation)
        return _results(called, operands)
    if name in _PRODUCTS:
        form = _product(operands)
    else:
        every = range(len(operands))
        places = every if name in _SUMS else _LINEAR_OPERANDS.get(name, ())
        form = _sum(operands, every[1:] if name == 'select_n' else places)
    rounded = Form.OTHER if form is Form.LINEAR else form
    specs = map(jaxprs.spec, equation.outvars)
    return [form if jaxprs.is_inexact(spec) else rounded for spec in specs]


def _sum(operands: Forms, places: Sequence[int]) -> Form:
    """Return the `Form` of a result that is linear in operands `places` together.

    `add` is such a function. If another operand varies, the form is `OTHER`.
    """
    others = {form for place, form in enumerate(operands) if place not in places}
    forms = {operands[place] for place in places}
    if forms == {Form.ZERO}:
        return Form.ZERO
    if not others <= {Form.ZERO, Form.FIXED}:
        return Form.OTHER
    if forms <= {Form.ZERO, Form.FIXED}:
        return Form.FIXED
    return Form.LINEAR if forms <= {Form.ZERO, Form.LINEAR} else Form.OTHER


def _product(operands: Forms) -> Form:
    """Return the `Form` of a result that is linear in each operand, like `mul`."""
    if Form.ZERO in operands:
        return Form.ZERO
    others = [form for form in operands if form is not Form.FIXED]
    return others[0] if len(others) == 1 else Form.OTHER if others else Form.FIXED
