# SPDX-License-Identifier: Apache-2.0
"""A corpus gives the schedules of its examples, to the bit; its file is read as it was.

However it is made: `test_joining`."""

from __future__ import annotations

import io
import json
import mmap
import sys
import time
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from binary_trees import binary
from checking import refuses
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import with_metric_first
from tree_corpora import TREES, assert_equal, assert_same, forest, trees

import jfold as jf
from jfold.data import tracer as tracing
from jfold.data.corpus import Corpus
from jfold.data.fingerprint import fingerprint
from jfold.files.storage import DamagedError, write
from jfold.graph import Graph
from jfold.models import model as model_face
from jfold.program.operations import Program

# ---- the same schedules --------------------------------------------------------------


def test_chunks_of_any_size_give_the_same_corpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also the sizes that tracing chooses, from a list and from a generator."""
    model, examples = trees(), forest(300, 30)
    with monkeypatch.context() as patch:
        patch.setattr(tracing, 'FIRST_CHUNK', len(examples))
        expected = model.trace(examples)
    for work in 1, 50, 1 << 17:
        monkeypatch.setattr(tracing, 'CHUNK_WORK', work)
        assert_equal(model.trace(examples), expected)
        assert_equal(model.trace(x for x in examples), expected)


def test_a_corpus_is_computed_like_its_examples() -> None:
    model = jf.compile(jf.Map(jf.Scalar()) >> jf.Sum())
    corpus = model.trace([[1, 2], [], [3], [4, 5, 6]])
    values = model.apply({}, corpus.schedule([3, 0, 0, 1], size=5))
    np.testing.assert_array_equal(values, [15, 3, 3, 0, 0])
    assert len(corpus) == 4
    assert corpus.nodes.tolist() == [1, 0, 0, 1]
    assert repr(corpus).startswith('Corpus(4 examples, 2 nodes, ')


INDICES = [
    *(range(2, 4), (2, 3), np.array([2, 3]), np.array([2, 3], np.uint8)),
    *(np.array([2, 3], np.uint64), jnp.array([2, 3]), np.array([9, 2, 9, 3])[1::2]),
    *([], (), range(0), np.zeros(0), np.zeros(0, bool)),
]


@pytest.mark.parametrize('indices', INDICES)
def test_indices_of_all_kinds_and_none(indices: Any) -> None:
    model = trees()
    corpus, chosen = model.trace(TREES), TREES[2:4] if len(indices) else []
    assert_same(corpus.schedule(indices), model.schedule(chosen))
    assert_same(corpus.schedule(indices, size=3), model.schedule(chosen, size=3))


@pytest.mark.parametrize(
    ('indices', 'text'),
    [
        (3, 'int of int64 of shape (): pass `[3]`'),
        (np.int8(3), 'int8 of int8 of shape (): pass `[3]`'),
        ('abc', 'str of <U3 of shape ()'),
        ([0.0, 1.0], 'list of float64 of shape (2,)'),
        ([True, False], 'list of bool of shape (2,): pass `np.flatnonzero(mask)`'),
        (jnp.ones(3, bool), ' of bool of shape (3,): pass `np.flatnonzero(mask)`'),
        ([[0, 1]], 'list of int64 of shape (1, 2)'),
        ([[0], [1, 2]], 'list'),
        ([2**70], 'list'),
        ([None], 'list'),
        (None, 'NoneType'),
        ({0, 1}, 'set: pass `list(indices)`'),
        ((i for i in [0]), 'generator: pass `list(indices)`'),
    ],
)
def test_what_is_no_indices(indices: Any, text: str) -> None:
    corpus = trees().trace(TREES)
    for use in corpus.schedule, lambda x: corpus.capacities_of([x], 2):
        with pytest.raises(TypeError) as caught:
            use(indices)
        message = str(caught.value)
        assert message.startswith('expected `indices` as a sequence of ints, got ')
        assert message.endswith(text)


@pytest.mark.parametrize('indices', [[0, 5], [-1, 0], np.array([0, 2**63], np.uint64)])
def test_indices_out_of_range(indices: Any) -> None:
    """Those from the end, too: a mistake is more likely."""
    corpus = trees().trace(TREES)
    wrong = next((n, i) for n, i in enumerate(indices) if not 0 <= i < 5)
    text = f'expected `indices` from 0 to 4, got {wrong[1]} at position {wrong[0]}'
    with refuses(text, IndexError):
        corpus.schedule(indices)
    with refuses(text, IndexError):
        corpus.capacities_of([[0], indices], 2)


def test_an_empty_corpus() -> None:
    for model in trees(), jf.compile(jf.Scalar()):
        corpus = model.trace(iter([]))
        assert (len(corpus), corpus.nodes.tolist()) == (0, [])
        assert_same(corpus.schedule([]), model.schedule([]))
        assert corpus.capacities(3).rows == (0,) * len(model.program.operations)
        assert corpus.capacities_of([[], []], 3) == corpus.capacities(3)
        with refuses(
            'expected `indices` of no examples, got 0 at position 0', IndexError
        ):
            corpus.schedule([0])


# ---- examples of all kinds -----------------------------------------------------------


class ByNumber:
    """Examples that are read by numbers alone, of which none is too large."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, number: int) -> int:
        return 2 * number


