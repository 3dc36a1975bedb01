# SPDX-License-Identifier: Apache-2.0
"""Results of a benchmark as JSON lines and as Markdown, with where they come from.

report = Report('Cells', 'python benchmarks/cells.py', ('cells.jsonl', 'cells.md'))
report.add({'cell': 'LSTM', 'ms': 1.25})
report.close()
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ('jfold', 'jax', 'jaxlib', 'flax', 'numpy')

Row = dict[str, Any]


class Report:
    """Rows, and notes below them.

    Rows with the same keys form one table. Lists and dicts in a row are for the JSON
    file only.

    Attributes:
      head: title, command, date, machine, versions.
      paths: of the files for JSON lines and Markdown, or `None`.
      absent: what could not run for want of something, and why.
    """

    def __init__(
        self, title: str, command: str, paths: tuple[Any, Any] = (None, None)
    ) -> None:
        self.paths = paths
        self.head: Row = {
            'title': title,
            'command': command,
            'date': datetime.date.today().isoformat(),
            'commit': commit(),
            'machine': machine(),
            'versions': versions(PACKAGES),
        }
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self.absent: dict[str, str] = {}

    def add(self, row: Row) -> None:
        """Appends a row."""
        self.rows.append(row)

    def note(self, text: str) -> None:
        """Appends a paragraph to what stands below the tables."""
        self.notes.append(text)

    def lines(self) -> str:
        """The head with the notes, then the rows, each as JSON on a line."""
        head = self.head | {'notes': self.notes, 'absent': self.absent}
        return ''.join(json.dumps(x) + '\n' for x in (head, *self.rows))

    def markdown(self) -> str:
        """Title, where it comes from, tables, notes."""
        head = self.head
        about = [
            f'`{head["command"]}`',
            f'{head["date"]}, commit {head["commit"]}: {facts(head["machine"])}.',
            f'Versions: {facts(head["versions"])}.',
        ]
        tables: dict[tuple[str, ...], list[Row]] = {}
        for row in self.rows:
            tables.setdefault(tuple(row), []).append(row)
        bodies = [table(rows) for rows in tables.values()]
        absent = [f'{name}: skipped, {why}.' for name, why in self.absent.items()]
        title = f'## {head["title"]}'
        return '\n\n'.join([title, *about, *bodies, *absent, *self.notes]) + '\n'

    def write(self) -> None:
        """Writes the files that were asked for, as far as the report goes."""
        for path, text in zip(self.paths, (self.lines(), self.markdown()), strict=True):
            if path is not None:
                Path(path).write_text(text, encoding='utf-8')

    def close(self) -> None:
        """Writes and prints the whole report."""
        self.write()
        print(self.markdown())


def facts(values: Row) -> str:
    """Names and values in a line."""
    return ', '.join(f'{name} {text(value)}' for name, value in values.items())


def table(rows: list[Row]) -> str:
    """Rows with the same keys as Markdown."""
    names = [
        name
        for name in rows[0]
        if not any(isinstance(row[name], list | dict) for row in rows)
    ]
    numeric = {
        name: all(isinstance(row[name], int | float | None) for row in rows)
        for name in names
    }
    rule = ['---:' if numeric[name] else '---' for name in names]
    lines = [names, rule, *([text(row[name]) for name in names] for row in rows)]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def text(value: Any) -> str:
    """A value as it stands in a table: floats with three digits or so."""
    if value is None:
        return '–'
    if not isinstance(value, float):
        return str(value).replace('|', r'\|').replace('\n', ' ')
    if value != 0 and abs(value) < 0.01:
        return f'{value:.1e}'
    return f'{value:.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f}'


def machine() -> Row:
    """Processor, cores that may be used, accelerators, system, load."""
    found: Row = {'processor': processor(), 'cores': cores()}
    if 'jax' in sys.modules:  # asking would start it
        jax = sys.modules['jax']
        found['devices'] = ' + '.join(d.device_kind for d in jax.devices())
    found['load'] = load()
    return found | {'system': platform.platform(), 'Python': platform.python_version()}


def load() -> float | None:
    """How many programs wanted to run in the last minute, on average."""
    return os.getloadavg()[0] if hasattr(os, 'getloadavg') else None


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor() -> str:
    """The name of the processor."""
    path = Path('/proc/cpuinfo')
    lines = path.read_text(encoding='utf-8').splitlines() if path.exists() else []
    names = [line.partition(':')[2] for line in lines if line.startswith('model name')]
    return names[0].strip() if names else platform.processor() or platform.machine()


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """The versions of those that are installed."""
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit of the checkout, with a mark if files differ from it."""
    command = ['git', '-C', str(ROOT), 'describe', '--always', '--dirty', '--abbrev=7']
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 'unknown'
    return run.stdout.strip()
