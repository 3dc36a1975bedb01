# SPDX-License-Identifier: Apache-2.0
"""The functions that generated source and walks call to read data strictly.

What does not fit raises an error. Its type and text do not matter to users where source
raises it: the example is then read again by `jfold.language.walk`, to find the cause.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jfold.base.errors import MASKED, has_masked
from jfold.tracing.deep import by_steps

# The errors of a missing field; objects without any fields raise `TypeError`.
ABSENT = KeyError, IndexError, AttributeError
PICK = 'a record of `{0: ..., 2: ...}` reads some of them alone'
# Iterators are refused: two blocks may read one, and the second would find it empty.
READ_ONCE = 'it can be read only once: make a list of it, `list(...)`, where it is made'
# Functions that take no item out of an iterator, so they may be called on one.
READS_NO_ITEMS = type, len, bool, int, float, str, repr, id, abs


class Numbers(dict[Any, int]):
    """A dict from items of data to the row indices of a program's constants."""


# ---- sequences and ints --------------------------------------------------------------


def length_of(item: Any) -> int:
    """Return `len(item)`; 0 for a mapping, or where `len` fails."""
    try:
        return 0 if isinstance(item, Mapping) else len(item)
    except (RecursionError, MemoryError):  # it has a length, which others may read
        raise
    except Exception:
        return 0


def count_of(number: int) -> str:
    """Return a number of items as text, such as '1 item' or '2 items'."""
    return f'{number} item' if number == 1 else f'{number} items'


def why_no_sequence(x: object) -> str:
    """Return a hint if iterable `x` is no sequence or is masked; else ''."""
    if isinstance(x, Mapping):
        return '`InputTransform(lambda x: list(x.values()))`, or of `items`, makes one'
    if isinstance(x, set | frozenset):
        return 'it has no order: `InputTransform(sorted)` gives it one'
    if isinstance(x, np.ma.MaskedArray) and has_masked([x]):
        return MASKED
    return why_no_value(type(x))


def why_no_value(type_: type) -> str:
    """Return a hint if `type_` is of iterators, readable only once; else ''."""
    return READ_ONCE if hasattr(type_, '__next__') else ''


def reads_no_items(fn: object) -> bool:
    """Return whether `fn`, such as `type` or `len`, takes no items from an iterator."""
    return any(fn is x for x in READS_NO_ITEMS)


def listed(item: Any) -> list[Any]:
    """Return the items of an iterable as a list; raise TypeError for an iterator."""
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
    """Return `numbers`, an iterable of ints, as int64 [n]; TypeError for others."""
    if not hasattr(type(numbers), '__len__'):
        numbers = listed(numbers)
    if has_masked([numbers]):
        raise TypeError(MASKED)
    array = np.asarray(numbers)
    if array.ndim != 1 or (array.size and array.dtype.kind not in 'iu'):
        raise TypeError(f'they are {array.dtype}{list(array.shape)}')
    result = array.astype(np.int64)
    if array.dtype.kind == 'u' and (result < 0).any():
        raise TypeError(f'they go up to {array.max()}')
    return result


# ---- what source calls ---------------------------------------------------------------


