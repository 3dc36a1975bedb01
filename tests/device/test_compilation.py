# SPDX-License-Identifier: Apache-2.0
"""Compiled programs: what tells them apart, and those that are compiled before."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from agreement import agree, close
from binary_trees import chain, tree_block
from compilations import compilations
from expressions import Expression, expressions
from hypothesis import given, settings
from hypothesis import strategies as st
from training_steps import SIZE, TREES, batches, prepared, train

import jfold as jf
from jfold.scheduling.spec import Spec

QUICK = {'xla_backend_optimization_level': 0}


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


# ---- one program ---------------------------------------------------------------------


@pytest.fixture(scope='module')
def trained() -> Any:
    """Parameters and losses after a few steps, compiled by and by."""
    model, _, params = prepared()
    step = jax.jit(functools.partial(train, model), compiler_options=QUICK)
    losses = []
    for indices in batches(len(TREES), 5):
        schedule = model.schedule([TREES[i] for i in indices])
        params, loss = step(params, schedule, 0.1)
        losses.append(loss)
    return params, losses


@pytest.mark.parametrize('kind', ['plain', 'donated'])
def test_training_starts_with_no_compilation(kind: str, trained: Any) -> None:
    """One program is compiled ahead; the loop compiles nothing, and computes right."""
    model, corpus, params = prepared()

    def jfold_step(params: Any, schedule: jf.Schedule, rate: Any) -> Any:
        return train(model, params, schedule, rate)

    kinds: dict[str, Any] = {
        'plain': jfold_step,
        'donated': jax.jit(jfold_step, donate_argnums=0, compiler_options=QUICK),
    }
    with compilations('jfold_step') as compiled:
        step = model.precompile(kinds[kind], params, corpus.capacities(SIZE), 0.1)
        assert len(compiled) == 1
    losses = []
    with compilations('') as compiled:
        for indices in batches(len(corpus), 5):
            before = params
            params, loss = step(params, corpus.schedule(indices), 0.1)
            losses.append(loss)
            deleted = [x.is_deleted() for x in jax.tree.leaves(before)]
            assert deleted == [kind == 'donated'] * len(deleted)
    assert compiled == []
    assert model.programs == 1
    close((params, losses), trained, 1e-5)


def test_arguments_by_name_and_as_shapes() -> None:
    """Of any name; shapes and types are enough where there are no values yet."""
    model, corpus, params = prepared()

    @functools.partial(jax.jit, static_argnames='scale')
    def apply(*, weights: Any, step: Any, schedules: Any, scale: float) -> Any:
        first, second = (model.apply(weights, x) for x in schedules)
        return scale * (first.sum() - second.sum()) + step['count']

    def shape(x: Any) -> Any:
        return jax.ShapeDtypeStruct(x.shape, x.dtype)

    ready = model.precompile(
        apply,
        weights=jax.tree.map(shape, params),
        step={'count': jax.ShapeDtypeStruct((), 'int32')},
        schedules=[corpus.capacities(2), corpus.capacities(3)],
        scale=2.0,
    )
    schedules = [corpus.schedule([0, 1]), corpus.schedule([0, 1, 2])]
    got = ready(weights=params, step={'count': np.int32(3)}, schedules=schedules)
    first, second = (model.apply(params, x).sum() for x in schedules)
    close(got, 2 * (first - second) + 3, 1e-5)
    assert model.programs == 2


def test_a_step_and_its_batches() -> None:
    """Partial batches and a step for less share it; JAX refuses other arguments."""
    model, corpus, params = prepared()
    ready = model.precompile(model.apply, params, corpus.capacities(SIZE))
    assert 'while' in ready.compiled.as_text()
    assert [spec.capacity for spec in ready.specs] == [corpus.capacities(SIZE)]
    assert repr(ready) == f'CompiledStep({corpus.capacities(SIZE)})'
    whole = ready(params, corpus.schedule(range(4)))
    for schedule in (
        corpus.schedule([0, 1], size=SIZE),
        model.schedule(TREES[:2], size=SIZE),
    ):
        close(ready(params, schedule)[:2], whole[:2], 1e-5)
    wider = jf.compile(tree_block(5)).init(jax.random.key(0))
    with pytest.raises(TypeError, match='called with float32'):
        ready(wider, corpus.schedule(range(4)))
    small = model.trace(TREES[:4]).capacities(SIZE)
    assert model.precompile(model.apply, params, small).specs == ready.specs
    assert model.programs == 1


@pytest.mark.long
@given(expressions(), st.integers(0, 2**32))
@settings(max_examples=3)
def test_capacities_without_room_to_spare(expression: Expression, seed: int) -> None:
    """Give the values and gradients of examples one by one."""
    model = jf.compile(expression.block, max_programs=1)
    examples = expression.batch(np.random.default_rng(seed), 4)
    model.reserve(model.trace(examples).capacities(SIZE))
    agree(model, model.init(jax.random.key(0)), examples[:3], size=SIZE)
    assert model.programs == 1


def test_a_model_without_operations() -> None:
    model = jf.compile(jf.Scalar())
    corpus = model.trace([1, 2, 3])
    ready = model.precompile(model.apply, {}, corpus.capacities(2))
    assert ready({}, corpus.schedule([2, 0])).tolist() == [3, 1]
    empty = model.trace([])
    ready = model.precompile(model.apply, {}, empty.capacities(3))
    assert ready({}, empty.schedule([], size=3)).shape == (3,)


# ---- several steps, and batches without room -----------------------------------------


def test_a_larger_capacity_leaves_the_step_as_it_was() -> None:
    """Each has the batches that fit; what does not fit is compiled for, once."""
    model = jf.compile(tree_block(4))
    params = model.init(jax.random.key(0))
    small, large = (model.trace([chain(n)] * 3) for n in (3, 6))

    def doubled(params: Any, schedule: jf.Schedule) -> Any:
        return 2 * model.apply(params, schedule)

    first = model.precompile(doubled, params, small.capacities(2))
    second = model.precompile(model.apply, params, large.capacities(2))
    with compilations('') as compiled:
        first(params, small.schedule([0, 1]))
        got = second(params, large.schedule([0, 1]))
        assert compiled == []
        with pytest.warns(RuntimeWarning) as caught:
            twice = first(params, large.schedule([0, 1]))
        first(params, large.schedule([1, 2]))
        first(params, small.schedule([1, 2]))
        assert compiled == ['jit(doubled)']
    close(twice, 2 * got, 1e-6)
    text, _, rest = str(caught.pop().message).partition(', in ')
    assert text == (
        'expected schedules of the capacity that the step was compiled for, got one '
        'with levels from 3 to 6, constants[0] from 8 to 14, rows[0] from 8 to 14, '
        'rows[1] from 6 to 12: compiled the step for it too'
    )
    assert re.fullmatch(
        r'[\d.]+ s\. Reserve that much by `model.reserve` before `model.precompile`',
        rest,
    )
    assert model.programs == 2


def test_a_schedule_from_before_has_a_smaller_capacity() -> None:
    model = jf.compile(jf.Map(jf.Scalar()) >> jf.Sum())
    before = model.schedule([[1.0], [2.0]])
    large = model.trace([[1.0] * 100] * 2)
    ready = model.precompile(model.apply, {}, large.capacities(2))
    with pytest.warns(RuntimeWarning, match='Make schedules after `model.precompile`'):
        assert ready({}, before).tolist() == [1, 2]
    assert ready({}, model.schedule([[1.0], [2.0]])).tolist() == [1, 2]


def test_static_and_donated_arguments() -> None:
    """Static ones are left out when the step is called; compiling again, for a batch
    without room, needs shapes and these alone."""
    model, corpus, params = prepared()

    @functools.partial(
        jax.jit, static_argnums=0, static_argnames='shift', donate_argnums=2
    )
    def scaled(
        scale: float, params: Any, before: Any, given: Any, *, shift: int
    ) -> Any:
        values = scale * model.apply(params, given['schedule']) + shift
        return values, scale * before

    given = {'schedule': corpus.capacities(2)}
    ready = model.precompile(scaled, 2.0, params, jax.numpy.zeros(2), given, shift=1)
    largest = int(corpus.nodes.argmax())
    for indices in [0, 1], [largest] * 2, [largest] * 2:
        with warnings.catch_warnings(action='ignore'):
            now = jax.numpy.ones(2), {'schedule': corpus.schedule(indices)}
            values, twice = ready(params, *now)
        expected = [2 * model.eval(TREES[i], params) + 1 for i in indices]
        close(values, np.array(expected), 1e-5)
        assert twice.tolist() == [2, 2]


# ---- the next run --------------------------------------------------------------------

RUN = """
import functools, json, sys, jax
from collections import Counter
import training_steps as t

