# SPDX-License-Identifier: Apache-2.0
"""Flax both ways: modules within blocks, and models within modules."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from agreement import agree, close
from checking import refuses
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import AxisType

import jfold as jf

KEY = jax.random.key(3)
LISTS = [[[1, 2, 3], [4, 5, 6]], [], [[7, 8, 9]]]


# ---- methods, and what is tied -------------------------------------------------------


def tied(embed: Any) -> jf.Block:
    """Words embedded, and scored by the same table."""
    scored = jf.Function(embed) >> jnp.tanh >> jf.Function(embed.attend)
    return jf.Map(jf.Scalar('int32') >> scored) >> jf.Sum()


@pytest.mark.parametrize(
    'embed',
    [
        nn.Embed(5, 3),
        pytest.param(nnx.Embed(5, 3, rngs=nnx.Rngs(0)), marks=pytest.mark.slow),
    ],
    ids=['linen', 'nnx'],
)
def test_methods_of_a_module_have_its_parameters(embed: Any) -> None:
    model = jf.compile(tied(embed))
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
    """Holds what it is given."""

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
    start = jf.Zeros(([4], [4]))
    step = jf.AllOf(jf.GetItem(0), jf.GetItem(1)) >> cell >> jf.GetItem(0)
    model = jf.compile(jf.Map(jf.Vector(3)) >> jf.Fold(step, start) >> jf.GetItem(1))
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


# ---- a model within Linen ------------------------------------------------------------


def items_block() -> jf.Block:
    """Items through a dense layer and dropout, and their sum."""
    layers = jf.Function(nn.Dense(4)) >> jnp.tanh >> jf.Function(nn.Dropout(0.5))
    return jf.Map(jf.Vector(3) >> layers) >> jf.Sum()


class Net(nn.Module):
    """A model between other layers."""

    fold: nn.Module

    @nn.compact
    def __call__(self, schedule: Any, deterministic: bool = False) -> Any:
        return nn.Dense(1)(self.fold(schedule, deterministic=deterministic))


def test_a_model_within_linen_trains_in_a_step() -> None:
    fold = jf.linen.Fold(items_block())
    net, model = Net(fold), fold.model
    schedule = model.schedule(LISTS)
    variables = net.init(KEY, schedule)  # without a key for dropout
    assert list(variables['params']['fold']) == ['Dense']
    state = TrainState.create(
        apply_fn=net.apply, params=variables['params'], tx=optax.adam(0.05)
    )

    @jax.jit
    def step(state: Any, schedule: Any, key: Any) -> Any:
        def loss(params: Any) -> Any:
            made = state.apply_fn({'params': params}, schedule, rngs={'dropout': key})
            return jnp.mean((made - 1) ** 2)

        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads), value

    with jax.checking_leaks():
        before = state.params
        for k in range(30):
            state, value = step(state, schedule, jax.random.key(k))
    assert value < 0.6
    moved = jax.tree.map(lambda x, y: bool((x != y).any()), before, state.params)
    assert all(jax.tree.leaves(moved))

    off = net.apply({'params': state.params}, schedule, deterministic=True)
    inner = model.apply(state.params['fold'], schedule, deterministic=True)
    outer = state.params['Dense_0']
    close(off, inner @ outer['kernel'] + outer['bias'], 1e-6)


def test_the_model_of_a_linen_module_is_that_of_its_block() -> None:
    block = items_block()
    fold = jf.linen.Fold(block)
    assert fold.model is fold.clone().model is jf.linen.Fold(block).model
    assert fold.model is not jf.linen.Fold(block, max_programs=2).model
    assert isinstance(jf.linen.Fold({'x': jf.Scalar()}).block, jf.Record)


def test_parameters_in_boxes() -> None:
    """Of modules that say how their arrays are spread over devices."""
    drawn = nn.with_partitioning(nn.initializers.lecun_normal(), (None, 'model'))
    dense = jf.Function(nn.Dense(4, kernel_init=drawn))
    fold = jf.linen.Fold(jf.Map(jf.Vector(3) >> dense) >> jf.Sum())
    schedule = fold.model.schedule(LISTS)
    variables = fold.init(KEY, schedule)
    kernel = variables['params']['Dense']['kernel']
    assert kernel.names == (None, 'model')
    specs = nn.get_partition_spec(variables)['params']['Dense']
    assert specs['kernel'] == jax.P(None, 'model')
    want = fold.model.apply(variables['params'], schedule)
    close(fold.apply(variables, schedule), want, 0)
    grads = jax.grad(lambda x: fold.apply(x, schedule).sum())(variables)
    assert grads['params']['Dense']['kernel'].names == kernel.names
    bare = nn.unbox(variables)  # as many trainers keep them
    close(fold.apply(bare, schedule), want, 0)
    plain = jax.grad(lambda x: fold.apply(x, schedule).sum())(bare)
    close(plain, nn.unbox(grads), 0)


class TiedNet(nn.Module):
    """The table of an embedding that the network has, in the model and outside."""

    fold: nn.Module

    def setup(self) -> None:
        self.embed = nn.Embed(4, 3)

    def __call__(self, schedule: Any) -> Any:
        table = self.embed(jnp.arange(4))
        return self.embed.attend(self.fold(schedule, {'words': table}))


def test_what_a_linen_network_ties_is_external() -> None:
    fold = jf.linen.Fold(jf.Map(jf.External('words', 3)) >> jf.Sum())
    schedule = fold.model.schedule([[0, 1], [2]])
    variables = TiedNet(fold).init(KEY, schedule)
    check_tied(lambda x: TiedNet(fold).apply(x, schedule), variables)


def check_tied(run: Callable[[Any], Any], params: Any) -> None:
    """Compares what one table [4, 3] gives of [0, 1] and [2], and its gradient."""

    def twin(table: Any) -> Any:
        sums = jnp.stack([table[0] + table[1], table[2]])
        return jnp.sum((sums @ table.T) ** 2)

    (table,) = jax.tree.leaves(params)
    assert table.shape == (4, 3)
    value, grads = jax.value_and_grad(lambda x: jnp.sum(run(x) ** 2))(params)
    want, (grad,) = jax.value_and_grad(twin)(table), jax.tree.leaves(grads)
    close((value, grad), want, 1e-5)


# ---- a model within NNX --------------------------------------------------------------


class NnxNet(nnx.Module):
    """A model between other layers."""

    def __init__(self, block: Any, rngs: nnx.Rngs) -> None:
        self.fold = jf.nnx.Fold(block, rngs=rngs)
        self.out = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, schedule: Any) -> Any:
        return self.out(self.fold(schedule))


def nnx_block() -> jf.Block:
    """Modules of both libraries."""
    dense = jf.nnx.Cell(lambda rngs: nnx.Linear(4, 4, rngs=rngs))
    layers = jf.Function(nn.Dense(4)) >> jnp.tanh >> dense
    return jf.Map(jf.Vector(3) >> layers >> jf.Function(nn.Dropout(0.5))) >> jf.Sum()


@pytest.mark.slow
def test_a_model_within_nnx_trains_in_a_step() -> None:
    net = NnxNet(nnx_block(), nnx.Rngs(0))
    model = net.fold.model
    schedule = model.schedule(LISTS)
    optimizer = nnx.Optimizer(net, optax.adam(0.05), wrt=nnx.Param)
    before = nnx.state(net, nnx.Param)
    paths = {'.'.join(map(str, path)) for path, _ in nnx.to_flat_state(before)}
    assert 'fold.params.Dense.kernel' in paths
    assert 'fold.params.Linear.kernel' in paths
    before = jax.tree.map(jnp.copy, before)

    @nnx.jit
    def step(net: Any, optimizer: Any, schedule: Any) -> Any:
        def loss(net: Any) -> Any:
            return jnp.mean((net(schedule) - 1) ** 2)

        value, grads = nnx.value_and_grad(loss)(net)
        optimizer.update(net, grads)
        return value

    with jax.checking_leaks():
        found = [float(step(net, optimizer, schedule)) for _ in range(30)]
    assert found[-1] < 0.8
    assert len(set(found)) == 30
    after = nnx.state(net, nnx.Param)
    moved = jax.tree.map(lambda x, y: bool((x != y).any()), before, after)
    assert all(jax.tree.leaves(moved))

    assert (net(schedule) != net(schedule)).any()
    net.eval()
    assert (net(schedule) == net(schedule)).all()
    params = net.fold.arrays
    want = [model.eval(x, params, deterministic=True) for x in LISTS]
    close(net.fold(schedule), jnp.stack(want), 1e-5)


def test_variables_are_as_modules_have_them() -> None:
    """Of their types, and with what they say of devices; drawn or taken."""

    def make(rngs: nnx.Rngs) -> nnx.Module:
        drawn = nnx.with_partitioning(nnx.initializers.normal(), (None, 'model'))
        return nnx.LoRALinear(3, 4, lora_rank=2, kernel_init=drawn, rngs=rngs)

    with jax.set_mesh(jax.make_mesh((1,), ('model',), (AxisType.Auto,))):
        module = make(nnx.Rngs(0))
        for layer in jf.nnx.Cell(make), jf.Function(module):
            items = jf.Map(jf.Vector(3) >> layer)
            fold = jf.nnx.Fold(items >> jf.Sum(), rngs=nnx.Rngs(1))
            own = fold.params['LoRALinear']
            assert type(own['lora']['lora_a']) is nnx.LoRAParam
            assert own['kernel'].get_metadata() == module.kernel.get_metadata()
            assert fold(fold.model.schedule(LISTS)).shape == (3, 4)


class TiedNnx(nnx.Module):
    """The same with NNX, where the module itself is in the model."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(4, 3, rngs=rngs)
        words = jf.Map(jf.Scalar('int32') >> jf.Function(self.embed))
        self.fold = jf.nnx.Fold(words >> jf.Sum(), rngs=rngs)

    def __call__(self, schedule: Any) -> Any:
        return self.embed.attend(self.fold(schedule))


