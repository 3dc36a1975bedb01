# SPDX-License-Identifier: Apache-2.0
"""Columns of Python objects: reading them with a fixed number of calls from Python.

The loops over items run in C wherever what they call is written in C: functions of
Python's own, tables, items of containers, attributes. What is wrong with an item is
found by a second, slower way, taken only after an exception.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jfold.errors import BadItem, instead_of, reason, shown

Array = np.ndarray[Any, Any]


def each(
    fn: Callable[..., Any],
    items: list[Any],
    *more: Any,
    expected: str,
    absent: str = '',
) -> list[Any]:
    """`fn` of each item, and of an item of each of `more`.

    Args:
      expected: of an item, for the error.
      absent: what to do if one lacks a key.

    Raises:
      BadItem: `fn` raised; caused by its exception.
    """
    rest = iter(items)
    try:
        made = list(map(fn, rest, *more))
        if len(made) < len(items):  # StopIteration looks like the end of the items
            raise RuntimeError('the function raised StopIteration')
    except Exception as error:
        index = len(items) - operator.length_hint(rest) - 1
        text = f'expected {expected}, got {shown(items[index])}: {reason(error)}'
        lacks = isinstance(error, KeyError) and isinstance(items[index], Mapping)
        hint = absent if lacks else instead_of(items[index])
        raise BadItem(index, text, hint) from error
    return made


def entries(
    table: dict[Any, Any],
    keys: list[Any],
    expected: Callable[[dict[Any, Any], bool], str],
    *default: Any,
    hint: str = '',
) -> list[Any]:
    """The entry of each key in a table, or else the default, if there is one.

    Raises:
      BadItem: a key has none. `expected(table, hashable)` tells what it had to be, and
        `hint` what to do.
    """
    find = table.get if default else table.__getitem__
    try:
        return each(find, keys, *map(itertools.repeat, default), expected='a key')
    except BadItem as error:
        if not isinstance(error.__cause__, KeyError | TypeError):
            raise
        is_key = isinstance(error.__cause__, KeyError)
        what = expected(table, is_key)
        hint = hint if is_key else 'make a tuple of a list, which can be looked up'
        text = f'expected {what}, got {shown(keys[error.index])}'
        raise BadItem(error.index, text, hint) from None


# ---- fields --------------------------------------------------------------------------


def are_so_long(items: list[Any], length: int) -> bool:
    """Whether all items have a length; a list of lengths is counted fastest."""
    try:
        return list(map(len, items)).count(length) == len(items)
    except Exception:  # objects have no length
        return False


def check_lengths(items: list[Any], most: int) -> None:
    """Refuses items of more than so many items; mappings may have more keys.

    Raises:
      BadItem: one has more.
    """
    try:
        if max(map(len, items), default=0) <= most:
            return
    except Exception:  # objects have no length
        pass
    for index, item in enumerate(items):
        if (length := length_of(item)) > most:
            text = f'expected {count_of(most)}, got {length} in {shown(item)}'
            raise BadItem(index, f'{text}; {PICK}')


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


def fields(items: list[Any], key: Any) -> list[Any]:
    """`item[key]` of each item, or the attribute of one that cannot be subscripted.

    Raises:
      BadItem: an item has neither.
    """
    get: Callable[[Any], Any] = operator.itemgetter(key)
    by_name = by_attribute(key)
    if by_name and have_attributes_alone(items):
        get = by_name
    try:
        made = list(map(get, items))
    except Exception:
        made = []
    if len(made) == len(items):
        return made
    absent = 'put the block in an Optional, if a field may be missing'
    return each(_getter(key), items, expected=f'an item {key!r}', absent=absent)


def fields_or(items: list[Any], key: Any, default: Any) -> list[Any]:
    """The same, or the default of an item that has no such field.

    Raises:
      BadItem: an item has no fields at all.
    """
    if set(map(type, items)) == {dict}:
        return list(map(operator.methodcaller('get', key, default), items))
    get = _getter(key)

    def get_or(item: Any) -> Any:
        try:
            return get(item)
        except ABSENT:
            return default

    return each(get_or, items, expected=f'an item {key!r}')


# What lacks a field raises one of these; what has none, a `TypeError`.
ABSENT = KeyError, IndexError, AttributeError


def by_attribute(key: Any) -> Callable[[Any], Any] | None:
    """Reads the attribute that a key may name."""
    named = isinstance(key, str) and '.' not in key
    return operator.attrgetter(key) if named else None


def have_attributes_alone(items: list[Any]) -> bool:
    """Whether no item could be subscripted by a string."""
    first = items and _has_attributes_alone(type(items[0]))
    return bool(first) and all(map(_has_attributes_alone, set(map(type, items))))


def _has_attributes_alone(kind: type) -> bool:
    by_item = getattr(kind, '__getitem__', None)
    never = by_item is None or by_item is tuple.__getitem__
    # A class may be subscripted by what its metaclass, or it alone, knows.
    return never and not issubclass(kind, type) and not _is_builtin(kind)


def _is_builtin(kind: type) -> bool:
    """Attributes of Python's own types are their methods, never data."""
    return kind.__module__ == 'builtins'


