# SPDX-License-Identifier: Apache-2.0
"""The benchmark of cores as devices, with PyTorch beside them or without."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

import pytest
from program_runs import BENCHMARKS, run

import jfold as jf

sys.path += [str(BENCHMARKS)]

import devices
import peers
from report import Report

ANSWER = {'build': 0.25, 'compute': 0.5, 'total': 0.75, 'compile': 0}


def environment(folder: Path) -> Path:
    """Of PyTorch, as it seems: what it answers is always the same."""
    home = folder / 'torch'
    (home / 'bin').mkdir(parents=True)
    recipe = '\n'.join(map(shlex.join, peers.ENVIRONMENTS['torch']))
    (home / '.ready').write_text(recipe, encoding='utf-8')
    (home / 'answers.py').write_text(
        f'import sys\nfor line in sys.stdin: print({json.dumps(ANSWER)!r}, flush=True)'
    )
    python = home / 'bin' / 'python'
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {home}/answers.py "$@"\n')
    python.chmod(0o755)
    return folder


@pytest.mark.slow
def test_devices_are_compared_with_one(tmp_path: Path) -> None:
    """And with PyTorch, where models are trees: with or without making levels."""
    where = environment(tmp_path / 'peers')
    quick = '--quick', '--repeats', 2, '--environments', where
    (_, *rows), markdown = run('devices', *quick, folder=tmp_path, apart=True)
    jobs = {row['ratio'].rpartition(': ')[0] for row in rows}
    assert len(jobs) == 3
    assert len(rows) == 4 * len(jobs)
    assert all(row['median'] > 0 for row in rows)
    assert [row['PyTorch ms'] for row in rows] == [*[500, 500, 750, 750] * 2] + [
        None
    ] * 4
    assert all((row['over PyTorch'] or 1) > 0 for row in rows)
    assert 'Results and gradients were equal' in markdown


def test_devices_without_pytorch(tmp_path: Path) -> None:
    options = argparse.Namespace(environments=tmp_path, install=False, devices=1)
    report = Report('Devices', 'python devices.py', (None, None))
    job = devices.Job('one', jf.Scalar(), [[1]], peers.Size(5, 8, 4))
    assert devices.by_pytorch(job, options, report, []) == {}
    assert report.absent == {'PyTorch': f'no environment {tmp_path}/torch'}
