# SPDX-License-Identifier: Apache-2.0
"""The tests and conversions of the Python objects that examples are made of."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from jfold.base.errors import MASKED, has_masked

# The errors of a missing field; objects without any fields raise `TypeError`.
ABSENT = KeyError, IndexError, AttributeError
PICK = 'a record of `{0: ..., 2: ...}` reads some of them alone'


def length_of(item: Any) -> int:
    """Return `len(item)`; 0 for a mapping, or where `len` fails."""
    try:
        return 0 if isinstance(item, Mapping) else len(item)
    except Exception:
        return 0


def count_of(number: int) -> str:
    """Return a number of items as text, such as '1 item' or '2 items'."""
    return f'{number} item' if number == 1 else f'{number} items'


def why_no_sequence(type_: type) -> str:
    """Return a hint on an iterable type that is no sequence; '' for a sequence."""
    if issubclass(type_, Mapping):
        return '`InputTransform(lambda x: list(x.values()))`, or of `items`, makes one'
    if issubclass(type_, set | frozenset):
        return 'it has no order: `InputTransform(sorted)` gives it one'
    return why_no_value(type_)


# Iterators are refused: two blocks may read one, and the second would find it empty.
READ_ONCE = 'it can be read only once: make a list of it, `list(...)`, where it is made'


def why_no_value(type_: type) -> str:
    """Return a hint for iterators, which can be read only once; else ''."""
    return READ_ONCE if hasattr(type_, '__next__') else ''


def listed(item: Any) -> list[Any]:
    """Return the items of an iterable, with or without a length, as a list.

    Raises:
      TypeError: `item` is no iterable, or an iterator, which can be read only once.
    """
    iterator = iter(item)
    if iterator is iter(item):  # an iterator is its own iterator
        raise TypeError(READ_ONCE)
    return list(iterator)


def index_of(value: Any) -> int:
    """Return `operator.index(value)`; raise TypeError for a masked NumPy value, too."""
    if has_masked([value]):
        raise TypeError(MASKED)
    return operator.index(value)


def ints_of(numbers: Any) -> np.ndarray[Any, Any]:
    """Return a list, an array or another iterable of ints as an array [n] int64.

    Raises:
      TypeError: `numbers` is something else, masked, or an iterator.
    """
    if not hasattr(type(numbers), '__len__'):
        numbers = listed(numbers)
    if has_masked([numbers]):
        raise TypeError(MASKED)
    array = np.asarray(numbers)
    if array.ndim != 1 or (array.size and array.dtype.kind not in 'iu'):
        raise TypeError(f'they are {array.dtype}{list(array.shape)}')
    return array.astype(np.int64)
