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
from mistakes.common import Mistake, number


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


MISTAKES = [
    Mistake(
        'an index out of range',
        lambda: chosen([0, 3]),
        'expected `indices` from 0 to 2, got 3 at position 1',
        error=IndexError,
        lacks='do',
    ),
    Mistake(
        'a negative index',
        lambda: chosen([-1]),
        'expected `indices` from 0 to 2, got -1 at position 0',
        error=IndexError,
        lacks='do',
    ),
    Mistake(
        'a mask for indices',
        lambda: chosen(np.array([True, False, True])),
        'expected `indices` as a sequence of ints, got ndarray of bool of '
        'shape (3,): pass `np.flatnonzero(mask)`',
    ),
    Mistake(
        'one index alone',
        lambda: chosen(1),
        'expected `indices` as a sequence of ints, got int of int64 of shape '
        '(): pass `[1]`',
    ),
    Mistake(
        'a set of indices',
        lambda: chosen({0, 1}),
        'expected `indices` as a sequence of ints, got set: pass `list(indices)`',
    ),
    Mistake(
        'more indices than rows',
        lambda: corpus().schedule([0, 1, 2], size=2),
        'expected at most 2 examples, as `size` says, got 3',
        error=ValueError,
        lacks='do',
    ),
    Mistake(
        'capacities of no rows',
        lambda: corpus().capacities(0),
        'expected `batch_size` of at least 1, got 0; write `batch_size=1` or more',
        error=ValueError,
    ),
    Mistake(
        'capacities of half a row',
        lambda: corpus().capacities(0.5),
        'expected `batch_size` as int, got 0.5',
        lacks='do',
    ),
    Mistake(
        'a limit below an example',
        lambda: corpus().capacities(2, max_nodes=1),
        'expected `max_nodes` of at least 2, the operations of example 2 alone, got 1',
        error=ValueError,
        lacks='do',
    ),
    Mistake(
        'planned batches too large',
        lambda: corpus().capacities_of([[0, 1, 2]], 2),
        'expected at most 2 examples, as `size` says, got 3 in batch 0',
        error=ValueError,
        lacks='do',
    ),
    Mistake(
        'a missing file',
        lambda: loaded(Path.unlink),
        "[Errno 2] No such file or directory: '…/corpus.npz'\n"
        'expected a corpus in a file, got none: write it by `Corpus.save`',
        error=FileNotFoundError,
    ),
    Mistake(
        'a damaged file',
        lambda: loaded(flip),
        '…/corpus.npz: document: wrong checksum: expected …, got …; write it again',
        error=jf.DamagedError,
    ),
    Mistake(
        'a truncated file',
        lambda: loaded(truncate),
        '…/corpus.npz: truncated: expected … bytes, got …; write it again',
        error=jf.DamagedError,
    ),
    Mistake(
        'a file of another kind',
        lambda: loaded(overwrite),
        '…/corpus.npz: not a file of this format: expected one that `Corpus.save` '
        'or `jf.save` wrote; write it again',
        error=jf.DamagedError,
        lacks='got',
    ),
    Mistake(
        'a file of NumPy',
        lambda: loaded(save_arrays),
        '…/corpus.npz: not a file of this format: expected one that `Corpus.save` '
        'or `jf.save` wrote; write it again',
        error=jf.DamagedError,
        lacks='got',
    ),
    Mistake(
        'the file of another model',
        lambda: loaded(bool, other),
        '…/corpus.npz: expected a corpus of the expression of this model, got '
        'one of another, with `operation add(float32, float32) -> float32, a '
        'sum` instead of nothing; `data float32[]` instead of `data '
        "float32[3]` in Vector(3, 'float32'). Trace the examples again with "
        '`model.trace`',
        error=ValueError,
    ),
    Mistake(
        'a block to load a corpus',
        lambda: loaded(bool, number),
        'expected `model` as a model, got Tensor: pass what `jfold.compile` returns',
    ),
    Mistake(
        'a folder in the place of a file',
        lambda: corpus().save('.'),
        '[Errno 21] expected `path` of a file, got that of a folder: give it a name '
        "in there: '.'",
        error=IsADirectoryError,
    ),
    Mistake(
        'a device in the place of a file',
        lambda: corpus().save(os.devnull),
        '[Errno 17] expected `path` of a file, got that of a device or pipe: give '
        "another: '/dev/null'",
        error=FileExistsError,
    ),
    Mistake(
        'a folder that is not there',
        lambda: corpus().save('no/such/folder/corpus.npz'),
        "[Errno 2] No such file or directory: 'no/such/folder/corpus.npz'\n"
        'expected `path` in a folder that exists, got another: make the folder',
        error=FileNotFoundError,
    ),
]
