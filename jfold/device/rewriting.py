# SPDX-License-Identifier: Apache-2.0
"""Rewriting layers as their authors might have: the same values, by fewer kernels.

Gates are often written one by one, each with a matrix of its own or a slice of its own:

    f = sigmoid(h @ U + x[:n])          x, y = split(x, 2)
    g = tanh(h @ V + x[n:])        ->   u, v = split(h @ concatenate([U, V], 1), 2)
                                        f, g = sigmoid(u + x), tanh(v + y)

Joined matrices depend on parameters alone, so they are copied once, before all loops.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
from jax import lax
from jax.extend import core

from jfold.base import jaxprs
from jfold.base.arrays import Arrays
from jfold.base.jaxprs import spec

if TYPE_CHECKING:
    from jfold.base.jaxprs import Environment

JOINED = 1 << 20  # bytes of all matrices for one value; larger ones stay apart


def rewritten(
    closed: core.ClosedJaxpr, parameters: int, first: int
) -> core.ClosedJaxpr:
    """Return a layer's jaxpr with gates computed together.

    Args:
      parameters: how many arguments are parameters; inputs come after them.
      first: the first axis along which arrays may be split, 1 if the first is of rows.
    """
    return with_joint_products(with_splits(closed, first), parameters)


# ---- slices --------------------------------------------------------------------------


def with_splits(closed: core.ClosedJaxpr, first: int = 0) -> core.ClosedJaxpr:
    """Return `closed` with slices that take an array apart replaced by one `split`.

    Derivatives of a split are concatenated. Those of slices are each padded to the
    array's shape and then added up, which takes longer.

    Args:
      first: the first axis along which arrays may be split.
    """
    slices = defaultdict[core.Var, list[core.JaxprEqn]](list)
    for equation in jaxprs.open_jaxpr(closed)[0].eqns:
        if equation.primitive.name == 'slice':
            for variable in jaxprs.variables(equation.invars):
                slices[variable].append(equation)
    found = {v: _split(v, equations, first) for v, equations in slices.items()}
    splits = {v: x for v, x in found.items() if x is not None}
    if not splits:
        return closed
    parts: dict[core.Var, Sequence[jax.Array]] = {}

    def part(equation: core.JaxprEqn, operands: Arrays) -> jax.Array:
        (operand,) = equation.invars
        if operand not in splits:
            return jaxprs.apply(equation, operands)
        axis, ranges = splits[operand]
        if operand not in parts:
            sizes = [end - start for start, end in ranges]
            parts[operand] = lax.split(operands[0], sizes, axis)
        return parts[operand][ranges.index(_ranges(equation)[axis])]

    return jaxprs.rewritten(closed, {'slice': part})


def _split(
    operand: core.Var, slices: Sequence[core.JaxprEqn], first: int
) -> tuple[int, list[tuple[int, int]]] | None:
    """Return an axis and its ranges if `slices` take `operand` apart there, or `None`.

    Axes before `first` do not count.
    """
    shape = spec(operand).shape
    found = set(map(_ranges, slices))
    axes = {k for x in found for k, n in enumerate(shape) if x[k] != (0, n)}
    strided = any(set(e.params['strides'] or (1,)) != {1} for e in slices)
    if strided or len(axes) != 1 or min(axes) < first:
        return None
    (axis,) = axes
    ranges = sorted(x[axis] for x in found)
    starts, ends = zip(*ranges, strict=True)
    covers = (*starts, shape[axis]) == (0, *ends)
    return (axis, ranges) if covers else None


def _ranges(equation: core.JaxprEqn) -> tuple[tuple[int, int], ...]:
    """Return the range, by axis, that a `slice` takes."""
    starts, ends = (equation.params[f'{x}_indices'] for x in ('start', 'limit'))
    return tuple(zip(starts, ends, strict=True))


# ---- products ------------------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    """A product of a weight and a value that depends on inputs.

    Attributes:
      result: the variable of the product.
      place: the index of the weight among the operands.
      axis: the axis of the weight along which others can be joined to it.
      result_axis: the same axis in the result.
      outputs: the indices of the outputs that depend on it.
      key: equal for products whose weights can be joined.
    """

    result: core.Var
    weight: core.Var
    place: int
    axis: int
    result_axis: int
    outputs: frozenset[int]
    key: Hashable


def with_joint_products(closed: core.ClosedJaxpr, parameters: int) -> core.ClosedJaxpr:
    """Return `closed` with products of one value and several weights made one product.

    Some output must depend on all of them: else one might run in vain.

    Args:
      parameters: how many arguments are parameters; inputs come after them.
    """
    jaxpr, _ = jaxprs.open_jaxpr(closed)
    late, moving = jaxprs.reachable(jaxpr, jaxpr.invars[parameters:])
    outputs = _outputs_by_variable(jaxpr)
    found = (_product(e, moving, outputs) for e in jaxprs.products(closed))
    groups = filter(_pays, _groups(filter(None, found)))
    group_of = {x.result: group for group in groups for x in group}
    if not group_of:
        return closed

    def joined(*leaves: jax.Array) -> Arrays:
        env = jaxprs.environment(closed, leaves)
        # Weights may be computed after the first product that they are joined for.
        early = [e for e in jaxpr.eqns if e not in late]
        variables = [v for e in early for v in e.outvars]
        env |= zip(variables, jaxprs.run(early, env, variables), strict=True)
        parts: dict[core.Var, jax.Array] = {}

        def part(equation: core.JaxprEqn, operands: Arrays) -> jax.Array:
            (variable,) = equation.outvars
            if variable not in group_of:
                return jaxprs.apply(equation, operands)
            if variable not in parts:
                parts.update(
                    _joint_results(equation, operands, group_of[variable], env)
                )
            return parts[variable]

        steps = [e for e in jaxpr.eqns if e in late]
        return jaxprs.run(steps, env, jaxpr.outvars, {'dot_general': part})

    return jax.make_jaxpr(joined)(*map(spec, jaxpr.invars))


def _product(
    equation: core.JaxprEqn,
    moving: Container[core.Var],
    outputs: Mapping[core.Var, frozenset[int]],
) -> Product | None:
    """Return the `Product` of an equation, or `None` if it is none.

    Args:
      moving: the variables that depend on inputs.
      outputs: by variable, the outputs that depend on it.
    """
    contracted, (batch, _) = equation.params['dimension_numbers']
    variables = jaxprs.variables(equation.invars)
    are_moving = [v in moving for v in variables]
    if batch or sorted(are_moving) != [False, True]:
        return None
    place = are_moving.index(False)
    weight, value = (variables[k] for k in (place, 1 - place))
    shape = spec(weight).shape
    free = [k for k in range(len(shape)) if k not in contracted[place]]
    if not free:
        return None
    axis, result = free[0], equation.outvars[0]
    rest = shape[:axis], shape[axis + 1 :], spec(weight).dtype
    key = value, place, rest, str(equation.params)
    # The axes that are left of the first operand come first in the result.
    result_axis = len(spec(value).shape) - len(contracted[1 - place]) if place else 0
    return Product(result, weight, place, axis, result_axis, outputs[result], key)


def _groups(products: Iterable[Product]) -> Iterator[list[Product]]:
    """Return products in groups that can be joined, each for an output of them all."""
    groups = defaultdict[Hashable, list[list[Product]]](list)
    for product in products:
        others = groups[product.key]
        for group in others:
            if product.outputs.intersection(*(x.outputs for x in group)):
                group.append(product)
                break
        else:
            others.append([product])
    return itertools.chain(*groups.values())


def _pays(products: Sequence[Product]) -> bool:
    """Return whether several weights are multiplied, and are small enough to copy."""
    weights = {x.weight: spec(x.weight) for x in products}
    size = sum(math.prod(x.shape) * x.dtype.itemsize for x in weights.values())
    return len(weights) > 1 and size <= JOINED


def _joint_results(
    equation: core.JaxprEqn,
    operands: Sequence[jax.Array],
    products: Sequence[Product],
    env: Environment,
) -> dict[core.Var, jax.Array]:
    """Return the results of `products`, of which `equation` is one, by variable."""
    (one, *_), operands = products, [*operands]
    weights = {x.weight: env[x.weight] for x in products}
    operands[one.place] = lax.concatenate([*weights.values()], one.axis)
    sizes = [x.shape[one.axis] for x in weights.values()]
    parts = lax.split(jaxprs.apply(equation, operands), sizes, one.result_axis)
    part_of = dict(zip(weights, parts, strict=True))
    return {x.result: part_of[x.weight] for x in products}


def _outputs_by_variable(jaxpr: core.Jaxpr) -> dict[core.Var, frozenset[int]]:
    """Return, by variable of `jaxpr`, the indices of outputs that depend on it.

    Those that do so only through `stop_gradient` are left out: no cotangent comes back
    from them, and of one that is zero infinite weights would make NaN.
    """
    found = defaultdict[core.Var, frozenset[int]](frozenset)
    for k, variable in enumerate(jaxpr.outvars):
        for v in jaxprs.variables([variable]):
            found[v] |= {k}
    for equation in reversed(jaxpr.eqns):
        reached = frozenset().union(*(found[v] for v in equation.outvars))
        if equation.primitive.name != 'stop_gradient':
            for v in jaxprs.variables(equation.invars):
                found[v] |= reached
    return found
