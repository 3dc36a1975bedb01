# SPDX-License-Identifier: Apache-2.0
"""Prints the tests of what differs from a commit, as paths for pytest.

python tests/support/changed.py [COMMIT]

Of a file in a room of `jfold/` these are the folder of tests of that name and the
examples in the file itself; of a test the test; of what tests share, or of a file at
the top of the package, the tests against the eager twin.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = {'base': 'blocks', 'files': 'models', 'debug': 'models'}  # without a folder
FOR_ALL = 'tests/twin'


def differing(commit: str) -> list[str]:
    """The files that differ from a commit, new ones included."""
    known, new = f'diff --name-only {commit}', 'ls-files --others --exclude-standard'
    return [file for command in (known, new) for file in _git(command)]


def _git(command: str) -> list[str]:
    """The lines that a command of git prints."""
    words = ['git', *command.split()]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def tests_of(files: Iterable[str]) -> list[str]:
    """The tests of some files, as paths, each once."""
    paths: dict[str, None] = {}
    for file in files:
        top, *parts = Path(file).parts
        if not file.endswith('.py') or not (ROOT / file).exists():
            continue
        if top == 'tests':
            is_test = parts[-1].startswith('test_') and parts[0] != 'accelerators'
            paths[file if is_test else FOR_ALL] = None
        elif top == 'jfold':
            folder = f'tests/{ROOMS.get(parts[0], parts[0])}'
            paths[folder if (ROOT / folder).is_dir() else FOR_ALL] = None
            paths[file] = None
        elif top in ('examples', 'benchmarks'):
            paths['tests/scripts'] = None
    return list(paths) or ['tests/package']


if __name__ == '__main__':
    print(*tests_of(differing(*sys.argv[1:] or ['main'])))
