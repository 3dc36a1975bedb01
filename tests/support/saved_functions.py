# SPDX-License-Identifier: Apache-2.0
"""Functions and classes of the host that files with models name."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


class Colour(enum.Enum):
    """Known values."""

    RED = 'red'
    BLUE = 'blue'


@dataclass
class Part:
    """A record with records in it."""

    name: str
    colour: Colour
    parts: list[Part]


def kind(tree: Any) -> str:
    """A leaf or a node."""
    return 'leaf' if isinstance(tree, str) else 'node'


def lower(word: str) -> str:
    """As tables have it."""
    return word.lower()


def words(tree: Any) -> list[str]:
    """The words of a tree."""
    if isinstance(tree, str):
        return [tree]
    return [word for part in tree for word in words(part)]
