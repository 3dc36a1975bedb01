# SPDX-License-Identifier: Apache-2.0
"""Vectors to vectors, and values of a few kinds to vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jfold.base.errors import MASKED, check_at_least, expect, short_repr, some_masked
from jfold.base.tracebacks import api_boundary
from jfold.blocks.inputs import InputTransform, Scalar
from jfold.combinators import Block, Function
from jfold.types import TensorType

Activation = Callable[[jax.Array], jax.Array]
Outside = Literal['nan', 'clip', 'modulo']
OUTSIDE = 'nan', 'clip', 'modulo'


def vector(x: jax.Array) -> jax.Array:
    """The argument, if it is a vector of floats.

    Raises:
      TypeError: it is something else; ints are indices more often than amounts.
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
    """See `FC`."""

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
      features: how many numbers it gives.
      activation: applied to each; `None` for an affine map alone.
      name: as of `Function`.

    >>> import jax, jfold as jf
    >>> model = jf.compile(jf.Vector(3) >> FC(2))
    >>> params = model.init(jax.random.key(0))
    >>> model.apply(params, model.schedule([[1, 2, 3], [4, 5, 6]])).shape
    (2, 2)
    """
    size = check_at_least('features', features, 1)
    return Function(Affine(size, activation), name=name or 'fc')


class Table(nn.Module):
    """See `Embed`."""

    count: int
    features: int
    outside: Outside
    given: Any
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
        shape = self.count, self.features
        rows = self.param('embedding', self._first, shape)
        rows = rows if self.trained else jax.lax.stop_gradient(rows)
        if self.outside == 'modulo':
            # The least int has no absolute value of its own kind; this remainder has.
            return rows[jnp.abs(jax.lax.rem(index, index.dtype.type(self.count)))]
        if self.outside == 'clip':
            return rows[jnp.clip(index, 0, self.count - 1)]
        # An index from the end is none here, though JAX would take it.
        known = jnp.where(index < 0, self.count, index)
        return rows.at[known].get(mode='fill', fill_value=jnp.nan)

    def _first(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        if self.given is not None:
            return jnp.asarray(self.given.values)
        return nn.initializers.variance_scaling(1.0, 'fan_in', 'normal', out_axis=0)(
            key, shape, jnp.float32
        )


class Given:
    """An array that Flax takes for one value, and compares by what object it is."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values


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
    """A row of a table for an index: an int [] to a vector [features].

    Args:
      count: rows of the table.
      features: numbers of each.
      table: [count, features] what the rows are at first; drawn from a normal
        distribution of variance 1 / features, as float32, if left out.
      trained: whether gradients flow to the table. Otherwise it is among the parameters
        all the same, so that it is saved with them, and its gradient is zero; of one of
        ints `jax.grad` takes none without `allow_int=True`.
      outside: what indices below zero or from `count` on give: rows of NaN; with
        'clip' those at the ends; with 'modulo' that of `abs(index) % count`.
      name: as of `Function`.

    Raises:
      TypeError: `table` holds no numbers.
      ValueError: `outside` is something else, or `table` of another shape, or not of
        floats though it is trained or has to give NaN.

    >>> import jax, jfold as jf, numpy as np
    >>> table = np.arange(6.0, dtype='float32').reshape(3, 2)
    >>> model = jf.compile(jf.Scalar('int32') >> Embed(3, 2, table=table))
    >>> params = model.init(jax.random.key(0))
    >>> model.apply(params, model.schedule([2, 0, 3])).tolist()
    [[4.0, 5.0], [0.0, 1.0], [nan, nan]]
    """
    count, features = (
        check_at_least('count', count, 1),
        check_at_least('features', features, 1),
    )
    if outside not in OUTSIDE:
        names = ', '.join(map(repr, OUTSIDE))
        raise ValueError(
            f'Embed: expected `outside` as one of {names}, got {outside!r}'
        )
    given = None if table is None else _given(table, (count, features))
    if given is not None and given.values.dtype.kind in 'biu':
        kind = given.values.dtype
        text = f'Embed: expected a `table` of floats, got {kind}; make them so, by '
        if trained:
            text += "`table.astype('float32')`, or pass `trained=False`"
            raise ValueError(text)
        if outside == 'nan':
            text += "`table.astype('float32')`, or pass `outside='clip'`: no int is NaN"
            raise ValueError(text)
    module = Table(count, features, outside, given, trained)
    return Function(module, name=name or 'embed')


def _given(table: object, shape: tuple[int, int]) -> Given:
    """A table of numbers of a shape."""
    try:
        values = np.asarray(table)
        TensorType(values.shape, values.dtype)
    except (TypeError, ValueError):
        expect('table', table, False, f'an array of numbers {list(shape)}')
    expect('table', table, not some_masked([table]), 'an array of numbers', MASKED)
    if values.shape != shape:
        raise ValueError(
            f'Embed: expected a `table` of shape {shape}, got {values.shape}'
        )
    return Given(values)


@api_boundary
def Categorical(values: Iterable[Any], *, unknown: bool = False) -> Block:
    """The place of a value among known ones, as an int32 [].

    Args:
      values: what can be told apart: anything that can be hashed; all different.
      unknown: gives any other value the place behind the last; otherwise it is an
        error of the example.

    >>> import jfold as jf
    >>> colour = Categorical(['red', 'green'], unknown=True)
    >>> [colour.eval(x).item() for x in ('green', 'red', 'blue')]
    [1, 0, 2]
    """
    expect('values', values, isinstance(values, Iterable), 'a list of known values')
    known = list(values)
    places = {value: place for place, value in enumerate(known)}
    if not places:
        raise ValueError('Categorical: expected at least one value, got none')
    if len(places) < len(known):
        twice = next(x for place, x in enumerate(known) if places[x] != place)
        raise ValueError(
            f'Categorical: expected values that differ, got {short_repr(twice)} twice: '
            'pass `dict.fromkeys(values)`'
        )
    other = {'default': len(places)} if unknown else {}
    return InputTransform(places, **other) >> Scalar('int32')
