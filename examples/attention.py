# SPDX-License-Identifier: Apache-2.0
"""Learns to find two numbers in a long sequence, and to add or to multiply them.

Each step of a sequence is a number and a mark; two numbers are marked. Attention weighs
all steps at once, so sequences of any length are as deep as one. It is trained on 50 to
500 steps, and tested on up to a thousand. The tasks and the network are those of Raffel
and Ellis (2016), which Looks et al. (2017) write as blocks in appendix A; but scores
are not bounded by a `tanh` (`--bounded` does so). With bounds a marked step weighs at
most `e * e` times as much as any other, so what is found of it shrinks as a sequence
grows; without, it is the same in a sequence of any length.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from training import (
    Examples,
    clipped_adam,
    make_parser,
    make_trainer,
    mean_square,
    table,
)

import jfold as jf

CLOSE = 0.04  # what is off by less is right, in their paper
# By task: the least number there is, and what is wanted of the two.
TASKS: dict[str, tuple[float, Callable[[float, float], float]]] = {
    'add': (-1.0, lambda x, y: 0.5 + (x + y) / 4),
    'multiply': (0.0, lambda x, y: x * y),
}


def dense(size: int) -> jf.Block:
    """An affine map and a leaky rectifier."""
    affine = nn.Dense(size, kernel_init=nn.initializers.he_normal())
    return jf.Function(affine) >> nn.leaky_relu


def attention(score: jf.Block) -> jf.Block:
    """From vectors [n], one a step, to a mean [n] weighted by their scores [1]."""

    @jf.compose
    def weigh(h: Any) -> Any:
        weights = jf.Map(score >> jnp.exp)(h)
        total = jf.Broadcast()(jf.Sum()(weights))
        shares = jf.ZipWith(jnp.divide)(weights, total)
        return jf.Sum()(jf.ZipWith(jnp.multiply)(shares, h))

    return weigh


def make_block(width: int, bounded: bool) -> jf.Block:
    """From steps, any number of vectors [2], to a number."""
    steps = jf.Map(jf.Vector(2) >> dense(width))
    score: jf.Block = jf.Function(nn.Dense(1), name='score')
    score = score >> jnp.tanh if bounded else score
    answer = jf.Function(nn.Dense(1), name='answer') >> (lambda x: x[0])
    return steps >> attention(score) >> dense(width) >> answer


def draw(task: str, count: int, shortest: int, longest: int, seed: int) -> Examples:
    """Sequences of numbers and marks, with what is wanted of the two marked ones: one
    among the first ten, one in the first half. The ends are marked by -1."""
    rng = np.random.default_rng(seed)
    lowest, wanted = TASKS[task]
    items, targets = [], []
    for length in rng.integers(shortest, longest + 1, size=count):
        numbers = rng.uniform(lowest, 1, size=length)
        marks = np.zeros(length)
        marks[[0, -1]] = -1
        first = rng.integers(1, 10)
        second = rng.choice(np.setdiff1d(np.arange(1, length // 2), first))
        marks[[first, second]] = 1
        items.append(np.stack([numbers, marks], 1).astype('float32'))
        targets.append(wanted(numbers[first], numbers[second]))
    return Examples(
        items, np.array(list(map(len, items))), np.array(targets, 'float32')
    )


def share_of_right(found: np.ndarray, targets: np.ndarray) -> float:
    """How many answers are off by less than what their paper allows."""
    return float(np.mean(np.abs(found - targets) < CLOSE))


def train(task: str, options: argparse.Namespace) -> tuple[str, ...]:
    """A row of the table: right answers of the best constant, on sequences as long as
    those trained on, and on longer ones."""
    short, long = options.lengths
    parts = {
        'train': draw(task, options.sequences, short, long, options.seed),
        'alike': draw(task, options.tests, short, long, options.seed + 1),
        'longer': draw(task, options.tests, long, 2 * long, options.seed + 2),
    }
    model = jf.compile(make_block(options.width, options.bounded))
    optimizer = clipped_adam(options, options.sequences)
    trainer = make_trainer(
        model, parts, mean_square, jf.Model.apply, optimizer, options
    )
    constant = np.mean(parts['train'].targets)
    right = [share_of_right(constant, parts['longer'].targets)]
    for epoch, params, found in trainer.epochs(options.seed):
        last = params
        print(f'{task}, {epoch}: loss {np.mean(found):.6f}')
    for name in ('alike', 'longer'):
        made = trainer.predictions(last, name)
        right.append(share_of_right(made, parts[name].targets))
    print(trainer.clock)
    return task, *(f'{share:.1%}' for share in right)


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options; `--quick` overrides the ones that cost time."""
    parser = make_parser(__doc__, epochs=15, batch_size=50, rate=0.01)
    parser.add_argument('--tasks', nargs='+', choices=TASKS, default=list(TASKS))
    parser.add_argument('--sequences', type=int, default=5_000, help='to learn from')
    parser.add_argument('--tests', type=int, default=1_000, help='of either length')
    parser.add_argument('--bounded', action='store_true', help='scores by tanh')
    parser.add_argument('--width', type=int, default=100, help='of the hidden layers')
    parser.add_argument(
        '--lengths', type=int, nargs=2, default=(50, 500), help='the least, the most'
    )
    options = parser.parse_args(argv)
    if options.quick:
        vars(options).update(
            epochs=2, sequences=100, tests=50, lengths=(50, 80), width=8
        )
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Trains for each task, and prints how many answers are right."""
    options = read_options(argv)
    rows = [train(task, options) for task in options.tasks]
    head = 'right answers', 'best constant', 'as long', 'longer'
    print(f'\n{table([head, *rows])}')


if __name__ == '__main__':
    main()
