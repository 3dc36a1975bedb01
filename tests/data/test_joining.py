# SPDX-License-Identifier: Apache-2.0
"""Examples that were traced apart, put together."""

from __future__ import annotations

import itertools
import os
import pickle
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import cloudpickle
import numpy as np
import pytest
from checking import refuses
from expressions import Expression, any_expressions
from extent import drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from lazy_models import encode
from tree_corpora import TREES, assert_equal, assert_same, trees

import jfold as jf
from jfold.data import corpus as corpora
from jfold.data import tracer as tracing
from jfold.data.fingerprint import fingerprint


def sent(corpus: Any) -> Any:
    """What another process gets of a corpus."""
    return cloudpickle.loads(cloudpickle.dumps(corpus))


@given(any_expressions(), st.data())
@settings(max_examples=drawn(6, 40))
def test_however_examples_are_traced_their_schedules_are_the_same(
    expression: Expression, data: st.DataObject
) -> None:
    """By a model or a tracer elsewhere; in chunks, joined, from files; in any order."""
    model = jf.compile(expression.block)
    examples = expression.batch(np.random.default_rng(data.draw(st.integers(0, 99))), 6)
    direct = model.trace(examples, progress=False)
    tracer = sent(model.tracer())
    assert str(tracer.program) == str(model.program)
    assert fingerprint(tracer.program) == fingerprint(model.program)
    traced = pickle.loads(pickle.dumps(tracer(examples)))
    assert len(traced) == 6
    assert_same(model.schedule(traced), model.schedule(examples))
    cuts = sorted(data.draw(st.lists(st.integers(0, 6), max_size=4)))
    ranges = list(itertools.pairwise([0, *cuts, 6]))
    with mock.patch.object(tracing, 'FIRST_CHUNK', data.draw(st.integers(1, 6))):
        chunks = model.trace(examples, progress=False)
    parts = [
        model.trace(examples[:2], progress=False),
        model.tracer()(examples[2:3]),
        model.trace([], progress=False),
        sent(model.trace(examples[3:4], progress=False)),
        tracer(examples[4:]),
    ]
    corpora = [direct, chunks, model.join(parts)]
    indices = data.draw(st.lists(st.integers(0, 5), max_size=8))
    size = len(indices) + data.draw(st.integers(0, 2))
    expected = model.schedule([examples[i] for i in indices], size=size)
    with tempfile.TemporaryDirectory() as name:
        folder, verify = Path(name), data.draw(st.booleans())
        direct.save(folder / 'own')
        tracer.save(examples, folder / 'sent')
        assert (folder / 'own').read_bytes() == (folder / 'sent').read_bytes()
        (folder / 'parts').mkdir()
        for n, (a, b) in enumerate(ranges):
            path = folder / f'parts/{n}.jfold'
            if n % 2:
                model.trace(examples[a:b], progress=False).save(path)
            else:
                tracer.save(examples[a:b], path)
        in_parts = jf.Corpus.load(folder / 'parts', model, verify=verify)
        in_parts.save(folder / 'all')
        corpora += [
            jf.Corpus.load(folder / x, model, verify=verify) for x in ('own', 'all')
        ]
        for corpus in *corpora, in_parts:
            assert_equal(corpus, direct)
            assert corpus.nodes.tolist() == direct.nodes.tolist()
            assert repr(corpus) == repr(direct)
            assert_same(corpus.schedule(indices, size=size), expected)


def test_places_count_on() -> None:
    model = jf.compile(jf.Scalar() >> jf.Function(abs))
    first, second = (
        model.trace(x, skip_errors=True, progress=False)
        for x in ([1, 'x', 3], ['y', 5])
    )
    joined = model.join([first, model.tracer()([7]), second])
    assert joined.source.tolist() == [0, 2, 3, 5]
    assert [at for at, _ in joined.skipped] == [1, 4]
    assert model.apply({}, joined.schedule([3, 0])).tolist() == [5, 1]


def test_a_corpus_is_pickled_without_layers(tmp_path: Path) -> None:
    """Those are of local functions, as initializers are; what traced it goes along."""
    model = trees()
    corpus = model.trace([*TREES, 'x'], skip_errors=True, progress=False)
    with pytest.raises(TypeError, match=r'or pickle `model.tracer\(\)`'):
        pickle.dumps(model)
    again = pickle.loads(pickle.dumps(corpus))
    assert_equal(again, corpus)
    assert repr(again) == repr(corpus)
    assert_same(model.join([again]).schedule([3, 1]), corpus.schedule([3, 1]))
    twice = pickle.loads(pickle.dumps(again))
    twice.save(tmp_path / 'file')
    assert_equal(jf.Corpus.load(tmp_path / 'file', model), corpus)
    whole = model.join([jf.Corpus.load(tmp_path / 'file', model), again])
    assert_equal(pickle.loads(pickle.dumps(whole)), whole)


