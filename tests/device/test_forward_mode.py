# SPDX-License-Identifier: Apache-2.0
"""`apply` in forward mode, alone and over or under reverse mode."""

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
from binary_trees import tree_block
from hlo import compiled_text
from looped import in_loops
from meshes import over_devices
from transformed import (
    PAIRS,
    TREES,
    agrees_in_float64,
    direction,
    eager,
    init,
    loss,
    model,
    params,
    schedule,
    stacked,
)

import jfold as jf


def jvp(f: Any) -> Any:
    """The derivative along a direction."""
    return lambda p: jax.jvp(f, (p,), (direction(p),))[1]


def vjp(f: Any) -> Any:
    """The same in reverse."""

    def along(p: Any) -> Any:
        pairs = zip(*map(jax.tree.leaves, (jax.grad(f)(p), direction(p))), strict=True)
        return sum(jnp.vdot(g, v) for g, v in pairs)

    return along


def linearized(f: Any) -> Any:
    """The same, by the linear map alone."""
    return lambda p: jax.linearize(f, p)[1](direction(p))


def curvature(f: Any) -> Any:
    """The Hessian times a direction: forward over reverse."""
    return lambda p: jax.jvp(jax.grad(f), (p,), (direction(p),))


def penalty(f: Any) -> Any:
    """The gradient of the size of a gradient: reverse over reverse."""

    def size(p: Any) -> Any:
        return sum((x**2).sum() for x in jax.tree.leaves(jax.grad(f)(p)))

    return jax.value_and_grad(size)


