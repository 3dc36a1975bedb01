# SPDX-License-Identifier: Apache-2.0
"""Levels, chunks and sums that take several tiles, as those of large batches do."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from binary_trees import binary, binary_tree, dense_cell, embedding
from checking import observed
from expressions import Expression, expressions
from extent import drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import in_loops
from small_limits import small_limits

import jfold as jf
from jfold.scheduling.layout import layout
from jfold.scheduling.spec import (
    COUNTED,
    FIXED,
    RECOMPUTE_ALL,
    RESIDUALS,
    SAVE_PRODUCTS,
    STRATEGIES,
)

H = 3


def weights(key: Any, *_: Any) -> Any:
    """Of `cell`, such that states neither vanish nor grow."""
    return jax.random.normal(key, (2, H, H)) / 2


def cell(w: Any, x: Any, y: Any) -> Any:
    return jnp.tanh(w[0] @ x + jnp.sin(w[1] @ y))


def trees() -> jf.Block:
    """Binary trees with a metric at every node."""
    leaf = jf.Scalar('int32') >> embedding(H)
    return binary(leaf, dense_cell(H) >> observed('seen'))


def pairs() -> jf.Block:
    """A recurrence of which all pairs of states meet, outside of it if possible."""
    read = jf.Function(lambda w, x, y: (cell(w, x, y),) * 2, weights, name='read')
    meet = jf.Function(cell, weights, name='meet')

    @jf.compose
    def with_all(state: Any, states: Any) -> Any:
        return jf.Sum()(jf.ZipWith(meet)(jf.Broadcast()(state), states))

    @jf.compose
    def with_each_other(items: Any) -> Any:
        states, last = jf.RNN(read, jf.Zeros([H]))(items)
        return jf.Sum()(jf.ZipWith(with_all)(states, jf.Broadcast()(states))), last

    return jf.Map(jf.Scalar('int32') >> embedding(H)) >> with_each_other


def hubs() -> jf.Block:
    """A recurrence that reads one of its values again and again."""
    tree = jf.ForwardDeclaration(name='tree')
    leaf = jf.Scalar('int32') >> embedding(H)
    node = jf.Share(jf.Record((tree(), tree())) >> jf.Function(cell, weights))
    tree.resolve_to(jf.OneOf(type, {int: leaf, tuple: node}))
    return tree()


def hub(rng: Any, length: int) -> Any:
    """Nested pairs, all of which hold the innermost one."""
    nested = inner = tuple(rng.integers(16, size=2).tolist())
    for _ in range(length):
        nested = inner, nested
    return nested


def words(rng: Any, length: int) -> Any:
    return rng.integers(16, size=length).tolist()


KINDS = {'trees': (trees, binary_tree), 'pairs': (pairs, words), 'hubs': (hubs, hub)}
OPTIONS: list[Any] = [
    {'strategy': FIXED, 'residuals': SAVE_PRODUCTS},
    {'strategy': FIXED, 'residuals': RECOMPUTE_ALL, 'reproducible': True},
    {'strategy': COUNTED, 'residuals': SAVE_PRODUCTS},
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize('options', OPTIONS, ids=str)
@pytest.mark.parametrize('kind', KINDS)
def test_several_tiles_give_what_one_gives(kind: str, options: Any) -> None:
    """Values, metrics and gradients, of few and of many rows."""
    make, draw = KINDS[kind]
    rng = np.random.default_rng(0)
    examples = [draw(rng, n) for n in (1, 7, 4, 9)]
    with small_limits():
        model = jf.compile(make(), **options)
        schedule = model.schedule(examples)
        places = layout(schedule.spec)
        assert any(sum(trips) > 9 for trips in places.trips)
        rooms = zip(schedule.spec.capacity.sums, places.sum_width, strict=True)
        in_tiles = [width < room for room, width in rooms if room]
        # What is read outside of loops is added up there, if there is an outside.
        is_summed = kind == 'hubs' or (kind == 'pairs' and not model.program.applied)
        assert in_tiles == [True] * is_summed
        params = model.init(jax.random.key(0))
        agree(model, params, examples, forward=True)
        agree(model, params, examples[:2], size=4)


@pytest.mark.parametrize('strategy', STRATEGIES)
def test_sums_of_a_recurrence_behind_another_component(strategy: str) -> None:
    """Their levels are counted through all components, and words come first."""
    examples = [hub(np.random.default_rng(0), n) for n in (1, 9)]
    with small_limits():
        model = jf.compile(hubs(), strategy=strategy)
        spec = model.schedule(examples).spec
        rooms = zip(spec.capacity.sums, layout(spec).sum_width, strict=True)
        assert any(room > width for room, width in rooms)
        agree(model, model.init(jax.random.key(0)), examples)


def test_what_is_read_outside_of_loops_is_one_use() -> None:
    """However many readers it has, nothing is added up in loops."""
    states = words(np.random.default_rng(0), 9)
    capacity = jf.compile(pairs()).schedule([states]).spec.capacity
    assert not any(capacity.sums)
    assert max(capacity.fans) == 1


@pytest.mark.slow
@settings(max_examples=drawn(1, 8))
@given(
    st.sampled_from(['tree', 'sequence', 'whole']).flatmap(expressions),
    st.sampled_from(STRATEGIES),
    st.sampled_from(RESIDUALS),
)
def test_drawn_expressions_in_loops(
    expression: Expression, strategy: str, residuals: str
) -> None:
    """Also of what has no recurrence."""
    examples = expression.batch(np.random.default_rng(0), 4)
    with small_limits():
        model = in_loops(expression.block, residuals, strategy)
        agree(model, model.init(jax.random.key(0)), examples)
