# SPDX-License-Identifier: Apache-2.0
"""Lazy functions at their edges: what calls take, what is shared, empty lists."""

from __future__ import annotations

import copy
import gc
import re
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from eagerly import eagerly
from lazy_results import results

import jfold as jf

add = jf.Function(jnp.add)
tanh = jf.Function(jnp.tanh)


# ---- what calls take -----------------------------------------------------------------


class Linked:
    """An object whose attribute has the name of one of a value."""

    def __init__(self, node: object) -> None:
        self.node = node


@pytest.mark.parametrize('node', [3, None, (), ([], 1)])
def test_data_may_have_an_attribute_called_node(node: object) -> None:
    read = jf.InputTransform(lambda x: 1.5) >> jf.Scalar()

    @jf.lazy
    def twice(x: object) -> Any:
        return add(read(x), read(x))

    assert results(twice, [Linked(node)]) == [3.0]


def test_data_may_contain_themselves() -> None:
    read = jf.InputTransform(lambda x: x['value']) >> jf.Scalar()
    example: dict[str, Any] = {'value': 2.0, 'next': [1, {'a': 1}]}
    example['next'].append(example)

    @jf.lazy
    def value(x: object) -> Any:
        return read(x)

    model = jf.compile(value, like=[example])
    assert model.apply({}, model.schedule([example])).tolist() == [2.0]


def test_copies_of_values_are_the_values() -> None:
    @jf.lazy
    def doubled(x: float) -> Any:
        stack = [jf.float32(x)]
        return add(copy.copy(stack[0]), copy.deepcopy(stack)[0])

    assert results(doubled, [1.0, 2.5]) == [2.0, 5.0]


def test_blocks_that_take_values_take_empty_lists_and_numbers() -> None:
    """Wherever the first empty list is, and however deep."""
    total = jf.Map(tanh) >> jf.Sum()
    pairs = jf.Zip() >> jf.Map(add) >> jf.Sum()
    again = tanh >> tanh
    children = jf.Sum()

    @jf.lazy
    def count(tree: list[Any]) -> Any:
        if tree == [None]:
            return jf.float32(2.0)
        return add(1.0, children([count(child) for child in tree]))

    @jf.lazy
    def mixed(numbers: list[float]) -> Any:
        values = [jf.float32(x) for x in numbers]
        return add(total(values), pairs(values, values)), again(0.0)

    trees: list[list[Any]] = [[], [[None]], [[], [[None], []]], [[]]]
    assert results(count, trees) == [1.0, 3.0, 6.0, 2.0]
    assert results(count, trees[::-1]) == [2.0, 6.0, 3.0, 1.0]
    for numbers in ([[], [0.0, 0.0]], [[0.0, 0.0], []]):
        assert results(mixed, numbers) == [(0.0, 0.0)] * 2


def test_blocks_that_take_data_still_take_numbers_and_empty_lists() -> None:
    vector, length = jf.Vector(2), jf.Length()

    @jf.lazy
    def both(x: Any) -> Any:
        return vector(np.ones(2)), length([]), length(x)

    assert results(both, [[1, 2], []]) == [([1.0, 1.0], 0.0, n) for n in (2.0, 0.0)]


def test_a_block_on_empty_lists_alone_has_no_type() -> None:
    children = jf.Sum()

    @jf.lazy
    def count(tree: list[Any]) -> Any:
        return add(1.0, children([count(child) for child in tree]))

    text = (
        'expected a list with items, which tell its type, got an empty one before .* '
        r'or leave the call out: `f\(items\) if items else zeros`'
    )
    with pytest.raises(TypeError, match=text):
        jf.compile(count, like=[[], [[]]])
    length = jf.Length()

    @jf.lazy
    def lengths(number: float) -> Any:
        value = jf.float32(number)
        return length([value]) + length(([], [value]))

    with pytest.raises(TypeError, match=text):
        jf.compile(lengths, like=[1.0])


def test_a_sum_in_a_recursion_begins_with_zeros() -> None:
    """It comes first to a node without children, whose list has no items."""
    total, zeros = jf.Sum(), np.zeros(2, 'float32')

    @jf.lazy(share=True)
    def begun(node: Any) -> Any:
        return total([zeros, *map(begun, node)]) + 1

    node: list[Any] = []
    assert results(begun, [[node, node], node]) == [[3, 3], [1, 1]]


