# SPDX-License-Identifier: Apache-2.0
"""Learns to write an expression down from one vector, given its structure.

An unfolding recursive autoencoder (Socher et al. 2011): an encoder folds a tree into
the vector of its root, and a decoder takes this vector apart, from the root to the
leaves, along the same tree. The shape of the tree is known to the decoder; what stands
at its nodes is not, and has to be said. Symbols are drawn at random, so they have to be
remembered.
"""

from __future__ import annotations

import argparse
import random
import string
from collections.abc import Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from training import (
    Examples,
    Params,
    clipped_adam,
    make_parser,
    make_trainer,
    print_shares,
)

import jfold as jf

Tree = str | tuple[str, Any, Any]  # a letter, or an operation on two trees

OPERATIONS, LETTERS = '+-*/', string.ascii_lowercase
NUMBERS = {symbol: number for number, symbol in enumerate(LETTERS + OPERATIONS)}
SIZES = {'short': (2, 3), 'long': (4, 5)}  # numbers of letters in the trees of parts
HELD_OUT = 1_000  # trees of each part to be tested on

# ---- the model -----------------------------------------------------------------------


class Fold(nn.Module):
    """The vector of a tree, by those of the symbol at its root and of its halves."""

    width: int

    @nn.compact
    def __call__(self, *parts: jax.Array) -> jax.Array:
        hidden = nn.relu(nn.Dense(2 * self.width)(jnp.concatenate(parts)))
        return nn.tanh(nn.Dense(self.width)(hidden))


class Unfold(nn.Module):
    """The vectors of both halves, by that of a tree."""

    width: int

    @nn.compact
    def __call__(self, tree: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden = nn.relu(nn.Dense(2 * self.width)(tree))
        left, right = jnp.split(nn.tanh(nn.Dense(2 * self.width)(hidden)), 2)
        return left, right


def make_block(width: int) -> jf.Block:
    """Return the share [2] of symbols that are right in a tree, and whether all are.

    Metric `loss` is the cross entropy at each node.
    """
    embed = jf.Function(nn.Embed(len(NUMBERS), width), name='embed')
    fold = jf.Function(Fold(width), name='fold')
    unfold = jf.Function(Unfold(width), name='unfold')
    say = jf.Function(nn.Dense(len(NUMBERS)), name='say')
    loss = jf.Function(optax.softmax_cross_entropy_with_integer_labels, name='loss')
    is_right = jf.Function(lambda scores, number: 1.0 * (scores.argmax() == number))
    mean, least, pair = jf.Mean(), jf.Min(), jf.Function(lambda *x: jnp.stack(x))

    def encode(tree: Tree) -> Any:
        if isinstance(tree, str):
            return embed(NUMBERS[tree])
        symbol, left, right = tree
        return fold(embed(NUMBERS[symbol]), encode(left), encode(right))

    def decode(tree: Tree, vector: Any) -> Iterator[Any]:
        scores, number = say(vector), NUMBERS[tree[0]]
        jf.observe('loss', loss(scores, number))
        yield is_right(scores, number)
        if isinstance(tree, tuple):
            for half, inner in zip(tree[1:], unfold(vector), strict=True):
                yield from decode(half, inner)

    @jf.lazy
    def autoencoder(tree: Tree) -> Any:
        right = [*decode(tree, encode(tree))]
        return pair(mean(right), least(right))

    return autoencoder


def node_loss(model: jf.Model, params: Params, schedule: Any, _: Any) -> jax.Array:
    """Return the mean loss of the nodes of a batch."""
    _, metrics = model.apply(params, schedule)
    mean: jax.Array = metrics['loss'].mean()
    return mean


def shares(model: jf.Model, params: Params, schedule: Any) -> jax.Array:
    """Return the results [trees, 2] without the losses."""
    rows: jax.Array = model.apply(params, schedule)[0]
    return rows


# ---- the data ------------------------------------------------------------------------


def random_tree(rng: random.Random, letters: int) -> Tree:
    """Return a tree with so many letters."""
    if letters == 1:
        return rng.choice(LETTERS)
    left = rng.randrange(1, letters)
    halves = random_tree(rng, left), random_tree(rng, letters - left)
    return rng.choice(OPERATIONS), *halves


def symbols(tree: Tree) -> Iterator[str]:
    """Iterate over the symbols of a tree, the root first.

    >>> ''.join(symbols(('+', 'a', ('*', 'b', 'c'))))
    '+a*bc'
    """
    yield tree[0]
    for half in tree[1:]:
        yield from symbols(half)


def make_parts(count: int, seed: int) -> dict[str, Examples]:
    """Return trees to learn from, and other ones of two sizes, no two alike."""
    rng = random.Random(seed)
    trees: dict[str, list[Tree]] = {'train': []}
    for name, sizes in SIZES.items():
        drawn: dict[Tree, None] = {}
        while len(drawn) < HELD_OUT + count // len(SIZES):
            drawn[random_tree(rng, rng.choice(sizes))] = None
        trees[name], more = [*drawn][:HELD_OUT], [*drawn][HELD_OUT:]
        trees['train'] += more
    return {name: examples(part) for name, part in trees.items()}


def examples(trees: list[Tree]) -> Examples:
    """Return trees, each with the share of its symbols that are `a` or `+`."""
    texts = [''.join(symbols(tree)) for tree in trees]
    guessed = [sum(map(text.count, 'a+')) / len(text) for text in texts]
    nodes = np.array([*map(len, texts)])
    return Examples(trees, nodes, np.array(guessed, 'float32'))


# ---- training ------------------------------------------------------------------------


def train(parts: dict[str, Examples], options: argparse.Namespace) -> list[float]:
    """Train, and return the shares of symbols and of trees that are right, by part."""
    model = jf.compile(make_block(options.width), like=parts['train'].items[-200:])
    optimizer = clipped_adam(options, len(parts['train'].items))
    trainer = make_trainer(model, parts, node_loss, shares, optimizer, options)
    scores: list[float] = []
    for epoch, params, losses in trainer.epochs(options.seed):
        rows = [trainer.predictions(params, name).mean(0) for name in SIZES]
        scores = [float(x) for x in np.concatenate(rows)]
        text = ', '.join(f'{x:.1%}' for x in scores)
        print(f'{epoch}: loss {np.mean(losses):.4f}, right {text}')
    print(trainer.clock)
    return scores


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options; `--quick` overrides those that cost time."""
    parser = make_parser(__doc__, epochs=12, batch_size=100, rate=0.003)
    add = parser.add_argument
    add('--trees', type=int, default=20_000, help='to learn from')
    add('--width', type=int, default=96, help='size of the vector of a tree')
    options = parser.parse_args(argv)
    if options.quick:
        vars(options).update(epochs=2, trees=400, width=8)
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Train, and compare with guesses of one letter and one operation."""
    options = read_options(argv)
    parts = make_parts(options.trees, options.seed)
    guessed = [float(parts[name].targets.mean()) for name in SIZES]
    rows = {
        'one letter, one operation': [guessed[0], 0.0, guessed[1], 0.0],
        'autoencoder': train(parts, options),
    }
    head = ['right']
    for name, sizes in SIZES.items():
        head += [f'symbols, {name}', '{} or {} letters'.format(*sizes)]
    print_shares(head, rows)


if __name__ == '__main__':
    main()
