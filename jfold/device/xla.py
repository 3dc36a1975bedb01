# SPDX-License-Identifier: Apache-2.0
"""The workarounds for faults of XLA and JAX.

`test_xla.py` compiles each beside its plain form; once the plain form no longer has the
fault, that test fails and the workaround may go. The fault that `materialized` avoids
shows on a GPU only, so its test is part of `make accelerators`.

In shapes, `size` counts the rows of a buffer, `rows` or `n` those read or written.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend import core

from jfold.base import jaxprs
from jfold.base.arrays import Arrays
from jfold.device.buffers import Number, slice_rows, take, write
from jfold.scheduling.staircase import NARROW

if TYPE_CHECKING:
    from jfold.base.jaxprs import Atom, Environment, Rules

Carry = TypeVar('Carry')
Tree = TypeVar('Tree')

# ---- loops one behind another --------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Chained(Generic[Carry]):
    """The state of successive loops, and a number that keeps XLA to their order.

    XLA orders two loops only if one depends on the other. A loop that reads a buffer,
    beside one that writes it, made XLA copy the whole buffer at each level: 150 ms
    where 69 ms is the perfect batch. Each loop therefore starts from a number that the
    loop before it has left.

    Attributes:
      zero: [] int32, zero, but XLA does not know that: the row at which the last loop
        stopped, less the row at which it had to.
      carry: the state that the loops change, a pytree.
    """

    zero: Array | int
    carry: Carry


def loop_after(
    more: Callable[[Array], Array],
    step: Callable[[Array, Carry], tuple[Array, Carry]],
    row: Array,
    carry: Carry,
) -> tuple[Array, Carry]:
    """Loop over rows: `row, carry = step(row, carry)` while `more(row)`; return both.

    The loop counts rows, not rounds, so that no further counter is computed before it
    or carried in it: each such number is a kernel to compile.

    XLA in jax 0.10.2 miscounts rounds by more than one, where it sees a number compared
    with a constant: from 0 by 4, while less than 1, is no round. Schedules may be
    constants, by `jax.jit` that closes over them, and then gradients were zero. So
    `more` asks the number of rows left, a difference, which XLA does not analyse.

    Args:
      row: [] int32, the first row index, to which `Chained.zero` has been added.
    """
    more_left, next_round = lambda s: more(s[0]), lambda s: step(*s)
    done: tuple[Array, Carry] = lax.while_loop(more_left, next_round, (row, carry))
    return done


def write_after(read: Arrays, x: Array, first: Array | int) -> Array:
    """Return `x` unchanged; XLA writes it to row `first` only after reading `read`.

    Where a result does not depend on an input of its own type, XLA may write the result
    before it reads the input, and then copies the whole buffer for each tile: a cell of
    two states, each made of the other, took ten times as long on 64 trees of 64 leaves
    at H = 128.

    Args:
      read: list of arrays, each [rows, *shape], read from the buffer that `x` will be
        written to; not those that `x` is computed from, as XLA sees that order.
      x: [rows, *shape].
      first: a row index, never negative; XLA does not know that, and keeps the order.
    """
    for rows in read:
        x = jnp.where(first >= 0, x.astype(rows.dtype), rows)
    return x


def materialized(rows: Arrays) -> Arrays:
    """Return arrays unchanged, behind a barrier: XLA computes each only once.

    For a GPU XLA gathers rows again wherever that saves a kernel, and so beside the
    writes to the same buffer, which it then copies as a whole if there are several:
    twice in each step of training the child-sum trees of `benchmarks/kernels.py`. With
    the barrier a step has one kernel more and neither copy.
    """
    result: Arrays = lax.optimization_barrier(rows)  # type: ignore[no-untyped-call]
    return result


def tie_batching(values: Tree, arguments: Arrays) -> Tree:
    """Return a pytree unchanged, but batched by `jax.vmap` wherever an argument is.

    JAX batches the outputs of a `jax.custom_jvp` if they depend on mapped values, and
    those of its rule if the tangents depend on mapped values. Where an output depends
    on fewer arguments, like a residual of one argument alone or the zero gradient of a
    weight behind `stop_gradient`, the two differ, and a `jvp` of a `vmap` of a `vjp`
    fails. XLA drops a choice between equal values.
    """
    firsts = [lax.slice(x.ravel(), (0,), (1,)) for x in arguments if x.size]
    if not firsts:
        return values
    is_same = functools.reduce(jnp.logical_and, map(jnp.equal, firsts, firsts))[0]
    result: Tree = jax.tree.map(lambda x: lax.select_n(is_same, x, x), values)
    return result


def isolated(fn: Callable[..., Tree], *arguments: Any) -> Tree:
    """Return `fn(*arguments)`, computed on a CPU by kernels that XLA fuses no further.

    `fn` becomes a function of XLA's, which XLA is told not to inline.
    """

    def called(*arguments: Any) -> Tree:
        with set_xla_metadata(inlineable='false'):  # type: ignore[no-untyped-call]
            result: Tree = jax.jit(fn)(*arguments)
        return result

    result: Tree = lax.platform_dependent(*arguments, cpu=called, default=fn)
    return result


def isolated_slices(buffers: Arrays, first: Array | int, rows: int) -> Arrays:
    """Return successive rows [rows, ...] of each buffer, by XLA kernels of their own.

    For a CPU XLA fuses a slice at an index unknown to it into every kernel that reads
    it, and then vectorises none of them: an LSTM's step of 32 rows, H = 128, took 94 us
    with such a slice among the summands of its gates, and 34 without.
    """

    def slices(first: Array | int, *buffers: Array) -> Arrays:
        return [slice_rows(x, first, rows) for x in buffers]

    return isolated(slices, first, *buffers) if buffers else []


def write_alone(buffer: Array, rows: Array, first: Number, base: int = 0) -> Array:
    """Return a buffer [size, ...], with rows [count, ...] written at `base + first`.

    For a CPU XLA fuses a write at an index unknown to it with all that makes the rows,
    and vectorises none of that: 32 trees of 32 leaves, H = 32, took 1.4 ms forward and
    take 0.5 with a kernel for the write alone. Of `base + first`, computed outside, XLA
    would make one more kernel.
    """

    def written(buffer: Array, rows: Array, first: Number) -> Array:
        return write(buffer, rows, base + first)

    return isolated(written, buffer, rows, first)


FEW = 8  # rows, the most that `take_alone` slices
SHARED = 1 << 19  # bytes of a buffer of which XLA gathers rows by several threads


def take_alone(buffer: Array, rows: Array) -> Array:
    """Return rows [count, ...] of a buffer [size, ...], few of them by one thread.

    However few they are, XLA has several threads share a gather from a large buffer,
    and waits for them, which it does not for slices. A level of a chain of 5,000 cells,
    H = 64, took 5.9 us forward and 14 in training, and takes 3.0 and 7.7.

    Args:
      rows: [count] int32 row indices within the buffer.
    """
    if len(rows) > FEW or buffer.size * buffer.dtype.itemsize < SHARED:
        return take(buffer, rows)

    def slices(buffer: Array, rows: Array) -> Array:
        firsts = [lax.squeeze(x, (0,)) for x in jnp.split(rows, len(rows))]
        return jnp.concatenate([slice_rows(buffer, first, 1) for first in firsts])

    return isolated(slices, buffer, rows)


def gathered(buffer: Array, places: Sequence[Array]) -> Arrays:
    """Return the rows [n, *shape] of a buffer at each index array in `places`.

    A TPU starts three kernels for each gather, so it gathers all rows at once. For a
    GPU XLA makes one kernel of several gathers that are apart; if they are one gather,
    it copies its parts before it multiplies them.
    """

    def at_once(buffer: Array, *places: Array) -> Arrays:
        return jnp.split(take(buffer, jnp.concatenate(places)), len(places))

    def apart(buffer: Array, *places: Array) -> Arrays:
        return [take(buffer, rows) for rows in places]

    if len(places) == 1:
        return [take(buffer, places[0])]
    result: Arrays = lax.platform_dependent(buffer, *places, tpu=at_once, default=apart)
    return result


# ---- buffers of different lengths ----------------------------------------------------


def extra_rows(even: bool) -> Iterator[int]:
    """Yield different numbers of rows, all even or all odd, to lengthen new buffers by.

    XLA makes one buffer of two that have one shape and are filled with zeros, and
    copies it; buffers that differ by a row are each made in place. This took 2 % off
    training on 64 trees of 128 leaves at H = 256.
    """
    return itertools.count(0 if even else 1, 2)


# ---- sharing of places ---------------------------------------------------------------

# Functions that XLA computes again wherever their results are needed, rather than
# reading the results from memory.
REPEATED = jaxprs.MOVES | frozenset(
    'abs add add_any and ceil clamp copy eq floor ge gt integer_pow iota is_finite le '
    'lt max min mul ne neg not or pad select_n sign square stop_gradient sub '
    'xor'.split()
)


def is_read_before(
    argument: core.Var,
    variable: core.Var,
    equations: Sequence[core.JaxprEqn],
    outputs: Sequence[Atom],
) -> bool:
    """Return whether `variable` is computed after all reads of `argument`.

    Then the variable may be written in the argument's place. Results of simple
    equations on the argument may only go into others that the variable depends on, for
    XLA may repeat them later. Before that was required, a cell with a rectifier read a
    product whose place had been given away, so XLA copied the buffer twice for each
    tile: training a batch of 256 of the paper's trees took 1.71 times as long as node
    by node, since then 1.19.

    Args:
      equations: of the jaxpr in which both are, in order.
      outputs: of the jaxpr; none may read the argument.
    """
    # The argument, and results that XLA may compute from it again.
    materialized = {argument}
    before = set(jaxprs.slice_for(equations, [variable]))
    for equation in equations:
        if materialized.isdisjoint(jaxprs.variables(equation.invars)):
            continue
        if equation.primitive.name in REPEATED:
            materialized.update(equation.outvars)
        elif equation not in before:
            return False
    # Without equations before it `variable` would be an argument, there from the start.
    return bool(before) and materialized.isdisjoint(jaxprs.variables(outputs))


# ---- transposed matrices -------------------------------------------------------------

# The first `fixed` arguments of a jaxpr are weights, without an axis of rows.


def shares_transposes(rows: int) -> bool:
    """Return whether tiles of `rows` rows read matrices transposed before the loops.

    A product that sums over the last axis of a matrix, as the reverse of `x @ W` does,
    makes XLA transpose the matrix each time. With 32 x 32 leaves at H = 128 such a
    product of 8 rows took 143 us and of 32 rows 131; with a transpose made before the
    loops, 29 and 80. For 64 rows or more it is the same or slower.
    """
    return rows < NARROW


def transposed(closed: core.ClosedJaxpr, fixed: int) -> list[core.Var]:
    """Return transposes in a jaxpr that depend on its first `fixed` arguments alone."""
    jaxpr, _ = jaxprs.open_jaxpr(closed)
    varying, _ = jaxprs.reachable(jaxpr, jaxpr.invars[fixed:])
    return [
        equation.outvars[0]
        for equation in jaxpr.eqns
        if equation.primitive.name == 'transpose' and equation not in varying
    ]


def transposes(closed: core.ClosedJaxpr, fixed: Arrays) -> Arrays:
    """Compute the transposes [n, m] that a jaxpr makes of the weights `fixed` alone."""
    wanted = transposed(closed, len(fixed))
    equations = jaxprs.slice_for(jaxprs.open_jaxpr(closed)[0].eqns, wanted)
    env = jaxprs.environment(closed, fixed, strict=False)
    return jaxprs.run(equations, env, wanted)


def shared(closed: core.ClosedJaxpr, fixed: int, values: Arrays) -> Environment:
    """Map `transposed(closed, fixed)` to `values` [n, m], results of `transposes`."""
    pairs = zip(transposed(closed, fixed), values, strict=True)
    # A transpose of another shape has rows, such as that of a constant of zero
    # cotangents.
    return {v: x for v, x in pairs if jaxprs.spec(v).shape == x.shape}


# ---- products, rows first ------------------------------------------------------------

# However a function writes products of matrices and vectors, and rows of tables, tiles
# run one form:
#
#     written by `vmap`             run                             that would be
#     k [m, n] @ x [n, rows]        x [rows, n] @ k.T [n, m]        turned round, to be
#                                                                   stored by rows
#     table[number, all of 0:m]     table[number]                   reversed row by row,
#                                                                   on a TPU
#
# XLA chooses no layout for the carry of a loop: buffers have rows first, and so have
# tiles read from them. A product with rows last copies its tile, to turn it round. The
# gradient of trees by a cell with one such product copied tiles in every loop, forwards
# and back; now none. `test_products.py` has all forms, `tests/accelerators` the
# rows of tables.


def rows_first(
    closed: core.ClosedJaxpr, fixed: int, transpose: bool
) -> core.ClosedJaxpr:
    """Rewrite a jaxpr's products and slices of single rows by `row_rules`.

    All arguments but the first `fixed` may have rows; `transpose` is as there.
    """
    jaxpr, _ = jaxprs.open_jaxpr(closed)
    _, varying = jaxprs.reachable(jaxpr, jaxpr.invars[fixed:])
    return jaxprs.rewritten(closed, row_rules(varying, transpose))


def row_rules(varying: Container[core.Var], transpose: bool) -> Rules:
    """Return rewrite rules that compute matrix products with the axis of rows first.

    A product is rewritten if one operand is a matrix without rows. Rows of tables are
    gathered in place of being sliced.

    Args:
      varying: the variables that may have rows.
      transpose: whether a matrix whose last axis a product sums over is transposed
        first, which can then be done once for many products.
    """

    def product(equation: core.JaxprEqn, operands: Arrays) -> Array:
        # Products in batches, or with a literal operand, have no such matrix.
        _, batch = equation.params['dimension_numbers']
        of_rows = [v in varying for v in jaxprs.variables(equation.invars)]
        if any(batch) or sorted(of_rows) != [False, True]:
            return jaxprs.apply(equation, operands)
        if of_rows[0]:
            return _times_matrix(equation, operands, transpose)
        # The free axes of the rows now come first; the function wants them last.
        result = _times_matrix(_swapped(equation), operands[::-1], transpose)
        free = operands[1].ndim - len(_summed(equation)[1])
        return jnp.moveaxis(result, range(free), range(-free, 0))

    def row(equation: core.JaxprEqn, operands: Arrays) -> Array:
        """Run a slice, as a gather if it reads one row of a table.

        It stays a slice if the table may vary over rows, or the row's number does not.
        """
        known = jaxprs.variables(equation.invars[:2])  # of a table, and a row of it
        shape = jaxprs.spec(equation.invars[0]).shape
        # One index on axis 0, and the other axes whole.
        is_row = shape and equation.params['slice_sizes'] == (1, *shape[1:])
        if [v in varying for v in known] != [False, True] or not is_row:
            return jaxprs.apply(equation, operands)
        table, number, *_ = operands
        axes = tuple(range(table.ndim - 1))
        numbers = lax.GatherDimensionNumbers(axes, (0,), (0,))
        size = (1, *shape[1:])
        return lax.gather(table, number[None], numbers, size, mode='clip')[None]

    return {'dot_general': product, 'dynamic_slice': row}


def _summed(equation: core.JaxprEqn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axes of the left and right operand that a product sums over."""
    axes: tuple[tuple[int, ...], tuple[int, ...]]
    axes, _ = equation.params['dimension_numbers']
    return axes


