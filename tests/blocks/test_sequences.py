# SPDX-License-Identifier: Apache-2.0
"""What each block of control, sequences and metrics means, by example."""

from __future__ import annotations

import collections
import enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checking import (
    add,
    check,
    check_eager,
    number,
    numbers,
    observed,
    same,
    subtract,
    whole,
)

import jfold as jf

# ---- control -------------------------------------------------------------------------


class Color(enum.Enum):
    """Keys that are neither strings nor numbers."""

    RED = 1
    BLUE = 2


def test_one_of() -> None:
    negated = number >> jnp.negative
    first, rest = jf.GetItem(0), jf.GetItem(1)
    by_color = [(Color.RED, negated), (Color.BLUE, number)]
    colors = [(Color.RED, 1), (Color.BLUE, 2)]
    by_type = {int: number, list: numbers >> jf.Sum()}
    by_sign = {True: number, False: negated}
    one_key = [('a', number), ('a', negated)]
    check(
        (jf.OneOf(lambda x: x > 0, by_sign), [1, -2], [1.0, 2.0]),
        (jf.OneOf(lambda x: int(x > 0), by_sign), [-2], [2.0]),
        (jf.OneOf(lambda x: x > 0, {1: number, 0: negated}), [1, -2], [1.0, 2.0]),
        (jf.OneOf(lambda x: np.bool_(x > 0), (negated, number)), [1, -2], [1.0, 2.0]),
        (jf.OneOf(type, by_type), [1, [1, 2]], [1.0, 3.0]),
        (jf.OneOf(first, by_color, rest), colors, [-1.0, 2.0]),
        (jf.OneOf(first, [number, negated], rest), [(0, 1), (1, 1)], [1.0, -1.0]),
        (jf.OneOf(lambda x: x, one_key, jf.InputTransform(ord)), ['a'], [-97.0]),
        (jf.OneOf(str, {'1': number}), [1], [1.0]),
    )


def test_one_of_a_key_block_on_typed_data() -> None:
    pair = jf.Record((jf.Identity(), number))
    flipped = jf.OneOf(
        jf.GetItem(0), {'+': jf.Identity(), '-': jnp.negative}, jf.GetItem(1)
    )
    of_pair = {'+': jf.GetItem(1), '-': jf.GetItem(1) >> jnp.negative}
    data, expected = [('+', 1), ('-', 2)], [1.0, -2.0]
    check(
        (pair >> flipped, data, expected),
        (pair >> jf.OneOf(jf.GetItem(0), of_pair), data, expected),
    )


def test_one_of_gives_tuples_and_sequences() -> None:
    cases = {'pair': jf.AllOf(jf.Length(), jf.Zeros(2)), 'none': jf.Zeros(([], 2))}
    lists = {'some': jf.GetItem(1) >> numbers, 'none': jf.Zeros(jf.SequenceType([]))}
    pairs = [(4.0, [0, 0]), (0.0, [0, 0])]
    folded = jf.OneOf(jf.GetItem(0), lists)
    folded >>= jf.Fold(lambda s, x: 2 * s + x, jf.Zeros([]))
    data = [('some', [1, 2]), ('none',), ('some', []), ('some', [3])]
    check(
        (jf.OneOf(lambda x: x, cases), ['pair', 'none'], pairs),
        (folded, data, [4.0, 0.0, 0.0, 3.0]),
    )


def test_optional() -> None:
    size = jf.InputTransform(len) >> number
    minus = jf.FromTensor(np.float32(-1))
    nothing = jf.Optional(jf.Record((number, numbers >> jf.Sum())))
    check(
        (jf.Optional(number), [1, None, 0, False], [1.0, 0.0, 0.0, 0.0]),
        (jf.Optional(size, minus), ['', None, 'ab', []], [0.0, -1.0, 2.0, 0.0]),
        (nothing, [None, (1, [2])], [(0.0, 0.0), (1.0, 2.0)]),
        (jf.Optional(numbers) >> jf.Sum(), [None, [1, 2], []], [0.0, 3.0, 0.0]),
        (jf.Optional(jf.Optional(number), minus), [None, 2], [-1.0, 2.0]),
        ({'a': jf.Optional(number)} >> jf.GetItem(0), [{'a': None}], [0.0]),
        (jf.AllOf(jf.Optional(number >> jf.Void()), number), [1], [(None, 1.0)]),
    )
    check_eager((jf.Optional(numbers), [None, [1]], [[], [1.0]]))


