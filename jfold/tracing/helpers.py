# SPDX-License-Identifier: Apache-2.0
"""What generated source calls: reading data strictly.

What does not fit raises anything; `jfold.language.walk` tells afterwards what is wrong.
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
    """`x[key]`, or the attribute of what cannot be subscripted."""
    try:
        return x[key]
    except TypeError:
        # Attributes of Python's own types are their methods, never data.
        if not isinstance(key, str) or type(x).__module__ == 'builtins':
            raise
        return getattr(x, key)


def field_or(x: object, key: object, default: object) -> object:
    """The same, or the default of what lacks it."""
    try:
        return field(x, key)
    except ABSENT:
        return default


def items(x: Any, count: int) -> list[Any]:
    """The first items, if there are no more."""
    at_most(x, count)
    return [x[k] for k in range(count)]


def columns(xs: Sequence[Any], count: int) -> list[list[Any]]:
    """The first items of each, the second ones, and so on."""
    for x in xs:
        at_most(x, count)
    return [[x[k] for x in xs] for k in range(count)]


def made_before(known: dict[Any, Any], key: object) -> Any:
    """The value of a key, where the table itself stands for what is being made."""
    if known[key] is known:
        raise ValueError('a circle')
    return known[key]


def at_most(x: object, count: int) -> None:
    """Refuses more items than are read."""
    if length_of(x) > count:
        raise TypeError(f'more than {count} items')


def at_most_items(n: int, count: int) -> None:
    """Refuses a longer sequence."""
    if n > count:
        raise ValueError(f'more than {count} items')


def sequence(x: object) -> list[Any]:
    """The items of what has an order."""
    if why_no_sequence(type(x)):
        raise TypeError('no sequence')
    return listed(x)


def readable(x: object) -> Any:
    """What a function of the data may be given, which it could use up otherwise."""
    if why_no_value(type(x)):
        raise TypeError('can be read only once')
    return x


def all_readable(xs: Sequence[Any]) -> Sequence[Any]:
    """The same of several."""
    if any(map(why_no_value, set(map(type, xs)))):
        raise TypeError('can be read only once')
    return xs


def same_length(*lengths: int) -> int:
    """The length of sequences that are of one length."""
    if len({*lengths}) > 1:
        raise ValueError(f'sequences of lengths {lengths}')
    return lengths[0]


def numbers_of(x: object, count: int) -> list[int]:
    """A list of ints, as numbers of so many items."""
    return [range(count)[k] for k in ints_of(x).tolist()]


def grouped(
    values: Iterable[Any], groups: Iterable[int], count: int
) -> list[list[Any]]:
    """Values by the number of their group."""
    made: list[list[Any]] = [[] for _ in range(count)]
    for value, group in zip(values, groups, strict=True):
        made[group].append(value)
    return made


def made_with_rest(made: list[Any], left: Sequence[Any]) -> list[Any]:
    """What pairs were made into, and the last item, if it had no partner."""
    if len(left) % 2:
        made.append(left[-1])
    return made


def groups_of(values: Sequence[Any], sizes: int | Sequence[int]) -> list[Any]:
    """Neighbours, as many as the size, and what is left; or of several sizes always as
    many as the largest that is left."""
    if isinstance(sizes, int):
        return [values[k : k + sizes] for k in range(0, len(values), sizes)]
    made, begin = [], 0
    while (rest := len(values) - begin) > 0:
        size = max((size for size in sizes if size <= rest), default=1)
        made.append(values[begin : begin + size])
        begin += size
    return made


PLAIN = frozenset({int, float, str, bool, tuple, list, dict, type(None)})
HELPERS: dict[str, Any] = {
    'PLAIN': PLAIN,
} | {
    fn.__name__: fn
    for fn in (
        *(field, field_or, made_before, items, columns, at_most, at_most_items),
        *(sequence, same_length, index_of, numbers_of, grouped, made_with_rest),
        *(groups_of, readable, all_readable),
    )
}
