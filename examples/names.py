# SPDX-License-Identifier: Apache-2.0
"""Tells the language of a name, letter by letter and word by word.

One LSTM reads the letters of a word, another the words of a name; both stand in one
expression, so names of any number of words of any length share batches. A fifth of the
names, drawn by `--seed`, is held out.

With `--names`, the names are those of a tar.gz archive with a text file for each
language, one name a line, such as the surnames of 18 languages that PyTorch's tutorial
on character-level networks reads. Without it, they are made up.
"""

from __future__ import annotations

import argparse
import random
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from training import (
    Examples,
    accuracy,
    cross_entropy,
    fit_logistic,
    make_parser,
    make_trainer,
    table,
)

import jfold as jf

Name = list[str]  # its words

SHOWN = 5  # names that are told of at the end
DECAY = 0.03  # of the weights of logistic regression

# ---- the model -----------------------------------------------------------------------


# A state [2 width] is what an LSTM shows, and its memory.


class Cell(nn.Module):
    """The state of an LSTM after one more item."""

    width: int

    @nn.compact
    def __call__(self, state: jax.Array, item: jax.Array) -> jax.Array:
        shown, memory = jnp.split(state, 2)
        gates = nn.Dense(4 * self.width)(jnp.concatenate([item, shown]))
        keep, write, show, update = jnp.split(gates, 4)
        memory = nn.sigmoid(keep + 1) * memory + nn.sigmoid(write) * jnp.tanh(update)
        return jnp.concatenate([nn.sigmoid(show) * jnp.tanh(memory), memory])


def lstm(width: int, name: str) -> jf.Block:
    """From vectors, any number of them, to what is shown [width] after the last."""
    cell = jf.Function(Cell(width), name=name)
    return jf.Fold(cell, jf.Zeros(2 * width)) >> jf.Slice(stop=width)


