# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of what runs outside of loops."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from program_runs import BENCHMARKS, run

sys.path += [str(BENCHMARKS)]

import measuring


@pytest.mark.slow
def test_programs_without_loops_are_compared(tmp_path: Path) -> None:
    """A row of each kind of program in each mode, and a ratio."""
    (_, *rows), _ = run('unrolled', '--quick', '--only', 'kinds', folder=tmp_path)
    names = [row['model'] for row in rows if 'model' in row]
    assert names == ['kinds, no loops', 'kinds, in loops'] * len(measuring.MODES)
    assert sum('ratio' in row for row in rows) == len(measuring.MODES)


@pytest.mark.slow
def test_sequences_are_compared_with_padded_ones(tmp_path: Path) -> None:
    """A row of each contender in each mode, and two ratios to the one by hand."""
    (_, *rows), _ = run('seq2seq', '--quick', '--only', 'short', folder=tmp_path)
    names = [row.get('model') or row['by hand'] for row in rows if 'ratio' not in row]
    assert names == ['short, jfold', 'short, in loops', 'short'] * len(measuring.MODES)
    assert sum('ratio' in row for row in rows) == 2 * len(measuring.MODES)
