# SPDX-License-Identifier: Apache-2.0
"""Reading jaxprs: running one, rewriting its products, and cutting one in two.

Only `jax.make_jaxpr`, `jax.extend.core` and what an equation offers are used. Since
jax 0.11 a closed jaxpr is a jaxpr; `opened` hides the difference.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

Arrays = list[Any]
Rule = Callable[[Any, Arrays], Any]
Rules = Mapping[str, Rule]


def opened(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """A jaxpr and the values of its constants."""
    return (jaxpr.jaxpr, jaxpr.consts) if hasattr(jaxpr, 'consts') else (jaxpr, ())


def evaluate(
    closed: Any,
    arguments: Iterable[Any],
    rules: Rules | None = None,
    known: Mapping[Any, Any] | None = None,
) -> Arrays:
    """Runs a jaxpr, nested `jit`s inlined.

    Args:
      rules: called as `rule(equation, operands)` for every equation, by the name of its
        primitive, in place of it; not within other control flow. Gives a list if the
        primitive has several results.
      known: variables that need not be computed.
    """
    jaxpr, _ = opened(closed)
    env = environment(closed, arguments) | dict(known or {})
    return run(jaxpr.eqns, env, jaxpr.outvars, rules)


def environment(
    closed: Any, arguments: Iterable[Any], strict: bool = True
) -> dict[Any, Any]:
    """What arguments, only the first ones unless `strict`, and constants stand for."""
    jaxpr, constants = opened(closed)
    env = dict(zip(jaxpr.invars, arguments, strict=strict))
    return env | dict(zip(jaxpr.constvars, constants, strict=True))


def run(
    equations: Iterable[Any],
    env: Mapping[Any, Any],
    outputs: Any,
    rules: Rules | None = None,
) -> Arrays:
    """The values of `outputs`: runs equations over an environment, but for those whose
    results it has."""
    env = dict(env)

    def read(variable: Any) -> Any:
        literal = isinstance(variable, core.Literal)
        return variable.val if literal else env[variable]

    for equation in equations:
        if equation.outvars and all(v in env for v in equation.outvars):
            continue
        values = list(map(read, equation.invars))
        env |= zip(
            equation.outvars, _result(equation, values, rules or {}), strict=True
        )
    return list(map(read, outputs))


def _result(equation: Any, values: Arrays, rules: Rules) -> Arrays:
    name = equation.primitive.name
    if name == 'jit':
        return evaluate(equation.params['jaxpr'], values, rules)
    if name not in rules:
        return bind(equation, values)
    result = rules[name](equation, values)
    return list(result) if equation.primitive.multiple_results else [result]


def apply(equation: Any, operands: Sequence[Any]) -> Any:
    """The one result of an equation, of other operands."""
    return bind(equation, operands)[0]


def bind(equation: Any, values: Sequence[Any]) -> Arrays:
    """The results of an equation, of other operands."""
    params = equation.primitive.get_bind_params(equation.params)
    if isinstance(params, tuple):
        functions, params = params
        values = [*functions, *values]
    result = equation.primitive.bind(*values, **params)
    return list(result) if equation.primitive.multiple_results else [result]


def trace(fn: Callable[..., Any], specs: Sequence[Any]) -> Any:
    """The jaxpr of `fn(*specs)`, a list of arrays, with nested `jit`s inlined."""
    nested = jax.make_jaxpr(fn)(*specs)
    return jax.make_jaxpr(lambda *leaves: evaluate(nested, leaves))(*specs)


# ---- products ------------------------------------------------------------------------


def rows_first(closed: Any, specs: Sequence[Any], fixed: int, turn: bool) -> Any:
    """The jaxpr with every product of a matrix without rows and what may have some
    written in the other order.

    Of a matrix times a vector `vmap` makes a product with its rows last, where neither
    buffers nor other products want them.

    Args:
      fixed: how many of the arguments, the first ones, have no rows.
      turn: whether a matrix whose last axis a product sums over is transposed before,
        which can then be done once for many products.
    """
    jaxpr, _ = opened(closed)
    _, varying = dependent(jaxpr, jaxpr.invars[fixed:])

    def product(equation: Any, operands: Arrays) -> Any:
        _, batch = equation.params['dimension_numbers']
        if any(batch) or len(variables(equation.invars)) < 2:
            return apply(equation, operands)
        left, right = (v in varying for v in equation.invars)
        if left == right:
            return apply(equation, operands)
        if left:
            return _times_matrix(equation, operands, turn)
        made = _times_matrix(_swapped(equation), operands[::-1], turn)
        free = operands[1].ndim - len(_summed(equation)[1])
        return jnp.moveaxis(made, range(free), range(-free, 0))

    def rewritten(*leaves: Any) -> Arrays:
        return evaluate(closed, leaves, {'dot_general': product})

    return jax.make_jaxpr(rewritten)(*specs)


def _summed(equation: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes of both operands that a product sums over."""
    axes: tuple[tuple[int, ...], tuple[int, ...]]
    axes, _ = equation.params['dimension_numbers']
    return axes