def test_recursion() -> None:
    tree, expression = jf.ForwardDeclaration(), jf.ForwardDeclaration(name='expression')
    pair = jf.Record((tree(), tree())) >> subtract
    tree.resolve_to(jf.OneOf(type, {tuple: pair, int: number}))
    cases = {'+': add, '-': subtract, '*': jnp.multiply}
    binary = [
        (k, jf.Record({1: expression(), 2: expression()}) >> f)
        for k, f in cases.items()
    ]
    literal = ('n', jf.GetItem(1) >> number)
    expression.resolve_to(jf.OneOf(lambda x: x[0], [*binary, literal]))
    n = [('n', i) for i in range(5)]
    sums = [
        ('+', ('*', n[2], n[3]), ('-', n[4], n[1])),
        n[3],
        ('-', n[1], ('+', n[1], n[1])),
    ]
    check(
        (tree(), [1, (1, (2, 3)), ((1, 2), 3)], [1.0, 2.0, -4.0]),
        (expression(), sums, [9.0, 3.0, -1.0]),
        (jf.Map(tree()) >> jf.Sum(), [[1, (5, 2)], []], [4.0, 0.0]),
    )


def test_mutual_recursion_over_lists() -> None:
    even = jf.ForwardDeclaration(name='even')
    odd = jf.ForwardDeclaration(output_type='float32', name='odd')
    even.resolve_to({'n': number, 'items': jf.Map(odd()) >> jf.Sum()} >> add)
    odd.resolve_to({'n': number, 'items': jf.Map(even()) >> jf.Sum()} >> subtract)
    leaf = {'n': 1, 'items': []}
    tree = {'n': 10, 'items': [leaf, {'n': 5, 'items': [leaf, leaf]}]}
    check((even(), [leaf, tree], [1.0, 14.0]), (odd(), [leaf, tree], [1.0, 2.0]))


def test_recursion_on_tuples_made_of_objects() -> None:
    tree = jf.ForwardDeclaration()
    pair = jf.Record((tree(), tree())) >> subtract
    node = jf.AllOf(jf.GetItem('left'), jf.GetItem('right')) >> tree()
    halves = jf.GetItem('items') >> jf.Map(jf.InputTransform(abs)) >> tree()
    by_type = {
        tuple: pair,
        list: pair,
        int: number,
        dict: jf.OneOf(len, (halves,) * 2 + (node,)),
    }
    tree.resolve_to(jf.OneOf(type, by_type))
    data = [1, {'left': 5, 'right': (1, 2)}, {'items': [-3, -7]}]
    check((tree(), data, [1.0, 6.0, -4.0]))


def test_recursion_that_gives_tuples_and_sequences() -> None:
    tree = jf.ForwardDeclaration(output_type=('float32', jf.SequenceType('float32')))
    children = jf.GetItem('items') >> jf.Map(tree() >> jf.GetItem(0))
    total = jf.AllOf(jf.GetItem('n') >> number, children)
    tree.resolve_to(total >> jf.Record((jf.Identity(), jf.Identity())))
    last = tree() >> jf.GetItem(1) >> jf.Sum()
    leaf = {'n': 1, 'items': []}
    check(
        (last, [leaf, {'n': 2, 'items': [leaf, {'n': 4, 'items': [leaf]}]}], [0.0, 5.0])
    )


# ---- sequences -----------------------------------------------------------------------


def test_map_takes_whatever_is_iterable() -> None:
    total = numbers >> jf.Sum()
    lists = [
        [1, 2],
        (1, 2),
        np.array([1.0, 2.0]),
        {1: 'a', 2: 'b'}.keys(),
        range(1, 3),
        {1: 5, 2: 6}.values(),
        collections.deque([5]),
        b'ab',
        [],
    ]
    rows = jf.Map(jf.Vector(2)) >> jf.Sum()
    letters = jf.Map(jf.InputTransform(ord) >> number) >> jf.Sum()
    check(
        (total, lists, [3.0] * 5 + [11.0, 5.0, 195.0, 0.0]),
        (letters, ['ab', ''], [195.0, 0.0]),
        (rows, [np.arange(4).reshape(2, 2), [[1, 2]]], [[2, 4], [1, 2]]),
        (jf.Map(jf.Map(number) >> jf.Sum()) >> jf.Sum(), [[[1], [], [2, 3]]], [6.0]),
        (numbers >> jf.Map(jnp.negative) >> jf.Sum(), [[1, 2]], [-3.0]),
    )
    check_eager((numbers, [[1, 2], []], [[1.0, 2.0], []]))


def test_a_length_that_lies_is_not_believed() -> None:
    class Lying(list[int]):
        def __len__(self) -> int:
            return 3

    model = jf.compile(numbers >> jf.Sum())
    got = model.apply({}, model.schedule([Lying([1, 2]), [3]]))
    assert got.tolist() == [3, 3]


