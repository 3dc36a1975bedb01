# SPDX-License-Identifier: Apache-2.0
"""Three models in few lines: they compute what they should, and are counted right."""

from __future__ import annotations

import doctest
import itertools
import sys
from pathlib import Path
from typing import Any

import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layer_checks import affine, same

import jfold as jf

BENCHMARKS = Path(__file__).parents[2] / 'benchmarks'
sys.path.append(str(BENCHMARKS))

from lines_of_code import attention, table, tree_lstm, weave  # noqa: E402

RNG = np.random.default_rng(0)


def vectors(*shape: int) -> Any:
    """Drawn vectors, in lists of lists."""
    return [*RNG.normal(size=shape).astype('float32')]


# ---- attention -----------------------------------------------------------------------


def answer(params: Any, steps: Any) -> jax.Array:
    """Of one example [steps, 2], as Raffel & Ellis 2016 define it."""
    h = jax.nn.leaky_relu(affine(params['Dense'], jnp.stack(steps)))
    alpha = jax.nn.softmax(jnp.tanh(affine(params['Dense_1'], h)), axis=0)
    s = jax.nn.leaky_relu(affine(params['Dense_2'], (alpha * h).sum(0)))
    return jax.nn.leaky_relu(affine(params['Dense_3'], s))


def test_attention_equals_plain_jax() -> None:
    """Answers and gradients, of examples of unequal length; loss and accuracy."""
    model, examples = attention.make_model(6), [vectors(n, 2) for n in (1, 4, 9)]
    same(model.block, examples, answer)
    params = model.init(jax.random.key(0))
    right = [interpreter.called(answer, params, steps)[0] for steps in examples]
    off = np.array([0.03, -0.9, -0.02], 'float32')
    loss, accuracy = attention.loss_and_accuracy(
        model, params, model.schedule(examples), jnp.add(jnp.asarray(right), off)
    )
    np.testing.assert_allclose(loss, (off**2).mean(), rtol=1e-4)
    np.testing.assert_allclose(accuracy, 2 / 3, rtol=1e-6)


# ---- the weave module ----------------------------------------------------------------


def woven(params: list[Any], a: jax.Array, p: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Eqs. 4 and 5 of Looks et al. 2017 on atoms [n, k] and pairs [n, n, m]."""
    f_a_a, f_p_a, f_a, f_a_p, f_p_p, f_p = (
        lambda *x, own=own: jax.nn.relu(affine(own, *x)) for own in params
    )
    first = jnp.broadcast_to(a[:, None], (len(a), *a.shape))
    second = first.swapaxes(0, 1)
    pairs = f_a_p(first, second) + f_a_p(second, first)
    return f_a(f_a_a(a), f_p_a(p).sum(1)), f_p(pairs, f_p_p(p))


ATOMS_AND_PAIRS = jf.Record((jf.Map(jf.Vector(3)), jf.Map(jf.Map(jf.Vector(2)))))


def test_the_weave_module_equals_plain_jax() -> None:
    """Values and gradients of molecules of unequal size."""
    total = jf.Map(jnp.square) >> jf.Sum()
    sums = jf.Record((total, jf.Map(total) >> jf.Sum())) >> jf.Concat()

    def by_hand(params: Any, molecule: Any) -> jax.Array:
        a, p = woven([*params.values()], *map(jnp.asarray, molecule))
        return jnp.concatenate([jnp.sum(a**2, 0), jnp.sum(p**2, (0, 1))])

    molecules = [(vectors(n, 3), [*map(list, vectors(n, n, 2))]) for n in (1, 4)]
    same(ATOMS_AND_PAIRS >> weave.make_weave(4, 3, 5) >> sums, molecules, by_hand)


# ---- the tree-LSTM -------------------------------------------------------------------

VECTORS = jnp.asarray(RNG.normal(size=(9, 4)), 'float32')
SIZE = 6


def phrase(depth: int) -> Any:
    """A made-up tree, whose labels follow from its words."""
    if depth == 0 or RNG.random() < 0.3:
        word = int(RNG.integers(len(VECTORS)))
        return word % 5, word
    left, right = phrase(depth - 1), phrase(depth - 1)
    return max(left[0], right[0]), left, right


def losses(weights: Any, tree: Any) -> tuple[list[float], np.ndarray]:
    """The losses of a tree's nodes without dropout, and the state of its root."""
    _, label, *rest = tree
    found, x = [], np.zeros(VECTORS.shape[1])
    left = right = np.zeros((2, SIZE))
    if len(rest) == 1:
        x = weights['words'][rest[0]]
    else:
        (first, left), (second, right) = (losses(weights, each) for each in rest)
        found = first + second
    gates = affine(weights['TreeLSTM']['Dense_0'], x, left[0], right[0])
    i, o, f_left, f_right, u = np.split(gates + np.repeat([0, 0, 1, 1, 0], SIZE), 5)
    i, o, f_left, f_right = (1 / (1 + np.exp(-x)) for x in (i, o, f_left, f_right))
    c = i * np.tanh(u) + f_left * left[1] + f_right * right[1]
    h = o * np.tanh(c)
    scores = affine(weights['Dense'], h)
    loss = np.log(np.exp(scores).sum()) - scores[label]
    return [*found, loss], np.stack([h, c])


@pytest.mark.slow
def test_the_tree_lstm_equals_recursion_and_learns() -> None:
    """Losses without dropout; then some epochs with it, all of one program."""
    model = tree_lstm.make_model(VECTORS, SIZE)
    state = tree_lstm.init(model, jax.random.key(3))
    numbers, means = itertools.count(), []
    trees = [tree_lstm.numbered(phrase(3), numbers) for _ in range(12)]
    (batch,) = model.batches(trees, 12)
    noise = jax.random.key(0), 1.0  # nothing is left out
    _, (loss, _) = tree_lstm.step(model, state, batch.schedule, noise)
    weights = jax.tree.map(np.asarray, state[0])
    expected = np.mean([x for tree in trees for x in losses(weights, tree)[0]])
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    for seed in range(30):
        state, found = tree_lstm.epoch(model, state, trees, jax.random.key(seed), 12)
        means += found
    first, last = np.mean(means[:5], 0), np.mean(means[-5:], 0)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state, means)))
    assert last[0] < 0.8 * first[0]
    assert model.programs == 1


# ---- the counter ---------------------------------------------------------------------

TEXT = '''# a comment
"""A docstring,

of three lines."""
from os import (
    path,  # with a comment
)

text = """one

two"""  # a string that is used


def f(x: int) -> int:
    """Another docstring."""
    # a comment
    return x + (
        1
    )
'''


def test_the_counter() -> None:
    """Docstrings, comments and blank lines are no code."""
    assert table.count(TEXT) == table.Lines(imports=3, others=6)
    assert table.count('') == table.Lines(imports=0, others=0)
    assert doctest.testmod(table).failed == 0


@pytest.mark.parametrize(('file', 'fold'), [model[1::2] for model in table.MODELS])
def test_fewer_lines_than_fold(file: str, fold: int) -> None:
    """Of at most 80 columns, even if imports count."""
    text = (table.FOLDER / f'{file}.py').read_text(encoding='utf-8')
    found = table.count(text)
    assert found.imports + found.others < fold
    assert max(map(len, text.splitlines())) <= 80


def test_the_table_is_that_of_the_page() -> None:
    """As printed now."""
    page = (BENCHMARKS / 'README.md').read_text(encoding='utf-8')
    assert table.table() in page
