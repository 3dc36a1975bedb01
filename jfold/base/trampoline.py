# SPDX-License-Identifier: Apache-2.0
"""Recursion off Python's stack, for what may be nested without limit.

A recursive function is written as a generator: where it would call itself it yields the
generator of that call, and is sent what it returns or is thrown what it raises.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, TypeAlias, TypeVar

T = TypeVar('T')
Steps: TypeAlias = Generator[Any, Any, T]


def run(steps: Steps[T]) -> T:
    """What the outermost call returns."""
    calls: list[Steps[Any]] = [steps]
    value: Any = None
    error: BaseException | None = None
    while calls:
        # What the innermost call yields is another call, which takes its place; what it
        # returns or raises goes to the one below, at the `yield` that waits for it.
        try:
            inner = calls[-1].send(value) if error is None else calls[-1].throw(error)
        except StopIteration as stop:
            calls.pop()
            value, error = stop.value, None
        except BaseException as raised:
            calls.pop()
            value, error = None, raised
        else:
            calls.append(inner)
            value = error = None
    if error is None:
        result: T = value
        return result
    try:
        raise error
    finally:
        error = None  # else its traceback would hold it, and this frame


def in_turn(calls: Iterable[Steps[T]]) -> Steps[list[T]]:
    """What several calls return, each made when the one before it has returned."""
    results = []
    for call in calls:
        results.append((yield call))
    return results
