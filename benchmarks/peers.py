# SPDX-License-Identifier: Apache-2.0
"""jfold against other libraries, and against code written by hand, on one workload.

    python benchmarks/peers.py [--quick] [--peers dynet,dgl] [--sizes small,big]

Needs nothing but Python 3.11; what the peers need goes into virtual environments under
`.venv/peers`, each made once. The workload and its checks are in `peers/protocol.py`.
Every peer is a process of its own; they take turns, in another order each round, and
while one works the others wait. A peer that cannot be installed, or fails a check, has
its row all the same, with the reason.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from options import among, fill, make_parser, numbers, say
from report import ROOT, Report, Row, cores, load

PROGRAMS = Path(__file__).resolve().parent / 'peers'
TORCH = ('torch==2.13.0', 'numpy')
# for each environment, what one call of pip after the other installs
ENVIRONMENTS: dict[str, tuple[tuple[str, ...], ...]] = {
    'jax': (('jax==0.10.2', 'jaxlib==0.10.2', '--editable', '.'),),
    'dynet': (('dynet38==2.2', 'numpy', 'cython'),),
    'torch': (TORCH,),
    'torchfold': (TORCH, ('torchfold==0.1.0',)),
    'dgl': (
        (*TORCH, 'scipy', 'networkx', 'requests', 'tqdm', 'psutil', 'pandas'),
        ('setuptools==69.5.1',),  # against what torch asks for: dgl needs an older one
        ('--no-deps', 'dgl==2.1.0'),
    ),
}


@dataclass(frozen=True)
class Peer:
    """A contender: a program of `peers/`, and the environment it runs in."""

    environment: str
    program: str
    note: str = ''


PEERS = {
    'jfold': Peer('jax', 'jfold_trees', 'building the schedule included'),
    'jfold-lazy': Peer('jax', 'jfold_lazy', 'in plain Python, recording included'),
    'jfold-devices': Peer('jax', 'jfold_devices', 'as many devices as threads'),
    'jax-scan': Peer('jax', 'jax_scan', 'forward and reverse by hand'),
    'jax-stack': Peer('jax', 'jax_stack'),
    'jax-levels': Peer('jax', 'jax_levels'),
    'jax-unrolled': Peer('jax', 'jax_unrolled'),
    'dynet': Peer('dynet', 'dynet_autobatch', 'on one thread, as the wheel is'),
    'torch-levels': Peer('torch', 'torch_levels', 'levels by hand'),
    'torch-eager': Peer('torch', 'torch_eager', 'not batched'),
    'dgl': Peer('dgl', 'dgl_levels'),
    'torchfold': Peer('torchfold', 'torchfold_cells'),
}
QUICK = ['jfold', 'jax-scan', 'jax-stack', 'jax-levels', 'dynet']  # soon compiled


@dataclass(frozen=True)
class Size:
    """Batches of `batch` trees with `leaves` leaves, or of chains."""

    leaves: int
    hidden: int
    batch: int
    chains: bool = False


SIZES = {
    'tiny': Size(leaves=5, hidden=8, batch=4),
    'small': Size(leaves=32, hidden=128, batch=32),
    'big': Size(leaves=128, hidden=256, batch=64),
}
MODES = ('infer', 'train')
TIMES = (
    'ms',
    'spread %',
    'times jfold',
    'build ms',
    'compute ms',
    'first step s',
    'compiling s',
    'compilations',
    'repeats',
)
WARM = 3  # rounds that are not counted
WAKE = 0.1  # seconds; a step before that is shorter calls for a spare one first
ENOUGH = 3  # repeats, after which a slow peer may be spared the rest
PATIENCE = 900  # seconds for one answer


class Unable(Exception):
    """A peer cannot take part; says why."""


# ---- environments --------------------------------------------------------------------


def prepare(name: str, folder: Path, installs: bool) -> Path:
    """The interpreter of an environment, made unless it is there.

    Raises:
      Unable: something does not install, or is not to be.
    """
    home, steps = folder / name, ENVIRONMENTS[name]
    ready, python = home / '.ready', home / 'bin' / 'python'
    recipe = '\n'.join(shlex.join(step) for step in steps)
    if ready.exists() and ready.read_text(encoding='utf-8') == recipe:
        return python
    if not installs:
        raise Unable(f'absent: no environment {home}')
    say(f'environment {name}: making it')
    ready.unlink(missing_ok=True)
    install([sys.executable, '-m', 'venv', '--clear', str(home)])
    for step in steps:
        say(f'environment {name}: pip install {shlex.join(step)}')
        pip = [str(python), '-m', 'pip', 'install', '--disable-pip-version-check']
        install([*pip, *step])
    ready.write_text(recipe, encoding='utf-8')
    return python


def install(command: list[str]) -> None:
    """Runs a command; `Unable` with what it complains of if it fails."""
    run = subprocess.run(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if run.returncode:
        lines = [line for line in run.stdout.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith('ERROR')] or lines[-1:]
        raise Unable(f'absent: {" ".join(errors) or f"exit code {run.returncode}"}')


def prepared(
    names: list[str], folder: Path, installs: bool = True
) -> dict[str, Path | Unable]:
    """For each environment that these peers need, its interpreter or the reason."""
    found: dict[str, Path | Unable] = {}
    for name in dict.fromkeys(PEERS[peer].environment for peer in names):
        try:
            found[name] = prepare(name, folder, installs)
        except (Unable, OSError) as error:
            found[name] = error if isinstance(error, Unable) else Unable(str(error))
            say(f'environment {name}: {found[name]}')
    return found


# ---- contenders ----------------------------------------------------------------------


@dataclass(eq=False)
class Contender:
    """A running program, and what it has answered.

    Attributes:
      name: of the peer.
      command: that started it.
      check: its answer to `check`.
      steps: its answers to `step` that count.
      compiled: seconds of compiling in all steps.
      compilations: how many of them compiled.
      spent: seconds of all steps.
      last: seconds of the last one.
    """

    name: str
    command: list[str]
    process: subprocess.Popen[str]
    log: Any
    check: Row = field(default_factory=dict)
    steps: list[Row] = field(default_factory=list)
    compiled: float = 0.0
    compilations: int = 0
    spent: float = 0.0
    last: float = 0.0

    def __post_init__(self) -> None:
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith('{'):  # libraries print too
                self._lines.put(line)
        self._lines.put('')

    def ask(self, question: str) -> Row:
        """The answer to a question.

        Raises:
          Unable: there is none, or it is an error.
        """
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(question + '\n')
            self.process.stdin.flush()
            line = self._lines.get(timeout=PATIENCE)
        except queue.Empty:
            self.process.kill()  # else it would go on beside the others
            raise Unable(f'failed: no answer in {PATIENCE} s') from None
        except BrokenPipeError:
            line = ''
        answer: Row = json.loads(line) if line else {'error': self._last_words()}
        if 'error' in answer:
            raise Unable(f'failed: {answer["error"]}')
        self.last = answer['total']
        self.spent += answer['total']
        self.compiled += answer['compile']
        self.compilations += answer['compile'] > 0
        return answer

    def _last_words(self) -> str:
        self.process.wait()
        self.log.seek(0)
        lines = self.log.read().strip().splitlines()
        return lines[-1] if lines else f'exit code {self.process.returncode}'

    def turn(self, counts: bool) -> None:
        """Takes a step; a short one is preceded by another, to wake threads and caches.

        Raises:
          Unable: it failed.
        """
        if self.last < WAKE:
            self.ask('step')
        answer = self.ask('step')
        if counts:
            self.steps.append(answer)

    def close(self) -> None:
        """Ends the program."""
        self.process.kill()
        self._reader.join()
        self.process.communicate()
        self.log.close()


def start(name: str, python: Any, size: Size, mode: str, threads: int) -> Contender:
    """Starts the program of a peer.

    Args:
      python: as `prepared` gives it.

    Raises:
      Unable: it is not installed.
    """
    if isinstance(python, Unable):
        raise python
    program = PROGRAMS / f'{PEERS[name].program}.py'
    command = [str(python), str(program), '--mode', mode, '--threads', str(threads)]
    for option in ('leaves', 'hidden', 'batch'):
        command += [f'--{option}', str(getattr(size, option))]
    command += ['--chains'] if size.chains else []
    log = tempfile.TemporaryFile('w+', encoding='utf-8', errors='replace')
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=os.environ | {'JAX_PLATFORMS': 'cpu', 'OMP_NUM_THREADS': str(threads)},
    )
    return Contender(name, command, process, log)


@contextmanager
def running() -> Iterator[list[Contender]]:
    """A list of contenders, all of which end with the block."""
    contenders: list[Contender] = []
    try:
        yield contenders
    finally:
        for contender in contenders:
            contender.close()


# ---- comparing -----------------------------------------------------------------------


@dataclass(frozen=True)
class Match:
    """One size, mode and number of threads, in which peers are compared."""

    size: str
    mode: str
    threads: int
    repeats: int
    limit: float

    def __str__(self) -> str:
        return f'{self.size}, {self.mode}, {self.threads} thread(s)'


def compare(names: list[str], pythons: dict[str, Any], match: Match) -> list[Row]:
    """Rows of a match, the fastest first.

    Args:
      names: of the peers.
      pythons: as `prepared` returns them.
      match: what to run.
    """
    reasons: dict[str, Unable] = {}
    with running() as contenders:
        for name in names:
            say(f'{match}: checking {name}')
            try:
                contenders.append(started(name, pythons, match))
                contenders[-1].check = contenders[-1].ask('check')
            except Unable as reason:
                reasons[name] = reason
        take_turns(contenders, match, reasons)
    for name, reason in reasons.items():
        say(f'{match}: {name} {reason}')
    rows = [row_of(c, match) for c in contenders if c.name not in reasons]
    rows += [row_without(name, str(reason), match) for name, reason in reasons.items()]
    return ranked(rows)


def started(name: str, pythons: dict[str, Any], match: Match) -> Contender:
    """A contender that has not been asked anything; `Unable` if it is not installed."""
    python, size = pythons[PEERS[name].environment], SIZES[match.size]
    return start(name, python, size, match.mode, match.threads)


def take_turns(
    contenders: list[Contender], match: Match, reasons: dict[str, Unable]
) -> None:
    """Lets the contenders step in rounds; those that fail get a reason and stop."""
    shuffle = random.Random(0)
    for number in range(WARM + match.repeats):
        active = [
            c
            for c in contenders
            if c.name not in reasons
            and (len(c.steps) < ENOUGH or c.spent < match.limit)
        ]
        for contender in shuffle.sample(active, len(active)):
            try:
                contender.turn(number >= WARM)
            except Unable as reason:
                reasons[contender.name] = reason
    say(f'{match}: {WARM + match.repeats} rounds done')


def row_of(contender: Contender, match: Match) -> Row:
    """The row of a contender: medians of steps that did not compile."""
    size, check, steps = SIZES[match.size], contender.check, contender.steps
    steady = [step for step in steps if step['compile'] == 0]
    remarks = [PEERS[contender.name].note]
    if not steady:
        remarks.append('compiles in every step')
    if check['trees'] != size.batch:
        remarks.append(
            f'{check["trees"]} trees, the same in every step; times scaled to '
            f'{size.batch}, compiling not'
        )
    used, factor = steady or steps, 1e3 * size.batch / check['trees']
    total, build, compute = (
        [factor * step[part] for step in used if step[part] is not None]
        for part in ('total', 'build', 'compute')
    )
    return row_without(contender.name, '; '.join(filter(None, remarks)), match) | {
        'ms': median(total),
        'spread %': spread(total),
        'build ms': median(build),
        'compute ms': median(compute),
        'first step s': check['total'],
        'compiling s': contender.compiled,
        'compilations': contender.compilations,
        'repeats': len(used),
        'details': {'command': contender.command, 'check': check, 'steps': steps},
    }


def row_without(name: str, remarks: str, match: Match) -> Row:
    """The row of a peer that has no times."""
    about = {'size': match.size, 'mode': match.mode, 'threads': match.threads}
    rest = {'load': load(), 'remarks': remarks, 'details': {}}
    return about | {'peer': name} | dict.fromkeys(TIMES) | rest


def ranked(rows: list[Row]) -> list[Row]:
    """Rows by time, with their ratio to jfold's."""
    yardstick = next((r['ms'] for r in rows if r['peer'] == 'jfold'), None)
    for r in rows:
        if yardstick and r['ms']:
            r['times jfold'] = r['ms'] / yardstick
    return sorted(rows, key=lambda r: r['ms'] or float('inf'))


