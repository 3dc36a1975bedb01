# SPDX-License-Identifier: Apache-2.0
"""A run that one of its processes has left goes on, as if nothing had happened."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from one_process import with_paths
from program_runs import EXAMPLES, ROOT, output

PROGRAM = EXAMPLES / 'many_processes.py'


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


@pytest.mark.long
def test_a_run_that_a_process_left_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In as many processes to the same bits, in one with more devices to rounding."""
    for name, value in with_paths(ROOT).items():
        monkeypatch.setenv(name, value)

    def run(folder: Path, **options: object) -> str:
        """The example, of few steps; returns what its processes print."""
        words = [f'--{name.replace("_", "-")}={x}' for name, x in options.items()]
        folder.mkdir(exist_ok=True)
        output(PROGRAM, '--quick', f'--folder={folder}', *words, folder=tmp_path)
        return capfd.readouterr().out

    straight, killed, other = (tmp_path / x for x in ('straight', 'killed', 'other'))
    run(straight)
    with pytest.raises(SystemExit, match=r'processes ended with codes \['):
        run(killed, kill_at=8)
    assert 'Task 1 heartbeat timeout' in capfd.readouterr().err  # who is missing
    assert last(killed)[0] == 5  # the checkpoint before
    shutil.copytree(killed, other)
    assert 'goes on after step 5' in run(killed)
    assert 'goes on after step 5' in run(other, processes=1, devices=4)
    (count, expected), (steps, found), (others, near) = map(
        last, (straight, killed, other)
    )
    assert count == steps == others == 16
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert tell(near) == tell(expected)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)  # noqa: E731
    jax.tree.map(close, near['now'], expected['now'])
