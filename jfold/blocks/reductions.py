# SPDX-License-Identifier: Apache-2.0
"""The reductions of sequences, composed of other blocks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jfold.base.functions import ratio
from jfold.base.tracebacks import api_boundary
from jfold.blocks.compose import Wire, compose
from jfold.blocks.sequences import Broadcast, Length, Map, Padded, Reduce, ZipWith
from jfold.combinators import AllOf, Block, Convertible, Function, Pipe


def Sum() -> Reduce:
    """The sum of a sequence of tensors; zeros for an empty sequence."""
    return Reduce(jnp.add, associative=True)


@api_boundary
def Max(default: Convertible | None = None) -> Reduce:
    """The elementwise maximum of a sequence; of an empty one `default` or zeros."""
    return Reduce(jnp.maximum, default, associative=True)


@api_boundary
def Min(default: Convertible | None = None) -> Reduce:
    """The elementwise minimum of a sequence; of an empty one `default` or zeros."""
    return Reduce(jnp.minimum, default, associative=True)


def Mean() -> Pipe:
    """The mean of a sequence of tensors; zeros if empty. Ints give a float32.

    The sum has the dtype of the items, so that of float16 overflows beyond 65,504.
    """
    total = Map(Function(as_inexact)) >> Sum()
    return AllOf(total, Length()) >> Function(ratio, name='mean')


def as_inexact(x: jax.Array) -> jax.Array:
    """Return floats as they are; ints and bools, whose sums may wrap, as float32."""
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.float32)


@api_boundary
def Stack(length: int) -> Pipe:
    """A sequence of tensors [*shape] as one tensor [length, *shape], padded by zeros.

    A sequence of tuples of tensors gives a tuple. A longer sequence is an error. It is
    an operation of `length` inputs, so XLA takes longer to compile a larger one; behind
    a model, `Ragged.padded` does the same.

    >>> from jfold import Map, Scalar
    >>> (Map(Scalar()) >> Stack(3)).eval([1, 2]).tolist()
    [1.0, 2.0, 0.0]

    Raises:
      TypeError: `length` is no int; ValueError: it is not positive.
    """
    return Padded(length) >> Function(stack)


def stack(*items: Any) -> Any:
    """Return tensors, or pytrees of them leaf by leaf, stacked along a new axis 0."""
    return jax.tree.map(lambda *x: jnp.stack(x), *items)


def Softmax() -> Block:
    """The elementwise softmax over the items of a sequence of tensors.

    It is `exp` of each item divided by the sum of all. The maximum over the items is
    subtracted before `exp`, so that nothing overflows.

    >>> from jfold import Map, Scalar
    >>> shares = (Map(Scalar()) >> Softmax()).eval([1000, 1000, 999])
    >>> [round(x.item(), 3) for x in shares]
    [0.422, 0.422, 0.155]
    """

    @compose
    def softmax(x: Wire) -> Any:
        weights = ZipWith(Function(shifted_exp))(x, Broadcast()(Max()(x)))
        return ZipWith(jnp.divide)(weights, Broadcast()(Sum()(weights)))

    return softmax


def shifted_exp(x: jax.Array, largest: jax.Array) -> jax.Array:
    """Return `exp(x - largest)`, with no gradient to `largest`: a softmax has none."""
    return jnp.exp(x - jax.lax.stop_gradient(largest))