def _swapped(equation: Any) -> Any:
    """A product without batches, its operands the other way round."""
    precision = equation.params['precision']
    if isinstance(precision, tuple):
        precision = precision[::-1]
    numbers = (_summed(equation)[::-1], ((), ()))
    changed = {'dimension_numbers': numbers, 'precision': precision}
    return equation.replace(params={**equation.params, **changed})


def _times_matrix(equation: Any, operands: Arrays, turn: bool) -> Any:
    """The product of rows and a matrix, transposed before if that is wanted and
    helps."""
    rows, matrix = operands
    left, right = _summed(equation)
    if turn and matrix.ndim == 2 and right == (1,):
        matrix = jnp.swapaxes(matrix, 0, 1)
        numbers = {'dimension_numbers': ((left, (0,)), ((), ()))}
        equation = equation.replace(params={**equation.params, **numbers})
    return apply(equation, [rows, matrix])


def turned(closed: Any, fixed: int) -> tuple[Any, ...]:
    """The transposes in a jaxpr of what depends on nothing but the first arguments."""
    jaxpr, _ = opened(closed)
    varying, _ = dependent(jaxpr, jaxpr.invars[fixed:])
    return tuple(
        equation.outvars[0]
        for equation in jaxpr.eqns
        if equation.primitive.name == 'transpose' and equation not in varying
    )


def prepared(closed: Any, variables: Sequence[Any], fixed: Sequence[Any]) -> Arrays:
    """The values of variables that depend on nothing but the first arguments."""
    equations = needed(opened(closed)[0].eqns, variables)
    return run(equations, environment(closed, fixed, strict=False), variables)


# ---- dependence ----------------------------------------------------------------------


