# SPDX-License-Identifier: Apache-2.0
"""Runs the mutants of `mutants.diff`: tests must fail where code is made wrong.

python tests/support/mutants.py [--only WORD] [--workers 2]

Every worker has a copy of the repository, in which it changes one place at a time. The
exit status is 1 if some mutant survives: if all of its tests pass.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 600  # seconds that the tests of a mutant may take
FAILED, INTERRUPTED = 1, 2  # exit statuses of pytest


@dataclass(frozen=True)
class Mutant:
    """A mistake in the code.

    Attributes:
      rule: what must hold, and no longer does.
      file: the path in the repository.
      before: a text that is there once.
      after: the wrong text in its place.
      tests: files of tests, of which one must fail.
    """

    rule: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    @property
    def room(self) -> str:
        """The room of `jfold/` that the file is in; `top` for files in no room."""
        _, *folders, _ = Path(self.file).parts
        return folders[0] if folders else 'top'


def parsed(text: str) -> Iterator[Mutant]:
    """Yield the mutants of a text: per mutant a rule, its place, and a change."""
    for part in text.rstrip('\n').split('\n\n'):
        if not part.startswith('#'):
            rule, place, *lines = part.split('\n')
            file, tests = place.split(' seen by ')
            before, after = (
                '\n'.join(x[1:] for x in lines if x.startswith(sign)) for sign in '-+'
            )
            yield Mutant(rule, file, before, after, tuple(tests.split(', ')))


MUTANTS = tuple(parsed(Path(__file__).with_suffix('.diff').read_text()))


@dataclass(frozen=True)
class Outcome:
    """What the tests of a mutant told."""

    mutant: Mutant
    test: str  # the first that failed; '' if all passed
    seconds: float

    def __str__(self) -> str:
        word = 'killed  ' if self.test else 'SURVIVED'
        return f'{word} {self.seconds:4.0f} s  {self.mutant.rule}  {self.test}'.rstrip()


def copied(folder: Path) -> Path:
    """Copy the files that git tracks or would add; return the folder."""
    command = 'git', 'ls-files', '-co', '--exclude-standard'
    for name in subprocess.check_output(command, cwd=ROOT, text=True).splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    _, place = run(folder, '-c', 'import jfold; print(jfold.__file__)')
    if not Path(place.strip()).resolve().is_relative_to(folder.resolve()):
        raise RuntimeError(f'expected to import the copy in {folder}, got {place}')
    return folder


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run Python in a copy; return its status (`FAILED` past the limit) and text."""
    pipes: dict[str, int] = {'stdout': subprocess.PIPE, 'stderr': subprocess.STDOUT}
    options = {'cwd': folder, 'text': True, 'start_new_session': True, **pipes}
    environment = {**os.environ, 'PYTHONPATH': str(folder)}  # for their subprocesses
    process = subprocess.Popen([sys.executable, *arguments], env=environment, **options)
    try:
        text, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return FAILED, f'FAILED more than {LIMIT} s'
    return process.returncode, text


def tried(mutant: Mutant, folder: Path) -> Outcome:
    """Run the tests of a mutant in a copy; RuntimeError if pytest cannot."""
    file, begin = folder / mutant.file, time.monotonic()
    text = file.read_text()
    file.write_text(text.replace(mutant.before, mutant.after))
    options = '-x', '-q', '-p', 'no:cacheprovider'
    try:
        status, output = run(folder, '-m', 'pytest', *options, *mutant.tests)
    finally:
        file.write_text(text)
    seconds, test = time.monotonic() - begin, ''
    if status == INTERRUPTED and mutant.file in output:
        test = f'import of {mutant.file}'
    elif status == FAILED:
        test = first_failed(output)
    elif status:
        raise RuntimeError(f'{mutant.rule}: pytest ended with {status}\n{output}')
    return Outcome(mutant, test, seconds)


def first_failed(output: str) -> str:
    """Return the first test that failed, as pytest names it."""
    lines = (x.split(' - ')[0] for x in output.splitlines())
    names = (x.partition(' ')[2] for x in lines if x.startswith(('FAILED ', 'ERROR ')))
    return next(names, 'unknown')


def all_tried(mutants: list[Mutant], workers: int) -> Iterator[Outcome]:
    """Yield the outcome of each mutant, as they end."""
    folders: queue.SimpleQueue[Path] = queue.SimpleQueue()

    def in_free_copy(mutant: Mutant) -> Outcome:
        folder = folders.get()
        try:
            return tried(mutant, folder)
        finally:
            folders.put(folder)

    with tempfile.TemporaryDirectory() as parent, ThreadPoolExecutor(workers) as pool:
        for n in range(workers):
            folders.put(copied(Path(parent, str(n))))
        started = [pool.submit(in_free_copy, x) for x in mutants]
        try:
            yield from (future.result() for future in as_completed(started))
        finally:
            pool.shutdown(cancel_futures=True)


def table(outcomes: list[Outcome]) -> str:
    """Return a Markdown table of what saw each mutant, by room."""
    lines = []
    ordered = sorted(outcomes, key=lambda x: MUTANTS.index(x.mutant))
    for room, of_room in groupby(ordered, key=lambda x: x.mutant.room):
        lines += ['', f'## {room}', '', '| rule | file | test |', '|---|---|---|']
        for x in of_room:
            file, test = x.mutant.file, x.test or '**none**'
            lines.append(f'| {x.mutant.rule} | `{file}` | {test} |')
    return '\n'.join(lines)


if __name__ == '__main__':
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument('--only', default='', help='mutants that have this word')
    parser.add_argument('--workers', type=int, default=2)
    options = parser.parse_args()
    chosen = [x for x in MUTANTS if options.only.lower() in repr(x).lower()]
    found, begin = [], time.monotonic()
    for outcome in all_tried(chosen, options.workers):
        print(outcome, flush=True)
        found.append(outcome)
    print(table(found))
    survivors = [x for x in found if not x.test]
    killed, seconds = len(found) - len(survivors), time.monotonic() - begin
    print(f'\n{killed} of {len(found)} mutants killed in {seconds:.0f} s')
    sys.exit(bool(survivors))