def median(values: list[float]) -> float | None:
    """The median, if there are values."""
    return statistics.median(values) if values else None


def spread(values: list[float]) -> float | None:
    """The width of the middle half in percent of the median, from four values on."""
    if len(values) < 4:
        return None
    low, middle, high = statistics.quantiles(values, n=4)
    return 100 * (high - low) / middle


# ---- command line --------------------------------------------------------------------


def main() -> None:
    """Makes environments, compares, and writes the report; fails if a peer does."""
    options = arguments()
    names = list(dict.fromkeys(['jfold', *options.peers]))
    command = shlex.join(['python', *sys.argv])
    report = Report('Peers', command, (options.json, options.markdown))
    pythons = prepared(names, options.environments, not options.installed)
    cases = itertools.product(options.sizes, options.modes, options.threads)
    for size, mode, threads in cases:
        match = Match(size, mode, threads, options.repeats, options.limit)
        for row in compare(names, pythons, match):
            report.add(row)
        report.write()  # in case the run is cut short
    explain(report, options.sizes)
    report.close()
    failed = [r['peer'] for r in report.rows if r['remarks'].startswith('failed: ')]
    if failed:
        raise SystemExit(f'failed: {", ".join(dict.fromkeys(failed))}')


def explain(report: Report, sizes: list[str]) -> None:
    """What is absent, and notes on what the columns mean, and on versions."""
    for row in report.rows:
        if row['remarks'].startswith('absent: '):
            report.absent[row['peer']] = row['remarks'].removeprefix('absent: ')
    for name in sizes:
        size = SIZES[name]
        report.note(
            f'{name}: {size.batch} trees of {size.leaves} leaves, H = {size.hidden}.'
        )
    report.note(
        'Each peer is a process; they take turns. A step gets a batch that no step '
        'before it had, and is timed from trees to results. ms is the median of steps '
        'that did not compile, spread the width of the middle half, build the part '
        'that makes a schedule or graph. Compiling is the sum over all steps, the '
        'first among them. Every peer with times has passed its check against double '
        'precision: in inference, roots off by less than 1e-4; in training, gradients '
        'by less than 1e-3 of the largest. Load is that of the machine at the end; '
        'far above the number of threads, it says that other programs disturbed, and '
        'peers whose threads wait for each other suffer most.'
    )
    found: dict[str, str] = {}
    for row in report.rows:
        found |= row['details'].get('check', {}).get('versions', {})
    names = ', '.join(f'{name} {version}' for name, version in sorted(found.items()))
    report.note(f'Versions of the peers: {names or "none"}.')


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = make_parser(__doc__ or '')
    add = parser.add_argument
    add('--peers', type=among(PEERS), help=f'some of {", ".join(PEERS)}')
    add('--sizes', type=among(SIZES), help=f'some of {", ".join(SIZES)}')
    add('--modes', '--mode', type=among(MODES), default=list(MODES), help='or one')
    add('--threads', type=numbers, default=[cores()], help='as in 1,2')
    add('--environments', type=Path, default=ROOT / '.venv' / 'peers', help='folder')
    add('--installed', action='store_true', help='make no environment')
    full = {'peers': list(PEERS), 'sizes': ['small', 'big'], 'repeats': 10}
    return fill(parser.parse_args(), full, {'peers': QUICK, 'sizes': ['small']})


if __name__ == '__main__':
    main()
