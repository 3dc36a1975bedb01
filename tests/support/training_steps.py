# SPDX-License-Identifier: Apache-2.0
"""A small model of trees, a step of its training, and the batches of it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from binary_trees import binary_tree, tree_block

import jfold as jf

SIZE = 4
RNG = np.random.default_rng(0)
TREES = [binary_tree(RNG, int(RNG.integers(1, 9))) for _ in range(20)]


def prepared() -> tuple[jf.Model, jf.Corpus, Any]:
    """The model, its corpus and parameters."""
    model = jf.compile(tree_block(4))
    return model, model.trace(TREES), model.init(jax.random.key(0))


def train(model: jf.Model, params: Any, schedule: jf.Schedule, rate: Any) -> Any:
    """One step of gradient descent; the new parameters and the loss."""

    def loss(params: Any) -> Any:
        return (model.apply(params, schedule) ** 2).mean()

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda x, g: x - rate * g, params, grads), value


def batches(examples: int, count: int) -> list[Any]:
    """The numbers of the examples of some batches."""
    rng = np.random.default_rng(1)
    return [rng.permutation(examples)[:SIZE] for _ in range(count)]
