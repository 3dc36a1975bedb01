# SPDX-License-Identifier: Apache-2.0
"""The runner of source whose calls are yielded, for data deeper than the stack."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Generator, Iterator
from typing import Any

# Data may be nested as deep as this; beyond it, those that functions make without end
# would fill the memory.
MAX_DEPTH = 120_000
FIRST_LOOK = 1 << 12  # calls inside each other, before it is asked for a circle


class Endless(Exception):
    """Calls inside each other never end, or have not for very long."""


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Pause the garbage collector.

    Calls that wait are many in deep data and none of them garbage: looking through them
    again and again took two thirds of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@uncollected()
def run(call: Generator[Any, Any, Any]) -> Any:
    """Run a call and each call that it yields, which is sent its result.

    Raises:
      Endless: a call leads to one on the same objects, or the data are too deep.
    """
    calls, value, look = [call], None, FIRST_LOOK
    while True:
        try:
            calls.append(calls[-1].send(value))
            value = None
        except StopIteration as stop:
            calls.pop()
            value = stop.value
            if not calls:
                return value
            continue
        if len(calls) >= look:
            look *= 2
            _check(calls)


def _check(calls: list[Generator[Any, Any, Any]]) -> None:
    """Refuses calls of which one is on the objects of another that led to it."""
    seen = set()
    for each in calls[1:]:
        frame = each.gi_frame  # type: ignore[attr-defined]
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount]
        # Whatever is not an object cannot decide how a call goes on.
        found = [id(frame.f_locals[x]) for x in names if x.startswith('x')]
        key = code, *found
        if found and key in seen:
            raise Endless
        seen.add(key)
    if len(calls) > MAX_DEPTH:
        raise Endless