def test_map_over_objects_made_by_map() -> None:
    halves = jf.Map(jf.AllOf(jf.InputTransform(abs), jf.Identity()))
    sums = jf.Map(jf.InputTransform(sum) >> number) >> jf.Sum()
    check(
        (halves >> sums, [[-1, 2]], [4.0]),
        (halves >> jf.Map((number, number) >> subtract) >> jf.Sum(), [[-1, 2]], [2.0]),
        (halves >> jf.InputTransform(len) >> number, [[-1, 2]], [2.0]),
    )


def test_fold_combines_state_and_item() -> None:
    def step(state: Any, item: Any) -> Any:
        return 10 * state + item

    start, zero = jf.FromTensor(np.float32(7)), jf.Zeros([])
    typed = (number, number, number) >> jf.Fold(step, jf.Zeros([]))
    count = jf.Fold(jf.GetItem(0) >> (lambda n: n + 1), jf.Zeros('int32'))
    to_vector = jf.Fold(jf.Record((jf.Identity(), number)) >> add, jf.Zeros(2))
    check(
        (numbers >> jf.Fold(step, zero), [[1, 2, 3], [4], []], [123.0, 4.0, 0.0]),
        (numbers >> jf.Fold(step, start), [[1, 2], []], [712.0, 7.0]),
        (jf.Fold((jf.Identity(), number) >> jf.Function(step), start), [(1,)], [71.0]),
        (typed, [(1, 2, 3)], [123.0]),
        (count, ['four', range(3), []], [np.int32(4), np.int32(3), np.int32(0)]),
        (to_vector, [[1, 2], []], [[3, 3], [0, 0]]),
        (jf.Map(numbers >> jf.Fold(step, start)) >> jf.Sum(), [[[1], []]], [78.0]),
    )


def test_fold_with_a_tuple_as_state() -> None:
    def step(state: Any, item: Any) -> Any:
        low, high = state
        return jnp.minimum(low, item), jnp.maximum(high, item)

    both = numbers >> jf.Fold(step, jf.Zeros(([], [])))
    check((both, [[3, -2, 1], []], [(-2.0, 3.0), (0.0, 0.0)]))


def test_a_fold_inside_a_fold() -> None:
    inner = jf.Fold((jf.Identity(), number) >> add, jf.Zeros([]))
    outer = jf.Fold((jf.Identity(), inner) >> subtract, jf.Zeros([]))
    check((outer, [[[1, 2], [3]], [], [[]]], [-6.0, 0.0, 0.0]))


def test_reduce_of_a_tuple_is_balanced() -> None:
    golden = [0, 1, -1, -4, 0, -5, 1, 8, 0]
    cases = []
    for n in range(1, 9):
        block = jf.Record((number,) * n) >> jf.Reduce(subtract)
        cases.append((block, [tuple(range(1, n + 1))], [float(golden[n])]))
    check(*cases)


def test_reduce_of_one_and_of_none() -> None:
    never = jf.Reduce(lambda a, b: a * 0, jf.FromTensor(np.float32(5)))
    pairs = jf.Map((number, jf.Vector(2)))
    both = jf.Reduce(lambda a, b: (a[0] + b[0], a[1] * b[1]))
    two = [(1, [2, 3]), (1, [4, 5])]
    check(
        (numbers >> never, [[3], []], [3.0, 5.0]),
        (pairs >> both, [two, []], [(2.0, [8, 15]), (0.0, [0, 0])]),
        (jf.Map(jf.Vector(2)) >> jf.Sum(), [[], [[1, 2]]], [[0, 0], [1, 2]]),
    )


def test_sum_max_min_length() -> None:
    low = jf.FromTensor(np.float32(-np.inf))
    lists = [[3, -1, 2], [-5], []]
    check(
        (numbers >> jf.Max(default=low), lists, [3.0, -5.0, -np.inf]),
        (numbers >> jf.Min(low), lists, [-1.0, -5.0, -np.inf]),
        (jf.Map(whole) >> jf.Max(), lists, [np.int32(x) for x in (3, -5, 0)]),
        ((number, number) >> jf.Max(), [(1, 2)], [2.0]),
        (jf.Length(), [[1, 2], 'abc', {}, {1}], [np.float32(x) for x in (2, 3, 0, 1)]),
        (numbers >> jf.Length('int32'), lists, [np.int32(x) for x in (3, 1, 0)]),
        ((number, number) >> jf.Length(), [(1, 2)], [2.0]),
        (jf.Record(()) >> jf.Length(), [0], [0.0]),
    )


