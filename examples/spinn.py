# SPDX-License-Identifier: Apache-2.0
"""Learns to evaluate nested lists, by a stack that is driven by the transitions given.

The network is SPINN (Bowman et al. 2016): a tree-LSTM composes the two states on top of
a stack, and an LSTM, the tracker, follows what lies on the stack and in the buffer. It
is written as a parser is, in plain Python; `jf.lazy` batches the calls of its layers.
The data are like those of ListOps (Nangia and Bowman 2018): the largest, the smallest
or the median of digits and of other lists. Only the value of the outermost list is
known.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from training import (
    Examples,
    accuracy,
    fit_logistic,
    make_parser,
    print_shares,
    train_classifier,
)

import jfold as jf

List = int | tuple[Any, ...]  # a digit, or the name of an operation and its arguments
OPERATIONS: dict[str, Callable[[list[int]], int]] = {
    'max': max,
    'min': min,
    'med': lambda x: sorted(x)[len(x) // 2],
}
TOKENS = [*map(str, range(10)), *OPERATIONS, 'end']
NUMBERS = {token: number for number, token in enumerate(TOKENS)}
SHIFT, REDUCE = 'shift', 'reduce'
HELD_OUT = 1_000  # lists of each part to be tested on

# ---- the model -----------------------------------------------------------------------


@dataclass(frozen=True)
class Sentence:
    """Tokens, and the transitions that parse them.

    Attributes:
      tokens: their numbers.
      transitions: `SHIFT` for each token, `REDUCE` for each pair.
    """

    tokens: list[int]
    transitions: list[str]


class Tracker(nn.Module):
    """An LSTM over the transitions."""

    width: int

    @nn.compact
    def __call__(self, memory: Any, state: Any, *seen: jax.Array) -> tuple[Any, Any]:
        cell = nn.LSTMCell(self.width)
        (memory, state), _ = cell((memory, state), jnp.concatenate(seen))
        return memory, state


def make_block(width: int, tracked: int) -> jf.Block:
    """Return logits [10] of a sentence.

    Args:
      width: the size of the states of tokens and phrases.
      tracked: the size of the tracker's state.
    """
    embed = jf.Function(nn.Embed(len(TOKENS), width), name='embed')
    leaf = jf.Function(jf.layers.TreeLSTMLeaf(width), name='leaf')
    compose = jf.Function(jf.layers.TreeLSTMCell(width), name='compose')
    track = jf.Function(Tracker(tracked), name='track')
    answer = jf.Function(nn.Dense(10), name='answer')
    nothing = jf.FromTensor(np.zeros(width, 'float32'))
    start = jf.FromTensor(np.zeros(tracked, 'float32'))

    @jf.lazy
    def encode(sentence: Sentence) -> Any:
        empty = nothing(), nothing()
        buffer = [empty, *[leaf(embed(x)) for x in reversed(sentence.tokens)]]
        stack = [empty, empty]
        tracker = start(), start()
        for transition in sentence.transitions:
            seen = [state for _, state in (buffer[-1], stack[-1], stack[-2])]
            tracker = track(*tracker, *seen)
            if transition == SHIFT:
                stack.append(buffer.pop())
            else:
                right, left = stack.pop(), stack.pop()
                stack.append(compose(tracker[1], left, right))
        _, state = stack.pop()
        return answer(state)

    return encode


# ---- the data ------------------------------------------------------------------------


def evaluate(item: List) -> int:
    """Return the value of a list.

    >>> evaluate(('max', 2, ('med', 9, 3, 7), 4))
    7
    """
    if isinstance(item, int):
        return item
    name, *arguments = item
    return OPERATIONS[name]([evaluate(argument) for argument in arguments])


def parsed(item: List) -> Sentence:
    """Return the tokens of a list, each of which joins what stands left of it.

    >>> parsed(('max', 2, 9)).transitions
    ['shift', 'shift', 'reduce', 'shift', 'reduce', 'shift', 'reduce']
    """
    if isinstance(item, int):
        return Sentence([item], [SHIFT])
    name, *arguments = item
    tokens, transitions = [NUMBERS[name]], [SHIFT]
    for argument in arguments:
        inner = parsed(argument)
        tokens += inner.tokens
        transitions += [*inner.transitions, REDUCE]
    return Sentence([*tokens, NUMBERS['end']], [*transitions, SHIFT, REDUCE])


def random_list(rng: random.Random, depth: int) -> List:
    """Return a list of two to four arguments, nested at most so deep."""
    name = rng.choice(list(OPERATIONS))
    return name, *(
        random_list(rng, depth - 1)
        if depth > 1 and rng.random() < 0.3
        else rng.randrange(10)
        for _ in range(rng.randrange(2, 5))
    )


def depth_of(item: List) -> int:
    """Return the number of lists within each other."""
    return 0 if isinstance(item, int) else 1 + max(map(depth_of, item[1:]))


def draw(rng: random.Random, count: int, depths: Sequence[int]) -> list[List]:
    """Return lists of these depths, no two alike, as many of each."""
    lists: dict[List, None] = {}
    while len(lists) < count:
        depth = depths[len(lists) % len(depths)]
        item = random_list(rng, depth)
        if depth_of(item) == depth:
            lists[item] = None
    return list(lists)


def make_parts(count: int, seed: int) -> dict[str, Examples]:
    """Return lists to learn from, others as deep, and deeper ones."""
    rng = random.Random(seed)
    alike = draw(rng, count + HELD_OUT, (1, 2, 3))
    rng.shuffle(alike)
    deeper = draw(rng, HELD_OUT, (4, 5))
    parts = {'train': alike[HELD_OUT:], 'alike': alike[:HELD_OUT], 'deeper': deeper}
    return {name: examples(part) for name, part in parts.items()}


def examples(lists: Sequence[List]) -> Examples:
    """Return sentences, with their transitions counted, and their values."""
    sentences = [parsed(item) for item in lists]
    nodes = np.array([len(sentence.transitions) for sentence in sentences])
    return Examples(sentences, nodes, np.array([*map(evaluate, lists)], 'int32'))


def count_tokens(sentences: Sequence[Sentence]) -> np.ndarray:
    """Return logarithms of counts, and the outermost operation."""
    counts, first = np.zeros((2, len(sentences), len(TOKENS) + 1), 'float32')
    for row, sentence in enumerate(sentences):
        np.add.at(counts[row], sentence.tokens, 1)
        first[row, [sentence.tokens[0], -1]] = 1
    return np.concatenate([np.log1p(counts), first], 1)


# ---- training ------------------------------------------------------------------------


def baselines(parts: dict[str, Examples]) -> dict[str, list[float]]:
    """Return the accuracy on both parts of guesses that see no structure."""
    train = parts['train']
    weights = fit_logistic(count_tokens(train.items), train.targets, 10)
    frequent = np.bincount(train.targets).argmax()
    rows: dict[str, list[float]] = {'most frequent value': [], 'counts of tokens': []}
    for part in (parts['alike'], parts['deeper']):
        rows['most frequent value'].append(float(np.mean(part.targets == frequent)))
        logits = count_tokens(part.items) @ weights
        rows['counts of tokens'].append(accuracy(logits, part.targets))
    return rows


def train(parts: dict[str, Examples], options: argparse.Namespace) -> list[float]:
    """Train, and return the accuracy on both parts held out."""
    block = make_block(options.width, options.width // 2)
    model = jf.compile(block, like=parts['train'].items[:200])
    return train_classifier(model, parts, options.lists, options)


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options; `--quick` overrides those that cost time."""
    parser = make_parser(__doc__, epochs=6, batch_size=50, rate=0.004)
    add = parser.add_argument
    add('--lists', type=int, default=6_000, help='to learn from')
    add('--width', type=int, default=64, help='size of the state of a phrase')
    options = parser.parse_args(argv)
    if options.quick:
        vars(options).update(epochs=2, lists=300, width=8)
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Train, and compare with guesses that see no structure."""
    options = read_options(argv)
    parts = make_parts(options.lists, options.seed)
    rows = {**baselines(parts), 'stack and tracker': train(parts, options)}
    head = 'right values', 'depth 1 to 3', '4 and 5'
    print_shares(head, rows)


if __name__ == '__main__':
    main()
