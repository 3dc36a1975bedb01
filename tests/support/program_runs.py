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


# Of JAX, what programs set and this process keeps: its cache of what is compiled, and
# how many devices it has.
KEPT = 'jax_enable_compilation_cache', 'jax_num_cpu_devices'


def run(
    program: str, *options: Any, folder: Path, apart: str | bool = False
) -> tuple[list[Any], str]:
    """The rows and the Markdown that a benchmark writes, the head first.

    All times are positive, and ratios lie between their quartiles.
    """
    files = {name: folder / f'{program}.{name}' for name in ('json', 'markdown')}
    given = [*options, *(x for k, path in files.items() for x in (f'--{k}', path))]
    how: dict[str, Any] = {'folder': folder, 'apart': apart, 'warnings': 'default'}
    printed = output(BENCHMARKS / f'{program}.py', *given, **how)
    markdown = files['markdown'].read_text()
    assert printed == markdown + '\n'
    head, *rows = map(json.loads, files['json'].read_text().splitlines())
    for row in rows:
        times = [x for name, x in row.items() if name.endswith('ms')]
        assert all(time is None or time > 0 for time in times), row
        if 'low' in row:
            assert 0 < row['low'] <= row['median'] <= row['high']
    return [head, *rows], markdown


def output(
    path: Path,
    *options: Any,
    folder: Path,
    apart: str | bool = False,
    warnings: str = 'error',
) -> str:
    """What a program prints, as the main one of this process or, `apart`, of its own,
    where code may be given that imports and runs it.

    Here warnings are errors; there they are what is said, as ports that are taken may
    be warned of.
    """
    command = [*map(str, (path, *options))]
    if apart:
        first = ['-c', apart] if isinstance(apart, str) else command[:1]
        paths = os.environ.get('PYTHONPATH', ''), str(path.parent)
        done = subprocess.run(
            [sys.executable, '-W', warnings, *first, *command[1:]],
            cwd=folder,
            env=os.environ | {'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': ':'.join(paths)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout
    update = jax.config.update

    def set_other(name: str, value: Any) -> None:
        if name not in KEPT:
            update(name, value)

    with (
        contextlib.chdir(folder),
        mock.patch.object(sys, 'argv', command),
        mock.patch.object(sys, 'path', [str(path.parent), *sys.path]),
        mock.patch.object(jax.config, 'update', set_other),
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        runpy.run_path(command[0], run_name='__main__')
    return printed.getvalue()
