# SPDX-License-Identifier: Apache-2.0
"""Contenders take turns in one process, in another order each round.

So drift hits all alike; quartiles are those of single calls, ratios are taken round by
round.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from report import Row

WARM = 1  # rounds that are not counted
WAKE = 0.1  # seconds; a call before that was shorter calls for a spare one first
ENOUGH = 4  # repeats, after which a slow contender may be spared the rest

Contenders = Mapping[str, Callable[[int], Any]]


class Seconds(float):
    """What a contender returns that has timed itself, such as another process."""


@dataclass(frozen=True)
class Times:
    """Seconds of the calls of one contender, round by round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median."""
        return statistics.median(self.values)

    @property
    def ms(self) -> float:
        """The median in milliseconds."""
        return 1e3 * self.median

    @property
    def quartiles(self) -> tuple[float, float]:
        """The ends of the middle half."""
        low, _, high = statistics.quantiles(self.values, n=4, method='inclusive')
        return low, high

    @property
    def spread(self) -> float:
        """The width of the middle half in percent of the median."""
        low, high = self.quartiles
        return 100 * (high - low) / self.median

    def __add__(self, other: Times) -> Times:
        pairs = zip(self.values, other.values, strict=False)
        return Times(tuple(a + b for a, b in pairs))

    def __truediv__(self, other: Times) -> Times:
        """The ratios of the rounds that both have."""
        pairs = zip(self.values, other.values, strict=False)
        return Times(tuple(a / b for a, b in pairs))


def take_turns(
    contenders: Contenders,
    repeats: int,
    limit: float = math.inf,
    prepare: Callable[[str], object] = str,
) -> dict[str, Times]:
    """Times of all contenders.

    Args:
      contenders: each is called with the number of the round, which picks a batch.
      repeats: rounds that count, two at least.
      limit: seconds after which a contender is spared the rest of its rounds.
      prepare: called with its name before a contender is timed.
    """
    found: dict[str, list[float]] = {name: [] for name in contenders}
    last = dict.fromkeys(contenders, 0.0)
    shuffle = random.Random(0)
    for number in range(WARM + repeats):
        active = [n for n in found if len(found[n]) < ENOUGH or sum(found[n]) < limit]
        for name in shuffle.sample(active, len(active)):
            prepare(name)
            if last[name] < WAKE:  # of another batch, to wake threads and caches
                seconds(functools.partial(contenders[name], number + 1))
            last[name] = seconds(functools.partial(contenders[name], number))
            if number >= WARM:
                found[name].append(last[name])
    return {name: Times(tuple(values)) for name, values in found.items()}


def ratio_row(name: str, mode: str, ratios: Times) -> Row:
    """A ratio with its quartiles."""
    low, high = ratios.quartiles
    about = {'ratio': name, 'mode': mode}
    return about | {'median': ratios.median, 'low': low, 'high': high}


def seconds(run: Callable[[], Any]) -> float:
    """How long one call takes, until its result is there, or says that it took."""
    result, wall = clocked(lambda: jax.block_until_ready(run()))
    return result if isinstance(result, Seconds) else wall


def clocked(run: Callable[[], Any]) -> tuple[Any, float]:
    """A result and the seconds that it took."""
    begin = time.perf_counter()
    result = run()
    return result, time.perf_counter() - begin


def compiled(function: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    """A compiled function, and the seconds of tracing and compiling it."""
    return clocked(lambda: jax.jit(function).lower(*args).compile())
