# SPDX-License-Identifier: Apache-2.0
"""Layers and metrics that lazy functions make, and the lines that errors name."""

from __future__ import annotations

import functools
import inspect
import itertools
import pickle
import random
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
tanh, total = jf.Function(jnp.tanh), jf.Function(jnp.sum)
summed = jf.Function(jnp.sum) >> jf.Metric('sum')


# ---- metrics -------------------------------------------------------------------------


@jf.lazy
def observing(t: Any) -> Any:
    """Observes by name."""
    if isinstance(t, int):
        return embed(t)
    x = observing(t[0]) + observing(t[1])
    jf.observe('sum', total(x))
    jf.observe('tree', x, str(t))
    jf.observe('number', len(str(t)))
    jf.observe('pair', (x, x[0]))
    return tanh(dense(x))


@jf.lazy
def collecting(t: Any) -> Any:
    """Calls metrics made here, and a block that ends with one."""
    if isinstance(t, int):
        return embed(t)
    x = collecting(t[0]) + collecting(t[1])
    assert summed(x) is None
    assert jf.Metric('tree')(x, str(t)) is None
    jf.Metric('number')(len(str(t)))
    jf.Metric('pair')(x, x[0])
    return tanh(dense(x))


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
    assert found[0].keys() == found[1].keys() == {'sum', 'tree', 'number', 'pair'}
    jax.tree.map(np.testing.assert_array_equal, *found)


def test_labels_by_place_and_by_name() -> None:
    @jf.lazy
    def labelled(t: int) -> Any:
        x = embed(t)
        jf.observe('q', x, t)
        jf.observe('q', x, label=None)
        return x

    schedule = jf.compile(labelled, like=[1]).schedule([2, 3])
    assert schedule.labels['q'].tolist() == [2, None, 3, None]


def test_metrics_met_later_let_a_program_grow() -> None:
    model = jf.compile(collecting, like=[1])
    schedule = model.schedule(TREES)
    params = model.init(jax.random.key(0))
    assert model.apply(params, schedule)[1]['sum'].mask.sum() == 5
    agree(model, params, TREES)


def test_a_metric_of_another_type_leaves_the_program_as_it_was() -> None:
    @jf.lazy
    def of_two(t: int) -> Any:
        x = embed(abs(t))
        jf.Metric('q')(x if t >= 0 else x.sum())
        return dense(x) if abs(t) == 5 else x

    model = jf.compile(of_two, like=[1])
    with pytest.raises(jf.InputError, match=r"example 1: .* metric 'q': expected"):
        model.schedule([2, -3])
    assert model.trace([2, -3, 1], skip_errors=True).skipped[0][0] == 1
    agree(model, model.init(jax.random.key(0)), [2, 1])


def test_lazy_functions_in_cases() -> None:
    @jf.lazy
    def word(t: Any) -> Any:
        return embed(t)

    tree = jf.ForwardDeclaration(name='tree')
    below = jf.Map(tree()) >> jf.Sum()
    tree.resolve_to(jf.OneOf(type, {int: word, list: below}))
    for block in (
        tree(),
        jf.OneOf(type, {list: jf.Map(word) >> jf.Sum()}, default=word),
    ):
        examples = [3, [1, 2], [4]]
        model = jf.compile(block, like=examples)
        agree(model, model.init(jax.random.key(0)), examples)


# ---- layers --------------------------------------------------------------------------


def head() -> nn.Module:
    return nn.Sequential([nn.Dense(4), jnp.sin])


@jf.lazy
def making(t: Any) -> Any:
    """Makes its layers itself."""
    if isinstance(t, int):
        return jf.named('embed', lambda: nn.Embed(10, 4))(t)
    x = making(t[0]) + making(t[1])
    if isinstance(t[0], tuple):
        x = jf.named('small', functools.partial(nn.Dense, 4, use_bias=False))(x)
    pipe = jf.named('pipe', lambda: dense >> jf.Function(jnp.tanh))
    return jf.named('head', head)(pipe(x))


def test_layers_are_made_by_name() -> None:
    model = jf.compile(making, like=TREES)
    params = model.init(jax.random.key(0))
    shapes = jax.tree.map(jnp.shape, params)
    weights = {'bias': (4,), 'kernel': (4, 4)}
    assert shapes == {
        'dense': weights,
        'embed': {'embedding': (10, 4)},
        'head': {'layers_0': weights},
        'small': {'kernel': (4, 4)},
    }
    agree(model, params, TREES)


