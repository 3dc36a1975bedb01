# SPDX-License-Identifier: Apache-2.0
"""How many programs are compiled: a handful for a stream, never more than agreed."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from binary_trees import binary_tree, tree_block
from compilations import compilations

import jfold as jf
from jfold.scheduling.spec import Spec


def batch(rng: np.random.Generator, size: int, most: int) -> list[Any]:
    """Random trees of 1 to `most` leaves."""
    return [binary_tree(rng, int(rng.integers(1, most + 1))) for _ in range(size)]


def test_a_short_stream_compiles_a_handful() -> None:
    """At most four programs of random trees, none after the first twenty batches."""
    model = jf.compile(tree_block(4))
    params, rng = model.init(jax.random.key(0)), np.random.default_rng(0)

    @jax.jit
    def jfold_step(params: Any, schedule: jf.Schedule) -> Any:
        return model.apply(params, schedule).sum()

    counts = []
    with compilations('jfold_step') as compiled:
        for _ in range(60):
            jfold_step(params, model.schedule(batch(rng, 16, 48)))
            counts.append(len(compiled))
    assert counts[19] == counts[-1] == model.programs <= 4


def test_apply_compiles_once_per_shape() -> None:
    """Outside of `jit` too."""
    model = jf.compile(tree_block(4))
    params = model.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    with compilations('execute') as compiled:
        for _ in range(5):
            model.apply(params, model.schedule(batch(rng, 3, 9)))
    assert len(compiled) == model.programs == 1


# ---- specs ---------------------------------------------------------------------------


def test_specs_are_values() -> None:
    """Equal by content, and hashed so; those of two models differ."""
    model = jf.compile(tree_block(4))
    first, second = (model.schedule([1, (2, 3)]).spec for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    rebuilt = Spec(first.program, replace(first.capacity))
    assert rebuilt == first
    assert hash(rebuilt) == hash(first)
    larger = replace(first.capacity, levels=first.capacity.levels + 1)
    assert Spec(first.program, larger) != first
    assert jf.compile(tree_block(4)).schedule([1, (2, 3)]).spec != first


def test_a_schedule_is_a_pytree_of_arrays_and_a_spec() -> None:
    """Two batches of one shape have one tree structure."""
    model = jf.compile(tree_block(4))
    first, second = model.schedule([1, (2, 3)]), model.schedule([(1, 2), (3, 4)])
    assert jax.tree.structure(first) == jax.tree.structure(second)
    arrays = jax.tree.leaves(first)
    assert all(isinstance(x, np.ndarray) for x in arrays)
    shapes = [(x.shape, x.dtype) for x in arrays]
    assert shapes == [(x.shape, x.dtype) for x in jax.tree.leaves(second)]
    same = functools.partial(jax.tree.map, lambda x: x)
    assert repr(same(first)) == repr(first) == 'Schedule(2 examples, 4 nodes, depth 2)'
