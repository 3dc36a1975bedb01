# SPDX-License-Identifier: Apache-2.0
"""Hypothesis draws the same examples at every run; what is compiled is freed.

Most of the time goes into compiling what runs once. So XLA is asked not to try hard
with machine code, and to make it of HLO without MLIR in between, if that XLA still can.
`XLA_FLAGS=` lets it; what reads HLO has what users have (`compiler.AS_USERS_HAVE_IT`).
"""

from __future__ import annotations

import collections
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compiler import FLAGS

os.environ.setdefault('XLA_FLAGS', FLAGS)

import jax
import pytest
from compilations import COMPILED
from extent import left_out, options
from hypothesis import HealthCheck, Phase, settings

jax.config.update('jax_num_cpu_devices', 8)  # for shards; all else runs on the first

CACHE = str(Path(__file__).parents[1] / '.pytest_cache/xla')
# Both workers, and later runs, compile a program once; JAX reports hits as compiled.
jax.config.update('jax_compilation_cache_dir', CACHE)
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)

settings.register_profile(
    'jfold',
    deadline=None,
    derandomize=True,
    database=None,
    # Making failures small takes minutes each; `--hypothesis-profile=default` does.
    phases=(Phase.explicit, Phase.generate),
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile('jfold')

gc.set_threshold(10_000, 20, 50)  # looking at objects, seldom: modules are many


def pytest_addoption(parser: pytest.Parser) -> None:
    """With `--all` nothing is left out, with `--every 3` two of three tests."""
    text = 'run long tests too, and all cases of sampled ones'
    parser.addoption('--all', action='store_true', dest='all_tests', help=text)
    parser.addoption('--every', type=int, default=1, help='run every n-th test')


def pytest_configure(config: pytest.Config) -> None:
    """Tests that draw are told how many examples before they are imported.

    Nothing is left out of what is named, as in `file.py::test`.
    """
    is_named = any('::' in x for x in config.args)
    options['all'] = is_named or config.option.all_tests


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Long tests, and most cases of sampled ones, are left out."""
    left = set() if options['all'] else left_out(items)
    chosen = [item for item in items if item not in left][:: config.option.every]
    config.hook.pytest_deselected(items=[*{*items} - {*chosen}])
    items[:] = chosen


MAPS = Path('/proc/self/maps')
MANY_MAPS = 40_000  # of 65,530, which Linux grants a process
PROGRAMS = 200  # are compiled before maps are counted again, which takes a while
since: collections.Counter[str] = collections.Counter()


def count(event: str, duration: float, **details: Any) -> None:
    """Of each kind of event, how many there were since maps were counted."""
    since[event] += 1


jax.monitoring.register_event_duration_secs_listener(count)


@pytest.fixture(autouse=True)
def without_leftovers() -> Iterator[None]:
    """Frees what tests have compiled, before one process can hold no more of it.

    Every compiled program takes a few maps of memory, and their number is limited.
    """
    yield
    if since[COMPILED] < PROGRAMS:
        return
    since.clear()
    if MAPS.exists() and MAPS.read_bytes().count(b'\n') > MANY_MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope='module')
def only_new_garbage() -> Iterator[None]:
    """Collections pass over all that there was before the tests of a module."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def wide() -> Iterator[None]:
    """What differs in float32 would be rounding and nothing else."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """Whatever a test starts ends by itself or by `close`."""
    from fake_sources import PATIENCE, threads

    before = threads()
    yield
    for thread in threads() - before:
        thread.join(PATIENCE)
    assert threads() <= before
