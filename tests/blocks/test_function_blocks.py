# SPDX-License-Identifier: Apache-2.0
"""What a block of a function means, by example."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checking import add, check, number, refuses, same, whole
from flax import nnx

import jfold as jf


def test_functions_of_one_example() -> None:
    def mixed(a: Any, b: Any) -> Any:
        return (a * 2, [b[0] + a, b[1]]), jnp.stack([a, a])

    pair, first = (number, (jf.Vector(2), whole)), (2.0, ([2, 3], 3))
    check(
        (number >> jnp.negative, [1, 2], [-1.0, -2.0]),
        (pair >> jf.Function(mixed), [(1, ([1, 2], 3))], [(first, [1, 1])]),
        (number >> (lambda x: (x, 1, 2.5)), [4], [(4.0, np.int32(1), np.float32(2.5))]),
        (jf.Vector(3) >> (lambda x: x[::-1]), [[1, 2, 3]], [[3, 2, 1]]),
        (jf.Record(()) >> (lambda: jnp.ones(2)), [0], [[1, 1]]),
    )


def test_functions_of_whole_tiles() -> None:
    calls = []

    def rows(x: Any, y: Any) -> Any:
        calls.append(x.shape)
        return jnp.einsum('ri,rij->rj', x, y)

    block = (jf.Vector(2), jf.Tensor((2, 3))) >> jf.Function(rows, batched=True)
    check((block, [([1, 2], np.ones((2, 3)))], [[3, 3, 3]]))
    assert all(len(shape) == 2 for shape in calls)


def test_functions_with_parameters() -> None:
    def init(key: Any, x: Any) -> Any:
        return {'scale': jnp.full(x.shape, 3.0), 'shift': 1.0}

    def layer(params: Any, x: Any) -> Any:
        return params['scale'] * x + params['shift']

    block = jf.Vector(2) >> jf.Function(layer, init)
    assert list(jf.compile(block).init(jax.random.key(0))) == ['layer']
    check((block, [[1, 2]], [[4, 7]]))


def test_learned_constants() -> None:
    def start(key: Any) -> Any:
        return jnp.arange(3.0)

    learned = jf.Void() >> jf.Function(lambda p: p, start, name='start')
    vector, lists = jf.Vector(3), [[], [[1, 1, 1]]]
    sums = jf.Map(vector) >> jf.Fold(add, learned)
    check(
        (learned, [0, 0], [[0, 1, 2]] * 2),
        ({'x': vector, 'w': learned} >> add, [{'x': [1, 1, 1]}], [[1, 2, 3]]),
        (sums, lists, [[0, 1, 2], [1, 2, 3]]),
        (jf.Map(vector) >> jf.Max(learned), lists, [[0, 1, 2], [1, 1, 1]]),
    )


class Affine(nn.Module):
    """A Linen module of two inputs and two outputs."""

    @nn.compact
    def __call__(self, x: Any, y: Any) -> Any:
        return nn.Dense(2)(x), nn.Dense(1, name='second')(y)


def test_flax_modules() -> None:
    linen = (jf.Vector(3), jf.Vector(2)) >> jf.Function(Affine())
    nnx_linear = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    model = jf.compile(
        (linen, jf.GetItem(0) >> jf.Vector(3) >> jf.Function(nnx_linear))
    )
    params = model.init(jax.random.key(1))
    assert list(params) == ['Affine', 'Linear']
    assert params['Affine']['second']['kernel'].shape == (2, 1)
    x, y = np.ones(3, np.float32), np.ones(2, np.float32)
    want = Affine().apply({'params': params['Affine']}, x, y), nnx_linear(x)
    example = ((x, y), (x, y))
    same(model.eval(example, params), want)
    got = model.apply(params, model.schedule([example]))
    same(jax.tree.map(lambda a: a[0], got), want)


def test_the_same_callable_shares_parameters() -> None:
    def init(key: Any, x: Any) -> Any:
        return jax.random.normal(key, x.shape)

    def scale(p: Any, x: Any) -> Any:
        return p * x

    def other(p: Any, x: Any) -> Any:
        return p * x

    blocks = [
        jf.Function(scale, init),
        jf.Function(scale, init),
        jf.Function(scale, init, name='mine'),
        jf.Function(scale, init, name='mine'),
        jf.Function(other, init, name='mine'),
        jf.Function(lambda p, x: p * x, init),
    ]
    model = jf.compile(number >> jf.AllOf(*blocks))
    params = model.init(jax.random.key(0))
    assert list(params) == ['scale', 'mine', 'mine_1', 'function']
    assert len(set(map(float, params.values()))) == 4
    assert len(model.program.operations) == 4
    a, b, c, d, e, f = model.eval(1, params)
    assert a == b != c == d != e != f


def settings(fn: Any, init: Any = None) -> None:
    """A function of a tuple of two numbers."""
    jf.compile(jf.Record((number, number)) >> jf.Function(fn, init, name='fn'))


@pytest.mark.parametrize(
    ('fn', 'init', 'shown'),
    [
        (lambda x, scale=2.0: x * scale, None, 'scale=2.0'),
        (lambda p, x, train=False: x, lambda *_: jnp.ones(()), 'train=False'),
        (functools.partial(lambda a, x, n=3: x * n, 1), None, 'n=3'),
        (jnp.concatenate, None, 'axis=0'),
        (jax.jit(lambda x, kind='a': x), None, "kind='a'"),
    ],
)
def test_an_item_is_not_taken_for_a_setting(fn: Any, init: Any, shown: str) -> None:
    """It would replace a default without a word."""
    with refuses(
        'Pipe[1].Function(fn): expected an input for each argument without a default, '
        'got the tuple (float32[], float32[]), of which an item would be '
        f'`{shown}`; items are arguments of their own: take one by `GetItem`, or write '
        'a function that takes 2 inputs, as `lambda *inputs: ...`'
    ):
        settings(fn, init)


def test_defaults_that_may_stay_or_be_replaced() -> None:
    """Those that come first, that are `None`, or that no item reaches."""
    settings(lambda x=1.0, y=None: x + y)
    settings(lambda x, y, scale=2.0: x + y * scale)
    settings(lambda *inputs, scale=2.0: sum(inputs) * scale)
    settings(functools.partial(lambda x, y, scale: x + y * scale, scale=2.0))
    settings(jnp.clip)
    settings(jnp.maximum)
    jf.compile(number >> jf.Function(lambda x, scale=2.0: x * scale))


def test_one_callable_at_two_types_is_one_layer() -> None:
    def init(key: Any, x: Any) -> Any:
        return jnp.float32(2)

    scale = jf.Function(lambda p, x: p * x, init, name='scale')
    model = jf.compile((number >> scale, jf.Vector(2) >> scale))
    assert [layer.name for layer in model.program.layers] == ['scale']
    assert [repr(operation) for operation in model.program.operations] == [
        'scale(float32[]) -> float32[]',
        'scale(float32[2]) -> float32[2]',
    ]


def test_bound_methods_are_one_layer() -> None:
    class Scale:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def times(self, x: Any) -> Any:
            return self.factor * x

    two, three = Scale(2.0), Scale(3.0)
    block = number >> jf.AllOf(two.times, two.times, three.times)
    assert len(jf.compile(block).program.operations) == 2
    check((block, [1], [(2.0, 2.0, 3.0)]))


def test_concat() -> None:
    pair, row = (number, jf.Vector(2)), jf.Tensor((1, 2))
    nested = (number, (jf.Vector(2), (number,)))
    check(
        (pair >> jf.Concat(), [(1, [2, 3])], [[1, 2, 3]]),
        ((number, number) >> jf.Concat(), [(1, 2)], [[1, 2]]),
        ((row, row) >> jf.Concat(), [([[1, 2]], [[3, 4]])], [[[1, 2], [3, 4]]]),
        ((row, row) >> jf.Concat(1), [([[1, 2]], [[3, 4]])], [[[1, 2, 3, 4]]]),
        ((row, row) >> jf.Concat(-1), [([[1, 2]], [[3, 4]])], [[[1, 2, 3, 4]]]),
        (nested >> jf.Concat(flatten=True), [(1, ([2, 3], (4,)))], [[1, 2, 3, 4]]),
        ((whole, whole) >> jf.Concat(), [(1, 2)], [np.array([1, 2], np.int32)]),
    )
