# SPDX-License-Identifier: Apache-2.0
"""Data that contain themselves are refused, at once; what is only shared is not."""

from __future__ import annotations

import functools
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jfold as jf
from jfold.tracing import deep


@functools.cache
def model_of(kind: str) -> jf.Model:
    tree = jf.ForwardDeclaration(name='tree')
    state_and_item = jf.AllOf(jf.GetItem(0), jf.GetItem(1) >> tree())
    rules: dict[str, Any] = {
        'record': jf.Record([tree(), tree()]) >> jnp.add,
        'map': jf.Map(tree()) >> jf.Sum(),
        'fold': jf.Fold(jf.Record([jf.Identity(), tree()]) >> jnp.add, jf.Zeros([])),
        'late fold': jf.Fold(state_and_item >> jnp.add, jf.Zeros([])),
    }
    tree.resolve_to(jf.OneOf(type, {int: jf.Scalar(), list: rules[kind]}))
    return jf.compile(tree())


KINDS = 'record', 'map', 'fold', 'late fold'


def chain() -> Any:
    """A list that contains itself once."""
    made: list[Any] = [1]
    made.append(made)
    return made


def branching() -> Any:
    """A list that contains itself twice: its paths double with every step."""
    made: list[Any] = []
    made += [made, made]
    return made


def inner() -> Any:
    """A list whose item leads back to it, inside others."""
    ring: list[Any] = [2, 3]
    ring[1] = [4, ring]
    return [1, ring]


def beside_numbers() -> Any:
    """A list that is twice in its second item."""
    made: list[Any] = [1]
    made.append([made, made])
    return made