def test_mean() -> None:
    halves = jf.Map(jf.Scalar('float16')) >> jf.Mean()
    check(
        (numbers >> jf.Mean(), [[1, 2], [5], []], [np.float32(x) for x in (1.5, 5, 0)]),
        (jf.Map(jf.Vector(2)) >> jf.Mean(), [[[1, 2], [3, 4]], []], [[2, 3], [0, 0]]),
        (halves, [[1, 2], [0.25] * 2100], [np.float16(1.5), np.float16(0.25)]),
        (jf.Map(whole) >> jf.Mean(), [[1, 2], []], [np.float32(1.5), np.float32(0)]),
        ((number, number) >> jf.Mean(), [(1, 2)], [1.5]),
    )


def test_means_of_what_wraps() -> None:
    """Sums that their dtype cannot hold, and truths, whose sum is no count."""
    third = np.float32(1) / 3
    check(
        (jf.Map(jf.Scalar('uint8')) >> jf.Mean(), [[200] * 4], [np.float32(200)]),
        (jf.Map(whole) >> jf.Mean(), [[1 << 30] * 4], [np.float32(1 << 30)]),
        (jf.Map(jf.Scalar('bool')) >> jf.Mean(), [[True, True, False]], [third * 2]),
    )


def test_double_precision() -> None:
    with jax.enable_x64(True):
        double = jf.Map(jf.Scalar('float64'))
        third = np.float64(1) / 3
        check(
            (double >> jf.Mean(), [[third, third], []], [third, np.float64(0)]),
            (jf.Scalar('int64'), [2**53 + 1], [np.int64(2**53 + 1)]),
            (jf.FromTensor(np.ones(2)), [0], [np.ones(2)]),
            (numbers >> jf.Length('float64'), [[1]], [np.float64(1)]),
        )


@pytest.mark.parametrize('inner', [{5: 1}, {3.0, 4.0}])
def test_items_of_a_list_that_its_class_chose_are_read_strictly(inner: Any) -> None:
    total = jf.Map(jf.Map(jf.Scalar()) >> jf.Sum()) >> jf.Sum()
    block = jf.OneOf(type, {list: total})
    assert block.eval([[1, 2], (3,)]) == 6
    model = jf.compile(block)
    model.schedule([[[1, 2], (3,)]])
    for read in block.eval, lambda example: model.schedule([example]):
        with pytest.raises(jf.InputError, match='expected a sequence'):
            read([inner])


# ---- metrics -------------------------------------------------------------------------


def test_metrics() -> None:
    block = jf.Map(number >> observed('item')) >> jf.Sum() >> observed('sum')
    model = jf.compile(block)
    lists = [[1, 2, 3], [], [4]]
    values, metrics = model.apply({}, model.schedule(lists))
    assert values.tolist() == [6, 0, 4]
    assert list(metrics) == ['item', 'sum']
    item = metrics['item']
    assert item.values[item.mask].tolist() == [1, 2, 3, 4]
    assert item.example[item.mask].tolist() == [0, 0, 0, 2]
    assert set(item.example[~item.mask].tolist()) <= {3}
    assert not item.values[~item.mask].any()
    assert item.mask.sum() == 4
    assert (item.sum(), item.mean()) == (10, 2.5)
    assert metrics['sum'].sum() == 10
    by_example = jax.ops.segment_sum(item.values, item.example, num_segments=3)
    assert by_example.tolist() == [6, 0, 4]
    assert block.eval([1, 2]) == (3, {'item': [1, 2], 'sum': [3]})


def test_a_metric_of_a_tuple_in_a_recursion() -> None:
    tree = jf.ForwardDeclaration()
    pair = jf.Record((tree(), tree())) >> observed('pairs') >> add
    tree.resolve_to(jf.OneOf(type, {tuple: pair, int: number}))
    model = jf.compile(tree() >> jf.Void())
    none, metrics = model.apply({}, model.schedule([(1, (2, 3)), 4, ((5, 6), 7)]))
    assert none is None
    pairs = metrics['pairs']
    left, right = (x[pairs.mask].tolist() for x in pairs.values)
    assert pairs.example[pairs.mask].tolist() == [0, 0, 2, 2]
    rows = sorted(zip(left, right, strict=True))
    assert rows == [(1, 5), (2, 3), (5, 6), (11, 7)]
    same(pairs.sum(), (19.0, 21.0))
    same(pairs.mean(), (19 / 4, 21 / 4))


def test_a_metric_that_meets_nothing() -> None:
    model = jf.compile(jf.Map(number >> jf.Metric('m')) >> jf.Length())
    values, metrics = model.apply({}, model.schedule([[], []]))
    assert values.tolist() == [0, 0]
    assert not metrics['m'].mask.any()
    assert (metrics['m'].sum(), metrics['m'].mean()) == (0, 0)
    assert (jf.Map(number >> jf.Metric('m')) >> jf.Length()).eval([]) == (0, {'m': []})
