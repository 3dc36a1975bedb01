# SPDX-License-Identifier: Apache-2.0
"""How many programs are compiled: a handful for a stream, never more than agreed."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from binary_trees import binary_tree, tree_block
from compilations import compilations

import jfold as jf
from jfold.scheduling.spec import Spec


def batch(rng: np.random.Generator, size: int, most: int) -> list[Any]:
    """Random trees of 1 to `most` leaves."""
    return [binary_tree(rng, int(rng.integers(1, most + 1))) for _ in range(size)]


def stream(seed: int, batches: int, size: int, most: int) -> list[int]:
    """How many programs were compiled after each batch of random trees."""
    model = jf.compile(tree_block(4))
    params = model.init(jax.random.key(0))
    rng = np.random.default_rng(seed)

    @jax.jit
    def jfold_step(params: Any, schedule: jf.Schedule) -> Any:
        return model.apply(params, schedule).sum()

    counts = []
    with compilations('jfold_step') as compiled:
        for _ in range(batches):
            jfold_step(params, model.schedule(batch(rng, size, most)))
            counts.append(len(compiled))
    assert counts[-1] == model.programs
    return counts


def test_compilations_are_counted() -> None:
    """The listener sees a new shape and not a known one."""

    @jax.jit
    def counted(x: Any) -> Any:
        return x + 1

    with compilations('counted') as compiled:
        counted(np.ones(2))
        counted(np.zeros(2))
        assert len(compiled) == 1
        counted(np.ones(3))
        assert len(compiled) == 2
    counted(np.ones(4))
    assert len(compiled) == 2


@pytest.mark.parametrize('seed', [0, 1])
def test_a_short_stream_compiles_a_handful(seed: int) -> None:
    """At most four programs, none after the first twenty batches."""
    counts = stream(seed, batches=60, size=16, most=48)
    assert counts[-1] <= 4
    assert counts[19] == counts[-1]


def test_apply_compiles_once_per_shape() -> None:
    """Outside of `jit` too."""
    model = jf.compile(tree_block(4))
    params = model.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    with compilations('execute') as compiled:
        for _ in range(5):
            model.apply(params, model.schedule(batch(rng, 3, 9)))
    assert len(compiled) == model.programs == 1


# ---- the budget ----------------------------------------------------------------------


def test_a_batch_that_outgrows_its_program() -> None:
    """The error names what grew, and by how much; the model goes on as before."""
    model = jf.compile(tree_block(4), max_programs=1)
    params = model.init(jax.random.key(0))
    small, large = [(1, (2, 3))], [binary_tree(np.random.default_rng(0), 900)]
    before = model.apply(params, model.schedule(small))
    with pytest.raises(jf.ProgramBudgetError) as caught:
        model.schedule(large)
    assert str(caught.value) == (
        'expected batches for at most 1 programs, as `max_programs` says, got a batch '
        'of 1 examples, which needs program 2; these grew: constants[0] from 128 to '
        '900, rows[0] from 128 to 900, rows[1] from 128 to 899. Give batches of one '
        'size and similar content, which share programs; or raise '
        '`jfold.compile(..., max_programs=...)`'
    )
    assert model.programs == 1
    after = model.apply(params, model.schedule(small))
    np.testing.assert_array_equal(before, after)
    with pytest.raises(jf.ProgramBudgetError):
        model.schedule(large)


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
