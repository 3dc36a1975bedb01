# SPDX-License-Identifier: Apache-2.0
"""Batches padded to one size: rows beyond the examples change nothing."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import close, is_float, projection
from binary_trees import binary, binary_tree, dense_cell, embedding, tree_block
from checking import refuses
from expression_parts import tables
from expressions import Expression, expressions
from hypothesis import given, settings
from hypothesis import strategies as st

import jfold as jf

TREES = [(1, 2), 3, ((4, 5), (6, (7, 8))), (9, (10, 11))]


def masked_loss(params: Any, model: jf.Model, schedule: jf.Schedule) -> Any:
    """A sum over real rows and over metrics, and everything that `apply` returns."""
    made = model.apply(params, schedule, tables(model))
    values, metrics = made if model.program.metric_results else (made, {})
    total = jnp.zeros((), 'float32')
    for x in filter(is_float, jax.tree.leaves(values)):
        total += jnp.where(schedule.mask, weighted_rows(x), 0).sum()
    for metric in metrics.values():
        for x in filter(is_float, jax.tree.leaves(metric.values)):
            total += weighted_rows(x).sum()
    return total, (values, metrics)


def weighted_rows(x: Any) -> Any:
    """A number per row that depends on every entry in its own way."""
    product = x * projection(x.shape[1:], x.dtype)
    return product.sum(axis=tuple(range(1, x.ndim)))


# Compiling dominates, so it is asked not to try hard.
_grad = jax.jit(
    jax.value_and_grad(masked_loss, has_aux=True),
    static_argnums=1,
    compiler_options={'xla_backend_optimization_level': 0},
)


def same_with_spare_rows(
    model: jf.Model, examples: list[Any], spare: int, rtol: float = 1e-5
) -> None:
    """Results, metrics and gradients are those of a batch without spare rows."""
    params = model.init(jax.random.key(0))
    exact = model.schedule(examples)
    padded = model.schedule(examples, size=len(examples) + spare)
    (loss, (values, metrics)), grads = _grad(params, model, exact)
    (got, (rows, observed)), got_grads = _grad(params, model, padded)
    real, count = np.flatnonzero(padded.mask), len(examples)
    assert real.tolist() == list(range(count))
    close(jax.tree.map(lambda x: x[real], rows), values, rtol)
    for x in jax.tree.leaves(rows):
        assert len(x) == count + spare
        if count:
            np.testing.assert_array_equal(
                x[count:], np.repeat(x[count - 1 : count], spare, 0)
            )
    for name, expected in metrics.items():
        same_metric(observed[name], expected, count, count + spare, rtol)
    close(got, loss, 10 * rtol)
    close(got_grads, grads, rtol)


def same_metric(got: Any, expected: Any, count: int, size: int, rtol: float) -> None:
    """Real rows are the same; the others are of no example, and zero."""
    real = np.asarray(expected.mask)
    assert np.asarray(got.mask).tolist() == real.tolist()
    np.testing.assert_array_equal(got.example[real], expected.example[real])
    assert set(np.asarray(got.example[real]).tolist()) <= set(range(count))
    assert set(np.asarray(got.example[~real]).tolist()) <= {size}
    for a, b in zip(*map(jax.tree.leaves, (got.values, expected.values)), strict=True):
        close(a[real], b[real], rtol)
        assert not np.asarray(a[~real]).any()


@pytest.mark.slow
@settings(max_examples=4)
@given(
    st.sampled_from(['tree', 'whole']).flatmap(expressions),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_spare_rows_of_expressions(
    expression: Expression, count: int, spare: int
) -> None:
    """Whatever the expression; no examples or no spare rows among them."""
    examples = expression.batch(np.random.default_rng(0), count)
    same_with_spare_rows(jf.compile(expression.block), examples, spare)


def observed_trees() -> jf.Block:
    """Trees with a metric at every node."""
    seen = jf.AllOf(jf.Identity(), jf.Metric('seen')) >> jf.GetItem(0)
    leaf = jf.Scalar('int32') >> embedding(4)
    return binary(leaf, dense_cell(4) >> seen)


@pytest.mark.parametrize('count', [0, 1, 4])
@pytest.mark.parametrize('spare', [0, 1, 9])
def test_spare_rows_of_trees(count: int, spare: int) -> None:
    """From none to more than there are examples."""
    same_with_spare_rows(jf.compile(observed_trees()), TREES[:count], spare)


def test_spare_rows_of_data() -> None:
    """Where results are constants and nothing runs."""
    model = jf.compile(jf.AllOf(jf.Scalar(), jf.Zeros(2)))
    values, zeros = model.apply({}, model.schedule([5, 7], size=4))
    assert values.tolist() == [5, 7, 7, 7]
    assert zeros.tolist() == [[0, 0]] * 4
    values, _ = model.apply({}, model.schedule([], size=2))
    assert values.shape == (2,)


def test_metrics_sum_and_average_real_rows() -> None:
    """And rows of no example are dropped by a sum per example."""
    model = jf.compile(jf.Map(jf.Scalar()) >> jf.Sum() >> seen_and_doubled())
    _, metrics = model.apply({}, model.schedule([[1, 2], [], [4]], size=8))
    found = metrics['sum']
    assert found.sum().tolist() == 7
    np.testing.assert_allclose(found.mean(), 7 / 3, rtol=1e-6)
    sums = jax.ops.segment_sum(found.values, found.example, num_segments=8)
    assert sums.tolist() == [3, 0, 4, 0, 0, 0, 0, 0]


def seen_and_doubled() -> jf.Block:
    """Twice a value, which is observed."""
    seen = jf.AllOf(jf.Identity(), jf.Metric('sum')) >> jf.GetItem(0)
    return seen >> jf.AllOf(jf.Identity(), jf.Identity()) >> jnp.add


# ---- the mask ------------------------------------------------------------------------


def test_the_mask_tells_examples_from_spare_rows() -> None:
    """Also where the schedule is traced, moved to the device or has none."""
    model = jf.compile(tree_block())
    schedule = model.schedule(TREES[:3], size=5)
    expected = [True, True, True, False, False]
    assert schedule.examples == 5
    assert schedule.mask.tolist() == expected
    assert schedule.mask.dtype == bool
    assert jax.jit(lambda s: s.mask)(schedule).tolist() == expected
    assert jax.device_put(schedule).mask.tolist() == expected
    assert model.schedule(TREES).mask.tolist() == [True] * 4
    assert model.schedule(TREES, size=4).mask.tolist() == [True] * 4
    assert model.schedule([], size=2).mask.tolist() == [False, False]
    assert model.schedule([]).mask.tolist() == []


def test_spare_rows_that_a_loss_cannot_bear() -> None:
    """What the loss makes of them may be anything, as long as it is masked."""
    model = jf.compile(tree_block())
    params = model.init(jax.random.key(0))

    def loss(params: Any, schedule: jf.Schedule, targets: Any) -> Any:
        each = jnp.log(targets) * model.apply(params, schedule).sum(axis=1)
        return jnp.where(schedule.mask, each, 0).sum() / schedule.mask.sum()

    targets = jnp.array([1.0, 2, 3, 4])
    exact = jax.grad(loss)(params, model.schedule(TREES), targets)
    spare = jnp.append(targets, jnp.ones(2))
    padded = jax.grad(loss)(params, model.schedule(TREES, size=6), spare)
    close(padded, exact, 1e-5)


# ---- sizes and programs --------------------------------------------------------------


def test_more_examples_than_the_size() -> None:
    """They are refused, and the model is as it was."""
    model = jf.compile(tree_block())
    with refuses('expected at most 3 examples, as `size` says, got 4', ValueError):
        model.schedule(TREES, size=3)
    with refuses('expected at most 0 examples, as `size` says, got 1', ValueError):
        model.schedule(TREES[:1], size=0)
    assert model.programs == 0
    assert model.schedule(TREES, size=4).examples == 4


def test_the_size_of_a_schedule_from_a_generator() -> None:
    """Examples are counted once they are read."""
    model = jf.compile(jf.Scalar())
    schedule = model.schedule((x for x in range(3)), size=4)
    assert model.apply({}, schedule).tolist() == [0, 1, 2, 2]
    with refuses('expected at most 2 examples, as `size` says, got 3', ValueError):
        model.schedule((x for x in range(3)), size=2)


def test_batches_of_one_size_share_a_program() -> None:
    """Whatever the number of their examples; JAX traces once."""
    model = jf.compile(tree_block())
    params = model.init(jax.random.key(0))
    traced = []

    @jax.jit
    def step(params: Any, schedule: jf.Schedule) -> Any:
        traced.append(schedule.examples)
        values = model.apply(params, schedule)
        return jnp.where(schedule.mask[:, None], values, 0).sum(axis=0)

    rng = np.random.default_rng(0)
    trees = [binary_tree(rng, int(n)) for n in rng.integers(1, 9, 16)]
    alone = functools.cache(lambda i: np.asarray(model.eval(trees[i], params)))
    for count in (16, 1, 7, 0, 15):
        got = step(params, model.schedule(trees[:count], size=16))
        want = sum((alone(i) for i in range(count)), np.zeros(4))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert traced == [16]
    assert model.programs == 1
    model.schedule(trees[:7])
    assert model.programs == 2


def test_the_budget_counts_sizes() -> None:
    """Each is a program; those known stay usable."""
    model = jf.compile(tree_block(), max_programs=2)
    model.schedule(TREES[:2], size=3)
    model.schedule(TREES[:2], size=4)
    with pytest.raises(jf.ProgramBudgetError, match='a batch of 5 examples'):
        model.schedule(TREES[:2], size=5)
    assert model.schedule(TREES[:3], size=4).mask.sum() == 3
    assert model.programs == 2
