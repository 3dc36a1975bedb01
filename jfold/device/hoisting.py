# SPDX-License-Identifier: Apache-2.0
"""The loop-invariant products: those of inputs from outside of a recurrence.

A cell reads results of its own recurrence and, mostly, an item from outside of it. The
products of items and weights need no loop over levels. They are computed before the
loop, for all rows of the operation in large chunks, and stored in the order of its
rows: so a tile reads them by a slice, and gathers no item:

    x @ W          [rows, 4H]  all rows, before the loop
    ... + h @ U    [tile, 4H]  in each tile

In reverse the loop stashes cotangents of what it computes from them, as for gradients
of weights; the cotangents of the items come with those gradients, after the loop.

A hoisted value is stored, and its bytes are written and read instead of computed. So
products alone are hoisted, those with `WORTH` summands or more a number; elementwise
functions and data movement are computed again where they are read. For a gradient
products are stored anyway. Without one a CPU stores at most `ROOM` bytes of them for an
operation, which stay in its caches: more is memory that the system has to hand out, and
takes longer than it saves. With `residuals='recompute all'` nothing is stored, and
nothing leaves a loop. Functions with loops, cases, checkpoints or reverse rules inside
stay as they are.

The number of a product is its place among the `dot_general`s of the kernel's jaxpr;
*external* inputs come from outside of the recurrence, and so do external products.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from jax.extend import core

from jfold.base import jaxprs
from jfold.base.memo import memoized
from jfold.device.kernel import Kernel

if TYPE_CHECKING:
    from jfold.base.jaxprs import Atom

WORTH = 16  # a product is stored if each number has so many summands
ROOM = 1 << 22  # bytes of an operation's products that stay in the caches of a CPU


@memoized
def external_products(kernel: Kernel) -> tuple[int, ...]:
    """Return the numbers of products that depend on external inputs alone."""
    closed = kernel.forward(2)
    if not any(kernel.external) or not jaxprs.is_straight(closed):
        return ()
    equations = jaxprs.products(closed)
    # A product that depends on both kinds of inputs has to stay in the loop.
    recurrent, external = _dependent(kernel, False), _dependent(kernel, True)
    return tuple(
        k
        for k, equation in enumerate(equations)
        if k in kernel.row_axes and is_worth_storing(equation)
        if (v := equation.outvars[0]) in external and v not in recurrent
    )


@memoized
def hoisted_products(kernel: Kernel) -> tuple[int, ...]:
    """Return the numbers of the external products that the loop reads.

    Others lead only to further external products.
    """
    jaxpr, _ = jaxprs.open_jaxpr(kernel.forward(2))
    numbers = external_products(kernel)
    known = [kernel.products(2)[k] for k in numbers]
    # Some products only lead to other external ones, so the loop does not read them.
    steps = jaxprs.slice_for(jaxpr.eqns, jaxpr.outvars, known)
    read = {*_variables(steps), *jaxprs.variables(jaxpr.outvars)}
    return tuple(k for k, v in zip(numbers, known, strict=True) if v in read)


def hoisted_bytes(kernel: Kernel) -> int:
    """Return the number of bytes of hoisted products in one row."""
    rows = map(kernel.product_row, hoisted_products(kernel))
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in rows)


@memoized
def inputs_inside(kernel: Kernel, known: tuple[int, ...]) -> frozenset[int]:
    """Return the numbers of inputs that the loop computes outputs from.

    Products numbered in `known` are computed before the loop.
    """
    jaxpr, _ = jaxprs.open_jaxpr(kernel.forward(2))
    return _inputs_read(kernel, jaxpr.outvars, known)


@memoized
def inputs_outside(kernel: Kernel, wanted: tuple[int, ...]) -> frozenset[int]:
    """Return the numbers of the inputs that products `wanted` depend on."""
    return _inputs_read(kernel, [kernel.products(2)[k] for k in wanted], ())


def is_worth_storing(equation: core.JaxprEqn) -> bool:
    """Return whether a product has enough summands to be stored, not repeated."""
    (summed, _), _ = equation.params['dimension_numbers']
    shape = jaxprs.spec(equation.invars[0]).shape
    return math.prod(int(shape[axis]) for axis in summed) >= WORTH


def _dependent(kernel: Kernel, external: bool) -> set[core.Var]:
    """Return the variables that depend on external inputs, or on recurrent ones."""
    jaxpr, _ = jaxprs.open_jaxpr(kernel.forward(2))
    inputs = jaxpr.invars[kernel.weight_count :]
    pairs = zip(inputs, kernel.external, strict=False)
    return jaxprs.reachable(jaxpr, [v for v, x in pairs if x == external])[1]


def _inputs_read(
    kernel: Kernel, wanted: Iterable[Atom], known: Collection[int]
) -> frozenset[int]:
    """Return the numbers of the inputs that variables `wanted` are computed from.

    Products numbered in `known` are at hand, so their inputs are not read.
    """
    jaxpr, _ = jaxprs.open_jaxpr(kernel.forward(2))
    wanted, products = list(wanted), kernel.products(2)
    steps = jaxprs.slice_for(jaxpr.eqns, wanted, {products[k] for k in known})
    read = {*_variables(steps), *jaxprs.variables(wanted)}
    inputs = jaxpr.invars[kernel.weight_count :]
    return frozenset(a for a in range(len(kernel.types)) if inputs[a] in read)


def _variables(equations: Iterable[core.JaxprEqn]) -> list[core.Var]:
    """Return the variables that equations read."""
    return jaxprs.variables(v for e in equations for v in e.invars)
