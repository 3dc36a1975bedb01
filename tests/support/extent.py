# SPDX-License-Identifier: Apache-2.0
"""The extent of the tests: some cases by `make test`, all by `make test-all`."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

# Set where pytest starts, before any module of tests is imported.
options = {'all': False}


def drawn(few: int, many: int) -> int:
    """Return how many examples Hypothesis draws: `many` in `make test-all`."""
    return many if options['all'] else few


def left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the tests that `make test` does not run.

    These are the ones marked `long`, and of one marked `sampled(n)` all but n cases,
    which are drawn, the same in every run.
    """
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker('sampled'):
            cases[item.nodeid.partition('[')[0]].append(item)
    left = {item for item in items if item.get_closest_marker('long')}
    for name, group in cases.items():
        (count,) = group[0].get_closest_marker('sampled').args
        left |= {*group} - {*random.Random(name).sample(group, min(count, len(group)))}
    return left