# By name, a derivative; those of derivatives in all orders of the modes, and of many at
# once, come last.
DERIVED: dict[str, Any] = {
    'jvp': jvp,
    'linearize': linearized,
    'jacfwd': jax.jacfwd,
    'Hessian times vector': curvature,
    'grad of grad': penalty,
    'jvp of jvp': lambda f: jvp(jvp(f)),
    'grad of jvp': lambda f: jax.grad(jvp(f)),
    'hessian': jax.hessian,
    'jacrev of grad': lambda f: jax.jacrev(jax.grad(f)),
    'jvp of vjp of vjp': lambda f: jvp(vjp(vjp(f))),
    'jvp of jvp of jvp': lambda f: jvp(jvp(jvp(f))),
    'vmap of grad of grad': lambda f: (
        lambda p: jax.vmap(penalty(f))(stacked([p, direction(p)]))
    ),
    'grad of vmap of jvp': lambda f: jax.grad(
        lambda p: jax.vmap(jvp(f))(stacked([p, p])).sum()
    ),
}
ROTATED = [
    pytest.param(name, options, marks=[pytest.mark.slow] if i > 3 else [])
    for i, (name, options) in enumerate(zip(DERIVED, itertools.cycle(PAIRS)))
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(('name', 'options'), ROTATED)
def test_derivatives(name: str, options: tuple[str, str]) -> None:
    """Of the loss and of its eager twin; options take turns."""
    agrees_in_float64(DERIVED[name], *options)


def test_gradients_of_forces() -> None:
    """Of a loss that contains the gradient by an external array, by parameters."""
    layer = jf.Function(lambda w, x: jnp.sin(w * x), lambda key, _: jnp.full(2, 0.7))
    energy = jf.compile(jf.Map(jf.External('places', 2) >> layer) >> jf.Sum())
    weights, atoms = energy.init(jax.random.key(0)), [[0, 1], [2], [2, 0]]
    batch, places = energy.schedule(atoms), jnp.arange(6.0).reshape(3, 2) / 4

    def whole(weights: Any, places: Any) -> Any:
        return energy.apply(weights, batch, external={'places': places}).sum()

    def twin(weights: Any, places: Any) -> Any:
        external = {'places': places}
        return sum(energy.eval(x, weights, external=external).sum() for x in atoms)

    def error(energy: Any) -> Any:
        return lambda w: (jax.grad(energy, 1)(w, places) ** 2).sum()

    want = interpreter.called(jax.grad(error(twin)), weights)
    close(jax.jit(jax.grad(error(whole)))(weights), want, 1e-5)


@pytest.mark.slow
def test_forward_mode_over_devices() -> None:
    """Of a schedule that is dealt to shards: a Hessian times a vector."""
    batch = model().schedule(TREES, sharding=over_devices())
    got = jax.jit(curvature(functools.partial(loss, schedule=batch)))(params())
    close(got, interpreter.called(curvature(eager), params()), 1e-4)


COSTS: dict[str, tuple[int, Any]] = {
    'outputs': (1, lambda f: f),
    'gradient': (3, jax.value_and_grad),
    'checkpoint': (4, lambda f: jax.value_and_grad(jax.checkpoint(f))),
    'jvp': (4, lambda f: lambda p: jax.jvp(f, (p,), (direction(p),))),
    'Hessian times vector': (11, curvature),
    'gradient of a gradient': (14, lambda f: jax.grad(lambda p: penalty(f)(p)[0])),
}


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize('name', COSTS)
def test_costs(name: str) -> None:
    """As many products of rows in the compiled program as the table says, or fewer."""
    most, derived = COSTS[name]
    one = jf.compile(tree_block(40), strategy='fixed')
    weights, batch = one.init(jax.random.key(0)), one.schedule(TREES)

    def total(weights: Any) -> Any:
        return (one.apply(weights, batch) ** 3).sum()

    found = compiled_text(derived(total), weights).count(' dot(')
    assert 0 < found <= most


def test_forward_mode_with_results_of_integers() -> None:
    """Sequences have lengths, and metrics examples, which have no tangents."""
    layer = jf.Function(lambda w, x: jnp.tanh(w * x), lambda key, _: jnp.ones(()))
    block = jf.Map(jf.Scalar() >> layer >> jf.AllOf(jf.Metric('all'), jf.Identity()))
    several = jf.compile(block >> jf.Map(jf.GetItem(1)))
    batch = several.schedule([[1.0, 2.0], [], [0.5]])
    weights = several.init(jax.random.key(0))

    def apply(weights: Any) -> Any:
        return several.apply(weights, batch)

    (_, metrics), (items, moved) = jax.jvp(apply, (weights,), (weights,))
    want = jax.jvp(lambda w: jnp.tanh(w * jnp.array([1, 2, 0.5])), (1.0,), (1.0,))[1]
    close(items.values[:3], want, 1e-5)
    assert items.lengths.dtype == moved['all'].example.dtype == jax.dtypes.float0
    rows = np.asarray(metrics['all'].mask)
    close(np.sort(np.asarray(moved['all'].values)[rows]), jnp.sort(want), 1e-5)


def test_reverse_mode_runs_nothing_of_forward_mode() -> None:
    """Its primitive is transposed, so nothing of it is left in a gradient."""
    weights = params()
    gradient = str(jax.make_jaxpr(jax.grad(loss))(weights, schedule()))
    assert 'jfold_linear' not in gradient
    tangent = functools.partial(jax.jvp, functools.partial(loss, schedule=schedule()))
    assert 'jfold_linear' in str(jax.make_jaxpr(tangent)((weights,), (weights,)))


def test_reverse_mode_three_times_is_refused_in_loops() -> None:
    """The error says what to do, which works."""
    reader = in_loops(jf.Scalar() >> jf.Function(lambda w, x: jnp.sin(w * x), init))
    weights, batch = reader.init(jax.random.key(0)), reader.schedule([1.5])
    (name,) = weights

    def value(w: Any) -> Any:
        return reader.apply({name: w}, batch)[0]

    text = (
        'expected reverse mode of values or of first derivatives, got a reverse of '
        'second derivatives: take the outer derivatives in forward mode, by '
        '`jax.jvp` or `jax.jacfwd`'
    )
    third = jax.grad(jax.grad(jax.grad(value)))
    with pytest.raises(TypeError, match=text):
        third(weights[name])
    got = jax.jacfwd(jax.grad(jax.grad(value)))(weights[name])
    close(got, -(1.5**3) * jnp.cos(1.5), 1e-5)


def test_functions_without_forward_mode_have_none() -> None:
    """Those with a `custom_vjp`, as everywhere in JAX."""

    @jax.custom_vjp
    def halved(x: Any) -> Any:
        return x / 2

    halved.defvjp(lambda x: (x / 2, None), lambda _, g: (g / 2,))
    reader = jf.compile(jf.Scalar() >> jf.Function(lambda w, x: halved(w * x), init))
    weights, batch = reader.init(jax.random.key(0)), reader.schedule([1.5])
    with pytest.raises(TypeError, match='custom_vjp'):
        jax.jvp(lambda w: reader.apply(w, batch), (weights,), (weights,))


def test_gradients_of_gradients_in_loops_take_forward_mode() -> None:
    """So those of functions with a `custom_vjp` are refused there, and nowhere else."""

    @jax.custom_vjp
    def sine(x: Any) -> Any:
        return jnp.sin(x)

    sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.cos(x),))
    rule = jf.Function(lambda w, *x: sine(w * sum(x)), init)
    once = jf.compile(jf.Scalar() >> rule)
    folded = jf.compile(jf.Map(jf.Scalar()) >> jf.Fold(rule, jf.Zeros([])))

    def twice(model: jf.Model, example: Any) -> Any:
        weights, batch = jnp.float32(1.0), model.schedule([example])
        (name,) = model.init(jax.random.key(0))
        return jax.grad(jax.grad(lambda w: model.apply({name: w}, batch)[0]))(weights)

    close(twice(once, 1.5), -(1.5**2) * jnp.sin(1.5), 1e-5)
    with pytest.raises(TypeError, match=r'forward-mode .* custom_vjp function'):
        twice(folded, [1.5, 0.5])
