# SPDX-License-Identifier: Apache-2.0
"""Sentiment treebanks: the Stanford one from a path, and a small made-up one."""

from __future__ import annotations

import random
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PARTS = ('train', 'dev', 'test')
UNKNOWN = 0
ESCAPES = {'-LRB-': '(', '-RRB-': ')', r'\/': '/', r'\*': '*'}
ESCAPE = re.compile('|'.join(map(re.escape, ESCAPES)), re.IGNORECASE)

Tree = tuple[Any, ...]  # (label, word id) or (label, left, right)
Lines = dict[str, list[str]]  # part of the treebank: its trees, one a line


# ---- reading -------------------------------------------------------------------------


def read_lines(path: Path) -> Lines:
    """The lines of `train.txt`, `dev.txt` and `test.txt`, in a folder or a zip.

    Raises:
      FileNotFoundError: one of them is not there.
    """
    if path.is_dir():
        files = {file.name: file.read_bytes for file in path.rglob('*.txt')}
        return {part: _lines(path, files, part) for part in PARTS}
    with zipfile.ZipFile(path) as archive:
        files = {Path(n).name: _reader(archive, n) for n in archive.namelist()}
        return {part: _lines(path, files, part) for part in PARTS}


def _reader(archive: zipfile.ZipFile, name: str) -> Callable[[], bytes]:
    return lambda: archive.read(name)


def _lines(path: Path, files: dict[str, Callable[[], bytes]], part: str) -> list[str]:
    if f'{part}.txt' not in files:
        raise FileNotFoundError(f'{path}: expected {part}.txt, got {sorted(files)}')
    # Not `splitlines`: a token may hold a separator of Unicode's choice.
    lines = files[f'{part}.txt']().decode('utf-8').split('\n')
    return [line.rstrip('\r') for line in lines if line.strip()]


def words(line: str) -> Iterator[str]:
    """The words of a tree as they are looked up.

    >>> list(words(r'(2 (2 -LRB-) (3 (2 And\\/Or) (3 good)))'))
    ['(', 'and/or', 'good']
    """
    pieces = (piece for piece in line.split(' ') if not piece.startswith('('))
    return map(plain_word, (piece.rstrip(')') for piece in pieces))


def plain_word(token: str) -> str:
    """Lower case, without the escapes of the Penn treebank."""
    return ESCAPE.sub(lambda m: ESCAPES[m.group().upper()], token).lower()


def parse(line: str, number: Callable[[str], int]) -> Tree:
    """One tree from its brackets.

    >>> parse('(3 (2 so) (3 good))', {'so': 5, 'good': 7}.get)
    (3, (2, 5), (3, 7))
    """
    stack: list[list[Any]] = [[]]
    for piece in line.split(' '):  # only there: a token may hold a no-break space
        if piece.startswith('('):
            stack.append([int(piece[1:])])
            continue
        token = piece.rstrip(')')
        stack[-1].append(number(plain_word(token)))
        for _ in range(len(piece) - len(token)):
            done = tuple(stack.pop())
            stack[-1].append(done)
    return stack[0][0]


def sizes(tree: Tree) -> tuple[int, int]:
    """How many leaves and inner nodes."""
    leaves, stack = 0, [tree]
    while stack:
        node = stack.pop()
        leaves += len(node) == 2
        stack.extend(node[1:] if len(node) == 3 else ())
    return leaves, leaves - 1


# ---- words and their vectors ---------------------------------------------------------


@dataclass(frozen=True)
class Vocabulary:
    """Numbers for words, `UNKNOWN` for all others, and where they start.

    Attributes:
      ids: word to row.
      vectors: [words, size], the first values of the embedding.
    """

    ids: dict[str, int]
    vectors: np.ndarray

    def __getitem__(self, word: str) -> int:
        return self.ids.get(word, UNKNOWN)

    @property
    def size(self) -> int:
        """The length of a vector."""
        return self.vectors.shape[1]


def make_vocabulary(
    lines: Iterable[str], given: dict[str, np.ndarray], size: int, seed: int
) -> Vocabulary:
    """All words with a given vector, and those that occur twice in `lines`.

    A word seen once, without a vector, trains the row of the unknown words instead.
    """
    counts = Counter(word for line in lines for word in words(line))
    kept = [w for w, n in counts.items() if n > 1 or w in given]
    names = dict.fromkeys([*kept, *given])
    vectors = np.random.default_rng(seed).uniform(-0.05, 0.05, (len(names) + 1, size))
    for row, word in enumerate(names, start=1):
        vectors[row] = given.get(word, vectors[row])
    return Vocabulary(
        {word: row for row, word in enumerate(names, start=1)}, vectors.astype('f4')
    )


def read_vectors(path: Path) -> dict[str, np.ndarray]:
    """Words and vectors of an `.npz` file with these two arrays."""
    with np.load(path, allow_pickle=False) as file:
        rows = file['vectors'].astype('f4')
        return dict(zip(map(plain_word, file['words'].tolist()), rows, strict=True))


# ---- a made-up treebank --------------------------------------------------------------

ADJECTIVES = {
    0: ('awful', 'dreadful', 'unbearable'),
    1: ('weak', 'dull', 'stale'),
    2: ('long', 'recent', 'french'),
    3: ('good', 'warm', 'clever'),
    4: ('superb', 'brilliant', 'masterly'),
}
NOUNS = ('film', 'story', 'cast', 'score')


def made_up_lines(seed: int) -> Lines:
    """Phrases of adjectives, `very`, `hardly`, `not` and `but`, with labels."""
    rng = random.Random(seed)
    counts = {'train': 800, 'dev': 100, 'test': 200}
    return {
        part: [_node(*_sentence(rng)) for _ in range(n)] for part, n in counts.items()
    }


def _node(label: int, text: str) -> str:
    return f'({label} {text})'


def _sentence(rng: random.Random) -> tuple[int, str]:
    noun = _node(2, f'{_node(2, "the")} {_node(2, rng.choice(NOUNS))}')
    label, text = _phrase(rng, depth=rng.randint(1, 5))
    predicate = _node(label, f'{_node(2, "is")} {_node(label, text)}')
    return label, f'{noun} {predicate}'


def _phrase(rng: random.Random, depth: int) -> tuple[int, str]:
    if not depth:
        label = rng.randrange(5)
        return label, rng.choice(ADJECTIVES[label])
    rule = rng.choice((_not, _very, _hardly, _but))
    return rule(rng, depth - 1)


def _not(rng: random.Random, depth: int) -> tuple[int, str]:
    label, text = _phrase(rng, depth)
    return 4 - label, f'{_node(2, "not")} {_node(label, text)}'


def _very(rng: random.Random, depth: int) -> tuple[int, str]:
    label, text = _phrase(rng, depth)
    stronger = {1: 0, 3: 4}.get(label, label)
    return stronger, f'{_node(2, "very")} {_node(label, text)}'


def _hardly(rng: random.Random, depth: int) -> tuple[int, str]:
    label, text = _phrase(rng, depth)
    weaker = {0: 1, 4: 3}.get(label, 2)
    return weaker, f'{_node(2, "hardly")} {_node(label, text)}'


def _but(rng: random.Random, depth: int) -> tuple[int, str]:
    (first, left), (last, right) = _phrase(rng, depth // 2), _phrase(rng, depth)
    tail = _node(last, f'{_node(2, "but")} {_node(last, right)}')
    return (first + 2 * last + 1) // 3, f'{_node(first, left)} {tail}'
