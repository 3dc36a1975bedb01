# SPDX-License-Identifier: Apache-2.0
"""A binary tree-LSTM for fine-grained sentiment, and an epoch of its training.

The model of Looks et al. 2017, section 3.5, after Tai et al. 2015, with dropout
of words, candidates (as in Semeniuta et al. 2016) and outputs. A tree is
`(label, word)` or `(label, left, right)`, a word its row in a table of vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

import jfold as jf

CLASSES = 5  # from very negative to very positive
KEEP = 0.75  # the share that dropout leaves
SLOW = optax.chain(optax.scale(0.1), optax.adagrad(0.05))
OPTIMIZER = optax.multi_transform(
    {'words': SLOW, 'rest': optax.adagrad(0.05)},
    lambda weights: {k: 'words' if k == 'words' else 'rest' for k in weights},
)


class TreeLSTM(nn.Module):
    """Eqs. 9-14 of Tai et al. with N = 2; a state is vectors h and c [size]."""

    size: int

    @nn.compact
    def __call__(self, inputs: Any, keep_x: Any, keep_u: Any) -> Any:
        """The state of a node, of its word's vector [n] and two states."""
        x, (h_left, c_left), (h_right, c_right) = inputs
        given = jnp.concatenate([x * keep_x, h_left, h_right])
        i, o, f_left, f_right, u = jnp.split(nn.Dense(5 * self.size)(given), 5)
        c = nn.sigmoid(i) * jnp.tanh(u) * keep_u
        c += nn.sigmoid(f_left + 1) * c_left  # so that at first it remembers
        c += nn.sigmoid(f_right + 1) * c_right
        return nn.sigmoid(o) * jnp.tanh(c), c


def dropout(sizes: tuple[int, ...], noise: Any, node: jax.Array) -> Any:
    """A vector of each size to multiply by, for the node of that number.

    `noise` is a key and the share that is left; each step has a key of its own.
    """
    key, share = noise
    keys = jax.random.split(jax.random.fold_in(key, node), len(sizes))
    pairs = zip(keys, sizes, strict=True)
    return tuple(jax.random.bernoulli(k, share, (n,)) / share for k, n in pairs)


def loss_and_hit(scores: jax.Array, label: jax.Array) -> Any:
    """The cross entropy at a node, and 1 if its best score is right."""
    loss = optax.softmax_cross_entropy_with_integer_labels(scores, label)
    return loss, jnp.float32(scores.argmax() == label)


def make_model(vectors: jax.Array, size: int = 300) -> jf.Model:
    """From numbered trees to the states of their roots.

    The metric `nodes` has what `loss_and_hit` gives for each node.

    Args:
      vectors: [words, n] the vectors to begin with.
      size: of the states.
    """
    width = vectors.shape[1]
    number, zeros = jf.Scalar('int32'), jf.Zeros((size, size))
    words = jf.Function(lambda table, k: table[k], lambda _: vectors, 'words')
    drop = partial(dropout, (width, size, size))
    noise = jf.Function(drop, lambda key: (key, KEEP), 'noise')
    lstm, output = jf.Function(TreeLSTM(size)), jf.Function(nn.Dense(CLASSES))

    @jf.recursive
    def tree(tree: Any, node: Any) -> Any:
        """The state of a node."""
        keep_x, keep_u, keep_h = (noise(number(node[0]))[k] for k in range(3))
        leaf = jf.AllOf(jf.GetItem(2) >> number >> words, zeros, zeros)
        pair = jf.AllOf(
            jf.Zeros(width), jf.GetItem(2) >> tree(), jf.GetItem(3) >> tree()
        )
        inputs = jf.OneOf(len, {3: leaf, 4: pair})(node)
        state = lstm(inputs, keep_x, keep_u)
        scores = output(jf.Function(jnp.multiply)(state[0], keep_h))
        found = jf.Function(loss_and_hit)(scores, number(node[1]))
        jf.Metric('nodes')(found)
        return state

    return jf.compile(tree)


def numbered(tree: Any, numbers: Iterator[int]) -> Any:
    """The same tree with a number in front of each node, for its dropout."""
    label, *rest = tree
    if len(rest) == 2:
        rest = [numbered(child, numbers) for child in rest]
    return (next(numbers), label, *rest)


def init(model: jf.Model, key: jax.Array) -> tuple[Any, Any]:
    """What training begins with: weights, and the state of the optimizer."""
    weights = model.init(key)
    del weights['noise']  # every step brings its own
    return weights, OPTIMIZER.init(weights)


@partial(jax.jit, static_argnames='model')
def step(
    model: jf.Model, state: Any, schedule: jf.Schedule, noise: Any
) -> tuple[Any, Any]:
    """Makes the sum of a batch's losses smaller.

    Args:
      model: as `make_model` returns it.
      state: as `init` returns it.
      schedule: of the batch.
      noise: for `dropout`.

    Returns:
      The new state, and the mean over nodes of what `loss_and_hit` gives.
    """

    def loss(weights: Any) -> Any:
        _, metrics = model.apply(weights | {'noise': noise}, schedule)
        return metrics['nodes'].sum()[0], metrics['nodes'].mean()

    weights, slots = state
    grads, means = jax.grad(loss, has_aux=True)(weights)
    updates, slots = OPTIMIZER.update(grads, slots, weights)
    return (optax.apply_updates(weights, updates), slots), means


def epoch(
    model: jf.Model, state: Any, trees: Any, key: jax.Array, size: int = 100
) -> tuple[Any, list[Any]]:
    """Goes through all trees once.

    Args:
      model: as `make_model` returns it.
      state: as `init` returns it.
      trees: a list of numbered trees, or a corpus of them.
      key: decides on their order, and on dropout.
      size: of a batch, in trees.

    Returns:
      The new state, and the means of each batch, as of `step`.
    """
    means = []
    for batch in model.batches(trees, size, shuffle=key):
        noise = jax.random.fold_in(key, len(means)), KEEP
        state, mean = step(model, state, batch.schedule, noise)
        means.append(mean)
    return state, means
