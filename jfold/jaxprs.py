# SPDX-License-Identifier: Apache-2.0
"""All reading of jaxprs: running one, watching its products, and cutting one in two.

Only `jax.make_jaxpr`, `jax.extend.core` and what an equation offers are used. Since
jax 0.11 a closed jaxpr is a jaxpr; `_opened` hides the difference.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

Arrays = list[Any]
Product = Callable[[Any, Arrays], Any]


def _opened(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    return (jaxpr.jaxpr, jaxpr.consts) if hasattr(jaxpr, 'consts') else (jaxpr, ())


def evaluate(closed: Any, arguments: Iterable[Any], product: Any = None) -> Arrays:
    """Runs a jaxpr, nested `jit`s inlined.

    Args:
      product: called as `product(equation, operands)` for every matrix product, nested
        ones in other control flow left out; gives what stands for its result.
    """
    jaxpr, constants = _opened(closed)
    env = dict(zip(jaxpr.invars, arguments, strict=True))
    env |= dict(zip(jaxpr.constvars, constants, strict=True))
    return run(jaxpr.eqns, env, jaxpr.outvars, product)


def run(
    equations: Iterable[Any], env: dict[Any, Any], outputs: Any, product: Any = None
) -> Arrays:
    """Runs equations over an environment; the values of `outputs`."""
    env = dict(env)

    def read(variable: Any) -> Any:
        literal = isinstance(variable, core.Literal)
        return variable.val if literal else env[variable]

    for equation in equations:
        values = list(map(read, equation.invars))
        env |= zip(equation.outvars, _result(equation, values, product), strict=True)
    return list(map(read, outputs))


def _result(equation: Any, values: Arrays, product: Any) -> Arrays:
    name = equation.primitive.name
    if name == 'jit':
        return evaluate(equation.params['jaxpr'], values, product)
    if name == 'dot_general' and product is not None:
        return [product(equation, values)]
    return _bind(equation, values)


def multiply(equation: Any, operands: Sequence[Any], **changed: Any) -> Any:
    """The matrix product of an equation, of other operands, with parameters changed."""
    return _bind(equation, operands, **changed)[0]


def _bind(equation: Any, values: Sequence[Any], **changed: Any) -> Arrays:
    params = equation.primitive.get_bind_params({**equation.params, **changed})
    if isinstance(params, tuple):
        functions, params = params
        values = [*functions, *values]
    result = equation.primitive.bind(*values, **params)
    return list(result) if equation.primitive.multiple_results else [result]


def trace(fn: Callable[..., Any], specs: Sequence[Any]) -> Any:
    """The jaxpr of `fn(*specs)`, a list of arrays, with nested `jit`s inlined."""
    nested = jax.make_jaxpr(fn)(*specs)
    return jax.make_jaxpr(lambda *leaves: evaluate(nested, leaves))(*specs)


def upright(closed: Any, specs: Sequence[Any], fixed: int) -> Any:
    """The jaxpr with every matrix that depends on nothing but the first arguments
    transposed before a product that sums over its last axis.

    Left to XLA that is done for each product anew, in loops for each tile.
    """
    jaxpr, _ = _opened(closed)
    _, varying = _dependent(jaxpr, jaxpr.invars[fixed:])

    def product(equation: Any, operands: Arrays) -> Any:
        left, right = equation.invars
        (rows, columns), batch = equation.params['dimension_numbers']
        if left not in varying or right in varying or columns != (1,) or any(batch):
            return multiply(equation, operands)
        operands = [operands[0], jnp.swapaxes(operands[1], 0, 1)]
        numbers = ((rows, (0,)), batch)
        return multiply(equation, operands, dimension_numbers=numbers)

    return jax.make_jaxpr(lambda *leaves: evaluate(closed, leaves, product))(*specs)


def depends(closed: Any) -> list[set[int]]:
    """The arguments that each output of a jaxpr depends on; looks into `jit`s."""
    jaxpr, _ = _opened(closed)
    found = {variable: {place} for place, variable in enumerate(jaxpr.invars)}

    def read(atom: Any) -> set[int]:
        return set() if isinstance(atom, core.Literal) else found.get(atom, set())

    for equation in jaxpr.eqns:
        given = list(map(read, equation.invars))
        if equation.primitive.name == 'jit':
            used = depends(equation.params['jaxpr'])
        else:
            used = [set(range(len(given)))] * len(equation.outvars)
        for variable, places in zip(equation.outvars, used, strict=True):
            found[variable] = set().union(*(given[place] for place in places))
    return list(map(read, jaxpr.outvars))


@dataclass(frozen=True, eq=False)
class Cut:
    """A jaxpr in two: what its early outputs need, and what only the late ones need.

    Attributes:
      crossing: variables that the early part makes and the late part reads.
      linear: of each, whether it depends on the last arguments, the cotangents.
      turned: transposes in the early part of what has no rows.
    """

    closed: Any
    early: tuple[Any, ...]
    late: tuple[Any, ...]
    early_outputs: tuple[Any, ...]
    late_outputs: tuple[Any, ...]
    crossing: tuple[Any, ...]
    linear: tuple[bool, ...]
    turned: tuple[Any, ...]

    def prepare(self, fixed: Sequence[Any]) -> Arrays:
        """Transposes that the early part reads, from the arguments without rows."""
        jaxpr, _ = _opened(self.closed)
        return run(
            _needed(jaxpr.eqns, self.turned), self._environment(fixed), self.turned
        )

    def run_early(
        self, arguments: Sequence[Any], prepared: Sequence[Any] | None = None
    ) -> tuple[Arrays, Arrays]:
        """The early outputs, and the values that cross.

        Args:
          prepared: what `prepare` returned, if it has been called.
        """
        wanted = self.early_outputs + self.crossing
        env, early = self._environment(arguments), self.early
        if prepared is not None:
            env |= zip(self.turned, prepared, strict=True)
            early = tuple(_needed(early, wanted, known=self.turned))
        made = run(early, env, wanted)
        count = len(self.early_outputs)
        return made[:count], made[count:]

    def run_late(self, arguments: Sequence[Any], crossing: Sequence[Any]) -> Arrays:
        """The late outputs."""
        env = self._environment(arguments)
        env |= zip(self.crossing, crossing, strict=True)
        return run(self.late, env, self.late_outputs)

    def reads(self, index: int) -> bool:
        """Whether anything reads argument `index`."""
        variable = _opened(self.closed)[0].invars[index]
        early = _is_read(variable, self.early, self.early_outputs)
        return early or self.reads_late(index)

    def reads_late(self, index: int) -> bool:
        """Whether the late part reads argument `index`."""
        variable = _opened(self.closed)[0].invars[index]
        return _is_read(variable, self.late, self.late_outputs)

    def used_up(self, index: int, variable: Any) -> bool:
        """Whether argument `index` has been read when a variable is there.

        XLA repeats simple equations wherever their results are needed, so what they
        make of the argument must all go into others that the variable depends on.
        """
        at_hand = {_opened(self.closed)[0].invars[index]}
        before = set(_needed(self.early, [variable]))
        for equation in self.early:
            if at_hand.isdisjoint(_variables(equation.invars)):
                continue
            if equation.primitive.name in _SIMPLE:
                at_hand.update(equation.outvars)
            elif equation not in before:
                return False
        wanted = _variables((*self.early_outputs, *self.crossing))
        return bool(before) and at_hand.isdisjoint(wanted)

    def _environment(self, arguments: Sequence[Any]) -> dict[Any, Any]:
        """What the first arguments, or all, and constants stand for."""
        jaxpr, constants = _opened(self.closed)
        env = dict(zip(jaxpr.invars, arguments, strict=False))
        return env | dict(zip(jaxpr.constvars, constants, strict=True))


def cut(closed: Any, late: int, fixed: int, cotangents: int) -> Cut:
    """Cuts a jaxpr by dependence.

    Args:
      late: how many of its outputs, the first ones, are late.
      fixed: how many of its arguments, the first ones, have no rows; what depends on
        nothing else is computed in both parts, and so is what costs less than to be
        stored.
      cotangents: how many of its arguments, the last ones, are cotangents.
    """
    jaxpr, _ = _opened(closed)
    first = len(jaxpr.invars) - cotangents
    _, pulled = _dependent(jaxpr, jaxpr.invars[first:])
    late_outputs, early_outputs = jaxpr.outvars[:late], jaxpr.outvars[late:]
    early = _needed(jaxpr.eqns, early_outputs)
    varying, _ = _dependent(jaxpr, jaxpr.invars[fixed:])
    repeated = _repeated(jaxpr, pulled)
    shared = {e for e in early if e in varying and e not in repeated}
    rest = [e for e in _needed(jaxpr.eqns, late_outputs) if e not in shared]
    made = {v for e in shared for v in e.outvars}
    read = [v for e in rest for v in e.invars] + list(late_outputs)
    crossing = dict.fromkeys(v for v in _variables(read) if v in made)
    # What `rest` needs only through values that cross is not needed any more.
    rest = _needed(rest, late_outputs, known=made)
    linear = [v in pulled for v in crossing]
    transposes = (e for e in early if e.primitive.name == 'transpose')
    turned = [e.outvars[0] for e in transposes if e not in varying]
    parts = (early, rest, early_outputs, late_outputs, crossing, linear, turned)
    return Cut(closed, *map(tuple, parts))


def _dependent(jaxpr: Any, arguments: Iterable[Any]) -> tuple[set[Any], set[Any]]:
    """The equations and the variables that depend on some arguments."""
    variables, equations = set(arguments), set()
    for equation in jaxpr.eqns:
        if variables.intersection(_variables(equation.invars)):
            variables.update(equation.outvars)
            equations.add(equation)
    return equations, variables


_MOVES = frozenset(
    'broadcast_in_dim concatenate convert_element_type expand_dims reshape rev slice '
    'split squeeze transpose'.split()
)
# What XLA rather repeats than reads once more from memory.
_SIMPLE = _MOVES | frozenset(
    'abs add add_any and ceil clamp copy eq floor ge gt integer_pow iota is_finite le '
    'lt max min mul ne neg not or pad select_n sign square stop_gradient sub '
    'xor'.split()
)
_CHEAP = _SIMPLE | frozenset(
    'acos acosh asin asinh atan atan2 atanh cbrt cos cosh div erf erf_inv erfc exp '
    'exp2 expm1 log log1p logistic pow reduce_and reduce_max reduce_min reduce_or '
    'reduce_sum rem round rsqrt sin sinh sqrt tan tanh'.split()
)


def _repeated(jaxpr: Any, pulled: set[Any]) -> set[Any]:
    """Equations on what is at hand in both parts that are better computed twice than
    stored: those that move data about, and such elementwise ones and reductions as no
    cotangents are needed for, `pulled` being what they lead to."""
    at_hand, repeated = {*jaxpr.invars, *jaxpr.constvars}, set()
    for equation in jaxpr.eqns:
        inputs = _variables(equation.invars)
        chosen = _MOVES if pulled.intersection(inputs) else _CHEAP
        if equation.primitive.name in chosen and at_hand.issuperset(inputs):
            at_hand.update(equation.outvars)
            repeated.add(equation)
    return repeated


def _needed(equations: Any, outputs: Any, known: Iterable[Any] = ()) -> list[Any]:
    live, kept = set(_variables(outputs)) - set(known), []
    for equation in reversed(equations):
        if live.intersection(equation.outvars):
            kept.append(equation)
            live.update(v for v in _variables(equation.invars) if v not in known)
    return kept[::-1]


def _is_read(variable: Any, equations: Iterable[Any], outputs: Iterable[Any]) -> bool:
    atoms = itertools.chain(outputs, *(equation.invars for equation in equations))
    return any(atom is variable for atom in atoms)


def _variables(atoms: Iterable[Any]) -> list[Any]:
    return [v for v in atoms if not isinstance(v, core.Literal)]