def test_layers_made_by_name_in_other_runs(tmp_path: Path) -> None:
    model = jf.compile(making, like=TREES[:2])
    params = model.init(jax.random.key(0))
    with pytest.raises(TypeError, match='small'):  # whose parameters are missing
        model.apply(params, model.schedule(TREES))
    params = model.init(jax.random.key(0))
    found = model.apply(params, model.schedule(TREES))
    tracer = pickle.loads(cloudpickle.dumps(model.tracer()))
    assert (model.apply(params, model.schedule(tracer(TREES))) == found).all()
    jf.save(tmp_path / 'model', model, params)
    loaded = jf.load(tmp_path / 'model')
    np.testing.assert_allclose(loaded.predict(TREES, batch_size=3), found, rtol=1e-6)


def test_modules_of_nnx_made_by_name() -> None:
    @jf.lazy
    def linear(t: int) -> Any:
        return jf.named('layer', lambda: nnx.Linear(4, 2, rngs=nnx.Rngs(0)))(embed(t))

    model = jf.compile(linear, like=[1])
    agree(model, model.init(jax.random.key(0)), [1, 2])


def test_layers_are_made_once_for_a_model() -> None:
    made = []

    @jf.lazy
    def counting(t: int) -> Any:
        return jf.named('layer', lambda: made.append(t) or nn.Dense(2))(embed(t))

    model = jf.compile(counting, like=[1, 2])
    model.schedule([3, 4])
    assert made == [1]
    jf.compile(counting, like=[5])
    assert made == [1, 5]


# ---- lines ---------------------------------------------------------------------------


@jf.lazy(share=True)
def constants(t: Any) -> Any:
    if isinstance(t, int):
        return jf.tensor(t, 'int8')  # here
    return constants(t[0]) + constants(t[1])


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


def test_a_line_of_a_function_that_draws_at_random() -> None:
    """It is the one of the first run; without a cause if another run differs."""
    draws = itertools.count()

    @jf.lazy
    def drawing(t: int) -> Any:
        if next(draws) == 4:
            jf.tensor(1, 'int8')
        x = jf.tensor(2, 'int8')
        return x + jf.tensor(t, 'int8')  # here

    model = jf.compile(drawing, like=[1])
    with pytest.raises(jf.InputError, match='got 400') as caught:
        model.schedule([400])
    assert next(draws) == 5
    assert line_of(drawing) in str(caught.value)
    assert caught.value.__cause__ is None


def test_lines_of_libraries_are_not_named() -> None:
    @jf.lazy
    def choosing(t: int) -> Any:
        return jf.tensor(random.choice([1] * t))  # here

    model = jf.compile(choosing, like=[1])
    with pytest.raises(jf.InputError, match='IndexError') as caught:
        model.schedule([0])
    assert line_of(choosing) in str(caught.value)


def test_tracebacks_of_deep_data_are_short() -> None:
    deep: Any = 2**40
    for _ in range(1000):
        deep = deep, 1
    model = jf.compile(steps, like=[(1, (2, 3))])
    with pytest.raises(jf.InputError) as caught:
        model.schedule([deep])
    frames = inspect.getinnerframes(caught.value.__cause__.__traceback__)  # type: ignore
    assert [x.function for x in frames] == ['steps'] * 30


def test_the_function_may_catch_the_error() -> None:
    @jf.lazy
    def catching(t: int) -> Any:
        try:
            return jf.tensor(t, 'int8')  # here
        except TypeError:
            raise SystemExit from None

    model = jf.compile(catching, like=[1])
    with pytest.raises(jf.InputError) as caught:
        model.schedule([400])
    assert line_of(catching) in str(caught.value)


def test_a_function_without_source_has_lines() -> None:
    exec_globals: Any = {'__name__': None, 'jf': jf}
    exec("fn = lambda t: jf.tensor(t, 'int8')", exec_globals)
    model = jf.compile(jf.lazy(exec_globals['fn']), like=[1])
    with pytest.raises(jf.InputError, match='in line 1 of <string>; in '):
        model.schedule([400])
