# SPDX-License-Identifier: Apache-2.0
"""Dtypes: numbers of 64 bits beside those of 32, and that nothing is promoted."""

from __future__ import annotations

import re
from typing import Any

import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import close
from binary_trees import binary
from checking import same
from looped import in_loops

import jfold as jf
from jfold.scheduling.spec import RESIDUALS, STRATEGIES

BIG = 2**53 + 1  # no float64 is that
x64 = jax.enable_x64


def doubled(x: Any) -> Any:
    return x * 2


# ---- types of one model --------------------------------------------------------------


def mixed_tree() -> jf.Block:
    """States of float32, float64 and int64 that make each other."""
    wide = jf.TensorType([2], 'float64')
    tree = jf.ForwardDeclaration(name='tree', output_type=([2], wide, 'int64'))

    def leaf(params: Any, x: Any, n: Any) -> Any:
        narrow = jnp.tanh(params['a'] * x.astype('float32'))
        return narrow, params['b'] * x, n + BIG

    def cell(params: Any, left: Any, right: Any) -> Any:
        (a, b, n), (c, d, m) = left, right
        narrow = jnp.tanh(params['m'] @ jnp.concatenate([a, c]) + b.astype('float32'))
        wide = jnp.sin(
            params['n'] @ jnp.concatenate([b, d]) + (n - m).astype('float64')
        )
        return narrow, wide, jnp.maximum(n, m) + 1

    def init_leaf(key: Any, *_: Any) -> Any:
        return {'a': jnp.ones(2, 'float32'), 'b': jnp.full(2, 0.3, 'float64')}

    def init_cell(key: Any, *_: Any) -> Any:
        draw = lambda dtype: jax.random.normal(key, (2, 4), dtype) / 2  # noqa: E731
        return {'m': draw('float32'), 'n': draw('float64')}

    number = jf.AllOf(
        jf.Scalar('float64'), jf.InputTransform(int) >> jf.Scalar('int64')
    )
    leaves = number >> jf.Function(leaf, init_leaf, name='leaf')
    pair = jf.Record((tree(), tree())) >> jf.Function(cell, init_cell, name='cell')
    tree.resolve_to(jf.OneOf(type, {float: leaves, tuple: pair}))
    return tree()


EXAMPLES = [((1.0, 2.0), 3.0), 4.0, ((1.0, 2.0), (3.0, (5.0, 0.1)))]


def loss(made: Any) -> Any:
    narrow, wide, whole = made
    return (narrow**2).sum().astype('float64') + wide.sum() + (whole.sum() - BIG) / 99


@pytest.mark.sampled(1)
@pytest.mark.parametrize('strategy', ['counted', 'fixed'])
def test_each_keeps_its_dtype(strategy: str) -> None:
    """Values and gradients, each to the digits that its own dtype has."""
    with x64(True):
        model = jf.compile(mixed_tree(), strategy=strategy)
        params = model.init(jax.random.key(0))
        schedule = model.schedule(EXAMPLES)

        def both(params: Any) -> Any:
            made = model.apply(params, schedule)
            return loss(made), made

        grads, found = jax.jit(jax.grad(both, has_aux=True))(params)
        twin = [model.eval(x, params) for x in EXAMPLES]
        for part, tolerance in zip(range(3), (1e-5, 1e-12, 0), strict=True):
            expected = np.stack([np.asarray(x[part]) for x in twin])
            assert found[part].dtype == expected.dtype
            np.testing.assert_allclose(found[part], expected, rtol=tolerance)
        twin = jax.grad(lambda p: sum(loss(model.eval(x, p)) for x in EXAMPLES))
        expected = interpreter.called(twin, params)
        for got, want in zip(*map(jax.tree.leaves, (grads, expected)), strict=True):
            assert got.dtype == want.dtype
        close(grads, expected, 1e-5)


@pytest.mark.parametrize('dtype', ['int64', 'uint64'])
def test_no_digit_is_lost(dtype: str) -> None:
    """Of ints that no float64 holds, wherever they pass."""
    numbers = [BIG, BIG + 1, 2**63 - 1]
    with x64(True):
        block = jf.Scalar(dtype) >> jf.AllOf(jf.Identity(), jf.Metric('m'))
        model = jf.compile(block >> jf.GetItem(0))
        values, metrics = model.apply({}, model.schedule(numbers))
        assert values.tolist() == numbers
        assert metrics['m'].values[metrics['m'].mask].tolist() == numbers
        total = jf.compile(jf.Map(jf.Scalar(dtype)) >> jf.Sum())
        assert total.predict({}, [numbers[:2], []]).tolist() == [2 * BIG + 1, 0]


