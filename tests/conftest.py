# SPDX-License-Identifier: Apache-2.0
"""Hypothesis draws the same examples at every run; what is compiled is freed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    'jfold',
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile('jfold')


MAPS = Path('/proc/self/maps')
MANY_MAPS = 20_000  # a third of what Linux grants a process


@pytest.fixture(autouse=True)
def without_leftovers() -> Iterator[None]:
    """Frees what tests have compiled, before one process can hold no more of it.

    Every compiled program takes a few maps of memory, and their number is limited.
    """
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b'\n') > MANY_MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """Whatever a test starts ends by itself or by `close`."""
    from fake_sources import PATIENCE, threads

    before = threads()
    yield
    for thread in threads() - before:
        thread.join(PATIENCE)
    assert threads() <= before
