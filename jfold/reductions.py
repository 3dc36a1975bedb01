# SPDX-License-Identifier: Apache-2.0
"""Reductions of sequences, made of other blocks."""

from __future__ import annotations

import jax.numpy as jnp

from jfold.blocks import Convertible
from jfold.combinators import AllOf, Function, Length, Pipe, Reduce
from jfold.functions import ratio
from jfold.tracebacks import boundary


def Sum() -> Reduce:
    """The sum of a sequence of tensors; zeros when empty."""
    return Reduce(jnp.add, associative=True)


@boundary
def Max(default: Convertible | None = None) -> Reduce:
    """The largest of a sequence, elementwise; `default`, or zeros, when empty."""
    return Reduce(jnp.maximum, default, associative=True)


@boundary
def Min(default: Convertible | None = None) -> Reduce:
    """The smallest of a sequence, elementwise; `default`, or zeros, when empty."""
    return Reduce(jnp.minimum, default, associative=True)


def Mean() -> Pipe:
    """The mean of a sequence of tensors; zeros when empty. Ints give a float32."""
    return AllOf(Sum(), Length()) >> Function(ratio, name='mean')
