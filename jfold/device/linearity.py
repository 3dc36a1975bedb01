# SPDX-License-Identifier: Apache-2.0
"""Whether a jaxpr is linear in some of its arguments, as far as is plain to see.

What is linear may be computed of many rows at once and added up; of what is not, each
row has to be computed by itself.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeAlias

from jax.extend import core

from jfold.base import jaxprs


class Form(enum.Enum):
    """What a value is in the arguments in question."""

    ZERO = enum.auto()
    FIXED = enum.auto()  # the same, whatever they are
    LINEAR = enum.auto()
    OTHER = enum.auto()  # or not known to be any of these


Forms: TypeAlias = Sequence[Form]

# Of operands that are linear together; what a kernel of the user's own makes of
# cotangents is taken to be linear, since nobody can look into it.
_SUMS = frozenset(
    'add add_any broadcast_in_dim concatenate convert_element_type copy cumsum '
    'expand_dims ffi_call neg pad pallas_call pure_callback real reduce_sum reshape '
    'rev slice split squeeze sub transpose'.split()
)
_PRODUCTS = frozenset('conv_general_dilated dot_general mul ragged_dot'.split())
# By the places of the operands that are linear together, the others fixed.
_CHOSEN = {
    'div': (0,),
    'dynamic_slice': (0,),
    'dynamic_update_slice': (0, 1),
    'gather': (0,),
    'scatter-add': (0, 2),
    'scatter_add': (0, 2),
}
# Calls of a jaxpr, and where they hold it.
_CALLS = {
    'jit': 'jaxpr',
    'checkpoint': 'jaxpr',
    'remat': 'jaxpr',
    'remat2': 'jaxpr',
    'closed_call': 'call_jaxpr',
    'core_call': 'call_jaxpr',
    'custom_jvp_call': 'call_jaxpr',
}


def is_linear(closed: core.ClosedJaxpr, fixed: int) -> bool:
    """Whether all results are linear in the arguments behind the first `fixed`."""
    count = len(jaxprs.opened(closed)[0].invars)
    given = [Form.FIXED] * fixed + [Form.LINEAR] * (count - fixed)
    return {Form.ZERO, Form.LINEAR}.issuperset(_results(closed, given))


def _results(closed: core.ClosedJaxpr, given: Forms) -> list[Form]:
    """The forms of the results, given those of the arguments."""
    jaxpr, _ = jaxprs.opened(closed)
    found = dict(zip(jaxpr.invars, given, strict=True))

    def read(atom: jaxprs.Atom) -> Form:
        if isinstance(atom, core.Literal):
            return Form.FIXED if atom.val else Form.ZERO
        return found.get(atom, Form.FIXED)

    for equation in jaxpr.eqns:
        made = _made(equation, list(map(read, equation.invars)))
        found |= zip(equation.outvars, made, strict=True)
    return list(map(read, jaxpr.outvars))


def _made(equation: core.JaxprEqn, given: Forms) -> Forms:
    """The forms of what an equation makes of operands."""
    name, kinds = equation.primitive.name, set(given)
    if name in _CALLS and _CALLS[name] in equation.params:
        return _results(equation.params[_CALLS[name]], given)
    if name in _PRODUCTS:
        form = _product(given)
    elif name in _SUMS:
        form = _sum(kinds)
    elif name == 'select_n':
        form = _part(given, range(1, len(given)))
    elif name in _CHOSEN:
        form = _part(given, _CHOSEN[name])
    else:
        form = Form.FIXED if kinds <= {Form.ZERO, Form.FIXED} else Form.OTHER
    rounded = Form.OTHER if form is Form.LINEAR else form
    specs = map(jaxprs.spec, equation.outvars)
    return [form if jaxprs.is_inexact(spec) else rounded for spec in specs]


def _sum(kinds: set[Form]) -> Form:
    """Of operands that are linear together."""
    if kinds <= {Form.ZERO}:
        return Form.ZERO if kinds else Form.FIXED
    if kinds <= {Form.ZERO, Form.FIXED}:
        return Form.FIXED
    return Form.LINEAR if kinds <= {Form.ZERO, Form.LINEAR} else Form.OTHER


def _product(given: Forms) -> Form:
    """Of operands that are linear one by one."""
    if Form.ZERO in given:
        return Form.ZERO
    others = [form for form in given if form is not Form.FIXED]
    return others[0] if len(others) == 1 else Form.OTHER if others else Form.FIXED


def _part(given: Forms, places: Sequence[int]) -> Form:
    """Of operands at some places that are linear together, if the others are fixed."""
    rest = {form for place, form in enumerate(given) if place not in places}
    made = _sum({given[place] for place in places})
    if rest <= {Form.ZERO, Form.FIXED} or made is Form.ZERO:
        return made
    return Form.OTHER
