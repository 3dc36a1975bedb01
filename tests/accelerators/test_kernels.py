# SPDX-License-Identifier: Apache-2.0
"""What a GPU and a TPU would run, neither of which is here: `make accelerators`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from bounds import BOUNDS, WISHED, counted
from hlo import copies, loops, parse, reads_indices, scatters, unbounded
from kernel_models import PROGRAMS, program
from programs import MODES, TARGETS, compiled
from reproducible_models import examples_of, model_of

from jfold.device import xla
from jfold.scheduling.spec import SAVE_PRODUCTS

CASES = [(name, mode) for name in PROGRAMS for mode in MODES]

any_case = pytest.mark.parametrize(('name', 'mode'), CASES)
any_target = pytest.mark.parametrize('target', TARGETS)


# Known and not mended: where a function has a loop, XLA copies a matrix of 32 KB in a
# step. What no longer does has to leave this list.
COPIED = {('whole-reverse', 'train, recompute all', 'TPU v5e')}


@pytest.fixture(autouse=True)
def without_leftovers() -> None:
    """Programs are kept from one test to the next."""


@any_target
@any_case
def test_loops_copy_and_scatter_nothing(name: str, mode: str, target: str) -> None:
    """Buffers are written in place, and gradients of tables taken outside of loops."""
    module, chosen = compiled(name, mode, target), program(name, MODES[mode][1])
    indices, found = chosen.schedule.indices.size, loops(module)
    if not chosen.model.program.has_loops:
        assert not found
    else:
        assert any(reads_indices(each, indices) for each in found)
    assert bool(copies(module, indices)) == ((name, mode, target) in COPIED)
    assert scatters(module) == []


def test_cotangents_that_are_gathered_twice_copy_buffers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What `xla.materialized` works around; once nothing is copied here, it may go."""
    monkeypatch.setattr(xla, 'materialized', lambda rows: rows)
    # Not the one that is kept, of which JAX keeps traces.
    chosen = program.__wrapped__('child-sums', SAVE_PRODUCTS)
    made = TARGETS['H200'].compile(chosen.train, chosen.params, chosen.schedule)
    assert len(copies(parse(made.as_text()))) == 2


@any_target
def test_a_fixed_order_adds_to_each_row_of_a_table_once(target: str) -> None:
    """Where several rows were added to one, a GPU would do it in any order."""
    model = model_of('tree-LSTM', strategy='fixed')
    params, rng = model.init(jax.random.key(0)), np.random.default_rng(0)
    schedule = model.schedule(examples_of('tree-LSTM', rng, 40))

    def gradient(params: Any, schedule: Any) -> Any:
        return jax.grad(lambda p: (model.apply(p, schedule) ** 2).sum())(params)

    text = TARGETS[target].compile(gradient, params, schedule).as_text()
    found = [line for line in text.splitlines() if ' scatter(' in line]
    assert found
    assert all('unique_indices=true' in line for line in found)


@any_case
def test_a_gpu_knows_how_often_loops_run(name: str, mode: str) -> None:
    """Else the host would be asked after every trip."""
    assert unbounded(compiled(name, mode, 'H200')) == []


@any_case
def test_a_tpu_runs_loops_of_a_known_length(name: str, mode: str) -> None:
    """As far as it can be read: each counts to a constant."""
    found = loops(compiled(name, mode, 'TPU v5e'))
    assert all(each.trips for each in found)


@any_target
@any_case
def test_no_more_kernels_than_before(name: str, mode: str, target: str) -> None:
    """Not in a trip of each loop, nor in all."""
    a_step, in_all = counted(name, mode, target)
    most_a_step, most = BOUNDS[name, mode][list(TARGETS).index(target)]
    levels = program(name, MODES[mode][1]).levels
    told = f'{in_all / levels:.1f} a level, wished for: {WISHED[MODES[mode][0]]}'
    assert a_step <= most_a_step, told
    assert in_all <= most, told
