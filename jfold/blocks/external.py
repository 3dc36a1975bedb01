# SPDX-License-Identifier: Apache-2.0
"""The block `External`: rows of arrays that are passed when a batch runs."""

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
    """The function `(table [rows, *shape], index) -> row [*shape]` of an `External`.

    Attributes:
      name: the name of the table, in `external`.
      type: the type of a row.
    """

    name: str
    type: TensorType

    @property
    def spec(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of a table with a single row."""
        shape = 1, *self.type.shape
        return jax.ShapeDtypeStruct(shape, self.type.dtype)  # type: ignore[no-untyped-call]

    def __call__(self, table: Any, index: jax.Array) -> jax.Array:
        missing = _missing(self.type.dtype)
        if table.shape[0] == 0:  # JAX refuses to index an empty axis
            table = jnp.full(self.spec.shape, missing, self.type.dtype)
        rows = jnp.asarray(table)
        row: jax.Array = rows.at[index].get(mode='fill', fill_value=missing)
        return row


def _missing(dtype: np.dtype[Any]) -> float:
    """Return the value of a row beyond the table: NaN, the least int, or False."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return float('nan')
    return 0 if dtype.kind == 'b' else int(jnp.iinfo(dtype).min)  # type: ignore[no-untyped-call]


def shown_rows(table: Any) -> str:
    """Return the type of a table as text for errors, such as 'float32[rows, 3]'."""
    shape = ', '.join(map(str, ('rows', *table.shape[1:])))
    return f'{table.dtype}[{shape}]'


@api_boundary
def External(name: str, type: TypeLike) -> Pipe:
    """A row, by its index, of an array that is passed when a batch runs.

    So results of another network flow in and gradients flow out, and a table of
    embeddings can be held elsewhere. The input is a Python int, the result a tensor. An
    index without a row gives NaN, in an array of ints their least value, of bools
    False; negative indices count from the end, as in Python.

    Args:
      name: the name of the array [rows, *shape] in `Model.apply(..., external={name:
        array})`. Its number of rows may change; JAX then compiles again.
      type: the type of a row, or a short-hand for it, as `convert_to_type` takes them.

    Raises:
      TypeError: `name` is no str, or is empty, or `type` is not that of a tensor.

    >>> import jax.numpy as jnp
    >>> from jfold import Map, Sum
    >>> block = Map(External('features', 2)) >> Sum()
    >>> features = jnp.array([[1.0, 2.0], [30.0, 40.0], [5.0, 6.0]])
    >>> block.eval([0, 2, 2], external={'features': features}).tolist()
    [11.0, 14.0]
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f'External: expected `name` as a word, got {name!r}')
    row = convert_to_type(type)
    if not isinstance(row, TensorType):
        raise TypeError(f'External: expected `type` as that of a tensor, got {row!r}')
    return Scalar('int32') >> Function(Rows(name, row), name=name)
