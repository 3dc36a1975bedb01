# SPDX-License-Identifier: Apache-2.0
"""Sums in a fixed order: results and gradients are the same to the last bit.

What is compared in processes of their own is compiled as users have it; see `conftest`.
"""

from __future__ import annotations

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
from function_kinds import KINDS
from functions import WIDTH
from hlo import AS_USERS_HAVE_IT
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType
from meshes import over_devices
from reproducible_models import (
    CASES,
    applied,
    bits,
    changed,
    examples_of,
    gradient,
    model_of,
    results_of,
)

import jfold as jf
from jfold.device.fixed_order import add_sorted
from jfold.scheduling.spec import RESIDUALS, STRATEGIES

PROGRAM = Path(__file__).parents[1] / 'support/reproducible_models.py'
ALL = [  # of each case, one strategy is quick
    pytest.param(name, strategy, marks=[pytest.mark.slow] if (i + j) % 2 else [])
    for i, name in enumerate(CASES)
    for j, strategy in enumerate(STRATEGIES)
]


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


@pytest.mark.parametrize(('name', 'strategy'), ALL)
def test_an_example_gives_the_same_alone_and_in_company(
    name: str, strategy: str
) -> None:
    """In sixty random batches, six of each kind and strategy."""
    assert changed(name, 6, most=20, strategy=strategy) == 0


@pytest.mark.slow
def test_in_many_batches_as_users_have_it() -> None:
    """A thousand of trees, in loops that run as often as the batch says."""
    assert printed('batches') == 'tree-LSTM counted: 0\nmessages fixed: 0'


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

    @settings(max_examples=2)
    @given(expressions(root), options)
    def same(expression: Expression, options: dict[str, Any]) -> None:
        model = jf.compile(expression.block, 20, reproducible=True, **options)
        params, rng = model.init(jax.random.key(1)), np.random.default_rng(2)
        agree(model, params, expression.batch(rng, 3), 1e-5)
        examples = expression.batch(rng, 5)
        together = of_expression(model, params, examples)
        alone = [of_expression(model, params, [x])[0] for x in examples]
        assert together == alone

    same()


def of_expression(model: jf.Model, params: Any, examples: list[Any]) -> Any:
    """What each example gives, to the bit."""
    schedule = model.schedule(examples)
    given = applied(model, params, schedule, tables(model))
    values, metrics = given if model.program.metric_results else (given, {})
    return results_of(values, metrics, len(examples))


@pytest.mark.slow
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
    together = of_kinds(model, params, rows)
    for i in (0, 31, 63, 64, 69):
        (alone,) = of_kinds(model, params, [rows[i]])
        pairs = zip(kinds, alone, together[i], strict=True)
        assert [name for name, a, b in pairs if a != b] == []


def of_kinds(model: jf.Model, params: Any, rows: list[Any]) -> list[list[bytes]]:
    """What each row gives of each kind, to the bit."""
    given = applied(model, params, model.schedule(rows))
    leaves = [list(map(np.asarray, jax.tree.leaves(each))) for each in given]
    return [
        [b''.join(x[i].tobytes() for x in each) for each in leaves]
        for i in range(len(rows))
    ]


def test_a_batch_of_two_shards_gives_the_same() -> None:
    """As on one device; gradients, summed over shards, are those of another run."""
    model = model_of('tree-LSTM')
    params, rng = model.init(jax.random.key(0)), np.random.default_rng(0)
    examples = examples_of('tree-LSTM', rng, 8)
    sharding = over_devices(2, AxisType.Explicit)
    dealt = model.schedule(examples, sharding=sharding)
    assert bits(model, params, dealt) == bits(model, params, model.schedule(examples))
    found = [gradient(model, params, dealt) for _ in range(2)]
    assert found[0] == found[1]