def test_layers_of_mixed_dtypes() -> None:
    """A score of 64 bits beside values of 32, and states that are of 32."""
    with x64(True):
        pair = jf.Record((jf.Scalar('float64'), jf.Vector(2)))
        attend = jf.compile(jf.Map(pair) >> jf.layers.Attend())
        found = attend.apply({}, attend.schedule([[(0, [1, 2]), (0, [3, 4])], []]))
        assert (found.tolist(), found.dtype.name) == ([[2, 3], [0, 0]], 'float64')
        text = 'expected vectors of float32, as the states are, got float64: cast them'
        for layer in (jf.layers.LSTM(3), jf.layers.GRU(3)):
            with pytest.raises(TypeError, match=text):
                jf.compile(jf.Map(jf.Vector(2, 'float64')) >> layer)


# ---- JAX that keeps less than it did -------------------------------------------------


@pytest.mark.parametrize(
    ('block', 'example', 'dtype'),
    [
        (jf.Scalar('int64'), BIG, 'int64'),
        (jf.Scalar('uint64') >> doubled, BIG, 'uint64'),
        (jf.Map(jf.Scalar('float64')) >> jf.Sum(), [1, 1e-9], 'float64'),
        (jf.Scalar('complex128'), 1j, 'complex128'),
        (
            jf.Scalar()
            >> jf.Function(
                lambda w, x: (w * x).astype('float32'),
                lambda key: jnp.asarray(1 / 3, 'float64'),
            ),
            1.0,
            'float64',
        ),
    ],
)
def test_numbers_are_not_cut_in_two(block: jf.Block, example: Any, dtype: str) -> None:
    """A model of 64 bits is refused where JAX would make 32 of them."""
    with x64(True):
        model = jf.compile(block)
        params, schedule = model.init(jax.random.key(0)), model.schedule([example])
        expected = model.apply(params, schedule)
    text = (
        f'expected JAX to keep {dtype}, as it did when the model was compiled, got jax_'
        'enable_x64 off: run all under `jax.enable_x64(True)`, or compile it without'
    )
    for run in (
        lambda: model.init(jax.random.key(0)),
        lambda: model.apply(params, schedule),
        lambda: jax.jit(model.apply)(params, schedule),
        lambda: model.predict(params, [example]),
    ):
        with pytest.raises(TypeError, match=re.escape(text)):
            run()
    with x64(True):
        assert model.apply(params, schedule).tolist() == expected.tolist()


def test_parameters_of_more_bits_than_the_model() -> None:
    """To draw them again would help only under the setting of before."""

    def init(key: jax.Array, x: Any) -> Any:
        return jax.random.normal(key, (3, 2))

    model = jf.compile(jf.Vector(3) >> jf.Function(lambda w, x: x @ w, init, 'mm'))
    with x64(True):
        params = model.init(jax.random.key(0))
    text = (
        "expected parameters of layer 'mm' as float32[3, 2], got float64[3, 2]; "
        '`model.init(key)` makes them, under the `jax_enable_x64` of `jfold.compile`'
    )
    with pytest.raises(TypeError, match=re.escape(text)):
        model.apply(params, model.schedule([[1, 2, 3]]))


def test_schedules_do_not_depend_on_what_jax_keeps() -> None:
    """They are NumPy's; and models of 32 bits are the same under either."""
    with x64(True):
        model = jf.compile(jf.Scalar('int64') >> doubled)
    schedule = model.schedule([BIG])
    with x64(True):
        assert model.apply({}, schedule).tolist() == [2 * BIG]
    narrow = jf.compile(jf.Map(jf.Scalar() >> doubled) >> jf.Sum())
    schedule = narrow.schedule([[1, 2], [3]])
    with x64(True):
        found = narrow.apply({}, schedule)
        assert (found.tolist(), found.dtype.name) == ([6, 6], 'float32')


