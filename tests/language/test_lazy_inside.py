# SPDX-License-Identifier: Apache-2.0
"""Layers and metrics that lazy functions make, and the lines that errors name."""

from __future__ import annotations

import inspect
import itertools
import pickle
from pathlib import Path
from typing import Any

import cloudpickle
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from flax import nnx

import jfold as jf

TREES: list[Any] = [(1, (2, 3)), 4, ((1, 2), (3, 4))]
embed = jf.Function(nn.Embed(10, 4), name='embed')
dense = jf.Function(nn.Dense(4), name='dense')
tanh = jf.Function(jnp.tanh)
watched = (
    dense >> jf.AllOf(jf.Metric('dense'), jnp.sum >> jf.Metric('sum')) >> jf.Void()
)


def sums(x: Any) -> Any:
    return x.sum()


# ---- metrics -------------------------------------------------------------------------


@jf.lazy
def observing(t: Any) -> Any:
    """Observes as others are told to."""
    if isinstance(t, int):
        return embed(t)
    x = observing(t[0]) + observing(t[1])
    y = dense(x)
    jf.observe('dense', y)
    jf.observe('sum', y.sum())
    jf.observe('tree', x, str(t))
    return tanh(x)


@jf.lazy
def collecting(t: Any) -> Any:
    """Calls blocks that end with metrics, some made here."""
    if isinstance(t, int):
        return embed(t)
    x = collecting(t[0]) + collecting(t[1])
    assert watched(x) is None
    assert jf.Metric('tree')(x, str(t)) is None
    return tanh(x)


def test_blocks_that_end_with_metrics() -> None:
    one, other = (jf.compile(fn, like=TREES) for fn in (observing, collecting))
    params = one.init(jax.random.key(0))
    agree(one, params, TREES)
    agree(other, params, TREES)
    both = [x.schedule(TREES[::-1]) for x in (one, other)]
    trees = [x.labels['tree'].tolist() for x in both]
    told = ['(1, 2)', '(3, 4)', f'{TREES[2]}', '(2, 3)', f'{TREES[0]}']
    assert trees == [told, told]
    found = [m.apply(params, s)[1] for m, s in zip((one, other), both, strict=True)]
    assert found[0].keys() == found[1].keys() == {'dense', 'sum', 'tree'}
    jax.tree.map(np.testing.assert_array_equal, *found)


def test_metrics_met_later_let_a_program_grow() -> None:
    model = jf.compile(collecting, like=[1])
    schedule = model.schedule(TREES)
    params = model.init(jax.random.key(0))
    assert model.apply(params, schedule)[1]['sum'].mask.sum() == 5
    agree(model, params, TREES)


def test_a_metric_of_two_types_is_refused() -> None:
    @jf.lazy
    def of_two(t: Any) -> Any:
        jf.Metric('q')(embed(t) if t else embed(t).sum())
        return embed(t)

    with pytest.raises(TypeError, match=r"Metric\('q'\).*expected"):
        jf.compile(of_two, like=[0, 1])


# ---- layers --------------------------------------------------------------------------


@jf.lazy
def making(t: Any) -> Any:
    """Makes its layers itself."""
    if isinstance(t, int):
        return jf.Function(nn.Embed(10, 4), name='embed')(t)
    x = making(t[0]) + making(t[1])
    if isinstance(t[0], tuple):
        x = jf.Function(nn.Dense(4, use_bias=False), name='dense')(x)
    jf.Function(sums)(x)
    return jf.Function(jnp.tanh)(jf.Function(nn.Dense(4), name='dense')(x))


def test_layers_are_made_by_name() -> None:
    model = jf.compile(making, like=TREES)
    params = model.init(jax.random.key(0))
    shapes = jax.tree.map(jnp.shape, params)
    assert shapes == {
        'dense': {'bias': (4,), 'kernel': (4, 4)},
        'dense_1': {'kernel': (4, 4)},
        'embed': {'embedding': (10, 4)},
    }
    agree(model, params, TREES)


def test_layers_made_by_name_in_other_runs(tmp_path: Path) -> None:
    model = jf.compile(making, like=TREES[:2])
    params = model.init(jax.random.key(0))
    with pytest.raises(TypeError, match='dense_1'):  # whose parameters are missing
        model.apply(params, model.schedule(TREES))
    params = model.init(jax.random.key(0))
    found = model.apply(params, model.schedule(TREES))
    tracer = pickle.loads(cloudpickle.dumps(model.tracer()))
    assert (model.apply(params, model.schedule(tracer(TREES))) == found).all()
    jf.save(tmp_path / 'model', model, params)
    loaded = jf.load(tmp_path / 'model')
    np.testing.assert_allclose(loaded.predict(TREES, batch_size=3), found, rtol=1e-6)


