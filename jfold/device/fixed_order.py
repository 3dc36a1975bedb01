# SPDX-License-Identifier: Apache-2.0
"""Equations in forms that add up in one order, for `reproducible=True`.

What XLA makes of an equation must depend on its shapes alone: not on what is around it,
nor on the number of threads. Four things are known not to:

    products that sum over the rows of their left operand, as gradients of matrices do.
        For a CPU each thread takes a part of the sum. With the axis that is summed over
        last, one thread makes a number from its first summand to its last.
    sums over rows, as gradients of biases. Those of a CPU go by whether there are
        several threads; products with ones do not.
    rows added to those of a table, as gradients of embeddings do. A GPU adds them as
        they come. Sorted by their places, each place has a run of neighbours, of which
        the sum is a tree, and then at most one row to add.
    equations around: XLA fuses them where it pleases, and then multiplies and adds
        without rounding in between. So tiles have a barrier on either side. For a CPU
        that is gone by then: there each tile is a round of a loop, which nothing is
        fused with.
"""

from __future__ import annotations

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
    """A product, with what it sums over on the last axes of the left operand."""
    left, right = operands
    (summed, others), (batch, batch_right) = equation.params['dimension_numbers']
    free = [i for i in range(left.ndim) if i not in summed and i not in batch]
    order = [*batch, *free, *summed]
    # Else XLA would put a transpose, this one or another, back into the product.
    (left,) = xla.materialized([jnp.transpose(left, order)])
    places = range(left.ndim)
    first, last = len(batch), left.ndim - len(summed)
    numbers = (tuple(places[last:]), others), (tuple(places[:first]), batch_right)
    moved = equation.replace(params={**equation.params, 'dimension_numbers': numbers})
    (made,) = xla.materialized([jaxprs.apply(moved, [left, right])])
    return made


def total(equation: core.JaxprEqn, operands: Arrays) -> Array:
    """A sum over some axes, on a CPU as a product with ones."""
    (x,), axes = operands, equation.params['axes']
    if not axes or not x.size or not jnp.issubdtype(x.dtype, jnp.floating):
        return jaxprs.apply(equation, operands)

    def as_it_is(x: Array) -> Array:
        return jaxprs.apply(equation, [x])

    made: Array = lax.platform_dependent(
        x, cpu=lambda x: _times_ones(x, axes), default=as_it_is
    )
    return made


def _times_ones(x: Array, axes: tuple[int, ...]) -> Array:
    """The sum of an array over some axes."""
    rest = [i for i in range(x.ndim) if i not in axes]
    shape = [x.shape[i] for i in rest]
    count = math.prod(x.shape[i] for i in axes)
    highest = lax.Precision.HIGHEST
    # XLA would make a sum of it, if it knew that these are ones.
    (ones,) = xla.materialized([jnp.ones((1, count), x.dtype)])
    if axes == tuple(range(len(axes))):
        return jnp.matmul(ones, x.reshape(count, -1), precision=highest).reshape(shape)
    (x,) = xla.materialized([jnp.transpose(x, (*rest, *axes)).reshape(-1, count)])
    return jnp.matmul(x, ones.T, precision=highest).reshape(shape)


def added_rows(equation: core.JaxprEqn, operands: Arrays) -> Array:
    """A table [n, *shape] to which rows [rows, *shape] are added at places [rows, 1];
    any other form of `scatter-add` as it is."""
    if not _adds_rows(equation):
        return jaxprs.apply(equation, operands)

    def as_it_is(*operands: Array) -> Array:
        return jaxprs.apply(equation, operands)

    def sorted_first(table: Array, places: Array, rows: Array) -> Array:
        inside = _inside(equation.params['mode'], places[:, 0], len(table))
        return add_sorted(table, inside, rows)

    # A CPU adds one after another already, which takes a fraction of the time of
    # sorting them.
    made: Array = lax.platform_dependent(*operands, cpu=as_it_is, default=sorted_first)
    return made


def add_sorted(table: Array, places: Array, rows: Array) -> Array:
    """A table [n, *shape], with rows [rows, *shape] added at places [rows], of which
    those outside of it are left out: first the rows of each place, in a tree of sums
    that their order decides."""
    order = jnp.argsort(places, stable=True)
    places, rows = places[order], rows[order]
    changes = places[1:] != places[:-1]
    begins = jnp.concatenate([jnp.ones(1, bool), changes])
    ends = jnp.concatenate([changes, jnp.ones(1, bool)])
    _, sums = lax.associative_scan(_joined, (begins, rows))
    # The last row of a run has its sum. The others go nowhere, each to its own place.
    nowhere = len(table) + jnp.arange(len(places), dtype=places.dtype)
    targets = jnp.where(ends & (places < len(table)), places, nowhere)
    return table.at[targets].add(sums, mode='drop', unique_indices=True)


def _joined(one: tuple[Array, Array], two: tuple[Array, Array]) -> tuple[Array, Array]:
    """Whether a run begins in either of two parts [rows] each, and the sum of what is
    of the last run in them [rows, *shape] each."""
    (begins, before), (begins_again, rows) = one, two
    is_new = begins_again.reshape(begins_again.shape + (1,) * (rows.ndim - 1))
    return begins | begins_again, jnp.where(is_new, rows, before + rows)


def _adds_rows(equation: core.JaxprEqn) -> bool:
    """Whether an equation adds whole rows to those of a table."""
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


def _inside(mode: lax.GatherScatterMode, places: Array, count: int) -> Array:
    """Places [rows] from 0 on; `count` or more for what a scatter leaves out."""
    if mode == lax.GatherScatterMode.CLIP:
        return jnp.clip(places, 0, count - 1)
    return jnp.where((places >= 0) & (places < count), places, count)


RULES: Rules = {
    'dot_general': product,
    'reduce_sum': total,
    'scatter-add': added_rows,
    'scatter_add': added_rows,
}


def in_order(function: Callable[[Tree], Arrays], given: Tree) -> Arrays:
    """`function(given)` [*shape] each, with its equations in these forms."""
    leaves, structure = jax.tree.flatten(given)

    def of_leaves(*leaves: Array) -> Arrays:
        return function(jax.tree.unflatten(structure, leaves))

    return jaxprs.evaluate(jax.make_jaxpr(of_leaves)(*leaves), leaves, RULES)