def test_arrays_of_another_width_are_refused_with_what_to_do() -> None:
    with x64(True):
        model = jf.compile(jf.Map(jf.External('rows', 2)) >> jf.Sum())
        text = r"external=\{'rows': array\.astype\('float32'\)\}"
        with pytest.raises(TypeError, match=text):
            model.apply({}, model.schedule([[0]]), external={'rows': np.ones((3, 2))})


# ---- parameters of a weak type -------------------------------------------------------


@pytest.mark.parametrize('compiles', [jf.compile, in_loops])
def test_weakly_typed_parameters_promote_as_strong_ones(compiles: Any) -> None:
    """A training step makes them strong; types and the twin count with that."""
    half = jf.Function(
        lambda w, x: w * x, lambda key, x: jnp.full((), 0.5), name='half'
    )
    with x64(True):
        model = compiles(jf.Scalar() >> half >> half)
        params, schedule = model.init(jax.random.key(0)), model.schedule([1.0, 3.0])
        assert not params['half'].weak_type
        weak = {'half': jnp.full((), 0.5)}
        assert weak['half'].weak_type
        for x in params, weak:
            found = model.apply(x, schedule)
            assert found.dtype == model.eval(1.0, x).dtype == 'float64'
            assert found.tolist() == [0.25, 0.75]
            assert jax.grad(lambda p: model.apply(p, schedule).sum())(x)['half'] == 4


# ---- nothing is promoted -------------------------------------------------------------

TREE = ([1, 2, 3], ([1, 1, 1], ([0, 1, 2], [2, 2, 2])))


def promoting() -> jf.Block:
    """A recursion, sums over sequences of several dtypes, and metrics."""
    layer = jf.Function(
        lambda p, a, b: jnp.tanh(p @ a + b),
        lambda key, *_: jax.random.normal(key, (3, 3)),
        name='layer',
    )
    means = [
        jf.InputTransform(lambda _: [1, 2]) >> jf.Map(jf.Scalar(dtype)) >> jf.Mean()
        for dtype in ('float32', 'float16', 'bfloat16', 'int32', 'complex64')
    ]
    value = binary(jf.Vector(3), layer) >> jf.AllOf(jf.Identity(), jf.Metric('value'))
    return jf.AllOf(value >> jf.GetItem(0), *means)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ('residuals', 'strategy'), list(zip(RESIDUALS, STRATEGIES, strict=True))
)
def test_values_and_gradients_promote_nothing(residuals: str, strategy: str) -> None:
    with jax.numpy_dtype_promotion('strict'):
        model = jf.compile(promoting(), residuals=residuals, strategy=strategy)
        params = model.init(jax.random.key(0))
        schedule = model.schedule([TREE, TREE[0], TREE[1]])

        def loss(params: Any) -> Any:
            (values, *means), metrics = model.apply(params, schedule)
            weighed = jnp.where(schedule.mask[:, None], values, 0.0)
            return weighed.sum() + metrics['value'].mean().sum(), means

        gradient, means = jax.jit(jax.grad(loss, has_aux=True))(params)
        jax.eval_shape(model.apply, params, schedule)
    assert float(abs(gradient['layer']).sum()) > 0
    got = [(x[0].item(), x.dtype.name) for x in means]
    assert got == [
        (1.5, 'float32'),
        (1.5, 'float16'),
        (1.5, 'bfloat16'),
        (1.5, 'float32'),
        (1.5 + 0j, 'complex64'),
    ]


def test_means_of_metrics_promote_nothing() -> None:
    """Of any dtype, alone or in tuples, and of none."""
    values = (
        jnp.array([1, 2, 0], 'int8'),
        jnp.array([1, 2, 0], 'float16'),
        jnp.array([True, False, False]),
        jnp.array([[1j, 2], [3j, 2], [0, 0]], 'complex64'),
    )
    mask = jnp.array([True, True, False])
    metric = jf.MetricValues(values, jnp.arange(3), mask)
    nothing = jf.MetricValues(jnp.zeros(3), jnp.arange(3), mask & False)
    with jax.numpy_dtype_promotion('strict'):
        same(
            metric.mean(),
            (
                np.float32(1.5),
                np.float16(1.5),
                np.float32(0.5),
                np.array([2j, 2], np.complex64),
            ),
        )
        assert nothing.mean().item() == 0
