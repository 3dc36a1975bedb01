# SPDX-License-Identifier: Apache-2.0
"""Models within Flax modules, with the tools of Flax and of a model around them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

import jfold as jf

KEY = jax.random.key(0)
WORDS = [1, (2, 3), ((1, 1), 2)]


def tree_block(embed: Any) -> jf.Block:
    """Sums over trees of words, whose kinds are told by type."""
    tree = jf.ForwardDeclaration(name='tree')
    leaf = jf.Scalar('int32') >> jf.Function(embed)
    pair = jf.Record((tree(), tree())) >> jf.Function(lambda a, b: a + b)
    tree.resolve_to(jf.OneOf(type, {int: leaf, tuple: pair}))
    return tree()


class LinenNet(linen.Module):
    fold: linen.Module

    @linen.compact
    def __call__(self, schedule: Any) -> Any:
        return linen.Dense(2)(self.fold(schedule))


def test_linen_tabulates_a_fold() -> None:
    """The schedule as its arrays and a line, whatever keys the program has."""
    fold = jf.linen.Fold(tree_block(linen.Embed(10, 4)))
    schedule = fold.model.schedule([1, (2, 3)])
    table = LinenNet(fold).tabulate(KEY, schedule, console_kwargs={'width': 160})
    text = re.sub(r'\x1b\[[0-9;]*m', '', table)
    assert re.search(r'fold .*Fold .*float32\[2,4\] .*Embed:', text)
    assert text.count('Spec(Program(float32[4], operations: 2),') == 2
    assert 'Total Parameters: 50' in text
    assert len(text.splitlines()) < 50


def test_a_linen_fold_takes_methods_of_one_module() -> None:
    """They share its parameters, which are drawn once."""
    embed = linen.Embed(10, 4)
    fold = jf.linen.Fold(tree_block(embed) >> jf.Function(embed.attend))
    schedule = fold.model.schedule([1, (2, 3)])
    variables = fold.init(KEY, schedule)
    assert list(variables['params']) == ['Embed']
    table = np.asarray(variables['params']['Embed']['embedding'])
    want = np.stack([table[1], table[2] + table[3]]) @ table.T
    np.testing.assert_allclose(fold.apply(variables, schedule), want, rtol=1e-5)


class NnxNet(nnx.Module):
    """A network that has the table of words, which its fold has too."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(10, 4, rngs=rngs)
        self.fold = jf.nnx.Fold(tree_block(self.embed), rngs=rngs)

    def __call__(self, schedule: Any) -> Any:
        return self.embed.attend(self.fold(schedule))


@nnx.jit
def train(net: NnxNet, optimizer: nnx.Optimizer[Any], schedule: Any) -> Any:
    value, grads = nnx.value_and_grad(lambda x: (x(schedule) ** 2).mean())(net)
    optimizer.update(net, grads)
    return value


def test_a_step_of_a_network_with_tied_parameters_is_precompiled() -> None:
    def losses(compiled: bool) -> list[float]:
        net = NnxNet(nnx.Rngs(0))
        optimizer = nnx.Optimizer(net, optax.adam(0.1), wrt=nnx.Param)
        model = net.fold.model
        schedule = model.schedule(WORDS)
        step: Any = train
        if compiled:
            step = model.precompile(train, net, optimizer, schedule.capacity)
        values = [float(step(net, optimizer, schedule)) for _ in range(3)]
        if compiled:  # where a batch has outgrown the capacity
            long: Any = 1
            for _ in range(200):
                long = long, 1
            larger = model.schedule([*WORDS[:2], long])
            with pytest.warns(RuntimeWarning, match='compiled the step for it too'):
                step(net, optimizer, larger)
        return values

    found = losses(True)
    np.testing.assert_allclose(found, losses(False), rtol=1e-5)
    assert found[2] < found[0]


def test_a_precompiled_step_changes_the_network_that_it_is_given() -> None:
    """By a schedule of a model that was the same, too, which is adopted."""
    net, other = NnxNet(nnx.Rngs(0)), NnxNet(nnx.Rngs(0))
    optimizer = nnx.Optimizer(net, optax.adam(0.1), wrt=nnx.Param)
    schedule = other.fold.model.schedule(WORDS)
    step = net.fold.model.precompile(train, net, optimizer, schedule.capacity)
    before = net.embed.embedding[...]
    losses = [float(step(net, optimizer, schedule)) for _ in range(3)]
    assert losses[2] < losses[0]
    assert (net.embed.embedding[...] != before).all()


def test_a_fold_predicts() -> None:
    fold = NnxNet(nnx.Rngs(0)).fold
    want = fold(fold.model.schedule(WORDS))
    np.testing.assert_allclose(fold.predict(WORDS, batch_size=2), want, rtol=1e-6)
    corpus = fold.model.trace(WORDS, progress=False)
    np.testing.assert_allclose(fold.predict(corpus, progress=False), want, rtol=1e-6)


@pytest.mark.parametrize(
    'held',
    [
        lambda fold: fold.params,
        lambda fold: dict(fold.params),
        lambda fold: nnx.state(fold.params),
        lambda fold: nnx.to_pure_dict(nnx.state(fold.params)),
    ],
    ids=['params', 'a dict of layers', 'state', 'a pure dict'],
)
def test_a_model_takes_the_parameters_of_a_fold(
    held: Callable[[Any], Any], tmp_path: Path
) -> None:
    """Whatever holds them; gradients are held alike."""
    fold = NnxNet(nnx.Rngs(0)).fold
    model, params = fold.model, held(fold)
    schedule = model.schedule(WORDS)
    want = fold(schedule)
    for found in (
        model.apply(params, schedule),
        jax.jit(model.apply)(params, schedule),
        model.predict(params, WORDS),
        jnp.stack([model.eval(each, params) for each in WORDS]),
    ):
        np.testing.assert_allclose(found, want, rtol=1e-6)
    grads = jax.grad(lambda x: model.apply(x, schedule).sum())(params)
    assert jax.tree.structure(grads) == jax.tree.structure(params)
    (grad,) = jax.tree.leaves(grads)
    assert grad[:4, 0].tolist() == [0, 3, 2, 1]
    assert jf.find_nan(model, params, WORDS) is None
    jf.save(tmp_path / 'file', model, params, schedule.capacity)
    loaded = jf.load(tmp_path / 'file')
    again = loaded.apply(params, loaded.schedule(WORDS))
    np.testing.assert_allclose(again, want, rtol=1e-6)


def test_parameters_of_another_fold_are_refused() -> None:
    one = NnxNet(nnx.Rngs(0)).fold
    other = jf.nnx.Fold(
        tree_block(nnx.Embed(10, 5, rngs=nnx.Rngs(0))), rngs=nnx.Rngs(0)
    )
    with pytest.raises(TypeError, match=r'as float32\[10, 4\], got float32\[10, 5\]'):
        one.model.apply(other.params, one.model.schedule(WORDS))
