# SPDX-License-Identifier: Apache-2.0
"""Matrix products, and rows of tables: however a function writes them, tiles run one
form.

Of a matrix times a vector `vmap` makes a product with its rows last, where neither
buffers nor other products want them: it would be turned round to be stored. Of a row of
a table, `table[word]`, it makes a gather at two coordinates, whose reverse a TPU runs
row by row; at one, at once.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from jfold.device.arrays import Arrays, Specs
from jfold.device.jaxprs import apply, dependent, evaluate, opened, spec, variables


def rows_first(
    closed: core.ClosedJaxpr, specs: Specs, fixed: int, turn: bool
) -> core.ClosedJaxpr:
    """The jaxpr with every product of a matrix without rows and what may have some
    written in the other order, and every row of a table gathered.

    Args:
      fixed: how many of the arguments, the first ones, have no rows.
      turn: whether a matrix whose last axis a product sums over is transposed before,
        which can then be done once for many products.
    """
    jaxpr, _ = opened(closed)
    _, varying = dependent(jaxpr, jaxpr.invars[fixed:])

    def product(equation: core.JaxprEqn, operands: Arrays) -> jax.Array:
        # Products in batches and those with a number have no such matrix.
        _, batch = equation.params['dimension_numbers']
        if any(batch) or len(variables(equation.invars)) < 2:
            return apply(equation, operands)
        left, right = (v in varying for v in equation.invars)
        if left == right:
            return apply(equation, operands)
        if left:
            return _times_matrix(equation, operands, turn)
        # What is left of the rows' axes now comes first; the function wants it last.
        made = _times_matrix(_swapped(equation), operands[::-1], turn)
        free = operands[1].ndim - len(_summed(equation)[1])
        return jnp.moveaxis(made, range(free), range(-free, 0))

    def row(equation: core.JaxprEqn, operands: Arrays) -> jax.Array:
        known = variables(equation.invars[:2])  # of a table, and a row of it
        if len(known) < 2 or not _is_row(equation):
            return apply(equation, operands)
        table, number = (v in varying for v in known)
        if table or not number:
            return apply(equation, operands)
        return _row(*operands[:2])

    rules = {'dot_general': product, 'dynamic_slice': row}

    def rewritten(*leaves: jax.Array) -> Arrays:
        return evaluate(closed, leaves, rules)

    return jax.make_jaxpr(rewritten)(*specs)


def _summed(equation: core.JaxprEqn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes of both operands that a product sums over."""
    axes: tuple[tuple[int, ...], tuple[int, ...]]
    axes, _ = equation.params['dimension_numbers']
    return axes


def _swapped(equation: core.JaxprEqn) -> core.JaxprEqn:
    """A product without batches, its operands the other way round."""
    precision = equation.params['precision']
    if isinstance(precision, tuple):
        precision = precision[::-1]
    numbers = (_summed(equation)[::-1], ((), ()))
    changed = {'dimension_numbers': numbers, 'precision': precision}
    return _replaced(equation, changed)


def _times_matrix(equation: core.JaxprEqn, operands: Arrays, turn: bool) -> jax.Array:
    """The product of rows and a matrix, transposed before if that is wanted and
    helps."""
    rows, matrix = operands
    left, right = _summed(equation)
    if turn and matrix.ndim == 2 and right == (1,):
        matrix = jnp.swapaxes(matrix, 0, 1)
        numbers = {'dimension_numbers': ((left, (0,)), ((), ()))}
        equation = _replaced(equation, numbers)
    return apply(equation, [rows, matrix])


def _replaced(equation: core.JaxprEqn, params: dict[str, Any]) -> core.JaxprEqn:
    made: core.JaxprEqn = equation.replace(params={**equation.params, **params})
    return made


def _is_row(equation: core.JaxprEqn) -> bool:
    """Whether a slice is all that has one number on the first axis."""
    whole: tuple[int, ...] = spec(equation.invars[0]).shape
    return bool(whole) and equation.params['slice_sizes'] == (1, *whole[1:])


def _row(table: jax.Array, number: jax.Array) -> jax.Array:
    """The row [1, *shape] of a table [n, *shape] whose number [] is given, or the next
    one that there is."""
    axes = tuple(range(table.ndim - 1))
    numbers = lax.GatherDimensionNumbers(axes, (0,), (0,))
    found = lax.gather(table, number[None], numbers, (1, *table.shape[1:]), mode='clip')
    return found[None]
