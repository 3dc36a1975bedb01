# SPDX-License-Identifier: Apache-2.0
"""Lazy functions at their edges: what calls take, what is shared, empty lists."""

from __future__ import annotations

import copy
import re
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import of_rows
from eagerly import eagerly

import jfold as jf

add = jf.Function(jnp.add)
tanh = jf.Function(jnp.tanh)


def results(fn: Any, examples: list[Any], like: list[Any] | None = None) -> list[Any]:
    """The results of examples, one after another; those of a batch are the same."""
    model = jf.compile(fn, like=examples if like is None else like)
    alone = [model.eval(example) for example in examples]
    batch = model.predict({}, examples, progress=False)
    rows = [value for value, _ in of_rows(batch, {}, range(len(examples)))]
    jax.tree.map(np.testing.assert_allclose, rows, alone)
    return [jax.tree.map(lambda x: np.asarray(x).tolist(), x) for x in alone]


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
    """Constants, and functions of parameters alone."""
    constant = jf.FromTensor(np.array([1, 2], 'float32'))
    start = jf.Function(lambda: jnp.ones(2))

    @jf.lazy
    def sums(number: float) -> Any:
        return constant() + start() if number > 1 else constant()

    assert results(sums, [1.0, 2.0]) == [[1, 2], [2, 3]]


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


