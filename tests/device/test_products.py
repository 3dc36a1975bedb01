# SPDX-License-Identifier: Apache-2.0
"""However a product of a state and a matrix is written, tiles run it rows first."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from binary_trees import binary, binary_tree, dense_cell
from hlo import compiled_text, in_loops, parse, scatters
from looped import in_loops as looped

import jfold as jf
from jfold.base import jaxprs
from jfold.device import xla
from jfold.device.execution import make_execution
from jfold.device.kernel_reverse import SplitReverse
from jfold.scheduling.layout import layout
from jfold.scheduling.spec import STRATEGIES
from jfold.scheduling.tiles import NARROW

H = 5
ROWS, MATRIX = (3, 4), (4, 6)

Form = Callable[[Any, Any], Any]
FORMS: dict[str, Form] = {
    'x @ k': lambda k, x: x @ k,
    'x @ k.T': lambda k, x: x @ k.T,
    'k @ x': lambda k, x: k @ x,
    'k.T @ x': lambda k, x: k.T @ x,
    'einsum': lambda k, x: jnp.einsum('oi,i->o', k, x),
    'tensordot': lambda k, x: jnp.tensordot(k, x, ((0,), (0,))),
}
BY_ROW = {'x @ k', 'k.T @ x', 'tensordot'}  # the matrix is [inputs, outputs]


def trees_by(cell: Any, *shape: int) -> jf.Model:
    def init(key: jax.Array, *_: Any) -> Any:
        return 0.3 * jax.random.normal(key, shape)

    def embed(table: Any, number: Any) -> Any:
        return jnp.tanh(number * table)

    leaf = jf.Scalar() >> jf.Function(
        embed, lambda key, _: jax.random.normal(key, (H,))
    )
    return jf.compile(binary(leaf, jf.Function(cell, init, name='cell')))


def model(form: str) -> jf.Model:
    def cell(kernel: Any, left: Any, right: Any) -> Any:
        both = jnp.concatenate([left, right])
        return jnp.tanh(FORMS[form](kernel, both)) + 0.5 * left

    return trees_by(cell, *((2 * H, H) if form in BY_ROW else (H, 2 * H)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize('form', FORMS)
def test_values_and_gradients_are_those_of_the_eager_twin(form: str) -> None:
    """With tiles of all widths."""
    with jax.enable_x64(True):
        made = model(form)
        rng = np.random.default_rng(0)
        trees = [binary_tree(rng, n) for n in (70, 33, 9, 2, 1)]
        params = made.init(jax.random.key(0))
        agree(made, jax.tree.map(np.float64, params), trees, 1e-9)


@pytest.mark.parametrize('form', FORMS)
def test_one_array_is_stored_and_makes_room(form: str) -> None:
    """The product, for its own cotangent."""
    made = model(form)
    params = made.init(jax.random.key(0))
    schedule = made.schedule([binary_tree(np.random.default_rng(0), 3)])
    execution = make_execution(schedule.spec, params)
    layers = [operation.layer.name for operation in made.program.operations]
    reverse = execution.policies[layers.index('cell')].reverse
    assert isinstance(reverse, SplitReverse)
    assert [x.shape for x in reverse.residuals()] == [(H,)]
    assert [x.replaces for x in reverse.crossing] == [0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize('form', FORMS)
def test_narrow_tiles_transpose_no_matrix(form: str) -> None:
    """Their products sum over the last axis of rows and the first of a matrix."""
    made = model(form)
    rng = np.random.default_rng(0)
    schedule = made.schedule([binary_tree(rng, 40) for _ in range(20)])

    def loss(params: Any) -> Any:
        return made.apply(params, schedule).sum()

    text = compiled_text(jax.grad(loss), made.init(jax.random.key(0)))
    products = re.findall(r'= f32\[(\d+),\d+\]\S* dot\(.*?\), (\S+ \S+),', text)
    narrow = [numbers for rows, numbers in products if int(rows) < NARROW]
    in_order = 'lhs_contracting_dims={1}, rhs_contracting_dims={0}'
    assert narrow.count(in_order) >= 3  # two widths forward, one in reverse
    gradients = 'lhs_contracting_dims={0}, rhs_contracting_dims={0}'
    assert set(narrow) <= {in_order, gradients}


def test_transposed_cotangents_that_are_constant() -> None:
    """They depend on no argument, and yet have rows."""

    @jax.custom_vjp
    def sign(x: Any) -> Any:
        return jnp.sign(x)

    def forward(x: Any) -> tuple[Any, None]:
        return jnp.sign(x), None

    def reverse(_: None, cotangent: Any) -> tuple[Any]:
        return (jnp.zeros(cotangent.shape, cotangent.dtype),)

    sign.defvjp(forward, reverse)

    def cell(kernel: Any, left: Any, right: Any) -> Any:
        return jnp.tanh(kernel @ left) + 0.3 * sign(kernel @ right.T).T

    with jax.enable_x64(True):
        made = trees_by(cell, H, H)
        rng = np.random.default_rng(0)
        trees = [binary_tree(rng, n) for n in (40, 9, 2)]
        params = jax.tree.map(np.float64, made.init(jax.random.key(0)))
        agree(made, params, trees, 1e-9)


# ---- the rewriting -------------------------------------------------------------------


def rewritten(fn: Callable[..., Any], *shapes: Any, turn: bool = True) -> list[Any]:
    """The equations of a function of a matrix without rows, and rows."""
    specs = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    closed = jaxprs.trace(lambda *x: [fn(*x)], specs)
    made = xla.rows_first(closed, 1, turn)
    given = [np.random.default_rng(0).normal(size=s).astype(np.float32) for s in shapes]
    np.testing.assert_allclose(
        jaxprs.evaluate(made, given)[0], fn(*given), rtol=1e-5, atol=1e-6
    )
    return list(made.eqns)


# By name: a function, shapes, whether tiles are narrow, and what is left.
REWRITTEN = {
    'in order': (lambda k, x: x @ k, (MATRIX, ROWS), True, 'dot 3x4 4x6'),
    'of columns, which are wanted': (
        lambda k, x: k @ x.T,
        (MATRIX[::-1], ROWS),
        False,
        'transpose 3x4, dot 4x3 6x4, transpose 3x6',
    ),
    'of a vector': (
        lambda k, x: k @ x,
        (MATRIX[::-1], (4,)),
        True,
        'transpose 6x4, dot 4 4x6',
    ),
    'in wide tiles, where it is the same work': (
        lambda k, x: x @ k.T,
        (MATRIX[::-1], ROWS),
        False,
        'transpose 6x4, dot 3x4 4x6',
    ),
    'with a number, which stands in the equation': (
        lambda k, x: jnp.tensordot(2.0, k @ x, axes=0),
        (MATRIX[::-1], (4,)),
        True,
        'transpose 6x4, dot 4 4x6, dot  6',
    ),
    'of rows': (
        lambda k, x: k + x @ x.T,
        ((3, 3), ROWS),
        True,
        'transpose 3x4, dot 3x4 4x3',
    ),
    'along an axis that both have': (
        lambda k, x: jnp.einsum('bij,bj->bi', x, x[:, 0] @ k),
        ((4, 4), (3, 2, 4)),
        True,
        'dot 3x4 4x4, dot 3x2x4 3x4',
    ),
}


@pytest.mark.parametrize('name', REWRITTEN)
def test_products_are_written_rows_first(name: str) -> None:
    """So that `vmap` puts rows first; all others stay."""
    fn, shapes, turn, expected = REWRITTEN[name]
    read = [
        (e.primitive.name, ['x'.join(map(str, v.aval.shape)) for v in e.invars])
        for e in rewritten(fn, *shapes, turn=turn)
    ]
    kinds = {'dot_general': 'dot', 'transpose': 'transpose'}
    found = [' '.join([kinds[name], *x]) for name, x in read if name in kinds]
    assert ', '.join(found) == expected


def test_operands_keep_their_precision() -> None:
    def multiply(k: Any, x: Any) -> Any:
        return jnp.matmul(k, x.T, precision=('highest', 'default'))

    (product,) = (
        each
        for each in rewritten(multiply, MATRIX[::-1], ROWS, turn=False)
        if each.primitive.name == 'dot_general'
    )
    assert product.params['precision'] == (
        jax.lax.Precision.DEFAULT,
        jax.lax.Precision.HIGHEST,
    )


# ---- rows of tables ------------------------------------------------------------------


def words(strategy: str) -> jf.Model:
    """Sums over the rows of a table, by numbers that are counted from its end too."""

    def look_up(table: Any, number: Any) -> Any:
        return jnp.sin(table[number])

    def init(key: jax.Array, _: Any) -> Any:
        return jax.random.normal(key, (6, H))

    word = jf.Scalar('int32') >> jf.Function(look_up, init)
    return looped(jf.Map(word) >> jf.Sum(), strategy=strategy)


@pytest.mark.sampled(1)
@pytest.mark.parametrize('strategy', STRATEGIES)
def test_rows_of_tables_are_those_of_the_eager_twin(strategy: str) -> None:
    """With numbers past both ends, for which there is the last or the first row."""
    with jax.enable_x64(True):
        made, rng = words(strategy), np.random.default_rng(0)
        lists = [rng.integers(-9, 9, n).tolist() for n in (150, 20, 1)]
        params = jax.tree.map(np.float64, made.init(jax.random.key(0)))
        agree(made, params, lists, 1e-9)


def test_rows_of_tables_are_gathered_at_one_coordinate() -> None:
    """Also those that a function slices."""
    made = words('fixed')
    schedule = made.schedule([[1, 2, 3]])
    execution = make_execution(schedule.spec, made.init(jax.random.key(0)))
    layers = [operation.layer.name for operation in made.program.operations]
    jaxpr, _ = jaxprs.open_jaxpr(execution.kernels[layers.index('look_up')].forward(3))
    found = [e for e in jaxpr.eqns if e.primitive.name in ('gather', 'dynamic_slice')]
    assert [e.primitive.name for e in found] == ['gather']
    assert found[0].invars[1].aval.shape == (3, 1)
    assert found[0].params['dimension_numbers'].collapsed_slice_dims == (0,)


def test_an_entry_whose_number_is_known_is_left_as_it_is() -> None:
    """It is one of a number in the program, which no row of a tile decides."""
    entry = jf.Function(
        lambda w, x: w * jax.lax.dynamic_slice(x, (1,), (1,)), lambda _: jnp.ones(3)
    )
    model = jf.compile(jf.Vector(3) >> entry)
    agree(model, model.init(jax.random.key(0)), [[1, 2, 3], [4, 5, 6]])


WORDS = 5003  # no buffer, tile or chunk of a small batch has as many rows


def trees_of_words(strategy: str, count: int) -> tuple[jf.Model, jf.Schedule]:
    """A cell over trees of seven embedded words, among all there are."""
    leaf = jf.Scalar('int32') >> jf.layers.Embed(WORDS, 3)
    made = jf.compile(binary(leaf, dense_cell(3)), strategy=strategy)
    rng = np.random.default_rng(0)
    return made, made.schedule([binary_tree(rng, 7, WORDS) for _ in range(count)])


def test_loops_make_no_gradient_of_a_table() -> None:
    """One that is dense is taken behind them, at once, however many levels and tiles,
    and rows than a step takes; loops do not scatter."""
    made, schedule = trees_of_words('fixed', 200)

    def loss(params: Any, schedule: jf.Schedule) -> Any:
        return (made.apply(params, schedule) ** 2).sum()

    params = made.init(jax.random.key(0))
    text = compiled_text(jax.grad(loss), params, schedule)
    module, within = parse(text), list(in_loops(parse(text)))
    assert 'scatter' in text
    assert any(WORDS in i.rows for each in module.values() for i in each)
    assert within
    assert not [i for i in within if WORDS in i.rows]
    assert scatters(module) == []


def test_all_rows_of_a_table_are_one_chunk() -> None:
    """Loops that ask the batch how often they run make one gradient of it as well."""
    made, schedule = trees_of_words('counted', 64)
    names = [operation.layer.name for operation in made.program.operations]
    word = names.index('embed')
    rows = schedule.capacity.rows[word]
    assert layout(schedule.spec).chunk[word] == rows >= 64 * 7
