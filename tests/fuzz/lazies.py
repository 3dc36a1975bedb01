# SPDX-License-Identifier: Apache-2.0
"""Lazy functions in a campaign: drawn programs, against running them at once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from agreement import weighted
from eagerly import eagerly
from lazy_programs import draw_examples, once, shared

import jfold as jf
from fuzz.near import same_array

UNOPTIMISED = {'xla_backend_optimization_level': 0}


def check_lazy(seeds: tuple[int, ...], tally: Counter[str]) -> None:
    """Compares a batch of drawn programs with running each of them at once.

    Raises:
      Mismatch: a value, a metric or a gradient is wrong.
    """
    rng = np.random.default_rng([*seeds, 1])
    lazy = [once, shared][int(rng.integers(2))]
    examples = draw_examples(rng, int(rng.integers(1, 6)), 14)
    options: Any = {'reproducible': bool(rng.integers(2))}
    # With all examples, or with one alone, after which the program has to grow.
    like = examples if rng.integers(2) else examples[:1]
    model = jf.compile(lazy, like=like, **options)
    schedule = model.schedule(examples)
    params = model.init(jax.random.key(seeds[0]))
    step = jax.jit(jax.value_and_grad(batched, has_aux=True), static_argnums=1)
    compiled = step.lower(params, model, schedule).compile(UNOPTIMISED)
    (total, metrics), grads = compiled(params, schedule)
    (expected, observed), want = jax.value_and_grad(at_once, has_aux=True)(
        params, lazy, examples
    )
    same_array('lazy value', total, expected, 1e-3)
    for name, grad in grads.items():
        same_array('lazy gradient', grad, want[name], 1e-3, name)
    for metric in metrics.values():
        rows = np.concatenate([np.ravel(x) for x in observed])
        same_array('lazy metric', metric.values[metric.mask], rows, 1e-3)
    tally['lazy'] += 1


def at_once(params: Any, lazy: jf.Lazy, examples: list[Any]) -> Any:
    """A number made of all that examples give and observe, and what they observe."""
    runs = [eagerly(lazy, x, params) for x in examples]
    observed = [[x for _, x in seen] for _, seen in runs]
    total = sum(weighted(value, i) for i, (value, _) in enumerate(runs))
    return total + sum(jnp.sum(x) for seen in observed for x in seen), observed


def batched(params: Any, model: jf.Model, schedule: jf.Schedule) -> Any:
    """The same number by a batch, and its metrics."""
    values = model.apply(params, schedule)
    values, metrics = values if model.program.metric_results else (values, {})
    rows = [jax.tree.map(lambda x, i=i: x[i], values) for i in range(schedule.examples)]
    total = sum(weighted(row, i) for i, row in enumerate(rows))
    return total + sum(jnp.sum(x.values) for x in metrics.values()), metrics
