# SPDX-License-Identifier: Apache-2.0
"""A run that one of its processes has left goes on, as if nothing had happened."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def run(folder: Path, **options: object) -> subprocess.CompletedProcess[str]:
    """The example, of few steps, in a folder."""
    command = [sys.executable, str(ROOT / 'examples' / 'many_processes.py'), '--quick']
    command += [f'--{name.replace("_", "-")}={x}' for name, x in options.items()]
    env = os.environ | {'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(ROOT)}
    return subprocess.run(
        [*command, f'--folder={folder}'],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def last(folder: Path) -> Any:
    """The last checkpoint: its step, and all that is in it."""
    with ocp.CheckpointManager(folder / 'checkpoints') as manager:
        step = manager.latest_step()
        path = folder / 'checkpoints' / str(step) / 'default'
    with ocp.PyTreeCheckpointer() as reader:
        restored = [ocp.RestoreArgs(restore_type=np.ndarray)]
        tree = reader.metadata(path).item_metadata.tree
        args = jax.tree.map(lambda _: restored[0], tree)
        return step, reader.restore(path, restore_args=args)


def tell(state: Any) -> dict[str, Any]:
    """The place in the data, to be compared."""
    return {name: np.asarray(x).tolist() for name, x in state['data'].items()}


@pytest.fixture(scope='module')
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbs."""
    folder = tmp_path_factory.mktemp('whole')
    done = run(folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope='module')
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that a process left."""
    folder = tmp_path_factory.mktemp('killed')
    done = run(folder, kill_at=8)
    assert done.returncode == 1
    assert 'processes ended with codes [' in done.stderr
    assert 'Task 1 heartbeat timeout' in done.stderr  # who is missing
    return folder


def test_a_run_goes_on_to_the_same_bits(
    whole: Path, killed: Path, tmp_path: Path
) -> None:
    assert last(killed)[0] == 5  # the checkpoint before
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    again = run(tmp_path)
    assert again.returncode == 0, again.stderr
    assert 'goes on after step 5' in again.stdout
    expected, found = last(whole), last(tmp_path)
    assert expected[0] == found[0] == 16
    jax.tree.map(np.testing.assert_array_equal, found[1], expected[1])


@pytest.mark.parametrize('shape', [(1, 2), (4, 1)])
def test_it_goes_on_in_other_processes(
    whole: Path, killed: Path, shape: tuple[int, int], tmp_path: Path
) -> None:
    """The batches are the same, whoever runs them; sums differ by rounding alone."""
    processes, devices = shape
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    again = run(tmp_path, processes=processes, devices=devices)
    assert again.returncode == 0, again.stderr
    (count, expected), (other, found) = last(whole), last(tmp_path)
    assert count == other == 16
    assert tell(expected) == tell(found)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)  # noqa: E731
    jax.tree.map(close, found['now'], expected['now'])
