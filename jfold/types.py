# SPDX-License-Identifier: Apache-2.0
"""The types of what flows between blocks.

A type describes one example's value, never a batch. Everything here is an immutable
value: equal by content, hashable, readable when printed.

    float32[2,128]   tensor          (T, U)    tuple          [T]       sequence
    object           Python value    [T ...]   broadcast      {'x': T}  struct
    void             nothing
"""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jfold.base.dtypes import dtype_of, shape_of
from jfold.base.printing import Printed, in_full
from jfold.base.structs import TUPLE, Form, StructForm, is_struct, opened
from jfold.base.tracebacks import api_boundary
from jfold.base.trampoline import Steps, in_turn, run


class Type:
    """Base of all types.

    Attributes:
      ground: whether no variable is inside.
      of_objects: whether values are made of Python objects alone.
    """

    ground: ClassVar[bool] = True
    of_objects: ClassVar[bool] = False

    @property
    def size(self) -> int | None:
        """How many scalars a value holds; `None` if it is not of tensors alone, or of
        no fixed number."""
        return None

    def terminal_types(self) -> list[Type]:
        """The types in nested tuples and sequences, left to right, void left out.

        >>> TupleType('int32', SequenceType([2])).terminal_types()
        [int32[], float32[2]]
        """
        waiting, found = [self], list[Type]()
        while waiting:
            each = waiting.pop()
            if isinstance(each, Nested):
                waiting.extend(reversed(each.parts))
            elif not isinstance(each, VoidType):
                found.append(each)
        return found

    def flatten(self, value: object) -> list[Any]:
        """The values at the terminals, of each item of a sequence in turn.

        Of a broadcast, which has one item without end, those of the item.

        >>> TupleType('int32', SequenceType([])).flatten((1, [2.0, 3.0]))
        [1, 2.0, 3.0]

        Raises:
          ValueError: the value is of another type.
        """
        waiting, found = [(self, value)], list[Any]()
        while waiting:
            type_, each = waiting.pop()
            if isinstance(type_, Product):
                waiting += reversed(
                    [*zip(type_.items, _parts(type_, each), strict=True)]
                )
            elif isinstance(type_, SequenceType):
                waiting += [(type_.item, x) for x in reversed(_parts(type_, each))]
            elif isinstance(type_, BroadcastType):
                waiting.append((type_.item, _repeated(type_, each)))
            elif not isinstance(type_, VoidType):
                found.append(each)
        return found

    def unflatten(self, values: Iterable[Any], like: object = None) -> Any:
        """A value with the given ones at its terminals; the inverse of `flatten`.

        Args:
          like: a value with sequences as long as those wanted; needed if there are any.

        >>> TupleType('int32', SequenceType([])).unflatten([4, 5, 6], (1, [2.0, 3.0]))
        (4, [5, 6])

        Raises:
          ValueError: there are more values, or fewer; `like` is needed, or is of
            another type.
        """
        rest = iter(values)
        made = run(_unflattened(self, rest, like))
        if more := [*rest]:
            raise ValueError(f'expected as many values as terminals, got more: {more}')
        return made

    def _pieces(self) -> Iterator[str | Printed]:
        """What it prints as; types that hold others give these as they are."""
        yield repr(self)


class Nested(Type):
    """Base of types with others inside, its `parts`.

    They may be nested without limit, and one may be a part of many: so whatever would
    look at all of them is found when a type is made, or goes through each part once.
    """

    parts: tuple[Type, ...]
    form: Hashable = None  # what is equal, besides parts, of types that are
    _head: tuple[type, Hashable, int, int]  # equal, if types are
    _may_hold_objects: ClassVar[bool] = True

    def _hold(self, *parts: Type) -> None:
        objects = bool(parts) and all(part.of_objects for part in parts)
        vars(self).update(
            parts=parts,
            ground=all(part.ground for part in parts),
            of_objects=self._may_hold_objects and objects,
            # The hashes of parts are known, so this takes no recursion; and it is kept,
            # since types are keys of tables.
            _head=(type(self), self.form, len(parts), hash(parts)),
        )

    def around(self, parts: Iterable[Type]) -> Self:
        """The same type with other parts."""
        return type(self)(*parts)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Nested) and _are_equal(self, other)

    def __hash__(self) -> int:
        return hash(self._head)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.parts  # a hash says nothing to another process

    def __repr__(self) -> str:
        return in_full(self)


