# SPDX-License-Identifier: Apache-2.0
"""Models within Flax modules, with the tools of Flax and of a model around them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from agreement import close
from checking import refuses
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import AxisType

import jfold as jf

KEY = jax.random.key(3)
LISTS = [[[1, 2, 3], [4, 5, 6]], [], [[7, 8, 9]]]
WORDS = [1, (2, 3), ((1, 1), 2)]


def tree_block(embed: Any) -> jf.Block:
    """Sums over trees of words, whose kinds are told by type."""
    tree = jf.ForwardDeclaration(name='tree')
    is_block = isinstance(embed, jf.Block)
    leaf = embed if is_block else jf.Scalar('int32') >> jf.Function(embed)
    pair = jf.Record((tree(), tree())) >> jf.Function(lambda a, b: a + b)
    tree.resolve_to(jf.OneOf(type, {int: leaf, tuple: pair}))
    return tree()


def items_block(*more: jf.Block) -> jf.Block:
    """Items through a dense layer, more of them and dropout, and their sum."""
    item = jf.Vector(3) >> jf.Function(nn.Dense(4)) >> jnp.tanh
    for layer in more:
        item = item >> layer
    return jf.Map(item >> jf.Function(nn.Dropout(0.5))) >> jf.Sum()


def all_moved(before: Any, after: Any) -> bool:
    moved = jax.tree.map(lambda x, y: bool((x != y).any()), before, after)
    return all(jax.tree.leaves(moved))


def check_tied(run: Callable[[Any], Any], params: Any) -> None:
    """Compares what one table [10, 4] gives of `WORDS`, and its gradient."""

    def twin(table: Any) -> Any:
        one, two, three = table[1], table[2], table[3]
        sums = jnp.stack([one, two + three, one + one + two])
        return jnp.sum((sums @ table.T) ** 2)

    (table,) = jax.tree.leaves(params)
    assert table.shape == (10, 4)
    loss = jax.value_and_grad(lambda x: jnp.sum(run(x) ** 2))
    value, grads = interpreter.called(loss, params)
    want = interpreter.called(jax.value_and_grad(twin), table)
    (grad,) = jax.tree.leaves(grads)
    close((value, grad), want, 1e-5)


# ---- Linen ---------------------------------------------------------------------------


class Net(nn.Module):
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

    before, keys = state.params, [jax.random.key(k) for k in range(30)]
    with jax.checking_leaks():
        for key in keys:
            state, value = step(state, schedule, key)
    assert value < 0.6
    assert all_moved(before, state.params)
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
        self.embed = nn.Embed(10, 4)

    def __call__(self, schedule: Any) -> Any:
        table = self.embed(jnp.arange(10))
        return self.embed.attend(self.fold(schedule, {'words': table}))


def test_what_a_linen_network_ties() -> None:
    """By a table from outside, or by methods of one module in the model alone."""
    embed = nn.Embed(10, 4)
    inside = jf.linen.Fold(tree_block(embed) >> jf.Function(embed.attend))
    outside = jf.linen.Fold(tree_block(jf.External('words', 4)))
    for net, fold in (inside, inside), (TiedNet(outside), outside):
        schedule = fold.model.schedule(WORDS)
        variables = interpreter.called(net.init, KEY, schedule)
        check_tied(lambda x, net=net, s=schedule: net.apply(x, s), variables)


def test_linen_tabulates_a_fold() -> None:
    """The schedule as its arrays and a line, whatever keys the program has."""
    fold = jf.linen.Fold(tree_block(nn.Embed(10, 4)))
    schedule = fold.model.schedule([1, (2, 3)])
    table = Net(fold).tabulate(KEY, schedule, console_kwargs={'width': 160})
    text = re.sub(r'\x1b\[[0-9;]*m', '', table)
    assert re.search(r'fold .*Fold .*float32\[2,4\] .*Embed:', text)
    assert text.count('Spec(Program(float32[4], operations: 2),') == 2
    assert 'Total Parameters: 45' in text
    assert len(text.splitlines()) < 50


# ---- NNX -----------------------------------------------------------------------------


def test_parameters_of_modules_in_lists() -> None:
    """The keys of a list are numbers, those of a fold's dicts are names."""
    layers = [nnx.Linear(2, 2, rngs=nnx.Rngs(k)) for k in range(11)]
    fold = jf.nnx.Fold(
        jf.Vector(2) >> jf.Function(nnx.Sequential(*layers)), rngs=nnx.Rngs(0)
    )
    schedule = fold.model.schedule([[1, 2]])
    want = fold(schedule)
    state = nnx.state(fold.params)
    for params in (fold.params, fold.arrays, state, nnx.to_pure_dict(state)):
        np.testing.assert_array_equal(fold.model.apply(params, schedule), want)


