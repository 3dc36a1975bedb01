# SPDX-License-Identifier: Apache-2.0
"""Functions of whole tiles: their reverse rules, and what they spread over rows."""

from __future__ import annotations

import itertools
from typing import Any

import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from jax.custom_derivatives import SymbolicZero
from looped import compiled, in_loops
from reverse_rules import BATCH, OPPOSITES, H, added, close, gradient, ones, weighted

import jfold as jf

# ---- rules of their own --------------------------------------------------------------


def of_tiles(reverse: Any) -> Any:
    """A product of a weight and rows, whose reverse adds up rows by itself."""
    product = jax.custom_vjp(lambda w, x: w * x)
    product.defvjp(lambda w, x: (w * x, (w, x)), lambda kept, ct: reverse(*kept, ct))
    return product


OF_TILES = {
    'of rows alone': lambda w, x: added(w * x),
    'adds': of_tiles(lambda w, x, ct: (jnp.sum(ct * x + 0.1, 0), ct * w)),
    'clips': of_tiles(lambda w, x, ct: (jnp.clip(ct * x, -2, 2).sum(0), ct * w)),
    'normalises rows': of_tiles(
        lambda w, x, ct: (
            jnp.sum(ct * x / jnp.linalg.norm(ct, axis=1)[:, None], 0),
            ct * w,
        )
    ),
    'normalises together': of_tiles(
        lambda w, x, ct: (jnp.sum(ct * x, 0), ct * w / jnp.linalg.norm(ct))
    ),
    'rounds': of_tiles(
        lambda w, x, ct: ((ct * x).sum(0).astype(int).astype('float32'), ct * w)
    ),
    'linear': of_tiles(lambda w, x, ct: (2 * jnp.sum(ct * x, 0), -ct * w)),
    'checkpointed': jax.checkpoint(
        of_tiles(lambda w, x, ct: (jnp.sum(ct * x + 0.1, 0), ct * w))
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ('rule', 'options'), [*zip(OF_TILES, itertools.cycle(OPPOSITES[:2]))]
)
def test_a_rule_of_whole_tiles_gives_nothing_for_spare_rows(
    rule: str, options: Any
) -> None:
    """And makes the same of a row, whatever the others are; options of loops take
    turns."""
    layer = jf.Function(OF_TILES[rule], init=ones, batched=True)
    block = jf.Vector(H) >> weighted >> layer >> jf.Function(jnp.sin)
    for model in compiled(block, *options), jf.compile(block):
        agree(model, model.init(jax.random.key(0)), BATCH, size=300)


def test_a_rule_of_whole_tiles_that_is_linear_gets_them_whole() -> None:
    """Others take rows one by one, of which the program tells nothing."""
    shapes: list[tuple[int, ...]] = []

    def reverse(w: Any, x: Any, ct: Any) -> Any:
        shapes.append(x.shape)
        return jnp.where(x > 0, ct, 0).T @ x @ jnp.ones(H) + 0 * w, ct * w

    layer = jf.Function(of_tiles(reverse), init=ones, batched=True)
    model = jf.compile(jf.Vector(H) >> layer)
    params = model.init(jax.random.key(0))
    gradient(model, params, BATCH * 100)
    assert max(shapes)[0] > 1


def test_a_rule_is_told_which_results_are_not_used() -> None:
    """Those that nothing reads in its function, too."""
    zeros: list[list[bool]] = []
    pair = jax.custom_vjp(lambda x: (jnp.sin(x), jnp.cos(x)))

    def reverse(x: Any, cts: Any) -> Any:
        zeros.append([isinstance(ct, SymbolicZero) for ct in cts])
        return (cts[0] * jnp.cos(x),)

    pair.defvjp(lambda x: (pair(x.value), x.value), reverse, symbolic_zeros=True)
    for batched in (False, True):
        layer = jf.Function(lambda w, x: pair(w * x)[0], init=ones, batched=batched)
        model = jf.compile(jf.Vector(H) >> layer)
        params, x = model.init(jax.random.key(0)), np.array(BATCH)
        zeros.clear()
        close(gradient(model, params, BATCH), [(x * np.cos(x)).sum(0)])
        told = zeros[batched:]  # of whole tiles, it is first looked at for all results
        assert told
        assert told == [[False, True]] * len(told)


# ---- what all rows of a tile share ---------------------------------------------------


def by_branches(w: Any, state: Any, x: Any) -> Any:
    """The same in two ways, of which all rows of a tile take one."""
    h = state @ w['a'] + x

    def by_negative_powers(h: Any) -> Any:
        z = h + w['b']
        power = jnp.exp(-2 * jnp.abs(z))
        return jnp.sign(z) * (1 - power) / (1 + power)

    def by_positive_powers(h: Any) -> Any:
        return 1 - 2 / (jnp.exp(2 * (h + w['b'])) + 1)

    large = jnp.any(jnp.abs(h) > 2)
    return jax.lax.cond(large, by_negative_powers, by_positive_powers, h)


def test_a_branch_that_a_tile_takes_is_not_mixed_with_that_of_a_chunk() -> None:
    """Gradients of weights run on other rows together than the loop does."""
    cell = jf.Function(
        by_branches,
        lambda key, *_: {'a': jax.random.normal(key, (H, H)), 'b': jnp.full(H, 0.3)},
        batched=True,
    )
    model = jf.compile(jf.Map(jf.Vector(H)) >> jf.Fold(cell, jf.Zeros([H])))
    rng = np.random.default_rng(0)
    batch = [rng.normal(0, 1, (n, H)) for n in (7, 5, 3, 3, 2, 1)]
    agree(model, model.init(jax.random.key(0)), batch)


# ---- parameters spread over rows -----------------------------------------------------


WHOLE = {
    'a broadcast': lambda w, x: jnp.tanh(jnp.broadcast_to(w, x.shape)) * x,
    'zeros alike': lambda w, x: (jnp.zeros_like(x) + w) * jnp.sin(x),
    'a repetition': lambda w, x: jnp.repeat(jnp.exp(w)[None], len(x), 0) * x,
    'once a step': lambda w, x: jnp.broadcast_to(added(w), x.shape) * x,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize('name', WHOLE)
def test_a_function_of_whole_tiles_that_spreads_a_parameter(name: str) -> None:
    """What has a row for each row is computed in each tile."""
    block = jf.Vector(H) >> jf.Function(WHOLE[name], init=ones, batched=True)
    model = jf.compile(block)
    params = model.init(jax.random.key(0))
    twin = jax.grad(lambda p: sum(block.eval(x, p).sum() for x in BATCH))
    grads = interpreter.called(twin, params)
    (want,) = jax.tree.leaves(grads)
    twice = 0.1 if name == 'once a step' else 0  # which the twin runs for each row
    for size in (None, 300):
        close(gradient(model, params, BATCH, size), [want - twice])


@pytest.mark.parametrize('strategy', ['counted', 'fixed'])
def test_an_axis_as_long_as_a_probe_is_told(strategy: Any) -> None:
    """Types are found on tiles of two numbers of rows; no other tile is let through."""

    def cut(w: Any, x: Any) -> Any:  # of so many weights that tiles are wider
        return x[:101] * w[0]

    function = jf.Function(cut, lambda key, *_: jnp.ones(1 << 14), batched=True)
    block = jf.Scalar() >> function
    model = in_loops(block, strategy=strategy)
    schedule = model.schedule([float(x) for x in range(300)])
    params = model.init(jax.random.key(0))
    message = 'a leading axis of [0-9]+ rows, got .101,.: give a row for each row'
    with pytest.raises(TypeError, match=message):
        model.apply(params, schedule)


def test_a_function_of_whole_tiles_may_have_an_equation_for_each_row() -> None:
    """Outside of loops it is traced for the rows that run alone."""
    w = jnp.arange(16.0).reshape(4, 4)
    each = jf.Function(lambda x: jnp.stack([row @ w for row in x]), batched=True)
    model = jf.compile(jf.Map(jf.Vector(4) >> each))
    rows = np.arange(8.0).reshape(2, 4)
    model.reserve(model.trace([list(rows)]).capacities(1))
    result = model.apply({}, model.schedule([list(rows)]))
    np.testing.assert_allclose(result[0], rows @ w)