def _are_equal(left: Nested, right: Nested) -> bool:
    waiting: list[tuple[Type, Type]] = [(left, right)]
    seen: set[tuple[int, int]] = set()
    while waiting:
        a, b = waiting.pop()
        if a is b or (id(a), id(b)) in seen:
            continue
        if not (isinstance(a, Nested) and isinstance(b, Nested)):
            if isinstance(a, Nested) or isinstance(b, Nested) or a != b:
                return False
        elif a._head != b._head:  # most that differ are told apart here
            return False
        else:
            seen.add((id(a), id(b)))
            waiting.extend(zip(a.parts, b.parts, strict=True))
    return True


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

    @api_boundary
    def __init__(self, shape: Iterable[int], dtype: DTypeLike = 'float32') -> None:
        vars(self).update(shape=shape_of(shape), dtype=dtype_of(dtype))

    def __repr__(self) -> str:
        return f'{self.dtype.name}[{",".join(map(str, self.shape))}]'

    @property
    def size(self) -> int:
        """How many scalars it holds."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def differentiable(self) -> bool:
        """Whether gradients can flow through a value of this type."""
        return bool(jnp.issubdtype(self.dtype, np.inexact))


@dataclass(frozen=True, init=False, repr=False)
class KeyType(TensorType):
    """A key of `jax.random`, of one stream; as numbers, which buffers hold.

    >>> KeyType('dropout')
    key[dropout]
    """

    name: str

    def __init__(self, name: str) -> None:
        super().__init__((2,), 'uint32')
        vars(self).update(name=name)

    def __repr__(self) -> str:
        return f'key[{self.name}]'


class Product(Nested):
    """Base of types whose values hold one of each of some types: tuples and structs."""

    items: tuple[Type, ...]
    form: Form = TUPLE

    @property
    def size(self) -> int | None:
        """How many scalars the items hold together, if these are tensors."""
        return run(_total(self, lambda each: each.size, {}))

    def place(self, key: object) -> int | None:
        """That of the item of a key; `None` if there is no such."""
        return self.form.place(key, len(self))

    def _pieces(self) -> Iterator[str | Printed]:
        yield from self.form.around(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Type]:
        return iter(self.items)


@dataclass(frozen=True, init=False, eq=False, repr=False)
class TupleType(Product):
    """A tuple of values of the given types; `TupleType(a, b)` or `TupleType((a, b))`,
    or a list of types, where one of numbers is a shape.

    >>> TupleType('int32', [2])
    (int32[], float32[2])
    """

    items: tuple[Type, ...]

    @api_boundary
    def __init__(self, *items: TypeLike | Iterator[TypeLike]) -> None:
        given: Any = items
        if len(items) == 1 and _holds_items(items[0]):
            given = items[0]
        vars(self).update(items=tuple(map(convert_to_type, given)))
        self._hold(*self.items)

    def __getitem__(self, key: int | slice) -> Type:
        items = self.items[key]
        return TupleType(items) if isinstance(items, tuple) else items


def _holds_items(given: object) -> bool:
    """Whether it is no short-hand for one type, but holds several."""
    if isinstance(given, list):
        return any(isinstance(each, Type) for each in given)
    return isinstance(given, tuple | Iterator)


@dataclass(frozen=True, init=False, eq=False, repr=False)
class StructType(Product):
    """A dict, or an object that JAX takes apart, of values of the given types.

    Unlike a tuple it is one argument of a function.

    >>> convert_to_type({'h': [2], 'c': 'int32'})
    {'c': int32[], 'h': float32[2]}
    """

    form: StructForm
    items: tuple[Type, ...]

    def __init__(self, form: StructForm, items: Iterable[Type]) -> None:
        vars(self).update(form=form, items=tuple(items))
        self._hold(*self.items)

    def around(self, parts: Iterable[Type]) -> StructType:
        """The same type with other parts."""
        return StructType(self.form, parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return StructType, (self.form, self.items)


@dataclass(frozen=True, init=False, eq=False, repr=False)
class SequenceType(Nested):
    """A finite sequence of values of one type; its length is known per example.

    >>> SequenceType([3])
    [float32[3]]
    """

    item: Type

    @api_boundary
    def __init__(self, item: TypeLike) -> None:
        vars(self).update(item=convert_to_type(item))
        self._hold(self.item)

    def _pieces(self) -> Iterator[str | Printed]:
        yield from ('[', self.item, ']')


@dataclass(frozen=True, init=False, eq=False, repr=False)
class BroadcastType(Nested):
    """An infinite repetition of one value; not equal to any `SequenceType`."""

    item: Type
    _may_hold_objects: ClassVar[bool] = False

    @api_boundary
    def __init__(self, item: TypeLike) -> None:
        vars(self).update(item=convert_to_type(item))
        self._hold(self.item)

    def _pieces(self) -> Iterator[str | Printed]:
        yield from ('[', self.item, ' ...]')


@dataclass(frozen=True)
class ObjectType(Type):
    """An arbitrary Python value, seen only while a schedule is built."""

    of_objects: ClassVar[bool] = True

    def __repr__(self) -> str:
        return 'object'


@dataclass(frozen=True)
class VoidType(Type):
    """No value: what a constant takes and a sink gives."""

    def __repr__(self) -> str:
        return 'void'


# What `convert_to_type` reads.
TypeLike: TypeAlias = (
    Type | tuple[Any, ...] | list[Any] | dict[Any, Any] | int | np.integer | DTypeLike
)


@api_boundary
def convert_to_type(spec: TypeLike) -> Type:
    """Reads the short-hands for types.

    A `Type` is itself, a tuple a `TupleType`, a list a tensor shape with an optional
    dtype at its end, an int `n` a vector [n], a dtype or its name a scalar; a dict, or
    a dataclass that JAX knows, with types inside is a `StructType`.

    >>> convert_to_type(('int32', 4, [2, 3, 'float16']))
    (int32[], float32[4], float16[2,3])

    Raises:
      TypeError: `spec` is none of these.
    """
    return run(_converted(spec))


def _converted(spec: TypeLike) -> Steps[Type]:
    """The same off Python's stack, for tuples in tuples."""
    if isinstance(spec, Type):
        return spec
    if isinstance(spec, tuple):
        return TupleType(tuple((yield in_turn(map(_converted, spec)))))
    if isinstance(spec, list):
        has_dtype = bool(spec) and not isinstance(spec[-1], int | np.integer)
        return TensorType(spec[:-1], spec[-1]) if has_dtype else TensorType(spec)
    if isinstance(spec, int | np.integer):
        return TensorType((int(spec),))
    if isinstance(spec, str | np.dtype) or callable(spec):
        return TensorType((), spec)
    if is_struct(spec) and (parts := opened(spec)[0]):
        items = yield in_turn(map(_converted, parts))
        return StructType(StructForm.of(spec), items)
    raise TypeError(
        f'expected a type or a short-hand for one, got {spec!r}; write a tuple of '
        "types, a list of ints, an int, or a dtype such as 'int32'"
    )