def test_predictions_are_those_of_single_examples() -> None:
    """The last batch, which is padded, among them."""
    model, rng = model_of('child sums'), np.random.default_rng(0)
    params = model.init(jax.random.key(0))
    examples = examples_of('child sums', rng, 11, 12)
    together = model.predict(params, examples, batch_size=4)
    alone = [model.predict(params, [x], batch_size=1)[0] for x in examples]
    np.testing.assert_array_equal(together, np.stack(alone))


def test_results_beside_gradients_are_those_without() -> None:
    model, rng = model_of('tree-LSTM'), np.random.default_rng(0)
    params = model.init(jax.random.key(0))
    schedule = model.schedule(examples_of('tree-LSTM', rng, 6))

    def loss(params: Any) -> Any:
        values = model.apply(params, schedule)
        return (values**2).sum(), values

    step = jax.jit(jax.grad(loss, has_aux=True), compiler_options=AS_USERS_HAVE_IT)
    beside = step(params)[1]
    np.testing.assert_array_equal(beside, applied(model, params, schedule))


# ---- gradients -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize('residuals', RESIDUALS)
@pytest.mark.parametrize('strategy', STRATEGIES)
def test_gradients_do_not_depend_on_the_capacity(strategy: str, residuals: str) -> None:
    options = {'strategy': strategy, 'residuals': residuals}
    rng = np.random.default_rng(0)
    examples = examples_of('tree-LSTM', rng, 30, 20)
    found = []
    for others in ([], examples_of('tree-LSTM', rng, 400, 40)):
        model = model_of('tree-LSTM', **options)
        params = model.init(jax.random.key(0))
        room = model.trace(examples + others).capacities(30 + len(others))
        model.reserve(room)
        schedule = model.schedule(examples, size=30 + len(others))
        found.append(masked_gradient(model, params, schedule))
    assert found[0] == found[1]


def masked_gradient(model: jf.Model, params: Any, schedule: jf.Schedule) -> list[bytes]:
    """Gradients of a loss of the real examples."""

    def loss(params: Any) -> Any:
        values = model.apply(params, schedule)
        return jnp.where(schedule.mask[:, None], values**2, 0).sum()

    grads = jax.jit(jax.grad(loss), compiler_options=AS_USERS_HAVE_IT)(params)
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(grads)]


@pytest.mark.slow
def test_gradients_of_processes_and_numbers_of_threads() -> None:
    one = printed(NPROC='1', XLA_FLAGS='--xla_cpu_multi_thread_eigen=false')
    assert one == printed(NPROC='3', JAX_NUM_CPU_DEVICES='2')


# ---- rows added to a table -----------------------------------------------------------


def test_sorted_rows_are_those_that_a_scatter_adds() -> None:
    """At places of many rows, of one and of none, and outside of the table."""
    rng = np.random.default_rng(0)
    table = rng.integers(9, size=(6, 3)).astype('float32')
    places = np.array([0, 4, 4, 0, 4, 2, 9, 0, 6, 5, 9])
    rows = rng.integers(9, size=(len(places), 3)).astype('float32')
    expected = jnp.asarray(table).at[places].add(rows, mode='drop')
    found = add_sorted(jnp.asarray(table), jnp.asarray(places), jnp.asarray(rows))
    np.testing.assert_array_equal(found, expected)


def test_no_gpu_adds_rows_as_they_come() -> None:
    """Whatever is scattered there goes to places that differ."""
    model, rng = model_of('tree-LSTM'), np.random.default_rng(0)
    params = model.init(jax.random.key(0))
    schedule = model.schedule(examples_of('tree-LSTM', rng, 4))
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
    """Whatever the capacity."""
    model, rng = model_of('tree-LSTM'), np.random.default_rng(0)
    found = set()
    for count in (1, 30):
        schedule = model.schedule(examples_of('tree-LSTM', rng, count))
        for o in range(len(model.program.operations)):
            found.add(schedule.tiles(o).shape[1] - 2)
    assert found == {1}
