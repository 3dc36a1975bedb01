# SPDX-License-Identifier: Apache-2.0
"""Fully connected layers, embeddings, and indices of categories."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jfold.base.arguments import check_at_least, expect
from jfold.base.errors import MASKED, has_masked, short_repr
from jfold.base.tracebacks import api_boundary
from jfold.blocks.inputs import InputTransform, Scalar
from jfold.combinators import Block, Function
from jfold.types import TensorType

Activation = Callable[[jax.Array], jax.Array]
Outside = Literal['nan', 'clip', 'modulo']
# An initializer of tables [count, features], of variance 1 / features.
DRAWN = nn.initializers.variance_scaling(
    1.0, 'fan_in', 'normal', out_axis=0, dtype=jnp.float32
)


def vector(x: jax.Array) -> jax.Array:
    """Return a vector of floats unchanged; raise TypeError for other arrays.

    Ints are refused, as they are mostly indices.
    """
    if x.ndim == 1 and jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    hint = 'take each of its vectors, by Map, or join them, by `jnp.ravel`'
    if x.ndim == 0:
        hint = 'read it by `Vector(1)`, or make it one by `x[None]`'
    elif x.ndim == 1:
        hint = f'read amounts by `Vector({x.size})`, and look indices up by Embed'
    got = TensorType(x.shape, x.dtype)
    raise TypeError(f'expected a vector of floats, got {got}; {hint}')


class Affine(nn.Module):
    """The module of `FC`: an affine map and an activation."""

    features: int
    activation: Activation | None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        result = nn.Dense(self.features)(vector(x))
        return result if self.activation is None else self.activation(result)


@api_boundary
def FC(
    features: int, activation: Activation | None = nn.relu, *, name: str | None = None
) -> Function:
    """A fully connected layer: a vector [n] to a vector [features].

    Args:
      features: the length of the result.
      activation: applied to the result; `None` for an affine map alone.
      name: the key of its parameters, as in `Function`.

    >>> import jax, jfold as jf
    >>> model = jf.compile(jf.Vector(3) >> FC(2))
    >>> params = model.init(jax.random.key(0))
    >>> model.apply(params, model.schedule([[1, 2, 3], [4, 5, 6]])).shape
    (2, 2)
    """
    size = check_at_least('features', features, 1)
    return Function(Affine(size, activation), name=name or 'fc')


class Table(nn.Module):
    """The module of `Embed`: a table [count, features], read by an index []."""

    count: int
    features: int
    outside: Outside
    initial: Callable[..., jax.Array]
    trained: bool

    @nn.compact
    def __call__(self, index: jax.Array) -> jax.Array:
        if index.ndim or not jnp.issubdtype(index.dtype, jnp.integer):
            hint = '; look up each of several by Map' if index.ndim else ''
            got = TensorType(index.shape, index.dtype)
            raise TypeError(
                f"expected an int, as of `Scalar('int32')`, got {got}{hint}"
            )
        if index.dtype.itemsize < np.dtype(np.int32).itemsize:
            index = index.astype(jnp.int32)  # which can hold `count`
        rows = self.param('embedding', self.initial, (self.count, self.features))
        rows = rows if self.trained else jax.lax.stop_gradient(rows)
        if self.outside == 'modulo':
            # `abs` of the least int overflows; that of the remainder does not.
            return rows[jnp.abs(jax.lax.rem(index, index.dtype.type(self.count)))]
        if self.outside == 'clip':
            return rows[jnp.clip(index, 0, self.count - 1)]
        # JAX would count a negative index from the end, and cast one of 64 bits to 32.
        known = jnp.where((index < 0) | (index >= self.count), self.count, index)
        return rows.at[known].get(mode='fill', fill_value=jnp.nan)


def _first_rows(table: np.ndarray[Any, Any], *_: object) -> jax.Array:
    """Return `table` as a JAX array: an initializer that ignores key and shape."""
    return jnp.asarray(table)


@api_boundary
def Embed(
    count: int,
    features: int,
    *,
    table: object = None,
    trained: bool = True,
    outside: Outside = 'nan',
    name: str | None = None,
) -> Function:
    """An embedding: an index [] to the row [features] of a table at that index.

    Args:
      count: the number of rows.
      features: the length of a row.
      table: [count, features] the initial rows; when left out they are drawn from a
        normal distribution of variance 1 / features, as float32.
      trained: whether gradients flow to the table. A table that is not trained is still
        among the parameters, to be saved with them, with a gradient of zero; for a
        table of ints `jax.grad` needs `allow_int=True`.
      outside: the result for an index below zero or from `count` on: 'nan' gives NaN,
        'clip' the first or last row, 'modulo' the row `abs(index) % count`.
      name: the key of its parameters, as in `Function`.

    Raises:
      TypeError: `table` holds no numbers.
      ValueError: `outside` is none of these, or `table` has another shape, or holds
        ints although it is trained or has to give NaN.

    >>> import jax, jfold as jf, numpy as np
    >>> table = np.arange(6.0, dtype='float32').reshape(3, 2)
    >>> model = jf.compile(jf.Scalar('int32') >> Embed(3, 2, table=table))
    >>> params = model.init(jax.random.key(0))
    >>> model.apply(params, model.schedule([2, 0, 3])).tolist()
    [[4.0, 5.0], [0.0, 1.0], [nan, nan]]
    """
    count = check_at_least('count', count, 1)
    features = check_at_least('features', features, 1)
    if outside not in get_args(Outside):
        names = ', '.join(map(repr, get_args(Outside)))
        raise ValueError(
            f'Embed: expected `outside` as one of {names}, got {outside!r}'
        )
    rows = None if table is None else _rows_of(table, (count, features))
    needs_floats = trained or outside == 'nan'
    if rows is not None and rows.dtype.kind in 'biu' and needs_floats:
        option = '`trained=False`' if trained else "`outside='clip'`: no int is NaN"
        raise ValueError(
            f'Embed: expected a `table` of floats, got {rows.dtype}; make them so, by '
            f"`table.astype('float32')`, or pass {option}"
        )
    initial = DRAWN if rows is None else functools.partial(_first_rows, rows)
    module = Table(count, features, outside, initial, trained)
    return Function(module, name=name or 'embed')


def _rows_of(table: object, shape: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Return `table` as an array of `shape`; raise TypeError or ValueError if unfit."""
    try:
        values = np.asarray(table)
        TensorType(values.shape, values.dtype)
    except (TypeError, ValueError):
        expect('table', table, False, f'an array of numbers {list(shape)}')
    expect('table', table, not has_masked([table]), 'an array of numbers', MASKED)
    if values.shape != shape:
        raise ValueError(
            f'Embed: expected a `table` of shape {shape}, got {values.shape}'
        )
    return values


@api_boundary
def Categorical(values: Iterable[Any], *, unknown: bool = False) -> Block:
    """The index of a value in a list of known ones, as an int32 [].

    Args:
      values: the known values: hashable, all different.
      unknown: whether any other hashable value gets the index behind the last;
        otherwise it is an error of the example.

    >>> import jfold as jf
    >>> colour = Categorical(['red', 'green'], unknown=True)
    >>> [colour.eval(x).item() for x in ('green', 'red', 'blue')]
    [1, 0, 2]
    """
    expect('values', values, isinstance(values, Iterable), 'a list of known values')
    known = list(values)
    for value in known:
        is_hashable = isinstance(value, Hashable)
        expect('values', value, is_hashable, 'hashable values', 'make tuples of lists')
    index = {value: k for k, value in enumerate(known)}
    if not index:
        raise ValueError('Categorical: expected at least one value, got none')
    if len(index) < len(known):
        twice = next(value for k, value in enumerate(known) if index[value] != k)
        raise ValueError(
            f'Categorical: expected values that differ, got {short_repr(twice)} twice: '
            'pass `dict.fromkeys(values)`'
        )
    option = {'default': len(index)} if unknown else {}
    return InputTransform(index, **option) >> Scalar('int32')