def test_lists_of_constants_are_no_data() -> None:
    total, squares = jf.Sum(), jf.Map(jf.Function(jnp.square)) >> jf.Sum()

    @jf.lazy
    def sums(numbers: Any) -> Any:
        return total([1.0, 2.0]), squares([*map(jf.float32, numbers), 2.0])

    assert results(sums, [[3], [1, 1], []]) == [(3, 13), (3, 6), (3, 4)]


def test_blocks_without_inputs_are_called_on_nothing() -> None:
    constant = jf.FromTensor(np.array([1, 2], 'float32'))
    start = jf.Function(lambda: jnp.ones(2))

    @jf.lazy
    def sums(number: float) -> Any:
        return constant() + start() if number > 1 else constant()

    assert results(sums, [1.0, 2.0]) == [[1, 2], [2, 3]]


def test_a_function_behind_another_is_learned_where_it_stands_alone() -> None:
    ends = jf.AllOf(jf.GetItem(0), jf.GetItem(1) >> inner)
    block = jf.AllOf(jf.AllOf(power_of_two, jf.Identity()) >> ends, inner)
    model = jf.compile(block, like=[3.0])
    assert model.eval(3.0) == ((9.0, 3.0), 3.0)


def test_modules_of_flax_are_wrapped_before_they_are_called() -> None:
    dense = nn.Dense(2)
    with pytest.raises(Exception, match='unbound') as error:
        jf.compile(jf.lazy(lambda x: dense(jf.tensor([x, x]))), like=[1.0])
    expected = 'in `function`: expected blocks to be called, got a module of Flax: '
    assert error.value.__notes__[0].startswith(expected)


@jf.lazy
def inner(x: float) -> Any:
    return jf.float32(x)


@jf.lazy(share=True)
def power(x: float, n: int) -> Any:
    return jf.float32(x**n)


@jf.lazy
def power_of_two(x: float) -> Any:
    return power(x, 2)


every, again = jf.Map(inner), tanh >> tanh
REFUSED: dict[str, tuple[Any, Any]] = {
    r'got lazy\(inner\); call that itself, for a Map as `\[f\(x\) for x in xs\]`': (
        lambda x: every(x)[0],
        [1.0],
    ),
    "got 'a': look up its number first": (lambda x: add(again(x), 1.0), 'a'),
    'compose blocks outside the lazy function': (
        lambda x: jf.compose(lambda x: tanh(tanh(x)))(jf.float32(x)),
        1.0,
    ),
    'expected an index of ints, got a value; wri': (
        lambda x: jf.tensor(x)[: jf.tensor(x)[0]],
        np.ones(3),
    ),
    r'lazy\(power\): .* got n by name': (lambda x: power(x, n=2), 1.0),
    r'expected numbers as arguments of `\.clip`': (
        lambda x: jf.float32(x).clip(0.0, jf.float32(x)),
        1.0,
    ),
    r'expected numbers as arguments of `\.sum`': (
        lambda x: jf.tensor(x).sum(axis=jf.tensor(x)),
        np.ones(3),
    ),
    r'expected numbers as arguments of `\.reshape`': (
        lambda x: jf.tensor(x).reshape([jf.tensor(x), 1]),
        np.ones(3),
    ),
}


@pytest.mark.parametrize('match', REFUSED)
def test_calls_that_are_refused(match: str) -> None:
    function, example = REFUSED[match]
    with pytest.raises(TypeError, match=match):
        jf.compile(jf.lazy(function), like=[example])


@pytest.mark.parametrize(
    ('function', 'message'),
    [
        (lambda x: len(y for y in x), "object of type 'generator' has no len()"),
        (lambda x: (y for y in x).first, "'generator' object has no attribute 'first'"),
    ],
)
def test_errors_about_generators_of_the_user_stay(function: Any, message: str) -> None:
    fails = jf.lazy(lambda x: jf.float32(function(x)))
    with pytest.raises((TypeError, AttributeError)) as caught:
        jf.compile(fails, like=[[1.0]])
    assert str(caught.value) == message


