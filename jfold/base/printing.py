# SPDX-License-Identifier: Apache-2.0
"""How blocks and types print: in pieces, so that nobody prints all of a large one."""

from __future__ import annotations

import functools
import itertools
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol


class Printed(Protocol):
    """What gives its text in pieces."""

    def _pieces(self) -> Iterator[Any]:
        """Strings, and what else prints in pieces."""


MOST = 100_000  # characters: of what is used many times inside itself, text has no end


def in_full(block: Printed) -> str:
    """What it prints as; the beginning of what nobody could read."""
    return short(block, MOST)


def texts(block: Printed) -> Iterator[str]:
    """What a block prints as, in parts made one by one, without recursion."""
    open_ = [block._pieces()]
    while open_:
        piece = next(open_[-1], None)
        if piece is None:
            open_.pop()
        elif isinstance(piece, str):
            yield piece
        else:
            open_.append(piece._pieces())


def short(block: Printed, limit: int = 60) -> str:
    """The beginning of what a block prints as; no more of a large one is made."""
    parts, length = [], 0
    for part in texts(block):
        parts.append(part)
        length += len(part)
        if length > limit:
            return f'{"".join(parts)[: limit - 3]}...'
    return ''.join(parts)


def in_call(name: str, *parts: Printed) -> Iterator[str | Printed]:
    """The pieces of a call of blocks."""
    yield f'{name}('
    for number, part in enumerate(parts):
        yield from (', ', part) if number else (part,)
    yield ')'


def in_braces(pairs: Iterable[tuple[Any, Printed]]) -> Iterator[str | Printed]:
    """The pieces of a dict with blocks as values."""
    yield '{'
    for number, (key, value) in enumerate(pairs):
        yield f'{", " if number else ""}{key!r}: '
        yield value
    yield '}'


def callable_name(fn: object) -> str:
    """What a callable is called in prints and as a key of the parameters."""
    inner = fn.func if isinstance(fn, functools.partial) else fn
    given = getattr(inner, '__name__', None) or getattr(inner, 'name', None)
    name = given if isinstance(given, str) else type(inner).__name__
    return 'function' if name == '<lambda>' else str(name)


def shown_table(table: Mapping[Any, Any], limit: int = 4) -> str:
    """A mapping, cut after so many keys."""
    pairs = itertools.islice(table.items(), limit)
    shown = [f'{reprlib.repr(key)}: {reprlib.repr(value)}' for key, value in pairs]
    return f'{{{", ".join(shown + ["..."] * (len(table) > limit))}}}'
