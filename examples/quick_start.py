# SPDX-License-Identifier: Apache-2.0
"""Learns what to do with a list of numbers: to add it up, then to find its smallest.

One small network joins two numbers; a balanced reduction applies it to lists of any
length. It is told what is wanted of whole lists alone, and has to find out what to do
with two. The first example of TensorFlow Fold.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from training import Examples, make_parser, make_trainer, mean_square, table

import jfold as jf

TASKS: dict[str, Callable[[list[float]], float]] = {'sum': sum, 'min': min}


class Join(nn.Module):
    """One number of two."""

    @nn.compact
    def __call__(self, left: jax.Array, right: jax.Array) -> jax.Array:
        hidden = nn.relu(nn.Dense(20)(jnp.stack([left, right])))
        return nn.Dense(1)(hidden)[0]


def make_block() -> jf.Block:
    """A number of a list of numbers."""
    return jf.Map(jf.Scalar()) >> jf.Reduce(jf.Function(Join()))


def draw(count: int, wanted: Callable[[list[float]], float], seed: int) -> Examples:
    """Random lists of one to nine numbers from 0 to 1, and what is wanted of each."""
    rng = np.random.default_rng(seed)
    lists = [rng.uniform(size=n).tolist() for n in rng.integers(1, 10, size=count)]
    lengths = np.array(list(map(len, lists)))
    return Examples(lists, lengths, np.array(list(map(wanted, lists)), 'float32'))


def squared_error(found: np.ndarray, targets: np.ndarray) -> float:
    """Over all lists, added up."""
    return float(np.sum((found - targets) ** 2))


def train(name: str, options: argparse.Namespace) -> tuple[str, ...]:
    """A row of the table: errors of the best constant, of the untrained model, and of
    the trained one."""
    parts = {
        'train': draw(options.lists, TASKS[name], options.seed),
        'test': draw(1_000, TASKS[name], options.seed + 1),
    }
    model, targets = jf.compile(make_block()), parts['test'].targets
    optimizer = optax.adam(options.rate)
    trainer = make_trainer(
        model, parts, mean_square, jf.Model.apply, optimizer, options
    )
    start = model.init(jax.random.key(options.seed))
    errors = [
        squared_error(np.mean(parts['train'].targets), targets),
        squared_error(trainer.predictions(start, 'test'), targets),
    ]
    for epoch, params, found in trainer.epochs(options.seed):
        test = squared_error(trainer.predictions(params, 'test'), targets)
        print(f'{name}, {epoch}: loss {np.mean(found):.5f}, test {test:.3f}')
    pair = float(model.eval([1.0, 1.0], params))
    return name, *(f'{error:.3f}' for error in (*errors, test)), f'{pair:.3f}'


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options; `--quick` overrides the ones that cost time."""
    parser = make_parser(__doc__, epochs=10, batch_size=100, rate=0.005)
    parser.add_argument('--lists', type=int, default=20_000, help='to learn from')
    options = parser.parse_args(argv)
    if options.quick:
        vars(options).update(epochs=2, lists=500)
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Trains for each task, and prints squared errors over 1,000 other lists."""
    options = read_options(argv)
    rows = [train(name, options) for name in TASKS]
    head = 'squared error', 'best constant', 'untrained', 'trained', 'of [1, 1]'
    print(f'\n{table([head, *rows])}')


if __name__ == '__main__':
    main()
