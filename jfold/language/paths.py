# SPDX-License-Identifier: Apache-2.0
"""Where a block is in an expression, as errors tell it: `Pipe[1].Record['left']`."""

from __future__ import annotations

from typing import NoReturn

from jfold.base.errors import middle_out
from jfold.base.printing import short
from jfold.combinators import Block


def path_of(where: str, block: Block) -> str:
    """The way to a block, and the beginning of what it prints as."""
    return f'{where}.{short(block)}' if where else short(block)


def further(where: str, label: str) -> str:
    """A longer way; of one that nobody would read, the middle is left out."""
    text = f'{where}.{label}' if where else label
    return middle_out(text, 1200)


def fail(path: object, expected: str, got: str, hint: str = '') -> NoReturn:
    """Raises the error that names a block, by what prints as its path, what it
    expects and what it gets."""
    raise TypeError(f'{path}: expected {expected}, got {got}{hint and f"; {hint}"}')
