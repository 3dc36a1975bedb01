# SPDX-License-Identifier: Apache-2.0
"""Parts of the search for NaN: operations on rows, the order of nodes, the loss.

Rows run `ROWS` at a time: an operation is compiled once, for this number of rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfold.base.jaxprs import is_inexact
from jfold.device.linear import MaybeZeros, maybe_zero
from jfold.graph import Graph
from jfold.program.components import components
from jfold.program.operations import Operation, Operations
from jfold.types import TupleType, pack

Array = np.ndarray[Any, Any]
Arrays = list[Array]
Results = list[list[Any]]  # per result, a list of tensors, each [rows, *shape]
ROWS = 32


# ---- an operation --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Runner:
    """An operation with its parameters, compiled to run on `ROWS` rows at once."""

    operation: Operation
    params: Any

    def forward(self, count: int, inputs: Arrays) -> tuple[Arrays, str | None]:
        """Return the outputs of `count` rows, and an index error's text or `None`.

        The text is the first line of JAX's message about an index out of bounds.
        """
        error, outputs = self._forward(self.params, *map(_filled_up, inputs))
        text: str | None = error.get()
        # Further lines tell where in the code, with the frames of this file.
        line = text and text.partition('\n')[0].strip()
        return [np.array(x)[:count] for x in outputs], line

    def reverse(
        self, live: tuple[int, ...], inputs: Arrays, cotangents: Arrays
    ) -> tuple[list[Array | None], Arrays]:
        """Pull `cotangents` of outputs `live` back to inputs and float parameters.

        The outputs with indices `live`, one or more, have cotangents. Gradients by
        inputs are [n, *shape], `None` for ints; those by parameters are sums over rows.
        """
        # Spare rows have cotangents of zero, so they add nothing to parameters.
        rows, grads = map(_filled_up, inputs), (padded(x, ROWS) for x in cotangents)
        of_inputs, of_params = self._reverse(live, self.params, [*rows], [*grads])
        count = len(cotangents[0])
        of_rows = [x if x is None else np.asarray(x)[:count] for x in of_inputs]
        return of_rows, list(map(np.asarray, of_params))

    @functools.cached_property
    def _forward(self) -> Any:
        from jax.experimental import checkify  # which takes time to import

        return jax.jit(checkify.checkify(self._on_rows, errors=checkify.index_checks))

    @functools.cached_property
    def _reverse(self) -> Any:
        return jax.jit(self._gradients, static_argnums=0)

    def _on_rows(self, params: object, *inputs: Any) -> list[Any]:
        # By `vmap`, as in a batch, so that a row has the same values as there.
        axes = (None, *(0 for _ in self.operation.inputs))
        on_rows = jax.vmap(self._on_row, axes, axis_size=ROWS)
        outputs: list[Any] = on_rows(params, *inputs)
        return outputs

    def _on_row(self, params: object, *inputs: Any) -> list[Any]:
        operation, batched = self.operation, self.operation.layer.batched
        leaves = [x[None] for x in inputs] if batched else inputs
        arguments = pack(TupleType(operation.arguments), leaves)
        outputs = jax.tree.leaves(operation.call(params, *arguments))
        return [jnp.asarray(x[0] if batched else x) for x in outputs]

    def _gradients(
        self,
        live: tuple[int, ...],
        params: object,
        inputs: list[Any],
        cotangents: list[Any],
    ) -> tuple[list[Any], list[Any]]:
        def live_outputs(params: object, inputs: list[Any]) -> list[Any]:
            outputs = self._on_rows(params, *inputs)
            return [outputs[k] for k in live]

        # Inputs have a gradient for each row. The gradient by parameters is a sum over
        # rows; only if it is not finite, the row at fault is searched.
        _, pull = jax.vjp(live_outputs, params, inputs)
        of_params, of_inputs = pull(cotangents)
        floats = jax.tree.map(maybe_zero, (of_inputs, of_params))  # `None` for ints
        return floats[0], jax.tree.leaves(floats[1])


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


def _filled_up(rows: Array) -> Array:
    """Return rows [n, ...] with the last repeated to make `ROWS` rows, n <= `ROWS`."""
    result: Array = rows[np.arange(ROWS).clip(max=len(rows) - 1)]
    return result


def padded(x: Array, rows: int) -> Array:
    """Return `x` [n, ...] with rows of zeros appended, to make `rows` rows."""
    return np.concatenate([x, np.zeros((max(rows - len(x), 0), *x.shape[1:]), x.dtype)])


# ---- numbers -------------------------------------------------------------------------


def bad_kind(*arrays: Array) -> str | None:
    """Return 'nan' if there is a NaN, else 'inf' if an infinity, else `None`."""
    floats = [x for x in arrays if is_inexact(x)]
    if all(np.isfinite(x).all() for x in floats):
        return None
    return 'nan' if any(np.isnan(x).any() for x in floats) else 'inf'


def first_bad(arrays: Arrays, inputs: Sequence[Array] = ()) -> int | None:
    """Return the index of the first row that gains a NaN or infinity, or `None`.

    A NaN counts if no input of the row has a NaN; an infinity if all inputs are finite.
    """
    rows = len(arrays[0]) if arrays else 0
    bad = np.zeros(rows, bool)
    for is_bad in np.isnan, lambda x: ~np.isfinite(x):
        bad |= _rows_with(is_bad, arrays, rows) & ~_rows_with(is_bad, inputs, rows)
    return int(np.argmax(bad)) if bad.any() else None


def _rows_with(
    is_bad: Callable[[Array], Array], arrays: Sequence[Array], rows: int
) -> Array:
    """Return a mask [rows]: in which rows `is_bad` holds for a float of `arrays`."""
    result = np.zeros(rows, bool)
    for x in arrays:
        if is_inexact(x):
            result |= is_bad(x).any(axis=tuple(range(1, x.ndim)))
    return result


# ---- the loss ------------------------------------------------------------------------


def sum_of_floats(value: object) -> Any:
    """Return the sum float32 [] of all floats in a pytree (real parts of complex)."""
    leaves = [x for x in jax.tree.leaves(value) if is_inexact(x)]
    return sum((x.sum().real.astype('float32') for x in leaves), jnp.float32(0))


def loss_of(
    loss: Callable[[Results], Any], results: Results
) -> tuple[Any, list[MaybeZeros]]:
    """Return the value of a loss, and its gradient by each tensor of the results.

    The gradient is a list per result of arrays, each [rows, *shape]. It is `None` for a
    tensor that has no cotangent in a step of training: a tensor of ints, or one that
    the loss does not read. Zeros would not do: zero times infinity is NaN.
    """
    gradient: MaybeZeros = []  # stays empty if JAX has no cotangent to pass back

    @jax.custom_vjp
    def watched(floats: list[Any]) -> list[Any]:
        return floats

    def forward(floats: list[Any]) -> tuple[list[Any], None]:
        return [x.value for x in floats], None

    def backward(_: None, cotangents: list[Any]) -> tuple[MaybeZeros]:
        # JAX passes a symbolic zero for an array that the loss does not read.
        gradient[:] = map(maybe_zero, cotangents)
        return (gradient,)

    watched.defvjp(forward, backward, symbolic_zeros=True)

    # Tensors of ints, such as lengths, stay concrete: a loss may read their numbers.
    def of_floats(floats: list[Any]) -> object:
        leaves = iter(watched(floats))
        return loss(
            [[next(leaves) if is_inexact(x) else x for x in y] for y in results]
        )

    floats = [x for y in results for x in y if is_inexact(x)]
    value, _ = jax.value_and_grad(of_floats)(floats)
    leaves = iter(gradient or [None for _ in floats])
    return value, [
        [next(leaves) if is_inexact(x) else None for x in y] for y in results
    ]