def test_examples_of_any_iterable() -> None:
    """Arrays, sets and iterators that were begun; no text, which is one example."""
    model = jf.compile(jf.Scalar())
    begun = iter(range(5))
    next(begun)
    for examples in (
        np.arange(1.0, 5.0),
        range(1, 5),
        {1: 0, 2: 0, 3: 0, 4: 0}.keys(),
        begun,
    ):
        values = model.apply({}, model.trace(examples).schedule(range(4)))
        np.testing.assert_array_equal(values, [1, 2, 3, 4])
    examples = ByNumber()
    values = model.apply({}, model.trace(examples).schedule(range(2)))
    np.testing.assert_array_equal(values, [0, 2])
    np.testing.assert_array_equal(model.predict({}, examples), [0, 2])
    with refuses('expected a sequence of examples, got bytes: pass `[example]`'):
        model.trace(b'ab')


class Example(list[Any]):
    """An example that weak references can watch."""


def watched(sizes: list[int], most: list[int]) -> Iterator[Example]:
    """Examples of given sizes; notes how many items are alive in examples at once."""
    alive: dict[int, int] = {}
    for number, size in enumerate(sizes):
        most.append(sum(alive.values()))
        example = Example([number % 8] * size)
        alive[number] = size
        weakref.finalize(example, alive.pop, number)
        yield example
        del example


@pytest.mark.parametrize(
    ('sizes', 'limit'),
    [
        ([3] * 5000, 300),
        ([0] * 5000, 0),
        (sorted([1, 3, 9, 27, 81, 243] * 64), 1000),
        ([1] * 500 + [100] * 300, 200 * 100),
    ],
)
def test_few_examples_are_in_memory(
    sizes: list[int], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One chunk, whose size follows the sizes of the examples before.

    The limits are those of chunks: 200 nodes, or 200 examples where these suddenly
    grow.
    """
    monkeypatch.setattr(tracing, 'CHUNK_WORK', 200)
    monkeypatch.setattr(tracing, 'LARGEST_CHUNK', 200)
    model = jf.compile(jf.Map(jf.Scalar()) >> jf.Sum())
    most: list[int] = []
    corpus = model.trace(watched(sizes, most))
    assert max(most) <= limit
    assert len(most) == len(corpus) == len(sizes)


def test_constants_count_as_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large arrays come in small chunks, though they are few nodes."""
    chunks: list[int] = []
    trace = tracing.trace

    def counted(program: Program, examples: list[Any]) -> Graph:
        chunks.append(len(examples))
        return trace(program, examples)

    monkeypatch.setattr(tracing, 'trace', counted)
    monkeypatch.setattr(tracing, 'CHUNK_WORK', 1000)
    model = jf.compile(jf.Vector(100) >> jf.Function(jnp.sum))
    model.trace([np.zeros(100)] * 100)
    assert chunks == [64, 10, 10, 10, 6]


def test_a_node_takes_few_bytes() -> None:
    """24 at most, constants and all, in binary trees of some size."""
    corpus = trees().trace(forest(500, 60))
    assert corpus.nbytes / corpus.nodes.sum() <= 24


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Slow(list[Any]):
    """Examples that come slowly enough for a progress bar to move."""

    def __iter__(self) -> Iterator[Any]:
        for number in range(len(self)):
            if number == 100:
                time.sleep(0.2)
            yield self[number]


class TerminalInteractiveShell:
    """IPython on a terminal, or with its output in a file."""


def test_no_progress_bar_on_a_closed_stream(monkeypatch: Any) -> None:
    """As a server without a terminal may have."""
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, 'stderr', closed)
    assert len(trees().trace(TREES, progress=True)) == len(TREES)