CYCLES = [
    (chain, '', '[1]'),
    (branching, '', '[0]'),
    (inner, '[1]', '[1][1]'),
    (beside_numbers, '', '[1][0]'),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize(('make', 'path', 'way'), CYCLES)
def test_data_that_contain_themselves(
    kind: str, make: Any, path: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names example, path and block; the twin says the same."""
    monkeypatch.setattr(deep, 'MAX_DEPTH', 3 * deep.FIRST_LOOK)
    model = model_of(kind)
    with pytest.raises(jf.InputError, match='contains itself') as caught:
        model.schedule([3, [1, 2], make()])
    assert (caught.value.example, caught.value.path) == (2, path)
    place = f'example 2{path and f", at {path}"}'
    block = caught.value.block
    assert block.startswith("tree.OneOf[<class 'list'>].")
    assert block.endswith('.tree()')
    assert str(caught.value) == (
        f'{place}: expected data that end, got list that contains itself, as {way}; '
        f'in {block}'
    )
    assert model.schedule([[1, [2, 3]]]).examples == 1
    with pytest.raises(jf.InputError) as twin:
        model.eval(make())
    text = f'expected data that end, got list that contains itself, as {way}'
    assert (twin.value.message, twin.value.path) == (text, path)
    shared = [1, 2]
    assert model.eval([[shared, shared], shared]) == 9


def test_the_twin_compares_objects_beside_tensors() -> None:
    """A call on the same object, though with another tensor, ends as little."""
    tree = jf.ForwardDeclaration(output_type='float32')
    fields = jf.Record([jf.GetItem(1), jnp.sin])
    tree.resolve_to(fields >> tree())
    ring: list[Any] = [1]
    ring.append(ring)
    block = jf.AllOf(jf.Identity(), jf.InputTransform(len) >> jf.Scalar()) >> tree()
    with pytest.raises(jf.InputError, match='expected data that end'):
        block.eval(ring)
    with pytest.raises(jf.InputError, match='expected data that end'):
        jf.compile(block).schedule([ring])


def test_a_long_way_is_told_without_its_middle() -> None:
    """Longer than Python's stack, too."""
    ring: list[list[Any]] = [[1] for _ in range(3000)]
    for each, following in zip(ring, ring[1:] + ring[:1], strict=True):
        each.append(following)
    with pytest.raises(jf.InputError, match='contains itself') as caught:
        model_of('record').schedule([1, [2, ring[0]]])
    assert (caught.value.example, caught.value.path) == (1, '[1]')
    assert len(str(caught.value)) < 700


def test_cycles_are_met_before_items_are_read_again_and_again() -> None:
    """In wide lists, of parts that end and of numbers."""
    reads: list[int] = []
    number = jf.InputTransform(lambda x: reads.append(x) or x) >> jf.Scalar()
    tree = jf.ForwardDeclaration(name='tree')
    items = jf.Map(tree()) >> jf.Sum()
    tree.resolve_to(jf.OneOf(type, {int: number, list: items}))
    model = jf.compile(tree())
    wide: list[list[Any]] = [[[1] for _ in range(200)], [1] * 100]
    for ring in wide:
        ring.append(ring)
        reads.clear()
        with pytest.raises(jf.InputError, match='contains itself'):
            model.schedule([ring])
        assert len(reads) < len(ring) * (sys.getrecursionlimit() + 100)


@pytest.mark.parametrize('kind', KINDS)
def test_parts_may_be_shared(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One object in many places, deep and often, is no cycle, however early one
    looks."""
    monkeypatch.setattr(deep, 'FIRST_LOOK', 4)
    shared, long, doubled = [1, 2], [1, 1], [1, 1]
    for _ in range(2000):  # deeper than Python's stack
        long = [shared, long]
    for _ in range(8):
        doubled = [doubled, doubled]
    model = model_of(kind)
    values = model.apply({}, model.schedule([long, doubled, shared]))
    np.testing.assert_array_equal(values, [6002, 512, 3])


# ---- batches far larger than the data ------------------------------------------------


def test_a_batch_size_far_beyond_the_data() -> None:
    """An error at once, that says how to have all examples in one batch."""
    model = jf.compile(jf.Scalar())
    message = (
        'expected `batch_size` of at most 1,048,776 for 200 examples, got '
        '1,000,000,000: results have a row for each, used or not, so pass '
        '`batch_size=200` to have all in one batch'
    )
    examples = list(range(200))
    for source in (examples, model.trace(examples)):
        with pytest.raises(ValueError, match='expected `batch_size`') as caught:
            model.batches(source, 10**9)
        assert str(caught.value) == message
        assert list(model.batches(source, 10**9, drop_remainder=True)) == []
        (batch,) = model.batches(source, 300)
        assert (batch.count, batch.schedule.examples) == (200, 300)


def test_a_size_far_beyond_the_examples() -> None:
    """Of schedules, and of batches of a stream, whose length nobody knows before."""
    model = jf.compile(jf.Scalar())
    message = 'expected `size` of at most 1,048,578 for 2 examples, got 1,000,000,000'
    with pytest.raises(ValueError, match=message):
        model.schedule([1, 2], size=10**9)
    with pytest.raises(ValueError, match=message):
        model.trace([1, 2, 3]).schedule([0, 2], size=10**9)
    with pytest.raises(ValueError, match=message):
        next(model.batches(iter([1, 2]), 10**9))
    assert model.programs == 0


def test_through_tuples_that_blocks_make() -> None:
    """Each call has a new tuple, of the same objects; both readings find the cycle."""
    pair = jf.ForwardDeclaration(name='pair')
    next_pair = jf.GetItem(0) >> jf.AllOf(jf.GetItem('a'), jf.GetItem('b')) >> pair()
    pair.resolve_to(
        jf.OneOf(jf.GetItem(1), {0: jf.GetItem(0) >> jf.Scalar(), 1: next_pair})
    )
    ring: dict[str, Any] = {'b': 1}
    ring['a'] = ring
    for read in pair().eval, lambda x: jf.compile(pair()).trace([x]):
        with pytest.raises(jf.InputError, match=r"contains itself, as \[0\]\['a'\]"):
            read((ring, 1))
        text = r"at \[0\]\['a'\]\['a'\]: expected float32\[\], got 'x'"
        with pytest.raises(jf.InputError, match=text):
            read(({'a': {'a': 'x', 'b': 0}, 'b': 1}, 1))
