# SPDX-License-Identifier: Apache-2.0
"""Rows that stand for no node change nothing, whatever a function does to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfold as jf

Params = Any


def init_square(key: jax.Array, *specs: Any) -> jax.Array:
    """A matrix [3, 3]."""
    return jax.random.normal(key, (3, 3))


def agree_in_gradients(block: jf.Block, batch: list[Any], rtol: float = 1e-4) -> None:
    """The gradient of the sum of all results is that of the eager twin."""
    model = jf.compile(block)
    params = model.init(jax.random.key(0))
    schedule = model.schedule(batch)
    got = jax.grad(lambda p: model.apply(p, schedule).sum())(params)
    want = jax.grad(lambda p: sum(model.eval(x, p).sum() for x in batch))(params)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max())


UNDEFINED_AT_ZERO: dict[str, Callable[..., Any]] = {
    'softmax': lambda p, x: p @ jax.nn.softmax(x),
    'norm': lambda p, x: p @ (x / jnp.linalg.norm(x)),
    'root': lambda p, x: p.sum() / jnp.sqrt(x @ x) * x,
    'quotient': lambda p, x: p @ (jnp.exp(x) / jnp.exp(x).sum()),
    'log': lambda p, x: p @ jnp.log(jnp.abs(x)),
    'log of sum': lambda p, x: p @ jnp.log(jnp.exp(x) + jnp.exp(2 * x)),
}


@pytest.mark.parametrize('name', UNDEFINED_AT_ZERO)
@pytest.mark.parametrize('size', [1, 2, 65])
def test_values_that_cross_into_the_deferred_pass(name: str, size: int) -> None:
    """They are not only cotangents, so zeros will not do for spare rows.

    In double precision, since a logarithm near zero makes much of a rounding.
    """
    rng = np.random.default_rng(0)
    before = jf.Function(lambda p, x: jnp.tanh(p @ x), init_square, name='before')
    behind = jf.Function(UNDEFINED_AT_ZERO[name], init_square)
    with jax.enable_x64(True):
        block = jf.Vector(3, 'float64') >> before >> behind
        agree_in_gradients(block, rng.uniform(0.5, 2, (size, 3)).tolist(), 1e-9)


def test_spare_rows_repeat_one_row_whole() -> None:
    """A product of one row beside an input of another gives the root of -7 here."""

    def variance(p: Params, x: jax.Array) -> jax.Array:
        return p[0] * jnp.sqrt(1 + jnp.dot(x, x) - jnp.sum(x * x))

    batch = [[1.0, 2, 3, 0], [3, 0.0, 0, 0], [4.0, 4, 4, 4]]
    agree_in_gradients(jf.Vector(4) >> jf.Function(variance, init_square), batch)


def test_functions_without_a_reverse_run_forward() -> None:
    """A reverse is looked for only when a gradient is taken."""

    def grown(x: jax.Array) -> jax.Array:
        enough = lambda s: jnp.abs(s).sum() < 10  # noqa: E731
        return jax.lax.while_loop(enough, lambda s: s * 2 + 0.1, x)

    linear = jf.Function(lambda p, x: jnp.tanh(p @ x), init_square)
    model = jf.compile(jf.Vector(3) >> linear >> jf.Function(grown))
    params = model.init(jax.random.key(0))
    value = model.apply(params, model.schedule([[1, 2, 3]]))
    np.testing.assert_allclose(value[0], model.eval([1, 2, 3], params), rtol=1e-6)
    with pytest.raises(ValueError, match='Reverse-mode differentiation'):
        schedule = model.schedule([[1, 2, 3]])
        jax.grad(lambda p: model.apply(p, schedule).sum())(params)


def test_loops_that_zeros_would_not_end() -> None:
    """Past the end of a level a tile repeats a real row: inputs there are not ready."""

    def doubled(x: jax.Array) -> jax.Array:
        small = lambda s: jnp.abs(s).sum() < 10  # noqa: E731
        return jax.lax.while_loop(small, lambda s: s * 2, x)

    nest = jf.ForwardDeclaration()
    step = jf.Record((nest(),)) >> jnp.sin >> jf.Function(doubled)
    nest.resolve_to(jf.OneOf(type, {list: jf.Vector(3), tuple: step}))
    model = jf.compile(nest())
    example = ((([1.0, 2, 3],),),)
    values = model.apply({}, model.schedule([example] * 3))
    np.testing.assert_allclose(values[1], model.eval(example), rtol=1e-6)
