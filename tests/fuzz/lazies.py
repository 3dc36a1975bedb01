# SPDX-License-Identifier: Apache-2.0
"""Lazy functions in a campaign: drawn programs, against running them at once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import numpy as np
from agreement import agree
from eagerly import eagerly
from lazy_programs import draw_examples, once, shared

import jfold as jf
from fuzz.near import Mismatch

BOUND = 1e-4
ROUNDING = 2.0**-22  # of float32, relative


class AtOnce:
    """A model whose `eval` runs a lazy function at once."""

    def __init__(self, model: jf.Model, lazy: jf.Lazy) -> None:
        self.model, self.lazy = model, lazy

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def eval(self, example: Any, params: Any, *_: Any, **options: Any) -> Any:
        """Its value and, where the model has metrics, what it observes."""
        value, seen = eagerly(self.lazy, example, params)
        program = self.model.program
        names = [program.results[r].kind.name for r in program.metric_results]
        metrics = {name: [x for k, x in seen if k == name] for name in names}
        return (value, metrics) if names else value


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
    model.schedule(examples)
    params = model.init(jax.random.key(seeds[0]))
    at_once: Any = AtOnce(model, lazy)
    try:
        agree(at_once, params, examples, BOUND)
        tally['lazy'] += 1
    except AssertionError as error:
        if not _is_sensitive(lazy, params, examples):
            raise Mismatch('lazy value', f'{error}') from error
        tally['sensitive'] += 1


def _is_sensitive(lazy: jf.Lazy, params: Any, examples: list[Any]) -> bool:
    """Whether a rounding of parameters moves a gradient at once beyond the bound.

    So it does where values are normalised whose gradients all but cancel.
    """

    def loss(params: Any) -> Any:
        made = [eagerly(lazy, x, params)[0] for x in examples]
        return sum((abs(x) ** 2).sum() for x in jax.tree.leaves(made))

    rounded = jax.tree.map(lambda x: (x * (1 + ROUNDING)).astype(x.dtype), params)
    grads = map(jax.tree.leaves, map(jax.grad(loss), (params, rounded)))
    return any(
        np.abs(x - y).max(initial=0) > BOUND * np.abs(x).max(initial=0)
        for x, y in zip(*grads, strict=True)
    )
