# SPDX-License-Identifier: Apache-2.0
"""Tells which way somebody faces after a sentence such as `left then around again`.

The pipeline of words of Looks et al. (2017, section 3.3): a text is split into words,
each word becomes a vector, a network folds these one after another into a state, and a
layer makes an answer of that. `again` repeats the turn before, so words have to be read
in order; what a sentence has of each word does not tell.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from training import (
    Examples,
    accuracy,
    clipped_adam,
    cross_entropy,
    fit_logistic,
    make_parser,
    make_trainer,
    table,
)

import jfold as jf
from jfold import layers

WAYS = 'north', 'east', 'south', 'west'
TURNS = {'left': 3, 'right': 1, 'around': 2}  # quarters, clockwise
WORDS = *TURNS, 'again', 'then', 'please'


def make_block(width: int) -> jf.Block:
    """Logits [4] of a text."""
    known = {word: number for number, word in enumerate(WORDS)}
    vector = (
        jf.InputTransform(known)
        >> jf.Scalar('int32')
        >> layers.Embed(len(WORDS), width)
    )
    step = jf.Concat() >> layers.FC(width, jnp.tanh)
    state = jf.Fold(step, jf.Zeros(width))
    return jf.InputTransform(str.split) >> jf.Map(vector) >> state >> layers.FC(4, None)


def way(text: str) -> int:
    """The number of the way that is faced at the end; north is faced at first.

    >>> WAYS[way('left then around again please')]
    'west'
    """
    facing = last = 0
    for word in text.split():
        last = TURNS.get(word, last)
        facing += last * (word in TURNS or word == 'again')
    return facing % len(WAYS)


def draw(count: int, seed: int) -> Examples:
    """Texts of one to eight words, with the ways."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, size=count)
    texts = [' '.join(rng.choice(WORDS, size=length)) for length in lengths]
    return Examples(texts, lengths, np.array([way(text) for text in texts], 'int32'))


def counts(texts: Sequence[str]) -> np.ndarray:
    """How often each text has each word [texts, words + 1]; the last is always one."""
    rows = [[text.split().count(word) for word in WORDS] + [1] for text in texts]
    return np.array(rows, 'float32')


def train(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Trains, and gives the rows of the table: accuracies on texts not seen."""
    known = draw(options.texts, options.seed)
    seen, others = {*known.items}, draw(4_000, options.seed + 1)
    new = [i for i, text in enumerate(others.items) if text not in seen]
    parts = {
        'train': known,
        'test': Examples(
            [others.items[i] for i in new], others.nodes[new], others.targets[new]
        ),
    }
    model = jf.compile(make_block(options.width))
    optimizer = clipped_adam(options, options.texts)
    trainer = make_trainer(
        model, parts, cross_entropy, jf.Model.apply, optimizer, options
    )
    test = parts['test']
    for epoch, params, found in trainer.epochs(options.seed):
        right = accuracy(trainer.predictions(params, 'test'), test.targets)
        print(f'{epoch}: loss {np.mean(found):.4f}, test {right:.1%}')
    weights = fit_logistic(counts(known.items), known.targets, len(WAYS))
    simple = accuracy(counts(test.items) @ weights, test.targets)
    often = float(np.mean(test.targets == np.bincount(known.targets).argmax()))
    named = 'most frequent way', 'counts of words', 'words in order'
    return [(x, f'{y:.1%}') for x, y in zip(named, (often, simple, right), strict=True)]


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options; `--quick` overrides the ones that cost time."""
    parser = make_parser(__doc__, epochs=30, batch_size=100, rate=0.005)
    parser.add_argument('--texts', type=int, default=4_000, help='to learn from')
    parser.add_argument('--width', type=int, default=64, help='size of the state')
    options = parser.parse_args(argv)
    if options.quick:
        vars(options).update(epochs=2, texts=300, width=16)
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Trains, and compares with models that do not read words in order."""
    print(f'\n{table(train(read_options(argv)))}')


if __name__ == '__main__':
    main()
