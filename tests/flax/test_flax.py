# SPDX-License-Identifier: Apache-2.0
"""Modules of Flax within blocks: their parameters, what they draw, recurrent cells."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree, close
from checking import refuses
from flax import nnx

import jfold as jf

KEY = jax.random.key(3)
LISTS = [[[1, 2, 3], [4, 5, 6]], [], [[7, 8, 9]]]
VECTORS = jf.Map(jf.Vector(3))


# ---- methods, and what is tied -------------------------------------------------------


def test_methods_of_a_module_have_its_parameters() -> None:
    """Words embedded, and scored by the same table."""
    for embed in nn.Embed(5, 3), nnx.Embed(5, 3, rngs=nnx.Rngs(0)):
        scored = jf.Function(embed) >> jnp.tanh >> jf.Function(embed.attend)
        model = jf.compile(jf.Map(jf.Scalar('int32') >> scored) >> jf.Sum())
        params = model.init(KEY)
        assert list(params) == ['Embed']
        assert [x.shape for x in jax.tree.leaves(params)] == [(5, 3)]
        agree(model, params, [[1, 2, 0], [], [4]])


class Coder(nn.Module):
    """Each method has parameters of its own, and some are shared."""

    def setup(self) -> None:
        self.shared, self.inner = nn.Dense(3), nn.Dense(2)
        self.outer = nn.Dense(3)

    def encode(self, x: Any) -> Any:
        return self.inner(self.shared(x))

    def decode(self, x: Any) -> Any:
        return self.shared(self.outer(x))


@pytest.mark.slow
def test_methods_have_the_parameters_of_all() -> None:
    coder = Coder()
    encode, decode = jf.Function(coder.encode), jf.Function(coder.decode)
    model = jf.compile(jf.Map(jf.Vector(3) >> encode >> jnp.tanh >> decode) >> jf.Sum())
    params = model.init(KEY)
    assert list(params) == ['Coder']
    assert sorted(params['Coder']) == ['inner', 'outer', 'shared']
    agree(model, params, LISTS)
    other = jf.Function(coder.encode, name='other')
    model = jf.compile(jf.Vector(3) >> jf.AllOf(encode, other))
    assert sorted(model.init(KEY)) == ['Coder', 'other']


class Scaled(nnx.Module):
    def __init__(self, scale: nnx.Param[Any]) -> None:
        self.scale = scale

    def __call__(self, x: Any) -> Any:
        return x * self.scale


@pytest.mark.slow
def test_variables_of_one_module_stay_tied() -> None:
    class Twice(nnx.Module):
        def __init__(self) -> None:
            self.one = Scaled(nnx.Param(jnp.float32(2)))
            self.other = Scaled(self.one.scale)

        def __call__(self, x: Any) -> Any:
            return self.other(self.one(x) + 1)

    model = jf.compile(jf.Map(jf.Scalar() >> jf.Function(Twice())) >> jf.Sum())
    params = model.init(KEY)
    assert len(jax.tree.leaves(params)) == 1
    agree(model, params, [[1.0, 2.0], []])


def test_modules_that_share_a_variable_are_refused() -> None:
    one = Scaled(nnx.Param(jnp.float32(2)))
    other = Scaled(one.scale)
    with refuses(
        'expected modules with parameters of their own, got Scaled and Scaled that '
        'share one at scale: make both parts of one module, and use its methods, '
        '`Function(module.encode)`'
    ):
        jf.compile(jf.Scalar() >> jf.Function(one) >> jf.Function(other))


@pytest.mark.slow
def test_parameters_of_nnx_are_taken_or_drawn() -> None:
    module = nnx.Linear(3, 2, rngs=nnx.Rngs(5))
    own = jf.compile(jf.Vector(3) >> jf.Function(module)).init(KEY)['Linear']
    assert (own['kernel'].get_value() == module.kernel.get_value()).all()

    cell = jf.nnx.Cell(lambda rngs: nnx.LSTMCell(3, 4, rngs=rngs), name='cell')
    step = jf.AllOf(jf.GetItem(0), jf.GetItem(1)) >> cell >> jf.GetItem(0)
    model = jf.compile(VECTORS >> jf.Fold(step, jf.Zeros(([4], [4]))) >> jf.GetItem(1))
    one, again, other = (model.init(jax.random.key(k)) for k in (1, 1, 2))
    close(one, again, 0)
    kernels = [x['cell']['ii']['kernel'].get_value() for x in (one, other)]
    assert not (kernels[0] == kernels[1]).any()
    agree(model, other, LISTS)  # it holds a stream, of which it draws nothing


# ---- what says whether modules draw --------------------------------------------------


class ByArgument(nn.Module):
    """Told by an argument, and tells those inside."""

    @nn.compact
    def __call__(self, x: Any, deterministic: bool) -> Any:
        x = nn.Dropout(0.5)(x, deterministic)
        return nn.Dropout(0.5)(x, deterministic=True)


class ByTraining(nn.Module):
    """Told by the opposite."""

    @nn.compact
    def __call__(self, x: Any, *, train: bool = False) -> Any:
        return nn.Dropout(0.5, deterministic=not train)(x)


class Attends(nn.Module):
    """Attention with dropout, which asks its maker."""

    deterministic: bool | None = None

    @nn.compact
    def __call__(self, x: Any, deterministic: bool | None = None) -> Any:
        off = nn.merge_param('deterministic', self.deterministic, deterministic)
        made = nn.MultiHeadAttention(1, dropout_rate=0.5)(x[None], deterministic=off)
        return made[0] + nn.Dropout(0.5, deterministic=False)(x)


@pytest.mark.sampled(1)
@pytest.mark.parametrize('module', [ByArgument(), ByTraining(), Attends()])
def test_linen_modules_are_told(module: Any) -> None:
    model = jf.compile(jf.Map(jf.Vector(3) >> jf.Function(module)))
    params, schedule = model.init(KEY), model.schedule(LISTS)
    drawn = model.apply(params, schedule, rngs=KEY).values
    other = model.apply(params, schedule, rngs=jax.random.key(4)).values
    assert not (drawn == other).all()
    off = model.apply(params, schedule, deterministic=True).values
    want = model.eval(LISTS[0], params, deterministic=True)
    np.testing.assert_allclose(off[:2], jnp.stack(want), rtol=1e-6)
    if not isinstance(module, Attends):
        assert (off[:3] == jnp.asarray(LISTS[0] + LISTS[2])).all()


def test_modules_that_were_decided_ask_for_nothing() -> None:
    off = (
        nn.Dropout(0.5, deterministic=True),
        nnx.Dropout(0.5, deterministic=True, rngs=nnx.Rngs(0)),
    )
    for module in off:
        model = jf.compile(jf.Vector(3) >> jf.Function(module))
        assert model.apply({}, model.schedule([[1, 2, 3]])).tolist() == [[1, 2, 3]]


class Always(nn.Module):
    """Draws, whatever one says."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return x + jax.random.normal(self.make_rng('noise'))


