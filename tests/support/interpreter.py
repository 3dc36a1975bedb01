# SPDX-License-Identifier: Apache-2.0
"""Jaxprs run by NumPy: nothing is compiled, and every float is a float64.

What the runtime traces to is run as it stands, loops as loops of Python, so that a
program that would take XLA seconds to compile takes none. Since floats keep all their
digits whatever their dtype, results agree to ten digits or are wrong. Indices that a
program promises to be in bounds are checked.

Here are calls and loops; all else is in `primitives`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core
from primitives import PRIMITIVES, Rule, by_jax, kept_dtype, widened

from jfold.device.linear import linear_p


class Code:
    """A jaxpr made ready: places for its values, and steps from places to places."""

    def __init__(self, closed: Any) -> None:
        opened = hasattr(closed, 'consts')
        jaxpr = closed.jaxpr if opened else closed
        self.source = closed  # lives as long as its number is in use
        self.start: list[Any] = []
        self.places: dict[Any, int] = {}
        constants = closed.consts if opened else ()
        self.inputs = [self.place(v) for v in jaxpr.invars]
        for variable, value in zip(jaxpr.constvars, constants, strict=True):
            self.start[self.place(variable)] = widened(value)
        self.steps = [self.step(equation) for equation in jaxpr.eqns]
        self.outputs = [self.place(v) for v in jaxpr.outvars]

    def place(self, variable: Any) -> int:
        """Where a variable's value is kept; that of a literal is there already."""
        literal = isinstance(variable, core.Literal)
        key = id(variable) if literal else variable
        if key not in self.places:
            self.places[key] = len(self.start)
            self.start.append(_literal(variable) if literal else None)
        return self.places[key]

    def step(self, equation: Any) -> tuple[Any, list[int], list[int]]:
        """How an equation is run, and the places it reads and writes."""
        rule = RULES.get(equation.primitive.name, by_jax)
        inputs = [self.place(v) for v in equation.invars]
        return (
            _checked(rule, equation),
            inputs,
            [self.place(v) for v in equation.outvars],
        )

    def __call__(self, *arguments: Any) -> list[Any]:
        values = self.start.copy()
        for place, value in zip(self.inputs, arguments, strict=True):
            values[place] = value
        for run, inputs, outputs in self.steps:
            results = run(*[values[i] for i in inputs])
            for place, result in zip(outputs, results, strict=True):
                values[place] = result
        return [values[i] for i in self.outputs]


def _literal(variable: Any) -> Any:
    """Its value as its dtype holds it; PRNG keys are never literals."""
    return widened(np.asarray(variable.val, variable.aval.dtype))


_codes: dict[int, Code] = {}


def code(closed: Any) -> Code:
    """The code of a jaxpr, made once."""
    if id(closed) not in _codes:
        _codes[id(closed)] = Code(closed)
    return _codes[id(closed)]


def forget() -> None:
    """Drops all code, and with it the programs that it was made of."""
    _codes.clear()


def run(closed: Any, arguments: Sequence[Any]) -> list[Any]:
    """The results of a jaxpr."""
    with np.errstate(all='ignore'):
        return code(closed)(*map(widened, arguments))


def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of pytrees gives, in the dtypes that JAX would give it in."""
    made = jax.make_jaxpr(function, return_shape=True)
    jaxpr, shapes = made(*arguments)
    leaves = run(jaxpr, jax.tree.leaves(arguments))
    forget()
    specs, tree = jax.tree.flatten(shapes)
    found = [np.asarray(x).astype(s.dtype) for x, s in zip(leaves, specs, strict=True)]
    return jax.tree.unflatten(tree, found)


def _checked(rule: Rule, equation: Any) -> Callable[..., list[Any]]:
    """A rule's function, whose results have the shape and kind the equation says."""
    function = rule(equation)
    several = equation.primitive.multiple_results
    wanted = [(v.aval.shape, kept_dtype(v.aval.dtype)) for v in equation.outvars]

    def checked(*values: Any) -> list[Any]:
        made = function(*values)
        made = list(made) if several else [made]
        for k, (shape, dtype) in enumerate(wanted):
            if dtype is not None:
                made[k] = np.asarray(made[k], dtype)
            if made[k].shape != shape:
                raise AssertionError(f'{equation}: made {made[k].shape}')
        return made

    return checked


