# SPDX-License-Identifier: Apache-2.0
"""Reading jaxprs: running one, and the dependence between its variables.

Only `jax.make_jaxpr`, `jax.extend.core` and the attributes of equations are used. Since
jax 0.11 a closed jaxpr is a jaxpr; `open_jaxpr` hides the difference.

An environment is a dict from the variables of a jaxpr to their values, arrays. An
*atom* is a variable or a literal. *Rules* are, by name of a primitive, functions
`rule(equation, operands)` to call in its place; they return one array, or a list for a
primitive with several results.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import jax
import jax.numpy as jnp
from jax.extend import core

from jfold.base.arrays import Arrays, Spec, Specs

if TYPE_CHECKING:
    Atom: TypeAlias = core.Var | core.Literal
    Result: TypeAlias = jax.Array | Sequence[jax.Array]
    Environment: TypeAlias = Mapping[core.Var, jax.Array]
Rule: TypeAlias = 'Callable[[core.JaxprEqn, Arrays], Result]'
Rules: TypeAlias = Mapping[str, Rule]


def open_jaxpr(jaxpr: Any) -> tuple[core.Jaxpr, Sequence[jax.Array]]:
    """Split a closed jaxpr into its open jaxpr and its constants, arrays [*shape].

    An open jaxpr is returned itself, with no constants.
    """
    return (jaxpr.jaxpr, jaxpr.consts) if hasattr(jaxpr, 'consts') else (jaxpr, ())


def evaluate(
    closed: core.ClosedJaxpr, arguments: Iterable[jax.Array], rules: Rules | None = None
) -> Arrays:
    """Run jaxpr `closed` on `arguments`, equation by equation; return its outputs.

    Equations inside nested `jit`s run one by one too. An equation of control flow runs
    as a whole, and no `rules` apply inside it.
    """
    jaxpr, _ = open_jaxpr(closed)
    return run(jaxpr.eqns, environment(closed, arguments), jaxpr.outvars, rules)


def environment(
    closed: core.ClosedJaxpr, arguments: Iterable[jax.Array], strict: bool = True
) -> dict[core.Var, jax.Array]:
    """Return the environment of `closed`: the values of its constants, and `arguments`.

    If `strict` is true, raise ValueError unless there is one argument per variable; if
    it is false, leave out variables without an argument.
    """
    jaxpr, constants = open_jaxpr(closed)
    env = dict(zip(jaxpr.invars, arguments, strict=strict))
    return env | dict(zip(jaxpr.constvars, constants, strict=True))


def run(
    equations: Iterable[core.JaxprEqn],
    env: Environment,
    outputs: Iterable[Atom],
    rules: Rules | None = None,
) -> Arrays:
    """Run `equations` in order and return the values of `outputs`, arrays [*shape].

    An equation is run by the one of `rules` for its primitive, if there is one, and
    skipped if `env`, which is not changed, has its results.
    """
    env = dict(env)

    def read(atom: Atom) -> jax.Array:
        return atom.val if isinstance(atom, core.Literal) else env[atom]

    for equation in equations:
        # An equation without results has an effect, as `jax.debug.print` has.
        if equation.outvars and all(v in env for v in equation.outvars):
            continue
        name, values = equation.primitive.name, list(map(read, equation.invars))
        if name == 'jit':
            results = evaluate(equation.params['jaxpr'], values, rules)
        elif rules and name in rules:
            results = _listed(equation, rules[name](equation, values))
        else:
            results = bind(equation, values)
        env |= zip(equation.outvars, results, strict=True)
    return list(map(read, outputs))


def apply(equation: core.JaxprEqn, operands: Sequence[jax.Array]) -> jax.Array:
    """Return the single result [*shape] of an equation, run on new operands."""
    return bind(equation, operands)[0]


def bind(equation: core.JaxprEqn, values: Sequence[jax.Array]) -> Arrays:
    """Return the list of all results of `equation`, run on `values` as operands."""
    primitive: Any = equation.primitive
    params = primitive.get_bind_params(equation.params)
    return _listed(equation, primitive.bind(*values, **params))


def _listed(equation: core.JaxprEqn, result: Any) -> Arrays:
    return list(result) if equation.primitive.multiple_results else [result]


def trace(fn: Callable[..., Arrays], specs: Specs) -> core.ClosedJaxpr:
    """Return the jaxpr of `fn`, traced at specs of its arguments, `jit`s inlined."""
    return inlined(jax.make_jaxpr(fn)(*specs))


def inlined(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Return jaxpr `closed` with its nested `jit`s inlined.

    As one equation, each result of a `jit` would depend on all of its operands.
    """
    jaxpr, _ = open_jaxpr(closed)
    has_jits = any(equation.primitive.name == 'jit' for equation in jaxpr.eqns)
    return rewritten(closed) if has_jits else closed