def test_a_pickled_corpus_is_of_no_model() -> None:
    again = pickle.loads(pickle.dumps(trees().trace(TREES, progress=False)))
    for use in (
        lambda: again.schedule([0]),
        lambda: again.capacities(2),
        lambda: again.capacities_of([[0]], 1),
    ):
        with pytest.raises(TypeError, match='one that was pickled') as caught:
            use()
        assert 'call `model.join([corpus])`' in str(caught.value)


# ---- in several files ----------------------------------------------------------------


def test_what_lies_in_files_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is in memory already is put together."""
    model = trees()
    for number in range(3):
        part = model.trace(TREES, progress=False)
        part.save(tmp_path / f'{number}.jfold')
    parts = jf.Corpus.load(tmp_path, model)
    assert len(parts) == 3 * len(TREES)
    assert len(parts.graph.graphs) == 3
    with monkeypatch.context() as patched:
        patched.setattr(corpora, 'joined_graph', None)
        assert 'MB' in repr(parts)
    more = model.join([parts, model.tracer()(TREES), model.trace(TREES)])
    assert [x.examples for x in more.graph.graphs] == [5, 5, 5, 10]
    batches = model.batches(more, 8, shuffle=0)
    seen = [i for batch in batches for i in batch.indices[: batch.count]]
    assert sorted(seen) == list(range(25))
    both = model.join([model.trace(TREES), model.trace(TREES)])
    assert both.graph.examples == 10
    assert not hasattr(both.graph, 'graphs')


def test_a_folder_without_parts(tmp_path: Path) -> None:
    (tmp_path / 'other.txt').write_text('')
    message = 'expected a folder of `.jfold` files, which `Corpus.save` writes, got one'
    with pytest.raises(FileNotFoundError, match=message):
        jf.Corpus.load(tmp_path, trees())


def test_a_part_of_another_expression_is_named(tmp_path: Path) -> None:
    model = trees()
    model.trace(TREES, progress=False).save(tmp_path / '0.jfold')
    jf.compile(jf.Scalar()).trace([1]).save(tmp_path / '1.jfold')
    with pytest.raises(ValueError, match=r'1\.jfold: expected a corpus of the expr'):
        jf.Corpus.load(tmp_path, model)


# ---- mistakes ------------------------------------------------------------------------


def test_what_cannot_be_joined() -> None:
    model, other = jf.compile(jf.Scalar()), jf.compile(jf.Scalar('int32'))
    part = model.trace([1], progress=False)
    with refuses('expected at least one corpus or Traced, got none', ValueError):
        model.join([])
    with refuses(
        'part 1: expected a corpus or what a tracer made, got list: trace examples by '
        '`model.trace`'
    ):
        model.join([part, [1]])
    with refuses(
        'part 1: expected a corpus of the expression of this model, got one of '
        'another, with `result int32` instead of `result float32`; `data int32[]` '
        "instead of `data float32[]` in Scalar('float32'). Trace the examples again "
        'with `model.trace`',
        ValueError,
    ):
        model.join([part, other.trace([1], progress=False)])
    with refuses(
        'part 1: expected examples traced for the expression of this model, got '
        'those of another: trace them with its `model.tracer()`, made again if its '
        'program has grown since',
        ValueError,
    ):
        model.join([part, other.tracer()([1])])


def test_corpora_of_before_a_program_grew(tmp_path: Path) -> None:
    model = jf.compile(encode, like=[1])
    corpus = model.trace([1, 2], progress=False)
    corpus.save(tmp_path / 'corpus.jfold')
    model.schedule([(1, 2)])
    uses: list[Callable[[], Any]] = [
        lambda: [*model.batches(corpus, 2)],
        lambda: model.join([corpus]),
        lambda: jf.Corpus.load(tmp_path / 'corpus.jfold', model),
    ]
    for use in uses:
        with pytest.raises(
            ValueError, match=r'with other or more calls of `encode` in '
        ):
            use()
    text = r'`like=` differs, or the program has grown since; .* instead of'
    with pytest.raises(ValueError, match=text):
        model.predict({}, corpus)


def test_hidden_files_are_no_parts(tmp_path: Path) -> None:
    """Some systems write one beside each file."""
    model = trees()
    model.tracer().save(TREES, tmp_path / 'part.jfold')
    (tmp_path / '._part.jfold').write_bytes(b'about the file')
    assert len(jf.Corpus.load(tmp_path, model)) == len(TREES)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason='maps keep no file open')
def test_more_parts_than_files_may_be_open(tmp_path: Path) -> None:
    model = trees()
    model.tracer().save(TREES, tmp_path / '0.jfold')
    for k in range(1, 40):
        shutil.copy(tmp_path / '0.jfold', tmp_path / f'{k}.jfold')
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    many = len(os.listdir('/proc/self/fd')) + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (many, before[1]))
    try:
        with pytest.raises(OSError, match='Too many open files') as caught:
            jf.Corpus.load(tmp_path, model)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert 'raise the limit, as by `ulimit -n 65536`' in caught.value.__notes__[0]
    assert len(jf.Corpus.load(tmp_path, model)) == 40 * len(TREES)
