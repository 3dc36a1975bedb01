# SPDX-License-Identifier: Apache-2.0
"""Targets of sequences: laid out as results lie, or absent where nothing is learned."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from agreement import close
from checking import number, numbers, refuses, same
from meshes import over_devices

import jfold as jf

WORDS: list[Any] = [[1, 2], [], [3], [4, 5, 6], [7]]
TAGS: list[Any] = [[0, 2], [], [1], [2, 2, 0], [1]]
cross_entropy = optax.softmax_cross_entropy_with_integer_labels


def scores(w: Any, x: Any) -> Any:
    """Three for a word."""
    return jnp.sin(w * x)


tagged = jf.Map(number >> jf.Function(scores, lambda key, x: jnp.array([0.5, 1, 2])))


def loss_of(params: Any) -> Any:
    """The mean loss of a word, by the twin."""
    pairs = zip(WORDS, TAGS, strict=True)
    losses = [
        cross_entropy(x, tag)
        for words, tags in pairs
        for x, tag in zip(tagged.eval(words, params), tags, strict=True)
    ]
    return sum(losses) / len(losses)


# ---- one model that learns and predicts ----------------------------------------------


def test_a_tagger_is_trained_and_predicts() -> None:
    """Of one program, whose data have no labels."""
    model = jf.compile(tagged, max_programs=1)
    params = model.init(jax.random.key(0))

    @jax.jit
    def loss(params: Any, schedule: jf.Schedule, targets: jf.Ragged) -> Any:
        return model.apply(params, schedule).map(cross_entropy, targets).mean()

    expected = jax.value_and_grad(loss_of)(params)
    for batch in model.batches(model.trace(WORDS), 8):
        targets = batch.schedule.ragged([TAGS[i] for i in batch.indices])
        found = jax.value_and_grad(loss)(params, batch.schedule, targets)
        close(found, expected, 1e-5)
    found = model.predict(params, WORDS, batch_size=8)
    same(found.to_list(), [tagged.eval(x, params) for x in WORDS])
    guesses = found.map(lambda x: x.argmax(-1))
    right = guesses == jf.Ragged(np.array([0, 2, 1, 2, 2, 0, 1]), found.lengths)
    assert 0 <= right.mean() <= 1


def test_labels_that_data_lack() -> None:
    """A loss within the expression has none of such examples, whose tags are empty."""

    @jf.compose
    def learner(data: Any) -> Any:
        found = tagged(jf.GetItem('words')(data))
        tags = jf.Optional(jf.Map(jf.Scalar('int32')))
        known = tags(jf.GetItem('tags', default=None)(data))
        return found, jf.ZipWith(jf.Function(cross_entropy))(found, known)

    model = jf.compile(learner)
    params = model.init(jax.random.key(0))
    both = [{'words': x, 'tags': y} for x, y in zip(WORDS, TAGS, strict=True)]
    _, losses = model.apply(params, model.schedule(both))
    close(losses.mean(), loss_of(params), 1e-5)
    found, losses = model.predict(params, [{'words': x} for x in WORDS])
    same(found.to_list(), [tagged.eval(x, params) for x in WORDS])
    assert losses.lengths.tolist() == [0] * len(WORDS)
    pair = jf.compile(jf.Record({'data': number, 'target': jf.Optional(number)}))
    x, target = pair.predict({}, [{'data': 3}, {'data': 4, 'target': 5}])
    assert (x.tolist(), target.tolist()) == ([3, 4], [0, 5])


# ---- laid out ------------------------------------------------------------------------


@pytest.mark.parametrize('size', [5, 9])
def test_targets_lie_as_results_do(size: int) -> None:
    """With spare rows, for which lists may be given or not."""
    model = jf.compile(numbers)
    schedule = model.schedule(WORDS, size=size)
    found = model.apply({}, schedule)
    for lists in (WORDS, [*WORDS, *[[9, 9]] * (size - 5)], map(tuple, WORDS)):
        targets = schedule.ragged(lists)
        assert targets.values.dtype == 'int32'
        assert isinstance(targets.values, np.ndarray)
        assert targets.lengths.tolist() == found.lengths.tolist()
        np.testing.assert_array_equal(targets.values, found.values)


def test_targets_of_any_kind() -> None:
    """Vectors, truths; of a type, also where there are none."""
    schedule = jf.compile(numbers).schedule([[1], [2, 3]])
    vectors = schedule.ragged([[np.ones(2)], [[3, 4], (5.0, 6)]])
    assert vectors.values[:4].tolist() == [[1, 1], [3, 4], [5, 6], [0, 0]]
    assert vectors.values.dtype == 'float32'
    assert schedule.ragged([[True], [False, True]]).values.dtype == bool
    assert schedule.ragged([[1], [2, 3]], 'float16').values.dtype == 'float16'
    none = jf.compile(numbers).schedule([[], []])
    assert none.ragged([[], []], [3, 'int32']).values.shape[1:] == (3,)
    assert none.ragged([[], []]).values.dtype == 'float32'
    with jax.enable_x64(True):
        assert schedule.ragged([[1], [2, 3]]).values.dtype == 'int64'


def test_targets_of_sequences_of_sequences() -> None:
    """One for each item of theirs, or one for each of them."""
    data = [[[1, 2], []], [], [[3]]]
    model = jf.compile(jf.Map(numbers))
    schedule = model.schedule(data, size=4)
    found, targets = model.apply({}, schedule), schedule.ragged(data)
    assert (found - targets).sum() == 0
    same((found * targets).to_list(), [[[1, 4], []], [], [[9]], []])
    same(schedule.ragged([[5, 6], [], [7]]).to_list(), [[5, 6], [], [7], []])
    deep = jf.compile(jf.Map(jf.Map(numbers)))
    data = [[[[1], [2, 3]], []], [[[4, 5]]]]
    same(deep.schedule(data).ragged(data).to_list(), data)


def test_targets_of_one_of_several_sequences() -> None:
    """That which has such lengths, wherever it is in the value."""
    block = jf.Record((numbers, jf.Record((number, numbers)), jf.Void()))
    model = jf.compile(block)
    data = [([1, 2], (0, [3]), 0), ([4], (0, [5, 6]), 0)]
    schedule = model.schedule(data)
    first, (_, second), _ = model.apply({}, schedule)
    for each in (first, second):
        assert (each * schedule.ragged(each.to_list())).sum() == (each * each).sum()


def test_targets_of_shards() -> None:
    """In the order of the rows; as results are handed out."""
    sharding = over_devices()
    model = jf.compile(numbers)
    for batch in model.batches(WORDS, 8, sharding=sharding):
        found = model.apply({}, batch.schedule)
        targets = batch.schedule.ragged([WORDS[i] for i in batch.indices])
        assert targets.lengths.tolist() == found.lengths.tolist()
        np.testing.assert_array_equal(targets.values, found.values)
        assert jax.jit(lambda x, y: (x - y).sum())(found, targets) == 0


def test_targets_are_converted_as_strictly_as_data() -> None:
    """Nothing wraps, is cut off, read from text, or loses its order or its mask."""
    schedule = jf.compile(numbers).schedule([[1], [2, 3]])
    cases: list[tuple[Any, Any, str]] = [
        (2**31, None, 'target 0: expected int32[], got 2147483648, which int32'),
        (np.array(300), 'int8', 'target 0: expected int8[], got array(300) (ndarray)'),
        (1.7, 'int32', 'target 0: expected int32[], got 1.7, which int32 cannot hold'),
        (2, 'bool', 'target 0: expected bool[], got 2, which bool cannot hold'),
        (1e300, None, 'target 0: expected float32[], got 1e+300, which float32'),
        (None, 'float32', 'target 0: expected float32[], got None'),
        ('12.5', 'float32', "target 0: expected float32[], got '12.5'"),
        (np.ma.masked, 'float32', 'target 0: expected float32[], got masked'),
        (np.ma.masked, None, 'expected numbers, or arrays of one shape, as items'),
        (1, 'float64', "expected `type` as that of a dtype such as float32, got 'flo"),
    ]
    for target, type_, text in cases:
        with pytest.raises(TypeError, match=re.escape(text)):
            schedule.ragged([[target], [0, 1]], type_)
    for targets in {1: 2}, {1}, '1', np.array(1), None:
        with pytest.raises(TypeError, match='expected `lists` as a list for each exa'):
            schedule.ragged([targets, [0, 1]], 'int32')
    half = schedule.ragged([[jnp.bfloat16(1.5)], [2, 3]], 'bfloat16')
    assert half.values[:3].tolist() == [1.5, 2, 3]
    halves = [[jnp.bfloat16(1.5)], [jnp.bfloat16(2), jnp.bfloat16(3)]]
    assert schedule.ragged(halves).values.tolist() == half.values.tolist()


def test_targets_that_do_not_fit() -> None:
    schedule = jf.compile(numbers).schedule([[1], [2, 3]], size=3)
    for lists, text in {
        ((1,),): 'expected a list for each of 2 examples, got 1',
        ((1,), (2,)): (
            'expected as many items as the result has, 2 of example 1, got 1'
        ),
    }.items():
        with refuses(text, ValueError):
            schedule.ragged(lists)
    for lists, text in {
        ((1,), (2, 'a')): (
            "expected numbers, or arrays of one shape, as items, got 1, 2, 'a': turn "
            'them into numbers before'
        ),
        (1, 2): 'expected `lists` as a list for each example, got 1',
    }.items():
        with refuses(text):
            schedule.ragged(lists)  # type: ignore[arg-type]
    with refuses('target 0: expected int32[2], got 1 of shape ()'):
        schedule.ragged([[1], [2, 3]], [2, 'int32'])
    with refuses("expected `type` as that of a tensor, got ('int32', 2) (tuple)"):
        schedule.ragged([[1], [2, 3]], ('int32', 2))
    text = (
        'expected a schedule of a model whose result is, or holds, a sequence, got one '
        'of others: give targets [examples, ...] as an array'
    )
    with refuses(text):
        jf.compile(number).schedule([1]).ragged([[1]])
    text = (
        'expected a schedule with known values, got a traced one: call `ragged` '
        'before, and pass what it returns to the function under `jit`'
    )
    with pytest.raises(TypeError, match=re.escape(text)):
        jax.jit(lambda schedule: schedule.ragged([[1], [2, 3]]))(schedule)