def rewritten(closed: core.ClosedJaxpr, rules: Rules | None = None) -> core.ClosedJaxpr:
    """Return jaxpr `closed` with `jit`s inlined and equations replaced by `rules`."""
    specs = map(spec, open_jaxpr(closed)[0].invars)
    return jax.make_jaxpr(lambda *leaves: evaluate(closed, leaves, rules))(*specs)


def check_rules(closed: core.ClosedJaxpr) -> None:
    """Raise TypeError if a rule of `custom_vjp` or `custom_jvp` closes over a tracer.

    Args:
      closed: the jaxpr of a layer's reverse. Values that the layer's function closes
        over are its arguments; those that a rule closes over are its constants. JAX
        compiles no loop that closes over tracers.
    """
    for constant in open_jaxpr(closed)[1]:
        if isinstance(constant, jax.core.Tracer):
            got = f'{constant.dtype}{list(constant.shape)}'
            raise TypeError(
                'expected a rule of `custom_vjp` or `custom_jvp` that closes over '
                f'numbers, got one that closes over {got}, which an enclosing '
                'transformation traces; make it an argument of the function'
            )


# ---- repeated equations --------------------------------------------------------------

# Primitives whose parameters hold no axis length. Other equations may differ at another
# number of rows although they are equal at the one at which a jaxpr is traced.
_SIZELESS = frozenset('add add_any concatenate mul neg sub transpose'.split())


