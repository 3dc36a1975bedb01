# SPDX-License-Identifier: Apache-2.0
"""Timing by interleaving: contenders take turns, so that drift hits all alike."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax


def seconds(run: Callable[[], Any]) -> float:
    """How long one call takes, until its result is there."""
    begin = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - begin


def interleaved(
    contenders: Mapping[str, Callable[[int], Any]], repeats: int, warm: int = 2
) -> dict[str, float]:
    """Median seconds of each contender; each is called with the number of the round."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(warm + repeats):
        for name, run in contenders.items():
            taken = seconds(functools.partial(run, number))
            if number >= warm:
                times[name].append(taken)
    return {name: statistics.median(values) for name, values in times.items()}
