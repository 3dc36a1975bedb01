# SPDX-License-Identifier: Apache-2.0
"""The errors that jfold raises about data and about compiled programs."""

from __future__ import annotations

import contextlib
import itertools
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np


class InputError(ValueError):
    """An example does not fit the expression.

    Attributes:
      example: its number in the batch.
      path: how the value at fault is reached from the example, as `['left'][0]`; the
        message leaves out the middle of a long one.
      block: the path of the block in the expression.
      hint: what to do, which is printed below; '' if that is not known.
    """

    def __init__(
        self, message: str, example: int, path: str, block: str, hint: str = ''
    ) -> None:
        place = f'example {example}' + (f', at {middle_out(path)}' if path else '')
        super().__init__(f'{place}: {message}; in {block}')
        self.message = message
        self.example = example
        self.path = path
        self.block = block
        self.hint = hint
        if hint:
            self.add_note(f'What to do: {hint}')

    def renumbered(self, example: int) -> InputError:
        """The same error, with the number that the example has elsewhere."""
        return InputError(self.message, example, self.path, self.block, self.hint)

    def __reduce__(self) -> tuple[object, ...]:
        said = self.message, self.example, self.path, self.block, self.hint
        return InputError, said


def middle_out(text: str, limit: int = 240) -> str:
    """A text without its middle, if it is long."""
    half = limit // 2 - 2
    return text if len(text) <= limit else f'{text[:half]} ... {text[-half:]}'


class ProgramBudgetError(RuntimeError):
    """One more shape of schedule would exceed `max_programs`."""


class BadItem(Exception):
    """One of several values cannot be what it has to be.

    Attributes:
      index: its place among them.
      example: that it is of, once it is known.
    """

    example: int | None = None

    def __init__(self, index: int, message: str, hint: str = '') -> None:
        super().__init__(message)
        self.index = index
        self.hint = hint


def instead_of(value: object) -> str:
    """What to do about a value that no block takes; '' of others."""
    return 'put it in an Optional, which takes `None`' if value is None else ''


def is_int(value: object) -> TypeGuard[int]:
    """Whether a value is an int, of Python or of NumPy, and no bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_at_least(name: str, value: object, least: int) -> int:
    """An argument that is an int, and large enough.

    Raises:
      TypeError, ValueError: it is not.
    """
    if not is_int(value):
        raise TypeError(f'expected `{name}` as int, got {value!r}{_meant(name, value)}')
    if value < least:
        text = f'expected `{name}` of at least {least}, got {value}'
        raise ValueError(f'{text}; write `{name}={least}` or more')
    return int(value)


def _meant(name: str, value: object) -> str:
    """What to write for a text or a float that is a whole number."""
    with contextlib.suppress(ValueError, OverflowError):
        if isinstance(value, str | float) and (number := float(value)).is_integer():
            return f'; write `{name}={int(number)}`'
    return ''


def expect(name: str, value: object, fits: bool, kind: str, hint: str = '') -> None:
    """Refuses an argument that does not fit.

    Raises:
      TypeError: it does not; the message says which kind would.
    """
    if not fits:
        more = f': {hint}' if hint else ''
        raise TypeError(f'expected `{name}` as {kind}, got {short_repr(value)}{more}')


def check_int(name: str, value: object) -> int:
    """An argument that is an int.

    Raises:
      TypeError: it is not.
    """
    if not is_int(value):
        raise TypeError(f'expected `{name}` as int, got {short_repr(value)}')
    return int(value)


MAX_SPARE_ROWS = 1 << 20


def rows_asked(size: object, examples: int) -> int:
    """How many rows the results get of so many examples; as many if `size` is `None`.

    Raises:
      ValueError: there are more examples, or far fewer; TypeError: it is no int.
    """
    rows = examples if size is None else check_at_least('size', size, 0)
    if rows < examples:
        raise ValueError(
            f'expected at most {rows} examples, as `size` says, got {examples}'
        )
    check_spare_rows('size', rows, examples)
    return rows


def check_spare_rows(name: str, rows: int, examples: int) -> None:
    """Refuses results with far more rows than examples: all rows take memory.

    Raises:
      ValueError: there are too many.
    """
    if rows - examples > MAX_SPARE_ROWS:
        raise ValueError(
            f'expected `{name}` of at most {examples + MAX_SPARE_ROWS:,} for '
            f'{examples:,} examples, got {rows:,}: results have a row for each, used '
            f'or not, so pass `{name}={max(examples, 1)}` to have all in one batch'
        )


def check_examples(examples: object) -> Iterable[Any]:
    """The argument, if it holds examples and cannot be taken for a single one.

    Raises:
      TypeError: it is not.
    """
    if isinstance(examples, list):  # as nearly always
        return examples
    single = isinstance(examples, tuple | str | bytes | Mapping | set | frozenset)
    if single or not isinstance(examples, Iterable):
        hint = 'pass `[example]`'
        if isinstance(examples, tuple):
            hint = 'pass `[example]` if it is one, `list(examples)` if it holds several'
        elif isinstance(examples, set | frozenset):
            hint = 'it has no order, pass `sorted(examples)`'
        got = type(examples).__name__
        raise TypeError(f'expected a sequence of examples, got {got}: {hint}')
    return examples


MASKED = 'some of it masked: fill it, `x.filled(0)`, or leave it out'


def some_masked(items: Sequence[Any], depth: int = 0) -> bool:
    """Whether something is masked in arrays among items, or in lists of such.

    Args:
      depth: how deep to look into lists; less than 0 for nowhere.
    """
    if depth < 0:
        return False
    if any(issubclass(kind, np.ma.MaskedArray) for kind in set(map(type, items))):
        if any(map(np.ma.is_masked, items)):
            return True
    inner = [x for x in items if isinstance(x, list | tuple)] if depth else []
    return bool(inner) and some_masked([*itertools.chain(*inner)], depth - 1)


def short_repr(value: object, limit: int = 60) -> str:
    """A short `repr`, with the type where that says more."""
    try:
        text = repr(value)
    except Exception:  # deep data fail to print, and so may objects of other classes
        text = reprlib.repr(value)
    text = text if len(text) <= limit else f'{text[: limit - 3]}...'
    obvious = value is None or isinstance(value, str | bool | int | float)
    return text if obvious else f'{text} ({type(value).__name__})'


@contextlib.contextmanager
def gradient_of(layer: str) -> Iterator[None]:
    """Says in an error whose gradient was asked for, and where there is none, what to
    do."""
    try:
        yield
    except Exception as error:
        hint = ''
        if isinstance(error, NotImplementedError) or 'Reverse-mode' in str(error):
            hint = (
                '; use lax.scan or lax.fori_loop with fixed bounds, or give the '
                'function one by jax.custom_vjp'
            )
        error.add_note(f'expected a gradient of layer {layer!r}, got this error{hint}')
        raise


def reason(error: BaseException) -> str:
    """The type and the first line of the text of an exception."""
    try:
        text = str(error).partition('\n')[0]
    except Exception:  # that of a `KeyError` prints the key
        text = reprlib.repr(error.args)
    return f'{type(error).__name__}: {text}'
