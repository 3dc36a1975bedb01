# SPDX-License-Identifier: Apache-2.0
"""Capacities that a corpus tells hold its batches, and no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from binary_trees import chain
from checking import refuses
from expressions import Expression, expressions
from extent import drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_corpora import TREES, trees

import jfold as jf
from jfold.data.corpus import Corpus
from jfold.scheduling.demands import capacity as capacity_of
from jfold.scheduling.demands import demands
from jfold.scheduling.read_modes import with_slots
from jfold.scheduling.selections import select
from jfold.scheduling.spec import Capacity
from jfold.scheduling.tiles import without_unused


@given(expressions(), st.data())
@settings(max_examples=drawn(8, 20))
def test_capacities_hold_every_batch(expression: Expression, data: Any) -> None:
    """Of different examples, of that many or fewer, with limited nodes or without."""
    model = jf.compile(expression.block, max_programs=100)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    corpus = model.trace(expression.batch(rng, 7))
    size = data.draw(st.integers(1, 9))
    largest = int(corpus.nodes.max())
    limit = data.draw(st.none() | st.integers(max(largest, 1), 2 * largest + 1))
    capacity = corpus.capacities(size, limit)
    order = data.draw(st.permutations(range(7)))[: data.draw(st.integers(1, size))]
    while limit is not None and corpus.nodes[list(order)].sum() > limit:
        order = order[:-1]
    assert_fits(model, corpus, [order], size, capacity)
    planned = corpus.capacities_of([order, order[:1]], size)
    assert_fits(model, corpus, [order, order[:1]], size, planned)
    selection = select(model.program, corpus.graph.pick(np.array(order)))
    need = capacity_of(model.program, demands(selection), size)
    exact = corpus.capacities_of([order], size)
    assert exact == need


def assert_fits(
    model: jf.Model, corpus: Corpus, batches: Any, size: int, capacity: Capacity
) -> None:
    """Batches need no more than a capacity, which a new model of the program keeps."""
    fresh = jf.Model(model.block, model.program, max_programs=1)
    fresh.budget.adopt(capacity)
    own = replace(corpus, scheduler=fresh.scheduler)
    # Nothing is added up in slots if sums have rows.
    expected = with_slots(model.program, without_unused(model.program, capacity))
    for batch in batches:
        assert own.schedule(batch, size=size).spec.capacity == expected


def wide_and_sinks() -> jf.Model:
    """A value with many uses, and operations whose results only the result reads."""
    many = jf.AllOf(*[jf.Identity()] * 21) >> jf.Function(
        lambda *x: sum(x), name='many'
    )
    tree = jf.ForwardDeclaration(name='tree')
    leaf = jf.Scalar() >> jf.Function(
        lambda w, x: w * x, lambda key, x: jnp.ones(()), name='leaf'
    )
    seen = jf.Function(jnp.sin) >> jf.Function(jnp.cos) >> jf.Metric('seen')
    node = jf.Map(tree()) >> jf.Sum() >> many
    both = jf.OneOf(type, {float: leaf, list: node})
    tree.resolve_to(both >> jf.AllOf(jf.Identity(), seen) >> jf.GetItem(0))
    return jf.compile(tree(), max_programs=100)


@given(st.data())
@settings(max_examples=drawn(8, 20))
def test_capacities_hold_batches_of_skewed_sizes(data: Any) -> None:
    model = wide_and_sinks()
    nested = st.recursive(
        st.just(1.0), lambda x: st.lists(x, max_size=4), max_leaves=30
    )
    examples = [*data.draw(st.lists(nested, min_size=1, max_size=8)), [[[1.0] * 50]]]
    corpus = model.trace(examples)
    size = data.draw(st.integers(1, len(examples)))
    orders = [data.draw(st.permutations(range(len(examples))))[:size] for _ in 'abc']
    assert_fits(model, corpus, orders, size, corpus.capacities(size))
    planned = corpus.capacities_of(orders, size)
    assert_fits(model, corpus, orders, size, planned)
    pairs = zip(planned.dimensions(), corpus.capacities(size).dimensions(), strict=True)
    assert all(a <= b for (_, a), (_, b) in pairs)


def test_capacities_are_no_larger_than_the_largest_batch() -> None:
    """Of each kind by itself; `max_nodes` limits each."""
    model = trees()
    corpus = model.trace([chain(n) for n in (0, 4, 1, 9, 2)])
    capacity = corpus.capacities(2)
    assert capacity.examples == 2
    words = model.program.types.index(jf.TensorType((), 'int32'))
    assert capacity.constants[words] == 10 + 5
    assert capacity.rows == (10 + 5, 9 + 4)
    assert capacity.levels == 9
    assert corpus.capacities(2, max_nodes=19).rows == (15, 13)
    assert corpus.capacities(np.int64(3), np.int64(20)).rows == (18, 15)
    assert corpus.capacities(3, 19).rows == (18, 15)
    assert corpus.capacities(5, 19).rows == (19, 16)
    assert corpus.capacities(100).rows == corpus.capacities(5).rows
    assert corpus.capacities(100).examples == 100
    assert isinstance(corpus.capacities(np.int64(3)).examples, int)
    small = corpus.capacities_of([[0, 2], [4]], 2)
    assert (small.rows, small.levels) == ((3, 2), 2)


def test_arguments_of_capacities() -> None:
    corpus = trees().trace(TREES)
    with refuses('expected `batch_size` as int, got None'):
        corpus.capacities(None)  # type: ignore[arg-type]
    text = 'expected `max_nodes` of at least 1, got 0; write `max_nodes=1` or more'
    with refuses(text, ValueError):
        corpus.capacities(2, 0)
    with refuses("expected `max_nodes` as int, got 'a'"):
        corpus.capacities(2, 'a')  # type: ignore[arg-type]
    with refuses('expected `size` as int, got 2.5'):
        corpus.capacities_of([], 2.5)  # type: ignore[arg-type]
    text = 'expected at most 2 examples, as `size` says, got 3 in batch 1'
    with refuses(text, ValueError):
        corpus.capacities_of(iter([[0], [0, 1, 2]]), 2)