def _getter(key: Any) -> Callable[[Any], Any]:
    def get(item: Any) -> Any:
        try:
            return item[key]
        except TypeError:
            if not isinstance(key, str) or _is_builtin(type(item)):
                raise
            return getattr(item, key)

    return get


# ---- sequences -----------------------------------------------------------------------


class Reread:
    """What was in iterators that can be read once, for whoever reads them again."""

    def __init__(self) -> None:
        # By id, which stays theirs as long as they are kept.
        self._found: dict[int, tuple[Any, list[Any], Exception | None]] = {}

    def __call__(self, item: Any) -> list[Any]:
        """What is or, in one without a length, was in an iterable."""
        if hasattr(type(item), '__len__'):
            return list(item)
        if id(item) not in self._found:
            self._found[id(item)] = item, *_read(item)
        _, made, error = self._found[id(item)]
        if error is not None:
            raise error
        return made


def _read(item: Any) -> tuple[list[Any], Exception | None]:
    try:
        return list(item), None
    except Exception as error:
        return [], error


def flat(items: list[Any], reread: Callable[[Any], Any]) -> tuple[Array, list[Any]]:
    """Iterables as their lengths [items] int64, and what is in them, one after another.

    Args:
      reread: reads an item, of those without a length.

    Raises:
      BadItem: an item is not iterable, or of no order, or fails on the way.
    """
    if any(map(why_no_sequence, set(map(type, items)))):
        _refuse_unordered(items)
    try:
        return _flat(items)
    except Exception:
        return _flat(each(reread, items, expected='something iterable'))


def why_no_sequence(kind: type) -> str:
    """Why values of a type are no sequences, though one can go through them."""
    if issubclass(kind, Mapping):
        return '`InputTransform(lambda x: list(x.values()))`, or of `items`, makes one'
    if issubclass(kind, set | frozenset):
        return 'it has no order: `InputTransform(sorted)` gives it one'
    return ''


def _refuse_unordered(items: list[Any]) -> None:
    for index, item in enumerate(items):
        if why := why_no_sequence(type(item)):
            text = f'expected a sequence, got {shown(item)}; {why}'
            raise BadItem(index, text)


def _flat(items: list[Any]) -> tuple[Array, list[Any]]:
    lengths = np.fromiter(map(len, items), np.int64, len(items))
    made = list(itertools.chain.from_iterable(items))
    if len(made) != lengths.sum():
        raise ValueError('a length is not the number of items')
    return lengths, made


def grouped(lengths: Array, items: list[Any]) -> list[Any]:
    """The inverse of `flat`, with lists."""
    ends = itertools.accumulate(lengths.tolist(), initial=0)
    return [items[a:b] for a, b in itertools.pairwise(ends)]


# ---- choices -------------------------------------------------------------------------


def positions(codes: bytes | list[int], cases: int) -> list[Array]:
    """The positions [?] int64 of each of the numbers 0, ..., cases - 1."""
    if cases > 256:
        array = np.array(codes, np.int32)
    else:
        array = np.frombuffer(bytes(codes), np.uint8)
    if cases < 4:  # then a pass for each is faster than a sort
        return [(array == case).nonzero()[0] for case in range(cases)]
    order = array.argsort(kind='stable')
    ends = np.bincount(array, minlength=cases).cumsum().tolist()
    return [order[a:b] for a, b in itertools.pairwise([0, *ends])]
