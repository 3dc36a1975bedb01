# SPDX-License-Identifier: Apache-2.0
"""The types of values that flow between blocks.

A type describes one example's value, never a batch. Types are immutable, equal by
content, hashable, and readable when printed.

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

from jfold.base.arguments import is_int
from jfold.base.arrays import dtype_of, shape_of
from jfold.base.printing import Printed, full_text
from jfold.base.structs import TUPLE, Form, StructForm, is_struct
from jfold.base.tracebacks import api_boundary


class Type:
    """A base class of all types.

    Attributes:
      ground: whether the type has no type variable inside.
      of_objects: whether its values are Python objects, or are composed of these alone.
    """

    ground: ClassVar[bool] = True
    of_objects: ClassVar[bool] = False

    @property
    def size(self) -> int | None:
        """The number of scalars in a value; `None` if it holds objects or sequences."""
        return None

    def terminal_types(self) -> list[Type]:
        """Return the terminals: the innermost types, left to right, without void.

        >>> TupleType('int32', SequenceType([2])).terminal_types()
        [int32[], float32[2]]
        """
        return [*leaf_types(self, Nested)]

    def flatten(self, value: object) -> list[Any]:
        """Return the innermost values inside `value`, left to right, in a flat list.

        They have the types `terminal_types`, for each item of a sequence in turn. A
        broadcast gives the values of one item.

        >>> TupleType('int32', SequenceType([])).flatten((1, [2.0, 3.0]))
        [1, 2.0, 3.0]

        Raises:
          ValueError: a tuple or sequence in the type is something else in the value.
        """
        waiting, values = [(self, value)], list[Any]()
        while waiting:
            type_, part = waiting.pop()
            if isinstance(type_, Product):
                waiting += reversed(
                    [*zip(type_.items, _parts(type_, part), strict=True)]
                )
            elif isinstance(type_, SequenceType):
                waiting += [(type_.item, x) for x in reversed(_parts(type_, part))]
            elif isinstance(type_, BroadcastType):
                waiting.append((type_.item, _repeated(type_, part)))
            elif not isinstance(type_, VoidType):
                values.append(part)
        return values

    def unflatten(self, values: Iterable[Any], like: object = None) -> Any:
        """Return a value of this type from its innermost `values`, inverting `flatten`.

        Args:
          like: a value of this type, whose sequences have the lengths wanted; may be
            left out if there are none.

        >>> TupleType('int32', SequenceType([])).unflatten([4, 5, 6], (1, [2.0, 3.0]))
        (4, [5, 6])

        Raises:
          ValueError: `values` are more or fewer than the terminals; `like` is missing,
            or is of another type.
        """
        remaining = iter(values)
        result = _unflattened(self, remaining, like)
        if more := [*remaining]:
            raise ValueError(f'expected as many values as terminals, got more: {more}')
        return result

    def _pieces(self) -> Iterator[str | Printed]:
        """Iterate over the pieces of the type's text: strings, and types inside it."""
        yield repr(self)


class Nested(Type):
    """A base class of types that have other types inside, as `parts`.

    Types share parts: n nested types may have 2^n leaves. So facts about all parts are
    stored when a type is made, and walks visit each part once.
    """

    parts: tuple[Type, ...]
    form: Hashable = None  # equal types have equal classes, parts and forms
    _head: tuple[type, Hashable, int, int]  # a digest: equal for equal types
    _may_hold_objects: ClassVar[bool] = True

    def _hold(self, *parts: Type) -> None:
        objects = bool(parts) and all(part.of_objects for part in parts)
        vars(self).update(
            parts=parts,
            ground=all(part.ground for part in parts),
            of_objects=self._may_hold_objects and objects,
            # Parts have stored their hashes. This type stores its own too, because
            # types are keys of tables.
            _head=(type(self), self.form, len(parts), hash(parts)),
        )

    def around(self, parts: Iterable[Type]) -> Self:
        """Return a type of the same class and form with other parts."""
        return type(self)(*parts)

    def __eq__(self, other: object) -> bool:
        waiting: list[tuple[object, object]] = [(self, other)]
        seen: set[tuple[int, int]] = set()
        while waiting:
            a, b = waiting.pop()
            if a is b or (id(a), id(b)) in seen:
                continue
            if not (isinstance(a, Nested) and isinstance(b, Nested)):
                if isinstance(a, Nested) or isinstance(b, Nested) or a != b:
                    return False
            elif a._head != b._head:  # so for most types that differ
                return False
            else:
                seen.add((id(a), id(b)))
                waiting.extend(zip(a.parts, b.parts, strict=True))
        return True

    def __hash__(self) -> int:
        return hash(self._head)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.parts  # no `_head`: hashes differ between processes

    def __repr__(self) -> str:
        return full_text(self)


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
        """The number of scalars in the array."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def differentiable(self) -> bool:
        """Return whether gradients flow: the dtype is floating or complex."""
        return bool(jnp.issubdtype(self.dtype, np.inexact))


@dataclass(frozen=True, init=False, repr=False)
class KeyType(TensorType):
    """A key of `jax.random` for one stream, stored as key data [2] uint32.

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
    """A base class of tuple and struct types, whose values hold a value per item."""

    items: tuple[Type, ...]
    form: Form = TUPLE

    @property
    def size(self) -> int | None:
        """The total number of scalars; `None` if any item has objects or sequences."""
        return _total(self, lambda type_: type_.size, {})

    def place(self, key: object) -> int | None:
        """Return the index from 0 of the item `value[key]`; `None` if there is none."""
        return self.form.place(key, len(self))

    def _pieces(self) -> Iterator[str | Printed]:
        yield from self.form.around(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Type]:
        return iter(self.items)


