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
from jax.flatten_util import ravel_pytree

import jfold as jf

BENCHMARKS = Path(__file__).parents[2] / 'benchmarks'
sys.path.append(str(BENCHMARKS))

from lines_of_code import attention, table, tree_lstm, weave  # noqa: E402

RNG = np.random.default_rng(0)


def dense(params: Any, x: jax.Array) -> jax.Array:
    """An affine map of vectors [..., n]."""
    return x @ params['kernel'] + params['bias']


def drawn(shapes: Any) -> Any:
    """Parameters of these shapes, biases too."""
    return jax.tree.map(
        lambda x: jnp.asarray(RNG.uniform(-0.5, 0.7, x.shape), x.dtype), shapes
    )


def shapes_of(model: Any) -> dict[str, Any]:
    """Of the model's parameters."""
    return jax.eval_shape(model.init, jax.random.key(0))


def both(fn: Any, params: Any, **options: Any) -> Any:
    """The value of a function, and its gradients, without compiling it."""
    made = jax.make_jaxpr(jax.value_and_grad(fn, **options), return_shape=True)
    closed, shapes = made(params)
    found = interpreter.run(closed, jax.tree.leaves(params))
    return jax.tree.unflatten(jax.tree.structure(shapes), found)


def check_gradients(found: Any, expected: Any) -> None:
    """Finite, alike, and not all zero."""
    flat, want = (np.asarray(ravel_pytree(x)[0]) for x in (found, expected))
    assert np.isfinite(flat).all()
    assert np.abs(want).max() > 1e-3
    np.testing.assert_allclose(flat, want, rtol=1e-4, atol=1e-5)


# ---- attention -----------------------------------------------------------------------


def answer(params: Any, steps: jax.Array) -> jax.Array:
    """Of one example [steps, 2], as Raffel & Ellis 2016 define it."""
    h = jax.nn.leaky_relu(dense(params['Dense'], steps))
    alpha = jax.nn.softmax(jnp.tanh(dense(params['Dense_1'], h)), axis=0)
    s = jax.nn.leaky_relu(dense(params['Dense_2'], (alpha * h).sum(0)))
    return jax.nn.leaky_relu(dense(params['Dense_3'], s))[0]


def test_attention_equals_plain_jax() -> None:
    """Loss, accuracy and gradients, of examples of unequal length."""
    examples = [RNG.normal(size=(n, 2)).astype('float32') for n in (1, 4, 9)]
    model = attention.make_model(6)
    params = drawn(shapes_of(model))
    right = [jax.jit(answer)(params, steps).item() for steps in examples]
    targets = jnp.asarray(np.add(right, [0.03, -0.9, -0.02]), 'float32')
    schedule = model.schedule(list(map(list, examples)))

    def loss(params: Any) -> tuple[jax.Array, jax.Array]:
        return attention.loss_and_accuracy(model, params, schedule, targets)

    def plain(params: Any) -> jax.Array:
        answers = jnp.stack([answer(params, steps) for steps in examples])
        return ((answers - targets) ** 2).mean()

    (value, accuracy), grads = both(loss, params, has_aux=True)
    want, expected = both(plain, params)
    np.testing.assert_allclose(value, want, rtol=1e-4)
    np.testing.assert_allclose(accuracy, 2 / 3, rtol=1e-6)
    check_gradients(grads, expected)


# ---- the weave module ----------------------------------------------------------------