def test_blocks_of_wrong_types_on_data_tell_both_reasons() -> None:
    wrong = jf.InputTransform({'a': 1}) >> jf.Scalar('int32') >> jf.Vector(3)
    with pytest.raises(TypeError, match='look up its number first') as caught:
        jf.compile(jf.lazy(lambda x: (wrong(x), x)), like=['a'])
    note = r'or, if it is to run on data: Pipe\[2\].Vector.* got int32\[\]; put'
    assert re.match(note, caught.value.__notes__[0])


def test_a_first_try_on_data_leaves_no_frame_behind() -> None:
    block = tanh >> tanh
    gc.collect()
    gc.disable()
    try:
        jf.compile(jf.lazy(lambda x: +block(x)), like=[1.0])
        errors = [x for x in gc.get_objects() if isinstance(x, TypeError)]
        assert not [x for x in errors if 'got object' in str(x)]
    finally:
        gc.enable()


def test_eval_of_one_example_takes_the_parameters_of_all() -> None:
    scale = jf.Function(lambda p, x: p * x, lambda key: jnp.float32(2.0), name='scale')
    shift = jf.Function(lambda p, x: p + x, lambda key: jnp.float32(1.0), name='shift')

    @jf.lazy
    def either(x: float) -> Any:
        return (scale if x > 0 else shift)(jf.float32(x))

    params = jf.compile(either, like=[1.0, -1.0]).init(jax.random.key(0))
    assert either.eval(3.0, params) == 6.0
    assert either.eval(-3.0, params) == -2.0


def test_parts_may_be_empty() -> None:
    @jf.lazy
    def parts(x: float) -> Any:
        return (), {'a': {}, 'b': (jf.float32(x), ())}

    assert results(parts, [1.0, 2.0]) == [((), {'a': {}, 'b': (x, ())}) for x in (1, 2)]


def test_errors_have_no_path_into_recorded_calls() -> None:
    @jf.lazy
    def total(tree: Any) -> Any:
        if isinstance(tree, int):
            return jf.int32(tree)
        return add(total(tree['left']), total(tree['right']))

    pair = {'left': 1, 'right': 2}
    block = jf.Map(jf.Record({'a': total, 'b': jf.Scalar()}))
    model = jf.compile(block, like=[[{'a': pair, 'b': 1.0}]])
    wrong = [{'a': pair, 'b': 1.0}, {'a': {**pair, 'right': 2**40}, 'b': 1.0}]
    for read in (model.eval, lambda x: model.schedule([x])):
        with pytest.raises(jf.InputError, match='int32 cannot hold') as caught:
            read(wrong)
        assert caught.value.path == "[1]['a']"


# ---- what is shared ------------------------------------------------------------------


def test_generators_yield_calls_in_any_order_and_values() -> None:
    runs = []

    @jf.lazy(share=True)
    def total(tree: Any) -> Any:
        runs.append(tree)
        if isinstance(tree, float):
            return jf.float32(tree)
        calls = [total(part) for part in tree]
        parts = []
        for call in calls:
            parts.append((yield call))
        return (yield add(*parts))

    pair = [1.0, 2.0]
    model = jf.compile(total, like=[[pair, pair]])
    runs.clear()
    schedule = model.schedule([[pair, pair]])
    assert model.apply({}, schedule).tolist() == [6.0]
    assert len(runs) == 4
    assert eagerly(total, [pair, pair], {}) == (6.0, [])


def test_methods_are_shared_within_an_instance_alone() -> None:
    class Scale:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        @jf.lazy(share=True)
        def __call__(self, x: float) -> Any:
            return jf.float32(x) * self.factor

    @jf.lazy
    def scaled(x: float) -> Any:
        return tuple(Scale(factor)(x) for factor in (2.0, 3.0, 4.0))

    assert results(scaled, [1.0, 2.0]) == [(2.0, 3.0, 4.0), (4.0, 6.0, 8.0)]


@pytest.mark.parametrize('deep', [False, True])
def test_shared_functions_may_raise_errors_that_are_caught(deep: bool) -> None:
    table = {1.0: 5.0}

    @jf.lazy(share=True)
    def plain(x: float) -> Any:
        return jf.float32(table[x])

    @jf.lazy(share=True)
    def steps(x: float) -> Any:
        return jf.float32(table[(yield x)])

    @jf.lazy
    def known(x: float) -> Any:
        values = []
        for _ in range(2):
            try:
                values.append((yield (steps if deep else plain)(x)))
            except KeyError:
                values.append(jf.float32(0.0))
        return add(*values)

    assert results(known, [1.0, 2.0]) == [10.0, 0.0]


