# SPDX-License-Identifier: Apache-2.0
"""Mistakes with corpora and their files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import jfold as jf
from mistakes.batches import corpus, other, summed
from mistakes.common import OTHER_CORPUS, Mistake, ValueMistake, number


def chosen(indices: Any) -> jf.Schedule:
    return corpus().schedule(indices)


def loaded(change: Any, model: Any = summed) -> jf.Corpus:
    """Loads a corpus of `summed` after a change to its file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'corpus.npz'
        corpus().save(path)
        change(path)
        return jf.Corpus.load(path, model)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def overwrite(path: Path) -> None:
    path.write_text('not an archive')


def save_arrays(path: Path) -> None:
    np.savez(path, x=np.ones(3))


NO_INDICES = 'expected `indices` as a sequence of ints, got'
NO_FORMAT = (
    'not a file of this format: expected one that `Corpus.save` or `jf.save` wrote; '
    'write it again'
)

MISTAKES: dict[str, Mistake] = {
    'an index out of range': Mistake(
        lambda: chosen([0, 3]),
        'expected `indices` from 0 to 2, got 3 at position 1',
        error=IndexError,
    ),
    'a negative index': Mistake(
        lambda: chosen([-1]),
        'expected `indices` from 0 to 2, got -1 at position 0',
        error=IndexError,
    ),
    'a mask for indices': Mistake(
        lambda: chosen(np.array([True, False, True])),
        f'{NO_INDICES} ndarray of bool of shape (3,): pass `np.flatnonzero(mask)`',
    ),
    'one index alone': Mistake(
        lambda: chosen(1), f'{NO_INDICES} int of int64 of shape (): pass `[1]`'
    ),
    'a set of indices': Mistake(
        lambda: chosen({0, 1}), f'{NO_INDICES} set: pass `list(indices)`'
    ),
    'more indices than rows': ValueMistake(
        lambda: corpus().schedule([0, 1, 2], size=2),
        'expected at most 2 examples, as `size` says, got 3',
    ),
    'a limit below an example': ValueMistake(
        lambda: corpus().capacities(2, max_nodes=1),
        'expected `max_nodes` of at least 2, the operations of example 2 alone, got 1',
    ),
    'planned batches too large': ValueMistake(
        lambda: corpus().capacities_of([[0, 1, 2]], 2),
        'expected at most 2 examples, as `size` says, got 3 in batch 0',
    ),
    'a missing file': Mistake(
        lambda: loaded(Path.unlink),
        "[Errno 2] No such file or directory: '…/corpus.npz'\nexpected a corpus in a "
        'file, got none: write it by `Corpus.save`',
        error=FileNotFoundError,
    ),
    'a damaged file': Mistake(
        lambda: loaded(flip),
        '…/corpus.npz: document: wrong checksum: expected …, got …; write it again',
        error=jf.DamagedError,
    ),
    'a truncated file': Mistake(
        lambda: loaded(truncate),
        '…/corpus.npz: truncated: expected … bytes, got …; write it again',
        error=jf.DamagedError,
    ),
    'a file of another kind': Mistake(
        lambda: loaded(overwrite), f'…/corpus.npz: {NO_FORMAT}', error=jf.DamagedError
    ),
    'a file of NumPy': Mistake(
        lambda: loaded(save_arrays), f'…/corpus.npz: {NO_FORMAT}', error=jf.DamagedError
    ),
    'the file of another model': ValueMistake(
        lambda: loaded(bool, other), f'…/corpus.npz: {OTHER_CORPUS}'
    ),
    'a block to load a corpus': Mistake(
        lambda: loaded(bool, number),
        'expected `model` as a model, got Tensor: pass what `jfold.compile` returns',
    ),
    'a folder in the place of a file': Mistake(
        lambda: corpus().save('.'),
        '[Errno 21] expected `path` of a file, got that of a folder: give it a name '
        "in there: '.'",
        error=IsADirectoryError,
    ),
    'a device in the place of a file': Mistake(
        lambda: corpus().save(os.devnull),
        '[Errno 17] expected `path` of a file, got that of a device or pipe: give '
        "another: '/dev/null'",
        error=FileExistsError,
    ),
    'a folder that is not there': Mistake(
        lambda: corpus().save('no/such/folder/corpus.npz'),
        "[Errno 2] No such file or directory: 'no/such/folder/corpus.npz'\nexpected "
        '`path` in a folder that exists, got another: make the folder',
        error=FileNotFoundError,
    ),
}
