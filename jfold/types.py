# SPDX-License-Identifier: Apache-2.0
"""The types of what flows between blocks, and their unification.

A type describes one example's value, never a batch. Everything here is an immutable
value: equal by content, hashable, readable when printed.

    float32[2,128]   tensor          (T, U)    tuple          [T]   sequence
    object           Python value    [T ...]   broadcast      void  nothing
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from jfold.tracebacks import boundary


class Type:
    """Base of all types."""


@dataclass(frozen=True, init=False)
class TensorType(Type):
    """An array of fixed `shape` and `dtype`, without a batch dimension.

    >>> TensorType((2, 128))
    float32[2,128]

    Raises:
      TypeError: `shape` is not a tuple or list of non-negative ints, or `dtype` is not
        a number type.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @boundary
    def __init__(self, shape: Iterable[int], dtype: Any = 'float32') -> None:
        object.__setattr__(self, 'shape', _shape(shape))
        object.__setattr__(self, 'dtype', _dtype(dtype))

    def __repr__(self) -> str:
        return f'{self.dtype.name}[{",".join(map(str, self.shape))}]'

    @property
    def size(self) -> int:
        """The number of scalars."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def differentiable(self) -> bool:
        """Whether gradients can flow through a value of this type."""
        return bool(jnp.issubdtype(self.dtype, np.inexact))


@dataclass(frozen=True, init=False)
class TupleType(Type):
    """A tuple of values of the given types; `TupleType(a, b)` or `TupleType((a, b))`.

    >>> TupleType('int32', [2])
    (int32[], float32[2])
    """

    items: tuple[Type, ...]

    @boundary
    def __init__(self, *items: Any) -> None:
        if len(items) == 1 and isinstance(items[0], tuple | Iterator):
            items = tuple(items[0])
        object.__setattr__(self, 'items', tuple(map(convert_to_type, items)))

    def __repr__(self) -> str:
        comma = ',' if len(self.items) == 1 else ''
        return f'({", ".join(map(repr, self.items))}{comma})'

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Type]:
        return iter(self.items)

    def __getitem__(self, key: int | slice) -> Type:
        items = self.items[key]
        return TupleType(items) if isinstance(items, tuple) else items


@dataclass(frozen=True, init=False)
class SequenceType(Type):
    """A finite sequence of values of one type; its length is known per example.

    >>> SequenceType([3])
    [float32[3]]
    """

    item: Type

    @boundary
    def __init__(self, item: Any) -> None:
        object.__setattr__(self, 'item', convert_to_type(item))

    def __repr__(self) -> str:
        return f'[{self.item!r}]'


@dataclass(frozen=True, init=False)
class BroadcastType(Type):
    """An infinite repetition of one value; not equal to any `SequenceType`."""

    item: Type

    @boundary
    def __init__(self, item: Any) -> None:
        object.__setattr__(self, 'item', convert_to_type(item))

    def __repr__(self) -> str:
        return f'[{self.item!r} ...]'


@dataclass(frozen=True)
class ObjectType(Type):
    """An arbitrary Python value, seen only while a schedule is built."""

    def __repr__(self) -> str:
        return 'object'


@dataclass(frozen=True)
class VoidType(Type):
    """No value: what a constant takes and a sink gives."""

    def __repr__(self) -> str:
        return 'void'


@dataclass(frozen=True)
class TypeVariable(Type):
    """A type not yet known; exists only during inference."""

    number: int

    def __repr__(self) -> str:
        return '?'


@boundary
def convert_to_type(spec: Any) -> Type:
    """Reads the short-hands for types.

    A `Type` is itself, a tuple a `TupleType`, a list a tensor shape with an optional
    dtype at its end, an int `n` a vector [n], a dtype or its name a scalar.

    >>> convert_to_type(('int32', 4, [2, 3, 'float16']))
    (int32[], float32[4], float16[2,3])

    Raises:
      TypeError: `spec` is none of these.
    """
    if isinstance(spec, Type):
        return spec
    if isinstance(spec, tuple):
        return TupleType(spec)
    if isinstance(spec, list):
        has_dtype = bool(spec) and not isinstance(spec[-1], int | np.integer)
        return TensorType(spec[:-1], spec[-1]) if has_dtype else TensorType(spec)
    if isinstance(spec, int | np.integer):
        return TensorType((int(spec),))
    if isinstance(spec, str | np.dtype) or callable(spec):
        return TensorType((), spec)
    raise TypeError(
        f'expected a type or a short-hand for one, got {spec!r}; write a tuple of '
        "types, a list of ints, an int, or a dtype such as 'int32'"
    )


def terminals(type_: Type) -> Iterator[Type]:
    """The types at the leaves of nested tuples, left to right, void left out."""
    if isinstance(type_, TupleType):
        for item in type_:
            yield from terminals(item)
    elif not isinstance(type_, VoidType):
        yield type_


def is_object(type_: Type) -> bool:
    """Whether values of this type are made of Python objects alone."""
    if isinstance(type_, TupleType):
        return len(type_) > 0 and all(map(is_object, type_))
    if isinstance(type_, SequenceType):
        return is_object(type_.item)
    return isinstance(type_, ObjectType)


class Mismatch(Exception):
    """Two types that were to be equal are not."""


@dataclass
class Unifier:
    """What is known of the type variables of one expression."""

    bound: dict[TypeVariable, Type] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def fresh(self) -> TypeVariable:
        """A variable that nothing is known of."""
        return TypeVariable(next(self.numbers))

    def head(self, type_: Type) -> Type:
        """`type_` with its outermost variable replaced by what it is bound to."""
        seen = []
        while isinstance(type_, TypeVariable) and type_ in self.bound:
            seen.append(type_)
            type_ = self.bound[type_]
        self.bound.update(dict.fromkeys(seen[:-1], type_))  # shorter the next time
        return type_

    def resolve(self, type_: Type) -> Type:
        """`type_` with all bound variables replaced."""
        type_ = self.head(type_)
        if isinstance(type_, TupleType):
            return TupleType(map(self.resolve, type_))
        if isinstance(type_, SequenceType | BroadcastType):
            return type(type_)(self.resolve(type_.item))
        return type_

    def known(self, type_: Type) -> bool:
        """Whether no variable is left in `type_`."""
        type_ = self.head(type_)
        if isinstance(type_, TupleType):
            return all(map(self.known, type_))
        if isinstance(type_, SequenceType | BroadcastType):
            return self.known(type_.item)
        return not isinstance(type_, TypeVariable)

    def unify(self, left: Type, right: Type) -> None:
        """Makes both types equal by binding variables.

        Raises:
          Mismatch: they cannot be.
        """
        left, right = self.head(left), self.head(right)
        if left == right:
            return
        if isinstance(left, TypeVariable):
            self._bind(left, right)
        elif isinstance(right, TypeVariable):
            self._bind(right, left)
        else:
            self._unify_parts(left, right)

    def _bind(self, variable: TypeVariable, type_: Type) -> None:
        if self._occurs(variable, type_):
            raise Mismatch('a type would contain itself')
        self.bound[variable] = type_

    def _occurs(self, variable: TypeVariable, type_: Type) -> bool:
        type_ = self.head(type_)
        if isinstance(type_, TupleType):
            return any(self._occurs(variable, item) for item in type_)
        if isinstance(type_, SequenceType | BroadcastType):
            return self._occurs(variable, type_.item)
        return type_ == variable

    def _unify_parts(self, left: Type, right: Type) -> None:
        if isinstance(left, TupleType) and isinstance(right, TupleType):
            if len(left) == len(right):
                for pair in zip(left, right, strict=True):
                    self.unify(*pair)
                return
        elif type(left) is type(right) and isinstance(
            left, SequenceType | BroadcastType
        ):
            self.unify(left.item, right.item)  # type: ignore[attr-defined]
            return
        raise Mismatch


def _shape(shape: Iterable[int]) -> tuple[int, ...]:
    whole = isinstance(shape, tuple | list) and all(
        isinstance(n, int | np.integer) and n >= 0 for n in shape
    )
    if not whole:
        raise TypeError(
            f'expected `shape` as a tuple or list of non-negative ints, got {shape!r}'
        )
    return tuple(map(int, shape))


def _dtype(dtype: Any) -> np.dtype[Any]:
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
    # What JAX adds, such as bfloat16, is of NumPy's kind V but not built in.
    added = dtype.kind == 'V' and dtype.isbuiltin == 2
    return added or (dtype.kind in 'biufc' and dtype.char not in 'gG')
