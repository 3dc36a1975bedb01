# SPDX-License-Identifier: Apache-2.0
"""The errors about data and programs, and the texts in them."""

from __future__ import annotations

import contextlib
import itertools
import reprlib
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np

from jfold.base.late import Displayed, late


class InputError(ValueError, Displayed):
    """An error for an example that does not fit the expression.

    Attributes:
      example: the index of the example among those given, from 0.
      path: Python's subscripts from the example to the value at fault, such as
        `['left'][0]`; the message leaves out the middle of a long path.
      block: the path of the block in the expression.
      hint: what to do, printed below the message; '' if there is no advice.
      data: `(example,)`, which notebooks show; `()` in a copy from another process.
      was_shown: whether a traceback has shown the example.
    """

    data: tuple[Any, ...] = ()
    was_shown: bool = False

    def __init__(
        self, message: str, example: int, path: str, block: str, hint: str = ''
    ) -> None:
        place = f'example {example}' + (f', at {elide(path)}' if path else '')
        super().__init__(f'{place}: {message}; in {block}')
        self.message = message
        self.example = example
        self.path = path
        self.block = block
        self.hint = hint
        if hint:
            self.add_note(f'What to do: {hint}')

    def renumbered(self, example: int) -> InputError:
        """Return a copy of this error whose attribute `example` is the given index."""
        arguments = self.message, example, self.path, self.block, self.hint
        return InputError(*arguments).on(*self.data)

    def on(self, *data: object) -> Self:
        """Set `data` to the arguments, one example or none, and return this error."""
        self.data = data
        return self

    def _render_traceback_(self) -> list[str]:
        """Return traceback lines for IPython; in notebooks also show the example."""
        lines: list[str] = late('display.error_page', 'error_traceback')(self)
        return lines

    def __reduce__(self) -> tuple[object, ...]:
        arguments = self.message, self.example, self.path, self.block, self.hint
        return InputError, arguments


def elide(text: str, limit: int = 240) -> str:
    """Return a text, with its middle cut out if it has over `limit` characters."""
    half = limit // 2 - 2
    return text if len(text) <= limit else f'{text[:half]} ... {text[-half:]}'


class ProgramBudgetError(RuntimeError):
    """An error for a batch that needs more compiled programs than `max_programs`."""


class BadItem(Exception):
    """An error that says which value of a list cannot be converted to an array.

    Attributes:
      index: the index of the value in the list.
      hint: what to do, or ''.
      example: the index of the example that holds the value; `None` until the recorder
        has looked it up.
    """

    example: int | None = None

    def __init__(self, index: int, message: str, hint: str = '') -> None:
        super().__init__(message)
        self.index = index
        self.hint = hint


def hint_for(value: object) -> str:
    """Return the hint to use `Optional` if the value is `None`, else ''."""
    return 'put it in an Optional, which takes `None`' if value is None else ''


MASKED = 'some of it masked: fill it, `x.filled(0)`, or leave it out'


def has_masked(items: Sequence[Any], depth: int = 0) -> bool:
    """Return whether any item is a NumPy masked array with masked values.

    Lists and tuples inside `items` are searched too, `depth` levels of them; if `depth`
    is negative, not even `items` are.
    """
    if depth < 0:
        return False
    # Classes first: they are few, and a call of `is_masked` for each item is slow.
    if any(issubclass(cls, np.ma.MaskedArray) for cls in set(map(type, items))):
        if any(map(np.ma.is_masked, items)):
            return True
    inner = [x for x in items if isinstance(x, list | tuple)] if depth else []
    return bool(inner) and has_masked([*itertools.chain(*inner)], depth - 1)


def short_repr(value: object, limit: int = 60) -> str:
    """Return the `repr` of a value, cut to `limit` characters, for messages.

    The name of its class follows in parentheses, except for str, bool, int, float and
    `None`.
    """
    try:
        text = repr(value)
    except Exception:  # deep data fail to print, and so may objects of other classes
        text = reprlib.repr(value)
    text = text if len(text) <= limit else f'{text[: limit - 3]}...'
    is_obvious = value is None or isinstance(value, str | bool | int | float)
    return text if is_obvious else f'{text} ({type(value).__name__})'


@contextlib.contextmanager
def naming_layer(layer: str) -> Iterator[None]:
    """Add a note to errors raised in the context: a gradient of `layer` was expected.

    Where JAX cannot differentiate a loop in reverse, the note also says what to write.
    """
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


@contextlib.contextmanager
def naming_batched(layer: str) -> Iterator[None]:
    """Add a note to errors raised in the context: `layer` was to be batched."""
    try:
        yield
    except Exception as error:
        hint = '; give a callback `vmap_method=`' if 'callback' in str(error) else ''
        error.add_note(
            f'expected a function in layer {layer!r} that `jax.vmap` runs on many rows '
            f'at once, got this error{hint}'
        )
        raise


def describe_error(error: BaseException) -> str:
    """Return the type of `error` and the first line of its message."""
    try:
        text = str(error).partition('\n')[0]
    except Exception:  # a `KeyError` prints the `repr` of its key, which may fail
        text = reprlib.repr(error.args)
    return f'{type(error).__name__}: {text}'
