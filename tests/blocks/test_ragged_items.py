# SPDX-License-Identifier: Apache-2.0
"""Arithmetic, means and indexing of `Ragged` by item; targets laid out like it."""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
import re
from typing import Any

import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from agreement import close
from checking import number, numbers, observed, refuses, same
from meshes import over_devices

import jfold as jf
from jfold.base.errors import short_repr

scaled = jf.Function(
    lambda w, x: jnp.sin(x * w), lambda key, x: jnp.asarray([1.0, 2.0]), name='scaled'
)
PARAMS = {'scaled': jnp.asarray([0.5, -2.0])}
LISTS: list[Any] = [[1, 2], [], [3], [4, 5, 6]]


def applied(block: Any, examples: list[Any], params: Any = None) -> Any:
    model = jf.compile(block)
    return model.apply(params or {}, model.schedule(examples))


def lists(*data: Any, spare: int = 3) -> jf.Ragged:
    values = np.array([*itertools.chain(*data), *[0] * spare], 'float32')
    return jf.Ragged(values, np.array([*map(len, data)], 'int32'))


def test_operators_work_item_by_item() -> None:
    """With numbers on either side, with others of the same lengths; spare rows stay
    zero. So do functions of NumPy, and those of users."""
    x, y = lists([1, 2], [], [4]), lists([3, 5], [], [7], spare=1)
    same((x + y).to_list(), [[4, 7], [], [11]])
    same((1 / x - np.float32(1)).to_list(), [[0, -0.5], [], [-0.75]])
    same((np.ones(()) * -(x**2)).to_list(), [[-1, -4], [], [-16]])
    same((jnp.float32(3) // x).to_list(), [[3, 1], [], [0]])
    same(((x < y) & (x != 2)).to_list(), [[True, False], [], [True]])
    same(np.exp2(x).to_list(), [[2, 4], [], [16]])
    same(x.map(jnp.maximum, y - 3).to_list(), [[1, 2], [], [4]])
    for made in (x + 1, 1 / x, x == 0, x.map(jnp.exp), (x + y) / (y - y)):
        assert not np.asarray(made.values)[3:].any()
    vectors = applied(numbers >> jf.Map(scaled), LISTS, PARAMS)
    same((vectors * np.array([1, 0], 'f4')).sum()[1], np.float32(0))
    assert (vectors @ np.ones((2, 3), 'f4')).values.shape[1:] == (3,)
    pairs = applied(jf.Map(jf.Record((number, number))), [[(1, 2)], [], [(3, 4)]])
    same((pairs + pairs).to_list(), [[(2, 4)], [], [(6, 8)]])
    deep = applied(jf.Map(numbers), [[[1, 2], []], [[3]]])
    same((2 * deep - 1).to_list(), [[[1, 3], []], [[5]]])


def test_items_of_different_shapes() -> None:
    """Each item by itself, also where shapes would fit across the rows."""
    one, v = lists([1, 2], [3], spare=1), np.array([1, 0, 0, 2], 'f4')
    column, four = (one.map(lambda x, y=y: x[:, None] * y) for y in (np.ones(1), v))
    same((column - one).to_list(), [[np.zeros(1, 'f4')] * 2, [np.zeros(1, 'f4')]])
    same((one * four).sum(), v * 14)
    w = np.arange(16, dtype='f4').reshape(4, 4)
    for made in w @ four, jnp.asarray(w) @ four:
        same(made.to_list(), [[w @ v, w @ v * 2], [w @ v * 3]])
    same((four @ w).to_list(), [[v @ w, v @ w * 2], [v @ w * 3]])
    same((v @ four).to_list(), [[5, 10], [15]])
    same((four @ four).to_list(), [[5, 20], [45]])


def test_operators_in_place_and_of_two_results() -> None:
    """The first make another `Ragged`, as of arrays of JAX; of the others none work."""
    x = before = lists([1, 2], [], [4])
    x += 1
    x **= 2
    same(x.to_list(), [[4, 9], [], [25]])
    same(before.to_list(), [[1, 2], [], [4]])
    for wrong in (
        lambda: np.add(x, 1, out=before),
        lambda: np.add(x, 1, dtype='float64'),
    ):
        with pytest.raises(TypeError, match='returned NotImplemented'):
            wrong()
    for two in (lambda: divmod(x, 2), lambda: np.modf(x), lambda: 2 in x):
        with pytest.raises(TypeError, match=r'work item by item, got (np\.|`in`)'):
            two()


@pytest.mark.parametrize('value', [None, 'a', object(), [None]])
def test_what_is_no_number_goes_with_no_item(value: Any) -> None:
    """Of which JAX's own errors show a function's address."""
    for wrong in (operator.eq, operator.ne, operator.add):
        with pytest.raises(TypeError, match='expected a number to go with each item'):
            wrong(lists([1, 2]), value)


def test_many_truths_are_not_one() -> None:
    """As of arrays; else comparisons in chains, `max` and `if` were always true."""
    x = lists([1, 2], [3])
    text = (
        'expected one truth, got those of many items, in Ragged(values=bool[6], '
        'lengths=int32[2]): use `(x > 0).mean()`, or `&` and `|` for item by item'
    )
    for wrong in (lambda: bool(x > 1), lambda: 1 < x < 3, lambda: max(x, x + 1)):
        with refuses(text):
            wrong()


def test_means_and_sums() -> None:
    """Over all items, of real rows alone; of items in tuples and sequences."""
    x = lists([1, 2], [], [6])
    assert (x.mean(), x.sum(), (x > 1).mean()) == (3, 9, np.float32(2 / 3))
    assert lists([], []).mean() == 0
    deep = applied(jf.Map(jf.AllOf(jf.Length(), numbers)), [[[1, 2], []], [[3]]])
    same(jax.tree.map(float, deep.mean()), (1.0, 2.0))
    same(jax.tree.map(float, deep.sum()), (3.0, 6.0))
    assert jax.jit(lambda x: (x + 1).mean())(x) == 4


def test_means_and_sums_of_real_rows_alone() -> None:
    """Losses of spare rows, where logits and targets are zero, are not zero."""
    model = jf.compile(jf.Map(jf.Scalar() >> observed('x')))
    schedule = model.schedule([[1, 2], [], [6]])
    found, metrics = model.apply({}, schedule)
    losses = jf.Ragged(found.values + math.log(2), found.lengths)
    close(losses.sum(), np.float32(9 + 3 * math.log(2)), 1e-6)
    close(losses.mean(), np.float32(3 + math.log(2)), 1e-6)
    nowhere = dataclasses.replace(metrics['x'], values=jnp.log(metrics['x'].values))
    close(nowhere.mean(), np.float32(math.log(12) / 3), 1e-6)
    close(nowhere.sum(), np.float32(math.log(12)), 1e-6)


def test_means_of_what_overflows() -> None:
    """Sums that their dtype cannot hold: of results, of metrics and of sequences."""
    for dtype, value, count in ('float16', 100.0, 1000), ('int32', 1 << 30, 4):
        scalar = jf.Scalar(dtype)
        found, metrics = applied(jf.Map(scalar >> observed('x')), [[value] * count, []])
        model = jf.compile(scalar)
        schedule = model.schedule([value] * count)
        means = found.mean(), metrics['x'].mean()
        for mean in (*means, schedule.mean(model.apply({}, schedule))):
            assert (mean, mean.dtype) == (value, jnp.mean(found.values).dtype)


def test_gradients_of_what_has_none_in_spare_rows() -> None:
    model = jf.compile(numbers >> jf.Map(scaled))
    schedule = model.schedule(LISTS)

    def loss(params: Any, scale: Any) -> Any:
        x = model.apply(params, schedule) ** 2 * scale
        return (np.log(x) / x + x.map(jnp.sqrt)).mean().sum()

    def one_by_one(params: Any, scale: Any) -> Any:
        every = [x**2 * scale for xs in LISTS for x in model.eval(xs, params)]
        return sum((jnp.log(x) / x + jnp.sqrt(x)).sum() for x in every) / len(every)

    found = jax.jit(jax.grad(loss, (0, 1)))(PARAMS, 2.0)
    want = interpreter.called(jax.grad(one_by_one, (0, 1)), PARAMS, 2.0)
    close(found, want, 1e-4)


def test_items_of_examples() -> None:
    x = applied(numbers, LISTS)
    assert len(x) == 4
    assert [items.tolist() for items in x] == LISTS
    assert x[-1].tolist() == x[np.int64(3)].tolist() == [4, 5, 6]
    same(x[1:].to_list(), LISTS[1:])
    same(x[[3, 0, 3]].to_list(), [LISTS[3], LISTS[0], LISTS[3]])
    same(x[jnp.array([True, False, False, True])].to_list(), [LISTS[0], LISTS[3]])
    pair = applied(jf.Map(jf.AllOf(jf.Length(), numbers)), [[[1, 2], []], [[3]]])
    length, inner = pair[0]
    assert length.tolist() == [2, 0]
    same(inner.to_list(), [[1, 2], []])
    assert len(x[[]]) == len(x[np.zeros(4, bool)]) == 0
    with pytest.raises(IndexError, match='index 4 is out of bounds'):
        x[4]
    for wrong in (0, 1), [[0, 1]], True, None, 'a', 1.0, x > 2, (slice(2), 0):
        text = (
            'expected the number of an example, a slice, or a list of numbers or of '
            f'truths, got {short_repr(wrong)}: item `i` of example `k` is `x[k][i]`'
        )
        with refuses(text):
            x[wrong]
    text = (
        'expected a `Ragged` with known lengths to index, got a traced one, in Ragged('
        'values=float32[128], lengths=int32[4]): under `jit`, use `padded(length)`, or '
        '`values` and `mask`'
    )
    with pytest.raises(TypeError, match=re.escape(text)):
        jax.jit(lambda x: x[0])(x)


def test_items_that_do_not_go_together() -> None:
    x, y = lists([1, 2], [4]), lists([1], [4, 5])
    text = 'expected sequences of the same lengths, got 2 and 1 items of example 0'
    with refuses(text, ValueError):
        x + y
    text = (
        'expected sequences of 2 examples, got those of 1: lay them out by '
        '`schedule.ragged(lists)`'
    )
    with refuses(text, ValueError):
        x * lists([1, 2, 4])
    text = (
        'expected what goes with each item, float32[], got [2]: lay out what differs '
        'from item to item by `schedule.ragged(lists)`'
    )
    with refuses(text, ValueError):
        x * np.ones(2)
    with refuses(
        f'expected a `Ragged` like {x}, got 3: `schedule.ragged(lists)` makes one of '
        'lists'
    ):
        x.map(jnp.add, 3)  # type: ignore[arg-type]
    text = (
        'expected results [6, ...], a row for each item, got []: give each item one '
        'row, and leave means to `mean`'
    )
    with refuses(text, ValueError):
        x.map(jnp.mean)
    mixed = applied(jf.Map(jf.AllOf(jf.Length(), numbers)), [[[1, 2], []]])
    with pytest.raises(TypeError, match='expected items of tensors, got sequences'):
        mixed + 1


# ---- targets -------------------------------------------------------------------------

WORDS: list[Any] = [[1, 2], [], [3], [4, 5, 6], [7]]
TAGS: list[Any] = [[0, 2], [], [1], [2, 2, 0], [1]]
cross_entropy = optax.softmax_cross_entropy_with_integer_labels


def scores(w: Any, x: Any) -> Any:
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


def test_a_tagger_is_trained_and_predicts() -> None:
    """Of one program, whose data have no labels."""
    model = jf.compile(tagged, max_programs=1)
    params = model.init(jax.random.key(0))

    @jax.jit
    def loss(params: Any, schedule: jf.Schedule, targets: jf.Ragged) -> Any:
        return model.apply(params, schedule).map(cross_entropy, targets).mean()

    expected = interpreter.called(jax.value_and_grad(loss_of), params)
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
    close(losses.mean(), interpreter.called(loss_of, params), 1e-5)
    found, losses = model.predict(params, [{'words': x} for x in WORDS])
    same(found.to_list(), [tagged.eval(x, params) for x in WORDS])
    assert losses.lengths.tolist() == [0] * len(WORDS)
    pair = jf.compile(jf.Record({'data': number, 'target': jf.Optional(number)}))
    x, target = pair.predict({}, [{'data': 3}, {'data': 4, 'target': 5}])
    assert (x.tolist(), target.tolist()) == ([3, 4], [0, 5])


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


def test_targets_of_other_inner_lengths_are_refused() -> None:
    """Though there are as many in all: they would go with other items."""
    schedule = jf.compile(jf.Map(numbers)).schedule([[[7]], [[1, 2], []]])
    with refuses(
        'expected inner lists as long as the sequences in the result, one of 2 items '
        'in example 1, got one of 1',
        ValueError,
    ):
        schedule.ragged([[[1]], [[1], [2]]])
    deep = jf.Record((number, jf.Map(jf.Map(numbers)))) >> jf.GetItem(1)
    schedule = jf.compile(deep).schedule([(0, [[[1, 2], []], []]), (0, [[[3]]])])
    with refuses(
        'expected inner lists as long as the sequences in the result, one of 2 items '
        'in example 0, got one of 0',
        ValueError,
    ):
        schedule.ragged([[[[], [1, 2]], []], [[[3]]]])


def test_functions_of_numpy_that_are_no_ufuncs_are_refused() -> None:
    """They would take examples of one length for an array."""
    found = jf.Ragged(np.arange(4.0), np.array([2, 2]))
    for call in (np.sum, np.round, np.cumsum, lambda x: np.where(x > 1, x, 0)):
        with pytest.raises(
            TypeError, match=r'expected operators and ufuncs, .*got np.'
        ):
            call(found)
    assert np.maximum(found, 2).to_list() == [[2, 2], [2, 3]]


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
