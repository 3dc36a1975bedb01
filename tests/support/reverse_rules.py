# SPDX-License-Identifier: Apache-2.0
"""Functions with reverse rules of their own, and gradients of models of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jfold as jf
from jfold.scheduling.spec import COUNTED, FIXED, RECOMPUTE_ALL, SAVE_PRODUCTS

# Options of models; `None`: no loops.
OPPOSITES: tuple[tuple[str, str | None], ...] = (
    (SAVE_PRODUCTS, COUNTED),
    (RECOMPUTE_ALL, FIXED),
    (RECOMPUTE_ALL, None),
)
BATCH = [[1, 2, 3], [4, 5, 6]]
H = 3


def with_reverse(rule: Any) -> Any:
    """The identity, whose reverse is a rule."""
    fn = jax.custom_vjp(lambda x: x)
    fn.defvjp(lambda x: (x, None), lambda _, cotangent: (rule(cotangent),))
    return fn


added = with_reverse(lambda cotangent: cotangent + 0.1)
normalised = with_reverse(lambda cotangent: cotangent / jnp.abs(cotangent))


@jax.custom_vjp
def bilinear(w: Any, x: Any) -> Any:
    """A product whose reverse adds something to either cotangent."""
    return w * x


bilinear.defvjp(
    lambda w, x: (w * x, (w, x)),
    lambda kept, ct: (ct * kept[1] + 0.1, ct * kept[0] + 0.2),
)


def ones(key: Any, *specs: Any) -> Any:
    return jnp.ones(H)


def gradient(model: Any, params: Any, batch: Any, size: int | None = None) -> Any:
    schedule = model.schedule(batch, size=size)
    mask = schedule.mask

    def loss(params: Any) -> Any:
        values = model.apply(params, schedule)
        return jnp.where(mask[:, None], values, 0).sum()

    return jax.tree.leaves(jax.jit(jax.grad(loss))(params))


def close(got: Any, want: Any) -> None:
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)


weighted = jf.Function(lambda w, x: w * x, init=ones, name='weighted')
