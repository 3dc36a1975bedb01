# SPDX-License-Identifier: Apache-2.0
"""The graph of an example does not depend on what it is traced together with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from binary_trees import binary_tree, tree_block
from expressions import Expression, any_expressions, expressions
from extent import drawn
from graphs import canonical, same, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import in_loops
from traced_cases import CASES
from walked import recorded

import jfold as jf
from jfold.data.corpus import Corpus
from jfold.data.fingerprint import code_of
from jfold.graph import concatenate
from jfold.program.operations import Program
from jfold.scheduling.demands import demands
from jfold.scheduling.selections import select
from jfold.tracing.check_graph import check_graph
from jfold.tracing.record import trace


def chosen(examples: Sequence[Any], indices: Sequence[int]) -> list[Any]:
    return [examples[i] for i in indices]


def check_examples(program: Program, examples: Sequence[Any]) -> None:
    """A batch is its examples one after another, and any part of it its examples."""
    whole = trace(program, examples)
    check_graph(program, whole)
    same(whole, concatenate([whole]))
    if examples:
        same(whole, concatenate([trace(program, [each]) for each in examples]))
    for cut in range(len(examples) + 1):
        parts = examples[:cut], [], examples[cut:]
        same(whole, concatenate([trace(program, part) for part in parts]))


def check_picks(
    program: Program, examples: Sequence[Any], picks: Iterator[tuple[int, ...]]
) -> None:
    """A graph's examples in any order are the graph of the examples in that order."""
    whole = trace(program, examples)
    for indices in picks:
        picked = whole.pick(np.array(indices, np.int64))
        check_graph(program, picked)
        same(picked, trace(program, chosen(examples, indices)))


def check_schedules(
    model: jf.Model, examples: Sequence[Any], picks: Iterator[tuple[int, ...]]
) -> None:
    """The schedule of picked examples is that of the examples, to the bit."""
    whole = trace(model.program, examples)
    demanded = demands(select(model.program, whole))
    places, code = np.arange(whole.examples), code_of(model.program)
    corpus = Corpus(model.scheduler, whole, demanded, places, code)
    for indices in picks:
        expected = model.schedule(chosen(examples, indices))
        made = corpus.schedule(indices)
        assert made.spec == expected.spec
        same_bits('indices', made.indices, expected.indices)
        for t, pair in enumerate(zip(made.constants, expected.constants, strict=True)):
            same_bits(f'constants {t}', *pair)


# ---- any expression ------------------------------------------------------------------

indices = st.lists(st.integers(0, 4), max_size=7).map(tuple)


def check_any(expression: Expression, seed: int, picks: list[Any]) -> None:
    """All of it for five examples, of which one occurs twice."""
    model = jf.compile(expression.block, max_programs=100)
    examples = expression.batch(np.random.default_rng(seed), 4)
    examples.insert(2, examples[0])
    check_examples(model.program, examples)
    check_picks(model.program, examples, iter(picks))
    check_schedules(model, examples, iter(picks))


@pytest.mark.slow
@settings(max_examples=drawn(12, 60))
@given(any_expressions(), st.integers(0, 99), st.lists(indices, min_size=1, max_size=4))
def test_examples_of_expressions(
    expression: Expression, seed: int, picks: list[Any]
) -> None:
    check_any(expression, seed, picks)


@settings(max_examples=drawn(5, 15))
@given(
    expressions('tree', 'float64'), st.integers(0, 99), st.lists(indices, max_size=2)
)
def test_examples_of_double_precision(
    expression: Expression, seed: int, picks: list[Any]
) -> None:
    """Constants keep all their bits."""
    with jax.enable_x64(True):
        check_any(expression, seed, picks)


# ---- expressions of all kinds --------------------------------------------------------


def parts(count: int) -> Iterator[tuple[int, ...]]:
    """All subsets of the first numbers, each in two orders, and some repeated."""
    for size in range(count + 1):
        for subset in itertools.combinations(range(count), size):
            yield from {subset, subset[1:] + subset[:1]}
    yield (0,) * 3
    yield (*range(count), *range(count)[::-1])


@pytest.mark.sampled(8)
@pytest.mark.parametrize('name', CASES)
def test_examples_of_cases(name: str) -> None:
    """Their graphs are those of walks, and those of any part their own."""
    block, examples = CASES[name]()
    looped = in_loops(block).program
    graphs = trace(looped, examples), recorded(looped, examples)
    same(*(canonical(looped, graph) for graph in graphs))
    model, last = jf.compile(block, max_programs=100), len(examples) - 1
    check_examples(model.program, examples)
    check_picks(model.program, examples, parts(len(examples)))
    picks = [(), (0,), (last, 0), (1,) * 7, tuple(range(last + 1))]
    check_schedules(model, examples, iter(picks))


def test_examples_of_large_batches() -> None:
    """Hundreds of trees in another order, half of them twice, half of them never."""
    rng = np.random.default_rng(0)
    examples = [binary_tree(rng, int(n)) for n in rng.integers(1, 30, 300)]
    model = jf.compile(tree_block(), max_programs=100)
    picks = [tuple(rng.permutation(300).tolist()), tuple(rng.integers(0, 300, 500))]
    check_picks(model.program, examples, iter(picks))
    check_schedules(model, examples, iter(picks))
