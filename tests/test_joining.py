# SPDX-License-Identifier: Apache-2.0
"""Examples that were traced apart, put together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from checking import refuses
from expressions import Expression, any_expressions
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_corpora import TREES, assert_equal, assert_same, trees

import jfold as jf


@settings(max_examples=25)
@given(any_expressions(), st.integers(0, 99))
def test_what_is_joined_is_as_if_traced_together(
    expression: Expression, seed: int
) -> None:
    """Whatever the expression; by a corpus, by a tracer, by none."""
    examples = expression.batch(np.random.default_rng(seed), 5)
    model = jf.compile(expression.block)
    whole = model.trace(examples, progress=False)
    parts = [
        model.trace(examples[:2], progress=False),
        model.tracer()(examples[2:3]),
        model.trace([], progress=False),
        model.tracer()(examples[3:]),
    ]
    joined = model.join(parts)
    assert_equal(joined, whole)
    assert_same(joined.schedule(range(5)), model.schedule(examples))


def test_places_count_on() -> None:
    model = jf.compile(jf.Scalar() >> jf.Function(abs))
    first, second = (
        model.trace(x, skip_errors=True, progress=False)
        for x in ([1, 'x', 3], ['y', 5])
    )
    joined = model.join([first, model.tracer()([7]), second])
    assert joined.source.tolist() == [0, 2, 3, 5]
    assert [at for at, _ in joined.skipped] == [1, 4]
    assert model.apply({}, joined.schedule([3, 0])).tolist() == [5, 1]


def test_corpora_of_other_models_of_the_expression(tmp_path: Path) -> None:
    one, two = trees(), trees()
    one.trace(TREES, progress=False).save(tmp_path / 'file')
    loaded = jf.Corpus.load(tmp_path / 'file', one)
    joined = two.join([loaded, two.trace(TREES, progress=False)])
    assert joined.model is two
    assert_same(joined.schedule(range(10)), two.schedule(TREES * 2))


def test_what_cannot_be_joined() -> None:
    model, other = jf.compile(jf.Scalar()), jf.compile(jf.Scalar('int32'))
    part = model.trace([1], progress=False)
    with refuses('expected at least one corpus or Traced, got none', ValueError):
        model.join([])
    with refuses(
        'part 1: expected a corpus or what a tracer made, got list: trace examples by '
        '`model.trace`'
    ):
        model.join([part, [1]])
    for wrong in (other.trace([1], progress=False), other.tracer()([1])):
        with refuses(
            'part 1: expected examples traced for the expression of this model, got '
            'those of another',
            ValueError,
        ):
            model.join([part, wrong])
