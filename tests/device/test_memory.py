# SPDX-License-Identifier: Apache-2.0
"""How much memory training takes, and that `explain` says so."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from binary_trees import binary, binary_tree, embedding
from hlo import AS_USERS_HAVE_IT
from jax import numpy as jnp

import jfold as jf
from jfold.scheduling.schedule import abstract
from jfold.scheduling.spec import RESIDUALS, Spec

H, LEAVES = 32, 64


def lstm(params: Any, left: Any, right: Any) -> Any:
    """A cell of five gates, whose state is c beside h."""
    gates = params @ jnp.concatenate([left[H:], right[H:]])
    i, o, u, f, g = jnp.split(jax.nn.sigmoid(gates), 5)
    c = i * u + f * left[:H] + g * right[:H]
    return jnp.concatenate([c, o * jnp.tanh(c)])


def tree_lstm(residuals: str) -> jf.Model:
    """A tree-LSTM on binary trees."""

    def init(key: Any, *_: Any) -> Any:
        return jax.random.normal(key, (5 * H, 2 * H)) / 16

    leaf = jf.Scalar('int32') >> embedding(2 * H)
    return jf.compile(binary(leaf, jf.Function(lstm, init)), residuals=residuals)


def taken(trees: int, residuals: str, *, exact: bool = True) -> int:
    """Bytes of what a compiled gradient needs beside arguments and results.

    Args:
      exact: with the capacity of the trees, else with the room that a stream is given.
    """
    model, rng = tree_lstm(residuals), np.random.default_rng(0)
    examples = [binary_tree(rng, LEAVES) for _ in range(trees)]
    if exact:
        capacity = model.trace(examples).capacities(trees)
        schedule = abstract(Spec(model.program, capacity, residuals))
    else:
        schedule = model.schedule(examples)
    params = model.init(jax.random.key(0))
    grad = jax.grad(lambda params, schedule: model.apply(params, schedule).sum())
    step = jax.jit(grad, compiler_options=AS_USERS_HAVE_IT)
    compiled = step.lower(params, schedule).compile()
    return int(compiled.memory_analysis().temp_size_in_bytes)


@pytest.mark.slow
@pytest.mark.parametrize(('trees', 'share'), [(64, 0.75), (256, 0.7)])
def test_training_takes_values_products_and_edges(trees: int, share: float) -> None:
    """At most 1.3 times these, in a stream too, and a share without the products.

    Tiles and weights take the same for any batch, so the larger has the less.
    """
    cells, leaves = trees * (LEAVES - 1), trees * LEAVES
    values, products, edges = (cells + leaves) * 2 * H, cells * 5 * H, cells * 4 * H
    whole, less = (taken(trees, each) for each in RESIDUALS)
    needed = 4 * (values + products + edges)
    assert whole <= 1.15 * needed
    assert taken(trees, RESIDUALS[0], exact=False) <= 1.3 * needed
    assert less <= share * whole
