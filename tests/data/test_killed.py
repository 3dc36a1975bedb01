# SPDX-License-Identifier: Apache-2.0
"""A run that is killed goes on from its last checkpoint to the same bits."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
STEPS = 12  # two epochs of 24 examples in batches of 4
pytestmark = pytest.mark.slow


def run(folder: Path, kill_at: int | None = None, delay: float = 0.0) -> int:
    """The last step of a run, which may be killed some time after it began a step."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(ROOT / 'tests/support/killed_run.py'), str(folder)]
    env = os.environ | {'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(ROOT)}
    number = 0
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if not line.startswith('step '):
                continue
            number = int(line.split()[1])
            if number == kill_at:
                time.sleep(delay)
                child.kill()  # as `kill -9` does
                break
        child.wait(timeout=300)
    assert (child.returncode == 0) == (kill_at is None), child.returncode
    return number


def arrays(folder: Path) -> list[np.ndarray]:
    """Parameters and the state of the optimizer, as the run left them."""
    with np.load(folder / 'params.npz', allow_pickle=False) as file:
        return [file[name] for name in file.files]


def test_a_killed_run_ends_in_the_same_bits(tmp_path: Path) -> None:
    """Killed twice, before, while or after a checkpoint is written."""
    assert run(tmp_path / 'whole') == STEPS
    rng = random.Random()
    first = rng.randint(1, STEPS - 2)
    second = rng.randint(first + 1, STEPS)
    kills = [(first, rng.choice([0, 0.05])), (second, rng.choice([0, 0.02]))]
    print('killed at', kills)
    for kill_at, delay in kills:
        run(tmp_path / 'killed', kill_at, delay)
    assert run(tmp_path / 'killed') == STEPS
    pairs = list(
        zip(arrays(tmp_path / 'whole'), arrays(tmp_path / 'killed'), strict=True)
    )
    assert len(pairs) == 4  # a matrix, its two moments, and a count
    for one, other in pairs:
        np.testing.assert_array_equal(one, other)
