# SPDX-License-Identifier: Apache-2.0
"""Benchmarks as programs, run in a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parents[2] / 'benchmarks'


def run(program: str, *options: Any, folder: Path) -> tuple[list[Any], str]:
    """The rows and the Markdown that a benchmark writes, the head first."""
    files = {name: folder / f'{program}.{name}' for name in ('json', 'markdown')}
    given = [str(x) for pair in files.items() for x in (f'--{pair[0]}', pair[1])]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / f'{program}.py'), *map(str, options), *given],
        cwd=folder,
        env=os.environ | {'JAX_PLATFORMS': 'cpu'},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    markdown = files['markdown'].read_text()
    assert done.stdout == markdown + '\n'
    return list(map(json.loads, files['json'].read_text().splitlines())), markdown
