# SPDX-License-Identifier: Apache-2.0
"""Parameters: which are taken, which are refused, and what layers are called."""

from __future__ import annotations

import functools
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checking import refuses
from flax.core import FrozenDict

import jfold as jf

KEY = jax.random.key(0)


def dense(params: Any, x: Any) -> Any:
    """A layer of two parameters."""
    return x @ params['w'] + params['b']


def draw(key: Any, x: Any) -> Any:
    """Its parameters."""
    return {'w': jax.random.normal(key, (2, 2)), 'b': jnp.zeros(2)}


def dense_model() -> jf.Model:
    """A model of one layer."""
    return jf.compile(jf.Vector(2) >> jf.Function(dense, draw))


# ---- what is refused -----------------------------------------------------------------


def cast(dtype: Any) -> Callable[[Any], Any]:
    """Parameters in another dtype."""
    return lambda params: jax.tree.map(lambda x: x.astype(dtype), params)


HINT = (
    '`model.init(key)` makes them: a function may compute in another dtype, by '
    '`astype` inside'
)
AS = "expected parameters of layer 'dense' at ['b'] as float32[2], got "


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (cast('bfloat16'), f'{AS}bfloat16[2]; {HINT}'),
        (cast('complex64'), f'{AS}complex64[2]; {HINT}'),
        (cast('int32'), f'{AS}int32[2]; {HINT}'),
        (
            lambda p: p | {'b': jnp.zeros(3)},
            f'{AS}float32[3]; `model.init(key)` makes them',
        ),
        (
            lambda p: {'params': p},
            "expected parameters of layer 'dense' at ['b'], ['w'], got them at "
            "['params']['b'], ['params']['w']; `model.init(key)` makes them",
        ),
        (
            lambda p: [p['b'], p['w']],
            "expected parameters of layer 'dense' at ['b'], ['w'], got them at "
            '[0], [1]; `model.init(key)` makes them',
        ),
        (
            lambda p: {},
            "expected parameters of layer 'dense' at ['b'], ['w'], got none; "
            '`model.init(key)` makes them',
        ),
    ],
)
def test_parameters_that_differ(change: Any, message: str) -> None:
    """In structure, shape or dtype; the message names the layer, and the leaf."""
    model = dense_model()
    params = {'dense': change(model.init(KEY)['dense'])}
    with refuses(message):
        model.apply(params, model.schedule([[1, 2]]))
    with pytest.raises(TypeError, match=re.escape(message)):
        jax.jit(model.apply)(params, model.schedule([[1, 2]]))
    with refuses(message):
        model.eval([1, 2], params)


def test_a_number_of_python() -> None:
    """Its dtype would give way to others."""
    scale = jf.Function(lambda p, x: p * x, lambda *_: 2.0, name='scale')
    model = jf.compile(jf.Scalar() >> scale)
    assert model.apply(model.init(KEY), model.schedule([3])).tolist() == [6]
    with refuses(
        "expected parameters of layer 'scale' as float32[], got 2.0, which is no "
        'array; `model.init(key)` makes them'
    ):
        model.apply({'scale': 2.0}, model.schedule([3]))


def test_float64_for_float32() -> None:
    """Where JAX keeps it; otherwise it is float32 as soon as JAX has it."""
    model = dense_model()
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), model.init(KEY))
    assert model.apply(params, model.schedule([[1, 2]])).dtype == np.float32
    with jax.enable_x64(True), refuses(f'{AS}float64[2]; {HINT}'):
        model.apply(params, model.schedule([[1, 2]]))
    with jax.enable_x64(True):
        params = jax.tree.map(jnp.asarray, params)
    with refuses(f'{AS}float64[2]; {HINT}'):  # JAX has it, and leaves it as it is
        model.apply(params, model.schedule([[1, 2]]))


@pytest.mark.parametrize('params', [None, 3, [1]])
def test_no_dict_of_layers(params: Any) -> None:
    model = dense_model()
    with pytest.raises(TypeError, match='expected parameters as a dict by layers'):
        model.apply(params, model.schedule([[1, 2]]))


def test_no_parameters_where_none_are_needed() -> None:
    model = jf.compile(jf.Scalar() >> jnp.negative)
    assert model.apply(None, model.schedule([2])).tolist() == [-2]


def test_layers_that_are_others() -> None:
    """What is missing is told, and what may stand in its place."""
    one = jf.Function(dense, draw, name='one')
    two = jf.Function(dense, draw, name='two')
    model = jf.compile(jf.Vector(2) >> one >> two)
    own = draw(KEY, None)
    with refuses(
        "expected parameters for layers 'one', 'two', got those of ['uno', 3], of "
        "which the model has no 'uno', 3; `model.init(key)` makes them"
    ):
        model.apply({'uno': own, 3: own}, model.schedule([[1, 2]]))


# ---- what is taken -------------------------------------------------------------------


@pytest.mark.parametrize(
    'change',
    [
        FrozenDict,
        lambda p: {'dense': FrozenDict(p['dense'])},
        lambda p: {'dense': OrderedDict(reversed(p['dense'].items()))},
        lambda p: p | {'another': 'anything'},
        lambda p: jax.tree.map(np.asarray, p),
    ],
)
def test_parameters_that_are_alike(change: Any) -> None:
    """Whatever mappings hold them, and whether JAX or NumPy."""
    model = dense_model()
    params, schedule = model.init(KEY), model.schedule([[1, 2]])
    want = model.apply(params, schedule)
    changed = change(params)
    if 'another' in changed:
        changed['another'] = jnp.zeros(())
    assert model.apply(changed, schedule).tolist() == want.tolist()


