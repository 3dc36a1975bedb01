# SPDX-License-Identifier: Apache-2.0
"""The path of a block in an expression, as in errors: `Pipe[1].Record['left']`."""

from __future__ import annotations

from typing import NoReturn

from jfold.base.errors import elide
from jfold.base.printing import short_text
from jfold.combinators import Block


def path_of(where: str, block: Block) -> str:
    """Return a block's path: `where`, a dot, and the beginning of the block's text."""
    return f'{where}.{short_text(block)}' if where else short_text(block)


def join_path(where: str, label: str) -> str:
    """Return `where.label`, cut in the middle beyond 1200 characters."""
    text = f'{where}.{label}' if where else label
    return elide(text, 1200)


def fail(path: object, expected: str, got: str, hint: str = '') -> NoReturn:
    """Raise a `TypeError` that reads 'path: expected ..., got ...; hint'.

    Args:
      path: the path of a block, or its use, which prints as its path.
    """
    raise TypeError(f'{path}: expected {expected}, got {got}{hint and f"; {hint}"}')