jax.config.update('jax_compilation_cache_dir', sys.argv[1])
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
events = Counter()
jax.monitoring.register_event_listener(lambda event, **_: events.update([event]))
model, corpus, params = t.prepared()
step = jax.jit(functools.partial(t.train, model), donate_argnums=0)
ready = model.precompile(step, params, corpus.capacities(t.SIZE), 0.1)
for indices in t.batches(len(corpus), 3):
    params, loss = ready(params, corpus.schedule(indices), 0.1)
named = {name.rpartition('/')[2]: n for name, n in events.items()}
counts = {name: named.get(name, 0) for name in ('cache_hits', 'cache_misses')}
print(json.dumps({**counts, 'loss': float(loss)}))
"""


@pytest.mark.slow
def test_the_next_run_compiles_nothing(tmp_path: Path) -> None:
    """With JAX's persistent cache, whatever the order of sets."""
    found = []
    support = str(Path(__file__).parents[1] / 'support')
    for seed in '1', '2':
        done = subprocess.run(
            [sys.executable, '-c', RUN, str(tmp_path)],
            cwd=Path(__file__).parent,
            env=os.environ | {'PYTHONHASHSEED': seed, 'PYTHONPATH': support},
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(json.loads(done.stdout))
    first, second = found
    assert first['cache_misses'] > 0
    assert second['cache_misses'] == 0
    assert second['cache_hits'] == first['cache_hits'] + first['cache_misses']
    assert first['loss'] == second['loss']
