# SPDX-License-Identifier: Apache-2.0
"""Functions in a row are one operation, where that costs nothing."""

from __future__ import annotations

import functools
import re
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from expressions import Expression, expressions
from extent import drawn
from hypothesis import given, settings
from looped import in_loops

import jfold as jf
from jfold.lower import lower
from jfold.models.model import Model
from jfold.program.components import components

KEY = jax.random.key(0)


def dense(size: int, name: str = 'dense') -> jf.Block:
    return jf.Function(nn.Dense(size), name=name)


def operations(block: Any) -> list[str]:
    """What the device runs of a block, by the names of functions."""
    return [x.layer.name for x in jf.compile(block).program.operations]


def apart(model: jf.Model) -> jf.Model:
    """The model with an operation for each function."""
    return Model(model.block, lower(model.block, fuses=False), model.max_programs)


def training_bytes(model: jf.Model, data: list[Any]) -> float:
    """What a model keeps in buffers when it is trained."""
    text = model.explain(model.schedule(data))
    found = re.search(r'in training ([\d.e+]+) (\w+)', text)
    assert found is not None
    number, unit = found.groups()
    return float(number) * {'B': 1, 'kB': 1e3, 'MB': 1e6, 'GB': 1e9}[unit]


# ---- what is joined ------------------------------------------------------------------

WORD = jf.Scalar('int32')
WORDS = [1, 3, 0, 2]
VECTORS = [[1.0, 2.0], [0.5, -1.0]]
PAIRS = [(w, v) for w in WORDS for v in VECTORS]
EMBED = jf.Function(nn.Embed(5, 4), name='embed')
TIED = jf.Function(nn.Dense(2), name='tied')


