# SPDX-License-Identifier: Apache-2.0
"""Sequences made longer, or all of one length: `Chain`, `Padded` and `Stack`."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from checking import does_not_compile, number, refuses
from extent import drawn
from hypothesis import given, settings
from hypothesis import strategies as st

import jfold as jf
from jfold.scheduling.spec import RESIDUALS, STRATEGIES

WIDTH = 3
KEY = jax.random.key(0)
numbers = jf.Map(number)


def lists_of(model: jf.Model, examples: Any) -> Any:
    """What a model gives of examples, as lists, of floats."""
    made = model.apply({}, model.schedule(examples))
    return jax.tree.map(float, made.to_list())


# ---- Chain ---------------------------------------------------------------------------

CHAINS: dict[str, tuple[Any, list[Any]]] = {
    'sequences of sequences': (
        jf.Map(numbers) >> jf.Chain(),
        [[[1, 2], [], [3]], [], [[]], [[4]]],
    ),
    'objects of objects': (jf.Chain() >> numbers, [[(1, 2), [3]], [], [[]]]),
    'sequences of objects': (
        jf.Map(jf.GetItem('x')) >> jf.Chain() >> numbers,
        [[{'x': [1, 2]}, {'x': [3]}], []],
    ),
    'sequences of pairs': (
        jf.Map(jf.Record((number, number))) >> jf.Chain(),
        [[(1, 2), (3, 4)], []],
    ),
    'a tuple of sequences': (
        jf.Record((numbers, numbers, numbers)) >> jf.Chain(),
        [([1, 2], [], [3]), ([], [4], [5, 6]), ([], [], [])],
    ),
    'a tuple of unlike kinds': (
        jf.Record((numbers, jf.Record((number, number)))) >> jf.Chain(),
        [([1, 2], (3, 4)), ([], (5, 6))],
    ),
    'a tuple of objects': (
        jf.Record((jf.Identity(), jf.Identity())) >> jf.Chain() >> numbers,
        [([1], (2, 3)), ([], [])],
    ),
}


def flat(example: Any) -> list[float]:
    """All items of an example's parts."""
    parts = [x['x'] if isinstance(x, dict) else x for x in example]
    return list(map(float, itertools.chain(*parts)))


@pytest.mark.parametrize('name', CHAINS)
def test_what_is_chained(name: str) -> None:
    block, examples = CHAINS[name]
    expected = list(map(flat, examples))
    assert lists_of(jf.compile(block), examples) == expected
    assert [jax.tree.map(float, block.eval(x)) for x in examples] == expected


def test_chains_of_chains() -> None:
    """Three levels become one; tuples and sequences within each other."""
    deep = jf.Map(jf.Map(numbers))
    inner = deep >> jf.Map(jf.Chain()) >> jf.Chain()
    both = jf.compile(jf.AllOf(inner, deep >> jf.Chain() >> jf.Chain()) >> jf.Chain())
    examples: list[Any] = [[[[1], [2, 3]], [], [[]]], [], [[[4]]]]
    assert lists_of(both, examples) == [[1, 2, 3, 1, 2, 3], [], [4, 4]]


@pytest.mark.parametrize(
    ('block', 'message'),
    [
        (
            number >> jf.Chain(),
            'Pipe[1].Chain(): expected a sequence, a non-empty tuple of one type, or '
            'an object, got float32[]; use a Function for what is in one tensor, and '
            'Map for a list of the data',
        ),
        (
            numbers >> jf.Chain(),
            'Pipe[1].Chain(): expected a sequence, a non-empty tuple of one type, or '
            'an object, got float32[]; use a Function for what is in one tensor, and '
            'Map for a list of the data',
        ),
        (
            jf.Record((numbers, jf.Map(jf.Vector(2)))) >> jf.Chain(),
            'Pipe[1].Chain(): expected items of type float32[], got float32[2]',
        ),
    ],
)
def test_what_cannot_be_chained(block: Any, message: str) -> None:
    does_not_compile(block, message)


# ---- states of all nodes -------------------------------------------------------------


def init(key: Any, *inputs: Any) -> Any:
    return jax.random.normal(key, (len(inputs), WIDTH))


def cell(w: Any, *inputs: Any) -> Any:
    return jnp.tanh(sum(p * x for p, x in zip(w, inputs, strict=True)))


@jf.recursive
def tree(tree: Any) -> Any:
    """The state of a tree, and those of all its nodes, of the left part first."""

    @jf.compose
    def join(pair: Any) -> Any:
        left, right = tree(pair[0]), tree(pair[1])
        state = jf.Function(cell, init, name='cell')(left[0], right[0])
        return state, jf.Chain()(left[1], right[1], jf.AllOf(jf.Identity())(state))

    leaf = number >> jf.Function(cell, init, name='leaf')
    alone = jf.AllOf(jf.Identity(), jf.AllOf(jf.Identity()) >> jf.Map(jf.Identity()))
    return jf.OneOf(type, {int: leaf >> alone, tuple: join})


@jf.compose
def attended(data: Any) -> Any:
    """A mean of the states of all nodes, each weighed by how it is like the root."""
    root, states = (made := tree(data))[0], made[1]
    alike = jf.ZipWith(jnp.dot)(states, jf.Broadcast()(root))
    shares = jf.Softmax()(alike)
    return jf.Sum()(jf.ZipWith(jnp.multiply)(shares, states))