def test_a_list_in_the_place_of_a_tuple() -> None:
    """As checkpoints may give it back."""
    pair = jf.Function(lambda p, x: x * p[0] + p[1], lambda *_: (jnp.ones(()),) * 2)
    model = jf.compile(jf.Scalar() >> pair)
    params = jax.tree.map(list, model.init(KEY), is_leaf=lambda x: type(x) is tuple)
    assert model.apply(params, model.schedule([2])).tolist() == [3]


def test_parameters_under_transformations() -> None:
    """Tracers have the shapes and dtypes of what they stand for."""
    model = dense_model()
    schedule = model.schedule([[1, 2]])
    many = jax.vmap(model.init)(jax.random.split(KEY, 3))
    assert jax.vmap(model.apply, (0, None))(many, schedule).shape == (3, 1, 2)
    shape = jax.eval_shape(model.apply, jax.eval_shape(model.init, KEY), schedule)
    assert shape.shape == (1, 2)


# ---- what layers are called ----------------------------------------------------------


def draw_one(key: Any, *_: Any) -> Any:
    """A single number."""
    return jax.random.normal(key, ())


def names(*blocks: Any) -> list[str]:
    """The names of the layers of a pipe, in their order."""
    return [layer.name for layer in jf.compile(jf.Pipe(*blocks)).program.layers]


def test_names_follow_the_functions_not_their_order() -> None:
    """Layers that change places keep their parameters."""
    times = jf.Function(lambda p, x: p * x, draw_one)
    plus = jf.Function(lambda p, x: p + x, draw_one)
    in_a_line = (lambda p, x: p - x), (lambda p, x: -x)
    a, b = (jf.Function(fn, draw_one) for fn in in_a_line)
    order = [times, plus, a, b]
    want = ['function', 'function_1', 'function_2', 'function_3']
    assert names(jf.Scalar(), *order) == want
    assert names(jf.Scalar(), *reversed(order)) == want[::-1]
    before, after = (jf.compile(jf.Pipe(jf.Scalar(), *x)) for x in (order, order[::-1]))
    params = before.init(KEY)
    got = after.apply(params, after.schedule([2]))
    one, two, three, _ = (params[name] for name in want)
    np.testing.assert_allclose(got[0], ((three - -2.0) + two) * one, rtol=1e-6)


def test_layers_without_parameters_take_no_names_of_others() -> None:
    """A function may be added anywhere."""
    first = jf.Function(lambda x: -x)
    times = jf.Function(lambda p, x: p * x, draw_one)
    assert names(jf.Scalar(), first, times) == ['function_1', 'function']
    assert names(jf.Scalar(), times) == ['function']


def test_names_that_were_given_stay() -> None:
    """Numbers leave them out."""
    layers = [jf.Function(lambda p, x: p * x, draw_one, name='a') for _ in range(3)]
    third = jf.Function(lambda p, x: p + x, draw_one, name='a_1')
    assert names(jf.Scalar(), *layers, third) == ['a', 'a_2', 'a_3', 'a_1']


def test_functions_that_are_gone_are_told() -> None:
    """For numbers stand for other functions then."""
    one, two, three = (
        jf.Function(lambda p, x: p * x, draw_one),
        jf.Function(lambda p, x: p + x, draw_one),
        jf.Function(lambda p, x: p - x, draw_one),
    )
    before = jf.compile(jf.Pipe(jf.Scalar(), one, two, three))
    params, model = before.init(KEY), jf.compile(jf.Scalar() >> one >> three)
    message = (
        "expected parameters of ['function', 'function_1'] alone, got ['function_2'] "
        'too: functions without a name are numbered as they stand in the source, so '
        'with others beside them numbers stand for others; leave out what is not of '
        'this model, or name functions, `Function(fn, init, name=...)`'
    )
    with refuses(message):
        model.apply(params, model.schedule([2]))
    with refuses(message):
        model.eval(2, params)
    named = jf.Function(lambda p, x: p * x, draw_one, name='dense_1')
    model, own = jf.compile(jf.Scalar() >> named), jnp.float32(3)
    both = {'dense_1': own, 'dense_2': own, 'dense': own}
    assert model.apply(both, model.schedule([2])).tolist() == [6]


def test_functions_of_one_place_are_numbered_by_use() -> None:
    """Nothing tells them apart."""

    def make(scale: float) -> jf.Function:
        return jf.Function(lambda p, x: p * x * scale, draw_one)

    one, two = make(1), make(2)
    assert names(jf.Scalar(), one, two) == names(jf.Scalar(), two, one)


def test_methods_partials_and_wrapped_functions() -> None:
    """They stand where the function inside does."""

    class Layers:
        def one(self, p: Any, x: Any) -> Any:
            return p * x

        def two(self, p: Any, x: Any) -> Any:
            return p + x

    own = Layers()
    for kind in (lambda f: f, functools.partial, jax.jit):
        one, two = (
            jf.Function(kind(f), draw_one, name='layer') for f in (own.one, own.two)
        )
        assert names(jf.Scalar(), one, two) == ['layer', 'layer_1']
        assert names(jf.Scalar(), two, one) == ['layer_1', 'layer']
