# SPDX-License-Identifier: Apache-2.0
"""Values in lazy functions: indices, constants, operators and methods."""

from __future__ import annotations

import contextlib
from array import array as Array
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lazy_results import results

import jfold as jf

add = jf.Function(jnp.add)


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
        buffer = Array('f', [0.0, 0.0])
        value = jf.tensor(array)
        for number in x:
            array[0] = numbers[1] = kept[1] = buffer[0] = number
            value = value + array
            calls += [jf.tensor(buffer), jf.tensor((array, array))[0]]
            calls += [jf.tensor(numbers), jf.float32(kept), double(kept)]
        return value, total(calls)

    examples = [[1.0, 2.0, 3.0], [4.0]]
    want = [([6, 0], [12, 24]), ([4, 0], [8, 16])]
    assert results(changing, examples) == want


@pytest.mark.parametrize('dtype', [None, 'float32'])
def test_constants_are_not_masked(dtype: str | None) -> None:
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    constant = jf.lazy(lambda x: jf.tensor(x, dtype) if dtype else add(x, 0.0))
    model = jf.compile(constant, like=[np.ones(2)])
    filled = np.ma.array([1.0, 2.0])
    assert model.eval(filled).tolist() == [1.0, 2.0]
    for value in (masked, [1.0, np.ma.masked])[: 2 if dtype else 1]:
        with pytest.raises(jf.InputError, match='some of it masked: fill it'):
            model.eval(value)
    number = jf.compile(jf.lazy(lambda x: jf.tensor(x, dtype)), like=[1.0])
    with pytest.raises(jf.InputError, match='some of it masked'):
        number.eval(np.ma.masked)


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


@pytest.mark.parametrize(
    ('dtype', 'number', 'setting'),
    [
        ('bfloat16', 0.0, contextlib.nullcontext()),
        ('int8', 0, contextlib.nullcontext()),
        ('float32', 0.0, jax.enable_x64(True)),
        ('float32', 0.0, jax.numpy_dtype_promotion('strict')),
    ],
)
def test_numbers_to_select_take_the_dtype_of_the_value(
    dtype: str, number: float, setting: Any
) -> None:
    def use(a: Any) -> Any:
        return jf.select(a > 1, a, number), jf.select(a > 1, number, a)

    with setting:
        array = jnp.array([1, 2], dtype)
        got = jf.lazy(lambda x: use(jf.tensor(x))).eval(array)
        assert [x.dtype for x in got] == [array.dtype] * 2
        assert [x.tolist() for x in got] == [[0, 2], [1, 0]]


def test_numbers_to_select_may_be_any_that_jax_takes() -> None:
    """Too large for the dtype, or beside an array of a dtype that JAX narrows."""
    mask = np.array([True, False])
    cases: list[Any] = [
        (np.ones(2, np.float16), -1e9),
        (np.ones(2, np.uint8), 300),
        (np.zeros(2), 1),
        (np.float64(2), 1),
        (np.ones(2, np.int64), True),
    ]

    def use(a: Any, number: Any, where: Any) -> Any:
        return where(mask, a, number), where(mask, number, a)

    for a, number in cases:
        got = jf.lazy(
            lambda x, a=a, number=number: use(
                a, number, lambda m, *x: jf.select(jf.tensor(m), *x)
            )
        ).eval(0)
        for x, want in zip(got, use(a, number, jnp.where), strict=True):
            assert x.dtype == want.dtype
            np.testing.assert_array_equal(x, want)


def test_numbers_that_are_equal_and_not_the_same() -> None:
    @jf.lazy
    def clipped(x: int) -> Any:
        value = jf.int32(x)
        return value.clip(0, 1), value.clip(0.0, 1.0), value.clip(min=0), value.clip(0)

    @jf.lazy
    def bounded(x: float) -> Any:
        value, nan = jf.float32(x), float('nan')
        return value.clip(nan, 1.0), value.clip(max=float('nan'))

    @jf.lazy
    def divided(x: float) -> Any:
        value = jf.float32(x)
        return value / 0.0, value / -0.0, value + float('nan')

    kinds = [x.dtype.name for x in clipped.eval(3)]
    assert kinds == ['int32', 'float32', 'int32', 'int32']
    assert np.isnan(bounded.eval(1.0)).all()
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
