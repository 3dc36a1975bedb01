# SPDX-License-Identifier: Apache-2.0
"""One process of a campaign: draws cases, and makes those that fail small."""

from __future__ import annotations

import gc
import json
import os
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import interpreter
import jax

from fuzz.cases import Choices, again, fresh, make_case
from fuzz.checks import CHECKS, Tally
from fuzz.failures import signature, store
from fuzz.shrink import shrunk

KEPT_ALIKE = 2  # how many failures of one signature are shrunk and stored
MANY_MAPS = 20_000


@dataclass(eq=False)
class Worker:
    """Where one process stands; written to a file after every case.

    Attributes:
      folder: of the campaign.
      number: of this worker.
      until: when to stop, in seconds since the epoch.
      base: where the seeds of cases begin.
      only: what is checked; of `CHECKS`.
      tries: how many cases may be spent on making one small.
      seconds: of one core that it took.
      cases: how many were begun; each is drawn from a seed of its own.
      tally: what was compared so far, in all runs.
      signatures: how often each kind of failure was met.
    """

    folder: Path
    number: int
    until: float
    base: int = 0
    only: str = 'all'
    tries: int = 300
    cases: int = 0
    seconds: float = 0.0
    tally: Tally = field(default_factory=Counter)
    signatures: Counter[str] = field(default_factory=Counter)

    @property
    def path(self) -> Path:
        """Where this is kept."""
        return self.folder / f'worker-{self.number}.json'

    @property
    def current(self) -> Path:
        """Where the choices of the case at hand are kept, should it end the process."""
        return self.folder / f'current-{self.number}.json'

    def restore(self) -> None:
        """Goes on where an earlier run stopped."""
        if self.path.exists():
            state = json.loads(self.path.read_text())
            self.cases, self.seconds = state['cases'], state['seconds']
            self.tally, self.signatures = (
                Counter(state[k]) for k in ('tally', 'signatures')
            )

    def save(self) -> None:
        """Writes the file, whole or not at all."""
        names = 'cases', 'seconds', 'tally', 'signatures'
        _write(self.path, {name: getattr(self, name) for name in names})

    def work(self) -> None:
        """Case after case until it is time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.restore()
        while time.time() < self.until:
            self.case()
        self.current.unlink(missing_ok=True)

    def case(self) -> None:
        """Draws a case and checks it; what fails is made small and stored."""
        seed = self.base + 1000 * self.number + 1_000_000 * self.cases
        self.cases += 1
        self.save()
        begin, choices = time.process_time(), fresh(seed)
        error = self.failure(choices, self.tally)
        if error is not None:
            self.failed(choices.drawn, error)
        self.seconds += time.process_time() - begin
        self.save()
        _free()

    def failure(self, choices: Choices, tally: Tally) -> Exception | None:
        """Checks a case; what was raised, if anything was."""
        try:
            with warnings.catch_warnings(action='error'):
                case = make_case(choices)
                _write(self.current, choices.drawn)
                CHECKS[self.only](case, tally)
        except Exception as error:
            return error
        finally:
            interpreter.forget()
        return None

    def failed(self, choices: list[int], error: Exception) -> None:
        """Counts a failure; stores it, and makes it small, if few like it were met.

        It is on disk before it is made small, by which the process may be lost.
        """
        kind = signature(error)
        self.signatures[kind] += 1
        self.save()
        if self.signatures[kind] > KEPT_ALIKE:  # not made small, but not lost either
            with (self.folder / 'alike.jsonl').open('a') as file:
                print(json.dumps([kind, choices, f'{error}'[:300]]), file=file)
            return
        folder = self.folder / 'failures'
        messages = {tuple(choices): _message(error)}
        large = store(folder, choices, kind, _message(error))

        def attempt(candidate: list[int]) -> list[int] | None:
            choices = again(candidate)
            error = self.failure(choices, Counter())
            _free()
            if error is None or signature(error) != kind:
                return None
            messages[tuple(choices.drawn)] = _message(error)
            return choices.drawn

        small = shrunk(choices, attempt, self.tries)
        large.unlink()
        store(folder, small, kind, messages[tuple(small)])


def _message(error: Exception) -> str:
    return ''.join(traceback.format_exception(error)[-6:])


def _write(path: Path, value: Any) -> None:
    made = path.with_suffix('.tmp')
    made.write_text(json.dumps(value))
    os.replace(made, path)


def _free() -> None:
    maps = Path('/proc/self/maps')
    if maps.exists() and maps.read_bytes().count(b'\n') > MANY_MAPS:
        jax.clear_caches()
        gc.collect()
