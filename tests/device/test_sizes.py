# SPDX-License-Identifier: Apache-2.0
"""Batches padded to one size: rows beyond the examples change nothing."""

from __future__ import annotations

import itertools
from typing import Any

import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree, batched_loss, floats
from binary_trees import binary, binary_tree, dense_cell, embedding, tree_block
from checking import observed, refuses
from expression_parts import tables
from expressions import Expression, expressions
from extent import drawn
from hypothesis import given, settings
from hypothesis import strategies as st

import jfold as jf

TREES = [(1, 2), 3, ((4, 5), (6, (7, 8))), (9, (10, 11))]


def check(block: jf.Block, examples: list[Any], spare: int) -> None:
    """Results, metrics and gradients are those of `eval`; spare rows of results repeat
    the last, those of metrics are of no example, and zero."""
    model, count = jf.compile(block), len(examples)
    params, size = model.init(jax.random.key(0)), count + spare
    schedule = model.schedule(examples, size=size)
    assert schedule.mask.tolist() == [True] * count + [False] * spare
    apply = lambda p: model.apply(p, schedule, tables(model))  # noqa: E731
    made = interpreter.called(apply, params)
    values, metrics = made if model.program.metric_results else (made, {})
    if examples:
        agree(model, params, examples, size=size)
    else:

        def loss(params: Any) -> Any:
            return batched_loss(params, model, schedule, external=tables(model))[0]

        grads = interpreter.called(jax.grad(loss, allow_int=True), params)
        assert not any(x.any() for x in floats(grads))
    for x in jax.tree.leaves(values):
        assert len(x) == size
        last = np.repeat(x[count - 1 : count], spare, 0)
        np.testing.assert_array_equal(x[count:], last if examples else x)
    for metric in metrics.values():
        beyond = ~np.asarray(metric.mask)
        assert set(np.asarray(metric.example)[beyond].tolist()) <= {size}
        rows = jax.tree.leaves(metric.values)
        assert not any(np.asarray(x)[beyond].any() for x in rows)


@pytest.mark.slow
@settings(max_examples=drawn(1, 4))
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
    check(expression.block, examples, spare)


def observed_trees() -> jf.Block:
    """Trees with a metric at every node."""
    leaf = jf.Scalar('int32') >> embedding(4)
    return binary(leaf, dense_cell(4) >> observed('seen'))


@pytest.mark.parametrize(('count', 'spare'), [(0, 1), (0, 9), (1, 9), (4, 1)])
def test_spare_rows_of_trees(count: int, spare: int) -> None:
    check(observed_trees(), TREES[:count], spare)


def test_spare_rows_of_data() -> None:
    """Where results are constants and nothing runs."""
    model = jf.compile(jf.AllOf(jf.Scalar(), jf.Zeros(2)))
    values, zeros = model.apply({}, model.schedule([5, 7], size=4))
    assert values.tolist() == [5, 7, 7, 7]
    assert zeros.tolist() == [[0, 0]] * 4
    values, _ = model.apply({}, model.schedule([], size=2))
    assert values.shape == (2,)


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


# ---- sizes and programs --------------------------------------------------------------


def test_more_examples_than_the_size() -> None:
    """They are refused, once those of a generator are read; the model is as it was."""
    model = jf.compile(jf.Scalar())
    for count, size in (3, 2), (1, 0):
        text = f'expected at most {size} examples, as `size` says, got {count}'
        for examples in [0.0] * count, (float(x) for x in range(count)):
            with refuses(text, ValueError):
                model.schedule(examples, size=size)
    assert model.programs == 0
    schedule = model.schedule((x for x in range(3)), size=4)
    assert model.apply({}, schedule).tolist() == [0, 1, 2, 2]


def test_batches_of_one_size_share_a_program() -> None:
    """Whatever the number of their examples; JAX traces once."""
    model = jf.compile(tree_block())
    params = model.init(jax.random.key(0))
    traced = []

    @jax.jit
    def step(params: Any, schedule: jf.Schedule) -> Any:
        traced.append(schedule.examples)
        return model.apply(params, schedule)

    trees = [binary_tree(np.random.default_rng(0), n) for n in range(1, 17)]
    for count in (16, 1, 7, 0, 15):
        step(params, model.schedule(trees[:count], size=16))
    assert traced == [16]
    assert model.programs == 1
    model.schedule(trees[:7])
    assert model.programs == 2


@pytest.mark.parametrize('strategy', ['counted', 'fixed'])
def test_no_tangent_flows_through_spare_rows(strategy: str) -> None:
    """As no gradient does, where the result comes straight from a loop."""
    scale = jf.Function(lambda p, a, b: p * a + b, lambda *_: jnp.float32(2), name='p')
    block = jf.Map(jf.Scalar()) >> jf.Fold(scale, jf.Zeros([]))
    model = jf.compile(block, strategy=strategy)
    schedule = model.schedule([[1, 2, 3], [4, 5]], size=4)

    def results(scale: Any) -> Any:
        return model.apply({'p': scale}, schedule)

    for derivative in (jax.jacfwd, jax.jacrev):
        assert derivative(results)(jnp.float32(2)).tolist() == [6, 4, 0, 0]
    square = lambda x: (results(x) ** 2).sum()  # noqa: E731
    for one, other in itertools.product([jax.jacfwd, jax.jacrev], repeat=2):
        assert one(other(square))(jnp.float32(2)) == 148


def test_tangents_flow_through_what_leaves_loops() -> None:
    """Through more rows than there are levels, and examples."""
    scale = jf.Function(lambda p, a, b: p * a + b, lambda *_: jnp.float32(2), name='p')
    inner = jf.Map(jf.Scalar()) >> jf.Fold(scale, jf.Zeros([]))
    model = jf.compile(jf.Map(inner) >> jf.Sum() >> jf.Function(jnp.square))
    schedule = model.schedule([[[1, 2]] * 6, [[3]]], size=3)
    assert model.program.applied and model.program.has_loops
    for derivative in (jax.jacfwd, jax.jacrev):
        found = derivative(lambda p: model.apply({'p': p}, schedule))(jnp.float32(2))
        assert found.tolist() == [2 * 24 * 6, 0, 0]
