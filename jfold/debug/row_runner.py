# SPDX-License-Identifier: Apache-2.0
"""Parts of the search for NaN: operations on rows, the order of nodes, the loss.

Rows run `ROWS` at a time: an operation is compiled once, for this number of rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jfold.base.jaxprs import is_inexact
from jfold.device.linear import (
    MaybeZeros,
    maybe_zero,
    partition,
    replace_list,
    scatter_list,
)
from jfold.graph import Array, Graph
from jfold.program.components import components
from jfold.program.operations import Operation, Operations
from jfold.types import TupleType, pack

Arrays: TypeAlias = list[Array]
Results: TypeAlias = list[list[Any]]  # per result, its tensors, each [rows, *shape]
ROWS = 32


# ---- an operation --------------------------------------------------------------------


class Runner:
    """An operation with its parameters, compiled to run on `ROWS` rows at once."""

    def __init__(self, operation: Operation, params: Any) -> None:
        from jax.experimental import checkify  # which takes time to import

        batched = operation.layer.batched
        # By `vmap`, as in a batch, so that a row has the same values as there.
        axes = (None, *(0 for _ in operation.inputs))
        on_rows = functools.partial(jax.vmap, in_axes=axes, axis_size=ROWS)

        def on_row(params: object, *inputs: Any) -> list[Any]:
            leaves = [x[None] for x in inputs] if batched else inputs
            arguments = pack(TupleType(operation.arguments), leaves)
            outputs = jax.tree.leaves(operation.call(params, *arguments))
            return [jnp.asarray(x[0] if batched else x) for x in outputs]

        def reverse(
            live: tuple[int, ...], params: object, inputs: Any, cotangents: Any
        ) -> tuple[list[Any], list[Any]]:
            def live_outputs(params: object, inputs: list[Any]) -> list[Any]:
                outputs = on_rows(on_row)(params, *inputs)
                return [outputs[k] for k in live]

            # Inputs have a gradient for each row. The gradient by parameters is a sum
            # over rows; only if it is not finite, the row at fault is searched.
            _, pull = jax.vjp(live_outputs, params, inputs)
            of_params, of_inputs = jax.tree.map(maybe_zero, pull(cotangents))
            return of_inputs, jax.tree.leaves(of_params)  # `None` for ints

        def checked(*inputs: Any) -> tuple[checkify.Error, list[Any]]:
            try:
                return checkify.checkify(on_row, errors=checkify.index_checks)(*inputs)
            except Exception:  # of some `while_loop`s, whose indices stay unchecked
                return checkify.init_error, on_row(*inputs)

        self.params = params
        self._forward = jax.jit(on_rows(checked))
        self._reverse = jax.jit(reverse, static_argnums=0)

    def forward(self, count: int, inputs: Arrays) -> tuple[Arrays, dict[int, str]]:
        """Return the outputs of `count` rows of `inputs`, and texts on indices, by row.

        A text is JAX's error about the first index of the row that is out of bounds.
        """
        rows = (padded(x, ROWS, 'edge') for x in inputs)
        error, outputs = self._forward(self.params, *rows)
        error = jax.device_get(error)
        searched = range(count if error.get() else 0)
        texts = [jax.tree.map(lambda x, k=k: x[k], error).get() for k in searched]
        by_row = {k: text.strip() for k, text in enumerate(texts) if text}
        return [np.array(x)[:count] for x in outputs], by_row

    def reverse(
        self, live: tuple[int, ...], inputs: Arrays, cotangents: Arrays
    ) -> tuple[list[Any], Arrays]:
        """Pull `cotangents` of outputs `live` back to inputs and float parameters.

        The outputs with indices `live`, one or more, have cotangents. Gradients by
        inputs are [n, *shape], `None` for ints; those by parameters are sums over rows.
        """
        # Spare rows have cotangents of zero, so they add nothing to parameters.
        rows = [padded(x, ROWS, 'edge') for x in inputs]
        grads = [padded(x, ROWS) for x in cotangents]
        of_inputs, of_params = self._reverse(live, self.params, rows, grads)
        count = len(cotangents[0])
        of_rows = [x if x is None else np.asarray(x)[:count] for x in of_inputs]
        return of_rows, list(map(np.asarray, of_params))


# ---- rows ----------------------------------------------------------------------------


def waves(program: Operations, graph: Graph) -> Iterator[tuple[int, Array]]:
    """Yield (operation index, its nodes [n] on one level) in topological order.

    The nodes, rows of the operation's table, do not read each other.
    """
    # Components read earlier ones alone, so all levels of one come before the next:
    # levels of two components have nothing to do with each other.
    for component in components(program):
        levels = {o: graph.levels[o] for o in component.operations}
        last = max((int(x.max(initial=0)) for x in levels.values()), default=0)
        # Nodes sorted by level, so that not all of them are searched at each level.
        sorted_ = {o: np.argsort(x, kind='stable') for o, x in levels.items()}
        for level in range(1, last + 1):
            for o, order in sorted_.items():
                first, end = np.searchsorted(levels[o][order], [level, level + 1])
                if first < end:
                    yield o, order[first:end]


def chunks(nodes: Array) -> Iterator[Array]:
    """Yield slices of nodes [n], one after another, each of at most `ROWS` nodes."""
    return (nodes[first : first + ROWS] for first in range(0, len(nodes), ROWS))


def padded(x: Array, rows: int, mode: Any = 'constant') -> Array:
    """Return `x` [n, ...] with rows of zeros appended, to make `rows` rows.

    With the mode 'edge', they are like the last row.
    """
    more = (0, max(rows - len(x), 0)), *((0, 0) for _ in x.shape[1:])
    return np.pad(x, more, mode)


def bad_kind(*arrays: Array) -> str | None:
    """Return 'nan' if there is a NaN, else 'inf' if an infinity, else `None`."""
    return (None, 'inf', 'nan')[int(_badness([x[None] for x in arrays], 1)[0])]


def first_bad(
    arrays: Sequence[Array], inputs: Sequence[Array] = (), where: Array | bool = True
) -> int | None:
    """Return the first row index with a new NaN or infinity in `arrays`, or `None`.

    A NaN is new if no input of the row has one; an infinity if all inputs are finite.
    Rows where the mask `where` [rows] is false are left out.
    """
    rows = len(arrays[0])
    gained = _badness(arrays, rows) > _badness(inputs, rows)
    places = np.flatnonzero(gained & where)
    return int(places[0]) if len(places) else None


def _badness(arrays: Sequence[Array], rows: int) -> Array:
    """Return 2 where rows of `arrays` have a NaN, 1 an infinity, else 0 [rows]."""
    result = np.zeros(rows, int)
    for x in arrays:
        if is_inexact(x):
            axes = tuple(range(1, x.ndim))
            has_nan, is_finite = np.isnan(x).any(axes), np.isfinite(x).all(axes)
            result = np.maximum(result, np.where(has_nan, 2, ~is_finite))
    return result


# ---- the loss ------------------------------------------------------------------------


def sum_of_floats(value: object) -> Any:
    """Return the sum float32 [] of all floats in a pytree (real parts of complex)."""
    leaves = [x for x in jax.tree.leaves(value) if is_inexact(x)]
    return sum((x.sum().real.astype('float32') for x in leaves), jnp.float32(0))


def loss_of(loss: Callable[[Results], Any], results: Results) -> tuple[Any, MaybeZeros]:
    """Return the value of a loss, and its gradient by each tensor of the results.

    A gradient, [rows, *shape], is `None` for a tensor that has no cotangent in a step
    of training: a tensor of ints, or one that the loss does not read. Zeros would not
    do: zero times infinity is NaN.
    """
    tensors = [x for y in results for x in y]
    is_float = list(map(is_inexact, tensors))
    floats = partition(tensors, is_float)
    gradient: MaybeZeros = [None for _ in floats]  # if JAX has no cotangent to pass
    watched: Any = jax.custom_vjp(lambda floats: floats)

    def backward(_: None, cotangents: list[Any]) -> tuple[MaybeZeros]:
        # JAX passes a symbolic zero for an array that the loss does not read.
        gradient[:] = map(maybe_zero, cotangents)
        return (gradient,)

    watched.defvjp(
        lambda floats: ([x.value for x in floats], None), backward, symbolic_zeros=True
    )

    # Tensors of ints, such as lengths, stay concrete: a loss may read their numbers.
    def of_floats(floats: list[Any]) -> object:
        remaining = iter(replace_list(tensors, watched(floats), is_float))
        return loss([[next(remaining) for _ in y] for y in results])

    value, _ = jax.value_and_grad(of_floats)(floats)
    return value, scatter_list(gradient, is_float)
