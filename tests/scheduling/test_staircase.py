# SPDX-License-Identifier: Apache-2.0
"""Staircases: steps that are fixed beforehand, and fit the levels of many batches."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from agreement import agree
from binary_trees import chain, dense_cell, tree_block
from expressions import Expression, expressions
from extent import drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import in_loops
from readings import check_consumers, check_fixed, check_inputs, read, reading
from tree_corpora import forest

import jfold as jf
from jfold.program.components import components
from jfold.program.operations import Program
from jfold.scheduling import staircase
from jfold.scheduling.demands import Profiles, largest_profiles, margins, profiles
from jfold.scheduling.layout import layout
from jfold.scheduling.selections import select
from jfold.scheduling.spec import RESIDUALS, STRATEGIES
from jfold.scheduling.staircase import (
    Profile,
    cut,
    fits,
    is_cut,
    larger,
    last_steps,
    run_length_encode,
    steps,
)
from jfold.tracing.record import trace

sys.path.append(str(Path(__file__).parents[2] / 'benchmarks'))

from trees import Workload

Array = np.ndarray[Any, Any]


def levels(largest_profiles: int = 300) -> st.SearchStrategy[Array]:
    """Rows of up to 20 levels of two operations."""
    row = st.tuples(st.integers(0, largest_profiles), st.integers(0, largest_profiles))
    return st.lists(row, max_size=20).map(lambda x: np.array(x, int).reshape(-1, 2))


def staircases() -> st.SearchStrategy[Profile]:
    """A few segments of two operations."""
    rows = st.tuples(st.integers(0, 200), st.integers(0, 200))
    return st.lists(st.tuples(st.integers(1, 9), rows), max_size=5).map(tuple)


def walked(rows: Array, profile: Profile) -> list[int] | None:
    """`last_steps`, one step at a time."""
    found, waiting = [], [x.tolist() for x in rows]
    for number, widths in enumerate(steps(profile, 2).tolist()):
        if not waiting:
            break
        waiting[0] = [max(n - w, 0) for n, w in zip(waiting[0], widths, strict=True)]
        if not any(waiting[0]):
            found.append(number)
            waiting.pop(0)
    return None if waiting else found


# ---- profiles ------------------------------------------------------------------------


@given(levels(3))
def test_runs_are_what_they_are_made_of(rows: Array) -> None:
    """And no two neighbours are equal."""
    found = run_length_encode(rows)
    assert steps(found, 2).tolist() == rows.tolist()
    assert all(a[1] != b[1] for a, b in itertools.pairwise(found))


@given(levels(), staircases())
def test_levels_take_steps_one_after_another(rows: Array, profile: Profile) -> None:
    """As one step at a time does."""
    found, expected = last_steps(rows, profile), walked(rows, profile)
    assert (found is None) == (expected is None)
    if found is not None:
        assert found.tolist() == expected
    assert fits(run_length_encode(rows), profile) == (expected is not None)


@given(levels(), staircases(), staircases())
def test_the_larger_of_two_holds_what_either_does(
    rows: Array, one: Profile, two: Profile
) -> None:
    either = larger(one, two)
    assert fits(one, either)
    assert fits(two, either)
    if fits(run_length_encode(rows), one) or fits(run_length_encode(rows), two):
        assert fits(run_length_encode(rows), either)


@given(levels(5000), st.floats(1, 1e6))
def test_a_staircase_holds_the_levels_it_is_cut_for(rows: Array, step: float) -> None:
    """In a few segments, as narrow as memory asks; and is not cut again."""
    found = cut(rows, step, np.array([1.0, 3.0]), (1024, 64))
    assert fits(run_length_encode(rows), found)
    assert len(found) <= staircase.SEGMENTS
    assert is_cut(found)
    assert all(64 <= a <= 1024 and b == 64 for _, (a, b) in found)


def test_more_levels_than_are_told_apart() -> None:
    """Neighbours are taken together."""
    rows = np.arange(1000, 0, -1)[:, None]
    found = cut(rows, 1000.0, np.ones(1), (4096,))
    assert fits(run_length_encode(rows), found)
    assert 1000 <= sum(count for count, _ in found) < 1100


# The most steps, and rows over those of the batch.
FIGURES = {(32, 32): (14, 1.7), (64, 128): (21, 1.4), (256, 128): (21, 1.4)}


@pytest.mark.parametrize(('trees', 'leaves'), FIGURES)
def test_trees_take_few_steps(trees: int, leaves: int) -> None:
    """Where a step costs as much as the rows of a mean level."""
    most, spare = FIGURES[trees, leaves]
    (batch,) = Workload(trees, leaves, 1).batches(1)
    graph = trace(jf.compile(tree_block()).program, batch)
    rows = np.bincount(graph.levels[-1])[1:, None]
    stairs = cut(rows, float(rows.mean()), np.ones(1), (1 << 20,))
    assert sum(count for count, _ in stairs) <= most
    assert sum(count * x for count, (x,) in stairs) <= spare * rows.sum()


# ---- schedules -----------------------------------------------------------------------


@pytest.fixture
def narrow() -> Iterator[None]:
    """Tiles as narrow as two rows, so that few nodes make steps of many widths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staircase, 'NARROW', 2)
        yield


