# SPDX-License-Identifier: Apache-2.0
"""JAX written for this one cell: a scan in which all trees advance together.

Step t runs the t-th inner node, in post-order, of every tree; all trees having equally
many leaves, nothing is wasted. The reverse is written by hand: it fetches instead of
adding into buffers, because a node has one parent, and multiplies for the weights once,
after the scan. It shows what the machine can do; it is no library.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax_sgd import JaxProgram, state
from protocol import Tree, Weights, serve


class Plan(NamedTuple):
    """Nodes by slot (leaves come first) and tree, which has T = leaves - 1 inner nodes.

    Attributes:
      words: [leaves, trees]
      children: [T, 2, trees] rows of children, left and right: slot * trees + tree.
      parents: [leaves + T, trees] of each node, the row of what its parent gives it:
        (t * 2 + side) * trees + tree; the root's is behind all.
    """

    words: Any
    children: Any
    parents: Any


class Scan(JaxProgram):
    """One scan forward, one back."""

    def plan(self, trees: list[Tree]) -> Plan:
        return make_plan(trees, self.workload.leaves)

    def roots(self, params: Weights, plan: Plan) -> jax.Array:
        return roots(params, plan)


def make_plan(trees: list[Tree], leaves: int) -> Plan:
    """The plan of trees that have so many leaves each."""
    numbered = [number(tree, leaves) for tree in trees]
    words, pairs = (np.array(x, np.int32) for x in zip(*numbered, strict=True))
    count, column = len(trees), np.arange(len(trees))
    children = pairs.transpose(1, 2, 0)  # slots
    steps = len(children)
    parents = np.full((words.shape[1] + steps, count), 2 * steps, np.int32)
    given = np.arange(2 * steps, dtype=np.int32).reshape(steps, 2, 1)
    parents[children, column] = given
    rows = (x * np.int32(count) + column.astype(np.int32) for x in (children, parents))
    return Plan(words.T, *rows)


def number(tree: Tree, leaves: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Words of the leaves, and slots of the children of inner nodes in post-order."""
    words: list[int] = []
    pairs: list[tuple[int, int]] = []

    def visit(tree: Tree) -> int:
        if not isinstance(tree, tuple):
            words.append(tree)
            return len(words) - 1
        pairs.append((visit(tree[0]), visit(tree[1])))
        return leaves + len(pairs) - 1

    visit(tree)
    return words, pairs


def run(params: Weights, plan: Plan, keep: bool) -> tuple[jax.Array, Any]:
    """States [nodes, 2H], and of each step inputs and gates if they are to be kept."""
    (leaves, trees), steps = plan.words.shape, len(plan.children)
    states = jnp.zeros(((leaves + steps) * trees, params.table.shape[1]))
    states = states.at[: leaves * trees].set(params.table[plan.words.ravel()])

    def step(states: jax.Array, inputs: Any) -> tuple[jax.Array, Any]:
        t, (left, right) = inputs
        c_left, h_left = jnp.split(states[left], 2, axis=1)
        c_right, h_right = jnp.split(states[right], 2, axis=1)
        both = jnp.concatenate([h_left, h_right], axis=1)
        gates = both @ params.kernel + params.bias
        new, start = state(gates, c_left, c_right), (leaves + t) * trees
        states = jax.lax.dynamic_update_slice_in_dim(states, new, start, 0)
        return states, (both, gates, c_left, c_right) if keep else None

    return jax.lax.scan(step, states, (jnp.arange(steps), plan.children))


@jax.custom_vjp
def roots(params: Weights, plan: Plan) -> jax.Array:
    """The h [trees, H] of the roots, which run last."""
    return last(run(params, plan, keep=False)[0], plan)


def last(states: jax.Array, plan: Plan) -> jax.Array:
    """The h of the last slot."""
    return states[-plan.words.shape[1] :, states.shape[1] // 2 :]


def forward(params: Weights, plan: Plan) -> tuple[jax.Array, Any]:
    """`roots`, and what the reverse needs."""
    states, kept = run(params, plan, keep=True)
    return last(states, plan), (params, plan, kept)


def reverse(residuals: Any, cotangent: jax.Array) -> tuple[Weights, None]:
    """The gradients of the weights."""
    params, plan, (both, gates, c_left, c_right) = residuals
    (leaves, trees), steps = plan.words.shape, len(plan.children)
    given = jnp.zeros(((2 * steps + 1) * trees, params.table.shape[1]))
    given = given.at[2 * steps * trees :, cotangent.shape[1] :].set(cotangent)

    def step(given: jax.Array, inputs: Any) -> tuple[jax.Array, jax.Array]:
        t, parent, *saved = inputs
        _, pull = jax.vjp(state, *saved)
        dgates, *dc = pull(given[parent])
        dh = jnp.split(dgates @ params.kernel.T, 2, axis=1)
        new = jnp.concatenate([jnp.hstack(x) for x in zip(dc, dh, strict=True)])
        start = 2 * t * trees
        return jax.lax.dynamic_update_slice_in_dim(given, new, start, 0), dgates

    inputs = (jnp.arange(steps), plan.parents[leaves:], gates, c_left, c_right)
    given, dgates = jax.lax.scan(step, given, inputs, reverse=True)
    at_leaves = given[plan.parents[:leaves].ravel()]
    table = jnp.zeros_like(params.table).at[plan.words.ravel()].add(at_leaves)
    kernel = jnp.einsum('tbi,tbj->ij', both, dgates)
    return Weights(table, kernel, dgates.sum((0, 1))), None


roots.defvjp(forward, reverse)


if __name__ == '__main__':
    serve(Scan)
