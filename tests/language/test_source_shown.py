# SPDX-License-Identifier: Apache-2.0
"""The page with the source of models is what its program prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_source_of_models() -> None:
    """In another process: what it imports has the names of other modules."""
    command = [sys.executable, str(ROOT / 'tests/support/source_pages.py')]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == (ROOT / 'docs' / 'source.md').read_text()
