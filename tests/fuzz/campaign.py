# SPDX-License-Identifier: Apache-2.0
"""Runs a campaign; see `tests/README.md`.

python tests/fuzz/campaign.py --minutes 60
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
if __name__ == '__main__':
    sys.path[:1] = [
        str(HERE.parents[n] / x) for n, x in ((1, ''), (1, 'support'), (2, ''))
    ]

from fuzz.checks import CHECKS  # noqa: E402
from fuzz.failures import store  # noqa: E402

PATIENCE = 1800.0  # seconds that a case may take
LOST = 'lost.json'  # of processes that ended before their time, how many ended so
COLUMNS = 'cases', 'expressions', 'functions', 'calls', 'values', 'metrics', 'gradients'
# Transformations; examples that are refused; programs in plain Python.
NESTINGS = 'nested', 'refused', 'wrong', 'lazy'
LEFT = 'undefined', 'sensitive', 'large', 'not compared'  # of which nothing is said


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        description='Looks for faults by drawing cases.', allow_abbrev=False
    )
    parser.add_argument('--minutes', type=float, default=10.0)
    parser.add_argument('--workers', type=int, default=1, help='processes')
    parser.add_argument('--seed', type=int, default=0, help='where drawing begins')
    parser.add_argument('--state', type=Path, default=Path('.fuzz'), help='a folder')
    parser.add_argument('--only', choices=CHECKS, default='all', help='what is checked')
    parser.add_argument('--summary', action='store_true', help='tell, run nothing')
    parser.add_argument('--worker', type=int, help=argparse.SUPPRESS)
    parser.add_argument('--until', type=float, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def total(folder: Path) -> dict[str, Any]:
    """What all workers have done in all runs."""
    states = [json.loads(p.read_text()) for p in sorted(folder.glob('worker-*.json'))]
    signatures = (Counter(s['signatures']) for s in states)
    return {
        'tally': sum((Counter(s['tally']) for s in states), Counter()),
        'signatures': sum(signatures, _lost(folder)),
        'cases': sum(s['cases'] for s in states),
        'seconds': sum(s['seconds'] for s in states),
    }


def _lost(folder: Path) -> Counter[str]:
    """How often a worker's process was lost, by how it ended."""
    path = folder / LOST
    return Counter(json.loads(path.read_text()) if path.exists() else {})


def summary(folder: Path) -> str:
    """A table in Markdown of what was compared, and a line per kind of failure."""
    found = total(folder)
    tally = found['tally'] + Counter(cases=found['cases'])
    hours = found['seconds'] / 3600
    head = ['core hours', *COLUMNS, *NESTINGS, *LEFT]
    row = [f'{hours:.2f}', *(f'{tally[name]:,}' for name in head[1:])]
    lines = [head, ['---:'] * len(head), row]
    table = '\n'.join(f'| {" | ".join(line)} |' for line in lines)
    kinds = [f'- {kind}: {count}' for kind, count in found['signatures'].items()]
    return '\n'.join([table, '', *(kinds or ['No failure.'])])


class Process:
    """A worker's process, started again when it ends before its time."""

    def __init__(self, given: argparse.Namespace, number: int, until: float) -> None:
        self.folder, self.number = given.state, number
        self.command = [sys.executable, str(HERE), '--worker', str(number)]
        self.command += ['--state', str(given.state), '--seed', str(given.seed)]
        self.command += ['--until', str(until), '--only', given.only]
        self.until = until
        self.start()

    def start(self) -> None:
        """Starts the process."""
        self.running = subprocess.Popen(self.command)

    @property
    def current(self) -> Path:
        """The choices of the case at hand."""
        return self.folder / f'current-{self.number}.json'

    def watch(self) -> bool:
        """Whether work goes on; a crash or a case without end is a failure."""
        if self.running.poll() is None:
            if self.current.exists() and _age(self.current) > PATIENCE:
                self.running.kill()
                self.running.wait()
                self.lose('a case without end')
                self.start()
            return True
        if self.running.returncode:
            self.lose(f'the process ended with {self.running.returncode}')
            self.start()
            return True
        return False

    def lose(self, why: str) -> None:
        """Counts and stores the case at hand, with which the process was lost."""
        if not self.current.exists():
            raise SystemExit(f'worker {self.number}: {why} before its first case')
        choices = json.loads(self.current.read_text())
        store(self.folder / 'failures', choices, why, why)
        counts = _lost(self.folder) + Counter([why])
        (self.folder / LOST).write_text(json.dumps(counts))
        self.current.unlink()

    def stop(self) -> None:
        """Ends the process."""
        self.running.terminate()
        self.running.wait()


def _age(path: Path) -> float:
    return time.time() - path.stat().st_mtime


def run(given: argparse.Namespace) -> int:
    """Runs workers, shows how far they are, and tells what they found."""
    from tqdm import tqdm

    given.state.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    before = _stored(given.state)
    begin = time.time()
    until = begin + 60 * given.minutes
    pace = 0.5 if sys.stderr.isatty() else 60
    processes = [Process(given, n, until) for n in range(given.workers)]
    try:
        with tqdm(total=round(60 * given.minutes), unit='s', mininterval=pace) as bar:
            while any([each.watch() for each in processes]):
                time.sleep(1)
                bar.set_postfix_str(_shown(given.state), refresh=False)
                bar.update(min(round(time.time() - begin), bar.total) - bar.n)
    except KeyboardInterrupt:
        print('stopped; the same command goes on', file=sys.stderr)
    finally:
        for each in processes:
            each.stop()
    print(summary(given.state))
    new = sorted(_stored(given.state) - before)
    for path in new:
        print(f'new failure: {path}')
    return 1 if new else 0


def _stored(folder: Path) -> set[Path]:
    return set((folder / 'failures').glob('test_*.py'))


def _shown(folder: Path) -> str:
    found = total(folder)
    tally = found['tally'] + Counter(cases=found['cases'])
    names = 'cases', 'values', 'gradients'
    counts = ', '.join(f'{tally[name]:,} {name}' for name in names)
    return f'{counts}, {sum(found["signatures"].values())} failures'


def main() -> None:
    """Runs what the command line says."""
    given = options()
    if given.summary:
        print(summary(given.state))
    elif given.worker is None:
        sys.exit(run(given))
    else:
        from fuzz.worker import Worker

        Worker(given.state, given.worker, given.until, given.seed, given.only).work()


if __name__ == '__main__':
    main()
