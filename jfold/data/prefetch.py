# SPDX-License-Identifier: Apache-2.0
"""A `Prefetcher`: an iterator that runs on a thread, ahead of its consumer."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, TypeVar, cast

T = TypeVar('T')

UNLIMITED = 1 << 16  # values ahead; more would be no limit
EXIT_SECONDS = 2.0  # how long the end of the interpreter waits for a thread


class _Channel:
    """The queues between a `Prefetcher` and its thread.

    The thread refers to them alone, so that a dropped prefetcher can be collected.
    """

    def __init__(self, size: int) -> None:
        # One ticket for each value that the thread may compute now.
        self.tickets: SimpleQueue[None] = SimpleQueue()
        # Pairs of a value and `None`, at the end `None` and the error.
        self.results: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self.stopped = False
        for _ in range(min(size, UNLIMITED)):
            self.tickets.put(None)

    def stop(self) -> None:
        """Make the thread end after the value that it is computing."""
        self.stopped = True  # no lock: a finalizer may run while one is held
        self.tickets.put(None)


class Prefetcher(Iterator[T]):
    """An iterator whose values a thread takes, ahead of time, from an inner iterator.

    An error of the inner iterator is raised after the values before it. The thread ends
    with the inner iterator, by `close`, or when the prefetcher is garbage-collected.

    Args:
      iterator: the inner iterator; only the thread uses it.
      size: the most values that may be ready or in computation.
    """

    def __init__(self, iterator: Iterator[T], size: int) -> None:
        self._channel = channel = _Channel(size)
        self._ended = False
        self._thread = threading.Thread(
            target=_fill, args=(channel, iterator), name='jfold.Prefetcher', daemon=True
        )
        self._stop = weakref.finalize(self, channel.stop)
        self._stop.atexit = False  # `_stop_all` does it, and waits
        _running[self._thread] = channel
        self._thread.start()

    def __next__(self) -> T:
        if self._ended:
            raise StopIteration
        results = self._channel.results
        if results.empty() and not self._thread.is_alive():  # no value would come
            raise RuntimeError(
                'expected to be in the process that began to take these values, got a '
                'fork of it, where the thread that makes them does not run: make the '
                'batches in the process that takes them'
            )
        value, error = results.get()
        if error is None:
            self._channel.tickets.put(None)
            return cast(T, value)
        self._ended = True
        results.put((None, StopIteration()))  # for another thread that waits here
        try:
            raise error
        finally:
            del error  # it refers to this frame: a cycle

    def close(self) -> None:
        """End the thread and wait for it; from then on the iterator is exhausted."""
        self._ended = True
        self._stop()
        if self._thread is not threading.current_thread():
            self._thread.join()


_running: dict[threading.Thread, _Channel] = {}  # to end at exit


def _fill(channel: _Channel, iterator: Iterator[Any]) -> None:
    """Put an iterator's values, and the error that ends it, into a channel."""
    try:
        while True:
            channel.tickets.get()
            if channel.stopped:
                raise StopIteration
            channel.results.put((next(iterator), None))
    except BaseException as error:  # also the end of the iterator
        channel.results.put((None, error))
    finally:
        _running.pop(threading.current_thread(), None)
        del channel, iterator  # an error refers to this frame, and so to these


@atexit.register
def _stop_all() -> None:
    """Stop all threads at exit, waiting `EXIT_SECONDS` for each.

    A thread must not be cut off in native code.
    """
    for channel in tuple(_running.values()):
        channel.stop()
    for thread in filter(threading.Thread.is_alive, tuple(_running)):
        thread.join(EXIT_SECONDS)