@dataclass(frozen=True, init=False, eq=False, repr=False)
class TupleType(Product):
    """A tuple of values: `TupleType(a, b)`, of types or short-hands for them.

    >>> TupleType('int32', [2])
    (int32[], float32[2])
    """

    items: tuple[Type, ...]

    @api_boundary
    def __init__(self, *items: TypeLike | Iterator[TypeLike]) -> None:
        specs: Any = items
        if len(items) == 1:
            (one,) = items
            # A list without types, such as `[3]`, is the shape of a tensor.
            is_list = isinstance(one, list) and any(isinstance(x, Type) for x in one)
            specs = one if is_list or isinstance(one, tuple | Iterator) else items
        vars(self).update(items=tuple(map(convert_to_type, specs)))
        self._hold(*self.items)

    def __getitem__(self, key: int | slice) -> Type:
        items = self.items[key]
        return TupleType(items) if isinstance(items, tuple) else items


@dataclass(frozen=True, init=False, eq=False, repr=False)
class StructType(Product):
    """A dict, or another pytree node, of values of the given types.

    It is one argument of a function, whereas a tuple is unpacked into arguments.

    >>> convert_to_type({'h': [2], 'c': 'int32'})
    {'c': int32[], 'h': float32[2]}
    """

    form: StructForm
    items: tuple[Type, ...]

    def __init__(self, form: StructForm, items: Iterable[Type]) -> None:
        vars(self).update(form=form, items=tuple(items))
        self._hold(*self.items)

    def around(self, parts: Iterable[Type]) -> StructType:
        """Return a struct type of the same form with other parts."""
        return StructType(self.form, parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return StructType, (self.form, self.items)


@dataclass(frozen=True, init=False, eq=False, repr=False)
class _OfItems(Nested):
    item: Type
    _end: ClassVar[str] = ']'

    @api_boundary
    def __init__(self, item: TypeLike) -> None:
        vars(self).update(item=convert_to_type(item))
        self._hold(self.item)

    def _pieces(self) -> Iterator[str | Printed]:
        yield from ('[', self.item, self._end)


@dataclass(frozen=True, init=False, eq=False, repr=False)
class SequenceType(_OfItems):
    """A finite sequence of values of one type; each example has its own length.

    >>> SequenceType([3])
    [float32[3]]
    """


@dataclass(frozen=True, init=False, eq=False, repr=False)
class BroadcastType(_OfItems):
    """An infinite repetition of one value; it equals no `SequenceType`."""

    _may_hold_objects: ClassVar[bool] = False
    _end: ClassVar[str] = ' ...]'


@dataclass(frozen=True)
class ObjectType(Type):
    """An arbitrary Python value; only the host reads it, to build a schedule."""

    of_objects: ClassVar[bool] = True

    def __repr__(self) -> str:
        return 'object'


@dataclass(frozen=True)
class VoidType(Type):
    """The type without values: constants take it as input, sinks return it."""

    def __repr__(self) -> str:
        return 'void'


# The types, and short-hands for types, that `convert_to_type` takes.
TypeLike: TypeAlias = (
    Type | tuple[Any, ...] | list[Any] | dict[Any, Any] | int | np.integer | DTypeLike
)


@api_boundary
def convert_to_type(spec: TypeLike) -> Type:
    """Return the type that a short-hand stands for.

    A `Type` stands for itself, a tuple for a `TupleType`, a list for a tensor of that
    shape, with an optional dtype as last item, an int `n` for a vector [n], a dtype or
    its name for a scalar. A dict with types inside stands for a `StructType`, and so
    does a dataclass that JAX knows.

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
        has_dtype = bool(spec) and not is_int(spec[-1])
        return TensorType(spec[:-1], spec[-1]) if has_dtype else TensorType(spec)
    if is_int(spec):
        return TensorType((int(spec),))
    if isinstance(spec, str | np.dtype) or callable(spec):
        return TensorType((), spec)
    if is_struct(spec) and (form := StructForm.of(spec)).keys:
        return StructType(form, map(convert_to_type, form.opened(spec)))
    raise TypeError(
        f'expected a type or a short-hand for one, got {spec!r}; write a tuple or dict '
        "of types, a list of ints, an int, or a dtype such as 'int32'"
    )


def leaf_types(type_: Type, around: type[Nested] = Product) -> Iterator[Type]:
    """Iterate over the leaves of nested tuples and structs, in order, without void.

    `around` is the class of the types that are no leaves.
    """
    waiting = [type_]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, around):
            waiting.extend(reversed(inner.parts))
        elif not isinstance(inner, VoidType):
            yield inner


def tensors(type_: Type) -> Iterator[TensorType]:
    """Iterate over the tensor types among `leaf_types(type_)`, in order."""
    return (leaf for leaf in leaf_types(type_) if isinstance(leaf, TensorType))


def count_leaves(type_: Type) -> int:
    """Return the number of `leaf_types(type_)`, which may be too many to list."""
    count = _total(type_, lambda leaf: int(not isinstance(leaf, VoidType)), {})
    assert count is not None
    return count


def _total(
    type_: Type, count: Callable[[Type], int | None], totals: dict[int, int | None]
) -> int | None:
    """Return the sum of `count(leaf)` in `type_`; `None` if a count is `None`."""
    if not isinstance(type_, Product):
        return count(type_)
    # Types share parts: n nested types, each a pair of the next, have 2^n leaves. So
    # `totals` is a memo of sums, by the `id` of a type.
    if id(type_) not in totals:
        counts: list[Any] = [_total(x, count, totals) for x in type_.items]
        totals[id(type_)] = None if None in counts else sum(counts)
    return totals[id(type_)]


def _unflattened(type_: Type, values: Iterator[Any], like: object) -> Any:
    if isinstance(type_, Product):
        likes = [None] * len(type_) if like is None else _parts(type_, like)
        pairs = zip(type_.items, likes, strict=True)
        return type_.form.closed([_unflattened(x, values, y) for x, y in pairs])
    if isinstance(type_, SequenceType):
        if like is None:
            raise ValueError(f'expected `like`, for the length of {type_}, got none')
        return [_unflattened(type_.item, values, x) for x in _parts(type_, like)]
    if isinstance(type_, BroadcastType):
        item = None if like is None else _repeated(type_, like)
        return itertools.repeat(_unflattened(type_.item, values, item))
    if isinstance(type_, VoidType):
        return None
    for value in values:
        return value
    raise ValueError('expected as many values as terminals, got fewer')


def _parts(type_: Product | SequenceType, value: object) -> list[Any]:
    """Return the items of a value, or raise ValueError if it is of another type."""
    form = type_.form if isinstance(type_, Product) else TUPLE
    try:
        parts = form.opened(value)
    except TypeError:
        parts = None
    if parts is None or (isinstance(type_, Product) and len(parts) != len(type_)):
        raise ValueError(f'expected a value of type {type_}, got {reprlib.repr(value)}')
    return parts


def _repeated(type_: BroadcastType, value: Any) -> object:
    """Return the item repeated by `value`, an `itertools.repeat`; else ValueError."""
    if hasattr(type(value), '__iter__') and not hasattr(type(value), '__len__'):
        for item in value:
            return item
    raise ValueError(f'expected a value of type {type_}, got {reprlib.repr(value)}')


def pack(type_: Type, leaves: Iterable[Any]) -> Any:
    """Return a value of `type_` made of `leaves`, one per `leaf_types(type_)`."""
    remaining = iter(leaves)
    if not isinstance(type_, Product):
        return None if isinstance(type_, VoidType) else next(remaining)
    return type_.form.closed([pack(item, remaining) for item in type_])
