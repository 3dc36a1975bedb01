# SPDX-License-Identifier: Apache-2.0
"""Losses of results: their gradients, and which results they read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jfold.debug.rowwise import is_inexact
from jfold.device.linear import MaybeZeros, sparse

Results = list[list[Any]]  # per result its tensors [rows, *shape]


def sum_of_floats(value: object) -> Any:
    """Of all floats in results."""
    leaves = [x for x in jax.tree.leaves(value) if is_inexact(x)]
    return sum((x.sum().real.astype('float32') for x in leaves), jnp.float32(0))


def loss_of(
    loss: Callable[[Results], Any], results: Results
) -> tuple[Any, list[MaybeZeros]]:
    """A loss, and its gradient by each tensor [rows, *shape].

    That is `None` of what has no cotangent in a step of training: of ints, and of what
    the loss does not read. Zeros would not do, for zero times infinity is NaN.
    """
    # JAX differentiates by floats alone; other arrays go around it.
    floats, read = [x for each in results for x in each if is_inexact(x)], list[bool]()

    def of_floats(floats: list[Any]) -> object:
        rest = iter(_watched(floats, read))
        return loss([[next(rest) if is_inexact(x) else x for x in y] for y in results])

    value, grads = jax.value_and_grad(of_floats)(floats)
    pairs = zip(grads, read or [False for _ in floats], strict=True)
    found = iter([x if yes else None for x, yes in pairs])
    return value, [[next(found) if is_inexact(x) else None for x in y] for y in results]


def _watched(leaves: list[Any], read: list[bool]) -> list[Any]:
    """The same arrays [*shape each]; once they are differentiated, `read` tells which
    of them have a cotangent."""

    @jax.custom_vjp
    def same(leaves: list[Any]) -> list[Any]:
        return leaves

    def forward(leaves: list[Any]) -> tuple[list[Any], list[Any]]:
        values = [x.value for x in leaves]
        return values, values

    def backward(values: list[Any], cotangents: list[Any]) -> tuple[list[Any]]:
        found = list(map(sparse, cotangents))
        read[:] = [x is not None for x in found]
        pairs = zip(found, values, strict=True)
        return ([jnp.zeros_like(y) if x is None else x for x, y in pairs],)

    same.defvjp(forward, backward, symbolic_zeros=True)
    made: list[Any] = same(leaves)
    return made
