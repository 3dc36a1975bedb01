# SPDX-License-Identifier: Apache-2.0
"""What may be asked of Python objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What lacks a field raises one of these; what has none, a `TypeError`.
ABSENT = KeyError, IndexError, AttributeError
PICK = 'a record of `{0: ..., 2: ...}` reads some of them alone'


def length_of(item: Any) -> int:
    """How many items a value has; 0 without a length, and for a mapping."""
    try:
        return 0 if isinstance(item, Mapping) else len(item)
    except Exception:
        return 0


def count_of(number: int) -> str:
    """So many items, in words."""
    return f'{number} item' if number == 1 else f'{number} items'


def why_no_sequence(kind: type) -> str:
    """Why values of a type are no sequences, though one can go through them."""
    if issubclass(kind, Mapping):
        return '`InputTransform(lambda x: list(x.values()))`, or of `items`, makes one'
    if issubclass(kind, set | frozenset):
        return 'it has no order: `InputTransform(sorted)` gives it one'
    return ''
