# SPDX-License-Identifier: Apache-2.0
"""Short texts of any objects, in bounded time, whatever the objects do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

MOST_BYTES = 1 << 24  # of an array that is copied from a device


def cut(text: str, limit: int = 60) -> str:
    """Return a text, cut to `limit` characters."""
    return text if len(text) <= limit else f'{text[: limit - 1]}…'


def several(count: int, what: str) -> str:
    """Return a count with what is counted, as '1 example' or '2,000 examples'."""
    return f'{count:,} {what}' if count == 1 else f'{count:,} {what}s'


def short(value: object, limit: int = 60) -> str:
    """Return a text of `value`, of at most `limit` characters.

    The `repr` of users' classes is never called: it may raise, or take long.
    """
    try:
        return cut(_text(value, limit), limit)
    except Exception:
        return f'<{cut(str(type.__dict__["__name__"].__get__(type(value))))}>'


def _text(value: Any, limit: int) -> str:
    kind = type(value)
    if value is None or kind in (bool, float, complex, slice):
        return repr(value)
    if kind is int and value.bit_length() < 4000:
        return repr(value)
    if kind in (str, bytes):
        return repr(value[: limit + 1])
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        numbers = on_host(value) if value.dtype != object else None
        text = '' if numbers is None or not numbers.size else numbers_text(numbers)
        is_number = text and isinstance(value, np.generic)
        return text if is_number else f'{array_type(value)} {text}'
    if kind in (list, tuple) and len(value) <= 4 and limit > 8:
        texts = (
            short(x, 12) if type(x) in (bool, int, float, str) else '…' for x in value
        )
        return ('[{}]' if kind is list else '({})').format(', '.join(texts))
    if kind in (list, tuple, dict, set, frozenset):
        return f'{kind.__name__} of {len(value):,}'
    raise TypeError


def array_type(array: Any, axes: int = 0) -> str:
    """Return an array's dtype and shape as text, without the first `axes` axes."""
    return f'{array.dtype}[{",".join(map(str, array.shape[axes:]))}]'


def numbers_text(numbers: Any) -> str:
    """Return the first four numbers of an array as text; dots replace any others."""
    flat = np.asarray(numbers).flat  # which copies nothing
    texts = (f'{x:.4g}' if isinstance(x, np.floating) else str(x) for x in flat[:4])
    return listed(texts, len(flat))


def listed(texts: Iterable[str], count: int) -> str:
    """Return texts joined by commas, then dots if texts are fewer than `count`."""
    shown = list(texts)
    return cut(', '.join([*shown, *['…'] * (count > len(shown))]))


def on_host(array: Any) -> np.ndarray[Any, Any] | None:
    """Return an array as NumPy's; `None` if it is unreadable here or slow to copy."""
    if isinstance(array, jax.Array):
        if isinstance(array, jax.core.Tracer) or array.is_deleted():
            return None
        on_cpu = all(device.platform == 'cpu' for device in array.devices())
        is_key = jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key)
        is_here = array.is_fully_addressable and not is_key
        if not (is_here and (on_cpu or array.nbytes <= MOST_BYTES)):
            return None
    return np.asarray(array)
