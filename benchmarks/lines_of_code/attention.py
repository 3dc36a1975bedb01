# SPDX-License-Identifier: Apache-2.0
"""Feed-forward attention, for the sums and products of Raffel & Ellis 2016.

The model of their section 2, around the attention that Looks et al. 2017 show
in appendix A, with its loss and accuracy, but neither data nor training.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

import jfold as jf


def dense(size: int) -> jf.Block:
    """From a vector to `size` numbers: an affine map and a leaky rectifier."""
    affine = nn.Dense(size, kernel_init=nn.initializers.he_normal())
    return jf.Function(affine) >> nn.leaky_relu


@jf.compose
def attention(h: Any) -> Any:
    """From vectors [n], one a step, to a mean [n] weighted by what they say."""
    e = jf.Map(jf.Function(nn.Dense(1)) >> jnp.tanh)(h)
    exp_e = jf.Map(jnp.exp)(e)
    z = jf.Broadcast()(jf.Sum()(exp_e))
    alpha = jf.ZipWith(jnp.divide)(exp_e, z)
    return jf.Sum()(jf.ZipWith(jnp.multiply)(alpha, h))


def make_model(size: int = 100) -> jf.Model:
    """Steps, any number of pairs of a value and a marker, to an answer [1]."""
    steps = jf.Map(jf.Vector(2) >> dense(size))
    return jf.compile(steps >> attention >> dense(size) >> dense(1))


def loss_and_accuracy(
    model: jf.Model, params: Any, schedule: jf.Schedule, targets: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Mean squared error, and how many answers are off by less than 0.04.

    Args:
      model: as `make_model` returns it.
      params: of the model.
      schedule: of some examples.
      targets: [examples] what is right.
    """
    errors = model.apply(params, schedule)[:, 0] - targets
    return jnp.mean(errors**2), jnp.mean(abs(errors) < 0.04)