@pytest.mark.parametrize(
    ('stream', 'shell', 'delay', 'progress', 'shows'),
    [
        (Terminal, None, 1e-9, True, True),
        (Terminal, None, 1e-9, False, False),
        (io.StringIO, None, 1e-9, True, False),
        (io.StringIO, 'a notebook', 1e-9, True, True),
        (io.StringIO, 'a notebook', 3600.0, True, False),
        (io.StringIO, TerminalInteractiveShell(), 1e-9, True, False),
        (Terminal, TerminalInteractiveShell(), 1e-9, True, True),
    ],
)
def test_a_progress_bar(
    stream: Any,
    shell: object,
    delay: float,
    progress: bool,
    shows: bool,
    monkeypatch: Any,
) -> None:
    """On a terminal or in a notebook, after a while, unless one would rather not."""
    python = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, 'IPython', python)
    monkeypatch.setattr('jfold.data.progress_bars.BAR_DELAY', delay)
    monkeypatch.setattr(sys, 'stderr', stream())
    trees().trace(Slow(TREES * 100), progress=progress)
    assert ('/500 [' in sys.stderr.getvalue()) == shows  # type: ignore[attr-defined]


# ---- bad examples --------------------------------------------------------------------

IN_TREE = "expected int32[], got {}; in tree.OneOf['word'].Pipe[0].Scalar('int32')"


def test_a_bad_example_is_named_by_its_place_in_the_stream() -> None:
    """The error is the one of the batch, with another number and nothing before it."""
    examples = TREES * 40
    examples[150] = (1, (2, 'x'))
    with pytest.raises(jf.InputError) as caught:
        trees().trace(iter(examples))
    place = 'example 150, at [1][1]: '
    assert str(caught.value) == place + IN_TREE.format("'x'")
    assert caught.value.example == 150
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_the_cause_of_an_error_is_kept() -> None:
    model = jf.compile(jf.InputTransform(lambda x: 1 / x) >> jf.Scalar())
    with pytest.raises(jf.InputError) as caught:
        model.trace([*range(1, 100), 0])
    assert caught.value.example == 99
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_error_of_the_stream_is_its_own() -> None:
    """Nothing is caught but errors about examples."""

    def stream() -> Iterator[Any]:
        yield from TREES
        raise OSError('no more')

    with refuses('no more', OSError):
        trees().trace(stream(), skip_errors=True)


@given(st.data())
@settings(max_examples=15)
def test_bad_examples_are_skipped(data: Any) -> None:
    """Everything before and after is delivered; the bad ones are told in order."""
    model = trees()
    good = forest(data.draw(st.integers(0, 200)), 5)
    bad = data.draw(
        st.sets(st.integers(0, 220), max_size=data.draw(st.integers(0, 60)))
    )
    rest, stream, expected = iter(good), [], []
    for place in range(len(good) + len(bad)):
        if place in bad or len(stream) - len(expected) == len(good):
            wrong = data.draw(st.sampled_from([('x', 1), (1, (2, None)), (1,), 1.5]))
            stream.append(wrong)
            expected.append(place)
        else:
            stream.append(next(rest))
    corpus = model.trace(iter(stream), skip_errors=True, progress=False)
    assert [place for place, _ in corpus.skipped] == expected
    for place, text in corpus.skipped:
        with pytest.raises(jf.InputError) as caught:
            model.trace(stream[place : place + 1])
        assert text == str(caught.value.renumbered(place))
    others = np.delete(np.arange(len(stream)), expected)
    np.testing.assert_array_equal(corpus.source, others)
    alone = model.trace([stream[i] for i in others])
    np.testing.assert_array_equal(corpus.nodes, alone.nodes)
    chosen = np.arange(len(others))[::3]
    assert_same(corpus.schedule(chosen), alone.schedule(chosen))


def test_a_stream_of_nothing_but_bad_examples() -> None:
    """However many: no recursion, and no more work than for good ones, nearly."""
    corpus = trees().trace(['x'] * 3000, skip_errors=True)
    assert (len(corpus), len(corpus.skipped)) == (0, 3000)
    assert repr(corpus).endswith(' MB, 3000 skipped)')


# ---- in a file -----------------------------------------------------------------------


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
    assert sorted(arrays) == sorted(corpus._arrays)
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
    for name, array in loaded._arrays.items():
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
