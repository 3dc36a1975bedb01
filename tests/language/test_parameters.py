# SPDX-License-Identifier: Apache-2.0
"""Parameters: which are taken, which are refused, and what layers are called."""

from __future__ import annotations

import re
from collections import ChainMap, OrderedDict
from collections.abc import Callable
from types import MappingProxyType
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
    return x @ params['w'] + params['b']


def draw(key: Any, x: Any) -> Any:
    return {'w': jax.random.normal(key, (2, 2)), 'b': jnp.zeros(2)}


def dense_model() -> jf.Model:
    return jf.compile(jf.Vector(2) >> jf.Function(dense, draw))


# ---- what is refused -----------------------------------------------------------------


def cast(dtype: Any) -> Callable[[Any], Any]:
    return lambda params: jax.tree.map(lambda x: x.astype(dtype), params)


MAKES = '; `model.init(key)` makes them'
HINT = f'{MAKES}: a function may compute in another dtype, by `astype` inside'
AS = "expected parameters of layer 'dense' at ['b'] as float32[2], got "
AT = "expected parameters of layer 'dense' at ['b'], ['w'], got "


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (cast('bfloat16'), f'{AS}bfloat16[2]{HINT}'),
        (cast('complex64'), f'{AS}complex64[2]{HINT}'),
        (cast('int32'), f'{AS}int32[2]{HINT}'),
        (lambda p: p | {'b': jnp.zeros(3)}, f'{AS}float32[3]{MAKES}'),
        (
            lambda p: {'params': p},
            f"{AT}them at ['params']['b'], ['params']['w']{MAKES}",
        ),
        (lambda p: [p['b'], p['w']], f'{AT}them at [0], [1]{MAKES}'),
        (lambda p: {}, f'{AT}none{MAKES}'),
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
    model, setting = dense_model(), 'under the `jax_enable_x64` of `jfold.compile`'
    text = f'{AS}float64[2]{HINT}'.replace('makes them', f'makes them, {setting}')
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), model.init(KEY))
    assert model.apply(params, model.schedule([[1, 2]])).dtype == np.float32
    with jax.enable_x64(True), refuses(text):
        model.apply(params, model.schedule([[1, 2]]))
    with jax.enable_x64(True):
        params = jax.tree.map(jnp.asarray, params)
    with refuses(text):  # JAX has it, and leaves it as it is
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
        MappingProxyType,
        ChainMap,
        lambda p: {'dense': MappingProxyType(p['dense'])},
        lambda p: {'dense': FrozenDict(p['dense'])},
        lambda p: {'dense': OrderedDict(reversed(p['dense'].items()))},
        lambda p: jax.tree.map(np.asarray, p),
    ],
)
def test_parameters_that_are_alike(change: Any) -> None:
    """Whatever mappings hold them, and whether JAX or NumPy."""
    model = dense_model()
    params, schedule = model.init(KEY), model.schedule([[1, 2]])
    want = model.apply(params, schedule)
    assert model.apply(change(params), schedule).tolist() == want.tolist()


def test_a_list_in_the_place_of_a_tuple() -> None:
    """As checkpoints may give it back."""
    pair = jf.Function(lambda p, x: x * p[0] + p[1], lambda *_: (jnp.ones(()),) * 2)
    model = jf.compile(jf.Scalar() >> pair)
    params = jax.tree.map(list, model.init(KEY), is_leaf=lambda x: type(x) is tuple)
    assert model.apply(params, model.schedule([2])).tolist() == [3]


# ---- what layers are called ----------------------------------------------------------


def draw_one(key: Any, *_: Any) -> Any:
    return jax.random.normal(key, ())


def names(*blocks: Any) -> list[str]:
    """The names of the layers of a pipe, in their order."""
    return [layer.name for layer in jf.compile(jf.Pipe(*blocks)).program.layers]