# ---- calls and loops -----------------------------------------------------------------


def _call(name: str) -> Rule:
    def rule(equation: Any) -> Callable[..., Any]:
        return code(equation.params[name])

    return rule


def _custom_vjp(equation: Any) -> Callable[..., Any]:
    params = equation.params
    return code(params['call_jaxpr'] if 'call_jaxpr' in params else params['fun_jaxpr'])


def _while(equation: Any) -> Callable[..., Any]:
    params = equation.params
    condition, body = code(params['cond_jaxpr']), code(params['body_jaxpr'])
    first, second = params['cond_nconsts'], params['body_nconsts']

    def loop(*values: Any) -> Any:
        fixed, others = values[:first], values[first : first + second]
        state = list(values[first + second :])
        while np.any(going := condition(*fixed, *state)[0]):
            made = body(*others, *state)
            # Under `vmap` each row has an end of its own.
            state = list(map(_advanced, itertools.repeat(going), made, state))
        return state

    return loop


def _advanced(going: Any, new: Any, old: Any) -> Any:
    """New values where a loop goes on."""
    axes = tuple(range(np.ndim(going), np.ndim(new)))
    return np.where(np.expand_dims(going, axes), new, old) if np.ndim(going) else new


def _scan_counts(params: Any) -> tuple[int, int]:
    """How many values a loop reads in every step, and how many it hands on."""
    if 'num_consts' in params:
        return params['num_consts'], params['num_carry']
    consts, carry, _ = params['ft_in'].unpack()
    return len(consts), len(carry)


def _scan(equation: Any) -> Callable[..., Any]:
    params = equation.params
    body, length = code(params['jaxpr']), params['length']
    consts, carry = _scan_counts(params)
    order = range(length)[:: -1 if params['reverse'] else 1]
    stacked = [
        (v.aval.shape, kept_dtype(v.aval.dtype)) for v in equation.outvars[carry:]
    ]

    def loop(*values: Any) -> Any:
        fixed, rows = values[:consts], values[consts + carry :]
        state = list(values[consts : consts + carry])
        made = [np.zeros(*each) for each in stacked]
        for i in order:
            results = body(*fixed, *state, *(x[i] for x in rows))
            state = results[:carry]
            for array, result in zip(made, results[carry:], strict=True):
                array[i] = result
        return state + made

    return loop


def _cond(equation: Any) -> Callable[..., Any]:
    branches = [code(each) for each in equation.params['branches']]

    def choose(index: Any, *values: Any) -> Any:
        return branches[min(max(int(index), 0), len(branches) - 1)](*values)

    return choose


def _linear_solve(equation: Any) -> Callable[..., Any]:
    lengths = equation.params['const_lengths']
    solve = code(equation.params['jaxprs'].solve)
    first = lengths.matvec + lengths.vecmat

    def solved(*values: Any) -> Any:
        fixed, sides = values[first : first + lengths.solve], values[sum(lengths) :]
        return solve(*fixed, *sides)

    return solved


def _linear(equation: Any) -> Callable[..., Any]:
    """Forward mode of the runtime, which it derives where it is run."""
    linear, count = equation.params['linear'], equation.params['count']

    def push(*operands: Any) -> Any:
        return linear.push(list(operands[:count]), list(operands[count:]))

    avals = [v.aval for v in equation.invars]
    specs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in avals]
    return code(jax.make_jaxpr(push)(*specs))


RULES: dict[str, Rule] = {
    **PRIMITIVES,
    **{name: _call('jaxpr') for name in ('jit', 'pjit', 'checkpoint', 'remat2')},
    **{name: _call('call_jaxpr') for name in ('closed_call', 'eval_jaxpr')},
    'cond': _cond,
    'custom_jvp_call': _call('call_jaxpr'),
    'custom_linear_solve': _linear_solve,
    'custom_vjp_call': _custom_vjp,
    linear_p.name: _linear,
    'scan': _scan,
    'while': _while,
}
