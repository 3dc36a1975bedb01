# SPDX-License-Identifier: Apache-2.0
"""Loop-invariant products: what a recurrence multiplies of inputs from outside alone.

A cell reads results of its own recurrence and, mostly, an item from outside of it. The
products of the item and the weights need no loop over levels. They are taken of all
rows of the operation before it, in large chunks, and lie in the order of its rows, so
that a tile reads them by a slice, and gathers no item:

    x @ W          [rows, 4H]  all rows, before the loop
    ... + h @ U    [tile, 4H]  in each tile

In reverse the loop leaves the cotangents of what it has made of them, as it does for
the gradients of weights; those of the items are taken with these, after the loop.

What leaves the loop is stored, which costs its bytes, written and read, where a tile
would compute. So products alone do, those that add up `WORTH` numbers or more for each
of theirs; elementwise functions and what moves data are computed again where they are
read. For a gradient they are stored anyway. Without one a CPU has at most `ROOM` bytes
of them for an operation, which stay in its caches: more is memory that the system has
to hand out, and takes longer than it saves. With `residuals='recompute all'` nothing is
stored, and nothing leaves a loop. Functions with loops, cases, checkpoints or reverse
rules inside stay as they are.
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

WORTH = 16  # summands of a number that is worth being stored
ROOM = 1 << 22  # bytes of an operation's products that stay in the caches of a CPU


@memoized
def external_products(kernel: Kernel) -> tuple[int, ...]:
    """The products, by number, that depend on inputs from outside alone."""
    closed = kernel.forward(2)
    if not any(kernel.external) or not jaxprs.is_straight(closed):
        return ()
    equations = jaxprs.products(closed)
    own, items = _dependent(kernel, False), _dependent(kernel, True)
    return tuple(
        k
        for k, equation in enumerate(equations)
        if k in kernel.row_axes and is_worth_it(equation)
        if (v := equation.outvars[0]) in items and v not in own
    )


@memoized
def hoisted_products(kernel: Kernel) -> tuple[int, ...]:
    """Those of the external products that the loop reads."""
    jaxpr, _ = jaxprs.opened(kernel.forward(2))
    numbers = external_products(kernel)
    known = [kernel.products(2)[k] for k in numbers]
    rest = jaxprs.needed(jaxpr.eqns, jaxpr.outvars, known)
    read = {*_variables(rest), *jaxprs.variables(jaxpr.outvars)}
    return tuple(k for k, v in zip(numbers, known, strict=True) if v in read)


def hoisted_bytes(kernel: Kernel) -> int:
    """The size of a row of these."""
    rows = map(kernel.product_row, hoisted_products(kernel))
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in rows)


@memoized
def inputs_inside(kernel: Kernel, known: tuple[int, ...]) -> frozenset[int]:
    """The inputs that outputs are made of, where some products are known."""
    jaxpr, _ = jaxprs.opened(kernel.forward(2))
    return _inputs_read(kernel, jaxpr.outvars, known)


@memoized
def inputs_outside(kernel: Kernel, wanted: tuple[int, ...]) -> frozenset[int]:
    """The inputs that some products are made of."""
    return _inputs_read(kernel, [kernel.products(2)[k] for k in wanted], ())


def is_worth_it(equation: core.JaxprEqn) -> bool:
    """Whether a product adds up enough numbers to be stored rather than repeated."""
    (summed, _), _ = equation.params['dimension_numbers']
    shape = jaxprs.spec(equation.invars[0]).shape
    return math.prod(int(shape[axis]) for axis in summed) >= WORTH


def _dependent(kernel: Kernel, external: bool) -> set[core.Var]:
    """The variables that depend on inputs from outside, or on the others."""
    jaxpr, _ = jaxprs.opened(kernel.forward(2))
    given = jaxpr.invars[kernel.weight_count :]
    pairs = zip(given, kernel.external, strict=False)
    return jaxprs.dependent(jaxpr, [v for v, x in pairs if x == external])[1]


def _inputs_read(
    kernel: Kernel, wanted: Iterable[Atom], known: Collection[int]
) -> frozenset[int]:
    """The inputs that variables are made of, where some products are known."""
    jaxpr, _ = jaxprs.opened(kernel.forward(2))
    wanted, products = list(wanted), kernel.products(2)
    steps = jaxprs.needed(jaxpr.eqns, wanted, {products[k] for k in known})
    read = {*_variables(steps), *jaxprs.variables(wanted)}
    given = jaxpr.invars[kernel.weight_count :]
    return frozenset(a for a in range(len(kernel.types)) if given[a] in read)


def _variables(equations: Iterable[core.JaxprEqn]) -> list[core.Var]:
    """What equations read."""
    return jaxprs.variables(v for e in equations for v in e.invars)