def test_layers_made_outside_stay_apart() -> None:
    ones, others = (jf.Function(nn.Dense(4), name='same') for _ in range(2))

    @jf.lazy
    def both(t: int) -> Any:
        return ones(embed(t)) + others(embed(t))

    assert {*jf.compile(both, like=[1]).init(jax.random.key(0))} == {
        'embed',
        'same',
        'same_1',
    }


class Unhashable(nn.Module):
    """A module with a field that is no key."""

    weights: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return x * self.weights


MADE = {
    'of NNX': lambda: nnx.Linear(4, 4, rngs=nnx.Rngs(0)),
    'with arrays': lambda: Unhashable(np.ones(4)),
    'a lambda': lambda: lambda x: x + 1,
}


@pytest.mark.parametrize('kind', MADE)
def test_layers_that_have_to_be_made_outside(kind: str) -> None:
    @jf.lazy
    def wrong(t: int) -> Any:
        return jf.Function(MADE[kind](), name='layer')(embed(t))

    with pytest.raises(TypeError, match='make blocks outside of it, once'):
        jf.compile(wrong, like=[1, 2])


# ---- lines ---------------------------------------------------------------------------


@jf.lazy(share=True)
def constants(t: Any) -> Any:
    if isinstance(t, int):
        return jf.tensor(t, 'int8')  # here
    return jf.Function(jnp.add)(constants(t[0]), constants(t[1]))


@jf.lazy
def arguments(t: Any) -> Any:
    if isinstance(t, int):
        return (embed(t), embed(0))[0]  # here
    return arguments(t[0]) - arguments(t[1])


@jf.lazy
def steps(t: Any) -> Any:
    if isinstance(t, int):
        return jf.tensor(t, 'int8')  # here
    left = yield steps(t[0])
    right = yield steps(t[1])
    return left + right


numbers = jf.Map(jf.Scalar('int8')) >> jf.Sum()


def wide(t: Any) -> list[int]:
    return [t] if isinstance(t, int) else [*wide(t[0]), *wide(t[1])]


@jf.lazy
def of_data(t: Any) -> Any:
    return numbers([1]) + numbers(wide(t))  # here


@jf.lazy
def observed(t: Any) -> Any:
    x = jf.tensor(0, 'int8')
    for item in wide(t):
        jf.observe('item', item)  # here
        jf.Metric('other')(x)
    return x


@jf.lazy
def raising(t: Any) -> Any:
    if isinstance(t, int):
        return embed(jf.int32({2**60: 0.5}.get(t, t)))  # here
    return raising(t[0]) - raising(t[1])


def line_of(lazy: Any, mark: str = '  # here') -> str:
    """The text that names the line with a mark."""
    lines, first = inspect.getsourcelines(lazy.fn)
    number, line = next((n, x) for n, x in enumerate(lines, first) if mark in x)
    return f', in line {number} of {Path(__file__).name}, `{line.strip()}`; in '


@pytest.mark.parametrize(
    'lazy', [constants, arguments, steps, of_data, observed, raising]
)
@pytest.mark.parametrize('inside', [False, True])
def test_errors_name_the_line(lazy: Any, inside: bool) -> None:
    """Of the call that recorded what is wrong, in each way to read an example."""
    examples: list[Any] = [1, (2, 3), (1, (2, 2**60))]
    block: Any = lazy
    if inside:
        block = jf.Record({'x': lazy}) >> jf.GetItem(0)
        examples = [{'x': x} for x in examples]
    model = jf.compile(block, like=examples[:2])
    params = model.init(jax.random.key(0))
    messages = []
    for read in (
        lambda: model.schedule(examples),
        lambda: model.trace(examples),
        lambda: model.predict(params, examples, batch_size=3),
        lambda: model.eval(examples[2], params),
    ):
        with pytest.raises(jf.InputError, match='expected') as caught:
            read()
        messages.append(str(caught.value))
        assert line_of(lazy) in messages[-1]
    assert len({x[x.index(': ') :] for x in messages}) == 1


def test_causes_of_errors_have_the_frames_of_the_function() -> None:
    model = jf.compile(constants, like=[1, (2, 3)])
    with pytest.raises(jf.InputError) as caught:
        model.schedule([(1, (2, 2**60))])
    cause = caught.value.__cause__
    assert type(cause) is TypeError
    assert str(cause) == f'expected int8[], got {2**60}, which int8 cannot hold'
    frames = inspect.getinnerframes(cause.__traceback__)  # type: ignore[arg-type]
    assert [x.function for x in frames] == ['constants'] * 3


def test_errors_name_no_line_that_is_not_met_again() -> None:
    draws = itertools.count()

    @jf.lazy
    def drawing(t: int) -> Any:
        x = jf.tensor(1, 'int8')
        return x if next(draws) > 3 else jf.tensor(t, 'int8')

    model = jf.compile(drawing, like=[1])
    with pytest.raises(jf.InputError) as caught:
        model.schedule([300])
    assert 'in line' not in str(caught.value)