def leaf_types(type_: Type) -> Iterator[Type]:
    """The types at the leaves of nested tuples, left to right, void left out."""
    waiting = [type_]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Product):
            waiting.extend(reversed(each.items))
        elif not isinstance(each, VoidType):
            yield each


def tensors(type_: Type) -> Iterator[TensorType]:
    """The types of the tensors in nested tuples and sequences, left to right."""
    return (each for each in leaf_types(type_) if isinstance(each, TensorType))


def count_terminals(type_: Type) -> int:
    """How many there are in nested tuples, which may be more than could be listed."""
    count = run(_total(type_, lambda each: int(not isinstance(each, VoidType)), {}))
    assert count is not None
    return count


def _total(
    type_: Type, of: Callable[[Type], int | None], known: dict[int, int | None]
) -> Steps[int | None]:
    """The sum over what stands in nested tuples; none if something has no number."""
    if not isinstance(type_, Product):
        return of(type_)
    # One part may be in many places, so that there are 2^n of the innermost.
    if id(type_) not in known:
        parts = yield in_turn(_total(each, of, known) for each in type_.items)
        known[id(type_)] = None if None in parts else sum(parts)
    return known[id(type_)]


def _unflattened(type_: Type, values: Iterator[Any], like: object) -> Steps[Any]:
    if isinstance(type_, Product):
        likes = [None] * len(type_) if like is None else _parts(type_, like)
        pairs = zip(type_.items, likes, strict=True)
        items = yield in_turn(_unflattened(x, values, y) for x, y in pairs)
        return type_.form.closed(items)
    if isinstance(type_, SequenceType):
        if like is None:
            raise ValueError(f'expected `like`, for the length of {type_}, got none')
        parts = (_unflattened(type_.item, values, x) for x in _parts(type_, like))
        return list((yield in_turn(parts)))
    if isinstance(type_, BroadcastType):
        inside = None if like is None else _repeated(type_, like)
        return itertools.repeat((yield _unflattened(type_.item, values, inside)))
    if isinstance(type_, VoidType):
        return None
    for value in values:
        return value
    raise ValueError('expected as many values as terminals, got fewer')


def _parts(type_: Product | SequenceType, value: object) -> list[Any]:
    """The items of a value of a type."""
    form = type_.form if isinstance(type_, Product) else TUPLE
    try:
        parts = form.opened(value)
    except TypeError:
        parts = None
    if parts is None or (isinstance(type_, Product) and len(parts) != len(type_)):
        raise ValueError(f'expected a value of type {type_}, got {reprlib.repr(value)}')
    return parts


def _repeated(type_: BroadcastType, value: Any) -> object:
    """The item of a value without end, such as `itertools.repeat` makes."""
    if hasattr(type(value), '__len__') or not hasattr(type(value), '__iter__'):
        raise ValueError(f'expected a value of type {type_}, got {reprlib.repr(value)}')
    return next(iter(value))


def pack(type_: Type, leaves: Iterable[Any]) -> Any:
    """A value of `type_`, (nested) tuples or structs, filled with leaves in order."""
    return run(_pack(type_, iter(leaves)))


def _pack(type_: Type, leaves: Iterator[Any]) -> Steps[Any]:
    if not isinstance(type_, Product):
        return None if isinstance(type_, VoidType) else next(leaves)
    items = yield in_turn(_pack(item, leaves) for item in type_)
    return type_.form.closed(items)
