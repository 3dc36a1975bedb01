# SPDX-License-Identifier: Apache-2.0
"""The arguments of calls in lazy functions: constants, values, and what is neither."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jfold import blocks as b
from jfold.base.arrays import dtype_of
from jfold.base.errors import MASKED, has_masked, short_repr
from jfold.base.operands import Operand
from jfold.base.structs import flatten_once, is_struct
from jfold.blocks.lazy import Value
from jfold.types import TensorType

SCALARS = bool, int, float, complex
FIXED = *SCALARS, np.generic, jax.Array
NUMBERS = *FIXED, np.ndarray


def constant_type(value: Any, dtype: Any = None) -> TensorType:
    """Return the type of a number or array, as `dtype` if that is not `None`.

    Raise TypeError if it is neither, a number that `dtype` does not hold, or a dtype
    that JAX would make narrower.
    """
    if not isinstance(value, FIXED) and has_masked([value], depth=32):  # NumPy's most
        got = type(value).__name__
        raise TypeError(f'expected a number or an array, got {got}, {MASKED}')
    own = getattr(value, 'dtype', None)
    if own is None:
        own = np.dtype(object)
        if not holds_values(value):
            with contextlib.suppress(ValueError):  # of ragged lists
                own = np.asarray(value).dtype
    if getattr(own, 'kind', 'O') not in 'biufcV':  # keys of JAX have none
        hint = 'look up its number first, as in `vocabulary[word]`'
        if type(value) is int:
            hint = 'no int of JAX is so large: make it a float'
            widest = np.finfo(jax.dtypes.canonicalize_dtype(float))
            if abs(value) > float(widest.max):
                hint = 'no number of JAX is so large: scale it'
        elif holds_values(value):
            hint = 'call a block on them, as `jf.Concat()`'
        elif isinstance(value, list | tuple) and own.kind == 'O':
            hint = 'make a tensor of each row, or rows of one length'
        got = short_repr(value)
        raise TypeError(f'expected a number or an array, got {got}; {hint}')
    kind = own if dtype is None else dtype_of(dtype)
    kept = jax.dtypes.canonicalize_dtype(kind)
    if dtype is not None and kept != kind:
        raise TypeError(
            f'expected a dtype that JAX keeps, such as {kept.name}, got {kind.name}; '
            "say it, or set jax.config.update('jax_enable_x64', True)"
        )
    fits = type(value) not in SCALARS or np.can_cast(own, kind, 'same_kind')
    if not (fits or (type(value) is int and kind.kind in 'ub')):
        got = short_repr(value)
        raise TypeError(
            f'expected a number that fits {kind.name}, got {got}; '
            'say `jf.float32`, or convert it'
        )
    return TensorType(np.shape(value), kept)


def holds_values(x: object) -> bool:
    """Return whether `x` is or contains a `Value`, in tuples, lists, dicts, structs."""
    waiting = [x]
    seen: dict[int, object] = {}  # data may contain themselves
    while waiting:
        item = waiting.pop()
        if isinstance(item, Value):
            return True
        if id(item) in seen:
            continue
        seen[id(item)] = item
        if isinstance(item, tuple | list):
            waiting += item
        elif isinstance(item, dict):
            waiting += item.values()
        elif is_struct(item):
            waiting += flatten_once(item)[0]
    return False


def advice(x: object) -> str:
    """Return a hint on why a block cannot take argument `x`; '' without one."""
    if isinstance(x, b.Block):
        return ': call it, or write `return` before what it gives'
    if isinstance(x, str | bytes):
        return ': look up its number first, as in `jf.int32(vocabulary[word])`'
    if isinstance(x, Operand):
        return ', which `jf.compose` makes; compose blocks outside the lazy function'
    if isinstance(x, Iterator):
        more = 'write `yield` before a call of a generator function'
        return f': make a list of it, or {more}'
    if dataclasses.is_dataclass(x):
        return ': register its class, as by `jax.tree_util.register_dataclass`'
    return ''


def advice_on_error(text: str) -> str:
    """Return a better message for an error with this text in a function, or ''."""
    if f'{Value.__module__}.{Value.__qualname__}' in text:  # from within JAX
        return (
            'expected blocks and operators on values, got a function of JAX; write '
            '`jf.Function(fn)(x)` for `fn(x)`'
        )
    if text.startswith('unsupported operand') and "'generator'" in text:
        return (
            f'expected values, got {text}: write `yield` before a call of a generator '
            'function, as in `(yield f(x)) * 2`'
        )
    if text.startswith(f'{b.Block.__call__.__qualname__}() got an unexpected keyword'):
        name = text.rsplit(maxsplit=1)[-1]
        return f'expected inputs by position, got {name} by name; write `block(x, y)`'
    if text.startswith('unsupported operand') and f"'{Value.__name__}'" in text:
        return (
            f'expected an operator that values have, got {text}; write '
            '`jf.Function(fn)(x, y)`, with an `fn` outside that computes it'
        )
    return ''
