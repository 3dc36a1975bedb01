# SPDX-License-Identifier: Apache-2.0
"""The workload: a tree-LSTM on random binary trees, written with ordinary blocks."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

import jfold as jf

VOCABULARY = 128
Tree = Any  # a word number, or a pair of trees
Params = Any  # of a model, by layers


@dataclass(frozen=True)
class Workload:
    """Batches of `trees` random trees with `leaves` leaves and `hidden` units."""

    trees: int
    leaves: int
    hidden: int

    def __str__(self) -> str:
        return f'{self.trees} trees of {self.leaves} leaves, H = {self.hidden}'

    @property
    def cells(self) -> int:
        """Inner nodes of a batch."""
        return self.trees * (self.leaves - 1)

    @property
    def nodes(self) -> int:
        """Inner nodes and leaves of a batch."""
        return self.trees * (2 * self.leaves - 1)

    def batches(self, count: int, seed: int = 0) -> list[list[Tree]]:
        """`count` batches, all trees different."""
        rng = random.Random(seed)
        return [
            [random_tree(self.leaves, rng) for _ in range(self.trees)]
            for _ in range(count)
        ]


def random_tree(leaves: int, rng: random.Random) -> Tree:
    """Splits the leaves uniformly, recursively."""
    if leaves == 1:
        return rng.randrange(VOCABULARY)
    left = rng.randint(1, leaves - 1)
    return random_tree(left, rng), random_tree(leaves - left, rng)


def comb(leaves: int, rng: random.Random) -> Tree:
    """A tree that leans to the left: a chain of cells."""
    tree: Tree = rng.randrange(VOCABULARY)
    for _ in range(leaves - 1):
        tree = (tree, rng.randrange(VOCABULARY))
    return tree


def init_cell(key: jax.Array, left: Any, right: Any) -> dict[str, jax.Array]:
    """Weights of a cell whose state [2H] is c beside h."""
    hidden = left.shape[0] // 2
    scale = (2 * hidden) ** -0.5
    weights = jax.random.uniform(key, (2 * hidden, 5 * hidden), minval=-1, maxval=1)
    return {'weights': scale * weights, 'bias': jnp.zeros(5 * hidden)}


def gates_at_once(params: dict[str, jax.Array], h: jax.Array) -> jax.Array:
    """The five gates [5H] of a cell, by one product."""
    return h @ params['weights'] + params['bias']


def cell(
    params: Any,
    left: jax.Array,
    right: jax.Array,
    split: Callable[[Any, int], Any] = jnp.split,
    gates: Callable[[Any, jax.Array], Any] = gates_at_once,
) -> jax.Array:
    """Binary tree-LSTM (Tai et al. 2015, eqs. 9-14, N = 2, no input at inner nodes)."""
    (c_left, h_left), (c_right, h_right) = split(left, 2), split(right, 2)
    h = jnp.concatenate([h_left, h_right])
    i, o, u, f_left, f_right = split(gates(params, h), 5)
    c = jax.nn.sigmoid(i) * jnp.tanh(u)
    c += jax.nn.sigmoid(f_left) * c_left + jax.nn.sigmoid(f_right) * c_right
    return jnp.concatenate([c, jax.nn.sigmoid(o) * jnp.tanh(c)])


def expression(hidden: int) -> jf.Block:
    """Tree to the h [H] of its root."""

    def init_table(key: jax.Array, word: Any) -> jax.Array:
        return jax.random.uniform(
            key, (VOCABULARY, 2 * hidden), minval=-0.5, maxval=0.5
        )

    def embed(table: jax.Array, word: jax.Array) -> jax.Array:
        return table[word]

    tree = jf.ForwardDeclaration(name='tree')
    leaf = jf.Scalar('int32') >> jf.Function(embed, init_table)
    pair = jf.Record((tree(), tree())) >> jf.Function(cell, init_cell)
    tree.resolve_to(jf.OneOf(type, {int: leaf, tuple: pair}))
    return tree() >> jf.GetItem(slice(hidden, None))
