# SPDX-License-Identifier: Apache-2.0
"""Transformations within transformations, each operand of a `vmap` mapped or not."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import close
from binary_trees import binary
from nestings import TRANSFORMATIONS, is_refused, nested

import jfold as jf
from jfold.scheduling.spec import COUNTED, FIXED

REFUSED = 'expected reverse mode of values or of first derivatives, got a reverse of'

# ---- what people write ---------------------------------------------------------------


@functools.cache
def scaled() -> tuple[jf.Model, Any, jf.Schedule]:
    """Numbers times a parameter, with the parameter and a batch of two."""
    layer = jf.Function(lambda w, x: jnp.tanh(w * x), lambda key, _: jnp.float32(0.7))
    model = jf.compile(jf.Scalar() >> layer)
    return model, model.init(jax.random.key(0)), model.schedule([1.0, 2.0])


def rows(params: Any) -> Any:
    model, _, schedule = scaled()
    return model.apply(params, schedule)


def twin(params: Any) -> Any:
    model, *_ = scaled()
    return jnp.stack([model.eval(x, params) for x in (1.0, 2.0)])


def over_samples(f: Any) -> Any:
    """A sum over an axis that parameters lack: of samples, of weights of losses."""
    many = jnp.arange(3.0)
    return lambda p: jax.vmap(lambda k: (f(p) * k).sum())(many).sum()


def of_one_example(f: Any) -> Any:
    """Penalties of the gradients of single examples."""

    def penalty(p: Any) -> Any:
        pull = jax.vjp(f, p)[1]
        grads = jax.vmap(pull)(jnp.eye(2))
        return sum((x**2).sum() for x in jax.tree.leaves(grads))

    return jax.grad(penalty)


WRITTEN = {
    'gradients over samples': lambda f: jax.grad(over_samples(f)),
    'jacrev of jacfwd': lambda f: jax.jacrev(jax.jacfwd(over_samples(f))),
    'grad of jacfwd': lambda f: jax.grad(
        lambda p: sum(map(jnp.sum, jax.tree.leaves(jax.jacfwd(over_samples(f))(p))))
    ),
    'vmap of vjp': lambda f: lambda p: jax.vmap(jax.vjp(f, p)[1])(jnp.eye(2)),
    'penalties of single examples': of_one_example,
    'hessian': lambda f: jax.hessian(over_samples(f)),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ('name', 'compiles'), [*zip(WRITTEN, itertools.cycle([False, True]))]
)
def test_what_people_write(name: str, compiles: bool) -> None:
    """Of an axis along which parameters do not vary, or their tangents alone do; every
    other one in a `jit`."""
    (_, params, _), derived = scaled(), WRITTEN[name]
    within = jax.jit if compiles else lambda f: f
    want = interpreter.called(derived(twin), params)
    close(within(derived(rows))(params), want, 1e-4)


# ---- all of them ---------------------------------------------------------------------


@functools.cache
def network(strategy: str) -> tuple[jf.Model, Any, list[Any]]:
    """A small model in float64, with parameters and examples."""

    def cell(params: Any, left: Any, right: Any) -> Any:
        return jnp.tanh(params['u'] @ (left * right) + params['b'])

    def init(key: Any, *_: Any) -> Any:
        return {'u': jax.random.normal(key, (2, 2)), 'b': jnp.full(2, 0.3)}

    layer = jf.Function(lambda w, x: jnp.sin(w * x), lambda key, _: jnp.array(0.7))
    leaf = jf.InputTransform(lambda n: [n / 9, 0.5]) >> jf.Vector(2, 'float64') >> layer
    trees = binary(leaf, jf.Function(cell, init)), [(1, (2, 3)), 4]
    lists = jf.Map(leaf) >> jf.Sum(), [[1, 2], [3]]
    block, examples = trees if strategy else lists
    model = jf.compile(block, strategy=strategy)
    return model, model.init(jax.random.key(0)), examples


def check(names: tuple[str, ...], strategy: str | None = COUNTED) -> None:
    """A nesting gives what it gives around the twin, or says what to do."""
    with jax.enable_x64(True):
        model, params, examples = network(strategy)

        def made(f: Any) -> Any:
            def two(params: Any, x: Any, schedule: Any) -> Any:
                found = f(params, schedule)
                return jnp.stack([(found**2).sum(), jnp.sin(found).sum()]) * jnp.sin(x)

            given = params, jnp.asarray(0.8), model.schedule(examples)
            return interpreter.called(nested(names, two), *given)

        want = made(lambda p, _: jnp.stack([model.eval(x, p) for x in examples]))
        if is_refused(names) and strategy:
            with pytest.raises(TypeError, match=REFUSED):
                made(model.apply)
        else:
            close(made(model.apply), want, 1e-8)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    'names',
    [
        ('vjp', 'vmap beside'),
        ('jacrev', 'jacfwd'),
        ('vjp of many', 'vmap of x'),
        ('vjp', 'jvp of many'),
        ('vjp', 'vmap of schedules', 'vjp'),
        ('vjp', 'vmap with psum', 'vmap of a leaf'),
        ('scan of steps', 'vjp', 'remat'),
        ('vjp', 'jvp', 'linearize'),
    ],
    ids=', '.join,
)
def test_nestings(names: tuple[str, ...]) -> None:
    """Outermost first."""
    check(names)


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize('strategy', [COUNTED, FIXED, None])
@pytest.mark.parametrize('seed', range(8))
def test_nestings_three_deep(strategy: str | None, seed: int) -> None:
    """Some of the 9,261, drawn."""
    names = np.random.default_rng(seed).choice([*TRANSFORMATIONS], 3)
    check(tuple(map(str, names)), strategy)


def loops(params: Any, state: Any, x: Any) -> Any:
    held = jax.lax.stop_gradient(params['held'] + x)
    return jnp.tanh(params['weight'] @ state + x * held)


def held_back(params: Any) -> Any:
    return jnp.sin(params['weight']) + jax.lax.stop_gradient(params['held'])


def weights(key: Any, *specs: Any) -> Any:
    shape = specs[0].shape if specs else ()
    return {'weight': jnp.full(2 * shape, 0.1), 'held': jnp.ones(shape)}


HELD = {
    'in a loop': (
        jf.Map(jf.Scalar()) >> jf.Fold(jf.Function(loops, weights), jf.Zeros([3])),
        [1.0, 2.0],
    ),
    'before it': (
        jf.Map(jf.Scalar()) >> jf.Reduce(jnp.add, jf.Function(held_back, weights)),
        [],
    ),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize('name', HELD)
def test_tangents_of_many_reverses_of_weights_held_back(name: str) -> None:
    """A gradient that is zero whatever the cotangents does not vary as its tangent."""
    block, example = HELD[name]
    model = jf.compile(block)
    params, schedule = model.init(jax.random.key(0)), model.schedule([example])

    def along(apply: Any) -> Any:
        def pulled(params: Any) -> Any:
            value, pull = jax.vjp(lambda p: apply(p).sum(), params)
            grads = jax.vmap(pull)(jnp.arange(1.0, 4.0))
            return value, grads

        return lambda p: jax.jvp(pulled, (p,), (jax.tree.map(jnp.ones_like, p),))

    def further(apply: Any) -> Any:
        def pushed(params: Any) -> Any:
            tangents = jax.tree.map(jnp.ones_like, params)
            return jax.jvp(apply, (params,), (tangents,))[1]

        return along(pushed)

    for way in along, further:
        batched = way(lambda p: model.apply(p, schedule))
        alone = way(lambda p: model.eval(example, p))
        close(*(interpreter.called(f, params) for f in (batched, alone)), 1e-5)


def test_reverse_jacobians_of_many_values_of_one_weight() -> None:
    """What is kept of the others, as a product of weights, does not vary with it."""

    def layer(params: Any, x: Any) -> Any:
        weight = params['weight'] @ (params['weight'].T @ params['weight'])
        return jax.jit(lambda bias, w: jnp.sin(w @ x + bias))(params['bias'], weight)

    def shapes(key: Any, *specs: Any) -> Any:
        return {'bias': jnp.ones(3), 'weight': jax.random.normal(key, (3, 3)) / 3}

    model = jf.compile(
        jf.Vector(3) >> jf.Function(layer, shapes) >> jf.Function(layer, shapes)
    )
    params, example = model.init(jax.random.key(0)), [0.1, 0.2, 0.3]
    schedule = model.schedule([example])

    def jacobian(apply: Any) -> Any:
        def many(params: Any) -> Any:
            (first, *others), tree = jax.tree.flatten(params)

            def of_one(first: Any) -> Any:
                return apply(jax.tree.unflatten(tree, [first, *others])).sum()

            return jax.vmap(of_one)(jnp.stack([first, 2 * first]))

        return interpreter.called(jax.jacrev(many), params)

    batched = jacobian(lambda p: model.apply(p, schedule))
    close(batched, jacobian(lambda p: model.eval(example, p)), 1e-5)
