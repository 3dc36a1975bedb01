# SPDX-License-Identifier: Apache-2.0
"""Everything that runs on the device promotes no dtype by itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from binary_trees import binary
from checking import same

import jfold as jf
from jfold.scheduling.spec import RESIDUALS, STRATEGIES

TREE = ([1, 2, 3], ([1, 1, 1], ([0, 1, 2], [2, 2, 2])))


def expression() -> jf.Block:
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


@pytest.mark.parametrize(
    ('residuals', 'strategy'), list(zip(RESIDUALS, STRATEGIES, strict=True))
)
def test_values_and_gradients(residuals: str, strategy: str) -> None:
    with jax.numpy_dtype_promotion('strict'):
        model = jf.compile(expression(), residuals=residuals, strategy=strategy)
        params = model.init(jax.random.key(0))
        schedule = model.schedule([TREE, TREE[0], TREE[1]])

        def loss(params: Any) -> Any:
            (values, *_), metrics = model.apply(params, schedule)
            weighed = jnp.where(schedule.mask[:, None], values, 0.0)
            return weighed.sum() + metrics['value'].mean().sum()

        gradient = jax.grad(loss)(params)
        (_, *means), _ = model.apply(params, schedule)
    assert float(abs(gradient['layer']).sum()) > 0
    got = [(x[0].item(), x.dtype.name) for x in means]
    assert got == [
        (1.5, 'float32'),
        (1.5, 'float16'),
        (1.5, 'bfloat16'),
        (1.5, 'float32'),
        (1.5 + 0j, 'complex64'),
    ]


def test_means_of_metrics() -> None:
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
