# SPDX-License-Identifier: Apache-2.0
"""The functions that generated source calls to read data strictly.

They raise any exception if data do not fit: `jfold.language.walk` then finds the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from jfold.tracing.objects import (
    ABSENT,
    index_of,
    ints_of,
    length_of,
    listed,
    why_no_sequence,
    why_no_value,
)


class Numbers(dict[Any, int]):
    """A table whose entries are numbers of constants."""


def field(x: Any, key: Any) -> object:
    """Return `x[key]`, or the attribute of an `x` without subscripts."""
    try:
        return x[key]
    except TypeError:
        # Attributes of Python's own types are their methods, never data.
        if not isinstance(key, str) or type(x).__module__ == 'builtins':
            raise
        return getattr(x, key)


def field_or(x: object, key: object, default: object) -> object:
    """Return a field, or the default if `x` lacks it."""
    try:
        return field(x, key)
    except ABSENT:
        return default


def items(x: Any, count: int) -> list[Any]:
    """Return the items of `x`, which has no more than `count`."""
    at_most(x, count)
    return [x[k] for k in range(count)]


def columns(xs: Sequence[Any], count: int) -> list[list[Any]]:
    """Return the first items of all `xs`, the second ones, and so on."""
    for x in xs:
        at_most(x, count)
    return [[x[k] for x in xs] for k in range(count)]


def made_before(known: dict[Any, Any], key: object) -> Any:
    """Return the value of a key; refuse one that is still being made."""
    if known[key] is known:  # the mark of an entry that is being made
        raise ValueError('a circle')
    return known[key]


def at_most(x: object, count: int) -> None:
    """Refuse more items than are read."""
    if length_of(x) > count:
        raise TypeError(f'more than {count} items')


def at_most_items(n: int, count: int) -> None:
    """Refuse a longer sequence."""
    if n > count:
        raise ValueError(f'more than {count} items')


def sequence(x: object) -> list[Any]:
    """Return the items of an ordered collection."""
    if why_no_sequence(type(x)):
        raise TypeError('no sequence')
    return listed(x)


def readable(x: object) -> Any:
    """Return an argument for a user's function, if that cannot use it up."""
    if why_no_value(type(x)):
        raise TypeError('can be read only once')
    return x


def all_readable(xs: Sequence[Any]) -> Sequence[Any]:
    """Return several arguments, if no function can use them up."""
    if any(map(why_no_value, set(map(type, xs)))):
        raise TypeError('can be read only once')
    return xs


def same_length(*lengths: int) -> int:
    """Return the length of sequences that have one length."""
    if len({*lengths}) > 1:
        raise ValueError(f'sequences of lengths {lengths}')
    return lengths[0]


def numbers_of(x: object, count: int) -> list[int]:
    """Return a list of ints, as indices of `count` items."""
    return [range(count)[k] for k in ints_of(x).tolist()]


def grouped(
    values: Iterable[Any], groups: Iterable[int], count: int
) -> list[list[Any]]:
    """Return values in lists, by the number of their group."""
    result: list[list[Any]] = [[] for _ in range(count)]
    for value, group in zip(values, groups, strict=True):
        result[group].append(value)
    return result


def made_with_rest(results: list[Any], values: Sequence[Any]) -> list[Any]:
    """Return the results of pairs, and the last item if it had no partner."""
    if len(values) % 2:
        results.append(values[-1])
    return results


def groups_of(values: Sequence[Any], sizes: int | Sequence[int]) -> list[Any]:
    """Return neighbours in groups of a size, and what is left.

    Of several sizes, each group has the largest that is left.
    """
    if isinstance(sizes, int):
        return [values[k : k + sizes] for k in range(0, len(values), sizes)]
    result, begin = [], 0
    while (remaining := len(values) - begin) > 0:
        size = max((size for size in sizes if size <= remaining), default=1)
        result.append(values[begin : begin + size])
        begin += size
    return result


PLAIN = frozenset({int, float, str, bool, tuple, list, dict, type(None)})
HELPERS: dict[str, Any] = {'PLAIN': PLAIN} | {
    fn.__name__: fn
    for fn in (
        *(field, field_or, made_before, items, columns, at_most, at_most_items),
        *(sequence, same_length, index_of, numbers_of, grouped, made_with_rest),
        *(groups_of, readable, all_readable),
    )
}
