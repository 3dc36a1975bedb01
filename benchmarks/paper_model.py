# SPDX-License-Identifier: Apache-2.0
"""The model of Looks et al. 2017: as blocks, by hand in plain JAX, and a reference."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from trees import VOCABULARY, Params, Tree

import jfold as jf

RATE = 1e-5
CHUNK = 8  # trees that the reference runs at once

# ---- the model -----------------------------------------------------------------------


def cell(params: Params, left: jax.Array, right: jax.Array) -> jax.Array:
    """A variant of the tree-LSTM: states [..., W], a hidden layer, four gates."""
    both = jnp.concatenate([left, right], -1)
    hidden = jax.nn.relu(both @ params['w0'] + params['b0'])
    gates = jnp.split(hidden @ params['w1'] + params['b1'], 4, -1)
    keep_left, keep_right, write = map(jax.nn.sigmoid, gates[:3])
    return keep_left * left + keep_right * right + write * jnp.tanh(gates[3])


def init_cell(key: jax.Array, left: Any, right: Any) -> Params:
    """Weights of uniform variance scaling, with the factors 1.43 and 1; no biases."""
    (width,), (first, second) = left.shape, jax.random.split(key)
    return {
        'w0': uniform(first, (2 * width, width), 1.43),
        'b0': jnp.zeros(width),
        'w1': uniform(second, (width, 4 * width), 1.0),
        'b1': jnp.zeros(4 * width),
    }


def uniform(key: jax.Array, shape: tuple[int, int], factor: float) -> jax.Array:
    """Uniform; a sum of `shape[0]` such numbers has the variance factor²."""
    limit = factor * math.sqrt(3 / shape[0])
    return jax.random.uniform(key, shape, minval=-limit, maxval=limit)


def embed(table: jax.Array, words: jax.Array) -> jax.Array:
    """The vectors of words."""
    return table[words]


def expression(width: int) -> jf.Block:
    """Tree to the state [W] of its root."""

    def init_table(key: jax.Array, word: Any) -> jax.Array:
        return jax.random.uniform(key, (VOCABULARY, width))

    tree = jf.ForwardDeclaration(name='tree')
    leaf = jf.Scalar('int32') >> jf.Function(embed, init_table)
    pair = jf.Record((tree(), tree())) >> jf.Function(cell, init_cell)
    tree.resolve_to(jf.OneOf(type, {int: leaf, tuple: pair}))
    return tree()


def descend(roots: Callable[..., jax.Array], params: Params, *given: Any) -> Any:
    """Loss, gradients and new parameters of a step on what `roots(params, ...)` is."""

    def loss(params: Params) -> jax.Array:
        return (roots(params, *given) ** 2).sum() / 2

    value, grads = jax.value_and_grad(loss)(params)
    return value, grads, jax.tree.map(lambda p, g: p - RATE * g, params, grads)


# ---- by hand -------------------------------------------------------------------------


def leaves(tree: Tree) -> Iterator[int]:
    """The words, from left to right."""
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, tuple):
            stack += reversed(node)
        else:
            yield node


def words_of(trees: list[Tree]) -> np.ndarray:
    """The words of trees of equal size [leaves, trees] int32."""
    return np.array([list(leaves(tree)) for tree in trees], np.int32).T


def with_words(shape: Tree, words: Iterator[int]) -> Tree:
    """A tree of that shape."""
    if not isinstance(shape, tuple):
        return next(words)
    return with_words(shape[0], words), with_words(shape[1], words)


def roots_by_node(shape: Tree, params: Params, words: jax.Array) -> jax.Array:
    """Roots [trees, W] of trees of one shape, a cell at a time."""
    rows = iter(jnp.split(words, len(words)))

    def visit(node: Tree) -> jax.Array:
        if isinstance(node, tuple):
            return cell(params['cell'], visit(node[0]), visit(node[1]))
        return embed(params['embed'], next(rows)[0])

    return visit(shape)


def roots_by_level(shape: Tree, params: Params, words: jax.Array) -> jax.Array:
    """Roots [trees, W] of trees of one shape, a level at a time."""
    states = _apart(embed(params['embed'], words))
    for level in levels(shape):
        left, right = (jnp.stack([states[pair[k]] for pair in level]) for k in (0, 1))
        states += _apart(cell(params['cell'], left, right))
    return states[-1]


def _apart(states: jax.Array) -> list[jax.Array]:
    """States [n, trees, W] one by one; the reverse of this is one concatenation."""
    return [x[0] for x in jnp.split(states, len(states))]


def levels(shape: Tree) -> list[list[tuple[int, int]]]:
    """The children of the cells of each level; leaves have the first numbers.

    >>> levels(((0, 0), ((0, 0), 0)))
    [[(0, 1), (2, 3)], [(6, 4)], [(5, 7)]]
    """
    found: list[list[Any]] = []  # of each height, pairs of (height, position)
    leaf = itertools.count()

    def visit(node: Tree) -> tuple[int, int]:
        if not isinstance(node, tuple):
            return 0, next(leaf)
        left, right = visit(node[0]), visit(node[1])
        height = 1 + max(left[0], right[0])
        if height > len(found):
            found.append([])
        found[height - 1].append((left, right))
        return height, len(found[height - 1]) - 1

    visit(shape)
    first = [0, *itertools.accumulate([next(leaf), *map(len, found)])]
    return [
        [(first[a] + i, first[b] + j) for (a, i), (b, j) in level] for level in found
    ]


# ---- the reference -------------------------------------------------------------------


def postorder(trees: list[Tree]) -> tuple[np.ndarray, np.ndarray]:
    """Words [trees, leaves], and children of the cells [trees, cells, 2], as int32.

    Leaves have the first numbers, cells the next ones, children before parents.
    """
    children = [[pair for level in levels(tree) for pair in level] for tree in trees]
    return words_of(trees).T, np.array(children, np.int32)


def roots_in_step(params: Params, words: jax.Array, children: jax.Array) -> jax.Array:
    """Roots [trees, W]: step t runs cell t of each tree."""
    count = words.shape[1]
    start = embed(params['embed'], words)
    states = jnp.pad(start, ((0, 0), (0, children.shape[1]), (0, 0)))

    def step(states: jax.Array, t: jax.Array) -> tuple[jax.Array, None]:
        places = children[:, t, :, None]
        given = jnp.take_along_axis(states, places, 1)
        new = cell(params['cell'], given[:, 0], given[:, 1])
        return states.at[:, count + t].set(new), None

    return jax.lax.scan(step, states, jnp.arange(children.shape[1]))[0][:, -1]


def reference(mode: str, params: Params, trees: list[Tree]) -> Any:
    """What a step must give, in plain JAX, a few trees at a time."""
    parts = [
        _reference(mode)(params, *postorder(trees[i : i + CHUNK]))
        for i in range(0, len(trees), CHUNK)
    ]
    if mode == 'infer':
        return np.concatenate(parts)
    value, grads = jax.tree.map(lambda *x: sum(x), *parts)
    return value, grads, jax.tree.map(lambda p, g: p - RATE * g, params, grads)


@functools.cache
def _reference(mode: str) -> Callable[..., Any]:
    if mode == 'infer':
        return jax.jit(roots_in_step)

    def loss(params: Params, *given: Any) -> jax.Array:
        return (roots_in_step(params, *given) ** 2).sum() / 2

    return jax.jit(jax.value_and_grad(loss))
