# SPDX-License-Identifier: Apache-2.0
"""How long importing jfold takes, beside importing JAX alone.

    python benchmarks/imports.py [--quick]

Each import is a process of its own; they take turns. All modules have been compiled to
bytecode before, as those of installed packages have.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from functools import partial

from measuring import begin, jax_parser
from options import fill
from report import ROOT, Report
from turns import ratio_row, take_turns

CODE = 'import jax', 'import jfold'


def start(code: str, env: dict[str, str], _: int) -> None:
    """Runs some code in a process of its own."""
    subprocess.run([sys.executable, '-c', code], check=True, env=env)


def measure(options: argparse.Namespace, report: Report) -> None:
    """Adds a row for each import, and one for the ratio."""
    kept = {k: v for k, v in os.environ.items() if k != 'PYTHONDONTWRITEBYTECODE'}
    with tempfile.TemporaryDirectory() as folder:
        paths = {'PYTHONPYCACHEPREFIX': folder, 'PYTHONPATH': str(ROOT)}
        run = {code: partial(start, code, kept | paths) for code in CODE}
        times = take_turns(run, options.repeats, options.limit)
    for name, found in times.items():
        report.add({'import': name, 'ms': found.ms, 'spread %': found.spread})
    whole, alone = times['import jfold'], times['import jax']
    report.add(ratio_row('import jfold / import jax', 'warm', whole / alone))


def main() -> None:
    """Measures, and prints a table."""
    options = fill(jax_parser(__doc__ or '').parse_args(), {}, {})
    report = begin('Imports', options)
    measure(options, report)
    report.close()


if __name__ == '__main__':
    main()
