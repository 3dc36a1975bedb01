# SPDX-License-Identifier: Apache-2.0
"""`apply` on a batch equals `eval` on its examples, in values and in gradients.

Lazy functions equal what running them at once gives.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest
from agreement import agree
from binary_trees import binary_tree, chain, dense_cell, embedding, kind_of, tree_block
from checking import observed
from eagerly import eagerly
from expressions import Expression, expressions
from extent import drawn
from fuzz.lazies import check_lazy
from fuzz.near import Mismatch
from hypothesis import given, settings
from hypothesis import strategies as st
from lazy_programs import draw_examples, several
from looped import in_loops

import jfold as jf
from jfold.scheduling.spec import RESIDUALS, STRATEGIES

Options = dict[str, Any]
options = st.fixed_dictionaries(
    {'residuals': st.sampled_from(RESIDUALS), 'strategy': st.sampled_from(STRATEGIES)}
)


def check(expression: Expression, options: Options, rtol: float, batches: int) -> None:
    """An expression's model agrees with its eager twin, batch by batch of three."""
    model = jf.compile(expression.block, **options)
    params = model.init(jax.random.key(1))
    rng = np.random.default_rng(2)
    for _ in range(batches):
        agree(model, params, expression.batch(rng, 3), rtol, forward=batches == 1)


# ---- generated expressions -----------------------------------------------------------


# By the outermost block: how many are drawn, in float32 and, slowly, in float64.
DRAWN = {'whole': (2, 3), 'tree': (2, 3), 'sequences': (2, 3), 'sequence': (2, 0)}


@pytest.mark.parametrize('root', DRAWN)
def test_expressions_equal_their_eager_twins(root: str) -> None:
    """Values, metrics and gradients, in float32: of expressions of any blocks, trees of
    fixed and free arity, sequences as results, and reductions of lists."""

    @settings(max_examples=drawn(1, DRAWN[root][0]))
    @given(expressions(root), options)
    def equal(expression: Expression, options: Options) -> None:
        check(expression, options, 1e-5, batches=2)

    equal()


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize('root', [root for root, (_, many) in DRAWN.items() if many])
def test_agreement_is_to_twelve_digits_in_float64(root: str) -> None:
    """What differs in float32 is rounding and nothing else."""

    @settings(max_examples=drawn(1, DRAWN[root][1]))
    @given(expressions(root, 'float64'), options)
    def equal(expression: Expression, options: Options) -> None:
        with jax.enable_x64(True):
            check(expression, options, 1e-12, batches=1)

    equal()


# ---- trees ---------------------------------------------------------------------------


def test_trees_of_any_size_in_one_batch() -> None:
    """One model: leaves alone before and after all operations, one tree or many, and
    levels of one node after levels of many."""
    model = jf.compile(tree_block())
    params = model.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    small = [[1], [1, 2, 3], [1, (2, 3), ((4, 5), 6)]]
    large = [binary_tree(rng, n) for n in (3, 1, 33, 64, 5)]
    chains = [chain(25), binary_tree(rng, 30), chain(7)]
    for batch in [*small, large, chains, [4, 5, 6]]:
        agree(model, params, batch, forward=len(batch) != 3)


# ---- the edges of a batch ------------------------------------------------------------


def test_an_empty_batch() -> None:
    """Arrays of no rows, empty metrics, gradients of zero."""
    model = jf.compile(tree_block() >> observed('root'))
    params = model.init(jax.random.key(0))
    schedule = model.schedule([])
    values, metrics = model.apply(params, schedule)
    assert values.shape == (0, 4)
    assert not metrics['root'].mask.any()
    grads = jax.grad(lambda p: model.apply(p, schedule)[0].sum())(params)
    assert all(not x.any() for x in jax.tree.leaves(grads))


