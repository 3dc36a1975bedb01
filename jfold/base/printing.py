# SPDX-License-Identifier: Apache-2.0
"""Printing of blocks and types piece by piece, so that texts can be cut short.

A piece is a string, or a block or type, whose own pieces stand in its place.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeVar

T = TypeVar('T')


class Printed(Protocol):
    """A protocol of values that print piece by piece: blocks and types."""

    def _pieces(self) -> Iterator[Any]:
        """Iterate over the pieces of the text: strings and `Printed` values."""


# In characters. Blocks share parts, so that a whole text could be exponentially long.
MOST = 100_000


def full_text(block: Printed) -> str:
    """Return the text of a block or type, cut to `MOST` characters."""
    return short_text(block, MOST)


def short_text(block: Printed, limit: int = 60) -> str:
    """Return the text of a block or type, cut to `limit` characters.

    Pieces behind the cut are never made. It needs no recursion.
    """
    text, open_ = '', [block._pieces()]
    while open_ and len(text) <= limit:
        piece = next(open_[-1], None)
        if piece is None:
            open_.pop()
        elif isinstance(piece, str):
            text += piece
        else:
            open_.append(piece._pieces())
    return text if len(text) <= limit else f'{text[: limit - 3]}...'


def enclosed(begin: str, parts: Iterable[tuple[str, T]], end: str) -> Iterator[T | str]:
    """Iterate over `begin`, pairs ('x: ', a) of `parts` with commas, and `end`."""
    yield begin
    for number, (label, part) in enumerate(parts):
        yield f'{", " if number else ""}{label}'
        yield part
    yield end


def in_call(name: str, *parts: object, **options: object) -> Iterator[str | Printed]:
    """Iterate over the pieces of `name(a, b, key=c)`, for blocks and other values.

    Of options, those that are `None` or `False` are left out.
    """
    named = ((f'{key}=', x) for key, x in options.items())
    given = ((label, x) for label, x in named if x is not None and x is not False)
    every = itertools.chain((('', x) for x in parts), given)
    shown = ((k, x if hasattr(x, '_pieces') else repr(x)) for k, x in every)
    return enclosed(f'{name}(', shown, ')')


def in_braces(pairs: Iterable[tuple[Any, Printed]]) -> Iterator[str | Printed]:
    """Iterate over the pieces of `{key: value, ...}`; `pairs` are (key, value)."""
    return enclosed('{', ((f'{key!r}: ', value) for key, value in pairs), '}')


def callable_name(fn: object) -> str:
    """Return the name of a callable for prints and as the key of its parameters.

    It is the `__name__` or `name` of the callable or of the function of a `partial`,
    else the class name; 'function' for a lambda.
    """
    inner = fn.func if isinstance(fn, functools.partial) else fn
    name = getattr(inner, '__name__', None) or getattr(inner, 'name', None)
    name = name if isinstance(name, str) else type(inner).__name__
    # A line break, or a code of a terminal, would break tables apart.
    name = name if name.isprintable() else repr(name)[1:-1]
    return 'function' if name == '<lambda>' else str(name)
