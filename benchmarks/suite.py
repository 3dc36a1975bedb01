# SPDX-License-Identifier: Apache-2.0
"""All benchmarks, one after another, each in a process of its own.

    python benchmarks/suite.py [--quick] [--only core,models] [--results DIR]

Two files hold everything, and are complete after each part: `quick.jsonl` and
`quick.md`, or `full.jsonl` and `full.md`. What is not there to be measured is told and
does no harm; a part that fails does not keep the others from running, but fails the
whole.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from options import among, say
from report import Report, Row

PROGRAMS = Path(__file__).resolve().parent
PARTS = (
    'core',
    'compile',
    'host',
    'devices',
    'balance',
    'imports',
    'ensemble',
    'reproducible',
    'tracing',
    'iclr2017',
    'models',
    'molecules',
    'edge_sums',
    'unrolled',
    'seq2seq',
    'lazy',
    'scaling',
    'kernels',
    'search',
    'peers',
)
READ_TREES = ('balance', 'host', 'models')


@dataclass(frozen=True)
class Part:
    """What became of a part.

    Attributes:
      command: that ran it.
      seconds: that it took.
      problem: why it failed, or nothing.
      head: of its report; empty if it did not come so far.
      rows: of its tables.
      markdown: its report, to be read.
    """

    name: str
    command: tuple[str, ...]
    seconds: float
    problem: str
    head: Row
    rows: tuple[Row, ...]
    markdown: str

    @property
    def state(self) -> str:
        """In a word."""
        if self.problem:
            return 'failed'
        # A peer that is absent has a row without a time.
        return 'done' if any(row.get('ms', True) for row in self.rows) else 'absent'

    @property
    def row(self) -> Row:
        """Its row in the table of all parts."""
        absent = self.head.get('absent', {}).items()
        remarks = [self.problem, *(f'{name} absent: {why}' for name, why in absent)]
        return {
            'part': self.name,
            'state': self.state,
            'seconds': self.seconds,
            'command': shlex.join(self.command),
            'remarks': '; '.join(filter(None, remarks)),
            'head': self.head,
        }


# ---- running -------------------------------------------------------------------------


def run(name: str, given: list[str], limit: float = threading.TIMEOUT_MAX) -> Part:
    """Runs a part for so many seconds at most, and passes on what it tells of its
    progress. What it has written by then counts."""
    with TemporaryDirectory() as folder:
        files = [Path(folder) / kind for kind in ('json', 'markdown')]
        writing = [f'--{file.name}={file}' for file in files]
        program = [sys.executable, str(PROGRAMS / f'{name}.py')]
        begin = time.monotonic()
        problem = watched(name, [*program, *given, *writing], begin, limit)
        seconds = time.monotonic() - begin
        lines, markdown = (x.read_text('utf-8') if x.exists() else '' for x in files)
    head, *rows = map(json.loads, lines.splitlines() or ['{}'])
    command = 'python', f'benchmarks/{name}.py', *given
    return Part(name, command, seconds, problem, head, tuple(rows), markdown)


def watched(name: str, command: list[str], begin: float, limit: float) -> str:
    """Runs a command; says its lines with the time so far. Returns why it failed."""
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,  # the report, which is in a file too
        stderr=subprocess.PIPE,
        text=True,
        errors='replace',
    ) as process:
        assert process.stderr is not None
        clock = threading.Timer(limit, process.kill)
        clock.start()
        last = ''
        for line in process.stderr:
            minutes, seconds = divmod(int(time.monotonic() - begin), 60)
            last = line.strip() or last
            say(f'{name} {minutes}:{seconds:02}  {line.rstrip()}')
        process.wait()
        clock.cancel()
    if process.returncode and time.monotonic() - begin >= limit:
        return f'stopped after {limit:.0f} s: {last}'
    return f'exit status {process.returncode}: {last}' if process.returncode else ''


def options_of(name: str, options: argparse.Namespace) -> list[str]:
    """What a part is called with."""
    given = ['--quick'] if options.quick else []
    if options.trees and name in READ_TREES:
        given += ['--trees', str(options.trees)]
    # Making environments takes longer than all that is quick: only if asked for.
    if name == 'peers' and options.quick and 'peers' not in (options.only or ()):
        given += ['--installed']
    return given


# ---- command line --------------------------------------------------------------------


def write(report: Report, parts: list[Part], stem: Path) -> None:
    """Writes both files, as far as there are parts."""
    report.rows = [part.row for part in parts]
    rows = [{'part': part.name} | row for part in parts for row in part.rows]
    lines = report.lines() + ''.join(json.dumps(row) + '\n' for row in rows)
    tables = [report.markdown(), *(part.markdown for part in parts if part.markdown)]
    stem.with_suffix('.jsonl').write_text(lines, encoding='utf-8')
    stem.with_suffix('.md').write_text('\n'.join(tables), encoding='utf-8')


def main() -> None:
    """Runs the parts; exits with a status that tells whether one failed."""
    options = arguments()
    stem = options.results / ('quick' if options.quick else 'full')
    options.results.mkdir(parents=True, exist_ok=True)
    report = Report('All benchmarks', shlex.join(['python', *sys.argv]))
    chosen, parts = options.only or PARTS, list[Part]()
    for number, name in enumerate(chosen, start=1):
        say(f'==> {name}, part {number} of {len(chosen)}')
        parts.append(run(name, options_of(name, options)))
        say(f'==> {name}: {parts[-1].state} after {parts[-1].seconds:.0f} s')
        write(report, parts, stem)
    print(report.markdown())
    print(f'All tables: {stem.with_suffix(".md")}, {stem.with_suffix(".jsonl")}')
    if any(part.problem for part in parts):
        raise SystemExit(1)


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or '').splitlines()[0], allow_abbrev=False
    )
    add = parser.add_argument
    add('--quick', action='store_true', help='small sizes, few repeats: minutes')
    add('--only', type=among(PARTS), help=f'some of {", ".join(PARTS)}')
    add('--results', type=Path, default=PROGRAMS / 'results', help='folder')
    add('--trees', type=Path, help='the treebank, for the parts that can use it')
    return parser.parse_args()


if __name__ == '__main__':
    main()
