# SPDX-License-Identifier: Apache-2.0
"""Gates that are written one by one are computed together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jfold.base import jaxprs
from jfold.device import rewriting
from jfold.device.parameter_stages import stage


def names(closed: Any, *wanted: str) -> str:
    """The names of its equations, of those that are wanted."""
    found = (e.primitive.name for e in closed.eqns)
    return ' '.join(name for name in found if name in wanted)


def agree(before: Any, after: Any, given: list[Any], rtol: float = 0.0) -> None:
    """Values and derivatives are equal, to the bit if there is no tolerance."""

    def loss(closed: Any, given: list[Any]) -> Any:
        return sum((x**2).sum() for x in jaxprs.evaluate(closed, given))

    first, second = (jax.value_and_grad(loss, 1)(c, given) for c in (before, after))
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol, 1e-5 * rtol), first, second
    )


# ---- slices --------------------------------------------------------------------------

# By name: a function of an array [4, 6], and the primitives that take it apart.
SLICED: dict[str, tuple[Callable[[Any], Any], str]] = {
    'halves': (lambda x: x[:, :3] * x[:, 3:], 'split'),
    'gates, one read twice': (
        lambda x: x[:, 4:] * jnp.tanh(x[:, :2] + x[:, 2:4]) + x[:, 4:],
        'split',
    ),
    'rows': (lambda x: sum(k * x[k : k + 1] for k in range(4)), 'split'),
    'a gap': (lambda x: x[:, :2] * x[:, 3:5], 'slice slice'),
    'an overlap': (lambda x: x[:, :4] * x[:, 2:], 'slice slice'),
    'every other': (lambda x: x[:, ::2] * x[:, 1::2], 'slice slice'),
    'both axes': (lambda x: x[:2, :3] * x[2:, 3:], 'slice slice'),
    'an axis each': (lambda x: x[:2, :3] + x[2:, :3] * x[:2, 3:], 'slice slice slice'),
    'parts of no size': (
        lambda x: x[:, :3] * x[:, 3:] + x[:, :0].sum() + x[:, 3:3].sum(),
        'split',
    ),
    'one part': (lambda x: x[:, :3] * 2, 'slice'),
    'all': (lambda x: jax.lax.slice(x, (0, 0), (4, 6)) * 2, 'slice'),
}


@pytest.mark.parametrize('name', SLICED)
def test_slices_that_take_an_array_apart_become_one_split(name: str) -> None:
    """Values and derivatives stay, bit by bit."""
    fn, expected = SLICED[name]
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    before = jaxprs.trace(lambda x: [fn(x)], [x])
    after = rewriting.with_splits(before)
    assert names(after, 'slice', 'split') == expected
    agree(before, after, [x])


def test_rows_of_whole_tiles_stay_slices() -> None:
    """Another number of rows may be taken apart otherwise."""
    closed = jaxprs.trace(lambda x: [x[:2, :3] + x[2:, :3]], [np.ones((4, 6))])
    assert rewriting.with_splits(closed, first=1) is closed


# ---- products ------------------------------------------------------------------------

U, V, W = (3, 2), (3, 4), (3, 2)
SQUARE = (3, 3)


def lstm(u: Any, v: Any, w: Any, x: Any) -> tuple[Any, Any]:
    """One output depends on all of them, another on two."""
    c = jnp.tanh(x @ u) * (x @ v)[:2]
    return c, c * (x @ w)


# By name: a function of weights and of a value, their shapes, and its products after.
JOINT: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], int]] = {
    'gates': (lambda u, v, w, x: (x @ u) * (x @ v)[:2] + x @ w, [U, V, W, (3,)], 1),
    'gates of several outputs': (lstm, [U, V, W, (3,)], 1),
    'matrices first': (lambda u, v, x: (u @ x) * (v @ x), [SQUARE, (3, 3), (3,)], 1),
    'several rows': (lambda u, v, x: (x @ u).sum() * (x @ v), [U, V, (5, 3)], 1),
    'rows behind a matrix': (
        lambda u, v, x: (u @ x) - v @ x,
        [*2 * [(2, 3)], (3, 5)],
        1,
    ),
    'heads of one attention': (
        lambda u, v, x: jnp.tensordot(x, u, 1) * jnp.tensordot(x, v, 1),
        [(3, 2, 4), (3, 2, 4), (3,)],
        1,
    ),
    'a matrix made after a product': (
        lambda u, v, x: x @ u + jnp.sin(x @ u).sum() * (x @ jnp.tanh(v)),
        [U, W, (3,)],
        1,
    ),
    'in turn': (lambda u, v, x: jnp.tanh(x @ u) @ v, [SQUARE, SQUARE, (3,)], 2),
    'of two values': (lambda u, v, x: (x @ u) * (jnp.sin(x) @ v), [U, W, (3,)], 2),
    'either way round': (lambda u, v, x: (x @ u) * (v @ x), [SQUARE, SQUARE, (3,)], 2),
    'outputs of their own': (lambda u, v, x: (x @ u, x @ v), [U, V, (3,)], 2),
    'of other shapes': (
        lambda u, v, x: jnp.tensordot(x, u, 1).sum() * jnp.tensordot(x, v, 1),
        [(3, 2, 4), (3, 2, 5), (3,)],
        2,
    ),
    'a gradient that is stopped': (
        lambda u, v, x: x @ u + jax.lax.stop_gradient(x @ v),
        [U, W, (3,)],
        2,
    ),
    'with vectors': (lambda u, v, x: (x @ u) * (x @ v), [(3,), (3,), (3,)], 2),
    'of one precision each': (
        lambda u, v, x: (x @ u) * jnp.dot(x, v, precision='highest'),
        [U, W, (3,)],
        2,
    ),
    'without parameters': (lambda x: (x @ x) * x, [SQUARE], 1),
}


def traced(
    fn: Callable[..., Any], shapes: list[tuple[int, ...]]
) -> tuple[Any, list[Any]]:
    """The jaxpr of a function, and arguments for it."""
    rng = np.random.default_rng(0)
    given = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    return jaxprs.trace(lambda *x: jax.tree.leaves(fn(*x)), given), given


@pytest.mark.parametrize('name', JOINT)
def test_products_of_one_value_become_one(name: str) -> None:
    """If their weights can be joined, and some output depends on all of them."""
    fn, shapes, expected = JOINT[name]
    before, given = traced(fn, shapes)
    after = rewriting.with_joint_products(before, len(shapes) - 1)
    assert len(jaxprs.products(after)) == expected
    agree(before, after, given, 1e-5)


def test_one_weight_is_joined_once() -> None:
    """However often it is multiplied with the value."""
    before, given = traced(lambda u, v, x: x @ u + (x @ v) * (x @ u), [U, W, (3,)])
    after = rewriting.with_joint_products(before, 2)
    assert [x.aval.shape for e in jaxprs.products(after) for x in e.outvars] == [(4,)]
    agree(before, after, given, 1e-5)


def test_large_weights_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is more to read than to start."""
    before, _ = traced(lambda u, v, x: x @ u + x @ v, [U, W, (3,)])
    for size, products in ((48, 1), (47, 2)):
        monkeypatch.setattr(rewriting, 'JOINED', size)
        after = rewriting.with_joint_products(before, 2)
        assert len(jaxprs.products(after)) == products


