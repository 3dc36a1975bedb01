# SPDX-License-Identifier: Apache-2.0
"""Iterators in the data, which would be empty for whoever reads them second: refused,
wherever they stand, by schedules and by `eval`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import jfold as jf

ONCE = 'it can be read only once: make a list of it, `list(...)`, where it is made'
numbers = jf.Map(jf.Scalar())


class Stream:
    """No iterator, but what it gives is one and the same."""

    def __init__(self, items: list[Any]) -> None:
        self.items = iter(items)

    def __iter__(self) -> Iterator[Any]:
        return self.items


class Again:
    """Has no length, and begins anew for each reader."""

    def __iter__(self) -> Iterator[Any]:
        yield from (1, 2)


def generated(items: list[Any]) -> Any:
    yield from items


MAKERS = iter, generated, Stream, lambda items: map(abs, items)
READERS: dict[str, tuple[jf.Block, Any]] = {
    'one reader': (numbers, lambda items: items),
    'two readers': (jf.AllOf(numbers, numbers), lambda items: items),
    'a wire': (
        jf.compose(lambda x: jf.AllOf(numbers, numbers)(jf.GetItem('x')(x))),
        lambda items: {'x': items},
    ),
    'sums': (numbers >> jf.Sum(), lambda items: items),
    'in a list': (jf.Map(numbers), lambda items: [[1], items]),
    'zipped': (
        jf.Record((numbers, jf.Identity())) >> jf.Zip() >> jf.Map(jf.GetItem(0)),
        lambda items: ([1, 2], items),
    ),
    'chained': (jf.Chain() >> numbers, lambda items: [[1], items]),
    'windows': (jf.NGrams(2) >> jf.Map(jf.GetItem(0) >> jf.Scalar()), lambda x: x),
    'positions': (
        jf.Record((numbers, jf.Identity())) >> jf.Pick(),
        lambda items: ([1, 2, 3], items),
    ),
}


@pytest.mark.parametrize('reader', READERS)
def test_refused_where_they_are_read(reader: str) -> None:
    block, inside = READERS[reader]
    model = jf.compile(block)
    model.schedule([inside([1, 2])])
    runs = (lambda x: model.schedule([x]), model.eval)
    for run, make in itertools.product(runs, MAKERS):
        with pytest.raises((TypeError, jf.InputError)) as caught:
            run(inside(make([1, 2])))
        assert ONCE in str(caught.value)


@pytest.mark.parametrize(
    'block',
    [
        jf.InputTransform(list) >> numbers,
        jf.AllOf(*(jf.InputTransform(list) >> numbers for _ in range(2))),
        jf.OneOf(next, {1: numbers}),
        jf.Share(
            jf.OneOf(type, {int: jf.Scalar()}, default=jf.Zeros([])), key=lambda _: 0
        ),
    ],
)
def test_no_function_of_the_data_is_given_one(block: jf.Block) -> None:
    """Two of them would not be given the same."""
    model = jf.compile(block)
    for run in (lambda x: model.schedule([x]), model.eval):
        with pytest.raises((TypeError, jf.InputError), match='expected a value, got'):
            run(iter([1, 2]))


@pytest.mark.parametrize(
    'block',
    [
        jf.OneOf(type, {float: jf.Scalar()}, default=jf.Zeros([])),
        jf.OneOf(bool, {False: jf.Scalar(), True: jf.Zeros([])}),
        jf.InputTransform(type) >> jf.InputTransform(callable) >> jf.Scalar(),
        jf.Map(jf.InputTransform(repr) >> jf.Length()),
    ],
)
def test_functions_that_take_no_items_are(block: jf.Block) -> None:
    model = jf.compile(block)
    example = [iter([])] if isinstance(block, jf.Map) else iter([])
    model.schedule([example])
    model.eval(example)


def test_those_that_have_no_length() -> None:
    model = jf.compile(jf.Length())
    for run in (lambda x: model.schedule([x]), model.eval):
        with pytest.raises(jf.InputError, match='something with a length') as caught:
            run(iter([1]))
        assert ONCE in caught.value.hint


def test_those_that_a_function_makes() -> None:
    model = jf.compile(jf.InputTransform(reversed) >> numbers)
    for run in (lambda x: model.schedule([x]), model.eval):
        with pytest.raises((TypeError, jf.InputError), match='only once'):
            run([1, 2])


def test_the_error_says_where() -> None:
    model = jf.compile(jf.Record({'x': jf.Map(numbers)}))
    place = r"^example 1, at \['x'\]\[1\]: expected a sequence, got <list_iterator "
    with pytest.raises(jf.InputError, match=rf'{place}.*; it can be read only once'):
        model.schedule([{'x': []}, {'x': [[1], iter([2])]}])


def test_endless_ones_end() -> None:
    with pytest.raises(jf.InputError, match='only once'):
        jf.compile(numbers).schedule([itertools.count()])


def test_what_begins_anew_is_a_sequence() -> None:
    """For each reader, though it has no length."""
    model = jf.compile(jf.AllOf(numbers >> jf.Sum(), numbers >> jf.Max()))
    for example in (Again(), range(1, 3), (1, 2), {1: 0, 2: 0}.keys()):
        found = [x.item() for x in model.apply({}, model.schedule([example]))]
        assert found == [x.item() for x in model.eval(example)] == [3, 2]


def test_examples_that_are_skipped() -> None:
    """They count as examples that do not fit, and are what they were beside others."""
    model = jf.compile(numbers >> jf.Sum())
    given = [[1, 2], iter([3]), [4], Again()]
    corpus = model.trace(given, skip_errors=True)
    assert model.apply({}, corpus.schedule([0, 1, 2])).tolist() == [3, 4, 3]
    assert [place for place, _ in corpus.skipped] == [1]
    with model.batches(iter(given), 4, skip_errors=True) as batches:
        (batch,) = batches
        found = model.apply({}, batch.schedule)[batch.mask]
        assert found.tolist() == [3, 4, 3]
        assert [place for place, _ in batches.skipped] == [1]
    assert next(given[1]) == 3  # nothing was taken of it
