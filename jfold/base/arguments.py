# SPDX-License-Identifier: Apache-2.0
"""The checks of users' arguments, which raise errors that say what to write."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeGuard

import numpy as np

from jfold.base.errors import short_repr
from jfold.base.late import late

MOST = sys.maxsize  # of any number; NumPy has no larger one
MAX_SPARE_ROWS = 1 << 20


class LeftOut:
    """The class of a default that stands for no value, and says so in `help`."""

    def __repr__(self) -> str:
        return '<left out>'


LEFT_OUT = LeftOut()


def is_int(value: object) -> TypeGuard[int]:
    """Return whether a value is an int of Python or NumPy, but no bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_at_least(name: str, value: object, least: int) -> int:
    """Return `value` as an int of at least `least`; errors call it `name`.

    Raises TypeError if it is no int, and ValueError if it is less, or above `MOST`.
    """
    if not is_int(value):
        hint = ''
        with contextlib.suppress(ValueError, OverflowError):  # for `2.0` and `'2'`
            if isinstance(value, str | float) and (number := float(value)).is_integer():
                hint = f'; write `{name}={int(number)}`'
        raise TypeError(f'expected `{name}` as int, got {value!r}{hint}')
    if value < least:
        text = f'expected `{name}` of at least {least}, got {value}'
        raise ValueError(f'{text}; write `{name}={least}` or more')
    if value > MOST:
        raise ValueError(f'expected `{name}` of at most {MOST:,}, got {value:,}')
    return int(value)


def expect(name: str, value: object, fits: bool, kind: str, hint: str = '') -> None:
    """Raise TypeError 'expected `name` as <kind>, got <value>' unless `fits` is true.

    `kind` says what would fit, such as 'a function', `hint` what to write instead.
    """
    if not fits:
        more = f': {hint}' if hint else ''
        raise TypeError(f'expected `{name}` as {kind}, got {short_repr(value)}{more}')


def check_int(name: str, value: Any) -> int:
    """Return `value` as an int; raise TypeError on `name` unless `is_int(value)`."""
    expect(name, value, is_int(value), 'int')
    return int(value)


def result_rows(size: object, examples: int) -> int:
    """Return how many rows results have: `examples` if `size` is `None`, else `size`.

    Raises:
      TypeError: `size` is no int.
      ValueError: `size` is negative or less than `examples`, or exceeds `examples` by
        more than `MAX_SPARE_ROWS`.
    """
    rows = examples if size is None else check_at_least('size', size, 0)
    if rows < examples:
        raise ValueError(
            f'expected at most {rows} examples, as `size` says, got {examples}'
        )
    check_spare_rows('size', rows, examples)
    return rows


def check_spare_rows(name: str, rows: int, examples: int) -> None:
    """Raise ValueError about `name` if `rows - examples` exceeds `MAX_SPARE_ROWS`."""
    if rows - examples > MAX_SPARE_ROWS:
        raise ValueError(
            f'expected `{name}` of at most {examples + MAX_SPARE_ROWS:,} for '
            f'{examples:,} examples, got {rows:,}: results have a row for each, used '
            f'or not, so pass `{name}={max(examples, 1)}` to have all in one batch'
        )


def check_examples(examples: object) -> Iterable[Any]:
    """Return `examples` if it is a list or another iterable of examples.

    What has a length and items by number alone, as data sets of PyTorch have, is read
    by these numbers.

    Raises:
      TypeError: `examples` may be a single example (a tuple, str, bytes, mapping or
        set), or is not iterable.
    """
    if isinstance(examples, list):  # as nearly always
        return examples
    is_number = getattr(examples, 'shape', None) == ()  # though arrays have `__iter__`
    single = is_number or isinstance(
        examples, tuple | str | bytes | Mapping | set | frozenset | type
    )
    if not single and isinstance(examples, Iterable):
        return examples
    if not single and all(hasattr(examples, x) for x in ('__len__', '__getitem__')):
        return _by_number(examples)
    hint = 'pass `[example]`'
    if isinstance(examples, tuple):
        hint = 'pass `[example]` if it is one, `list(examples)` if it holds several'
    elif isinstance(examples, set | frozenset):
        hint = 'it has no order, pass `sorted(examples)`'
    elif isinstance(examples, late('data.corpus', 'Corpus')):
        hint = 'call `corpus.schedule(indices)`, or pass what it was traced from'
    got = getattr(examples, 'dtype', None) if is_number else type(examples).__name__
    raise TypeError(f'expected a sequence of examples, got {got}: {hint}')


def _by_number(examples: Any) -> Iterator[Any]:
    return (examples[k] for k in range(len(examples)))
