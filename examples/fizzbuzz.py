# SPDX-License-Identifier: Apache-2.0
"""Learns to play fizzbuzz from the digits of numbers.

Whether a number can be divided by three or five is read off its digits, one after the
other, by a state that a small network carries along. Numbers it has not seen are the
test. An example of TensorFlow Fold.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from training import (
    Examples,
    Params,
    accuracy,
    cross_entropy,
    make_parser,
    make_trainer,
    table,
)

import jfold as jf

NAMES = 'number', 'fizz', 'buzz', 'fizzbuzz'
NUMBERS = 10_000


class Cell(nn.Module):
    """The state after one more digit."""

    width: int

    @nn.compact
    def __call__(self, state: jax.Array, digit: jax.Array) -> jax.Array:
        return nn.relu(nn.Dense(self.width)(jnp.concatenate([state, digit])))


def make_block(width: int) -> jf.Block:
    """Logits [4] of an int."""
    digits = jf.InputTransform(str) >> jf.Map(jf.OneHotFromList('0123456789'))
    last = jf.Fold(jf.Function(Cell(width)), jf.Zeros(width))
    return digits >> last >> jf.Function(nn.Dense(len(NAMES)), name='answer')


def answer(numbers: np.ndarray) -> np.ndarray:
    """The place of the right answer among `NAMES`."""
    return ((numbers % 3 == 0) + 2 * (numbers % 5 == 0)).astype('int32')


def examples(numbers: np.ndarray) -> Examples:
    """Numbers, and what is to be said."""
    lengths = np.array([len(str(number)) for number in numbers])
    return Examples(numbers.tolist(), lengths, answer(numbers))


def train(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Trains, and gives the rows of the table: accuracies on numbers not seen."""
    numbers = np.random.default_rng(options.seed).permutation(NUMBERS)
    held_out, rest = numbers[:1_000], numbers[1_000 : 1_000 + options.numbers]
    parts = {'train': examples(rest), 'test': examples(held_out)}
    model = jf.compile(make_block(options.width))
    optimizer = optax.adam(options.rate)
    trainer = make_trainer(
        model, parts, cross_entropy, jf.Model.apply, optimizer, options
    )
    targets = parts['test'].targets
    for epoch, params, found in trainer.epochs(options.seed):
        right = accuracy(trainer.predictions(params, 'test'), targets)
        print(f'{epoch}: loss {np.mean(found):.4f}, test {right:.1%}')
    print(' '.join(say(model, params, number) for number in range(1, 16)))
    return [
        ('always the number', f'{np.mean(targets == 0):.1%}'),
        ('by its digits', f'{right:.1%}'),
    ]


def say(model: jf.Model, params: Params, number: int) -> str:
    """What the model says instead of a number."""
    name = NAMES[int(np.argmax(model.eval(number, params)))]
    return str(number) if name == 'number' else name


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options; `--quick` overrides the ones that cost time."""
    parser = make_parser(__doc__, epochs=30, batch_size=100, rate=0.002)
    parser.add_argument('--numbers', type=int, default=9_000, help='to learn from')
    parser.add_argument('--width', type=int, default=100, help='size of the state')
    options = parser.parse_args(argv)
    if options.quick:
        vars(options).update(epochs=2, numbers=500, width=16)
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Trains, plays a round, and compares with the most frequent answer."""
    print(f'\n{table(train(read_options(argv)))}')


if __name__ == '__main__':
    main()
