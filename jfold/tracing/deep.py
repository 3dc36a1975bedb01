# SPDX-License-Identifier: Apache-2.0
"""The runner of generated source in its deep form, for data deeper than the stack.

In this form each function of the source is a generator. It yields the generator of each
call it makes, so nested calls take no room on Python's stack.
"""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from typing import Any

# This many nested calls of each function are always allowed. Without a bound, a user's
# function that makes ever new objects to descend into would fill the memory.
MAX_DEPTH = 120_000
# The number of nested calls at which a cycle is first looked for, and from which tuples
# are compared by their items, which takes longer.
FIRST_LOOK, FIRST_LOOK_INSIDE = 1 << 4, 1 << 13


class Endless(Exception):
    """An error: nested calls repeat on the same objects, or exceed `MAX_DEPTH`.

    `language/walk.py` then walks the example again for the error that users see.
    """


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Pause Python's garbage collector within a `with` block or a decorated function.

    Deep data need many waiting generators, none of them garbage. The collector scanned
    them again and again, which took two thirds of the time.
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
    """Run a generator, which calls others by yielding them; return its result.

    Raises:
      Endless: a call leads to a call of the same function on the same objects, or more
        than `MAX_DEPTH` calls of a function are nested. Both are checked at 16 nested
        calls and whenever their number has doubled; the bound, more often.
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
            # A level of the data may take calls of several functions.
            codes = Counter(x.gi_code for x in calls)  # type: ignore[attr-defined]
            most = max(codes.values())
            # A cycle shorter than half of the calls repeats within the later half. One
            # longer than half of the bound is left to the walk that finds the path.
            is_cycle = look < MAX_DEPTH and _repeat(calls[look // 2 :], look)
            if is_cycle or most > MAX_DEPTH:
                raise Endless
            look += min(look, max(MAX_DEPTH + 1 - most, look // 4))


def by_steps(function: Callable[..., Generator[Any, Any, Any]]) -> Callable[..., Any]:
    """Return a function that runs what the generator function `function` returns."""
    return lambda *operands: run(function(*operands))


def identity(x: object) -> Any:
    """Return the id of `x`; of a tuple, the ids of its items.

    Two calls may make a tuple each, of the same objects.
    """
    return (*map(id, x),) if type(x) is tuple else id(x)


def _repeat(calls: list[Generator[Any, Any, Any]], look: int) -> bool:
    """Return whether two of `calls` are of the same function on the same objects."""
    key_of = identity if look >= FIRST_LOOK_INSIDE else id
    seen = set()
    for waiting in calls:
        frame = waiting.gi_frame  # type: ignore[attr-defined]
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount]
        # Parameters named x... hold objects of the data. Others, such as row numbers,
        # do not decide which calls follow.
        objects = [key_of(frame.f_locals[x]) for x in names if x.startswith('x')]
        key = code, *objects
        if objects and key in seen:
            return True
        seen.add(key)
    return False