def without_repeats(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Return `closed` with `jit`s inlined and equal `_SIZELESS` equations merged."""

    def first_alone(*leaves: jax.Array) -> Arrays:
        # The operands are stored, too: while they live, nothing else has their ids.
        first: dict[Any, tuple[Arrays, jax.Array]] = {}

        def once(equation: core.JaxprEqn, operands: Arrays) -> jax.Array:
            pairs = zip(equation.invars, operands, strict=True)
            read = (str(v) if isinstance(v, core.Literal) else id(x) for v, x in pairs)
            key = equation.primitive, str(equation.params), *read
            if key not in first:
                first[key] = operands, apply(equation, operands)
            return first[key][1]

        return evaluate(closed, leaves, dict.fromkeys(_SIZELESS, once))

    return jax.make_jaxpr(first_alone)(*map(spec, open_jaxpr(closed)[0].invars))


# ---- dependence ----------------------------------------------------------------------


def depends(closed: core.ClosedJaxpr, pulled: bool = False) -> list[set[int]]:
    """Return, for each output of `closed`, the indices of arguments it depends on.

    Nested `jit`s are looked into; any other equation depends on all its operands. If
    `pulled`, the result of a `stop_gradient` counts as depending on nothing.
    """
    jaxpr, _ = open_jaxpr(closed)
    sources = {variable: {place} for place, variable in enumerate(jaxpr.invars)}

    def read(atom: Atom) -> set[int]:
        return set() if isinstance(atom, core.Literal) else sources.get(atom, set())

    for equation in jaxpr.eqns:
        operands = list(map(read, equation.invars))
        if equation.primitive.name == 'jit':
            used = depends(equation.params['jaxpr'], pulled)
        elif pulled and equation.primitive.name == 'stop_gradient':
            used = [set()]
        else:
            used = [set(range(len(operands)))] * len(equation.outvars)
        for variable, places in zip(equation.outvars, used, strict=True):
            sources[variable] = set().union(*(operands[place] for place in places))
    return list(map(read, jaxpr.outvars))


def passed(closed: core.ClosedJaxpr) -> list[int | None]:
    """Return, for each output of `closed`, the index of an equal argument, or `None`.

    An output is `None` if it is computed or constant. Nested `jit`s are looked into.
    """
    jaxpr, _ = open_jaxpr(closed)
    sources = {variable: place for place, variable in enumerate(jaxpr.invars)}

    def read(atom: Atom) -> int | None:
        return None if isinstance(atom, core.Literal) else sources.get(atom)

    for equation in jaxpr.eqns:
        if equation.primitive.name == 'jit':
            operands = list(map(read, equation.invars))
            places = passed(equation.params['jaxpr'])
            for variable, place in zip(equation.outvars, places, strict=True):
                if place is not None and (argument := operands[place]) is not None:
                    sources[variable] = argument
    return list(map(read, jaxpr.outvars))


def constant(closed: core.ClosedJaxpr, output: int) -> jax.Array | None:
    """Return output number `output` [*shape] of `closed` if it is constant, or `None`.

    An output is not constant if it depends on an argument, or on a tracer of an
    enclosing transformation.
    """
    closed = inlined(closed)
    jaxpr, constants = open_jaxpr(closed)[0], environment(closed, (), strict=False)
    env = {v: x for v, x in constants.items() if not isinstance(x, jax.core.Tracer)}
    wanted = jaxpr.outvars[output : output + 1]
    steps = slice_for(jaxpr.eqns, wanted)
    known = {v for step in steps for v in step.outvars} | env.keys()
    if not known.issuperset(read_by(steps, wanted)):
        return None
    with jax.ensure_compile_time_eval():  # also where a model is made inside of a trace
        return run(steps, env, wanted)[0]


def products(closed: core.ClosedJaxpr) -> list[core.JaxprEqn]:
    """Return the `dot_general` equations of `closed`, but none of nested jaxprs."""
    return [e for e in open_jaxpr(closed)[0].eqns if e.primitive.name == 'dot_general']


def is_straight(closed: core.ClosedJaxpr) -> bool:
    """Return whether `closed` has no control flow, `custom_vjp` rules or effects.

    Checkpoints count as control flow, nested `jit`s do not.
    """
    return all(
        not equation.effects
        and (equation.primitive.name in _INLINED or not subjaxprs(equation))
        and all(map(is_straight, subjaxprs(equation)))
        for equation in open_jaxpr(closed)[0].eqns
    )


_INLINED = 'jit', 'custom_jvp_call'


def subjaxprs(equation: core.JaxprEqn) -> list[core.ClosedJaxpr]:
    """Return the jaxprs that an equation, such as a `scan`, has as parameters."""
    leaves = jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr)
    return list(filter(_is_jaxpr, leaves))


def _is_jaxpr(value: object) -> bool:
    return hasattr(open_jaxpr(value)[0], 'eqns')


def reachable(
    jaxpr: core.Jaxpr, sources: Iterable[core.Var]
) -> tuple[set[core.JaxprEqn], set[core.Var]]:
    """Return the equations and variables of `jaxpr` that depend on variables `sources`.

    Equations with a result in `sources` are included, and so are `sources`.
    """
    reached, equations = set(sources), set()
    for equation in jaxpr.eqns:
        if reached.intersection((*variables(equation.invars), *equation.outvars)):
            reached.update(equation.outvars)
            equations.add(equation)
    return equations, reached


# Names of primitives that move or cast data, and compute nothing.
MOVES = frozenset(
    'broadcast_in_dim concatenate convert_element_type reshape rev slice '
    'split squeeze stack transpose unstack'.split()
)


def spec(atom: Atom) -> Spec:
    """Return the shape and dtype of `atom`, a variable or a literal."""
    return cast(Spec, atom.aval)


def is_inexact(x: Any) -> bool:
    """Return whether an array or spec is of floats or complex numbers."""
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def slice_for(
    equations: Sequence[core.JaxprEqn],
    outputs: Iterable[Atom],
    known: Container[core.Var] = (),
    keep: Container[core.JaxprEqn] = (),
) -> list[core.JaxprEqn]:
    """Return, in order, the equations that must run to compute `outputs`.

    Variables in `known` need not be computed. Equations in `keep` are returned in any
    case, with those that they need.
    """
    live, kept = {v for v in variables(outputs) if v not in known}, []
    # Backwards: readers come after what they read.
    for equation in reversed(equations):
        if equation in keep or live.intersection(equation.outvars):
            kept.append(equation)
            live.update(v for v in variables(equation.invars) if v not in known)
    return kept[::-1]


def read_by(
    equations: Iterable[core.JaxprEqn], outputs: Iterable[Atom]
) -> list[core.Var]:
    """Return the variables that `equations` read, followed by those in `outputs`."""
    return variables([*(v for e in equations for v in e.invars), *outputs])


def variables(atoms: Iterable[Atom]) -> list[core.Var]:
    """Return the variables among atoms, in order."""
    return [v for v in atoms if not isinstance(v, core.Literal)]