def test_shared_functions_may_return_nothing() -> None:
    @jf.lazy(share=True)
    def watched(x: list[float]) -> None:
        jf.observe('first', jf.float32(x[0]))

    @jf.lazy
    def twice(x: list[float]) -> Any:
        watched(x)
        watched(x)
        return jf.float32(x[0])

    assert twice.eval([3.0])[1] == {'first': [3.0]}


def test_cycles_are_told_in_generators() -> None:
    @jf.lazy(share=True)
    def steps(x: list[Any]) -> Any:
        return (yield steps(x[0]))

    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(TypeError, match='expected data without cycles'):
        jf.compile(steps, like=[cycle])


def test_generators_that_never_end_are_told() -> None:
    """Without `share` by the number of calls, which data may be nested in."""
    add = jf.Sum()

    @jf.lazy
    def total(x: Any) -> Any:
        if isinstance(x, float):
            return jf.float32(x)
        results = []
        for part in x:
            results.append((yield total(part)))
        return add(results)

    deep: Any = [1.0]
    for _ in range(100_000):
        deep = [deep]
    model = jf.compile(total, like=[[1.0, [2.0]]])
    assert model.apply({}, model.schedule([deep])).tolist() == [1]
    cycle: list[Any] = []
    cycle.append(cycle)
    expected = r'example 1: .*expected data that end, got more than 250,000 calls'
    with pytest.raises(jf.InputError, match=expected):
        model.schedule([[1.0], cycle])


def test_a_chain_of_many_kinds_of_calls() -> None:
    """Each of another block, which reads what the one before gives."""

    @jf.lazy
    def quotient(x: tuple[float, int]) -> Any:
        value = jf.float32(x[0])
        for number in range(x[1]):
            value = value / (number + 2)
        return value

    model = jf.compile(quotient, like=[(1.0, 3)])
    found = model.apply({}, model.schedule([(6.0, 2), (1.0, 400)]))
    np.testing.assert_allclose(found, [1, 0])
    assert quotient.eval((6.0, 2)).item() == 1
    with pytest.raises(TypeError, match='expected an expression that is nested less'):
        jf.compile(quotient, like=[(1.0, 4000)])


# ---- lists that are empty in some examples -------------------------------------------


def numbers(x: list[float]) -> list[Any]:
    return [jf.float32(item) for item in x]


@jf.lazy
def split(x: list[float]) -> Any:
    below = [jf.float32(item) for item in x if item < 0.0]
    above = [jf.float32(item) for item in x if item > 0.0]
    zeros = [[jf.float32(item)] for item in x if not item]
    return {'below': below, 'rest': (above, zeros)}


@jf.lazy
def splits(x: list[list[float]]) -> Any:
    return [split(part) for part in x]


@jf.lazy
def nested(x: list[Any]) -> Any:
    return [(numbers(part), {'n': [numbers(part)] * int(len(part) > 1)}) for part in x]


PARTS: list[list[float]] = [[], [-1.0], [2.0, 3.0], [0.0], [-4.0, 0.0]]


@pytest.mark.parametrize('back', [False, True])
def test_each_example_may_have_other_lists_with_items(back: bool) -> None:
    def wanted(x: list[float]) -> Any:
        below, above = ([y for y in x if y < 0.0], [y for y in x if y > 0.0])
        return {'below': below, 'rest': (above, [[y] for y in x if not y])}

    order = -1 if back else 1
    assert results(split, PARTS[::order]) == [*map(wanted, PARTS[::order])]
    many = [[part] for part in PARTS] + [[], PARTS]
    want = [[wanted(part) for part in x] for x in many]
    assert results(splits, many[::order]) == want[::order]
    few = [[[]], [[1.0]], [], [[1.0, 2.0], []]]
    deep = [[(y, {'n': [y] * (len(y) > 1)}) for y in x] for x in few]
    assert results(nested, few[::order]) == deep[::order]


def test_metrics_are_no_lists() -> None:
    @jf.lazy
    def watched(x: list[float]) -> Any:
        jf.observe('all', {'x': numbers(x)})
        return jf.float32(1.0)

    with pytest.raises(TypeError, match='observe each item of a list'):
        jf.compile(watched, like=[[1.0]])