def test_empty_sequences() -> None:
    """Zeros, or the default, or the start; also when all of a batch are empty."""
    items = jf.Map(jf.Vector(2) >> jf.Function(nn.Dense(2)))
    default = jf.FromTensor(np.array([2.0, 3.0], 'float32'))
    cell = dense_cell(2)
    block = items >> jf.AllOf(
        jf.Mean(),
        jf.Max(default),
        jf.Reduce(cell),
        jf.Fold(cell, default),
        jf.Length(),
        jf.GetItem(slice(1, None)) >> jf.Sum(),
    )
    model = jf.compile(block)
    params = model.init(jax.random.key(0))
    agree(model, params, [[], [[1, 2]], [[1, 2], [3, 4], [5, 7]]])
    agree(model, params, [[], [], []])


# ---- operations ----------------------------------------------------------------------


def test_one_operation_at_many_sites() -> None:
    """The same callable anywhere is one operation in loops, and has one set of
    parameters in any case."""
    layer = nn.Dense(4)
    twice = jf.Function(layer) >> jf.Function(layer)
    block = jf.Map(jf.Vector(4) >> layer) >> jf.AllOf(
        jf.Sum() >> twice, jf.Fold(jf.GetItem(1) >> twice, jf.Zeros([4]))
    )
    looped, rng = in_loops(block), np.random.default_rng(0)
    assert [str(o.layer) for o in looped.program.operations].count('Dense') == 1
    examples = [list(rng.normal(size=(n, 4))) for n in (0, 1, 3)]
    for model in looped, jf.compile(block):
        params = model.init(jax.random.key(0))
        assert list(params) == ['Dense']
        agree(model, params, examples)


def test_a_value_used_many_times() -> None:
    """Cotangents are summed over all uses, be it one or a tree of sums of them.

    In double precision: many steps of a fold leave few digits of single precision.
    """
    fold = jf.Fold(dense_cell(2), jf.Zeros(jf.TensorType([2], 'float64')))
    cases = {
        uses: jf.GetItem('x')
        >> jf.Vector(2, 'float64')
        >> nn.Dense(2, param_dtype='float64', name=f'Dense_{uses}')
        >> jf.AllOf(*[jf.Identity()] * uses)
        >> fold
        for uses in (1, 2, 4, 5, drawn(17, 40))
    }
    rng = np.random.default_rng(0)
    uses = [*cases, 4, 5]
    examples = [{'uses': n, 'x': rng.normal(size=2)} for n in uses]
    with jax.enable_x64(True):
        model = jf.compile(jf.OneOf(jf.GetItem('uses'), cases))
        agree(model, model.init(jax.random.key(0)), examples, 1e-12)


# ---- metrics -------------------------------------------------------------------------


def test_a_metric_at_every_node() -> None:
    """Its rows are the nodes of each example; its gradient joins the parent's."""
    tree = jf.ForwardDeclaration(name='tree')
    cases = {
        'word': jf.Scalar('int32') >> embedding(3),
        'pair': jf.Record((tree(), tree())) >> dense_cell(3),
    }
    node = jf.OneOf(kind_of, cases)
    tree.resolve_to(node >> observed('state') >> observed('again'))
    model = jf.compile(tree())
    rng = np.random.default_rng(0)
    trees = [binary_tree(rng, n) for n in (1, 9, 4, 20)]
    params = model.init(jax.random.key(0))
    agree(model, params, trees, forward=True)
    _, metrics = model.apply(params, model.schedule(trees))
    counts = np.bincount(metrics['state'].example, minlength=5)[:4]
    assert counts.tolist() == [1, 17, 7, 39]


# ---- lazy functions ------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize('seed', range(10))
def test_drawn_lazy_programs(seed: int) -> None:
    tally = Counter[str]()
    check_lazy((seed, 7), tally)
    assert tally['lazy'] == 1


def test_a_wrong_lazy_value_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from jfold.language import lazy_recording as module

    call = module.Recording.call

    def swapped(self, block, arguments):  # type: ignore[no-untyped-def]
        is_cell = getattr(block, 'name', None) == 'cell'
        return call(self, block, arguments[::-1] if is_cell else arguments)

    monkeypatch.setattr(module.Recording, 'call', swapped)
    with pytest.raises(Mismatch, match='lazy value'):
        for seed in range(20):
            check_lazy((seed, 3), Counter())


@pytest.mark.sampled(1)
@pytest.mark.parametrize('seed', range(4))
def test_drawn_lazy_programs_with_lists_and_dicts(seed: int) -> None:
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
