# SPDX-License-Identifier: Apache-2.0
"""What was made by one model, for another of the same structure: as in notebooks."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checking import refuses
from tree_corpora import TREES, assert_equal, assert_same, trees

import jfold as jf

CELL = """
def kind(x):
    return 'pair' if isinstance(x, tuple) else 'word'


def cell(p, left, right):
    return jnp.tanh(p @ jnp.concatenate([left, right]))


def draw(key, left, right):
    return jax.random.normal(key, (left.size, 2 * left.size))


def draw_table(key, word):
    return jax.random.normal(key, (10, {width}))


combine = jf.Function(cell, draw)


@jf.recursive
def tree(tree):
    word = jf.Scalar('int32') >> jf.Function(lambda p, i: p[i], draw_table)
    return jf.OneOf(kind, {{'word': word, 'pair': (tree(), tree()) >> combine}})


start = jf.Zeros({width})
block = jf.Record({{'trees': jf.Map(tree) >> jf.Fold(combine, start),
                    'other': jf.Vector(3)}})
model = jf.compile(block, **options)
"""
DATA = [
    {'trees': [(1, (2, 3)), 4], 'other': [1, 2, 3]},
    {'trees': [], 'other': [4, 5, 6]},
    {'trees': [(5, 6)], 'other': [7, 8, 9]},
]


def run(width: int, **options: Any) -> tuple[jf.Model, Any]:
    """A model as a cell of a notebook defines it, and its parameters."""
    names = {'jf': jf, 'jnp': jnp, 'jax': jax, 'options': options}
    exec(CELL.format(width=width), names)
    model: Any = names['model']
    return model, model.init(jax.random.key(0))


def same(got: Any, want: Any) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), got, want)


@pytest.mark.parametrize('width', [4, 6])
def test_a_corpus_outlasts_its_model(width: int, tmp_path: Path) -> None:
    """Widths of layers do not count, in memory and in a file, nor for a tracer."""
    corpus, traced = run(4)[0].trace(DATA), run(4)[0].tracer()(DATA)
    model, params = run(width)
    want = model.predict(params, DATA, batch_size=3)
    corpus.save(tmp_path / 'corpus.jfold')
    for each in (corpus, jf.Corpus.load(tmp_path / 'corpus.jfold', model)):
        same(model.predict(params, each, batch_size=3), want)
        joined = model.join([each, each])
        assert joined.scheduler is model.scheduler
        schedule = joined.schedule([3, 1, 2])
        assert_same(schedule, model.schedule(DATA))
        same(model.apply(params, schedule), want)
        for batch in model.batches(each, 3):
            same(model.apply(params, batch.schedule), want)
    same(model.apply(params, model.schedule(traced)), want)
    for part in corpus, traced:
        assert_equal(model.join([part]), model.trace(DATA))


def two_widths(wide: int, narrow: int) -> jf.Model:
    """Constants, items, metrics and labels of two widths, and of that of the data."""

    def table(width: int, name: str) -> Any:
        def draw(key: Any, _: Any) -> Any:
            return jax.random.normal(key, (10, width))

        return jf.Scalar('int32') >> jf.Function(lambda p, i: p[i], draw, name)

    def times(width: int, name: str) -> jf.Function:
        def draw(key: Any, x: Any) -> Any:
            return jax.random.normal(key, (x.size, width))

        return jf.Function(lambda p, x: jnp.tanh(x @ p), draw, name)

    narrow_words = jf.Map(table(narrow, 'narrow'))
    total = narrow_words >> jf.Fold(narrowed := jf.Function(plus), jf.Zeros(narrow))
    wide_words = jf.Map(jf.Optional(table(wide, 'wide'), jf.Zeros(wide)))
    kind = jf.OneHotFromList('abc') >> times(wide, 'of kind')
    label = jf.AllOf(kind, jf.Identity()) >> jf.Metric('kinds')
    assert narrowed.name is None
    block = {
        'words': jf.AllOf(total >> times(wide, 'up'), wide_words),
        'kind': jf.AllOf(kind, label) >> jf.GetItem(0),
        'other': jf.Vector(3) >> times(narrow, 'of data'),
        'same': jf.Vector(3),
    }
    return jf.compile(jf.Record(block))


def plus(x: Any, y: Any) -> Any:
    return x + y


WORDS = [
    {'words': [1, 2, 3], 'kind': 'a', 'other': [1, 2, 3], 'same': [4, 5, 6]},
    {'words': [], 'kind': 'b', 'other': [1, 2, 3], 'same': [4, 5, 6]},
    {'words': [4, 5], 'kind': 'c', 'other': [1, 2, 3], 'same': [4, 5, 6]},
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize('old', [(4, 4), (4, 6), (3, 4), (4, 3), (3, 3)])
@pytest.mark.parametrize('new', [(4, 4), (4, 6), (3, 4), (4, 3), (3, 3)])
def test_widths_may_become_equal_or_different(
    old: Any, new: Any, tmp_path: Path
) -> None:
    """Values of one width are numbered together; then they are numbered anew."""
    corpus, model = two_widths(*old).trace(WORDS), two_widths(*new)
    corpus.save(tmp_path / 'corpus.jfold')
    want = model.trace(WORDS)
    assert_equal(model.join([corpus]), want)
    assert_equal(jf.Corpus.load(tmp_path / 'corpus.jfold', model), want)


def test_one_constant_that_is_several_now() -> None:
    """Of one type, nothing tells which of them a value was."""

    def constant(value: float) -> jf.Function:
        return jf.Function(lambda _: jnp.float32([value]))

    def make(*values: float) -> jf.Model:
        parts = [jf.Map(jf.Scalar() >> constant(x)) for x in values]
        return jf.compile(jf.Record(parts))

    corpus = make(1, 1).trace([([1], [2, 3])])
    with refuses(
        'expected a corpus in which constants that differ now differed, got one in '
        'which they were one: trace the examples again with `model.trace`',
        ValueError,
    ):
        make(1, 2).join([corpus])
    assert make(2, 2).predict({}, corpus)[0].to_list()[0] == [2]


def test_parts_in_files_stay_there(tmp_path: Path) -> None:
    """They are one corpus of another model, and mapped into memory as before."""
    one = trees()
    for number in range(2):
        part = one.trace(TREES[number::2], progress=False)
        part.save(tmp_path / f'{number}.jfold')
    corpus = jf.Corpus.load(tmp_path, one)
    other = trees()
    joined = other.join([corpus])
    order = [0, 3, 1, 4, 2]
    assert_same(joined.schedule(order), other.schedule(TREES))
    assert len(joined.graph.graphs) == 2  # type: ignore[union-attr]


@pytest.mark.parametrize(
    'options',
    [{}, {'strategy': 'fixed'}, {'residuals': 'recompute all'}, {'reproducible': True}],
    ids=str,
)
def test_a_schedule_of_a_model_that_was_the_same(options: Any) -> None:
    (one, _), (model, params) = run(4, **options), run(4, **options)
    want = model.predict(params, DATA, batch_size=3)
    corpus = one.trace(DATA)
    for schedule in (one.schedule(DATA), corpus.schedule(range(3))):
        same(model.apply(params, schedule), want)
        same(jax.jit(model.apply)(params, schedule), want)
    step = model.precompile(model.apply, params, corpus.capacities(3))
    one.reserve(corpus.capacities(3))
    same(step(params, one.schedule(DATA)), want)
    same(step(params, corpus.schedule([0, 1, 2])), want)
    with pytest.raises(TypeError, match='does not match the input pytree'):
        step(params, one.schedule(DATA), one.schedule(DATA))


def test_schedules_of_a_model_without_loops() -> None:
    def make() -> jf.Model:
        return jf.compile(jf.Map(jf.Scalar()) >> jf.Sum())

    one, other = make(), make()
    data = [[1, 2], [3], []]
    assert other.apply({}, one.schedule(data)).tolist() == [3, 3, 0]
    stacked = jf.Schedule.stack([one.schedule(data)] * 2)
    assert jax.vmap(lambda x: other.apply({}, x))(stacked).shape == (2, 3)


def test_what_does_not_fit_is_told() -> None:
    (one, _), (model, params) = run(4), run(6)
    text = (
        'expected a schedule made by this model, got one of another, in which widths, '
        'constants or options differ: call `model.schedule(examples)`, or '
        '`model.join([corpus]).schedule(indices)`, of the model that is applied'
    )
    with refuses(text, ValueError):
        model.apply(params, one.schedule(DATA))
    with refuses(text, ValueError):
        model.apply(params, run(6, strategy='fixed')[0].schedule(DATA))
    constant = [jf.compile(jf.FromTensor(np.float32([x]))) for x in (1.0, 2.0)]
    with refuses(text, ValueError):
        constant[0].apply({}, constant[1].schedule([0]))
    others = jf.compile(jf.Record({'trees': jf.Vector(2), 'other': jf.Vector(3)}))
    corpus = others.trace([{'trees': [1, 2], 'other': [1, 2, 3]}])
    for use in (model.batches, lambda x, n: model.predict(params, x, batch_size=n)):
        with pytest.raises(
            ValueError,
            match=r'^expected a corpus of the expression of this model, got one of '
            r'another, with .*. Trace the examples again with `model.trace`$',
        ):
            use(corpus, 2)


def test_the_first_model_is_not_kept() -> None:
    (one, _), (model, params) = run(4), run(4)
    schedule = one.schedule(DATA)
    model.apply(params, schedule)
    found = weakref.ref(one.program)
    del one, schedule
    gc.collect()
    assert found() is None
