# SPDX-License-Identifier: Apache-2.0
"""JAX with a stack machine: shift and reduce, one program for all trees, vmapped.

Every tree takes as many steps as it has nodes; a step does both and keeps one.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax_sgd import JaxProgram, cell
from protocol import Tree, Weights, serve

REDUCE = -1


class Stack(JaxProgram):
    """Each tree has a stack as high as it has leaves."""

    def plan(self, trees: list[Tree]) -> Any:
        """The nodes [trees, nodes] in post-order: a word, or `REDUCE`."""
        return np.array([postorder(tree) for tree in trees], np.int32)

    def roots(self, params: Weights, plan: Any) -> jax.Array:
        height = self.workload.leaves + 1  # the lowest is no word's
        bottom = jnp.zeros((height, 2 * self.workload.hidden))

        def root(nodes: jax.Array) -> jax.Array:
            stack, _ = jax.lax.scan(step, (bottom, jnp.int32(0)), nodes)
            return stack[0][1, self.workload.hidden :]

        def step(carry: Any, node: jax.Array) -> Any:
            stack, top = carry
            reduced = cell(params, stack[top - 1], stack[top])
            shift = node != REDUCE
            new = jnp.where(shift, params.table[node], reduced)
            top = jnp.where(shift, top + 1, top - 1)
            return (stack.at[top].set(new), top), None

        return jax.vmap(root)(plan)


def postorder(tree: Tree) -> list[int]:
    """Children before their parents, which are `REDUCE`."""
    nodes: list[int] = []

    def visit(tree: Tree) -> None:
        if isinstance(tree, tuple):
            visit(tree[0])
            visit(tree[1])
            nodes.append(REDUCE)
        else:
            nodes.append(tree)

    visit(tree)
    return nodes


if __name__ == '__main__':
    serve(Stack)
