# SPDX-License-Identifier: Apache-2.0
"""One operation on some rows, and which of them hold what is no finite number."""

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
ROWS = 32  # that are run at once


# ---- an operation --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Runner:
    """An operation with its parameters, to be run on rows."""

    operation: Operation
    params: Any

    @functools.cached_property
    def forward(self) -> Any:
        """Inputs [rows, *shape] each to outputs, and what is wrong with indices."""
        from jax.experimental import checkify  # which takes time to import

        return jax.jit(checkify.checkify(self._of_rows, errors=checkify.index_checks))

    @functools.cached_property
    def reverse(self) -> Any:
        """The outputs that are live, inputs and cotangents of these outputs
        [rows, *shape] each to gradients of float inputs [rows, *shape] each, and of
        float parameters [*shape each], those of all rows."""
        return jax.jit(self._reverse, static_argnums=0)

    def _of_rows(self, params: object, *inputs: Any) -> list[Any]:
        # By `vmap`, as in tiles, so that a row is what a batch would make of it; and
        # always of so many rows, so that each operation is compiled once.
        axes = (None, *(0 for _ in self.operation.inputs))
        made: list[Any] = jax.vmap(self._of_row, axes, axis_size=ROWS)(params, *inputs)
        return made

    def _of_row(self, params: object, *inputs: Any) -> list[Any]:
        operation, batched = self.operation, self.operation.layer.batched
        given = [x[None] for x in inputs] if batched else inputs
        packed = pack(TupleType(operation.arguments), given)
        made = jax.tree.leaves(operation.call(params, *packed))
        return [jnp.asarray(x[0] if batched else x) for x in made]

    def _reverse(
        self,
        live: tuple[int, ...],
        params: object,
        inputs: list[Any],
        cotangents: list[Any],
    ) -> tuple[list[Any], list[Any]]:
        leaves, tree = jax.tree.flatten(params)
        own, others = _parted(leaves), _parted(inputs)

        def of_live(own_floats: list[Any], others_floats: list[Any]) -> list[Any]:
            given = jax.tree.unflatten(tree, own.filled(own_floats))
            made = self._of_rows(given, *others.filled(others_floats))
            return [made[k] for k in live]

        # All at once for inputs, which have a gradient a row; of parameters a sum, in
        # which a row at fault is looked for only if it is not finite.
        _, pull = jax.vjp(of_live, own.floats, others.floats)
        of_params, of_inputs = pull(cotangents)
        return of_inputs, of_params


class _Parted(NamedTuple):
    """Arrays, of which the floats are differentiated."""

    arrays: list[Any]
    floats: list[Any]

    def filled(self, floats: list[Any]) -> list[Any]:
        """The arrays with others for the floats."""
        rest = iter(floats)
        return [next(rest) if is_inexact(x) else x for x in self.arrays]


def _parted(arrays: list[Any]) -> _Parted:
    arrays = [jnp.asarray(x) for x in arrays]
    return _Parted(arrays, [x for x in arrays if is_inexact(x)])


# ---- rows ----------------------------------------------------------------------------


def chunks(nodes: Array) -> Iterator[Array]:
    """Nodes [n], as many as are run at once."""
    return (nodes[first : first + ROWS] for first in range(0, len(nodes), ROWS))


def filled_up(rows: Array) -> Array:
    """As many rows as are run at once; others repeat the last."""
    result: Array = rows[np.arange(ROWS).clip(max=len(rows) - 1)]
    return result


def zeros_behind(rows: Array) -> Array:
    """As many rows as are run at once; others are zero."""
    return padded(rows, ROWS)


def padded(x: Array, rows: int) -> Array:
    """`x` [n, ...] with rows of zeros up to so many."""
    return np.concatenate([x, np.zeros((max(rows - len(x), 0), *x.shape[1:]), x.dtype)])


# ---- numbers -------------------------------------------------------------------------


def is_inexact(x: Any) -> bool:
    """Whether an array holds floats or complex numbers."""
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def kind_of(x: Array) -> str | None:
    """What is not finite in an array [...]: 'nan', 'inf' or nothing."""
    if not is_inexact(x) or np.isfinite(x).all():
        return None
    return 'nan' if np.isnan(x).any() else 'inf'


def first_bad(arrays: Arrays, inputs: Arrays | None = None) -> int | None:
    """The first row that has NaN of inputs without it, or infinity of finite ones."""
    rows = len(arrays[0]) if arrays else 0
    bad = _rows_with(np.isnan, arrays, rows) & ~_rows_with(np.isnan, inputs or [], rows)
    infinite = _rows_with(_is_infinite, arrays, rows)
    bad |= infinite & ~_rows_with(_is_infinite, inputs or [], rows)
    return int(np.argmax(bad)) if bad.any() else None


def _is_infinite(x: Array) -> Array:
    return ~np.isfinite(x)


def _rows_with(is_bad: Callable[[Array], Array], arrays: Arrays, rows: int) -> Array:
    """Rows [rows] with a number of some kind in one of the arrays [rows, ...]."""
    found = np.zeros(rows, bool)
    for x in arrays:
        if is_inexact(x):
            found |= is_bad(x).any(axis=tuple(range(1, x.ndim)))
    return found


def worst(arrays: Arrays) -> str:
    """What is not finite in arrays, of which one has some."""
    kinds = {kind_of(x) for x in arrays}
    return 'nan' if 'nan' in kinds else 'inf'
