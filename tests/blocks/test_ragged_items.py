# SPDX-License-Identifier: Apache-2.0
"""Arithmetic, means and indexing of `Ragged`, item by item."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import close
from checking import number, numbers, observed, refuses, same

import jfold as jf
from jfold.base.errors import short_repr

scaled = jf.Function(
    lambda w, x: jnp.sin(x * w), lambda key, x: jnp.asarray([1.0, 2.0]), name='scaled'
)
PARAMS = {'scaled': jnp.asarray([0.5, -2.0])}
LISTS: list[Any] = [[1, 2], [], [3], [4, 5, 6]]


def applied(block: Any, examples: list[Any], params: Any = None) -> Any:
    """What a model gives."""
    model = jf.compile(block)
    return model.apply(params or {}, model.schedule(examples))


def lists(*data: Any, spare: int = 3) -> jf.Ragged:
    """Lists of floats, with spare rows."""
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
        lambda: divmod(x, 2),
        lambda: np.modf(x),
        lambda: np.add(x, 1, out=before),
        lambda: np.add(x, 1, dtype='float64'),
    ):
        with pytest.raises(TypeError, match='returned NotImplemented'):
            wrong()


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
    """Logarithms and quotients of nothing."""
    model = jf.compile(numbers >> jf.Map(scaled))
    schedule = model.schedule(LISTS)

    def loss(params: Any, scale: Any) -> Any:
        x = model.apply(params, schedule) ** 2 * scale
        return (np.log(x) / x + x.map(jnp.sqrt)).mean().sum()

    def one_by_one(params: Any, scale: Any) -> Any:
        every = [x**2 * scale for xs in LISTS for x in model.eval(xs, params)]
        return sum((jnp.log(x) / x + jnp.sqrt(x)).sum() for x in every) / len(every)

    found = jax.grad(loss, (0, 1))(PARAMS, 2.0)
    close(found, jax.grad(one_by_one, (0, 1))(PARAMS, 2.0), 1e-4)


def test_items_of_examples() -> None:
    """By number, and several at once."""
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
        'expected results [6, ...], a row for each item, got []: leave means to `mean`'
    )
    with refuses(text, ValueError):
        x.map(jnp.mean)
    mixed = applied(jf.Map(jf.AllOf(jf.Length(), numbers)), [[[1, 2], []]])
    with pytest.raises(TypeError, match='expected items of tensors, got sequences'):
        mixed + 1
