# SPDX-License-Identifier: Apache-2.0
"""Cells as people write them: training copies no buffer, and the gradients are right.

What XLA repeats, merges or reorders depends on the cell, so one alone shows little.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from binary_trees import binary, binary_tree, chain
from hlo import compiled_text, large, parse, scatters

import jfold as jf
from jfold.scheduling.spec import RESIDUALS, STRATEGIES

H = 6
LARGE = 1025  # rows; neither a tile nor a chunk has as many, but every buffer

Cell = Callable[[dict[str, Any], Any, Any], Any]
CELLS: dict[str, Cell] = {}


def cell(fn: Cell) -> Cell:
    """Registers a cell on states [H]."""
    CELLS[fn.__name__] = fn
    return fn


def both(left: Any, right: Any) -> Any:
    return jnp.concatenate([left, right])


def normed(x: Any) -> Any:
    return (x - x.mean()) / jnp.sqrt(x.var() + 1e-5)


@cell
def gated_relu(p: Any, left: Any, right: Any) -> Any:
    """The cell of Looks et al. 2017, section 3.1."""
    hidden = jax.nn.relu(both(left, right) @ p['wide'] + p['x'])
    gates = jnp.split(hidden @ p['four'], 4)
    a, b, c = map(jax.nn.sigmoid, gates[:3])
    return a * left + b * right + c * jnp.tanh(gates[3])


@cell
def three_relus(p: Any, left: Any, right: Any) -> Any:
    """Products between simple functions alone."""
    x = jax.nn.relu(both(left, right) @ p['wide'] + p['x'])
    x = jax.nn.relu(x @ p['a'] + p['y'])
    return jax.nn.relu(x @ p['b'])


@cell
def gelu_and_norm(p: Any, left: Any, right: Any) -> Any:
    """Reductions over a state."""
    hidden = jax.nn.gelu(both(left, right) @ p['wide'] * p['x'] + p['y'])
    return normed(hidden @ p['a']) * p['x'] + left


@cell
def gated_recurrent(p: Any, left: Any, right: Any) -> Any:
    """A GRU on the sum of the states."""
    state, x = left + right, both(left, right)
    z, r = jax.nn.sigmoid(x @ p['wide']), jax.nn.sigmoid(x @ p['other'])
    return (1 - z) * state + z * jnp.tanh((r * state) @ p['a'])


@cell
def attention(p: Any, left: Any, right: Any) -> Any:
    """A softmax over two children."""
    keys, values = (jnp.stack([left, right]) @ p[k] for k in 'ab')
    return jnp.tanh(jax.nn.softmax(keys @ p['y']) @ values) + 0.1 * left


@cell
def product_of_products(p: Any, left: Any, right: Any) -> Any:
    """The cotangent of each product needs the other."""
    return left + right + jax.nn.relu(left @ p['a']) * (right @ p['b'])


@cell
def larger_product(p: Any, left: Any, right: Any) -> Any:
    """Which is the larger decides about both cotangents."""
    return jnp.maximum(left @ p['a'], right @ p['b'])


@cell
def highway(p: Any, left: Any, right: Any) -> Any:
    """A product that a gate and a simple function share."""
    shared = both(left, right) @ p['wide']
    gate = jax.nn.sigmoid(shared + p['y'])
    return gate * jax.nn.relu(shared + p['x']) + (1 - gate) * left


@cell
def swish(p: Any, left: Any, right: Any) -> Any:
    """A product that is read at once and through a function."""
    return jax.nn.silu(both(left, right) @ p['wide']) * p['x']


@cell
def sliced_gates(p: Any, left: Any, right: Any) -> Any:
    """Gates that slices take apart, and rows of a matrix."""
    z = both(left, right)[::-1] @ p['wide'] @ p['four']
    first, second = p['b'][: H // 2], p['b'][H // 2 :]
    gate, new = jax.nn.sigmoid(z[:H]), jnp.tanh(z[H : 2 * H])
    kept = z[2 * H : 3 * H] * (left + z[3 * H :])
    return gate * new + (1 - gate) * kept + first[0] * second[-1]


@cell
def bilinear(p: Any, left: Any, right: Any) -> Any:
    """Products of products."""
    form = jnp.einsum('i,ijk,k->j', left, p['cube'], right)
    return jnp.tanh(form + both(left, right) @ p['wide'])


SHAPES = {
    'wide': (2 * H, H),
    'other': (2 * H, H),
    'a': (H, H),
    'b': (H, H),
    'four': (H, 4 * H),
    'cube': (H, H, H),
    'x': (H,),
    'y': (H,),
}


def init(key: jax.Array, *_: Any) -> dict[str, Any]:
    keys = jax.random.split(key, len(SHAPES))
    return {
        name: 0.3 * jax.random.normal(k, shape)
        for k, (name, shape) in zip(keys, SHAPES.items(), strict=True)
    }


def model(name: str, **options: Any) -> jf.Model:
    def embed(params: Any, x: Any) -> Any:
        return jnp.tanh(params @ x)

    def init_leaf(key: jax.Array, _: Any) -> Any:
        return jax.random.normal(key, (H, 3))

    numbers = jf.InputTransform(lambda n: [n, 1, -n]) >> jf.Vector(3)
    leaf = numbers >> jf.Function(embed, init_leaf)
    block = binary(leaf, jf.Function(CELLS[name], init, name=name))
    return jf.compile(block, **options)


def settings() -> Iterator[Any]:
    """Each cell as most use it, and under another setting; those take turns."""
    usual, *others = itertools.product(STRATEGIES, RESIDUALS)
    for name, other in zip(CELLS, itertools.cycle(others)):
        yield pytest.param(name, *usual, id=name)
        yield pytest.param(name, *other, marks=pytest.mark.slow)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(('name', 'strategy', 'residuals'), [*settings()])
def test_training_copies_no_buffer(name: str, strategy: str, residuals: str) -> None:
    """Nor does it scatter in a loop."""
    made = model(name, strategy=strategy, residuals=residuals)
    rng = np.random.default_rng(0)
    trees = [binary_tree(rng, 40) for _ in range(29)]
    schedule = made.schedule([*trees, chain(40)])

    def loss(params: Any, schedule: jf.Schedule) -> Any:
        return (made.apply(params, schedule) ** 2).sum()

    params = made.init(jax.random.key(0))
    module = parse(compiled_text(jax.grad(loss), params, schedule))
    assert large(module, LARGE) == []
    assert scatters(module) == []


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize('name', CELLS)
def test_gradients_are_those_of_the_eager_twin(name: str) -> None:
    """Through levels of several tiles."""
    with jax.enable_x64(True):
        made = model(name)
        rng = np.random.default_rng(1)
        trees = [binary_tree(rng, n) for n in (9, 4, 1)]
        params = made.init(jax.random.key(0))
        agree(made, jax.tree.map(np.float64, params), trees, 1e-6)
