# SPDX-License-Identifier: Apache-2.0
"""Checks of the shapes and dtypes of tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from jax.typing import DTypeLike


def shape_of(shape: Iterable[int]) -> tuple[int, ...]:
    """Return a shape as a tuple of ints.

    Raises:
      TypeError: `shape` is no tuple or list of non-negative ints.
    """
    is_shape = isinstance(shape, tuple | list) and all(
        isinstance(n, int | np.integer) and n >= 0 for n in shape
    )
    if not is_shape:
        hint = ''
        if isinstance(shape, int) or (isinstance(shape, tuple) and len(shape) == 1):
            hint = '; write `Tensor([2, 3])` for a shape, `Vector(2)` for a length'
        raise TypeError(
            'expected `shape` as a tuple or list of non-negative ints, got '
            f'{shape!r}{hint}'
        )
    return tuple(map(int, shape))


def dtype_of(dtype: DTypeLike) -> np.dtype[Any]:
    """Return a NumPy dtype, of bools or numbers alone, in native byte order.

    Raises:
      TypeError: `dtype` is `None`, no dtype, a dtype of other values, or long double.
    """
    try:
        result: np.dtype[Any] = np.dtype(dtype).newbyteorder('=')
    except (TypeError, ValueError):
        result = np.dtype(object)
    if dtype is None or not _is_number(result):
        raise TypeError(
            f"expected `dtype` as a number type such as 'float32', got {dtype!r}"
        )
    return result


def _is_number(dtype: np.dtype[Any]) -> bool:
    # Dtypes that JAX adds, such as bfloat16, have NumPy's kind V but are not built in.
    is_added = dtype.kind == 'V' and dtype.isbuiltin == 2
    return is_added or (dtype.kind in 'biufc' and dtype.char not in 'gG')