JOINED = {
    'a pipe': (WORD >> EMBED >> dense(3), WORDS, 'embed >> dense'),
    'a concatenation': (
        (WORD >> EMBED, jf.Vector(2)) >> jf.Concat() >> dense(3),
        PAIRS,
        'embed >> concat >> dense',
    ),
    'two before one': (
        (WORD >> EMBED, jf.Vector(2) >> dense(3)) >> jf.Concat(),
        PAIRS,
        '(embed, dense) >> concat',
    ),
    'a layer twice': (jf.Vector(2) >> TIED >> TIED, VECTORS, None),
    'of the same parameters': (
        jf.Vector(2) >> TIED >> jnp.tanh >> dense(2),
        VECTORS,
        'tied >> tanh >> dense',
    ),
    'several results': (
        jf.Vector(2)
        >> jf.Function(lambda x: (x[0], jnp.sin(x), x), name='parts')
        >> jf.Function(lambda a, b, c: a * b[::-1] + b + c, name='whole'),
        VECTORS,
        'parts >> whole',
    ),
    'a weak type between': (
        jf.Vector(2)
        >> jf.Function(lambda x: jnp.asarray(2.0) * jnp.sum(x).astype(int), name='weak')
        >> jf.Function(lambda x: x * jnp.ones(2, 'bfloat16'), name='product'),
        VECTORS,
        'weak >> product',
    ),
    'items of a tensor': (
        jf.Vector(2) >> jnp.sin >> jf.GetItem(0),
        VECTORS,
        'sin >> item',
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize('name', JOINED)
def test_functions_in_a_row_are_one_operation(name: str) -> None:
    block, data, expected = JOINED[name]
    model = jf.compile(block)
    if expected:
        (operation,) = model.program.operations
        assert operation.layer.name == expected
    agree(model, model.init(KEY), data)
    compiled = in_loops(block)
    assert training_bytes(compiled, data) <= training_bytes(apart(compiled), data)


def test_parameters_stay_with_their_layers() -> None:
    model = jf.compile(WORD >> EMBED >> dense(3) >> TIED)
    assert operations(model.block) == ['embed >> dense >> tied']
    params = model.init(KEY)
    assert params.keys() == {'embed', 'dense', 'tied'}
    jax.tree.map(np.testing.assert_array_equal, params, apart(model).init(KEY))


def test_many_in_a_row_are_several_operations() -> None:
    block = jf.Vector(2)
    for _ in range(12):
        block = block >> jf.Function(functools.partial(jnp.sin), name='sin')
    names = operations(block)
    assert [name.count('sin') for name in names] == [8, 4]
    agree(jf.compile(block), {}, VECTORS)


# ---- what is not ---------------------------------------------------------------------


@jax.custom_vjp
def own_reverse(x: jax.Array) -> jax.Array:
    return 2 * x


own_reverse.defvjp(lambda x: (2 * x, None), lambda _, ct: (2 * ct,))


def looping(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 3, lambda _, y: jnp.sin(y), x)


def printing(x: jax.Array) -> jax.Array:
    jax.debug.callback(lambda _: None, x)
    return 2 * x


def split_on_sign(x: float) -> bool:
    return x[0] > 0


SHARED = jf.Function(jnp.sin, name='shared')
LEFT = jf.Function(jnp.cos, name='left')
APART = {
    'what two read': jf.Vector(2) >> jnp.sin >> jf.AllOf(jnp.cos, jnp.tanh),
    'what is returned too': jf.Vector(2) >> jnp.sin >> jf.AllOf(jnp.cos, jf.Identity()),
    'what a metric reads': (
        jf.Vector(2) >> jnp.sin >> jf.AllOf(jf.Metric('seen'), jnp.cos) >> jf.GetItem(1)
    ),
    'a function that others use': (
        jf.Vector(2) >> jf.AllOf(SHARED >> LEFT, jnp.cos >> SHARED)
    ),
    'cases between': (
        jf.OneOf(split_on_sign, {True: jf.Vector(2) >> jnp.sin, False: jf.Vector(2)})
        >> LEFT
    ),
    'items between': jf.Map(jf.Scalar() >> jnp.sin) >> jf.GetItem(0) >> LEFT,
    'whole tiles': jf.Vector(2) >> jf.Function(jnp.sin, batched=True) >> LEFT,
    'a rule': jf.Vector(2) >> jf.Function(own_reverse) >> LEFT,
    'a loop': jf.Vector(2) >> jf.Function(looping) >> LEFT,
    'an effect': jf.Vector(2) >> jf.Function(printing) >> LEFT,
    'a sum': jf.Vector(2) >> jf.AllOf(jnp.sin, jnp.cos) >> jnp.add >> LEFT,
    'a checkpoint': jf.Vector(2) >> jf.Function(jax.checkpoint(looping)) >> LEFT,
}


@pytest.mark.parametrize('name', APART)
def test_other_functions_are_operations_of_their_own(name: str) -> None:
    model = jf.compile(APART[name])
    assert not any(' >> ' in name for name in operations(model.block))
    agree(model, model.init(KEY), VECTORS)


def test_a_large_table_is_an_operation_of_its_own() -> None:
    names = operations(WORD >> jf.Function(nn.Embed(9999, 9), name='large') >> dense(2))
    assert names == ['large', 'dense']


def test_rows_from_outside_are_an_operation_of_their_own() -> None:
    model = jf.compile(jf.External('rows', [2]) >> dense(3))
    assert len(model.program.operations) == 2


# ---- recurrence ----------------------------------------------------------------------


def fold(before: jf.Block, step: jf.Block) -> jf.Block:
    zeros = jf.FromTensor(np.zeros(3, 'float32'))
    return jf.Map(jf.Vector(2) >> before) >> jf.Fold(step, zeros)


SEQUENCES = [[[1.0, 2.0], [3.0, 4.0], [0.5, 0.1]], [], [[2.0, 1.0]]]


def test_in_a_recurrence_there_are_fewer_levels() -> None:
    """What is before it stays so: it runs once, over all its nodes."""
    model = jf.compile(fold(dense(3, 'before'), jf.Concat() >> dense(3) >> jnp.tanh))
    assert operations(model.block) == ['before', 'concat >> dense >> tanh']
    schedule = model.schedule(SEQUENCES)
    assert schedule.depths.tolist() == [1, 3]
    assert apart(model).schedule(SEQUENCES).depths.tolist() == [1, 9]
    agree(model, model.init(KEY), SEQUENCES)
    assert training_bytes(model, SEQUENCES) <= training_bytes(apart(model), SEQUENCES)


def test_what_starts_a_recurrence_and_what_ends_it_are_not_joined_to_it() -> None:
    tree = jf.ForwardDeclaration(output_type=jf.types.TensorType([3]))
    children = {0: tree(), 1: tree()} >> jf.Concat() >> dense(3, 'inner')
    leaf = jf.Vector(2) >> dense(4, 'leaf') >> dense(3, 'first')
    tree.resolve_to(jf.OneOf(type, {list: leaf, tuple: children}))
    model = jf.compile(tree() >> dense(2, 'last') >> jnp.tanh)
    assert {*operations(model.block)} == {
        'leaf >> first',
        'concat >> inner',
        'last >> tanh',
    }
    data = [([1.0, 2.0], ([3.0, 4.0], [0.1, 0.2])), [1.0, 1.0]]
    agree(model, model.init(KEY), data)
    assert model.schedule(data).depth == 4
    assert training_bytes(model, data) <= training_bytes(apart(model), data)


# ---- what else is told of functions --------------------------------------------------


def test_functions_that_draw() -> None:
    """They draw the same, and nothing where nothing is drawn."""
    drop = jf.Function(nn.Dropout(0.5, deterministic=False), name='drop')
    model = jf.compile(jf.Vector(2) >> dense(8) >> drop >> dense(2, 'last'))
    data, params = VECTORS * 3, model.init(KEY)
    if len(model.program.operations) == 1:
        agree(model, params, data, rngs=KEY)
    for options in ({'rngs': KEY}, {'rngs': KEY, 'deterministic': True}):
        made = [
            x.apply(params, x.schedule(data), **options) for x in (model, apart(model))
        ]
        np.testing.assert_allclose(*made, 1e-5, 1e-6)


def test_what_is_not_finite_is_told_of_the_function() -> None:
    block = jf.Vector(2) >> jf.Function(jnp.log, name='log') >> TIED
    model = jf.compile(block)
    assert operations(block) == ['log >> tied']
    found = jf.find_nan(model, model.init(KEY), [[1.0, 2.0], [1.0, -1.0]])
    assert found is not None
    assert found.layer == 'log'
    assert found.block == 'Pipe[1].Function(log)'
    assert 'log(float32[2]) -> float32[2], got nan' in found.message


# ---- expressions that are drawn ------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=drawn(3, 6))
@given(expressions())
def test_drawn_expressions(drawn: Expression) -> None:
    """There are no more operations and levels, and no larger recurrence."""
    model = jf.compile(drawn.block)
    models, data = (model, apart(model)), drawn.batch(np.random.default_rng(2), 3)
    counts = [len(each.program.operations) for each in models]
    assert counts[0] <= counts[1]
    parts = [components(each.program) for each in models]
    sizes = [
        max((len(x.operations) * x.recurrent for x in y), default=0) for y in parts
    ]
    assert sizes[0] <= sizes[1]
    depths = [each.schedule(data).depth for each in models]
    assert depths[0] <= depths[1]
