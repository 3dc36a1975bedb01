# SPDX-License-Identifier: Apache-2.0
"""Printing of blocks and types in pieces, so that large ones can be cut short."""

from __future__ import annotations

import functools
import itertools
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol


class Printed(Protocol):
    """A value that prints in pieces."""

    def _pieces(self) -> Iterator[Any]:
        """Iterate over strings and other values that print in pieces."""


# Characters. A block may be used many times inside itself: its text can be endless.
MOST = 100_000


def full_text(block: Printed) -> str:
    """Return the text of a block, cut to `MOST` characters."""
    return short_text(block, MOST)


def texts(block: Printed) -> Iterator[str]:
    """Iterate over the strings of a block, without recursion."""
    open_ = [block._pieces()]
    while open_:
        piece = next(open_[-1], None)
        if piece is None:
            open_.pop()
        elif isinstance(piece, str):
            yield piece
        else:
            open_.append(piece._pieces())


def short_text(block: Printed, limit: int = 60) -> str:
    """Return the text of a block, cut to `limit`; no more of it is made."""
    parts, length = [], 0
    for part in texts(block):
        parts.append(part)
        length += len(part)
        if length > limit:
            return f'{"".join(parts)[: limit - 3]}...'
    return ''.join(parts)


def in_call(name: str, *parts: Printed) -> Iterator[str | Printed]:
    """Iterate over the pieces of a call with blocks as arguments."""
    yield f'{name}('
    for number, part in enumerate(parts):
        yield from (', ', part) if number else (part,)
    yield ')'


def in_braces(pairs: Iterable[tuple[Any, Printed]]) -> Iterator[str | Printed]:
    """Iterate over the pieces of a dict with blocks as values."""
    yield '{'
    for number, (key, value) in enumerate(pairs):
        yield f'{", " if number else ""}{key!r}: '
        yield value
    yield '}'


def callable_name(fn: object) -> str:
    """Return the name of a callable in prints and among the parameters."""
    inner = fn.func if isinstance(fn, functools.partial) else fn
    name = getattr(inner, '__name__', None) or getattr(inner, 'name', None)
    name = name if isinstance(name, str) else type(inner).__name__
    return 'function' if name == '<lambda>' else str(name)


def table_repr(table: Mapping[Any, Any], limit: int = 4) -> str:
    """Return the text of a mapping, cut after `limit` keys."""
    pairs = itertools.islice(table.items(), limit)
    shown = [f'{reprlib.repr(key)}: {reprlib.repr(value)}' for key, value in pairs]
    return f'{{{", ".join(shown + ["..."] * (len(table) > limit))}}}'