@pytest.mark.sampled(1)
@pytest.mark.usefixtures('narrow')
@pytest.mark.parametrize('residuals', RESIDUALS)
def test_stairs_give_values_and_gradients(residuals: str) -> None:
    """Of several widths, in batches that fill other steps than the first one."""
    model = jf.compile(tree_block(3), strategy='fixed', residuals=residuals)
    params = model.init(jax.random.key(0))
    first = forest(12, 16)
    model.reserve(model.trace([*first, chain(20)]).capacities(13))
    widths = max(layout(model.schedule(first).spec).widths, key=len)
    assert len(set(widths)) > 2
    assert list(widths) == sorted(widths, reverse=True)
    for batch in (first[:6], forest(4, 16, seed=1), [chain(20)], [chain(5)] * 3):
        agree(model, params, batch, 1e-4, size=13)
    assert model.programs <= 3


@pytest.mark.sampled(1)
@pytest.mark.usefixtures('narrow')
@pytest.mark.parametrize('residuals', RESIDUALS)
def test_stairs_that_widen(residuals: str) -> None:
    """A fold over lists whose ends come together, beside a recursion of two kinds."""
    fold = jf.Fold(dense_cell(2), jf.Zeros([2]))
    both = jf.Map(jf.Map(jf.Vector(2)) >> fold) >> fold
    model = jf.compile(both, strategy='fixed', residuals=residuals)
    params = model.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    items = [
        [rng.normal(size=(n, 2)).tolist() for n in rng.integers(0, 9, k)]
        for k in (1, 7, 3, 12)
    ]
    agree(model, params, items, 1e-4)


# ---- capacities ----------------------------------------------------------------------


def of_depths(seed: int, count: int = 24) -> list[Any]:
    """Trees and chains, of few leaves and of many."""
    return [*forest(count, 20, seed), *(chain(n) for n in (1, 9, 30))]


@pytest.mark.usefixtures('narrow')
@pytest.mark.parametrize('size', [1, 4, 9])
def test_the_capacity_of_a_corpus_holds_any_batch(size: int) -> None:
    model = jf.compile(tree_block(), strategy='fixed')
    corpus = model.trace(of_depths(0))
    model.reserve(corpus.capacities(size))
    rng = np.random.default_rng(0)
    for _ in range(40):
        corpus.schedule(rng.permutation(len(corpus))[:size], size=size)
    assert model.programs == 1


@pytest.mark.usefixtures('narrow')
def test_a_capacity_is_the_same_in_another_model() -> None:
    """As when a run goes on from what was saved."""
    one, two = (jf.compile(tree_block(), strategy='fixed') for _ in range(2))
    schedule = one.schedule(of_depths(0))
    assert two.reserve(schedule.capacity) == schedule.capacity
    assert two.schedule(of_depths(0)).capacity == schedule.capacity


@pytest.mark.usefixtures('narrow')
def test_capacities_together_hold_what_either_does() -> None:
    model = jf.compile(tree_block(), strategy='fixed')
    wide, deep = [[(1, 2)] * 30, [chain(40)] * 30]
    either = model.trace(wide).capacities(30) | model.trace(deep).capacities(30)
    model.reserve(either)
    for batch in (wide, deep, wide):
        model.schedule(batch)
    assert model.programs == 1