def test_names_follow_the_order_of_the_expression() -> None:
    """Of uses, wherever functions stand in the source; blocks inside come first."""
    in_a_line = (lambda p, x: p - x), (lambda p, x: -x)
    order = [jf.Function(fn, draw_one) for fn in in_a_line]
    want = ['function', 'function_1']
    assert names(jf.Scalar(), *order) == want
    assert names(jf.Scalar(), *reversed(order)) == want
    tree = jf.ForwardDeclaration()
    leaf, pair, last = (
        jf.Function(lambda p, *x, k=k: p * k + sum(x), draw_one, name='layer')
        for k in (10, 20, 30)
    )
    pairs = (tree(), tree()) >> pair
    tree.resolve_to(jf.OneOf(type, {tuple: pairs, int: jf.Scalar() >> leaf}))
    model = jf.compile(tree() >> last)
    params = {'layer': 1.0, 'layer_1': 2.0, 'layer_2': 3.0}
    params = {name: jnp.float32(x) for name, x in params.items()}
    want = 1.0 * 20 + (2 * 10 + 5) + (2 * 10 + 6) + 3 * 30
    assert model.apply(params, model.schedule([(5, 6)])).tolist() == [want]
    assert model.eval((5, 6), params) == want


CELL = """def layer(p, x):
    return p {sign} x

{name} = layer
"""


@pytest.mark.parametrize('comment', ['', '# what it does\n' * 9])
def test_lines_above_a_function_change_no_name(comment: str) -> None:
    """As of cells of a notebook, each of which begins with its first line."""
    names_of_cells: dict[str, Any] = {}
    for before, name, sign in [(comment, 'one', '*'), ('', 'two', '+')]:
        exec(before + CELL.format(name=name, sign=sign), names_of_cells)
    one, two = (jf.Function(names_of_cells[x], draw_one) for x in ('one', 'two'))
    params = {'layer': jnp.float32(2), 'layer_1': jnp.float32(10)}
    model = jf.compile(jf.Scalar() >> one >> two)
    assert model.apply(params, model.schedule([3])).tolist() == [16]


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


def test_layers_that_the_model_does_not_have() -> None:
    """They are told: of another expression, names may stand for other layers."""
    given = ['layer_2', 'more']
    one = jf.Function(lambda p, x: p * x, draw_one, name='layer')
    two = jf.Function(lambda p, x: p - x, draw_one, name='layer')
    model, own = jf.compile(jf.Scalar() >> one >> two), jnp.float32(3)
    params = {'layer': own, 'layer_1': own} | dict.fromkeys(given, own)
    schedule = model.schedule([2])
    message = (
        f"expected parameters of ['layer', 'layer_1'] alone, got {given} too: layers "
        'of one name are numbered as the expression meets them, so of another '
        'expression names may stand for others; leave out what is not of this one, '
        'and say `Function(..., name=...)` where several models share layers'
    )
    for call in (
        lambda: model.apply(params, schedule),
        lambda: jax.jit(model.apply)(params, schedule),
        lambda: model.eval(2, params),
        lambda: model.predict(params, [2]),
        lambda: jf.find_nan(model, params, [2]),
    ):
        with pytest.raises(TypeError, match=re.escape(message)):
            call()
    without = jf.compile(jf.Scalar())
    with pytest.raises(TypeError, match=r'of \[\] alone, got \[.* too'):
        without.apply(params, without.schedule([2]))


def test_a_module_of_linen_with_layers_that_it_does_not_have() -> None:
    fold = jf.linen.Fold(dense_model().block)
    schedule = fold.model.schedule([[1, 2]])
    variables = fold.init(KEY, schedule)
    assert fold.apply(variables, schedule).shape == (1, 2)
    more = {'params': {**variables['params'], 'dense_1': jnp.zeros(2)}}
    with pytest.raises(TypeError, match=r"\['dense'\] alone, got \['dense_1'\] too"):
        fold.apply(more, schedule)


def test_arrays_of_externals_may_be_among_parameters() -> None:
    model = jf.compile(jf.External('table', []))
    table, schedule = jnp.float32([1, 2]), model.schedule([1])
    assert model.apply({'table': table}, schedule).tolist() == [2]
    assert model.eval(1, {'table': table}) == 2


def test_evaluation_asks_for_all_parameters() -> None:
    with refuses(
        "expected parameters for layer 'dense', got those of []; `model.init(key)` "
        'makes them'
    ):
        jf.Map(dense_model().block).eval([], {})
