# SPDX-License-Identifier: Apache-2.0
"""Models that draw, with examples for each."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from binary_trees import binary
from flax import nnx
from hypothesis import strategies as st

import jfold as jf
from jfold.scheduling.spec import COUNTED, FIXED, RECOMPUTE_ALL, SAVE_PRODUCTS

KEY = jax.random.key(7)


def noise(x: Any, dropout: Any) -> Any:
    """A normal number beside each number, or nothing."""
    return x if dropout is None else x + jax.random.normal(dropout, x.shape)


def masked(p: Any, x: Any, y: Any, *, dropout: Any) -> Any:
    """A cell whose state is dropped in part."""
    state = jnp.tanh(p['w'] @ x + p['u'] @ y)
    if dropout is None:
        return state
    return state * jax.random.bernoulli(dropout, 0.5, state.shape) * 2


def weights(key: Any) -> Any:
    """Of `masked`."""
    w, u = jax.random.normal(key, (2, 3, 3))
    return {'w': w, 'u': u}


noisy = jf.Function(noise, rngs='dropout')
cell = jf.Function(masked, weights, rngs='dropout')
state = jf.Scalar() >> (lambda x: x * jnp.arange(1.0, 4.0))


def tree_block() -> jf.Block:
    """Trees: what is drawn at leaves, within the recursion, and behind it."""
    tree = binary(state >> noisy, cell)
    return tree >> jf.AllOf(jf.Function(nn.Dropout(0.5)), noisy)


def late_block() -> jf.Block:
    """Calls that wait for others: rows go by the ways to them."""
    nested = jf.ForwardDeclaration(name='nested', output_type=[3])
    up = jf.ForwardDeclaration(name='up')
    up.resolve_to(jf.AllOf(noisy, jf.Identity()) >> cell)
    both = jf.AllOf(jf.GetItem(0) >> up(), jf.GetItem(1) >> nested()) >> cell
    folded = jf.Fold(both, jf.Zeros([3]))
    nested.resolve_to(jf.OneOf(type, {float: state >> noisy, list: folded}))
    return nested() >> noisy


def steps_block() -> jf.Block:
    """A loop over items, pairs of items, and a metric."""
    items = jf.Map(state >> noisy)
    seen = jf.AllOf(jf.Identity(), jf.Metric('seen')) >> jf.GetItem(0)
    folded = jf.Fold(cell, jf.Zeros([3]))
    reduced = jf.Reduce(cell, jf.Zeros([3]), associative=True)
    return items >> jf.AllOf(folded >> seen, reduced, jf.Identity())


def graph_block() -> jf.Block:
    """A message passes along each edge of a graph of objects."""
    charge = jf.Share(jf.GetItem('charge') >> state >> noisy)
    around = jf.GetItem('bonds') >> jf.Map(charge) >> jf.Sum()
    after = jf.Share(jf.AllOf(charge, around) >> cell)
    return jf.Map(after) >> jf.Sum()


def modules_block() -> jf.Block:
    """Modules of both libraries, within a recursion."""
    leaf = state >> jf.Function(Noisy(nnx.Rngs(dropout=1)))
    return binary(leaf, jf.Function(Halves(3)))


class Halves(nn.Module):
    """A Linen cell that draws twice."""

    size: int

    @nn.compact
    def __call__(self, x: Any, y: Any) -> Any:
        x = nn.Dropout(0.3)(nn.Dense(self.size)(x))
        return jnp.tanh(x + nn.Dropout(0.3, rng_collection='other')(y))


class Noisy(nnx.Module):
    """An NNX module that draws from two streams."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Dropout(0.3, rngs=rngs)
        self.second = nnx.Dropout(0.3, rngs=rngs)
        self.scale = nnx.Param(jnp.ones(3))

    def __call__(self, x: Any) -> Any:
        return self.second(self.first(x) * self.scale)


def atoms(count: int) -> list[Any]:
    """A ring of objects that know each other."""
    made: list[Any] = [{'charge': 0.1 + k} for k in range(count)]
    for k, atom in enumerate(made):
        atom['bonds'] = [made[k - 1], made[(k + 1) % count]]
    return made


TREES = [1.0, ((1.0, 2.0), (3.0, (4.0, 5.0))), (2.0, 3.0), (1.0, (2.0, (3.0, 4.0)))]
LISTS = [[1.0, 2.0, 3.0], [], [4.0], [5.0, 6.0, 7.0, 8.0, 9.0]]
NESTED = [[1.0, [2.0, 3.0], 4.0], 5.0, [[[6.0]], 7.0, [8.0, [9.0, 1.0]]]]
CASES = {
    'tree': (tree_block, TREES),
    'late': (late_block, NESTED),
    'steps': (steps_block, LISTS),
    'graph': (graph_block, [atoms(3), atoms(1), atoms(5)]),
    'modules': (modules_block, [1.0, ((1.0, 2.0), 3.0), (2.0, 3.0)]),
}
# Each with other options; for 'graph', `test_outside_loops` is quick.
ROTATED = [
    ('tree', SAVE_PRODUCTS, COUNTED),
    pytest.param('modules', RECOMPUTE_ALL, COUNTED, marks=pytest.mark.slow),
    pytest.param('late', SAVE_PRODUCTS, FIXED, marks=pytest.mark.slow),
    ('steps', RECOMPUTE_ALL, FIXED),
]


def compiled(name: str, **options: Any) -> tuple[jf.Model, Any, list[Any]]:
    """A model of a case, parameters and examples."""
    make, examples = CASES[name]
    model = jf.compile(make(), **options)
    return model, model.init(jax.random.key(0)), examples


nested = st.recursive(
    st.floats(0, 1, width=32), lambda x: st.lists(x, max_size=4), max_leaves=12
)