linear = nnx.Linear(2, 2, rngs=nnx.Rngs(0))


class Holder:
    """An object that calls what it holds."""

    def __init__(self) -> None:
        self.held = linear

    def __call__(self, x: Any) -> Any:
        return self.held(x)


def decorated(fn: Any) -> Any:
    @functools.wraps(fn)
    def call(x: Any) -> Any:
        return linear(fn(x))

    return call


def through(x: Any) -> Any:
    return linear(x)


UNTRAINED = {
    'nnx.jit': nnx.jit(linear),
    'nnx.remat': nnx.remat(linear),
    'jax.checkpoint': jax.checkpoint(linear),
    'jax.jit of a function': jax.jit(lambda x: 2 * linear(x)),
    'jax.jit of a method': jax.jit(linear.__call__),
    'partial': functools.partial(linear),
    'default': lambda x, module=linear: module(x),
    'helper': lambda x: 2 * through(x),
    'object': Holder(),
    'decorator': decorated(jnp.tanh),
}


@pytest.mark.parametrize('name', UNTRAINED)
def test_modules_that_nobody_would_train(name: str) -> None:
    with pytest.raises(
        TypeError, match=r'the Linear `\w+`, and nobody would train them'
    ):
        jf.compile(jf.Vector(2) >> jf.Function(UNTRAINED[name]))


@pytest.mark.parametrize('fn', [jax.nn.relu, jax.jit(jnp.tanh), jnp.sin])
def test_functions_that_hold_no_module(fn: Any) -> None:
    around = functools.wraps(fn)(lambda x: 2 * fn(x))
    for each in (fn, functools.partial(fn), around):
        assert not jf.compile(jf.Vector(2) >> jf.Function(each)).init(KEY)


class NnxNet(nnx.Module):
    def __init__(self, block: Any, rngs: nnx.Rngs) -> None:
        self.fold = jf.nnx.Fold(block, rngs=rngs)
        self.out = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, schedule: Any) -> Any:
        return self.out(self.fold(schedule))


@pytest.mark.slow
def test_a_model_within_nnx_trains_in_a_step() -> None:
    """With modules of both libraries."""
    linear = jf.nnx.Cell(lambda rngs: nnx.Linear(4, 4, rngs=rngs))
    net = NnxNet(items_block(linear), nnx.Rngs(0))
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
    assert all_moved(before, nnx.state(net, nnx.Param))

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


def test_an_nnx_module_draws_as_its_model_does() -> None:
    fold = jf.nnx.Fold(items_block(), rngs=nnx.Rngs(0))
    schedule = fold.model.schedule(LISTS)
    stream = nnx.clone(fold.streams)
    key = stream['dropout']()
    want = fold.model.apply(fold.arrays, schedule, rngs={'dropout': key})
    close(fold(schedule), want, 1e-6)
    off = fold.model.apply(fold.arrays, schedule, deterministic=True)
    close(fold(schedule, deterministic=True), off, 1e-6)


def test_a_layer_that_is_called_as_flax_calls_values() -> None:
    scale = jf.Function(lambda p, x: p * x, lambda key: jnp.ones(()), name='value')
    fold = jf.nnx.Fold(jf.Scalar() >> scale, rngs=nnx.Rngs(0))
    assert fold(fold.model.schedule([2, 3])).tolist() == [2, 3]


def test_parameters_without_a_structure() -> None:
    block = jf.Scalar() >> jf.Function(
        lambda p, x: p * x, lambda key: jnp.float32(2), name='scale'
    )
    fold = jf.nnx.Fold(block, rngs=nnx.Rngs(0))
    assert fold(fold.model.schedule([3.0])).tolist() == [6.0]
    assert jf.nnx.Fold(jf.Scalar(), rngs=nnx.Rngs(0)).arrays == {}