def make_block(letters: str, width: int, languages: int) -> jf.Block:
    """Logits [languages] of a name, a list of words."""
    numbers = {letter: number for number, letter in enumerate(letters, start=1)}
    number = jf.InputTransform(numbers, default=0) >> jf.Scalar('int32')
    embed = nn.Embed(len(letters) + 1, width // 2)
    letter = number >> jf.Function(embed, name='letter')
    word = jf.Map(letter) >> lstm(width, 'letters')
    name = jf.Map(word) >> lstm(width, 'words')
    return name >> jf.Function(nn.Dense(languages), name='language')


# ---- the data ------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """Names to learn from and names to be told.

    Attributes:
      languages: to choose from.
      train: names with the numbers of their languages.
      held_out: likewise.
    """

    languages: list[str]
    train: list[tuple[Name, int]]
    held_out: list[tuple[Name, int]]

    @property
    def letters(self) -> str:
        """Those of the names to learn from."""
        return ''.join(sorted({x for name, _ in self.train for x in ''.join(name)}))

    def __str__(self) -> str:
        train, held_out = (
            Counter(n for _, n in p) for p in (self.train, self.held_out)
        )
        rows = [
            (language, str(train[n]), str(held_out[n]))
            for n, language in enumerate(self.languages)
        ]
        total = 'all', str(len(self.train)), str(len(self.held_out))
        return table([('language', 'training', 'held out'), *rows, total])


def make_task(pairs: Sequence[tuple[str, str]], seed: int) -> Task:
    """Splits pairs of language and name; one that comes twice is taken once."""
    distinct = sorted(set(pairs))
    random.Random(seed).shuffle(distinct)
    languages = sorted({language for language, _ in distinct})
    found = [(words(name), languages.index(language)) for language, name in distinct]
    held_out = len(found) // 5
    return Task(languages, found[held_out:], found[:held_out])


def words(name: str) -> Name:
    """Split at blanks and hyphens.

    >>> words("de la Cruz-O'Neill")
    ['de', 'la', 'Cruz', "O'Neill"]
    """
    return [word for word in re.split(r'[\s-]+', name) if word]


def examples(names: Sequence[tuple[Name, int]]) -> Examples:
    """Names, with their letters and words counted."""
    nodes = np.array([len(name) + sum(map(len, name)) for name, _ in names])
    targets = np.array([language for _, language in names], 'int32')
    return Examples([name for name, _ in names], nodes, targets)


def read_names(path: Path) -> Iterator[tuple[str, str]]:
    """Pairs of language and name; languages are the names of the files."""
    with tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file and member.name.endswith('.txt'):
                lines = map(str.strip, file.read().decode('utf-8').split('\n'))
                yield from ((Path(member.name).stem, line) for line in lines if line)


# ---- made-up names -------------------------------------------------------------------

# A language is the sounds of a region and the place of its particles, which only those
# can tell who know in which order words stand.
CONSONANTS = {'north': 'bdgklmnr', 'east': 'klmnrstv', 'south': 'bdgpstvz'}
PARTICLES = 'al', 'el', 'ol'
PLACES: dict[str, Callable[[str, str], str]] = {
    'before': lambda particle, rest: f'{particle} {rest}',
    'after': lambda particle, rest: f'{rest} {particle}',
    'none': lambda particle, rest: rest,
}


def made_up_names(count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Pairs of language and name, of one to three words."""
    rng = random.Random(seed)
    for _ in range(count):
        region, place = rng.choice(list(CONSONANTS)), rng.choice(list(PLACES))
        rest = ' '.join(
            _word(rng, CONSONANTS[region]) for _ in range(rng.randint(1, 2))
        )
        yield f'{region}, {place}', PLACES[place](rng.choice(PARTICLES), rest)


def _word(rng: random.Random, consonants: str) -> str:
    syllables = range(rng.randint(2, 4))
    return ''.join(rng.choice(consonants) + rng.choice('aeiou') for _ in syllables)


# ---- what the model has to beat ------------------------------------------------------


def baselines(task: Task) -> dict[str, float]:
    """Held-out accuracy of guesses that do not know how letters and words follow."""
    train, held_out = examples(task.train), examples(task.held_out)
    usual = np.bincount(train.targets).argmax()
    rows = {'most frequent language': float(np.mean(held_out.targets == usual))}
    kinds = {'counts of letters': single_letters, 'counts of pairs': letter_pairs}
    for name, parts in kinds.items():
        seen = sorted({part for item in train.items for part in parts(item)})
        bags = [count_parts(part.items, parts, seen) for part in (train, held_out)]
        weights = fit_logistic(bags[0], train.targets, len(task.languages), DECAY)
        rows[name] = accuracy(bags[1] @ weights, held_out.targets)
    return rows


def single_letters(name: Name) -> Iterator[str]:
    """Of all words."""
    return (letter for word in name for letter in word)


def letter_pairs(name: Name) -> Iterator[str]:
    """Letters with their neighbours, the ends of words among them.

    >>> list(letter_pairs(['do', 'Ré']))
    ['^d', 'do', 'o$', '^R', 'Ré', 'é$']
    """
    return (a + b for word in name for a, b in pairwise(f'^{word}$'))


def count_parts(
    names: Sequence[Name], parts: Callable[[Name], Iterator[str]], seen: Sequence[str]
) -> np.ndarray:
    """Logarithms of counts [names, seen + 1], and a one."""
    column = {part: number for number, part in enumerate(seen)}
    counts = np.zeros((len(names), len(seen) + 1), 'float32')
    for row, name in zip(counts, names, strict=True):
        for part in parts(name):
            if part in column:
                row[column[part]] += 1
    counts[:, -1] = np.e - 1
    return np.log1p(counts)


# ---- training ------------------------------------------------------------------------


def train(task: Task, options: argparse.Namespace) -> float:
    """Trains, and gives the accuracy on names held out."""
    block = make_block(task.letters, options.width, len(task.languages))
    model = jf.compile(block)
    parts = {'train': examples(task.train), 'held out': examples(task.held_out)}
    steps = options.epochs * -(-len(task.train) // options.batch_size)
    rate = optax.cosine_decay_schedule(options.rate, steps)
    optimizer = optax.adamw(rate, weight_decay=options.weight_decay)
    trainer = make_trainer(
        model, parts, cross_entropy, jf.Model.apply, optimizer, options
    )
    targets = parts['held out'].targets
    for epoch, params, found in trainer.epochs(options.seed):
        right = accuracy(trainer.predictions(params, 'held out'), targets)
        print(f'{epoch}: loss {np.mean(found):.3f}, held out {right:.1%}')
    print(trainer.clock)
    for name, language in task.held_out[:SHOWN]:
        said = task.languages[int(np.argmax(model.eval(name, params)))]
        print(f'{" ".join(name)}: {said} (right: {task.languages[language]})')
    return right


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options; `--quick` overrides the ones that cost time."""
    parser = make_parser(__doc__, epochs=15, batch_size=64, rate=0.005)
    add = parser.add_argument
    add('--names', type=Path, help='a tar.gz with a .txt of names for each language')
    add('--made-up', type=int, default=10_000, help='names to make up')
    add('--width', type=int, default=96, help='size of the states')
    add('--weight-decay', type=float, default=0.1, help='of AdamW')
    options = parser.parse_args(argv)
    if options.quick:
        vars(options).update(epochs=2, made_up=600, width=16)
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the names or makes them up, trains, and compares with the baselines."""
    options = read_options(argv)
    if options.names:
        pairs = read_names(options.names)
    else:
        pairs = made_up_names(options.made_up, options.seed)
    task = make_task(list(pairs), options.seed)
    print(f'{task}\n')
    rows = {**baselines(task), 'letters and words': train(task, options)}
    print(f'\n{table((name, f"{value:.1%}") for name, value in rows.items())}')


if __name__ == '__main__':
    main()
