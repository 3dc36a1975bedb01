# SPDX-License-Identifier: Apache-2.0
"""A runner of one operation on rows, and tests for NaN and infinity in rows.

Rows run `ROWS` at a time: an operation is compiled once, for this number of rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jfold.program.operations import Operation
from jfold.types import TupleType, pack

Array = np.ndarray[Any, Any]
Arrays = list[Array]
ROWS = 32


# ---- an operation --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Runner:
    """An operation with its parameters, compiled to run on `ROWS` rows at once."""

    operation: Operation
    params: Any

    @functools.cached_property
    def forward(self) -> Any:
        """The compiled operation: parameters, then inputs, to an error and outputs.

        Inputs and outputs are arrays, each [ROWS, *shape]. The error is checkify's: it
        holds a text if an index is outside of an array in any row.
        """
        from jax.experimental import checkify  # which takes time to import

        return jax.jit(checkify.checkify(self._on_rows, errors=checkify.index_checks))

    @functools.cached_property
    def reverse(self) -> Any:
        """The compiled reverse: cotangents to gradients of float inputs and parameters.

        Its arguments are the indices of live outputs (those with cotangents), the
        parameters, inputs, and cotangents of the live outputs, each [ROWS, *shape]. It
        returns lists of arrays: per float input [ROWS, *shape]; per float parameter
        [*shape], summed over rows.
        """
        return jax.jit(self._reverse, static_argnums=0)

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

    def _reverse(
        self,
        live: tuple[int, ...],
        params: object,
        inputs: list[Any],
        cotangents: list[Any],
    ) -> tuple[list[Any], list[Any]]:
        leaves, tree = jax.tree.flatten(params)
        weights, operands = _split(leaves), _split(inputs)

        def live_outputs(weight: list[Any], operand: list[Any]) -> list[Any]:
            params = jax.tree.unflatten(tree, weights.with_floats(weight))
            outputs = self._on_rows(params, *operands.with_floats(operand))
            return [outputs[k] for k in live]

        # Inputs have a gradient for each row; that of parameters is a sum, in which a
        # row at fault is looked for only if it is not finite.
        _, pull = jax.vjp(live_outputs, weights.floats, operands.floats)
        of_params, of_inputs = pull(cotangents)
        return of_inputs, of_params


class _Split(NamedTuple):
    """Arrays, and the floats among them, which are differentiated."""

    arrays: list[Any]
    floats: list[Any]

    def with_floats(self, floats: list[Any]) -> list[Any]:
        """Return `arrays` with the arrays `floats` in place of its own float arrays."""
        others = iter(floats)
        return [next(others) if is_inexact(x) else x for x in self.arrays]


def _split(arrays: list[Any]) -> _Split:
    arrays = [jnp.asarray(x) for x in arrays]
    return _Split(arrays, [x for x in arrays if is_inexact(x)])


# ---- rows ----------------------------------------------------------------------------


def chunks(nodes: Array) -> Iterator[Array]:
    """Yield slices of nodes [n], one after another, each of at most `ROWS` nodes."""
    return (nodes[first : first + ROWS] for first in range(0, len(nodes), ROWS))


def filled_up(rows: Array) -> Array:
    """Return rows [n, ...] with the last repeated to make `ROWS` rows, n <= `ROWS`."""
    result: Array = rows[np.arange(ROWS).clip(max=len(rows) - 1)]
    return result


def padded(x: Array, rows: int) -> Array:
    """Return `x` [n, ...] with rows of zeros appended, to make `rows` rows."""
    return np.concatenate([x, np.zeros((max(rows - len(x), 0), *x.shape[1:]), x.dtype)])


# ---- numbers -------------------------------------------------------------------------


def is_inexact(x: Any) -> bool:
    """Return whether an array holds floats or complex numbers."""
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def bad_kind(x: Array) -> str | None:
    """Return 'nan' if an array has a NaN, else 'inf' if an infinity, else `None`."""
    if not is_inexact(x) or np.isfinite(x).all():
        return None
    return 'nan' if np.isnan(x).any() else 'inf'


def first_bad(arrays: Arrays, inputs: Arrays | None = None) -> int | None:
    """Return the lowest row index with a NaN or infinity that its inputs lack.

    A NaN counts if no input of the row has a NaN; an infinity if all inputs are finite.
    The result is `None` if there is no such row.

    Args:
      arrays, inputs: lists of arrays, each [rows, *shape].
    """
    rows = len(arrays[0]) if arrays else 0
    bad = _rows_with(np.isnan, arrays, rows) & ~_rows_with(np.isnan, inputs or [], rows)
    infinite = _rows_with(lambda x: ~np.isfinite(x), arrays, rows)
    bad |= infinite & ~_rows_with(lambda x: ~np.isfinite(x), inputs or [], rows)
    return int(np.argmax(bad)) if bad.any() else None


def _rows_with(is_bad: Callable[[Array], Array], arrays: Arrays, rows: int) -> Array:
    """Return which rows have an `is_bad` number in one of the arrays, [rows] bool."""
    result = np.zeros(rows, bool)
    for x in arrays:
        if is_inexact(x):
            result |= is_bad(x).any(axis=tuple(range(1, x.ndim)))
    return result


def worst(arrays: Arrays) -> str:
    """Return 'nan' if one of several arrays has a NaN, else 'inf'."""
    return 'nan' if any(bad_kind(x) == 'nan' for x in arrays) else 'inf'
