# SPDX-License-Identifier: Apache-2.0
"""The loss of a batch's results, its gradient, and which tensors it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jfold.base.jaxprs import is_inexact
from jfold.device.linear import MaybeZeros, maybe_zero

Results = list[list[Any]]  # per result, a list of tensors, each [rows, *shape]


def sum_of_floats(value: object) -> Any:
    """Return the sum float32 [] of all floats in a pytree (real parts of complex)."""
    leaves = [x for x in jax.tree.leaves(value) if is_inexact(x)]
    return sum((x.sum().real.astype('float32') for x in leaves), jnp.float32(0))


def loss_of(
    loss: Callable[[Results], Any], results: Results
) -> tuple[Any, list[MaybeZeros]]:
    """Return the value of a loss, and its gradient by each tensor of the results.

    The gradient is a list per result of arrays, each [rows, *shape]. It is `None` for a
    tensor that has no cotangent in a step of training: a tensor of ints, or one that
    the loss does not read. Zeros would not do: zero times infinity is NaN.
    """
    read: list[bool] = []  # stays empty if JAX has no cotangent to pass back

    @jax.custom_vjp
    def watched(floats: list[Any]) -> list[Any]:
        return floats

    def forward(floats: list[Any]) -> tuple[list[Any], None]:
        return [x.value for x in floats], None

    def backward(_: None, cotangents: list[Any]) -> tuple[MaybeZeros]:
        # JAX passes a symbolic zero for an array that the loss does not read.
        grads = list(map(maybe_zero, cotangents))
        read[:] = [x is not None for x in grads]
        return (grads,)

    watched.defvjp(forward, backward, symbolic_zeros=True)

    # Tensors of ints stay known, as lengths, of which a loss may ask the numbers.
    def of_floats(floats: list[Any]) -> object:
        leaves = iter(watched(floats))
        return loss(
            [[next(leaves) if is_inexact(x) else x for x in y] for y in results]
        )

    floats = [x for y in results for x in y if is_inexact(x)]
    value, grads = jax.value_and_grad(of_floats)(floats)
    pairs = zip(grads, read or [False for _ in floats], strict=True)
    leaves = iter([x if is_read else None for x, is_read in pairs])
    return value, [
        [next(leaves) if is_inexact(x) else None for x in y] for y in results
    ]
