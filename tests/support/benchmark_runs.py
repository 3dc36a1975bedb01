# SPDX-License-Identifier: Apache-2.0
"""Benchmarks as programs, run in a folder."""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import jax

BENCHMARKS = Path(__file__).parents[2] / 'benchmarks'


def run(
    program: str, *options: Any, folder: Path, apart: bool = False
) -> tuple[list[Any], str]:
    """The rows and the Markdown that a benchmark writes, the head first.

    It is the main program of this process for a while or, `apart`, of its own.
    """
    files = {name: folder / f'{program}.{name}' for name in ('json', 'markdown')}
    given = [BENCHMARKS / f'{program}.py', *options]
    given += [x for pair in files.items() for x in (f'--{pair[0]}', pair[1])]
    printed = (_apart if apart else _here)([*map(str, given)], folder)
    markdown = files['markdown'].read_text()
    assert printed == markdown + '\n'
    return list(map(json.loads, files['json'].read_text().splitlines())), markdown


def _here(command: list[str], folder: Path) -> str:
    caches = jax.config.jax_enable_compilation_cache
    with (
        contextlib.chdir(folder),
        mock.patch.object(sys, 'argv', command),
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        runpy.run_path(command[0], run_name='__main__')
    jax.config.update('jax_enable_compilation_cache', caches)
    return printed.getvalue()


def _apart(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {'JAX_PLATFORMS': 'cpu'},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
