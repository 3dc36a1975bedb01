# SPDX-License-Identifier: Apache-2.0
"""Python values to arrays, strictly: what does not fit is an error, never a guess."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from jfold.errors import BadItem, shown
from jfold.types import TensorType

Array = np.ndarray[Any, Any]


def to_array(items: Sequence[Any], type_: TensorType) -> Array:
    """A list of values as one array [items, *shape], all converted at once.

    Raises:
      BadItem: one has another shape, is no number, or would not survive the cast.
    """
    try:
        return _cast(_stack(items, type_), type_)
    except (ValueError, TypeError, OverflowError):
        pass
    for index, item in enumerate(items):
        try:
            _cast(_stack([item], type_), type_)
        except (ValueError, TypeError, OverflowError) as error:
            text = f'expected {type_}, got {shown(item)}{error}'
            raise BadItem(index, text) from None
    # Each fits alone and all together do not: they mix kinds of numbers.
    parts = [_cast(_stack([item], type_), type_) for item in items]
    return np.concatenate(parts)


def _stack(items: Sequence[Any], type_: TensorType) -> Array:
    if not items:
        return np.zeros((0, *type_.shape), type_.dtype)
    try:
        array = np.asarray(items)
    except ValueError:
        raise ValueError(', which is ragged') from None
    if array.dtype.kind not in 'biufcV' or array.dtype.names:
        raise TypeError('')
    if array.shape != (len(items), *type_.shape):
        raise ValueError(f' of shape {array.shape[1:]}')
    return array


def _cast(array: Array, type_: TensorType) -> Array:
    """The array in the type's dtype; rounding a float to a float is no loss."""
    target = type_.dtype
    if array.dtype == target:
        return array
    if array.dtype.kind == 'c' and target.kind != 'c':
        raise ValueError(f', which {target.name} cannot hold')
    with np.errstate(all='ignore'):
        result = array.astype(target)
        if _is_float(array.dtype) and _is_float(target):
            kept = np.isfinite(result) | ~np.isfinite(array)
        else:
            kept = (result == array) | ((result != result) & (array != array))
            if target.kind in 'iu' and array.dtype.kind in 'iu':
                kept &= (result < 0) == (array < 0)
    if not kept.all():
        raise ValueError(f', which {target.name} cannot hold')
    return result


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in 'fc' or dtype == ml_dtypes.bfloat16
