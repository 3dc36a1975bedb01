# SPDX-License-Identifier: Apache-2.0
"""The functions that generated source calls to read data strictly.

The type and text of the errors raised here do not matter to users: the example is then
read again by `jfold.language.walk`, which finds the cause.
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
    """A dict from labels and other data to the rows of a program's constants."""


def field(x: Any, key: Any) -> object:
    """Return `x[key]`, or attribute `key` of an `x` without subscripts.

    Raises:
      KeyError, IndexError, AttributeError: `x` lacks this field.
      TypeError: `x` has no fields of this kind at all.
    """
    try:
        return x[key]
    except TypeError:
        # Attributes of Python's own types are their methods, never data.
        if not isinstance(key, str) or type(x).__module__ == 'builtins':
            raise
        return getattr(x, key)


def field_or(x: object, key: object, default: object) -> object:
    """Return `field(x, key)`, or the default if `x` lacks this field."""
    try:
        return field(x, key)
    except ABSENT:
        return default


def items(x: Any, count: int) -> list[Any]:
    """Return a list of `x[0]` to `x[count - 1]`.

    Raises:
      TypeError: `x` has more items, and is no mapping.
      IndexError, KeyError: `x` lacks an item.
    """
    at_most(x, count)
    return [x[k] for k in range(count)]


def columns(xs: Sequence[Any], count: int) -> list[list[Any]]:
    """Return `count` lists: the first items of all `xs`, the second items, and so on.

    Raises as `items` does for each of `xs`.
    """
    for x in xs:
        at_most(x, count)
    return [[x[k] for x in xs] for k in range(count)]


def made_before(known: dict[Any, Any], key: object) -> Any:
    """Return `known[key]`; raise ValueError if that value is still being computed.

    An unfinished value that is read again means that the data contain themselves.
    """
    if known[key] is known:  # the mark of a value that is being computed
        raise ValueError('a circle')
    return known[key]


def at_most(x: object, count: int) -> None:
    """Raise TypeError if `x`, unless a mapping, has more than `count` items."""
    if length_of(x) > count:
        raise TypeError(f'more than {count} items')


def at_most_items(n: int, count: int) -> None:
    """Raise ValueError if a sequence of length `n` has more than `count` items."""
    if n > count:
        raise ValueError(f'more than {count} items')


def sequence(x: object) -> list[Any]:
    """Return the items of an ordered iterable as a list.

    Raises:
      TypeError: `x` is a mapping, a set, an iterator or no iterable.
    """
    if why_no_sequence(type(x)):
        raise TypeError('no sequence')
    return listed(x)


def readable(x: object) -> Any:
    """Return `x`, or raise TypeError for an iterator, which can be read only once."""
    if why_no_value(type(x)):
        raise TypeError('can be read only once')
    return x


def all_readable(xs: Sequence[Any]) -> Sequence[Any]:
    """Return `xs`, or raise TypeError if one is an iterator, readable only once."""
    if any(map(why_no_value, set(map(type, xs)))):
        raise TypeError('can be read only once')
    return xs


def same_length(*lengths: int) -> int:
    """Return the common length of sequences; raise ValueError if lengths differ."""
    if len({*lengths}) > 1:
        raise ValueError(f'sequences of lengths {lengths}')
    return lengths[0]


def numbers_of(x: object, count: int) -> list[int]:
    """Return ints as non-negative indices of `count` items; -1 stands for the last.

    Raises:
      TypeError: `x` is no iterable of ints, or an iterator.
      IndexError: an int is out of range.
    """
    return [range(count)[k] for k in ints_of(x).tolist()]


def grouped(
    values: Iterable[Any], groups: Iterable[int], count: int
) -> list[list[Any]]:
    """Return `count` lists: list g holds the values whose entry in `groups` is g.

    Raises:
      ValueError: there are not as many values as entries in `groups`.
    """
    result: list[list[Any]] = [[] for _ in range(count)]
    for value, group in zip(values, groups, strict=True):
        result[group].append(value)
    return result


def made_with_rest(results: list[Any], values: Sequence[Any]) -> list[Any]:
    """Append the unpaired last item of an odd number of `values` to `results`.

    Return `results`, which holds what was made of the pairs of `values`.
    """
    if len(values) % 2:
        results.append(values[-1])
    return results


def groups_of(values: Sequence[Any], sizes: int | Sequence[int]) -> list[Any]:
    """Cut `values` into slices of length `sizes`, or of lengths chosen from `sizes`.

    With one size, the last slice may be shorter. With several, each slice has the
    largest size that the rest still fills, or 1.
    """
    if isinstance(sizes, int):
        return [values[k : k + sizes] for k in range(0, len(values), sizes)]
    result, begin = [], 0
    while (remaining := len(values) - begin) > 0:
        size = max((size for size in sizes if size <= remaining), default=1)
        result.append(values[begin : begin + size])
        begin += size
    return result


# Types of arguments for which generated source skips the call of `readable`.
PLAIN = frozenset({int, float, str, bool, tuple, list, dict, type(None)})
# The global names of all generated source.
HELPERS: dict[str, Any] = {'PLAIN': PLAIN} | {
    fn.__name__: fn
    for fn in (
        *(field, field_or, made_before, items, columns, at_most, at_most_items),
        *(sequence, same_length, index_of, numbers_of, grouped, made_with_rest),
        *(groups_of, readable, all_readable),
    )
}
