# SPDX-License-Identifier: Apache-2.0
"""Equations replaced by ones that add up in one order, for `reproducible=True`.

The order in which an equation adds up must depend on its shapes alone, not on the
equations around it or the number of threads. Four things are known to break that:

    products that sum over the rows of their left operand, as gradients of matrices do.
        On a CPU each thread takes a part of the sum. With the summed axis last, one
        thread adds up each number from its first summand to its last.
    sums over rows, as gradients of biases. On a CPU their order depends on whether
        there are several threads; that of products with ones does not.
    rows added to those of a table, as gradients of embeddings do. A GPU adds them as
        they come. Sorted by place, the rows of each place are neighbours, are added up
        in a tree, and leave at most one row to add.
    equations around: XLA fuses them where it pleases, and then multiplies and adds
        without rounding in between. So tiles have a barrier on either side. On a CPU
        the barrier is gone before fusion, but there each tile is a round of a loop,
        with which nothing is fused.

A function below computes the result of one equation (`RULES`: by primitive), given its
operands, in such a form.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend import core

from jfold.base import jaxprs
from jfold.base.arrays import Arrays
from jfold.device import xla

if TYPE_CHECKING:
    from jfold.base.jaxprs import Rules

Tree = TypeVar('Tree')


def product(equation: core.JaxprEqn, operands: Arrays) -> Array:
    """Compute a `dot_general`, with the summed axes of its left operand moved last."""
    left, right = operands
    (summed, others), (batch, batch_right) = equation.params['dimension_numbers']
    free = [i for i in range(left.ndim) if i not in summed and i not in batch]
    order = [*batch, *free, *summed]
    # Without a barrier XLA would fold the transpose back into the product.
    (left,) = xla.materialized([jnp.transpose(left, order)])
    places = range(left.ndim)
    first, last = len(batch), left.ndim - len(summed)
    numbers = (tuple(places[last:]), others), (tuple(places[:first]), batch_right)
    moved = equation.replace(params={**equation.params, 'dimension_numbers': numbers})
    (result,) = xla.materialized([jaxprs.apply(moved, [left, right])])
    return result


def reduce_sum(equation: core.JaxprEqn, operands: Arrays) -> Array:
    """Compute a `reduce_sum`, on a CPU as a matrix product with ones.

    Sums of integers, of no axes or of empty arrays run as they are.
    """
    (x,), axes = operands, equation.params['axes']
    if not axes or not x.size or not jnp.issubdtype(x.dtype, jnp.floating):
        return jaxprs.apply(equation, operands)

    def as_it_is(x: Array) -> Array:
        return jaxprs.apply(equation, [x])

    on_cpu = functools.partial(_times_ones, axes=axes)
    result: Array = lax.platform_dependent(x, cpu=on_cpu, default=as_it_is)
    return result


def _times_ones(x: Array, axes: tuple[int, ...]) -> Array:
    """Return the sum of `x` over `axes`, by a matrix product with ones."""
    free = [i for i in range(x.ndim) if i not in axes]
    shape = [x.shape[i] for i in free]
    count = math.prod(x.shape[i] for i in axes)
    highest = lax.Precision.HIGHEST
    # If XLA knew that these are ones, it would turn the product into a sum.
    (ones,) = xla.materialized([jnp.ones((1, count), x.dtype)])
    if axes == tuple(range(len(axes))):
        return jnp.matmul(ones, x.reshape(count, -1), precision=highest).reshape(shape)
    (x,) = xla.materialized([jnp.transpose(x, (*free, *axes)).reshape(-1, count)])
    return jnp.matmul(x, ones.T, precision=highest).reshape(shape)


def scatter_add_rows(equation: core.JaxprEqn, operands: Arrays) -> Array:
    """Add rows [rows, *shape] to a table [n, *shape] at row indices [rows, 1].

    Operands are the table, the indices and the rows. Any other form of `scatter-add`
    runs as it is.
    """
    if not _adds_rows(equation):
        return jaxprs.apply(equation, operands)

    def as_it_is(*operands: Array) -> Array:
        return jaxprs.apply(equation, operands)

    def sorted_first(table: Array, places: Array, rows: Array) -> Array:
        numbers, count = places[:, 0], len(table)
        if equation.params['mode'] == lax.GatherScatterMode.CLIP:
            inside = jnp.clip(numbers, 0, count - 1)
        else:  # rows with an index outside of the table are dropped
            inside = jnp.where((numbers >= 0) & (numbers < count), numbers, count)
        return add_sorted(table, inside, rows)

    # A CPU adds rows one after another already, much faster than it sorts them.
    sums: Array = lax.platform_dependent(*operands, cpu=as_it_is, default=sorted_first)
    return sums


def add_sorted(table: Array, places: Array, rows: Array) -> Array:
    """Add rows to a table, after sorting them by row index; return the table.

    Rows of one index are first added up in a tree, whose shape their order decides.

    Args:
      table: [n, *shape].
      places: [rows] int32, row indices from 0; rows with an index of `n` or more are
        dropped.
      rows: [rows, *shape].
    """
    order = jnp.argsort(places, stable=True)
    places, rows = places[order], rows[order]
    changes = places[1:] != places[:-1]
    begins = jnp.concatenate([jnp.ones(1, bool), changes])
    ends = jnp.concatenate([changes, jnp.ones(1, bool)])
    _, sums = lax.associative_scan(_joined, (begins, rows))
    # The last row of a run has its sum. The others go to places outside the table,
    # one each, since places must be unique.
    nowhere = len(table) + jnp.arange(len(places), dtype=places.dtype)
    targets = jnp.where(ends & (places < len(table)), places, nowhere)
    return table.at[targets].add(sums, mode='drop', unique_indices=True)


def _joined(one: tuple[Array, Array], two: tuple[Array, Array]) -> tuple[Array, Array]:
    """Combine neighbours `one`, `two` of a segmented sum, for `lax.associative_scan`.

    An element is a flag [rows], whether a run of equal indices begins in it, and the
    sum [rows, *shape] of its last run.
    """
    (begins, before), (begins_again, rows) = one, two
    is_new = begins_again.reshape(begins_again.shape + (1,) * (rows.ndim - 1))
    return begins | begins_again, jnp.where(is_new, rows, before + rows)


def _adds_rows(equation: core.JaxprEqn) -> bool:
    """Return whether a `scatter-add` adds whole rows to rows of a table."""
    params, (table, places, rows) = equation.params, map(jaxprs.spec, equation.invars)
    numbers = params['dimension_numbers']
    return (
        len(places.shape) == 2
        and places.shape[1] == 1
        and rows.shape[1:] == table.shape[1:]
        and numbers.update_window_dims == tuple(range(1, len(rows.shape)))
        and numbers.inserted_window_dims == (0,)
        and numbers.scatter_dims_to_operand_dims == (0,)
        and not numbers.operand_batching_dims
    )


RULES: Rules = {
    'dot_general': product,
    'reduce_sum': reduce_sum,
    'scatter-add': scatter_add_rows,
}


def in_order(function: Callable[[Tree], Arrays], argument: Tree) -> Arrays:
    """Return `function(argument)`, a list of arrays, with sums in a fixed order."""
    leaves, structure = jax.tree.flatten(argument)

    def of_leaves(*leaves: Array) -> Arrays:
        return function(jax.tree.unflatten(structure, leaves))

    return jaxprs.evaluate(jax.make_jaxpr(of_leaves)(*leaves), leaves, RULES)
