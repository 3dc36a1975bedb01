# SPDX-License-Identifier: Apache-2.0
"""What benchmarks share: turns, checks, references, models; no times."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfold as jf

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / 'benchmarks'
sys.path += [str(BENCHMARKS), str(ROOT / 'examples')]

import iclr2017  # noqa: E402
import measuring  # noqa: E402
import paper_model  # noqa: E402
import turns  # noqa: E402
from measuring import Disagreement, agree  # noqa: E402
from trees import random_tree  # noqa: E402
from turns import Times, take_turns  # noqa: E402

# ---- turns and checks ----------------------------------------------------------------


def test_ratios_go_round_by_round() -> None:
    """Quartiles of ratios, over the rounds that both have."""
    ratios = Times((2.0, 6.0, 12.0, 1.0)) / Times((1.0, 2.0, 3.0))
    assert ratios.values == (2.0, 3.0, 4.0)
    assert (ratios.median, ratios.quartiles) == (3.0, (2.5, 3.5))
    assert (Times((1.0, 3.0)) + Times((1.0, 1.0))).values == (2.0, 4.0)


def test_contenders_take_turns() -> None:
    """All run in every round; a slow one stops once it has enough."""
    calls: dict[str, list[int]] = {'a': [], 'b': []}
    contenders = {name: calls[name].append for name in calls}
    times = take_turns(contenders, 6)
    assert {name: len(t.values) for name, t in times.items()} == {'a': 6, 'b': 6}
    assert calls['a'] == calls['b']
    assert set(range(7)) <= set(calls['a'])
    timed = {'c': lambda _: turns.Seconds(2)}
    assert take_turns(timed, 2)['c'].values == (2, 2)
    stopped = take_turns(contenders, 6, limit=0)
    assert len(stopped['a'].values) == turns.ENOUGH


@pytest.mark.parametrize(
    ('got', 'problem'),
    [
        ({'a': np.ones(3), 'b': np.float32(2.01)}, "results['b']"),
        ({'a': np.ones(3), 'b': np.float32('nan')}, "results['b']"),
        ({'a': np.ones((3, 1)), 'b': np.float32(2)}, "results['a']"),
        ({'a': np.ones(3)}, 'expected ["[\'a\']", "[\'b\']"]'),
    ],
)
def test_wrong_results_are_noticed(got: Any, problem: str) -> None:
    """Values, NaN, shapes and structure."""
    want = {'a': np.ones(3), 'b': np.float32(2)}
    agree('it', jax.tree.map(lambda x: x * 1.00001, want), want)
    with pytest.raises(Disagreement) as raised:
        agree('it', got, want)
    assert problem in str(raised.value)


def counting_block() -> jf.Block:
    """Something with a metric, a whole number and parameters."""
    scale = jf.Function(jnp.multiply, lambda key, x: jnp.full(3, 2.0), 'scale')
    kept = jf.AllOf(jf.Identity(), jf.Function(jnp.sum) >> jf.Metric('sums'))
    item = jf.Scalar('int32') >> jf.Function(jnp.float32) >> scale
    return jf.Map(item) >> jf.Sum() >> kept >> jf.GetItem(0)


BATCHES = [[[1, 2, 3], [4, 5]], [[6], [7, 8]]]


@pytest.mark.slow
def test_setup_counts_and_runs() -> None:
    """Schedules fit the compiled steps; the perfect batch has as many rows."""
    setup = measuring.set_up('sums', counting_block(), BATCHES, [[1], [2, 3]], len)
    assert setup.nodes == 4.0
    assert setup.operations == 8  # the mean of 10 and 6
    for i, expected in enumerate([[12.0, 18.0], [12.0, 30.0]]):
        for step in (setup.run, setup.whole):
            values, _ = step('infer', i)
            np.testing.assert_array_equal(values[:, 0], expected)
    outputs = jax.tree.leaves(setup.perfect.run('infer'))
    assert sum(len(x) for x in outputs) == 8
    assert setup.steps['train'].compiled.memory_analysis() is not None


@pytest.mark.slow
def test_wrong_steps_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that forgets its metrics is not that of the eager twin."""

    def wrong(model: jf.Model, params: Any, schedule: jf.Schedule) -> Any:
        values, _ = model.apply(params, schedule)
        return (values * values * schedule.mask[:, None]).sum() / 2

    monkeypatch.setattr(measuring, 'loss', wrong)
    with pytest.raises(Disagreement, match='sums, train'):
        measuring.set_up('sums', counting_block(), BATCHES, [[1]], len)


# ---- the table of the paper ----------------------------------------------------------


def recursive(params: Any, tree: Any) -> jax.Array:
    """The root, as the definition reads."""
    if isinstance(tree, int):
        return params['embed'][tree]
    left, right = (recursive(params, part) for part in tree)
    hidden = jax.nn.relu(
        jnp.concatenate([left, right]) @ params['cell']['w0'] + params['cell']['b0']
    )
    gates = hidden @ params['cell']['w1'] + params['cell']['b1']
    keep_left, keep_right, write, new = gates.reshape(4, -1)
    kept = jax.nn.sigmoid(keep_left) * left + jax.nn.sigmoid(keep_right) * right
    return kept + jax.nn.sigmoid(write) * jnp.tanh(new)


@pytest.mark.slow
def test_the_reference_equals_recursion() -> None:
    """With it the programs by node and by level are compared before they are timed."""
    rng = random.Random(0)
    shape = random_tree(9, rng)
    words = iter(lambda: rng.randrange(128), None)
    trees = [paper_model.with_words(shape, words) for _ in range(3)]
    params = jf.compile(paper_model.expression(4)).init(jax.random.key(0))
    params['cell'] |= {'b0': jnp.arange(4.0), 'b1': jnp.arange(16.0) / 8}
    want = np.stack([recursive(params, tree) for tree in trees])
    got = jax.jit(paper_model.roots_in_step)(params, *paper_model.postorder(trees))
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_levels_of_a_tree() -> None:
    """Leaves come first, then cells by height, each before its parent."""
    tree = ((0, 0), ((0, 0), 0))
    assert paper_model.levels(tree) == [[(0, 1), (2, 3)], [(6, 4)], [(5, 7)]]


def test_figures_of_the_paper() -> None:
    """Ratios of the seconds are those printed, as far as seconds are rounded."""
    printed = {1024: 101.79, 512: 114.15, 256: 120.86, 128: 115.05, 64: 96.40}
    for batch, speed_up in (printed | {32: 68.79, 1: 4.47}).items():
        found = iclr2017.paper_columns(batch)['paper GPU speed-up']
        assert found == pytest.approx(speed_up, rel=0.02)
