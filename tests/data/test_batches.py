# SPDX-License-Identifier: Apache-2.0
"""Batches: which examples, in which order, ahead of time."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
from checking import refuses
from fake_sources import MODEL, SPEC, FakeModel, Stream, corpus, made, negate, real
from hypothesis import given
from hypothesis import strategies as st

import jfold as jf
from jfold.data.batches import batches
from jfold.scheduling.schedule import Schedule
from jfold.scheduling.spec import Capacity

pytestmark = pytest.mark.usefixtures('no_thread_is_left')

# ---- what a batch is -----------------------------------------------------------------

SOURCES: dict[str, Callable[[list[Any]], Any]] = {
    'list': list,
    'array': np.array,
    'iterator': iter,
    'iterable': lambda x: Stream(*x),
    'corpus': lambda x: MODEL.trace(x, progress=False),
}


@pytest.mark.parametrize(
    ('kind', 'prefetch'),
    [*zip(SOURCES, itertools.cycle([0, 1, 3]), strict=False), ('iterator', 0)],
)
def test_batches_of_a_model(kind: str, prefetch: int) -> None:
    """Of each kind of source and each number of batches ahead, in turn."""
    labels = np.arange(10.0, 17.0)
    source = SOURCES[kind](labels.tolist())
    found = list(batches(MODEL, source, 3, prefetch=prefetch))
    assert [real(batch) for batch in found] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [batch.count for batch in found] == [3, 3, 1]
    assert [batch.epoch for batch in found] == [0, 0, 0]
    for batch in found:
        assert batch.indices.shape == batch.mask.shape == (3,)
        assert (batch.indices.dtype, batch.mask.dtype) == (np.int64, bool)
        assert np.array_equal(batch.mask, batch.schedule.mask)
        values = MODEL.apply({}, batch.schedule)
        np.testing.assert_array_equal(values, -labels[batch.indices])
    assert found[-1].indices.tolist() == [6, 6, 6]
    assert MODEL.programs == 1


def test_a_remainder_is_dropped_if_asked() -> None:
    for source in (range(7), Stream(*range(7)), corpus(*[1] * 7)):
        found = made(source, 3, drop_remainder=True)
        assert [real(x) for x in found] == [[0, 1, 2], [3, 4, 5]]
    for source in (range(6), Stream(*range(6))):
        assert len(list(made(source, 3, drop_remainder=True))) == 2


def test_epochs_do_not_share_batches_and_may_be_endless() -> None:
    with made(range(3), 2, epochs=None) as endless:
        taken = [(x.epoch, real(x)) for x in itertools.islice(endless, 1001)]
    assert taken == [(n // 2, [[0, 1], [2]][n % 2]) for n in range(1001)]


def test_nothing_to_do() -> None:
    for source in ([], Stream(), corpus()):
        assert list(made(source, 2)) == []
        assert list(made(source, 2, drop_remainder=True)) == []
    assert list(made(corpus(), 2, max_nodes=3, drop_remainder=True)) == []
    assert list(made([1], 2, drop_remainder=True)) == []


def test_arrays_go_to_the_device_unless_they_depend_on_the_thread() -> None:
    @dataclass
    class Wide(FakeModel):
        def schedule(self, examples: list[int], *, size: int | None = None) -> Schedule:
            wide = np.array([1]), np.array([1.0]), np.array([1j])
            return Schedule(np.array([1], np.int32), wide, SPEC, 0.5)

    (batch,) = batches(Wide(), [1], 1, device_put=True)
    assert isinstance(batch.schedule.indices, jax.Array)
    assert all(isinstance(x, np.ndarray) for x in batch.schedule.constants)
    assert (batch.schedule.seconds, batch.schedule.spec) == (0.5, SPEC)
    (batch,) = batches(Wide(), [1], 1, device_put=False)
    assert isinstance(batch.schedule.indices, np.ndarray)
    (batch,) = batches(Wide(), [1], 1)
    is_apart = jax.default_backend() != 'cpu'
    assert isinstance(batch.schedule.indices, jax.Array) == is_apart


# ---- order ---------------------------------------------------------------------------


def order(shuffle: Any, epoch: int = 0, examples: int = 10, size: int = 4) -> list[int]:
    """The places in an epoch, one after another."""
    source = made(range(examples), size, shuffle=shuffle, epochs=epoch + 1)
    return [place for x in source if x.epoch == epoch for place in real(x)]


def test_the_order_never_changes() -> None:
    assert order(7) == [6, 0, 5, 2, 1, 3, 9, 8, 7, 4]
    assert order(7, epoch=1) == [9, 1, 8, 6, 5, 0, 7, 3, 2, 4]


def test_the_order_depends_on_key_epoch_and_length_alone() -> None:
    key = jax.random.key(7)
    same = [7, np.int32(7), key, jax.random.PRNGKey(7), np.array([0, 7], np.uint32)]
    assert len({tuple(order(x)) for x in same}) == 1
    assert order(7, size=3) == order(7, size=10) == order(7)
    wide = jax.random.key(7, impl='rbg')
    others = [8, 7 << 32, 2**64 - 1, jax.random.split(key)[0], wide]
    assert len({tuple(order(x)) for x in [7, *others]}) == 6
    assert sorted(order(wide)) == sorted(order(7, epoch=5)) == list(range(10))
    assert order(7, examples=11)[:10] != order(7)


# ---- limits of nodes -----------------------------------------------------------------


def greedy(nodes: list[int], size: int, limit: int) -> list[list[int]]:
    """One example after another."""
    found: list[list[int]] = []
    for place, n in enumerate(nodes):
        room = found and len(found[-1]) < size
        if room and sum(nodes[x] for x in found[-1]) + n <= limit:
            found[-1].append(place)
        else:
            found.append([place])
    return found


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=30),
    st.integers(1, 6),
    st.integers(9, 20),
    st.booleans(),
)
def test_limited_nodes(nodes: list[int], size: int, limit: int, drop: bool) -> None:
    found = made(corpus(*nodes), size, max_nodes=limit, drop_remainder=drop)
    wanted = greedy(nodes, size, limit)
    last = wanted[-1]
    if drop and len(last) < size and sum(nodes[x] for x in last) != limit:
        del wanted[-1]
    assert [real(x) for x in found] == wanted
    assert len(found) == len(wanted)


@given(st.integers(0, 99), st.integers(1, 3), st.booleans())
def test_limited_nodes_in_another_order(seed: int, epochs: int, drop: bool) -> None:
    nodes = np.random.default_rng(seed).integers(0, 9, 20)
    arguments = {'max_nodes': 12, 'drop_remainder': drop, 'epochs': epochs}
    found = made(corpus(*nodes), 4, shuffle=seed, **arguments)
    taken = list(found)
    assert len(taken) == len(found)
    for epoch in range(epochs):
        of_epoch = [real(x) for x in taken if x.epoch == epoch]
        chosen = order(seed, epoch, 20)
        wanted = [[chosen[i] for i in x] for x in greedy(nodes[chosen], 4, 12)]
        assert of_epoch == wanted[: len(of_epoch)]
        assert len(wanted) - len(of_epoch) <= drop
    most = max(int(nodes[real(x)].sum()) for x in taken)
    assert found.capacities == Capacity(4, 0, (), (most,), (), (), 0, ())


def test_capacities() -> None:
    of_one_epoch = made(corpus(1, 2, 3, 4), 3).capacities
    assert of_one_epoch == made(corpus(1, 2, 3, 4), 3, epochs=9).capacities
    assert of_one_epoch.rows == (6,)
    assert made(corpus(1, 2, 3, 4), 3, drop_remainder=True).capacities.rows == (6,)
    assert made(corpus(1, 2, 9), 2, drop_remainder=True).capacities.rows == (3,)
    with refuses(
        'expected a corpus as source and a number of `epochs`, got FakeCorpus and '
        'None: only of these is known beforehand what they need',
        ValueError,
    ):
        _ = made(corpus(1), 1, epochs=None).capacities


# ---- length, looks -------------------------------------------------------------------


@pytest.mark.parametrize('drop', [False, True])
@pytest.mark.parametrize('shuffle', [None, 3])
def test_length(shuffle: int | None, drop: bool) -> None:
    arguments: Any = {'shuffle': shuffle, 'drop_remainder': drop, 'epochs': 3}
    for source in (range(7), range(8), corpus(*range(7))):
        found = made(source, 4, **arguments)
        assert len(found) == len(list(found)) == len(found)
    with refuses(
        'expected a sequence as source and a number of `epochs`, got endless epochs: '
        'batches of that have no length'
    ):
        len(made([1], 2, epochs=None))


def test_repr() -> None:
    found = made(range(9), 4, shuffle=0, epochs=2)
    start = 'Batches(9 examples, batch_size=4, shuffled; '
    assert repr(found) == f'{start}0 delivered, epoch 0 of 2, example 0)'
    next(found)
    assert repr(found) == f'{start}1 delivered, epoch 0 of 2, example 4)'
    list(found)
    assert repr(found) == f'{start}6 delivered, epoch 1 of 2, example 9)'
    assert repr(made(corpus(1), 2, max_nodes=3, epochs=None)).startswith(
        'Batches(1 examples, batch_size=2, max_nodes=3; 0 delivered, epoch 0, '
    )
    assert repr(made(Stream(), 2)) == (
        'Batches(a stream, batch_size=2; 0 delivered, epoch 0 of 1, example 0)'
    )


# ---- errors --------------------------------------------------------------------------


def broken(at: int, error: BaseException) -> Iterator[int]:
    """A stream that fails in the middle."""
    for place in range(100):
        if place == at:
            raise error
        yield place


@pytest.mark.parametrize('prefetch', [0, 1, 9])
@pytest.mark.parametrize('error', [OSError('gone'), SystemExit(3), MemoryError()])
def test_errors_stand_in_the_order(error: BaseException, prefetch: int) -> None:
    found = made(broken(7, error), 2, prefetch=prefetch)
    assert [real(next(found)) for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(type(error)) as caught:
        next(found)
    assert caught.value is error
    frames = traceback.extract_tb(caught.tb)
    assert frames[-1].name == 'broken'
    if isinstance(error, Exception):  # others show every frame
        assert {frame.filename for frame in frames} == {__file__}
    assert list(found) == list(found) == []


@pytest.mark.parametrize('prefetch', [0, 2])
def test_an_input_error_names_the_place_in_the_source(prefetch: int) -> None:
    examples: list[Any] = list(range(10))
    examples[order(5)[7]] = 'x'
    place = order(5)[7]
    model = jf.compile(jf.Record({'x': negate}))
    found = batches(
        model, [{'x': x} for x in examples], 4, shuffle=5, prefetch=prefetch
    )
    assert real(next(found)) == order(5)[:4]
    with pytest.raises(jf.InputError) as caught:
        next(found)
    assert str(caught.value).startswith(
        f"example {place} of the source, at ['x']: expected float32[], got 'x'; in "
    )
    assert (caught.value.example, caught.value.path) == (place, "['x']")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__  # that with the place in the batch
    assert list(found) == []


def test_too_many_programs_are_an_error_in_its_place() -> None:
    model = jf.compile(jf.Map(negate) >> jf.Sum(), max_programs=1)
    found = batches(model, [[1.0], [1.0] * 5000], 1)
    assert real(next(found)) == [0]
    with pytest.raises(jf.ProgramBudgetError):
        next(found)
    assert list(found) == []


# ---- leaving out what does not fit ---------------------------------------------------


@pytest.mark.parametrize('change', [list.clear, list.pop, lambda x: x.append(1)])
def test_a_source_that_changes_on_the_way(change: Any) -> None:
    """Its examples are no longer those that the plan was made of."""
    source = [1] * 6
    found = made(source, 2, prefetch=0)
    next(found)
    change(source)
    with refuses(
        'expected a source of 6 examples, as when its batches were made, got one of '
        f'{len(source)}: leave it alone while batches are taken, or pass a copy',
        ValueError,
    ):
        next(found)


def test_an_index_error_of_the_source() -> None:
    """It is its own, if the length is as it was."""

    class Source(list[int]):
        def __getitem__(self, place: Any) -> Any:
            raise IndexError('no such shard')

    with pytest.raises(IndexError, match='no such shard'):
        next(made(Source([1, 2]), 2, prefetch=0))


BAD = [0, -1, -2, 3, -4, -5, -6, 7, 8, -9]


def message(place: int) -> tuple[int, str]:
    """The account of a bad example."""
    return place, f"example {place} of the source, at ['x']: got -{place}; in Fake"


@pytest.mark.parametrize('prefetch', [0, 1, 9])
@pytest.mark.parametrize('source', [BAD, Stream(*BAD)], ids=['sequence', 'stream'])
def test_bad_examples_are_left_out(source: Any, prefetch: int) -> None:
    found = made(source, 4, skip_errors=True, prefetch=prefetch)
    assert found.skipped == []
    first = next(found)
    assert (real(first), first.count, first.indices.tolist()) == (
        [0, 3],
        2,
        [0, 3, 3, 3],
    )
    assert np.asarray(first.schedule.indices).tolist() == [0, 3, 3, 3]
    assert found.skipped == [message(1), message(2)]
    assert real(next(found)) == [7]
    assert found.skipped == [message(x) for x in (1, 2, 4, 5, 6)]
    assert real(next(found)) == [8]
    assert found.skipped == [message(x) for x in (1, 2, 4, 5, 6, 9)]
    assert list(found) == []


def test_bad_examples_of_a_batch_are_found_together() -> None:
    """And what is left is scheduled once more, however many there were."""
    model, tries = jf.compile(jf.Scalar()), list[int]()

    def schedule(examples: list[Any], **options: Any) -> Any:
        tries.append(len(examples))
        return jf.Model.schedule(model, examples, **options)

    model.schedule = schedule  # type: ignore[method-assign]
    found = model.batches([1, 'x', 2, None, 'y'], 5, skip_errors=True, prefetch=0)
    assert [batch.indices[:2].tolist() for batch in found] == [[0, 2]]
    assert tries == [5, 2]
    texts = [
        f'example {place} of the source: expected float32[]' for place in (1, 3, 4)
    ]
    assert [place for place, _ in found.skipped] == [1, 3, 4]
    assert all(map(str.startswith, [text for _, text in found.skipped], texts))


@pytest.mark.parametrize('prefetch', [0, 9])
def test_batches_of_bad_examples_alone_do_not_appear(prefetch: int) -> None:
    found = made(BAD, 2, skip_errors=True, prefetch=prefetch)
    assert [real(x) for x in itertools.islice(found, 3)] == [[0], [3], [7]]
    assert [place for place, _ in found.skipped] == [1, 2, 4, 5, 6]
    found = made([1, -1, -2], 1, skip_errors=True, prefetch=prefetch)
    next(found)
    assert found.skipped == []
    assert list(found) == []
    assert len(found.skipped) == 2
    assert found.state()['position'] == 3
    assert found.state()['skipped'] == 2


def test_endless_epochs_of_bad_examples_end() -> None:
    found = made([-1, -2, -3], 2, epochs=None, skip_errors=True)
    text = (
        'expected examples that fit the model, got 6 in a row that do not; the last: '
        "example 2 of the source, at ['x']: got -3; in Fake"
    )
    with refuses(text, ValueError):
        next(found)
    assert list(made([-1, -2, -3], 2, epochs=5, skip_errors=True)) == []
    with made([-1, 2, -3], 1, epochs=None, skip_errors=True, shuffle=0) as found:
        assert [real(x) for x in itertools.islice(found, 50)] == [[1]] * 50