def field(x: Any, key: Any) -> object:
    """Return `x[key]`, or attribute `key` of an `x` without subscripts.

    Raises one of `ABSENT` if `x` lacks this field; TypeError if it has no such fields.
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
    """Return `x[0]` to `x[count - 1]` as a list; TypeError if a sequence is longer."""
    at_most(x, count)
    return [x[k] for k in range(count)]


def made_before(known: dict[Any, Any], key: object) -> Any:
    """Return `known[key]`; raise ValueError if that value is still being computed.

    An unfinished value that is read again means that the data contain themselves.
    """
    if known[key] is known:  # the mark of a value that is being computed
        raise ValueError('a cycle')
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
    """Return the items of `x`, an ordered iterable, as a list; TypeError for others."""
    if why_no_sequence(x):
        raise TypeError('no sequence')
    return listed(x)


def readable(x: object) -> Any:
    """Return `x`, or raise TypeError for an iterator, which can be read only once."""
    if why_no_value(type(x)):
        raise TypeError('can be read only once')
    return x


def same_length(*lengths: int) -> int:
    """Return the common length of sequences; raise ValueError if lengths differ."""
    if len({*lengths}) > 1:
        raise ValueError(f'sequences of lengths {lengths}')
    return lengths[0]


def numbers_of(x: object, count: int) -> list[int]:
    """Return ints `x` as non-negative indices of `count` items; -1 stands for the last.

    Raises TypeError as `ints_of`, and IndexError if an int is out of range.
    """
    return [range(count)[k] for k in ints_of(x).tolist()]


def grouped(
    values: Iterable[Any], groups: Iterable[int], count: int
) -> list[list[Any]]:
    """Return `count` lists: list g holds the values whose entry in `groups` is g.

    Raises ValueError unless there are as many values as entries in `groups`.
    """
    result: list[list[Any]] = [[] for _ in range(count)]
    for value, group in zip(values, groups, strict=True):
        result[group].append(value)
    return result


def made_with_rest(results: list[Any], values: Sequence[Any]) -> list[Any]:
    """Return `results` of pairs of `values`; append the last value if unpaired."""
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


def by_groups(
    pair: Sequence[Any],
    four: Sequence[Any],
    eight: Sequence[Any],
    highest: Any,
    levels: int,
    fill: Any,
) -> Callable[[list[Any]], Any]:
    """Return a function that reduces lists by operations on groups of items.

    It records the operations, and returns the row number of the last one's result. An
    item is a row number, or a tuple of several.

    Args:
      pair, four, eight: the maker, or a tuple of makers if items are tuples; then the
        tapes: of a pair one for each row number, of more items one for all of them.
      highest: a function that returns the row number of the highest level.
      levels: the bits of a row number that are its level.
      fill: the row number that takes the place of missing items; 'last' if the last
        item does; `None` if groups have just these sizes.
    """
    sizes: Any = (2, 4, 8) if fill is None else 8
    whole = frozenset(sizes if fill is None else range(3, 9))

    def in_groups(items: list[Any]) -> Any:
        return reduced([reduced(group) for group in groups_of(items, sizes)])

    def of_numbers(items: list[Any]) -> Any:
        n = len(items)
        if n == 1:
            return items[0]
        if n == 2:
            made = (highest(items) & levels) + maker + len(first)
            first.append(items[0])
            second.append(items[1])
            return made
        if n not in whole:
            return in_groups(items)
        if n <= 4:
            made = (highest(items) & levels) + maker_of_4 + len(fours) // 4
            fours.extend(items)
            if n == 3:
                fours.append(items[2] if fill == 'last' else fill)
            return made
        made = (highest(items) & levels) + maker_of_8 + len(eights) // 8
        eights.extend(items)
        if n < 8:
            eights.extend((items[-1] if fill == 'last' else fill,) * (8 - n))
        return made

    def of_tuples(items: list[Any]) -> Any:
        n = len(items)
        if n == 1:
            return items[0]
        if n not in whole:
            return in_groups(items)
        makers, *tapes = pair if n == 2 else four if n == 4 else eight
        numbers = [number for item in items for number in item]
        row = highest(numbers) & levels
        if n == 2:
            row += len(tapes[0])
            for tape, number in zip(tapes, numbers, strict=True):
                tape.append(number)
        else:
            row += len(tapes[0]) // len(numbers)
            tapes[0].extend(numbers)
        return tuple([x + row for x in makers])

    if isinstance(pair[0], tuple):
        reduced = of_tuples
    else:
        reduced = of_numbers
        maker, first, second = pair
        (maker_of_4, fours), (maker_of_8, eights) = four, eight
    return reduced


# Types of arguments for which generated source skips the call of `readable`.
PLAIN = frozenset({int, float, str, bool, tuple, list, dict, type(None)})
# The global names of all generated source.
HELPERS: dict[str, Any] = {'PLAIN': PLAIN} | {
    fn.__name__: fn
    for fn in (
        *(field, field_or, made_before, items, at_most, at_most_items),
        *(sequence, same_length, index_of, numbers_of, grouped, made_with_rest),
        *(by_groups, readable, by_steps),
    )
}
