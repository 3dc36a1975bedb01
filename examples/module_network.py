# SPDX-License-Identifier: Apache-2.0
"""Learns to answer questions about images, by networks that the questions lay out.

A neural module network (Andreas et al. 2016): a question comes with a layout, such as
`is(and(red, above(circle)))` for "is there something red above a circle?". Its modules
are small networks, each with parameters of its own: `red` gives the attention to what
is red in an image, `above` moves attention, `and` and `or` combine two, and `is`
answers. Answers are all that is learned from. Images are made up, like those of the
SHAPES data: nine cells, in each a shape of some colour or none, and noise. Each
question is about two images, with different answers.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

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

SIDE = 3  # cells in a row, and in a column
# Cells are four pixels wide.
SHAPES = {
    'circle': [' xx ', 'x  x', 'x  x', ' xx '],
    'square': ['xxxx', 'x  x', 'x  x', 'xxxx'],
    'cross': ['x  x', ' xx ', ' xx ', 'x  x'],
}
COLOURS = {'red': (1, 0, 0), 'green': (0, 1, 0), 'blue': (0, 0, 1)}
# By direction, how many rows and columns from a cell to the one that is looked at.
DIRECTIONS = {'above': (1, 0), 'below': (-1, 0), 'left': (0, 1), 'right': (0, -1)}
PROPERTIES = [*SHAPES, *COLOURS]
WORDS = [*PROPERTIES, *DIRECTIONS, 'and', 'or']
DEPTH = 3  # of the layouts to learn from
HELD_OUT = 1_000  # questions of each part to be tested on

Layout = str | tuple[Any, ...]  # a property, or the name of a module and its inputs


class Question(NamedTuple):
    """An image and a question about it, as a layout.

    Attributes:
      image: [12, 12, 3] float32.
      layout: the cells that are asked for.
    """

    image: np.ndarray
    layout: Layout


# ---- the model -----------------------------------------------------------------------


class See(nn.Module):
    """A convolution, from an image to features [3, 3, width] of its cells."""

    width: int

    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        cells = nn.Conv(2 * self.width, (4, 4), (4, 4), 'VALID')(image)
        return nn.relu(nn.Dense(self.width)(nn.relu(cells)))


class Find(nn.Module):
    """Scores [3, 3] of the cells, high for those with a property."""

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        return nn.Dense(1)(features)[..., 0]


class Move(nn.Module):
    """Scores of cells by those of other ones."""

    @nn.compact
    def __call__(self, scores: jax.Array) -> jax.Array:
        moved = nn.Dense(SIDE * SIDE)(jnp.tanh(scores.reshape(-1)))
        return moved.reshape(scores.shape)


class Combine(nn.Module):
    """Scores of cells by two scores of each."""

    @nn.compact
    def __call__(self, one: jax.Array, other: jax.Array) -> jax.Array:
        hidden = nn.relu(nn.Dense(16)(jnp.stack([one, other], -1)))
        return nn.Dense(1)(hidden)[..., 0]


class Exists(nn.Module):
    """Logits of no and yes, by a smooth maximum of the scores."""

    @nn.compact
    def __call__(self, scores: jax.Array) -> jax.Array:
        return nn.Dense(2)(jax.nn.logsumexp(scores)[None])


def make_block(width: int) -> jf.Block:
    """Return logits [2] of a question."""
    see = jf.Function(See(width), name='see')
    find = {name: jf.Function(Find(), name=name) for name in PROPERTIES}
    move = {name: jf.Function(Move(), name=name) for name in DIRECTIONS}
    combine = {name: jf.Function(Combine(), name=name) for name in ('and', 'or')}
    exists = jf.Function(Exists(), name='is')

    @jf.lazy
    def answer(question: Question) -> Any:
        features = see(question.image)

        def attend(layout: Layout) -> Any:
            if isinstance(layout, str):
                return find[layout](features)
            name, *inputs = layout
            module = move[name] if name in move else combine[name]
            return module(*map(attend, inputs))

        return exists(attend(question.layout))

    return answer


# ---- the data ------------------------------------------------------------------------


class Cell(NamedTuple):
    """A cell of an image; `None` twice for an empty one."""

    shape: str | None
    colour: str | None


def random_cells(rng: random.Random) -> list[list[Cell]]:
    """Return the rows of an image, with a shape in about half of its cells."""

    def cell() -> Cell:
        if rng.random() < 0.5:
            return Cell(None, None)
        return Cell(rng.choice([*SHAPES]), rng.choice([*COLOURS]))

    return [[cell() for _ in range(SIDE)] for _ in range(SIDE)]


def drawn(cells: list[list[Cell]], noise: np.random.Generator) -> np.ndarray:
    """Return an image of cells, with noise."""
    image = noise.normal(0, 0.1, (4 * SIDE, 4 * SIDE, 3)).astype('float32')
    for row, line in enumerate(cells):
        for column, (shape, colour) in enumerate(line):
            if shape is not None and colour is not None:
                mask = np.array([[pixel == 'x' for pixel in x] for x in SHAPES[shape]])
                at = slice(4 * row, 4 * row + 4), slice(4 * column, 4 * column + 4)
                image[at] += mask[..., None] * np.array(COLOURS[colour], 'float32')
    return image


def attended(layout: Layout, cells: list[list[Cell]]) -> np.ndarray:
    """Return the cells [3, 3] that a layout is about, as bools.

    >>> row = [Cell('circle', 'red'), Cell('cross', 'blue'), Cell(None, None)]
    >>> layout = 'and', 'red', ('left', 'cross')
    >>> attended(layout, [row] * 3)[0].tolist()
    [True, False, False]
    """
    if isinstance(layout, str):
        return np.array([[layout in cell for cell in line] for line in cells])
    name, *inputs = layout
    parts = [attended(x, cells) for x in inputs]
    if name in DIRECTIONS:
        down, right = DIRECTIONS[name]
        padded = np.pad(parts[0], 1)
        return padded[1 + down :, 1 + right :][:SIDE, :SIDE]
    return parts[0] & parts[1] if name == 'and' else parts[0] | parts[1]


def random_layout(rng: random.Random, depth: int) -> Layout:
    """Return a layout of modules nested so deep."""
    if depth == 1:
        return rng.choice(PROPERTIES)
    name = rng.choice([*DIRECTIONS, 'and', 'and', 'or', 'or'])
    inner = random_layout(rng, depth - 1)
    if name in DIRECTIONS:
        return name, inner
    return name, rng.choice(PROPERTIES), inner


def words(layout: Layout) -> list[str]:
    """Return the names in a layout, the outermost first."""
    if isinstance(layout, str):
        return [layout]
    return [layout[0], *(word for x in layout[1:] for word in words(x))]


def images(rng: random.Random, layout: Layout) -> dict[int, list[list[Cell]]]:
    """Return cells by the answer; some layouts, as `and(red, blue)`, have one."""
    by_answer: dict[int, list[list[Cell]]] = {}
    for _ in range(100):
        cells = random_cells(rng)
        by_answer[int(attended(layout, cells).any())] = cells
        if len(by_answer) == 2:
            break
    return by_answer


def draw(count: int, depths: Sequence[int], seed: int) -> Examples:
    """Return questions of these depths, each about two images."""
    rng, noise = random.Random(seed), np.random.default_rng(seed)
    items: list[Question] = []
    answers: list[int] = []
    while len(items) < count:
        layout = random_layout(rng, depths[len(items) // 2 % len(depths)])
        if len(by_answer := images(rng, layout)) == 2:
            items += [Question(drawn(x, noise), layout) for x in by_answer.values()]
            answers += by_answer
    nodes = np.array([len(words(question.layout)) for question in items])
    return Examples(items, nodes, np.array(answers, 'int32'))


def pixels_and_words(questions: Sequence[Question]) -> np.ndarray:
    """Return what a linear model sees: colours of cells, counts of words, a one."""
    rows = []
    for image, layout in questions:
        cells = image.reshape(SIDE, 4, SIDE, 4, 3).mean((1, 3)).ravel()
        counts = [words(layout).count(word) for word in WORDS]
        rows.append([*cells, *counts, 1])
    return np.array(rows, 'float32')


# ---- training ------------------------------------------------------------------------


def train(parts: dict[str, Examples], options: argparse.Namespace) -> list[float]:
    """Train, and return the accuracy on both parts held out."""
    # All of them: which modules follow each other is part of what is compiled.
    like = [question for part in parts.values() for question in part.items]
    model = jf.compile(make_block(options.width), like=like)
    return train_classifier(model, parts, options.questions, options)


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options; `--quick` overrides those that cost time."""
    parser = make_parser(__doc__, epochs=6, batch_size=50, rate=0.01)
    add = parser.add_argument
    add('--questions', type=int, default=8_000, help='to learn from')
    add('--width', type=int, default=16, help='number of features of a cell')
    options = parser.parse_args(argv)
    if options.quick:
        vars(options).update(epochs=2, questions=600, width=4)
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Train, and compare with a linear model of pixels and words."""
    options = read_options(argv)
    deeper = DEPTH + 1, DEPTH + 2
    parts = {
        'train': draw(options.questions, range(1, DEPTH + 1), options.seed),
        'alike': draw(HELD_OUT, range(1, DEPTH + 1), options.seed + 1),
        'deeper': draw(HELD_OUT, deeper, options.seed + 2),
    }
    weights = fit_logistic(
        pixels_and_words(parts['train'].items), parts['train'].targets, 2
    )
    linear = [
        accuracy(pixels_and_words(parts[name].items) @ weights, parts[name].targets)
        for name in ('alike', 'deeper')
    ]
    rows = {'either answer': [0.5, 0.5], 'pixels and words, linear': linear}
    rows['modules'] = train(parts, options)
    head = 'right answers', f'depth 1 to {DEPTH}', '{} and {}'.format(*deeper)
    print_shares(head, rows)


if __name__ == '__main__':
    main()
