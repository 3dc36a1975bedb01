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
from mistakes.common import number


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


TABLE = r"""
>>> chosen([0, 3])
IndexError: expected `indices` from 0 to 2, got 3 at position 1
>>> chosen([-1])
IndexError: expected `indices` from 0 to 2, got -1 at position 0
>>> chosen(np.array([True, False, True]))
TypeError: expected `indices` as a sequence of ints, got ndarray of bool of shape (3,):
pass `np.flatnonzero(mask)`
>>> chosen(1)
TypeError: expected `indices` as a sequence of ints, got int of int64 of shape (): pass
`[1]`
>>> chosen({0, 1})
TypeError: expected `indices` as a sequence of ints, got set: pass `list(indices)`
>>> corpus().schedule([0, 1, 2], size=2)
ValueError: expected at most 2 examples, as `size` says, got 3
>>> corpus().capacities(2, max_nodes=1)
ValueError: expected `max_nodes` of at least 2, the operations of example 2 alone, got 1
>>> corpus().capacities_of([[0, 1, 2]], 2)
ValueError: expected at most 2 examples, as `size` says, got 3 in batch 0
>>> loaded(Path.unlink)
FileNotFoundError: [Errno 2] No such file or directory: '…/corpus.npz'\nexpected a
corpus in a file, got none: write it by `Corpus.save`
>>> loaded(flip)
DamagedError: …/corpus.npz: document: wrong checksum: expected …, got …; write it again
>>> loaded(lambda path: path.write_bytes(path.read_bytes()[:-100]))
DamagedError: …/corpus.npz: truncated: expected … bytes, got …; write it again
>>> loaded(lambda path: path.write_text('not an archive'))
DamagedError: …/corpus.npz: not a file of this format: expected one that `Corpus.save`
or `jf.save` wrote; write it again
>>> loaded(lambda path: np.savez(path, x=np.ones(3)))
DamagedError: …/corpus.npz: not a file of this format: expected one that `Corpus.save`
or `jf.save` wrote; write it again
>>> loaded(bool, other)
ValueError: …/corpus.npz: expected a corpus of the expression of this model, got one of
another, with `operation add(float32, float32) -> float32, a sum` instead of nothing;
`data float32[]` instead of `data float32[3]` in Vector(3, 'float32'). Trace the
examples again with `model.trace`
>>> loaded(bool, number)
TypeError: expected `model` as a model, got Tensor: pass what `jfold.compile` returns
>>> jf.load('.')
IsADirectoryError: [Errno 21] expected `path` of a file, got that of a folder: '.'
>>> loaded(lambda path: jf.save(path, summed, {}, capacities=[corpus().capacities(2)]))
ValueError: …/corpus.npz: expected a corpus, got a model: open it by `jf.load`
>>> corpus().save('.')
IsADirectoryError: [Errno 21] expected `path` of a file, got that of a folder: give it a
name in there: '.'
>>> corpus().save(os.devnull)
FileExistsError: [Errno 17] expected `path` of a file, got that of a device or pipe:
give another: '/dev/null'
>>> corpus().save('no/such/folder/corpus.npz')
FileNotFoundError: [Errno 2] No such file or directory:
'no/such/folder/corpus.npz'\nexpected `path` in a folder that exists, got another: make
the folder
"""
