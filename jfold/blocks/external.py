# SPDX-License-Identifier: Apache-2.0
"""Rows of arrays that come from elsewhere, when a batch runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfold.base.tracebacks import api_boundary
from jfold.blocks.inputs import Scalar
from jfold.combinators import Function, Pipe
from jfold.types import TensorType, TypeLike, convert_to_type


@dataclass(frozen=True)
class Rows:
    """A row of a table [rows, *shape] by its number, for tables of any length."""

    name: str
    type: TensorType

    @property
    def spec(self) -> jax.ShapeDtypeStruct:
        """What a table looks like, but for how many rows there are."""
        shape = 1, *self.type.shape
        return jax.ShapeDtypeStruct(shape, self.type.dtype)  # type: ignore[no-untyped-call]

    def __call__(self, table: Any, index: jax.Array) -> jax.Array:
        none = _none(self.type.dtype)
        if table.shape[0] == 0:  # JAX picks nothing of nothing
            table = jnp.full(self.spec.shape, none, self.type.dtype)
        row: jax.Array = jnp.asarray(table).at[index].get(mode='fill', fill_value=none)
        return row


def _none(dtype: np.dtype[Any]) -> float:
    """What stands for a row that is not there."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return float('nan')
    return 0 if dtype.kind == 'b' else int(jnp.iinfo(dtype).min)  # type: ignore[no-untyped-call]


def shown_rows(table: Any) -> str:
    """The type of a table, of any number of rows."""
    shape = ', '.join(map(str, ('rows', *table.shape[1:])))
    return f'{table.dtype}[{shape}]'


@api_boundary
def External(name: str, type: TypeLike) -> Pipe:
    """A row of an array that is passed when a batch runs, picked by its number.

    So what another network computed flows in and gradients flow out, and a table of
    embeddings may be kept elsewhere. Takes a Python integer, gives a tensor. A number
    that the array has no row for gives NaN, in arrays of integers their least; negative
    ones count from its end, as Python's do.

    Args:
      name: of the array [rows, *shape], in `Model.apply(..., external={name: array})`;
        it may have another number of rows each time, for which JAX compiles anew.
      type: of a row, or a short-hand for it, as `convert_to_type` reads them.

    Raises:
      TypeError: `name` is no str, or empty, or `type` not that of a tensor.

    >>> import jax.numpy as jnp
    >>> from jfold import Map, Sum
    >>> block = Map(External('features', 2)) >> Sum()
    >>> features = jnp.array([[1.0, 2.0], [30.0, 40.0], [5.0, 6.0]])
    >>> block.eval([0, 2, 2], external={'features': features}).tolist()
    [11.0, 14.0]
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f'External: expected `name` as a word, got {name!r}')
    made = convert_to_type(type)
    if not isinstance(made, TensorType):
        raise TypeError(f'External: expected `type` as that of a tensor, got {made!r}')
    return Scalar('int32') >> Function(Rows(name, made), name=name)
