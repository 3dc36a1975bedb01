# SPDX-License-Identifier: Apache-2.0
"""Attention: weighted means over sequences."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jfold.base.arguments import check_at_least
from jfold.base.tracebacks import api_boundary
from jfold.blocks.compose import compose
from jfold.blocks.sequences import Broadcast, Map, Reduce, ZipWith
from jfold.combinators import Block, Function
from jfold.flax.layers.dense import vector


@api_boundary
def Attend() -> Block:
    """The mean of values, weighted by the softmax of scores.

    Takes a sequence of pairs, a score [] and a value [n], gives a vector [n]: zeros if
    it is empty, where an item with a score of -inf does not count. It is one reduction,
    whose depth is the logarithm of the length. Parts are merged relative to their
    largest score, so that no `exp` overflows.

    >>> import jfold as jf
    >>> pair = jf.Record((jf.Scalar(), jf.Vector(2)))
    >>> pairs = [(0, [1, 0]), (0, [0, 1]), (-1000, [5, 5])]
    >>> (jf.Map(pair) >> Attend()).eval(pairs).tolist()
    [0.5, 0.5]
    """
    merge = Function(_merge, name='merge')
    return Map(Function(_alone)) >> Reduce(merge, associative=True) >> _mean


Part = tuple[jax.Array, jax.Array, jax.Array]  # largest score, weight, weighed sum


def _alone(score: jax.Array, value: jax.Array) -> Part:
    # All parts have one dtype: a float that holds scores and values.
    dtype = jnp.result_type(score, value, float)
    score, value = score.astype(dtype), value.astype(dtype)
    return score, jnp.ones_like(score), value


def _merge(left: Part, right: Part) -> Part:
    (a, s, v), (b, t, w) = left, right
    # Any number may be subtracted from both exponents, so it needs no gradient.
    largest = jax.lax.stop_gradient(jnp.maximum(a, b))
    base = jnp.where(largest == -jnp.inf, 0, largest)  # as -inf - -inf is NaN
    x, y = jnp.exp(a - base), jnp.exp(b - base)
    return largest, x * s + y * t, x * v + y * w


def _mean(largest: jax.Array, weight: jax.Array, total: jax.Array) -> jax.Array:
    mean = total / jnp.where(weight == 0, 1, weight)
    return jnp.where(largest == -jnp.inf, 0, mean)


class Query(nn.Module):
    """The query [features] for a vector [n], scaled by 1 / sqrt(features)."""

    features: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(self.features)(vector(x)) / jnp.sqrt(self.features)


class KeyAndValue(nn.Module):
    """The score [] of an item [n] for a query, and the item's value [features]."""

    features: int

    @nn.compact
    def __call__(
        self, query: jax.Array, item: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        key = nn.Dense(self.features, name='key')(vector(item))
        value = nn.Dense(self.features, name='value')(item)
        return jnp.vdot(query, key), value


@api_boundary
def Attention(features: int) -> Block:
    """Scaled dot-product attention (Vaswani et al. 2017, equation 1) of one query.

    Takes a pair of a vector and a sequence of vectors, gives a vector [features]: zeros
    if the sequence is empty. Query, keys and values are affine maps of these vectors.

    >>> import jax, jfold as jf
    >>> pair = jf.Record((jf.Vector(3), jf.Map(jf.Vector(2))))
    >>> model = jf.compile(pair >> Attention(4))
    >>> params = model.init(jax.random.key(0))
    >>> model.apply(params, model.schedule([([1, 2, 3], [[1, 2], [3, 4]])])).shape
    (1, 4)
    """
    features = check_at_least('features', features, 1)
    query = Function(Query(features), name='query')
    answer = Function(KeyAndValue(features), name='key_and_value')

    @compose
    def attention(asked: object, items: object) -> Any:
        queries = Broadcast()(query(asked))
        return Attend()(ZipWith(answer)(queries, items))

    return attention
