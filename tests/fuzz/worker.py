# SPDX-License-Identifier: Apache-2.0
"""One process of a campaign: draws cases round by round, and shrinks what fails."""

from __future__ import annotations

import gc
import json
import os
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from hypothesis import HealthCheck, Phase, given, seed, settings

from fuzz import interpreter
from fuzz.cases import Choices, drawn_choices, make_case
from fuzz.checks import Tally, check_case
from fuzz.failures import signature, store

CASES_A_ROUND = 40
KEPT_ALIKE = 2  # how many failures of one signature are shrunk and stored
MANY_MAPS = 20_000

Check = Callable[[Any, Tally], None]


@dataclass(eq=False)
class Worker:
    """Where one process stands; written to a file after every case.

    Attributes:
      folder: of the campaign.
      number: of this worker.
      until: when to stop, in seconds since the epoch.
      check: what is asked of a case.
      rounds: how many were begun.
      tally: what was compared so far, in all runs.
      signatures: how often each kind of failure was met.
    """

    folder: Path
    number: int
    until: float
    base: int = 0
    check: Check = check_case
    rounds: int = 0
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
            self.rounds, self.seconds = state['rounds'], state['seconds']
            self.tally, self.signatures = (
                Counter(state[k]) for k in ('tally', 'signatures')
            )

    def save(self) -> None:
        """Writes the file, whole or not at all."""
        names = 'rounds', 'seconds', 'tally', 'signatures'
        _write(self.path, {name: getattr(self, name) for name in names})

    def work(self) -> None:
        """Round after round until it is time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.restore()
        warnings.simplefilter('error')
        while time.time() < self.until:
            self.rounds += 1
            self.save()
            Round(self, self.base + 1000 * self.number + 1_000_000 * self.rounds).run()
            _free()
        self.current.unlink(missing_ok=True)


@dataclass(eq=False)
class Round:
    """Cases that hypothesis draws from one seed, until one fails and is made small."""

    worker: Worker
    seed: int
    failing: str | None = None
    smallest: tuple[list[int], str] | None = None

    def run(self) -> None:
        """Draws and checks; stores the smallest failure."""
        try:
            self._property()()
        except Exception as error:
            if self.smallest is None:
                raise error
        if self.smallest is not None:
            choices, message = self.smallest
            store(self.worker.folder / 'failures', choices, str(self.failing), message)
            self.worker.save()

    def _property(self) -> Any:
        @seed(self.seed)
        @settings(
            max_examples=CASES_A_ROUND,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        @given(drawn_choices())
        def holds(choices: Choices) -> None:
            if self.failing or time.time() < self.worker.until:
                self.try_case(choices)

        return holds

    def try_case(self, choices: Choices) -> None:
        """Checks a case; raises if it fails in a way that is to be made small."""
        worker = self.worker
        _write(worker.current, choices.drawn)
        begin, tally = time.perf_counter(), Counter[str]()
        try:
            worker.check(make_case(_same(choices)), tally)
        except Exception as error:
            self._failed(choices, error)
        finally:
            interpreter.forget()
            worker.seconds += time.perf_counter() - begin
            if not self.failing:
                worker.tally.update(tally + Counter(cases=1))
            worker.save()

    def _failed(self, choices: Choices, error: Exception) -> None:
        kind = signature(error)
        if self.failing not in (None, kind):
            return
        if self.failing is None:
            self.worker.signatures[kind] += 1
            if self.worker.signatures[kind] > KEPT_ALIKE:
                return
            self.failing = kind
        message = ''.join(traceback.format_exception(error)[-6:])
        found = list(choices.drawn), message
        if self.smallest is None or _size(found) <= _size(self.smallest):
            self.smallest = found
        raise error


def _size(found: tuple[list[int], str]) -> tuple[int, list[int]]:
    return len(found[0]), found[0]


def _same(choices: Choices) -> Choices:
    from fuzz.cases import again

    return again(choices.drawn)


def _write(path: Path, value: Any) -> None:
    made = path.with_suffix('.tmp')
    made.write_text(json.dumps(value))
    os.replace(made, path)


def _free() -> None:
    maps = Path('/proc/self/maps')
    if maps.exists() and maps.read_bytes().count(b'\n') > MANY_MAPS:
        jax.clear_caches()
        gc.collect()