class AlwaysNnx(nnx.Module):
    """The same."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.rngs = rngs

    def __call__(self, x: Any) -> Any:
        return x + self.rngs.noise.normal()


def test_what_cannot_be_without_draws_is_told() -> None:
    text = 'expected that nothing is drawn with `deterministic=True`, got '
    for module in Always(), AlwaysNnx(nnx.Rngs(noise=1)):
        model = jf.compile(jf.Scalar() >> jf.Function(module))
        agree(model, {}, [1.0, 2.0], rngs={'noise': KEY})
        with pytest.raises(TypeError, match=f'^{text}'):
            model.apply({}, model.schedule([1.0]), deterministic=True)
        with pytest.raises(TypeError, match=f'^{text}'):
            model.eval(1.0, {}, deterministic=True)


# ---- cells, which take and give the state first --------------------------------------

gru = jf.Function(nn.GRUCell(3))
turn = jf.AllOf(jf.GetItem(1), jf.GetItem(0))


def test_cells_that_are_turned_round_are_taken() -> None:
    cells = jf.RNN(turn >> gru >> turn, jf.Zeros([3]))
    model = jf.compile(VECTORS >> cells >> jf.GetItem(1))
    params = model.init(KEY)
    got = agree(model, params, LISTS)
    ready = jf.compile(VECTORS >> jf.layers.GRU(3) >> jf.GetItem(1))
    same = {'gru': {'inner': params['GRUCell']}}
    close(got, interpreter.called(ready.apply, same, ready.schedule(LISTS)), 1e-6)


@pytest.mark.parametrize(
    'cell',
    [
        gru >> turn,
        turn >> gru,
        jf.AllOf(jf.GetItem(0) >> jnp.tanh, jf.GetItem(1) >> jnp.tanh) >> gru,
        jf.AllOf(jf.GetItem(0) >> jnp.tanh, jf.GetItem(1)) >> gru >> turn,
        jf.compose(lambda item, state: gru(jf.Function(jnp.tanh)(item), state)),
        jf.compose(lambda item, state: turn(gru(item, state))),
        pytest.param(None, id='one of NNX'),  # which draws as it is made
    ],
    ids=str,
)
def test_cells_that_are_not_are_refused(cell: jf.Block | None) -> None:
    if cell is None:
        made = jf.nnx.Cell(lambda rngs: nnx.GRUCell(3, 3, rngs=rngs))
        cell = jf.Identity() >> made
    text = 'expected a cell that takes an item and a state and gives an output and a '
    with pytest.raises(TypeError, match=text):
        jf.compile(VECTORS >> jf.RNN(cell, jf.Zeros([3])))


def test_cells_that_are_not_are_refused_behind_a_choice() -> None:
    declared = jf.ForwardDeclaration()
    declared.resolve_to(jf.AllOf(jf.GetItem(0) >> jf.Vector(3), jf.GetItem(1)) >> gru)
    chosen = jf.OneOf(jf.GetItem(0) >> jf.InputTransform(len), {3: declared()})
    with pytest.raises(TypeError, match='which takes and gives the state first'):
        jf.compile(jf.RNN(chosen, jf.Zeros([3])))
