# SPDX-License-Identifier: Apache-2.0
"""Batches ahead of time, on a thread."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_sources import PATIENCE, made, real, started, threads

import jfold as jf
from jfold.data.prefetch import Prefetcher

pytestmark = pytest.mark.usefixtures('no_thread_is_left')


@pytest.mark.parametrize('prefetch', [1, 2, 5])
def test_so_many_are_built_ahead_and_no_more(prefetch: int) -> None:
    ahead, taken, most = threading.Semaphore(0), 0, 0

    def source() -> Iterator[int]:
        nonlocal most
        for place in range(12):
            most = max(most, place + 1 - taken)  # the one that is asked for included
            yield place
            ahead.release()

    with made(source(), 1, prefetch=prefetch) as found:
        for batch in found:
            assert real(batch) == [taken]
            taken += 1
            for _ in range(1 if taken > 1 else prefetch):
                if taken + prefetch < 12:
                    assert ahead.acquire(timeout=PATIENCE)
    # While a batch is taken and not yet counted, one more is begun.
    assert prefetch <= most <= prefetch + 1


def test_nothing_begins_before_the_first_batch_is_asked_for() -> None:
    def source() -> Iterator[int]:
        begun.append(threading.current_thread())
        yield 1

    begun: list[threading.Thread] = []
    found = made(source(), 1)
    assert (begun, threads()) == ([], set())
    next(found)
    assert begun[0].name == 'jfold.Prefetcher'
    assert begun[0].daemon
    begun.clear()
    next(made(source(), 1, prefetch=0))
    assert begun == [threading.current_thread()]


def test_the_thread_ends_when_exhausted() -> None:
    before = threads()
    found = made(range(5), 2)
    list(found)
    for thread in threads() - before:
        thread.join(PATIENCE)
    assert threads() == before
    assert list(found) == []


def test_the_thread_ends_when_closed() -> None:
    found, thread = started()
    found.close()
    assert not thread.is_alive()
    found.close()
    assert list(found) == []
    untouched = made([1], 1)
    untouched.close()
    assert list(untouched) == []


@pytest.mark.parametrize('prefetch', [0, 2])
def test_the_thread_ends_with_the_statement(prefetch: int) -> None:
    with pytest.raises(KeyError), made(range(9), 1, prefetch=prefetch) as found:
        next(found)
        raise KeyError
    assert threads() == set()
    assert list(found) == []


def test_the_thread_ends_when_nobody_listens() -> None:
    found, thread = started()
    gc.collect()
    gc.disable()  # no cycle may need it
    try:
        del found
        thread.join(PATIENCE)
        assert not thread.is_alive()
    finally:
        gc.enable()


@pytest.mark.sampled(1)
@pytest.mark.parametrize('is_taken', [True, False])
def test_an_error_keeps_nothing_alive(is_taken: bool) -> None:
    class Broken:
        def __len__(self) -> int:
            return 9

        def __getitem__(self, index: int) -> int:
            if index:
                failing.set()
                raise OSError('gone')
            return index

    failing = threading.Event()
    source = Broken()
    is_dead = weakref.ref(source)
    found = made(source, 1)
    gc.collect()
    gc.disable()
    try:
        next(found)
        assert failing.wait(PATIENCE)
        if is_taken:
            with pytest.raises(OSError, match='gone') as caught:
                next(found)
            traceback.clear_frames(caught.tb)
            del caught
        found.close()
        del found, source
        assert is_dead() is None
    finally:
        gc.enable()


def test_a_thread_may_close_its_own_batches() -> None:
    def source() -> Iterator[int]:
        yield 1
        found.close()
        is_closed.set()
        yield 2

    is_closed = threading.Event()
    found = made(source(), 1)
    assert real(next(found)) == [0]
    assert is_closed.wait(PATIENCE)
    assert len(list(found)) <= 1


ENDING = """
import os, signal, threading, warnings
import jfold as jf
from jfold.data.batches import batches
from jfold.data.prefetch import Prefetcher

def blocked():
    yield 1
    threading.Event().wait()

taken = Prefetcher(iter(range(9)), 2)
next(taken)
with warnings.catch_warnings():
    # JAX has threads of its own, which the child does not use.
    warnings.simplefilter('ignore')
    child = os.fork()
if not child:
    signal.alarm(60)
    try:
        list(taken)
    except RuntimeError as error:
        taken.close()
        os._exit(7 if 'got a fork of it' in str(error) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert list(taken) == [*range(1, 9)]
waiting = Prefetcher(blocked(), 2)
model = jf.compile(jf.Scalar())
building = batches(model, [1.0] * 999, 9, epochs=None, prefetch=1000000)
print(next(waiting), next(building).count)
"""


def test_a_fork_is_told_and_the_interpreter_can_end() -> None:
    """A fork lacks threads; at the end one waits, and another is in its work."""
    root = str(Path(jf.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, '-W', 'error', '-c', ENDING],
        env={'PYTHONPATH': root, 'JAX_PLATFORMS': 'cpu'},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, '1 9\n', '')


def test_a_prefetcher_of_anything() -> None:
    assert list(Prefetcher(iter('abc'), 1)) == ['a', 'b', 'c']
    assert list(Prefetcher(iter(()), 3)) == []
    found = Prefetcher(itertools.count(), 2)
    assert iter(found) is found
    assert list(itertools.islice(found, 500)) == list(range(500))
    found.close()
    assert list(found) == []
    assert list(Prefetcher(iter('ab'), 10**20)) == ['a', 'b']


def test_the_end_is_told_to_all_threads_that_wait() -> None:
    go = threading.Event()
    values = Prefetcher(iter(go.wait, True), 1)  # which ends once `go` is set
    takers = [threading.Thread(target=list, args=(values,), daemon=True) for _ in 'abc']
    for taker in takers:
        taker.start()
    go.set()
    for taker in takers:
        taker.join(PATIENCE)
    assert not any(taker.is_alive() for taker in takers)