def test_what_an_nnx_network_ties_stays_tied() -> None:
    net = TiedNnx(nnx.Rngs(0))
    schedule = net.fold.model.schedule([[0, 1], [2]])
    graph, params = nnx.split(net, nnx.Param)
    check_tied(lambda x: nnx.merge(graph, x)(schedule), params)
    (before,) = jax.tree.map(jnp.copy, jax.tree.leaves(params))
    optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)

    @nnx.jit
    def step(net: Any, optimizer: Any) -> None:
        grads = nnx.grad(lambda net: jnp.sum(net(schedule) ** 2))(net)
        optimizer.update(net, grads)

    step(net, optimizer)
    own = net.fold.params['Embed']['embedding']
    assert own is net.embed.embedding
    assert (own.get_value() != before).any()


def test_an_nnx_module_draws_as_its_model_does() -> None:
    fold = jf.nnx.Fold(items_block(), rngs=nnx.Rngs(0))
    schedule = fold.model.schedule(LISTS)
    stream = nnx.clone(fold.streams)
    key = stream['dropout']()
    want = fold.model.apply(fold.arrays, schedule, rngs={'dropout': key})
    close(fold(schedule), want, 1e-6)
    off = fold.model.apply(fold.arrays, schedule, deterministic=True)
    close(fold(schedule, deterministic=True), off, 1e-6)


def test_parameters_without_a_structure() -> None:
    block = jf.Scalar() >> jf.Function(
        lambda p, x: p * x, lambda key: jnp.float32(2), name='scale'
    )
    fold = jf.nnx.Fold(block, rngs=nnx.Rngs(0))
    assert fold(fold.model.schedule([3.0])).tolist() == [6.0]
    assert jf.nnx.Fold(jf.Scalar(), rngs=nnx.Rngs(0)).arrays == {}


def test_what_wraps_flax_is_documented() -> None:
    for each in (jf.linen.Fold, jf.nnx.Fold, jf.nnx.Cell):
        assert '>>> ' in (each.__doc__ or '')
        assert each.__call__.__doc__


# ---- imports -------------------------------------------------------------------------


def test_flax_is_imported_when_it_is_asked_for() -> None:
    code = (
        'import sys, jfold as jf; assert "flax" not in sys.modules; jf.linen.Fold; '
        'jf.nnx.Fold; print("flax" in sys.modules)'
    )
    done = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, check=True
    )
    assert done.stdout == 'True\n'
    with refuses("module 'jfold' has no attribute 'haiku'", AttributeError):
        _ = jf.haiku