def woven(params: list[Any], a: jax.Array, p: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Eqs. 4 and 5 of Looks et al. 2017 on atoms [n, k] and pairs [n, n, m]."""
    f_a_a, f_p_a, f_a, f_a_p, f_p_p, f_p = (
        lambda *x, own=own: jax.nn.relu(dense(own, jnp.concatenate(x, -1)))
        for own in params
    )
    first = jnp.broadcast_to(a[:, None], (len(a), *a.shape))
    second = first.swapaxes(0, 1)
    pairs = f_a_p(first, second) + f_a_p(second, first)
    return f_a(f_a_a(a), f_p_a(p).sum(1)), f_p(pairs, f_p_p(p))


def molecule(atoms: int) -> tuple[np.ndarray, np.ndarray]:
    """Features of atoms [n, 3], and of pairs [n, n, 2], which are symmetric."""
    pairs = RNG.normal(size=(atoms, atoms, 2))
    pairs *= 1 - np.eye(atoms)[..., None]
    a = RNG.normal(size=(atoms, 3))
    return a.astype('float32'), (pairs + pairs.swapaxes(0, 1)).astype('float32')


def listed(a: np.ndarray, p: np.ndarray) -> Any:
    """A molecule as Python lists."""
    return list(a), list(map(list, p))


ATOMS_AND_PAIRS = jf.Record((jf.Map(jf.Vector(3)), jf.Map(jf.Map(jf.Vector(2)))))


def squares() -> jf.Block:
    """Sums over all atoms, and over all pairs."""
    total = jf.Map(jnp.square) >> jf.Sum()
    return jf.Record((total, jf.Map(total) >> jf.Sum()))


def test_the_weave_module_equals_plain_jax() -> None:
    """Values and gradients of molecules of unequal size."""
    model = jf.compile(ATOMS_AND_PAIRS >> weave.make_weave(4, 3, 5) >> squares())
    params = drawn(shapes_of(model))
    examples = [molecule(n) for n in (1, 4)]
    schedule = model.schedule([listed(*each) for each in examples])

    def loss(params: Any) -> tuple[jax.Array, Any]:
        atoms, pairs = model.apply(params, schedule)
        return jnp.sum(atoms) + jnp.sum(pairs), (atoms, pairs)

    def plain(params: Any) -> tuple[jax.Array, Any]:
        each = [woven(list(params.values()), *example) for example in examples]
        atoms = jnp.stack([jnp.sum(a**2, 0) for a, _ in each])
        pairs = jnp.stack([jnp.sum(p**2, (0, 1)) for _, p in each])
        return jnp.sum(atoms) + jnp.sum(pairs), (atoms, pairs)

    (_, found), grads = both(loss, params, has_aux=True)
    (_, wanted), expected = both(plain, params, has_aux=True)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4)
    check_gradients(grads, expected)


def test_weave_modules_can_be_stacked() -> None:
    """Each with parameters of its own."""
    stack = weave.make_weave(4, 3) >> weave.make_weave(5, 2)
    model = jf.compile(ATOMS_AND_PAIRS >> stack >> squares())
    kernels = [each['kernel'].shape for each in shapes_of(model).values()]
    assert len(kernels) == 12
    assert {(100, 4), (100, 3), (100, 5), (100, 2)} < set(kernels)


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


def phrases(count: int) -> list[Any]:
    """Some trees, with numbers."""
    numbers = itertools.count()
    return [tree_lstm.numbered(phrase(3), numbers) for _ in range(count)]


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
    given = np.concatenate([x, left[0], right[0]])
    gates = dense(weights['TreeLSTM']['Dense_0'], given)
    i, o, f_left, f_right, u = np.split(gates, 5)
    c = sigmoid(i) * np.tanh(u)
    c += sigmoid(f_left + 1) * left[1] + sigmoid(f_right + 1) * right[1]
    h = sigmoid(o) * np.tanh(c)
    scores = dense(weights['Dense'], h)
    loss = np.log(np.exp(scores).sum()) - scores[label]
    return [*found, loss], np.stack([h, c])


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Of each number."""
    return 1 / (1 + np.exp(-x))


def test_each_node_has_a_number() -> None:
    """Children before parents; the rest stays."""
    tree = (3, (2, 7), (4, (1, 5), (0, 6)))
    expected = (4, 3, (0, 2, 7), (3, 4, (1, 1, 5), (2, 0, 6)))
    assert tree_lstm.numbered(tree, itertools.count()) == expected


def test_dropout_keeps_what_is_expected() -> None:
    """Its own for every node and every vector; on average one."""
    noise = jax.random.key(0), 0.75
    draw = jax.vmap(lambda node: tree_lstm.dropout((40, 30), noise, node))
    first, second = map(np.asarray, jax.jit(draw)(jnp.arange(200)))
    assert (first.shape, second.shape) == ((200, 40), (200, 30))
    np.testing.assert_allclose(np.unique(first), [0, 4 / 3], rtol=1e-6)
    np.testing.assert_allclose([first.mean(), second.mean()], 1, atol=0.05)
    assert (first[:, :30] != second).any()
    assert len(np.unique(first, axis=0)) == 200


@pytest.mark.slow
def test_the_tree_lstm_equals_recursion_and_learns() -> None:
    """Losses without dropout; then some epochs with it, all of one program."""
    model = tree_lstm.make_model(VECTORS, SIZE)
    state = tree_lstm.init(model, jax.random.key(3))
    trees, means = phrases(12), []
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

from __future__ import annotations
from os import (
    path,  # with a comment
)

text = """one

two"""  # a string that is used


def f(
    x: int,
) -> int:
    """Another docstring."""
    # a comment
    return x + (
        1
    )
'''


def test_the_counter() -> None:
    """Docstrings, comments and blank lines are no code."""
    assert table.count(TEXT) == table.Lines(imports=4, others=8)
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