def depends(closed: Any) -> list[set[int]]:
    """The arguments that each output of a jaxpr depends on; looks into `jit`s."""
    jaxpr, _ = opened(closed)
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
    """

    closed: Any
    early: tuple[Any, ...]
    late: tuple[Any, ...]
    early_outputs: tuple[Any, ...]
    late_outputs: tuple[Any, ...]
    crossing: tuple[Any, ...]
    linear: tuple[bool, ...]

    def run_early(
        self, arguments: Sequence[Any], known: Mapping[Any, Any]
    ) -> tuple[Arrays, Arrays]:
        """The early outputs, and the values that cross.

        Args:
          known: variables that need not be computed.
        """
        wanted = self.early_outputs + self.crossing
        env = environment(self.closed, arguments) | dict(known)
        made = run(self.early, env, wanted)
        count = len(self.early_outputs)
        return made[:count], made[count:]

    def run_late(self, arguments: Sequence[Any], crossing: Sequence[Any]) -> Arrays:
        """The late outputs."""
        env = environment(self.closed, arguments)
        env |= zip(self.crossing, crossing, strict=True)
        return run(self.late, env, self.late_outputs)

    def reads(self, index: int) -> bool:
        """Whether anything reads argument `index`."""
        variable = opened(self.closed)[0].invars[index]
        early = _is_read(variable, self.early, self.early_outputs)
        return early or self.reads_late(index)

    def reads_late(self, index: int) -> bool:
        """Whether the late part reads argument `index`."""
        variable = opened(self.closed)[0].invars[index]
        return _is_read(variable, self.late, self.late_outputs)

    def used_up(self, index: int, variable: Any) -> bool:
        """Whether argument `index` has been read when a variable is there.

        XLA repeats simple equations wherever their results are needed, so what they
        make of the argument must all go into others that the variable depends on.
        """
        at_hand = {opened(self.closed)[0].invars[index]}
        before = set(needed(self.early, [variable]))
        for equation in self.early:
            if at_hand.isdisjoint(variables(equation.invars)):
                continue
            if equation.primitive.name in _SIMPLE:
                at_hand.update(equation.outvars)
            elif equation not in before:
                return False
        wanted = variables((*self.early_outputs, *self.crossing))
        return bool(before) and at_hand.isdisjoint(wanted)


def cut(closed: Any, late: int, fixed: int, cotangents: int) -> Cut:
    """Cuts a jaxpr by dependence.

    Args:
      late: how many of its outputs, the first ones, are late.
      fixed: how many of its arguments, the first ones, have no rows; what depends on
        nothing else is computed in both parts, and so is what costs less than to be
        stored.
      cotangents: how many of its arguments, the last ones, are cotangents.
    """
    jaxpr, _ = opened(closed)
    first = len(jaxpr.invars) - cotangents
    _, pulled = dependent(jaxpr, jaxpr.invars[first:])
    late_outputs, early_outputs = jaxpr.outvars[:late], jaxpr.outvars[late:]
    early = needed(jaxpr.eqns, early_outputs)
    varying, _ = dependent(jaxpr, jaxpr.invars[fixed:])
    repeated = _repeated(jaxpr, pulled)
    shared = {e for e in early if e in varying and e not in repeated}
    rest = [e for e in needed(jaxpr.eqns, late_outputs) if e not in shared]
    made = {v for e in shared for v in e.outvars}
    read = [v for e in rest for v in e.invars] + list(late_outputs)
    crossing = dict.fromkeys(v for v in variables(read) if v in made)
    # What `rest` needs only through values that cross is not needed any more.
    rest = needed(rest, late_outputs, known=made)
    linear = [v in pulled for v in crossing]
    parts = map(tuple, (early, rest, early_outputs, late_outputs, crossing, linear))
    return Cut(closed, *parts)


def dependent(jaxpr: Any, arguments: Iterable[Any]) -> tuple[set[Any], set[Any]]:
    """The equations and the variables that depend on some arguments."""
    found, equations = set(arguments), set()
    for equation in jaxpr.eqns:
        if found.intersection(variables(equation.invars)):
            found.update(equation.outvars)
            equations.add(equation)
    return equations, found


MOVES = frozenset(
    'broadcast_in_dim concatenate convert_element_type expand_dims reshape rev slice '
    'split squeeze transpose'.split()
)
# What XLA rather repeats than reads once more from memory.
_SIMPLE = MOVES | frozenset(
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
        inputs = variables(equation.invars)
        chosen = MOVES if pulled.intersection(inputs) else _CHEAP
        if equation.primitive.name in chosen and at_hand.issuperset(inputs):
            at_hand.update(equation.outvars)
            repeated.add(equation)
    return repeated


def is_inexact(x: Any) -> bool:
    """Whether something of a dtype has a gradient; integers have none."""
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def needed(
    equations: Any,
    outputs: Any,
    known: Iterable[Any] = (),
    keep: Iterable[Any] = (),
) -> list[Any]:
    """The equations that lead to `outputs` or are to be kept, in their order."""
    live, kept = set(variables(outputs)) - set(known), []
    for equation in reversed(equations):
        if equation in keep or live.intersection(equation.outvars):
            kept.append(equation)
            live.update(v for v in variables(equation.invars) if v not in known)
    return kept[::-1]


def _is_read(variable: Any, equations: Iterable[Any], outputs: Iterable[Any]) -> bool:
    atoms = itertools.chain(outputs, *(equation.invars for equation in equations))
    return any(atom is variable for atom in atoms)


def variables(atoms: Iterable[Any]) -> list[Any]:
    """Those of the atoms that are no literals."""
    return [v for v in atoms if not isinstance(v, core.Literal)]
