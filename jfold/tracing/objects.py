# SPDX-License-Identifier: Apache-2.0
"""What may be asked of Python objects."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from jfold.base.errors import MASKED, some_masked

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
    return why_no_value(kind)


# Two blocks may read one value, and whoever comes second would find it empty.
READ_ONCE = 'it can be read only once: make a list of it, `list(...)`, where it is made'


def why_no_value(kind: type) -> str:
    """Why values of a type are given to no function of the data."""
    return READ_ONCE if hasattr(kind, '__next__') else ''


def listed(item: Any) -> list[Any]:
    """What is in an iterable, also in one without a length.

    Raises:
      TypeError: it can be read only once.
    """
    found = iter(item)
    if found is iter(item):
        raise TypeError(READ_ONCE)
    return list(found)


def index_of(value: Any) -> int:
    """A value as an index, as `operator.index` takes it, unless it is masked.

    Raises:
      TypeError: it is none.
    """
    if some_masked([value]):
        raise TypeError(MASKED)
    return operator.index(value)


def ints_of(numbers: Any) -> np.ndarray[Any, Any]:
    """A list, an array or another iterable of ints.

    Raises:
      TypeError: it is something else.
    """
    if not hasattr(type(numbers), '__len__'):
        numbers = listed(numbers)
    if some_masked([numbers]):
        raise TypeError(MASKED)
    made = np.asarray(numbers)
    if made.ndim != 1 or (made.size and made.dtype.kind not in 'iu'):
        raise TypeError(f'they are {made.dtype}{list(made.shape)}')
    return made.astype(np.int64)
