# SPDX-License-Identifier: Apache-2.0
"""Loop-invariant products: matrix products of inputs from outside of a recurrence.

A cell reads results of its own recurrence and, mostly, an item from outside of it. The
products of items and weights need no loop over levels. They are computed before the
loop, for all rows of the operation in large chunks, and stored in the order of its
rows: so a tile reads them by a slice, and gathers no item:

    x @ W          [rows, 4H]  all rows, before the loop
    ... + h @ U    [tile, 4H]  in each tile

In reverse the loop stashes cotangents, such as that of `x @ W`. The cotangents of the
items are computed from them after the loop, together with the gradients of weights.

A hoisted value is stored, and its bytes are written and read instead of computed. So
only products are hoisted, where each number of the result is a sum of `WORTH` summands
or more; elementwise functions and data movement are computed again where they are read.
For a gradient products are stored anyway. Without one a CPU stores at most `ROOM` bytes
of products for an operation, which stay in its caches: more is memory that the system
has to hand out, and takes longer than it saves. With `residuals='recompute all'`
nothing is stored, and nothing leaves a loop. Functions with loops, branches,
checkpoints or reverse rules inside stay as they are.

The number of a product is its place among the `dot_general`s of the kernel's jaxpr;
*external* inputs come from outside of the recurrence, and so do external products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jax.extend import core

from jfold.base import jaxprs
from jfold.base.memo import memoized
from jfold.device.kernel import Kernel

WORTH = 16  # a product is stored if its numbers have this many summands, or more
ROOM = 1 << 22  # bytes of an operation's products that stay in the caches of a CPU


@memoized
def external_products(kernel: Kernel) -> tuple[int, ...]:
    """Return the numbers of matrix products that need no result of the recurrence."""
    closed = kernel.forward(2)
    if not any(kernel.external) or not jaxprs.is_straight(closed):
        return ()
    jaxpr, _ = jaxprs.open_jaxpr(closed)
    inputs = jaxpr.invars[kernel.weight_count :]
    pairs = list(zip(inputs, kernel.external, strict=False))
    _, external = jaxprs.reachable(jaxpr, [v for v, outside in pairs if outside])
    _, recurrent = jaxprs.reachable(jaxpr, [v for v, outside in pairs if not outside])
    # A product that depends on both kinds of inputs has to stay in the loop.
    return tuple(
        k
        for k, equation in enumerate(jaxprs.products(closed))
        if k in kernel.row_axes and is_worth_storing(equation)
        if (v := equation.outvars[0]) in external and v not in recurrent
    )


@memoized
def hoisted_products(kernel: Kernel, wanted: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Return the numbers of external products that the loop reads, or are `wanted`.

    They are computed before the loop. External products that only other external
    products read are left out.
    """
    numbers = external_products(kernel)
    read = _variables_read(kernel, numbers, ())
    return tuple(k for k in numbers if k in wanted or kernel.products(2)[k] in read)


@memoized
def inputs_read(
    kernel: Kernel, known: tuple[int, ...], wanted: tuple[int, ...] = ()
) -> frozenset[int]:
    """Return the inputs needed for products `wanted`, or for outputs if it is empty.

    Inputs that only the computed products `known` read are not needed.
    """
    jaxpr, _ = jaxprs.open_jaxpr(kernel.forward(2))
    read = _variables_read(kernel, known, wanted)
    inputs = jaxpr.invars[kernel.weight_count :]
    return frozenset(a for a in range(len(kernel.types)) if inputs[a] in read)


def is_worth_storing(equation: core.JaxprEqn) -> bool:
    """Return whether a `dot_general` costs enough to be stored, not recomputed."""
    (summed, _), _ = equation.params['dimension_numbers']
    shape = jaxprs.spec(equation.invars[0]).shape
    return math.prod(int(shape[axis]) for axis in summed) >= WORTH


def _variables_read(
    kernel: Kernel, known: Sequence[int], wanted: Sequence[int]
) -> set[core.Var]:
    """Return the variables needed for products `wanted`, or for outputs if it is empty.

    Variables that only the computed products `known` read are left out.
    """
    jaxpr, _ = jaxprs.open_jaxpr(kernel.forward(2))
    products = kernel.products(2)
    atoms = [products[k] for k in wanted] or jaxpr.outvars
    steps = jaxprs.slice_for(jaxpr.eqns, atoms, {products[k] for k in known})
    return set(jaxprs.read_by(steps, atoms))
