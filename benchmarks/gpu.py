# SPDX-License-Identifier: Apache-2.0
"""What is to be measured the day an accelerator is at hand, in 45 minutes at most.

    make bench-gpu                       # or: python benchmarks/gpu.py [--quick]

Kernels beside the times that they take, models beside what is written by hand, Table 1
of the paper, sums over edges and in a fixed order, and a search for staircases. Each
part is a process of its own that is stopped after ten minutes; what it has written by
then counts. The tables lie in `benchmarks/results/`, in files named for the device and
the day.
"""

from __future__ import annotations

import argparse
import datetime
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from options import among, say
from report import Report
from suite import PROGRAMS, Part, run, write

# What each part is called with; the most important first.
PARTS: dict[str, tuple[str, ...]] = {
    'kernels': ('--run',),
    'molecules': (),
    'seq2seq': ('--only', 'long'),
    'iclr2017': (),
    'edge_sums': (),
    'reproducible': (),
    'models': (),
    'search': (),
}
PART, ALL = 600.0, 2700.0  # seconds
ASK = 'import jax; print(jax.devices()[0].device_kind)'


def device() -> str:
    """The name of the device that JAX takes, asked in a process of its own: whoever
    has asked holds the device's memory."""
    asked = subprocess.run(
        [sys.executable, '-c', ASK], capture_output=True, text=True, check=True
    )
    return asked.stdout.strip()


def stem_of(name: str, options: argparse.Namespace) -> Path:
    """The files of a device and a day, without what they end in."""
    plain = re.sub(r'\W+', '-', name).strip('-').lower()
    kind = 'quick-' if options.quick else ''
    return Path(options.results / f'{kind}{plain}-{datetime.date.today().isoformat()}')


def main() -> None:
    """Runs the parts; exits with a status that tells whether one failed."""
    options = arguments()
    name = device()
    options.results.mkdir(parents=True, exist_ok=True)
    report = Report(f'Benchmarks on {name}', shlex.join(['python', *sys.argv]))
    begin, parts = time.monotonic(), list[Part]()
    for number, part in enumerate(options.only, start=1):
        left = ALL - (time.monotonic() - begin)
        say(f'==> {part}, part {number} of {len(options.only)}, on {name}')
        quick = ['--quick'] if options.quick else []
        parts.append(run(part, [*quick, *PARTS[part]], max(min(PART, left), 0.0)))
        say(f'==> {part}: {parts[-1].state} after {parts[-1].seconds:.0f} s')
        write(report, parts, stem_of(name, options))
    print(report.markdown())
    print(f'All tables: {stem_of(name, options)}.md, .jsonl')
    if any(part.problem for part in parts):
        raise SystemExit(1)


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or '').splitlines()[0], allow_abbrev=False
    )
    add = parser.add_argument
    add('--quick', action='store_true', help='small sizes, few repeats: minutes')
    add(
        '--only',
        type=among(PARTS),
        default=[*PARTS],
        help=f'some of {", ".join(PARTS)}',
    )
    add('--results', type=Path, default=PROGRAMS / 'results', help='folder')
    return parser.parse_args()


if __name__ == '__main__':
    main()