@pytest.mark.usefixtures('narrow')
def test_what_grew_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Levels too, if they alone did."""
    model = jf.compile(tree_block(), strategy='fixed')
    model.schedule([((1, 2), (3, 4))] * 16)
    with caplog.at_level('INFO', 'jfold'):
        model.schedule([(((1, 2), 3), 4)] * 12 + [chain(20)] + [1] * 3)
    assert model.programs == 2
    assert 'the rows of levels, or their number' in caplog.text


def rows_of(program: Any, examples: list[Any]) -> list[Array]:
    """Per component with levels, the rows of each level of every example [examples,
    levels, operations]."""
    graphs = [trace(program, [x]) for x in examples]
    depth = max(graph.depth for graph in graphs)
    found = []
    for component in components(program):
        if component.recurrent:
            counts = [
                [np.bincount(x.levels[o], minlength=depth + 1)[1:] for x in graphs]
                for o in component.operations
            ]
            found.append(np.moveaxis(np.array(counts), 0, 2))
    return found


def check_profiles(program: Program, examples: list[Any], size: int) -> None:
    """The rows of levels, the most of any batch, and what chance may add."""
    selection = select(program, trace(program, examples))
    expected = rows_of(program, examples)
    recurrent = [each.recurrent for each in components(program)]

    def check(found: Profiles, of: Any) -> None:
        chosen = [x for x, yes in zip(found, recurrent, strict=True) if yes]
        assert all(not x for x, yes in zip(found, recurrent, strict=True) if not yes)
        for profile, rows in zip(chosen, expected, strict=True):
            wanted = of(rows)
            got = steps(profile, wanted.shape[1])
            np.testing.assert_array_equal(got, wanted[: len(got)])
            assert not wanted[len(got) :].any()

    check(profiles(program, [selection]), lambda rows: rows.sum(0))
    check(
        largest_profiles(selection, size), lambda x: np.sort(x, 0)[::-1][:size].sum(0)
    )
    check(
        margins(selection, size),
        lambda rows: np.ceil(3 * np.sqrt(size) * rows.std(0) - 1e-6),
    )


@settings(max_examples=drawn(4, 25))
@given(expressions('tree'), st.integers(0, 99), st.integers(1, 4))
def test_stairs_of_expressions(expression: Expression, seed: int, size: int) -> None:
    """What is known of levels is so; schedules say what their graphs do."""
    model, rng = in_loops(expression.block, strategy='fixed'), np.random.default_rng
    check_profiles(model.program, expression.batch(rng(seed), 4), size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staircase, 'NARROW', 1)
        r = reading(model, expression.batch(rng(seed), 6))
    check_fixed(r)
    check_inputs(r)
    check_consumers(r)


# ---- the budget ----------------------------------------------------------------------


def programs(strategy: str, seed: int, size: int, most: int, batches: int) -> list[int]:
    """How many programs there are after each batch of random trees."""
    model, rng = jf.compile(tree_block(4), strategy=strategy), np.random.default_rng(1)
    corpus = model.trace(forest(400, most, seed), progress=False)
    counts = []
    for _ in range(batches):
        corpus.schedule(rng.integers(0, 400, size))
        counts.append(model.programs)
    return counts


@pytest.mark.slow
@pytest.mark.parametrize('strategy', STRATEGIES)
def test_a_long_stream_has_few_programs(strategy: str) -> None:
    """At most four for a thousand batches, none after the first twenty."""
    counts = programs(strategy, 0, 24, 128, 1000)
    assert counts[-1] <= 4
    assert counts[19] == counts[-1]


def test_batches_that_are_deeper_than_the_first() -> None:
    """Margins are those of the first, where the levels are those of all."""
    model = jf.compile(tree_block(), strategy='fixed')
    shallow, deep = [chain(2)] * 20, [chain(9)] * 20
    schedules = model.schedules([shallow, deep])
    assert [x.spec for x in schedules] == [schedules[0].spec] * 2
    for batch, schedule in zip((shallow, deep), schedules, strict=True):
        r = read(trace(model.program, batch), schedule)
        check_inputs(r)
        check_fixed(r)
