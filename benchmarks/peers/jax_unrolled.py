# SPDX-License-Identifier: Apache-2.0
"""JAX as one writes it first: recursion over a tree, jitted once for each shape.

Compilation takes seconds for each shape, so there are two trees, the same ones in every
step; they run one after the other.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax_sgd import JaxProgram, cell, descend, mean_loss
from protocol import Clock, Tree, Weights, serve


class Unrolled(JaxProgram):
    """One compiled program for each shape."""

    trees = 2

    def infer(self, trees: list[Tree], clock: Clock) -> Any:
        plans = [split(tree) for tree in trees]
        clock.built()
        found = [forward(shape)(self.params, words) for shape, words in plans]
        return np.concatenate([np.asarray(x) for x in found])

    def train(self, trees: list[Tree], clock: Clock) -> float:
        plans = [split(tree) for tree in trees]
        clock.built()
        found = [gradients(shape)(self.params, words) for shape, words in plans]
        losses, grads = zip(*found, strict=True)
        self.params = jax.block_until_ready(update(self.params, *grads))
        return float(np.mean([float(loss) for loss in losses]))


def split(tree: Tree) -> tuple[Tree, Any]:
    """The shape of a tree, with the numbers of its leaves for words; and the words."""
    words: list[int] = []

    def visit(tree: Tree) -> Tree:
        if isinstance(tree, tuple):
            return visit(tree[0]), visit(tree[1])
        words.append(tree)
        return len(words) - 1

    return visit(tree), np.array(words, np.int32)


@cache
def forward(shape: Tree) -> Any:
    """From weights and words to the h [1, H] of the root."""
    return jax.jit(partial(root, shape))


@cache
def gradients(shape: Tree) -> Any:
    """From weights and words to the loss and its gradients."""
    return jax.jit(jax.value_and_grad(partial(loss, shape)))


def loss(shape: Tree, params: Weights, words: jax.Array) -> jax.Array:
    """The loss of one tree."""
    return mean_loss(params, partial(root, shape), words)


def root(shape: Tree, params: Weights, words: jax.Array) -> jax.Array:
    """The h [1, H] of the root."""
    leaves = params.table[words]

    def visit(node: Tree) -> jax.Array:
        if isinstance(node, tuple):
            return cell(params, *map(visit, node))
        return leaves[node]

    return jnp.split(visit(shape), 2)[1][None]


@partial(jax.jit, donate_argnums=0)
def update(params: Weights, *grads: Weights) -> Weights:
    """The weights after a step against the mean of the gradients."""
    return descend(params, jax.tree.map(lambda *g: sum(g) / len(g), *grads))


if __name__ == '__main__':
    serve(Unrolled)
