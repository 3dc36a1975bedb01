# SPDX-License-Identifier: Apache-2.0
"""Sums in a fixed order: results and gradients are the same to the last bit.

What is compared in processes of their own is compiled as users have it; see `conftest`.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from binary_trees import tree_block
from expression_parts import tables
from expressions import Expression, expressions
from extent import drawn
from function_kinds import KINDS
from functions import WIDTH
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType
from meshes import over_devices
from reproducible_models import (
    CASES,
    applied,
    bits,
    bits_of,
    changed,
    examples_of,
    model_of,
    trained,
)

import jfold as jf
from jfold.device.fixed_order import add_sorted
from jfold.scheduling.spec import RESIDUALS, STRATEGIES

PROGRAM = Path(__file__).parents[1] / 'support/reproducible_models.py'
ROTATED = [*zip(CASES, itertools.cycle(STRATEGIES), strict=False)]


def printed(*arguments: str, **env: str) -> str:
    """What `reproducible_models` prints in a process of its own."""
    path = os.pathsep.join(sys.path)
    others = {k: x for k, x in os.environ.items() if k != 'XLA_FLAGS'}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        env=others | {'PYTHONPATH': path, 'JAX_PLATFORMS': 'cpu'} | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    return done.stdout.strip()


# ---- results -------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize(('name', 'strategy'), ROTATED)
def test_an_example_gives_the_same_alone_and_in_company(
    name: str, strategy: str
) -> None:
    """In six random batches of each kind; strategies take turns."""
    assert changed(name, 6, most=20, strategy=strategy) == 0


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize('root', ['whole', 'tree', 'sequences'])
def test_generated_expressions(root: str) -> None:
    """They equal their eager twins, and alone give what they give in company."""
    options = st.fixed_dictionaries(
        {
            'residuals': st.sampled_from(RESIDUALS),
            'strategy': st.sampled_from(STRATEGIES),
        }
    )

    @settings(max_examples=drawn(1, 2))
    @given(expressions(root), options)
    def same(expression: Expression, options: dict[str, Any]) -> None:
        model = jf.compile(expression.block, 20, reproducible=True, **options)
        params, rng = model.init(jax.random.key(1)), np.random.default_rng(2)
        agree(model, params, expression.batch(rng, 3), 1e-5)
        examples = expression.batch(rng, 5)
        together = bits(model, params, model.schedule(examples), tables(model))
        for example, expected in zip(examples, together, strict=True):
            schedule = model.schedule([example], size=5)
            assert bits(model, params, schedule, tables(model)) == [expected]

    same()


@pytest.mark.long
def test_functions_of_all_kinds() -> None:
    """A row gives the same in each place of a tile, beside any others."""
    rng = np.random.default_rng(0)
    kinds = {name: kind for name, kind in KINDS.items() if 'float32' in kind.dtypes}
    spec = jax.ShapeDtypeStruct((WIDTH,), 'float32')
    made = [kind.init(rng, spec) for kind in kinds.values()]

    def all_kinds(params: Any, x: Any) -> Any:
        return [kind(p, x) for kind, p in zip(kinds.values(), params, strict=True)]

    block = jf.Vector(WIDTH) >> jf.Function(all_kinds, lambda key, x: made)
    model = jf.compile(block, 20, reproducible=True)
    params = model.init(jax.random.key(0))
    rows = [rng.standard_normal(WIDTH).astype('float32') for _ in range(70)]
    together = bits(model, params, model.schedule(rows))
    pairs = zip(kinds, kinds.values(), made, strict=True)
    names = [
        name
        for name, kind, p in pairs
        for _ in jax.tree.leaves(jax.eval_shape(kind, p, spec))
    ]
    for i in (0, 31, 63, 64, 69):
        (alone,) = bits(model, params, model.schedule([rows[i]], size=70))
        found = zip(names, alone, together[i], strict=True)
        assert [name for name, a, b in found if a != b] == []


def test_results_of_two_shards_and_beside_gradients() -> None:
    """As on one device and without; gradients of shards are those of another run."""
    model = model_of('trees')
    params, rng = model.init(jax.random.key(0)), np.random.default_rng(0)
    examples = examples_of('trees', rng, 8)
    dealt = model.schedule(examples, sharding=over_devices(2, AxisType.Explicit))
    alone = bits_of(applied(model, params, model.schedule(examples)))
    assert bits_of(applied(model, params, dealt)) == alone
    assert bits_of(trained(model, params, model.schedule(examples))[1]) == alone
    grads, values = trained(model, params, dealt)
    assert bits_of(values) == alone
    assert bits_of(trained(model, params, dealt)[0]) == bits_of(grads)


# ---- gradients -----------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ('strategy', 'residuals'), [*zip(STRATEGIES, RESIDUALS, strict=True)]
)
def test_gradients_do_not_depend_on_the_capacity(strategy: str, residuals: str) -> None:
    options = {'strategy': strategy, 'residuals': residuals}
    rng = np.random.default_rng(0)
    examples = examples_of('trees', rng, 30, 20)
    found = []
    for others in ([], examples_of('trees', rng, 400, 40)):
        model = model_of('trees', **options)
        params = model.init(jax.random.key(0))
        room = model.trace(examples + others).capacities(30 + len(others))
        model.reserve(room)
        schedule = model.schedule(examples, size=30 + len(others))
        found.append(bits_of(trained(model, params, schedule)[0]))
    assert found[0] == found[1]


@pytest.mark.long
def test_processes_and_numbers_of_threads() -> None:
    """They give the same gradients; an example the same in a thousand batches of trees,
    in loops that run as often as the batch says, as users have it."""
    one = printed(NPROC='1', XLA_FLAGS='--xla_cpu_multi_thread_eigen=false')
    several = printed('batches', NPROC='3', JAX_NUM_CPU_DEVICES='2').splitlines()
    assert one.splitlines() == several[::2]
    assert several[1::2] == ['tree-LSTM counted: 0', 'messages fixed: 0']


# ---- rows added to a table -----------------------------------------------------------


def test_sorted_rows_are_those_that_a_scatter_adds() -> None:
    """At places of many rows, of one and of none, and outside of the table."""
    rng = np.random.default_rng(0)
    table = rng.integers(9, size=(6, 3)).astype('float32')
    places = np.array([0, 4, 4, 0, 4, 2, 9, 0, 6, 5, 9])
    rows = rng.integers(9, size=(len(places), 3)).astype('float32')
    expected = jnp.asarray(table).at[places].add(rows, mode='drop')
    found = jax.jit(add_sorted)(table, places, rows)
    np.testing.assert_array_equal(found, expected)


def test_no_gpu_adds_rows_as_they_come() -> None:
    """Whatever is scattered there goes to places that differ."""
    model, rng = model_of('trees'), np.random.default_rng(0)
    params = model.init(jax.random.key(0))
    schedule = model.schedule(examples_of('trees', rng, 4))
    step = jax.jit(jax.grad(lambda p: model.apply(p, schedule).sum()))
    text = step.trace(params).lower(lowering_platforms=('cuda',)).as_text()
    scatters = text.count('"stablehlo.scatter"')
    assert scatters == text.count('unique_indices = true') > 0


# ---- the option ----------------------------------------------------------------------


def test_it_is_told() -> None:
    model = jf.compile(tree_block(), reproducible=True)
    assert 'sums in a fixed order' in model.explain(model.schedule([1, (2, 3)]))
    assert 'reproducible' in repr(model.schedule([1]).spec.key)


def test_each_operation_has_tiles_of_one_width() -> None:
    model, rng = model_of('tree-LSTM'), np.random.default_rng(0)
    found = set()
    for count in (1, 30):
        schedule = model.schedule(examples_of('tree-LSTM', rng, count))
        for o in range(len(model.program.operations)):
            found.add(schedule.tiles(o).shape[1] - 2)
    assert found == {1}
