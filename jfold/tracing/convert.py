# SPDX-License-Identifier: Apache-2.0
"""The strict conversion of Python values to arrays: a value that does not fit raises.

Shapes: [items, *shape], where `shape` is that of the tensor type.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfold.base.errors import (
    MASKED,
    BadItem,
    describe_error,
    has_masked,
    hint_for,
    short_repr,
)
from jfold.tracing.strict_reading import why_no_sequence
from jfold.types import TensorType

Array = np.ndarray[Any, Any]
ROUND = 'write `InputTransform(float)` before to round it'

_INT, _FLOAT = np.dtype(np.int64), np.dtype(np.float64)  # dtypes of Python's numbers
# The dtypes that NumPy gives to lists of floats, and of ints mixed with floats.
_MIXED = (*map(np.dtype, (float, complex, np.longdouble, np.clongdouble)),)


def to_array(items: Sequence[Any], type_: TensorType) -> Array:
    """Return a list of values as one array [items, *shape] in the dtype of `type_`.

    NumPy converts all values together. Yet whether a value is accepted, and what it
    becomes, does not depend on the other values.

    Raises:
      BadItem: a value has another shape, is no number or masked, or would change in the
        cast by more than the rounding of a float.
    """
    try:
        stacked = _stack(items, type_)
        result = _quick_cast(stacked, type_.dtype)
        if result is not None:
            return result
        result = _cast(stacked, type_)
    except Exception:
        return _one_by_one(items, type_, range(len(items)))
    # NumPy chose one dtype for all: large ints among floats, which it may have rounded,
    # are converted alone.
    if stacked.dtype in _MIXED:
        large = abs(stacked) >= _exact_below(type_.dtype)
        places = np.flatnonzero(large.reshape(len(items), -1).any(axis=1)).tolist()
        if alone := [k for k in places if not _is_float(items[k])]:
            result[alone] = _one_by_one(items, type_, alone)
    return result


def to_bounded(items: Sequence[Any], type_: TensorType, below: int | None) -> Array:
    """Return `to_array(items, type_)`, of ints in `range(below)` unless it is `None`.

    Raises:
      BadItem: a value is refused by `to_array`, or outside; the first of these.
    """
    try:
        values = to_array(items, type_)
    except BadItem as error:
        if below is not None:  # a value before that one may be outside
            to_bounded(items[: error.index], type_, below)
        raise
    if below is None:
        return values
    outside = (values < 0) | (values >= below)
    if outside.any():
        index, *_ = np.argwhere(outside)[0].tolist()
        got = values[index][outside[index]].flat[0]
        text = f'ints from 0 to {below - 1}, as `below={below}` says'
        raise BadItem(index, f'expected {text}, got {got}')
    return values


def as_numpy(item: object) -> object:
    """Convert JAX arrays, also in lists and tuples, to NumPy; keep other items.

    NumPy cannot read narrow dtypes of JAX arrays in a list.
    """
    if isinstance(item, list | tuple):
        return list(map(as_numpy, item))
    return np.asarray(item) if isinstance(item, jax.Array) else item


def _quick_cast(array: Array, target: np.dtype[Any]) -> Array | None:
    """Return the array cast to `target`; `None` if no cheap test shows that it fits."""
    dtype = array.dtype
    if dtype == _INT and target.kind in 'iu' and target.itemsize < _INT.itemsize:
        result = array.astype(target)
        return result if result.astype(_INT).tobytes() == array.tobytes() else None
    if dtype in (_INT, _FLOAT) and target.kind == 'f':
        # Below this bound ints are exact, even those that NumPy made floats.
        small = np.abs(array.astype(_FLOAT, copy=False)) < _exact_below(target)
        return array.astype(target) if np.count_nonzero(small) == small.size else None
    return array if dtype == target and dtype not in _MIXED else None


def _one_by_one(
    items: Sequence[Any], type_: TensorType, chosen: Iterable[int]
) -> Array:
    """Convert the items at indices `chosen` one by one; return [chosen, *shape].

    Raises BadItem at the first of them that does not fit the type.
    """
    arrays = []
    for index in chosen:
        try:
            item = as_numpy(items[index])
            if has_masked([item], len(type_.shape)):
                raise _RefusedError(f', {MASKED}')
            arrays.append(_cast(_stack([item], type_), type_))
        except MemoryError:
            raise
        except Exception as error:
            refused = isinstance(error, _RefusedError)
            why = f'{error}' if refused else f'; {describe_error(error)}'
            text = f'expected {type_}, got {short_repr(items[index])}{why}'
            hint = _advice(items[index], type_)
            raise BadItem(index, text, hint) from None if refused else error
    return np.concatenate(arrays)


def _advice(item: Any, type_: TensorType) -> str:
    """Return a hint for users if `item` does not fit `type_`; '' if none."""
    if isinstance(item, str | bytes) or not hasattr(item, 'dtype'):
        try:
            float(item)
        except Exception:
            if isinstance(item, str):  # a word
                table = f'{{{short_repr(item)}: 0, ...}}'
                return f'look up a number for it before: `InputTransform({table})`'
        else:
            if not isinstance(item, int | float):
                return 'make a number of it before, as by `InputTransform(float)`'
    if isinstance(item, list | tuple) and any(x is None for x in item):
        return 'write `Map(Optional(Scalar()))`, where some are `None`'
    try:
        shape = np.asarray(item).shape
    except ValueError:  # lists of several lengths
        return 'write `Map(Map(Scalar()))` for lists of any length in a list'
    except Exception:  # which the message tells
        return ''
    if shape == type_.shape:
        return hint_for(item)
    if isinstance(item, int | float | np.generic) and len(type_.shape) == 1:
        return 'write `Scalar()` for a number, `[example]` for one example'
    if len(shape) == 1 and len(type_.shape) < 2:
        return 'write `Map(Scalar())` for any number of them, `Vector(n)` for n'
    shaped = f'write `Tensor({list(shape)})` for this shape'
    return shaped if shape else why_no_sequence(item)


@functools.cache
def _exact_below(dtype: np.dtype[Any]) -> float:
    """Return n so that float64, and an inexact `dtype`, hold ints below n exactly."""
    finfo: Any = jnp.finfo
    bits = finfo(dtype).nmant + 1 if _is_inexact(dtype) else 53
    return float(2 ** min(bits, 53))


def _is_float(item: object) -> bool:
    return isinstance(item, float) or getattr(item, 'dtype', None) == np.float64


class _RefusedError(Exception):
    """A conversion error, whose text is the end of a message: ', which is ragged'."""


def _stack(items: Sequence[Any], type_: TensorType) -> Array:
    if not items:
        return np.zeros((0, *type_.shape), type_.dtype)
    try:
        array = np.asarray(items)
    except ValueError:
        raise _RefusedError(', which is ragged') from None
    fits = array.shape == (len(items), *type_.shape)
    if fits and array.dtype == object and _has_large(array):
        array = _large_as_floats(array, type_.dtype)
    if array.dtype.kind not in 'biufcV' or array.dtype.names:
        raise _RefusedError('')
    if not fits:
        raise _RefusedError(f' of shape {array.shape[1:]}')
    # NumPy reads a masked number as NaN, but a masked array as if it had no mask. So
    # masked numbers, one list deeper than such arrays, are sought only if there is NaN.
    holds_nan = _is_inexact(array.dtype) and bool(np.isnan(array).any())
    rank = array.ndim - 1 if holds_nan else array.ndim - 2
    if has_masked(items, rank):
        raise _RefusedError(f', {MASKED}')
    return array


def _has_large(array: Array) -> bool:
    """Return whether Python's numbers are in an array, with an int beyond 64 bits."""
    numbers = all(isinstance(x, int | float) for x in array.flat)
    return numbers and any(isinstance(x, int) and abs(x) > 2**63 for x in array.flat)


