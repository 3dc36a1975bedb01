# SPDX-License-Identifier: Apache-2.0
"""Several processes, each with devices of its own, train as one does."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from one_process import (
    EXAMPLES,
    PROCESSES,
    SIZE,
    compiled,
    dealt,
    loss,
    train,
    trees,
    with_paths,
)

SUPPORT = Path(__file__).parents[1] / 'support'
Found = dict[str, list[Any]]  # of each process, by job
pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def jobs() -> Found:
    """What processes found out, by job; they do one after another."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    env = with_paths(SUPPORT.parents[1], SUPPORT)
    command = [sys.executable, str(SUPPORT / 'one_process.py'), str(port)]
    running = [
        subprocess.Popen([*command, str(n)], env=env, stdout=-1, stderr=-1, text=True)
        for n in range(PROCESSES + 1)
    ]
    ended = [process.communicate(timeout=300) for process in running]
    for process, (_, errors) in zip(running, ended, strict=True):
        assert process.returncode == 0, errors
    found = [json.loads(out.splitlines()[-1]) for out, _ in ended]
    return {job: [each[job] for each in found if job in each] for job in found[0]}


def alone(batches: Any) -> list[Any]:
    """What one process makes of the same batches, on one device."""
    with jax.enable_x64(True):
        model, params = compiled()
        return train(model, params, batches(model), None)


def sum_of(examples: list[Any]) -> float:
    with jax.enable_x64(True):
        model, params = compiled()
        return float(loss(params, model, model.schedule(examples), 1.0))


def test_of_a_corpus(jobs: Found) -> None:
    """Nothing is said: each knows what all others need."""
    first, second = jobs['of_corpus']
    assert first == second
    want = alone(lambda model: model.batches(model.trace(trees()), SIZE, shuffle=1))
    np.testing.assert_allclose(first[:-1], want, rtol=1e-12)
    assert len(want) == -(-EXAMPLES // SIZE) + 1
    assert first[-1] == 1  # program


def test_of_streams(jobs: Found) -> None:
    """Each has its own examples; the room is agreed upon. Batches are those of one
    process that has all of them, but rows are counted within each stream."""
    first, second = jobs['of_streams']
    assert first == second
    with jax.enable_x64(True):
        model, params = compiled()
        parts = [list(dealt(SIZE // 2, number)) for number in range(2)]
        want = 0.0
        for part in parts:
            schedule = model.schedule(part[: SIZE // 2])
            want += float(loss(params, model, schedule, np.cos(np.arange(SIZE // 2))))
    np.testing.assert_allclose(first[0], want, rtol=1e-12)
    assert len(first) == 2 + 2  # losses, the sum of the parameters, programs


def test_of_a_schedule(jobs: Found) -> None:
    """Four examples of one process, three of the other; as they are, and traced."""
    first, second = jobs['of_schedules']
    want = sum_of(trees(7))
    for own, (values, examples, _, text, told) in enumerate((first, second)):
        assert re.search(r'^8 examples, \d+ nodes of this process, depth', told)
        numbers = re.findall(r'^(\d) +\d+ +\d+ +\d+$', told, re.MULTILINE)[:2]
        assert numbers == [str(2 * own), str(2 * own + 1)]
        assert '\nthis process has 2 of 4 shards\nthe fullest' in told
        np.testing.assert_allclose(values, [want] * 2, rtol=1e-12)
        assert examples == 8
        assert text.startswith('Schedule(8 examples, 4 shards, ')
    assert (first[2], second[2]) == ([True, True], [True, True])


def test_generated_expressions(jobs: Found) -> None:
    """To twelve digits, with metrics; of shards without an example, or without one of
    the operations, and of fewer examples than shards."""
    first, second = jobs['of_expressions']
    assert first == second
    numbers, with_metrics = first
    assert len(numbers) == 3 * 2
    assert with_metrics


def test_devices_that_share_shards(jobs: Found) -> None:
    """Along another axis of the mesh, over processes: all give all examples."""
    first, second = jobs['of_shared_shards']
    assert first == second
    np.testing.assert_allclose(first[:-1], 3 * [sum_of(trees(SIZE))], rtol=1e-12)
    assert first[-1].startswith('expected `sharding` over devices of this process')


def test_devices_of_some_processes(jobs: Found) -> None:
    """Those without any are not asked."""
    *both, last = jobs['of_some']
    data = trees(SIZE)
    want = [sum_of(data[:4])] * 2 + [sum_of(data[:6])] * 2
    np.testing.assert_allclose(both, [want] * 2, rtol=1e-12)
    np.testing.assert_allclose(last, want[2:], rtol=1e-12)


def test_streams_go_on_in_another_number_of_processes(jobs: Found) -> None:
    """The state counts the examples of all."""
    (state, rest), again = jobs['stopped']
    assert again == [state, rest]
    assert state['position'] == SIZE
    with jax.enable_x64(True):
        model, params = compiled()
        batches = model.batches(iter(trees(2 * SIZE)), SIZE)
        batches.restore(
            {
                k: np.asarray(x, v.dtype)
                for (k, v), x in zip(
                    batches.state().items(), state.values(), strict=True
                )
            }
        )
        found = [float(loss(params, model, x.schedule, 1.0)) for x in batches]
    np.testing.assert_allclose(found, rest, rtol=1e-12)


def test_a_bad_example_of_one_process_is_told_by_all(jobs: Found) -> None:
    (first, first_errors), (second, second_errors) = jobs['bad_example']
    assert second.startswith('1: InputError: example 5 of the source')
    assert first.startswith(
        '1: RuntimeError: expected batches of all processes, got an error in process '
        '1: InputError: example 1'
    )
    # Each time anew, and the next batch is a good one.
    assert first_errors == ['RuntimeError'] * 2
    assert second_errors == ['InputError'] * 2


def test_the_end_of_one_process_is_told_by_all(jobs: Found) -> None:
    text = (
        '1: RuntimeError: expected as many batches of all processes, got no more of '
        'process 1 after 1: give each as many examples'
    )
    assert jobs['end_of_data'] == [text, text]


def test_a_process_that_says_nothing_is_told(jobs: Found) -> None:
    """Whoever waits for it does not wait for ever."""
    first, second = jobs['silence']
    assert first == (
        '0: RuntimeError: expected batches of all processes, heard nothing of process '
        '1 for 2 seconds'
    )
    assert second == '0: no error'
