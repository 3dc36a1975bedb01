# SPDX-License-Identifier: Apache-2.0
"""The rules of blocks at the boundary of the data: what comes in, and constants."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from jfold import combinators as c
from jfold import instructions as p
from jfold.language.eager import Eager, value_of, zeros
from jfold.language.emission import emit, emit_zeros
from jfold.language.inference import Inference, check_dtype, check_zeros, output_type
from jfold.language.paths import fail
from jfold.language.typed import Typed
from jfold.language.unification import Mismatch
from jfold.language.writer import Value, Writer, Writing
from jfold.types import ObjectType, Type, VoidType

Array = np.ndarray[Any, Any]

# ---- Tensor --------------------------------------------------------------------------


@output_type.register
def _(block: c.Tensor | c.OneHotFromList, node: Typed, state: Inference) -> Type:
    state.objects(node, 'put it before any block that gives tensors')
    check_dtype(node, block.type)
    return block.type


@emit.register
def _(block: c.Tensor, node: Typed, value: Value, places: int, w: Writer) -> Writing:
    number = w.builder.type_number(block.type)
    column = yield w.object(value, node)
    options = {'type': number, 'tensor': block.type, 'below': block.below}
    return w.one(p.Convert, (column, places), node, **options)


@value_of.register
def _(block: c.Tensor, node: Typed, x: object, state: Eager) -> Array:
    given = np.asarray(x)
    if given.shape == block.type.shape and given.dtype.kind in 'biufcV':
        with np.errstate(all='ignore'), warnings.catch_warnings(action='ignore'):
            made = given.astype(block.type.dtype)
        if block.below is not None and not all(
            0 <= x < block.below for x in given.flat
        ):
            text = f'ints from 0 to {block.below - 1}, as `below={block.below}` says'
            raise ValueError(f'{node}: expected {text}, got {x!r}')
        if is_same(given, made):
            return made
    hint = '; put it in an Optional, which takes None' if x is None else ''
    if given.dtype.kind in 'iu' and given.shape == block.type.shape:
        hint = "; say dtype='int32', or write `InputTransform(float)` before"
    raise TypeError(f'{node}: expected {block.type}, got {x!r}{hint}')


def is_same(given: Array, made: Array) -> bool:
    """Whether no number was changed, but for rounding a float to a float."""
    kinds = [jnp.issubdtype(x.dtype, np.inexact) for x in (given, made)]
    if all(kinds):
        complex_lost = given.dtype.kind == 'c' and made.dtype.kind != 'c'
        overflow = np.isfinite(given) & ~np.isfinite(made)
        return not (complex_lost or overflow.any())
    # Python compares ints and floats exactly, NumPy after rounding.
    return bool(given.tolist() == made.tolist())


# ---- InputTransform ------------------------------------------------------------------


@output_type.register
def _(block: c.InputTransform, node: Typed, state: Inference) -> Type:
    state.objects(node, 'use Function to compute with tensors')
    return ObjectType()


@emit.register
def _(
    block: c.InputTransform, node: Typed, value: Value, places: int, w: Writer
) -> Writing:
    column = yield w.object(value, node)
    if not isinstance(block.fn, Mapping):
        return w.one(p.Transform, (column,), node, fn=block.fn)
    table = {'table': dict(block.fn), 'default': block.default}
    return w.one(p.Lookup, (column,), node, **table)


@value_of.register
def _(block: c.InputTransform, node: Typed, x: object, state: Eager) -> object:
    if not isinstance(block.fn, Mapping):
        return block.fn(x)
    return block.fn.get(x, *block.default) if block.default else block.fn[x]


# ---- OneHotFromList ------------------------------------------------------------------


@emit.register
def _(
    block: c.OneHotFromList, node: Typed, value: Value, places: int, w: Writer
) -> Writing:
    column = yield w.object(value, node)
    size, dtype = len(block.items), block.type.dtype
    key = block.type, 'one hot'
    rows = _one_hot(size, dtype)
    table = {
        item: w.builder.constant((*key, number), row)
        for number, (item, row) in enumerate(zip(block.items, rows, strict=True))
    }
    zero = np.zeros(size, dtype)
    default = () if block.strict else (w.builder.constant(block.type, zero),)
    return w.one(p.Choose, (column,), node, table=table, default=default)


def _one_hot(size: int, dtype: np.dtype[Any]) -> Iterator[Array]:
    """The rows of the identity [size, size], all in one array of twice the size."""
    line = np.zeros(2 * size - 1, dtype)
    line[size - 1] = 1
    line.flags.writeable = False
    return (line[size - 1 - k : 2 * size - 1 - k] for k in range(size))


@value_of.register
def _(block: c.OneHotFromList, node: Typed, x: object, state: Eager) -> Array:
    numbers = {item: number for number, item in enumerate(block.items)}
    number = numbers[x] if block.strict else numbers.get(x, -1)
    return np.array([k == number for k in range(len(numbers))], block.type.dtype)


# ---- constants: FromTensor, Zeros ----------------------------------------------------


def takes_nothing(node: Typed, state: Inference) -> None:
    """Demands that there is no input."""
    try:
        state.types.unify(node.input, VoidType())
    except Mismatch:
        got = state.types.resolve(node.input)
        fail(node, 'no input', str(got), 'drop it first, by Void()')


@output_type.register
def _(block: c.FromTensor, node: Typed, state: Inference) -> Type:
    takes_nothing(node, state)
    check_dtype(node, block.type)
    return block.type


@emit.register
def _(block: c.FromTensor, node: Typed, value: Value, places: int, w: Writer) -> Value:
    index = w.builder.constant(id(block.value), block.value)
    return w.one(p.Constant, (places,), node, index=index)


@value_of.register
def _(block: c.FromTensor, node: Typed, x: None, state: Eager) -> Array:
    return block.value


@output_type.register
def _(block: c.Zeros, node: Typed, state: Inference) -> Type:
    takes_nothing(node, state)
    check_zeros(node, block.type, 'write a type of tensors, such as `Zeros([3])`')
    check_dtype(node, block.type)
    return block.type


@emit.register
def _(block: c.Zeros, node: Typed, value: Value, places: int, w: Writer) -> Writing:
    return (yield emit_zeros(block.type, node, places, w))


@value_of.register
def _(block: c.Zeros, node: Typed, x: None, state: Eager) -> object:
    return zeros(block.type)


# ---- Void ----------------------------------------------------------------------------


@output_type.register
def _(block: c.Void, node: Typed, state: Inference) -> Type:
    return VoidType()


@emit.register
def _(block: c.Void, node: Typed, value: Value, places: int, w: Writer) -> Value:
    return None


@value_of.register
def _(block: c.Void, node: Typed, x: object, state: Eager) -> None:
    return None
