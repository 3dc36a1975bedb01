# SPDX-License-Identifier: Apache-2.0
"""A corpus in a file: read as it was, or refused."""

from __future__ import annotations

import io
import json
import mmap
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from binary_trees import binary
from checking import refuses
from programs import with_metric_first
from tree_corpora import TREES, assert_equal, trees

import jfold as jf
from jfold.data import corpus as corpora
from jfold.data.corpus import Corpus
from jfold.data.fingerprint import fingerprint
from jfold.files.formats import DamagedError
from jfold.files.storage import write
from jfold.models import model as model_face


def test_a_file_that_others_read(tmp_path: Path) -> None:
    """An open format: arrays of NumPy named as documented, the rest as JSON."""
    model = trees()
    corpus = model.trace(TREES)
    corpus.save(tmp_path / 'c.jfold')
    content = (tmp_path / 'c.jfold').read_bytes()
    document = json.loads(content[int.from_bytes(content[24:32], 'little') :])
    arrays = {}
    for name, (_, _, offset, _) in document['arrays'].items():
        file = io.BytesIO(content[content.rindex(b'\x93NUMPY', 0, offset) :])
        arrays[name] = np.load(file, allow_pickle=False)
    assert sorted(arrays) == sorted(corpora._arrays(corpus))
    np.testing.assert_array_equal(arrays['constants/0/first'], [0, 1, 3, 7, 8, 11])
    words = np.split(arrays['constants/0/0'], [1, 3, 7, 8])
    assert [sorted(each) for each in words] == [
        [1],
        [2, 3],
        [1, 2, 3, 4],
        [5],
        [6, 7, 8],
    ]
    np.testing.assert_array_equal(arrays['operations/1/first'], [0, 0, 1, 4, 4, 6])
    saved = document['metadata']['corpus']
    assert saved['fingerprint']['format'] == 4
    assert saved['skipped'] == []


def test_what_was_skipped_is_saved(tmp_path: Path) -> None:
    """With the places of the others."""
    model = trees()
    corpus = model.trace([1, 'ä\ud800', (2, 3)], skip_errors=True)
    corpus.save(tmp_path / 'c')
    loaded = Corpus.load(tmp_path / 'c', model)
    assert_equal(loaded, corpus)
    assert loaded.source.tolist() == [0, 2]
    assert len(loaded.skipped) == 1


def test_a_loaded_corpus_stays_in_its_file(tmp_path: Path) -> None:
    """Its arrays are read-only maps; the file may be replaced meanwhile."""
    model = trees()
    first, second = model.trace(TREES), model.trace(TREES[::-1])
    first.save(tmp_path / 'c')
    loaded = Corpus.load(str(tmp_path / 'c'), model)
    for name, array in corpora._arrays(loaded).items():
        base = array
        while isinstance(base, np.ndarray):
            base = base.base
        assert isinstance(base, mmap.mmap) or not array.size, name
        assert not array.flags.writeable, name
    second.save(tmp_path / 'c')
    assert_equal(loaded, first)
    assert_equal(Corpus.load(tmp_path / 'c', model), second)
    loaded.save(tmp_path / 'c')
    assert_equal(Corpus.load(tmp_path / 'c', model), first)
    assert [each.name for each in tmp_path.iterdir()] == ['c']


def test_results_in_another_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value of the expression is told by what it is, not by its place."""
    lower = model_face.lower
    monkeypatch.setattr(
        model_face, 'lower', lambda x, **how: with_metric_first(lower(x, **how))
    )
    observed = jf.AllOf(jf.Identity(), jf.Metric('m')) >> jf.GetItem(0)
    tree = binary(jf.Scalar(), jf.Function(jnp.add) >> observed)
    model = jf.compile(tree >> jnp.negative)
    assert [each.kind.name for each in model.program.results] == ['m', None]
    model.trace([1, (1, (2, 3))], progress=False).save(tmp_path / 'file')
    corpus = Corpus.load(tmp_path / 'file', model)
    values, metrics = model.apply({}, corpus.schedule([0, 1]))
    assert values.tolist() == [-1, -6]
    assert metrics['m'].values[metrics['m'].mask].tolist() == [5, 6]


def test_files_of_other_kinds(tmp_path: Path) -> None:
    """None of them passes for a corpus."""
    path, model = tmp_path / 'c.jfold', trees()
    with pytest.raises(FileNotFoundError, match=str(path)):
        Corpus.load(path, model)
    with open(path, 'wb') as file:
        np.savez(file, a=np.arange(3))
    with pytest.raises(DamagedError, match=f'^{path}: '):
        Corpus.load(path, model)
    for metadata in {}, {'corpus': 3}:
        write(path, {'source': np.zeros(3)}, metadata)
        with refuses(f'{path}: expected a corpus, got other arrays', ValueError):
            Corpus.load(path, model)
    told = fingerprint(model.program)
    for said in {'fingerprint': told}, {'fingerprint': 3}, {'skipped': []}, {}:
        write(path, {'source': np.zeros(3)}, {'corpus': said})
        with pytest.raises(DamagedError, match=f'^{path}: malformed: '):
            Corpus.load(path, model)
    write(path, {}, {'corpus': {'fingerprint': told | {'format': 99}}})
    with pytest.raises(ValueError, match=r'with graphs of format 99, not \d'):
        Corpus.load(path, model)


def test_damaged_data_are_told(tmp_path: Path) -> None:
    """By default; what else may be damaged is in `mistakes`, and in `test_storage`."""
    path, model = tmp_path / 'c.jfold', trees()
    model.trace(TREES).save(path)
    content = path.read_bytes()
    path.write_bytes(content.replace(b'NUMPY', b'NUMPX'))
    with pytest.raises(DamagedError, match=f'^{path}: array .*: wrong checksum'):
        Corpus.load(path, model)
