# SPDX-License-Identifier: Apache-2.0
"""Lazy functions: values, metrics and gradients are those of running them at once."""

from __future__ import annotations

from collections import Counter

import jax
import numpy as np
import pytest
from agreement import agree
from eagerly import eagerly
from fuzz.lazies import check_lazy
from fuzz.near import Mismatch
from lazy_programs import draw_examples, several

import jfold as jf


@pytest.mark.parametrize('seed', range(10))
def test_drawn_programs(seed: int) -> None:
    tally = Counter[str]()
    check_lazy((seed, 7), tally)
    assert tally['lazy'] == 1


def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from jfold.language import lazy_recording as module

    call = module.Recording.call

    def swapped(self, block, arguments):  # type: ignore[no-untyped-def]
        is_cell = getattr(block, 'name', None) == 'cell'
        return call(self, block, arguments[::-1] if is_cell else arguments)

    monkeypatch.setattr(module.Recording, 'call', swapped)
    with pytest.raises(Mismatch, match='lazy value'):
        for seed in range(20):
            check_lazy((seed, 3), Counter())


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