def test_prints_of_parameters_and_values_appear_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """What depends on parameters alone is moved ahead of products."""

    def fn(u: Any, v: Any, x: Any) -> Any:
        y = x @ u
        jax.debug.print('u is {}', u.shape[0])
        jax.debug.print('x is {}', x[0])
        return y * (x @ v)

    before, given = traced(fn, [U, W, (3,)])
    after = rewriting.with_joint_products(before, 2)
    assert len(jaxprs.products(after)) == 1
    jaxprs.evaluate(after, given)
    jax.effects_barrier()
    out = capfd.readouterr().out
    assert out.count('u is') == out.count('x is') == 1


# ---- what is copied once -------------------------------------------------------------

# By name: a function of two arrays of parameters and an input, the shapes of all, and
# of the arrays that tiles read.
COPIED: dict[str, tuple[Callable[..., Any], list[Any], list[tuple[int, ...]]]] = {
    'joined': (lambda u, v, x: x @ jnp.concatenate([u, v], 1), [U, V, (3,)], [(3, 6)]),
    'a part, transposed': (lambda u, v, x: u[1:].T @ x, [U, V, (2,)], [(2, 2)]),
    'turned': (lambda u, v, x: x @ u[::-1], [U, V, (3,)], [(3, 2)]),
    'transposed, not copied': (lambda u, v, x: x @ u.T, [U, V, (2,)], [(3, 2)]),
    'a table': (lambda u, v, x: u[1:][x[0].astype(int)], [U, V, (1,)], [(3, 2)]),
    'a bias': (
        lambda u, v, x: x * jnp.concatenate([u[0], v[0]]),
        [U, V, (6,)],
        [(3, 2), (3, 4)],
    ),
}


@pytest.mark.parametrize('name', COPIED)
def test_matrices_of_products_are_cut_and_joined_once(name: str) -> None:
    """Before all tiles; other arrays are read where they are."""
    fn, shapes, expected = COPIED[name]
    closed, given = traced(fn, shapes)
    staged = stage(closed, 2, 'layer')
    assert [v.aval.shape for v in staged.frontier] == expected
    weights = staged.run_early(*given[:2])
    (result,) = staged.run_late(weights, given[2:], {})
    np.testing.assert_allclose(result, fn(*given), rtol=1e-5)
