# SPDX-License-Identifier: Apache-2.0
"""A check whether a jaxpr is linear in some of its arguments.

Linear jaxprs with equations that it does not know fail it. A reverse that is linear in
the cotangents may run on many rows at once; any other runs on each row by itself.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeAlias

from jax.extend import core

from jfold.base import jaxprs


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
    'expand_dims ffi_call neg pad pallas_call pure_callback real reduce_sum reshape '
    'rev slice split squeeze sub transpose'.split()
)
# Linear in each operand, where the others are fixed.
_PRODUCTS = frozenset('conv_general_dilated dot_general mul ragged_dot'.split())
# Linear in the operands at these places together, where the others are fixed.
_LINEAR_OPERANDS = {
    'div': (0,),
    'dynamic_slice': (0,),
    'dynamic_update_slice': (0, 1),
    'gather': (0,),
    'scatter-add': (0, 2),
    'scatter_add': (0, 2),
}
# Primitives that call a jaxpr, one among their parameters.
_CALLS = frozenset(
    'checkpoint closed_call core_call custom_jvp_call jit remat remat2'.split()
)


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
