# SPDX-License-Identifier: Apache-2.0
"""What a function passes on, and constants, are no operation and no level."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from extent import drawn
from hypothesis import given, settings
from hypothesis import strategies as st

import jfold as jf

KEY = jax.random.key(0)
PAIR = {'a': jf.Scalar(), 'b': jf.Vector(2)}
PAIRS = [{'a': 1.0, 'b': [2.0, 3.0]}, {'a': -4.0, 'b': [5.0, 0.5]}]


def operations(block: Any) -> list[str]:
    """What the device runs of a block."""
    return list(map(repr, jf.compile(block).program.operations))


def swapped(a: Any, b: Any) -> Any:
    return b, a * 2, jnp.arange(3.0)


def dense(p: Any, x: Any) -> Any:
    return jnp.tanh(p * x)


# ---- functions of a pair -------------------------------------------------------------

NOTHING = {
    'first': lambda a, b: a,
    'as they are': lambda a, b: (a, b),
    'turned': lambda a, b: (b, a),
    'repeated': lambda a, b: (a, (b, a)),
    'a constant': lambda a, b: (jnp.arange(3.0), b),
    'a number': lambda a, b: (2.5, b, 1),
    'zeros like': lambda a, b: (jnp.zeros_like(b), a),
    'inside jit': jax.jit(lambda a, b: jax.jit(lambda x: (x, jnp.ones(2)))(b)),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize('name', NOTHING)
def test_nothing_to_compute_is_no_operation(name: str) -> None:
    block = PAIR >> jf.Function(NOTHING[name])
    assert operations(block) == []
    agree(jf.compile(block), {}, PAIRS)


COMPUTED = {
    'one of two': (lambda a, b: (b, a * 2), 'float32[]) -> float32[]'),
    'of all': (lambda a, b: (b, a * b, a), 'float32[], float32[2]) -> float32[2]'),
    'an input unread': (lambda a, b: jnp.tanh(b), 'float32[2]) -> float32[2]'),
    'two, turned': (
        lambda a, b: (jnp.sin(a), b, jnp.ones(2), jnp.cos(a)),
        'float32[]) -> (float32[], float32[])',
    ),
    'inside jit': (jax.jit(lambda a, b: (b, jnp.sin(a))), 'float32[]) -> float32[]'),
    'another type': (lambda a, b: (a.astype('int32'), b), 'float32[]) -> int32[]'),
    'no gradient': (
        lambda a, b: (jax.lax.stop_gradient(b), a),
        'float32[2]) -> float32[2]',
    ),
}


@pytest.mark.parametrize('name', COMPUTED)
def test_what_is_computed_is_an_operation(name: str) -> None:
    fn, types = COMPUTED[name]
    block = PAIR >> jf.Function(fn, name='fn')
    assert operations(block) == [f'fn({types}']
    agree(jf.compile(block), {}, PAIRS)


def test_parameters_are_no_inputs() -> None:
    """A parameter that is an output is computed; one that nothing reads has zeros for
    a gradient."""
    init = {'w': jnp.ones(2), 'unread': jnp.ones(3)}
    block = PAIR >> jf.Function(
        lambda p, a, b: (p['w'], a, p['w'] * b), lambda key: init, name='fn'
    )
    assert operations(block) == ['fn(float32[2]) -> (float32[2], float32[2])']
    model = jf.compile(block)
    agree(model, model.init(KEY), PAIRS)
    unused = PAIR >> jf.Function(lambda p, a, b: b, lambda key: init, name='fn')
    assert operations(unused) == []
    model = jf.compile(unused)
    assert model.init(KEY).keys() == {'fn'}
    agree(model, model.init(KEY), PAIRS)


def test_what_has_an_effect_or_draws_is_left_alone() -> None:
    said: list[float] = []

    def telling(a: Any, b: Any) -> Any:
        jax.debug.callback(lambda x: said.append(float(x)), a)
        return b, a

    model = jf.compile(PAIR >> jf.Function(telling))
    jax.block_until_ready(model.apply({}, model.schedule(PAIRS)))
    jax.effects_barrier()
    assert {1.0, -4.0} <= {*said}

    def drawing(a: Any, dropout: Any = None) -> Any:
        return a if dropout is None else a + jax.random.normal(dropout)

    model = jf.compile(jf.Scalar() >> jf.Function(drawing, rngs='dropout'))
    schedule = model.schedule([1.0, 2.0])
    assert (model.apply({}, schedule, rngs=KEY) != jnp.array([1.0, 2.0])).all()
    assert (model.apply({}, schedule, deterministic=True) == jnp.array([1, 2])).all()


def test_functions_of_whole_tiles() -> None:
    """What they pass on of some rows they may cut of more: all of it is computed."""
    fn = jf.Function(lambda a, b: (b, a * 2, jnp.ones_like(a)), batched=True, name='fn')
    block = PAIR >> fn
    types = 'float32[], float32[2]) -> (float32[2], float32[], float32[])'
    assert operations(block) == [f'fn({types}']
    agree(jf.compile(block), {}, PAIRS)


def test_constants_of_models_made_inside_of_a_trace() -> None:
    """One that is traced is none: what is differentiated outside keeps its value."""

    def value(x: jax.Array) -> jax.Array:
        total = jnp.zeros(())
        for fn in (lambda a: (a, jnp.ones(2) * 3), lambda a: (a, x * 2)):
            model = jf.compile(jf.Scalar() >> jf.Function(fn))
            total += model.apply({}, model.schedule([1.0]))[1].sum()
        return total * x

    assert jax.jit(value)(jnp.float32(3)) == (6 + 6) * 3


# ---- inside of other blocks ----------------------------------------------------------


def test_a_tuple_put_together_in_a_recurrence_is_no_level() -> None:
    """A cell with its state put in order by a function, and by blocks."""

    def folded(last: Any) -> jf.Model:
        cell = jf.Function(lambda p, h, x: dense(p, h + x), lambda key: jnp.float32(2))
        read = jf.AllOf(jf.GetItem(0) >> jf.GetItem(0), jf.GetItem(1))
        step = jf.AllOf(read >> cell, jf.GetItem(0))
        start = jf.AllOf(*map(jf.FromTensor, np.float32([0, 1])))
        return jf.compile(jf.Map(jf.Scalar()) >> jf.Fold(step >> last, start))

    by_function = folded(jf.Function(lambda h, state: (h, state[0])))
    by_blocks = folded(jf.AllOf(jf.GetItem(0), jf.GetItem(1) >> jf.GetItem(0)))
    data = [[1.0, 2.0, -1.0], [], [0.5]]
    for model in (by_function, by_blocks):
        assert len(model.program.operations) == 1
        assert model.schedule(data).depth == 3
        agree(model, model.init(KEY), data, 1e-4)


def test_reduce_share_cases_and_metrics() -> None:
    keep = jf.Function(lambda a, b: (b, a))
    loud = jf.AllOf(jf.Identity(), jf.Metric('seen')) >> jf.GetItem(0)
    tree = jf.ForwardDeclaration(output_type=jf.types.TupleType([], []))
    split = {0: tree(), 1: tree()} >> jf.Function(lambda a, b: (b[1], a[0]))
    leaf = jf.Scalar() >> jf.Function(lambda x: (x, jnp.float32(2)))
    tree.resolve_to(jf.OneOf(type, {float: leaf, tuple: split}))
    blocks = [
        (jf.Map(PAIR >> keep) >> jf.Reduce(lambda x, y: (x[0], y[1])), [PAIRS, PAIRS]),
        (PAIR >> keep >> loud, PAIRS),
        (tree(), [(1.0, (2.0, 3.0)), 4.0]),
    ]
    for block, data in blocks:
        model = jf.compile(block)
        assert len(model.program.operations) == 0
        agree(model, {}, data)


def test_items_of_tensors_that_are_the_tensor() -> None:
    assert operations(jf.Vector(3) >> jf.GetItem(slice(None))) == []
    assert len(operations(jf.Vector(3) >> jf.GetItem(slice(1, 3)))) == 1


def test_what_is_not_finite_is_told_of_what_is_read() -> None:
    model = jf.compile(PAIR >> jf.Function(lambda a, b: (b, jnp.log(a)), name='fn'))
    found = jf.find_nan(model, {}, PAIRS)
    assert found is not None and found.example == 1
    assert repr(found) == (
        "example 1, at ['a']: expected finite values of fn(float32[]) -> float32[], "
        'got nan of -4.0; in Pipe[1].Function(fn)'
    )


def test_saved_and_loaded(tmp_path: Any) -> None:
    fn = jf.Function(swapped, name='fn')
    block = {'a': jf.Scalar(), 'b': jf.Vector(2)} >> fn
    model = jf.compile(block)
    jf.save(tmp_path / 'model', model, {}, model.trace(PAIRS).capacities(2))
    expected = model.apply({}, model.schedule(PAIRS))
    loaded = jf.load(tmp_path / 'model')
    jax.tree.map(np.testing.assert_array_equal, expected, loaded.predict(PAIRS))


# ---- functions that are drawn --------------------------------------------------------


@st.composite
def wirings(draw: Any) -> tuple[Any, int]:
    """A function of three inputs, and how many of its outputs are computed."""
    kinds = st.tuples(
        st.sampled_from(['input', 'constant', 'computed', 'weighed']),
        st.lists(st.integers(0, 2), min_size=1, max_size=3),
    )
    outputs = draw(st.lists(kinds, min_size=1, max_size=5))

    def output(kind: str, read: list[int], p: Any, given: list[Any]) -> Any:
        if kind == 'constant':
            return jnp.full(2, 1.0 + len(read))
        if kind == 'input':
            return given[read[0]]
        total = sum(jnp.sin(given[i]).sum() * (i + 1) for i in read)
        return total * p if kind == 'weighed' else total

    def fn(p: Any, *given: Any) -> Any:
        return tuple(output(*each, p, list(given)) for each in outputs)

    return fn, sum(kind in ('computed', 'weighed') for kind, _ in outputs)


@pytest.mark.slow
@settings(max_examples=drawn(5, 20))
@given(wirings())
def test_drawn_functions(drawn: tuple[Any, int]) -> None:
    fn, count = drawn
    block = (jf.Scalar(), jf.Vector(2), jf.Scalar()) >> jf.Function(
        fn, lambda key: jnp.float32(0.5), name='fn'
    )
    model = jf.compile(block)
    assert [len(x.outputs) for x in model.program.operations] == [count] * (count > 0)
    agree(model, model.init(KEY), [(1.0, [2.0, 3.0], 4.0), (0.5, [1.0, -1.0], 0.1)])


def test_constants_of_one_size_and_several_shapes() -> None:
    """And what a function returns is the program's own from then on."""
    given = np.ones(2, 'float32')
    block = jf.Scalar() >> jf.AllOf(
        jf.Function(lambda x: (x, jnp.zeros(4), jnp.zeros((2, 2)), jnp.zeros((0, 3)))),
        jf.Function(lambda x: (x, jnp.zeros((5, 0)), given)),
    )
    model = jf.compile(block)
    given[:] = 5
    first, second = model.apply({}, model.schedule([1.0, 2.0]))
    assert [x.shape[1:] for x in first] == [(), (4,), (2, 2), (0, 3)]
    assert second[1].shape == (2, 5, 0)
    assert second[2].tolist() == [[1, 1], [1, 1]]
