# SPDX-License-Identifier: Apache-2.0
"""A run that is killed goes on from its last checkpoint to the same bits."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import killed_run
import numpy as np
import pytest
from one_process import with_paths

STEPS = 12  # two epochs of 24 examples in batches of 4


def kill(folder: Path, step: int, delay: float) -> None:
    """Begins a run in another process, and kills it some time after it began a step."""
    command = [sys.executable, killed_run.__file__, str(folder)]
    env = with_paths(Path(__file__).parents[2])
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        while (line := child.stdout.readline()) != f'step {step}\n':
            assert line
        time.sleep(delay)
        child.kill()  # as `kill -9` does
    assert child.returncode == -signal.SIGKILL


def arrays(folder: Path) -> list[np.ndarray]:
    """Parameters and the state of the optimizer, as the run left them."""
    with np.load(folder / 'params.npz', allow_pickle=False) as file:
        return [file[name] for name in file.files]


@pytest.mark.slow
def test_a_killed_run_ends_in_the_same_bits(tmp_path: Path) -> None:
    """Killed in another process, before, while or after a checkpoint is written."""
    straight, broken = (tmp_path / name for name in ('straight', 'broken'))
    straight.mkdir()
    assert killed_run.main(straight) == STEPS
    broken.mkdir()
    rng = random.Random()
    step, delay = rng.randint(1, STEPS - 1), rng.choice([0, 0.05])
    print('killed at', step, delay)
    kill(broken, step, delay)
    assert killed_run.main(broken) == STEPS
    pairs = list(zip(arrays(straight), arrays(broken), strict=True))
    assert len(pairs) == 4  # a matrix, its two moments, and a count
    for one, other in pairs:
        np.testing.assert_array_equal(one, other)