trees = st.recursive(st.integers(-3, 3), lambda x: st.tuples(x, x), max_leaves=6)


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ('residuals', 'strategy'), list(zip(RESIDUALS, STRATEGIES, strict=True))
)
def test_attention_over_the_nodes_of_trees(residuals: str, strategy: str) -> None:
    model = jf.compile(attended, residuals=residuals, strategy=strategy)
    params = model.init(KEY)

    @settings(max_examples=drawn(1, 3))
    @given(st.lists(trees, min_size=3, max_size=3))
    def equal(batch: Any) -> None:
        agree(model, params, batch, 1e-5)

    equal()


# ---- Padded, Stack -------------------------------------------------------------------

pairs = jf.Map(jf.Record((number, jf.Vector(2))))


@given(st.lists(st.lists(st.integers(-9, 9), max_size=4), min_size=2, max_size=3))
@settings(max_examples=drawn(8, 20))
def test_what_is_stacked(batch: list[list[int]]) -> None:
    model = stacking(4)
    expected = [[*x, *[0] * (4 - len(x))] for x in batch]
    np.testing.assert_array_equal(model.apply({}, model.schedule(batch)), expected)


def stacking(length: int, known: dict[int, jf.Model] = {}) -> jf.Model:  # noqa: B006
    """One model for a length, compiled once."""
    if length not in known:
        known[length] = jf.compile(numbers >> jf.Stack(length))
    return known[length]


def test_tuples_and_sequences_are_padded() -> None:
    """Zeros of each part; of a sequence, one without items."""
    model = jf.compile(pairs >> jf.Stack(2))
    one, two = model.apply({}, model.schedule([[(1, [2, 3])], []]))
    np.testing.assert_array_equal(one, [[1, 0], [0, 0]])
    np.testing.assert_array_equal(two, [[[2, 3], [0, 0]], [[0, 0], [0, 0]]])
    nested = jf.compile(jf.Map(numbers) >> jf.Padded(2) >> jf.Chain())
    assert lists_of(nested, [[[1, 2]], [[3], [4]], []]) == [[1, 2], [3, 4], []]


def test_one_sequence_is_padded_to_several_lengths() -> None:
    model = jf.compile(numbers >> jf.AllOf(jf.Stack(2), jf.Stack(3), jf.Stack(2)))
    expected = [[4, 5], [4, 5, 0], [4, 5]]
    got = model.apply({}, model.schedule([[4, 5]]))
    assert [x[0].tolist() for x in got] == expected


def test_gradients_reach_what_is_there() -> None:
    """A convolution over windows, of sequences that are padded."""
    start = lambda key, x: jax.random.normal(key, (2, 3))  # noqa: E731
    weigh = jf.Function(lambda w, x: w @ x, start)
    windows = numbers >> jf.NGrams(3) >> jf.Map(jf.Stack(3) >> weigh)
    block = windows >> jf.Stack(4) >> jf.Function(jnp.tanh)
    model = jf.compile(block)
    examples = [[1, 2, 3, 4], [], [5, 6], [1, 0, 2, 0, 3, 0]]
    agree(model, model.init(KEY), examples, 1e-5)
    agree(model, model.init(KEY), [[]], 1e-5)


def test_too_many_items_are_told() -> None:
    model = stacking(2)
    text = 'expected at most 2 items, got 3; cut it by a Slice'
    with pytest.raises(jf.InputError) as caught:
        model.schedule([[1], [1, 2, 3]])
    assert str(caught.value) == f'example 1: {text}; in Pipe[1].Padded(2)'
    with pytest.raises(ValueError, match=text):
        model.eval([1, 2, 3])
    inside = jf.compile(jf.Map(numbers >> jf.Padded(1) >> jf.GetItem(0)) >> jf.Sum())
    with pytest.raises(jf.InputError, match=r'example 0, at \[1\]: expected at most 1'):
        inside.schedule([[[1], [2, 3]]])


sides = jf.Record((numbers, numbers)) >> jf.Chain()


@pytest.mark.parametrize(
    ('block', 'example', 'message'),
    [
        (
            sides >> jf.Stack(2),
            ([1], [2, 3]),
            'expected at most 2 items, got 3; cut it by a Slice',
        ),
        (
            sides >> jf.GetItem(5),
            ([1], [2]),
            'expected an item 5, got a sequence of length 2',
        ),
        (
            jf.Record((jf.Identity(), jf.Identity()))
            >> jf.Chain()
            >> jf.Map(numbers >> jf.Stack(1)),
            ([[1]], [[2], [3, 4]]),
            'at [1][1]: expected at most 1 items, got 2; cut it by a Slice',
        ),
    ],
)
def test_what_is_wrong_behind_a_chain_is_located(
    block: Any, example: Any, message: str
) -> None:
    model = jf.compile(block)
    for examples in ([example], [example, example]):
        with pytest.raises(jf.InputError) as caught:
            model.schedule(examples)
        place = ', ' if message.startswith('at ') else ': '
        assert str(caught.value).startswith(f'example 0{place}{message}; in')


@pytest.mark.parametrize('make', [jf.Stack, jf.Padded])
def test_lengths_are_positive_ints(make: Any) -> None:
    for value, hint in (2.0, '; write `length=2`'), (True, ''), (None, ''):
        with refuses(f'expected `length` as int, got {value!r}{hint}'):
            make(value)
    text = 'expected `length` of at least 1, got 0; write `length=1` or more'
    with refuses(text, ValueError):
        make(0)
    block = jf.Map(number) >> make(np.int64(2))
    assert np.asarray(block.eval([1.0])).tolist() == [1.0, 0.0]


def test_objects_have_no_zeros() -> None:
    does_not_compile(
        jf.Map(jf.Identity()) >> jf.Padded(2) >> jf.GetItem(0) >> number,
        'Pipe[1].Padded(2): expected items of tensors, which have zeros, got object',
    )
