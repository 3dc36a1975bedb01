# SPDX-License-Identifier: Apache-2.0
"""JAX with padded levels: a scan over heights, each as wide as the widest.

It is what one writes with a library of static graphs: index arrays of one shape, rows
that wait for nothing filled up, and automatic differentiation. The shape grows when a
batch needs more, which compiles again.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax_sgd import JaxProgram, cell
from protocol import Tree, Weights, Workload, serve

DEPTH, WIDTH = 4, 64  # what the padded shape is a multiple of


class Levels(JaxProgram):
    """One row for each leaf, then `width` rows for each height."""

    def __init__(self, workload: Workload, weights: Weights, threads: int) -> None:
        super().__init__(workload, weights, threads)
        self.depth, self.width = DEPTH, WIDTH

    def plan(self, trees: list[Tree]) -> Any:
        """Words [n], rows of children [depth, 2, width], and of the roots [trees]."""
        words, levels, roots = number(trees)
        self.depth = grown(self.depth, len(levels), DEPTH)
        self.width = grown(self.width, max(map(len, levels)), WIDTH)
        table = len(words) + self.width * np.arange(-1, self.depth)
        table[0] = 0  # leaves have height 0
        children = np.zeros((self.depth, self.width, 2), np.int32)
        for level, pairs in enumerate(levels):
            heights, places = np.array(pairs).transpose(2, 0, 1)
            children[level, : len(pairs)] = table[heights] + places
        heights, places = np.array(roots).T
        return np.array(words, np.int32), children, table[heights] + places

    def roots(self, params: Weights, plan: Any) -> jax.Array:
        words, children, roots = plan
        rows, width = len(words), self.workload.hidden
        depth, spare = children.shape[:2]
        states = jnp.zeros((rows + depth * spare, 2 * width))
        states = states.at[:rows].set(params.table[words])

        def level(states: jax.Array, inputs: Any) -> tuple[jax.Array, None]:
            place, pairs = inputs
            new = cell(params, states[pairs[:, 0]], states[pairs[:, 1]])
            start = rows + place * spare
            return jax.lax.dynamic_update_slice_in_dim(states, new, start, 0), None

        states, _ = jax.lax.scan(level, states, (jnp.arange(depth), children))
        return states[roots, width:]


def grown(old: int, need: int, step: int) -> int:
    """The first multiple of `step` that is enough, and no less than before."""
    return max(old, -(-need // step) * step)


def number(trees: list[Tree]) -> tuple[list[int], list[Any], list[Any]]:
    """Words of leaves; for each height pairs of children; roots.

    A child or root is its height and its place among the nodes of that height.
    """
    words: list[int] = []
    levels: list[Any] = []

    def visit(tree: Tree) -> tuple[int, int]:
        if not isinstance(tree, tuple):
            words.append(tree)
            return 0, len(words) - 1
        pair = visit(tree[0]), visit(tree[1])
        height = max(pair[0][0], pair[1][0])  # less 1
        if height == len(levels):
            levels.append([])
        levels[height].append(pair)
        return height + 1, len(levels[height]) - 1

    return words, levels, [visit(tree) for tree in trees]


if __name__ == '__main__':
    serve(Levels)