class TiedNnx(nnx.Module):
    """A network that has the table of words, which its fold has too."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(10, 4, rngs=rngs)
        self.fold = jf.nnx.Fold(tree_block(self.embed), rngs=rngs)

    def __call__(self, schedule: Any) -> Any:
        return self.embed.attend(self.fold(schedule))


@nnx.jit
def train(net: TiedNnx, optimizer: nnx.Optimizer[Any], schedule: Any) -> Any:
    value, grads = nnx.value_and_grad(lambda x: (x(schedule) ** 2).mean())(net)
    optimizer.update(net, grads)
    return value


def optimized(net: TiedNnx) -> nnx.Optimizer[Any]:
    return nnx.Optimizer(net, optax.adam(0.1), wrt=nnx.Param)


def test_what_an_nnx_network_ties_stays_tied_in_precompiled_steps() -> None:
    """By a schedule of a model that was the same, too, which is adopted."""
    one, net, other = (TiedNnx(nnx.Rngs(0)) for _ in range(3))
    schedule = one.fold.model.schedule(WORDS)
    graph, params = nnx.split(one, nnx.Param)
    check_tied(lambda x: nnx.merge(graph, x)(schedule), params)
    optimizer = optimized(one)
    want = [float(train(one, optimizer, schedule)) for _ in range(3)]

    schedule, optimizer = other.fold.model.schedule(WORDS), optimized(net)
    before = jnp.copy(net.embed.embedding[...])
    step = net.fold.model.precompile(train, net, optimizer, schedule.capacity)
    found = [float(step(net, optimizer, schedule)) for _ in range(3)]
    np.testing.assert_allclose(found, want, rtol=1e-5)
    assert found[2] < found[0]
    assert net.fold.params['Embed']['embedding'] is net.embed.embedding
    assert (net.embed.embedding[...] != before).all()
    long: Any = 1
    for _ in range(200):
        long = long, 1
    larger = net.fold.model.schedule([*WORDS[:2], long])
    with pytest.warns(RuntimeWarning, match='compiled the step for it too'):
        step(net, optimizer, larger)


def test_a_fold_predicts() -> None:
    fold = TiedNnx(nnx.Rngs(0)).fold
    want = fold(fold.model.schedule(WORDS))
    np.testing.assert_allclose(fold.predict(WORDS, batch_size=2), want, rtol=1e-6)
    corpus = fold.model.trace(WORDS, progress=False)
    np.testing.assert_allclose(fold.predict(corpus, progress=False), want, rtol=1e-6)


def saved(model: jf.Model, params: Any, folder: Path) -> Any:
    """What a model gives that was saved with parameters, and is given them again."""
    jf.save(folder / 'file', model, params, model.schedule(WORDS).capacity)
    loaded = jf.load(folder / 'file')
    return loaded.apply(params, loaded.schedule(WORDS))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ('held', 'use'),
    [
        (lambda fold: fold.params, lambda m, p, _: m.predict(p, WORDS)),
        (
            lambda fold: dict(fold.params),
            lambda m, p, _: jnp.stack([m.eval(each, p) for each in WORDS]),
        ),
        (lambda fold: nnx.state(fold.params), saved),
        (
            lambda fold: nnx.to_pure_dict(nnx.state(fold.params)),
            lambda m, p, _: m.predict(p, WORDS),
        ),
    ],
    ids=['params', 'a dict of layers', 'state', 'a pure dict'],
)
def test_a_model_takes_the_parameters_of_a_fold(
    held: Callable[[Any], Any], use: Callable[..., Any], tmp_path: Path
) -> None:
    """Whatever holds them; gradients are held alike. Other uses take turns."""
    fold = TiedNnx(nnx.Rngs(0)).fold
    model, params = fold.model, held(fold)
    schedule = model.schedule(WORDS)
    want = fold(schedule)
    for found in (
        model.apply(params, schedule),
        jax.jit(model.apply)(params, schedule),
        use(model, params, tmp_path),
    ):
        np.testing.assert_allclose(found, want, rtol=1e-6)
    assert jf.find_nan(model, params, WORDS) is None
    grads = jax.grad(lambda x: model.apply(x, schedule).sum())(params)
    assert jax.tree.structure(grads) == jax.tree.structure(params)
    (grad,) = jax.tree.leaves(grads)
    assert grad[:4, 0].tolist() == [0, 3, 2, 1]


def test_parameters_of_another_fold_are_refused() -> None:
    one = TiedNnx(nnx.Rngs(0)).fold
    block = tree_block(nnx.Embed(10, 5, rngs=nnx.Rngs(0)))
    other = jf.nnx.Fold(block, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match=r'as float32\[10, 4\], got float32\[10, 5\]'):
        one.model.apply(other.params, one.model.schedule(WORDS))


def test_what_wraps_flax_is_documented() -> None:
    for each in (jf.linen.Fold, jf.nnx.Fold, jf.nnx.Cell):
        assert '>>> ' in (each.__doc__ or '')
        assert each.__call__.__doc__
    with refuses("module 'jfold' has no attribute 'haiku'", AttributeError):
        _ = jf.haiku