def _swapped(equation: core.JaxprEqn) -> core.JaxprEqn:
    """Return a `dot_general` without batch axes, with its operands swapped."""
    precision = equation.params['precision']
    if isinstance(precision, tuple):
        precision = precision[::-1]
    return _with_axes(equation, _summed(equation)[::-1], precision=precision)


def _times_matrix(equation: core.JaxprEqn, operands: Arrays, transpose: bool) -> Array:
    """Multiply rows [..., m] by a matrix: [m, n], or [n, m], swapped if `transpose`."""
    rows, matrix = operands
    left, right = _summed(equation)
    if transpose and matrix.ndim == 2 and right == (1,):
        matrix = jnp.swapaxes(matrix, 0, 1)
        equation = _with_axes(equation, (left, (0,)))
    return jaxprs.apply(equation, [rows, matrix])


def _with_axes(
    equation: core.JaxprEqn, summed: tuple[tuple[int, ...], ...], **params: Any
) -> core.JaxprEqn:
    """Return a `dot_general`, without batch axes, changed to sum over axes `summed`."""
    changed = {'dimension_numbers': (summed, ((), ())), **params}
    result: core.JaxprEqn = equation.replace(params={**equation.params, **changed})
    return result


# ---- caches that outlive models ------------------------------------------------------


def lifetime_token() -> core.ClosedJaxpr:
    """Return an empty jaxpr; once it is freed, JAX drops cache entries made with it.

    A cache of JAX's that outlives all models keeps the parameters of primitives, and so
    a user's functions and their data. An entry with a jaxpr among its parameters is
    dropped when that jaxpr is freed. This one belongs to one equation: without it every
    differentiated model, with the arrays in its functions, stayed until the process
    ended.
    """
    result: core.ClosedJaxpr = jax.make_jaxpr(lambda: ())()
    return result
