# SPDX-License-Identifier: Apache-2.0
"""Examples and benchmarks as programs, run in a folder."""

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

ROOT = Path(__file__).parents[2]
BENCHMARKS, EXAMPLES = ROOT / 'benchmarks', ROOT / 'examples'


def run(
    program: str, *options: Any, folder: Path, apart: bool = False
) -> tuple[list[Any], str]:
    """The rows and the Markdown that a benchmark writes, the head first."""
    files = {name: folder / f'{program}.{name}' for name in ('json', 'markdown')}
    given = [*options, *(x for k, path in files.items() for x in (f'--{k}', path))]
    how: dict[str, Any] = {'folder': folder, 'apart': apart, 'warnings': 'default'}
    printed = output(BENCHMARKS / f'{program}.py', *given, **how)
    markdown = files['markdown'].read_text()
    assert printed == markdown + '\n'
    return list(map(json.loads, files['json'].read_text().splitlines())), markdown


def output(
    path: Path,
    *options: Any,
    folder: Path,
    apart: bool = False,
    warnings: str = 'error',
) -> str:
    """What a program prints, as the main one of this process or, `apart`, of its own.

    Here warnings are errors; there they are what is said, as ports that are taken may
    be warned of.
    """
    command = [*map(str, (path, *options))]
    if apart:
        done = subprocess.run(
            [sys.executable, '-W', warnings, *command],
            cwd=folder,
            env=os.environ | {'JAX_PLATFORMS': 'cpu'},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout
    caches = jax.config.jax_enable_compilation_cache
    with (
        contextlib.chdir(folder),
        mock.patch.object(sys, 'argv', command),
        mock.patch.object(sys, 'path', [str(path.parent), *sys.path]),
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        runpy.run_path(command[0], run_name='__main__')
    jax.config.update('jax_enable_compilation_cache', caches)
    return printed.getvalue()
