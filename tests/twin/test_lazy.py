# SPDX-License-Identifier: Apache-2.0
"""Lazy functions: values, metrics and gradients are those of running them at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree, weighted
from eagerly import eagerly
from lazy_programs import draw_examples, once, several, shared

import jfold as jf


def at_once(params: Any, lazy: jf.Lazy, examples: list[Any]) -> Any:
    """A number made of all that examples give, and what they observe."""
    runs = [eagerly(lazy, x, params) for x in examples]
    observed = [[x for _, x in seen] for _, seen in runs]
    total = sum(weighted(value, i) for i, (value, _) in enumerate(runs))
    return total + sum(jnp.sum(x) for seen in observed for x in seen), (runs, observed)


def batched(params: Any, model: jf.Model, schedule: jf.Schedule) -> Any:
    """The same number by a batch."""
    values = model.apply(params, schedule)
    values, metrics = values if model.program.metric_results else (values, {})
    rows = [jax.tree.map(lambda x, i=i: x[i], values) for i in range(schedule.examples)]
    total = sum(weighted(row, i) for i, row in enumerate(rows))
    return total + sum(jnp.sum(x.values) for x in metrics.values()), metrics


@pytest.mark.parametrize('seed', range(12))
def test_drawn_programs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lazy = [once, shared][seed % 2]
    examples = draw_examples(rng, 5, 12)
    model = jf.compile(lazy, like=examples, reproducible=seed % 3 == 2)
    params = model.init(jax.random.key(seed))
    schedule = model.schedule(examples)
    (total, (_, observed)), want = jax.value_and_grad(at_once, has_aux=True)(
        params, lazy, examples
    )
    step = jax.jit(jax.value_and_grad(batched, has_aux=True), static_argnums=1)
    (found, metrics), grads = step(params, model, schedule)
    np.testing.assert_allclose(found, total, rtol=1e-4, atol=1e-5)
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, want[name], rtol=1e-3, atol=1e-5)
    for metric in metrics.values():
        rows = np.concatenate([np.ravel(x) for x in observed])
        np.testing.assert_allclose(metric.values[metric.mask], rows, rtol=1e-4)


@pytest.mark.parametrize('seed', range(4))
def test_drawn_programs_with_lists_and_dicts(seed: int) -> None:
    """The twin of their expression, too, is what they are run at once."""
    rng = np.random.default_rng(100 + seed)
    examples = [draw_examples(rng, int(rng.integers(1, 4)), 8) for _ in range(4)]
    model = jf.compile(several, like=examples)
    params = model.init(jax.random.key(seed))
    for example in examples:
        value = model.eval(example, params)
        value = value[0] if model.program.metric_results else value
        expected, _ = eagerly(several, example, params)
        assert jax.tree.structure(value) == jax.tree.structure(expected)
        for x, y in zip(*map(jax.tree.leaves, (value, expected)), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    agree(model, params, examples)
