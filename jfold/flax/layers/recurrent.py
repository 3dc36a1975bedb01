# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers along a sequence of vectors."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jfold.base.arguments import check_at_least, expect
from jfold.base.errors import short_repr
from jfold.base.tracebacks import api_boundary
from jfold.blocks.compose import compose
from jfold.blocks.inputs import Zeros
from jfold.blocks.sequences import RNN, GetItem, ZipWith
from jfold.combinators import Block, Function
from jfold.flax.layers.dense import vector

Array = jax.Array
BACKWARDS = GetItem(slice(None, None, -1))


class Cell(nn.Module):
    """A recurrent cell of Flax as `RNN` takes one: `(item, state) -> (output, state)`.

    >>> import jax, jfold as jf
    >>> cell = jf.Function(Cell(nn.SimpleCell(4)), name='cell')
    >>> model = jf.compile(jf.Map(jf.Vector(2)) >> jf.RNN(cell, jf.Zeros([4])))
    >>> params = model.init(jax.random.key(0))
    >>> outputs, last = model.apply(params, model.schedule([[[1, 2], [3, 4]], []]))
    >>> outputs.lengths.tolist(), last.shape
    ([2, 0], (2, 4))
    """

    inner: Any  # a `flax.linen.RNNCellBase`, none of NNX

    def __call__(self, item: Array, state: object) -> tuple[Array, Any]:
        state, output = self.inner(state, item)
        return output, state


class OfVectors(Cell):
    """A cell whose items are vectors and whose states are float32."""

    def __call__(self, item: Array, state: object) -> tuple[Array, Any]:
        if jnp.promote_types(vector(item).dtype, jnp.float32) != jnp.float32:
            raise TypeError(
                f'expected vectors of float32, as the states are, got {item.dtype}: '
                "cast them, by `x.astype('float32')`, or write an RNN with states of "
                'your own'
            )
        result: tuple[Array, Any] = super().__call__(item, state)
        return result


def dropped(rate: float, candidate: Array) -> Array:
    """Apply dropout to the candidate [features] of a recurrent cell, in training.

    Raise TypeError or ValueError if `rate` is no probability below 1.
    """
    is_number = isinstance(rate, numbers.Real)
    if not is_number or not 0 <= rate < 1:
        kind = ValueError if is_number else TypeError
        raise kind(
            f'expected `recurrent_dropout` from 0 to below 1, got {short_repr(rate)}'
        )
    return nn.Dropout(rate)(candidate) if rate else candidate


class LSTMCell(nn.RNNCellBase):
    """The cell `flax.linen.LSTMCell`, with its parameters and dropout."""

    features: int
    recurrent_dropout: float

    @nn.compact
    def __call__(self, state: tuple[Array, Array], x: Array) -> tuple[Any, Array]:
        c, h = state
        i, f, g, o = (self._gate(name, x, h) for name in 'ifgo')
        new = dropped(self.recurrent_dropout, jnp.tanh(g))
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * new
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (c, h), h

    def _gate(self, name: str, x: Array, h: Array) -> Array:
        of_x = nn.Dense(self.features, use_bias=False, name=f'i{name}')
        init = nn.initializers.orthogonal()
        return of_x(x) + nn.Dense(self.features, kernel_init=init, name=f'h{name}')(h)


@api_boundary
def LSTM(
    features: int, *, recurrent_dropout: float = 0.0, name: str | None = None
) -> Block:
    """Long short-term memory (Hochreiter and Schmidhuber 1997) along a sequence.

    Takes a sequence of vectors, gives a pair of the outputs, a sequence of vectors
    [features], and the last state, a pair of memory and output. It starts from zeros.

    Args:
      features: the length of outputs.
      recurrent_dropout: in training, the probability that a number of the candidate for
        the memory is dropped; others are scaled up (Semeniuta, Severyn and Barth 2016,
        equation 9).
      name: the key of its parameters, as in `Function`.
    """
    features = check_at_least('features', features, 1)
    inner = (
        LSTMCell(features, recurrent_dropout)
        if recurrent_dropout
        else nn.OptimizedLSTMCell(features)
    )
    cell = Function(OfVectors(inner), name=name or 'lstm')
    return RNN(cell, Zeros(([features], [features])))


@api_boundary
def GRU(features: int, *, name: str | None = None) -> Block:
    """A gated recurrent unit (Cho et al. 2014) along a sequence.

    Takes a sequence of vectors, gives a pair of the outputs, a sequence of vectors
    [features], and the last of them. The first state is zeros. `name` is as in `LSTM`.
    """
    features = check_at_least('features', features, 1)
    cell = Function(OfVectors(nn.GRUCell(features)), name=name or 'gru')
    return RNN(cell, Zeros([features]))


@api_boundary
def Bidirectional(features: int, make: Callable[..., Block] = LSTM) -> Block:
    """Two layers, one forwards and one backwards (Schuster and Paliwal 1997).

    Takes a sequence of vectors, gives a sequence of vectors [2 * features]: for each
    item the output of the forward layer, which has read the items before it, and that
    of the backward layer, which has read the items after it.

    Args:
      features: the length of outputs of each layer.
      make: a function from `features` and `name` to a layer: `LSTM`, `GRU` or another
        whose result is a pair of outputs and a last state.

    >>> import jax, jfold as jf
    >>> model = jf.compile(jf.Map(jf.Vector(2)) >> Bidirectional(3))
    >>> params = model.init(jax.random.key(0))
    >>> sorted(params), model.apply(params, model.schedule([[[1, 2]]])).values.shape[1:]
    (['backwards', 'forwards'], (6,))
    """
    write = 'write `Bidirectional(16, jf.layers.GRU)`'
    expect('features', features, not isinstance(features, Block), 'int', write)
    features = check_at_least('features', features, 1)
    expect('make', make, callable(make), 'a function of a size, such as LSTM')
    forwards = make(features, name='forwards') >> GetItem(0)
    backwards = BACKWARDS >> make(features, name='backwards') >> GetItem(0) >> BACKWARDS

    @compose
    def both(items: object) -> Any:
        return ZipWith(Function(_beside, name='beside'))(
            forwards(items), backwards(items)
        )

    return both


def _beside(left: Array, right: Array) -> Array:
    return jnp.concatenate([left, right])