def _large_as_floats(array: Array, target: np.dtype[Any]) -> Array:
    """Return Python's ints and floats as float64, if `target` holds the ints exactly.

    Raises `_RefusedError` if it does not.
    """
    kept = False
    if _is_inexact(target):
        with np.errstate(all='ignore'), contextlib.suppress(OverflowError):
            floats = array.astype(float)
            held = floats.astype(target).astype(complex).real.flat
            pairs = zip(array.flat, held, strict=True)
            kept = all(isinstance(x, float) or x == int(y) for x, y in pairs)
    if not kept:
        raise _cannot_hold(target, f'; {ROUND}' if _is_inexact(target) else '')
    return floats


def _cast(array: Array, type_: TensorType) -> Array:
    """Return the array in the dtype of `type_`; floats may be rounded.

    Raises `_RefusedError` if a number would change by more, or lose its imaginary part.
    """
    target = type_.dtype
    if array.dtype == target:
        return array
    with np.errstate(all='ignore'):
        lost = array.dtype.kind == 'c' and target.kind != 'c'
        result = array.real.astype(target) if lost else array.astype(target)
        kept = not lost and bool(_survived(array, result).all())
    if not kept:
        hint = ''
        if array.dtype.kind in 'iu' and _is_inexact(target):
            fits = bool(np.all(abs(array.astype(float)) < 2**31))
            exact = "say dtype='int32' for one that must not change, or " * fits
            hint = f'; {exact}{ROUND}'
        raise _cannot_hold(target, hint)
    return result


def _cannot_hold(target: np.dtype[Any], hint: str) -> _RefusedError:
    return _RefusedError(f', which {target.name} cannot hold{hint}')


def _survived(array: Array, result: Array) -> Array:
    """Return a mask of the numbers that the cast of `array` to `result` kept.

    Casting back must give equal numbers; from floats to floats, only overflow is loss.
    """
    if _is_inexact(array.dtype) and _is_inexact(result.dtype):
        return np.isfinite(result) | ~np.isfinite(array)
    result = result.real if result.dtype.kind == 'c' else result
    # Casting back undoes the wrap of -1 to an unsigned dtype, but the sign differs.
    kept = (result.astype(array.dtype) == array) & ((result < 0) == (array < 0))
    for floats, ints in ((array, result), (result, array)):
        if _is_inexact(floats.dtype) and ints.dtype.kind in 'iu':
            # The cast of a float beyond the largest int is undefined; it may look exact
            # by chance.
            kept &= floats < float(np.iinfo(ints.dtype).max) + 1
    return np.asarray(kept)


def _is_inexact(dtype: np.dtype[Any]) -> bool:
    return bool(jnp.issubdtype(dtype, np.inexact))
