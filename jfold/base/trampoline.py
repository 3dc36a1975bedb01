# SPDX-License-Identifier: Apache-2.0
"""Recursion without Python's stack, or with more of it, for values that are nested.

A recursive function is written as a generator. Where it would call itself, it yields
the generator of that call; `run` sends back its result, or throws in its error. Any
other value that it yields is sent back unchanged.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
from collections.abc import Generator, Iterable, Iterator
from types import GeneratorType
from typing import Any, TypeAlias, TypeVar

T = TypeVar('T')
Steps: TypeAlias = Generator[Any, Any, T]
_LIMIT: Any = threading.RLock()  # all threads share the recursion limit
TALL = 10_000  # nested Python calls; each level of blocks takes four, and C stack
MOST_CALLS = 250_000  # nested in functions of users, which might never end


def _renew() -> None:
    """Release the lock in a forked process, unless the thread that forked holds it."""
    if not _LIMIT._is_owned():
        _LIMIT._at_fork_reinit()


if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=_renew)


class TooDeep(Exception):
    """An error: more calls are nested than `run` was told to allow."""


def run(steps: Steps[T], most: float = math.inf) -> T:
    """Run `steps`, the generator of a recursive function; return its result.

    Raise TooDeep where more than `most` calls are nested.
    """
    calls: list[Steps[Any]] = [steps]
    value: Any = None
    error: BaseException | None = None
    while calls:
        # A call that the innermost one yields goes on top of the stack. A result or an
        # error goes to the call below, at the `yield` that waits for it.
        try:
            inner = calls[-1].send(value) if error is None else calls[-1].throw(error)
        except StopIteration as stop:
            calls.pop()
            value, error = stop.value, None
        except BaseException as raised:
            calls.pop()
            value, error = None, raised
        else:
            error = None
            if isinstance(inner, GeneratorType):
                if len(calls) >= most:
                    raise TooDeep
                calls.append(inner)
                value = None
            else:
                value = inner
    if error is None:
        result: T = value
        return result
    try:
        raise error
    finally:
        error = None  # or error, traceback and this frame form a reference cycle


def in_turn(calls: Iterable[Steps[T]]) -> Steps[list[T]]:
    """Run several calls in order: `results = yield in_turn(calls)`."""
    results = []
    for call in calls:
        results.append((yield call))
    return results


@contextlib.contextmanager
def tall_stack() -> Iterator[None]:
    """Increase Python's recursion limit inside a `with`; reaching it is a TypeError."""
    with _LIMIT:
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(max(before, TALL))
        try:
            yield
        except RecursionError:
            raise TypeError(
                'expected an expression that is nested less deep, got more blocks '
                'inside each other than Python has room for; make parts of it '
                'declarations, of which some hundred may lead from one to the next'
            ) from None
        finally:
            sys.setrecursionlimit(before)