every, again, collect = jf.Map(inner), tanh >> tanh, jf.Map(jf.Metric('q'))
REFUSED: dict[str, tuple[Any, Any]] = {
    r'got lazy\(inner\); call that itself, for a Map as `\[f\(x\) for x in xs\]`': (
        lambda x: every(x)[0],
        [1.0],
    ),
    'got one that gives nothing; write `jf.observe': (
        lambda x: (collect([jf.float32(x)]), jf.float32(x)),
        1.0,
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
}


@pytest.mark.parametrize('match', REFUSED)
def test_calls_that_are_refused(match: str) -> None:
    function, example = REFUSED[match]
    with pytest.raises(TypeError, match=match):
        jf.compile(jf.lazy(function), like=[example])


def test_blocks_of_wrong_types_on_data_tell_both_reasons() -> None:
    wrong = jf.InputTransform({'a': 1}) >> jf.Scalar('int32') >> jf.Vector(3)
    with pytest.raises(TypeError, match='look up its number first') as caught:
        jf.compile(jf.lazy(lambda x: wrong(x)), like=['a'])
    note = r'or, if it is to run on data: Pipe\[2\].Vector.* got int32\[\]; put'
    assert re.match(note, caught.value.__notes__[0])


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


def test_circles_are_told_in_generators() -> None:
    @jf.lazy(share=True)
    def steps(x: list[Any]) -> Any:
        return (yield steps(x[0]))

    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(TypeError, match='expected data without circles'):
        jf.compile(steps, like=[circle])


# ---- indices and constants -----------------------------------------------------------


def test_indices_are_those_of_arrays() -> None:
    @jf.lazy
    def rows(x: list[float]) -> Any:
        a = jf.tensor(np.asarray(x, np.float32))
        return a[0], a[False], a[True], a[np.int64(1)], a[1], a[:-1:1], a[..., None]

    example = [1.0, 2.0]
    want = (1.0, [], [[1.0, 2.0]], 2.0, 2.0, [1.0], [[1.0], [2.0]])
    assert results(rows, [example]) == [want]


@pytest.mark.parametrize(
    ('key', 'match'),
    [
        ([0, 1], r'expected an index of ints and slices, got \[0, 1\] \(list\); write'),
        (np.zeros(2, int), r'got array\(\[0, 0\]\) \(ndarray\); write `jf.Function'),
        ('a', "got 'a'; write"),
        (0.5, 'got 0.5; write'),
    ],
)
def test_other_indices_are_refused(key: Any, match: str) -> None:
    with pytest.raises(TypeError, match=match):
        jf.compile(jf.lazy(lambda x: jf.tensor(x)[key]), like=[np.ones(3)])


def test_constants_take_the_types_of_jax() -> None:
    """Numbers, lists of them, arrays of NumPy and of JAX."""
    ones = jnp.ones(2)

    @jf.lazy
    def constants(x: Any) -> Any:
        said = jf.tensor(x, 'float16'), jf.float32(x), jf.tensor(ones, 'int32')
        lists = jf.int32([x, x]), jf.tensor([x, 2]), jf.tensor([0.5, x])
        sums = add(ones, x), jf.tensor(x) + ones
        arrays = jf.tensor(np.ones(2)), jf.tensor([[x]], 'float32')
        return (jf.tensor(x), jf.tensor(True), *said, *lists, *arrays, *sums)

    want = [
        *(('int32', 3), ('bool', True)),
        *(('float16', 3), ('float32', 3), ('int32', [1, 1])),
        *(('int32', [3, 3]), ('int32', [3, 2]), ('float32', [0.5, 3])),
        *(('float32', [1, 1]), ('float32', [[3]])),
        *(('float32', [4, 4]), ('float32', [4, 4])),
    ]
    for value in (3, jnp.int32(3)):
        got = [(x.dtype.name, x.tolist()) for x in constants.eval(value)]
        assert got == want
    assert results(constants, [3, 3]) == [tuple(x for _, x in want)] * 2


def test_constants_are_what_their_dtype_holds() -> None:
    model = jf.compile(jf.lazy(lambda x: jf.tensor(x, 'uint8')), like=[1])
    with pytest.raises(jf.InputError, match='got -1, which uint8 cannot hold'):
        model.schedule([-1])
    for value in ('int32', 'a', None, {}, ['a'], object, jax.random.key(0)):
        for dtype in (None, 'int32'):
            constant = jf.lazy(lambda x, dtype=dtype: jf.tensor(x, dtype))
            with pytest.raises(TypeError, match='expected a number or an array, got'):
                jf.compile(constant, like=[value])


def test_constants_are_what_they_were_in_the_call() -> None:
    total, double = jf.Sum(), jf.Function(lambda x: 2 * x)
    kept = np.zeros(2, np.float32)

    @jf.lazy
    def changing(x: list[float]) -> Any:
        array, numbers, calls = np.zeros(2, np.float32), [0.0, 0.0], []
        value = jf.tensor(array)
        for number in x:
            array[0] = numbers[1] = kept[1] = number
            value = value + array
            calls += [jf.tensor(array), jf.tensor((array, array))[0]]
            calls += [jf.tensor(numbers), jf.float32(kept), double(kept)]
        return value, total(calls)

    examples = [[1.0, 2.0, 3.0], [4.0]]
    want = [([6, 0], [12, 24]), ([4, 0], [8, 16])]
    assert results(changing, examples) == want


def test_values_have_methods_of_arrays() -> None:
    def use(a: Any) -> Any:
        return (
            a.sum(-1),
            a.T,
            a.reshape([3, 2]),
            a.astype('int32'),
            a.mean(axis=0).max(),
        )

    @jf.lazy
    def used(x: list[list[float]]) -> Any:
        return use(jf.tensor(np.asarray(x, np.float32)))

    example = [[1.0, 2.0, 4.0], [7.0, 5.0, 3.0]]
    want = jax.tree.map(lambda x: x.tolist(), use(jnp.asarray(example)))
    assert results(used, [example]) == [want]


def test_numbers_that_are_equal_and_not_the_same() -> None:
    @jf.lazy
    def clipped(x: int) -> Any:
        value = jf.int32(x)
        return value.clip(0, 1), value.clip(0.0, 1.0), value.clip(min=0), value.clip(0)

    @jf.lazy
    def divided(x: float) -> Any:
        value = jf.float32(x)
        return value / 0.0, value / -0.0, value + float('nan')

    kinds = [x.dtype.name for x in clipped.eval(3)]
    assert kinds == ['int32', 'float32', 'int32', 'int32']
    plus, minus, nan = (x.item() for x in divided.eval(1.0))
    assert (plus, minus) == (np.inf, -np.inf) and np.isnan(nan)


def test_values_have_operators_of_bools_and_sizes() -> None:
    @jf.lazy
    def asked(x: list[float]) -> Any:
        a = jf.float32(x)
        inside = (a > 0) & (a < 2)
        tests = (inside, ~inside, inside | (a > 2), inside ^ True, True & inside)
        return *tests, +a, jf.tensor((a.ndim, a.size))

    inside, outside = [False, True, False], [True, False, True]
    tests = [inside, outside, [False, True, True], outside, inside]
    example = [-1.0, 1.0, 3.0]
    assert results(asked, [example]) == [(*tests, example, [1, 3])]


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
