# SPDX-License-Identifier: Apache-2.0
"""Questions about the Python objects that examples are made of."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from jfold.base.errors import MASKED, has_masked

# Raised for a missing field; objects without any fields raise `TypeError`.
ABSENT = KeyError, IndexError, AttributeError
PICK = 'a record of `{0: ..., 2: ...}` reads some of them alone'


def length_of(item: Any) -> int:
    """Return the number of items; 0 without a length, and for a mapping."""
    try:
        return 0 if isinstance(item, Mapping) else len(item)
    except Exception:
        return 0


def count_of(number: int) -> str:
    """Return a number of items in words."""
    return f'{number} item' if number == 1 else f'{number} items'


def why_no_sequence(type_: type) -> str:
    """Return why values of an iterable type are no sequences; '' if they are."""
    if issubclass(type_, Mapping):
        return '`InputTransform(lambda x: list(x.values()))`, or of `items`, makes one'
    if issubclass(type_, set | frozenset):
        return 'it has no order: `InputTransform(sorted)` gives it one'
    return why_no_value(type_)


# Two blocks may read one value, and the second would find it empty.
READ_ONCE = 'it can be read only once: make a list of it, `list(...)`, where it is made'


def why_no_value(type_: type) -> str:
    """Return why values of a type are not passed to functions; '' if they are."""
    return READ_ONCE if hasattr(type_, '__next__') else ''


def listed(item: Any) -> list[Any]:
    """Return the items of an iterable, which may lack a length.

    Raises:
      TypeError: it can be read only once.
    """
    iterator = iter(item)
    if iterator is iter(item):  # of an iterator
        raise TypeError(READ_ONCE)
    return list(iterator)


def index_of(value: Any) -> int:
    """Return a value as an index, as `operator.index` does, unless it is masked.

    Raises:
      TypeError: it is no index.
    """
    if has_masked([value]):
        raise TypeError(MASKED)
    return operator.index(value)


def ints_of(numbers: Any) -> np.ndarray[Any, Any]:
    """Return a list, an array or another iterable of ints as int64.

    Raises:
      TypeError: it is something else.
    """
    if not hasattr(type(numbers), '__len__'):
        numbers = listed(numbers)
    if has_masked([numbers]):
        raise TypeError(MASKED)
    array = np.asarray(numbers)
    if array.ndim != 1 or (array.size and array.dtype.kind not in 'iu'):
        raise TypeError(f'they are {array.dtype}{list(array.shape)}')
    return array.astype(np.int64)
