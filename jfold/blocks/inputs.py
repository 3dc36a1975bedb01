# SPDX-License-Identifier: Apache-2.0
"""The blocks that read the data of an example, or arrays beside it, and constants."""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jfold.base.arguments import LEFT_OUT, check_at_least, check_int, expect
from jfold.base.arrays import array_spec
from jfold.base.printing import callable_name
from jfold.base.tracebacks import api_boundary
from jfold.combinators import Block, Function, Pipe, block
from jfold.types import TensorType, Type, TypeLike, convert_to_type

# A function of the data, or a mapping from data to results.
Transform: TypeAlias = Callable[[Any], Any] | Mapping[Any, Any]


@block
class Tensor(Block):
    """A Python value as a tensor of exactly this `shape` and `dtype`; strict.

    A wrong shape, `None`, a string, or a value that the dtype cannot hold (3.7 as
    int32, 300 as int8) raises an `InputError`, which names the example and the path to
    the value. With `below`, so does an int outside of `range(below)`: as the index of a
    table, JAX would turn it into NaN or another row.
    """

    shape: tuple[int, ...]
    dtype: DTypeLike = 'float32'
    below: int | None = None

    def __post_init__(self) -> None:
        type_ = TensorType(self.shape, self.dtype)
        vars(self).update(type=type_, shape=type_.shape)
        if self.below is not None:
            vars(self).update(below=check_at_least('below', self.below, 1))
            if type_.dtype.kind not in 'iu':
                raise TypeError(
                    f'expected a dtype of ints for `below`, got {type_.dtype.name}: '
                    'write `Scalar("int32", below=...)`'
                )

    type: ClassVar[TensorType]

    def __repr__(self) -> str:
        options = repr(self.type.dtype.name)
        if self.below is not None:
            options += f', below={self.below}'
        if len(self.type.shape) > 1:
            return f'Tensor({self.type.shape}, {options})'
        size = ''.join(f'{length}, ' for length in self.type.shape)
        return f'{"Vector" if size else "Scalar"}({size}{options})'


@api_boundary
def Scalar(dtype: DTypeLike = 'float32', *, below: int | None = None) -> Tensor:
    """A Python number as a tensor of shape []; errors and `below` as in `Tensor`.

    >>> print(Scalar('int32').eval(3))
    3
    """
    return Tensor((), dtype, below)


@api_boundary
def Vector(
    size: int, dtype: DTypeLike = 'float32', *, below: int | None = None
) -> Tensor:
    """A list or array of numbers as a tensor [size]; `below`, errors as in `Tensor`."""
    return Tensor((size,), dtype, below)


@block
class InputTransform(Block):
    """A Python function of the data, object to object, run while a schedule is built.

    It runs once for each value, and again if an example of the batch has an error, to
    locate the error. So it should give the same result for the same data. Functions
    written in C, such as `len`, `type` or `operator.attrgetter('name')`, take millions
    of values a second, and so do mappings.

    Args:
      fn: a function of a value; or a mapping with values as keys, which is copied.
      default: the result for a hashable value that is no key of the mapping; when left
        out, such a value is an error.

    >>> (InputTransform(len) >> Scalar()).eval('four').item()
    4.0
    >>> words = InputTransform({'the': 1, 'cat': 2}, default=0)
    >>> [words.eval(word) for word in ('the', 'blue', 'cat')]
    [1, 0, 2]

    Raises:
      TypeError: `fn` is neither callable nor a mapping, or is no mapping, but there is
        a default; ValueError: the mapping is empty, and there is no default.
    """

    fn: Transform
    default: tuple[Any, ...]  # empty, or of one item

    def __init__(self, fn: Transform, *, default: object = LEFT_OUT) -> None:
        defaults = () if default is LEFT_OUT else (default,)
        text = 'a mapping beside `default`' if defaults else 'a callable or a mapping'
        if isinstance(fn, Mapping):
            fn = MappingProxyType(dict(fn))
            if not fn and not defaults:
                raise ValueError('InputTransform: expected at least one key, got none')
        elif defaults or not callable(fn) or isinstance(fn, Block):
            raise TypeError(f'InputTransform: expected {text}, got {fn!r}')
        vars(self).update(fn=fn, default=defaults)

    def __repr__(self) -> str:
        if not isinstance(self.fn, Mapping):
            return f'InputTransform({callable_name(self.fn)})'
        option = ''.join(f', default={value!r}' for value in self.default)
        pairs = itertools.islice(self.fn.items(), 4)
        shown = [f'{reprlib.repr(key)}: {reprlib.repr(value)}' for key, value in pairs]
        shown += ['...'] * (len(self.fn) > 4)
        return f'InputTransform({{{", ".join(shown)}}}{option})'


@block
class OneHotFromList(Block):
    """A one-hot vector [n] of a Python value, by the value's index in `items`.

    All n vectors are constants of the model, [n, n] numbers, so a use costs no more
    than an index. For thousands of items, look the index up by `InputTransform`, and
    make the vector in a `Function` of `Scalar('int32')`.

    Args:
      items: n values, all different as keys of a dict: `1`, `True` and `1.0` are equal.
      strict: whether a hashable value not in `items` is an error; else it gives zeros.

    >>> OneHotFromList('abc', 'int32').eval('b')
    array([0, 1, 0], dtype=int32)

    Raises:
      TypeError: an item is not hashable; ValueError: `items` is empty, or has an item
        twice.
    """

    items: tuple[Any, ...]
    dtype: DTypeLike
    strict: bool

    def __init__(
        self, items: Iterable[Any], dtype: DTypeLike = 'float32', strict: bool = True
    ) -> None:
        is_several = isinstance(items, Iterable)
        expect('items', items, is_several, 'a list', 'write `OneHotFromList([...])`')
        items = tuple(items)
        if not items:
            raise ValueError('OneHotFromList: expected at least one item, got none')
        for item in items:
            hint = 'make keys of them by an InputTransform before'
            expect('items', item, isinstance(item, Hashable), 'hashable values', hint)
        if len(set(items)) < len(items):
            twice = {repr(x) for x in items if items.count(x) > 1}
            got = f'{", ".join(sorted(twice))} more than once'
            raise ValueError(f'OneHotFromList: expected different items, got {got}')
        type_ = TensorType((len(items),), dtype)
        vars(self).update(items=items, dtype=dtype, strict=strict, type=type_)

    type: ClassVar[TensorType]

    def __repr__(self) -> str:
        shown = reprlib.repr(list(self.items))
        strict = '' if self.strict else ', strict=False'
        return f'OneHotFromList({shown}, {self.type.dtype.name!r}{strict})'


@api_boundary
def OneHot(
    start: int, stop: int | None = None, dtype: DTypeLike = 'float32'
) -> OneHotFromList:
    """A one-hot vector of an int in `range(start, stop)`, or in `range(start)`.

    >>> OneHot(3).eval(1), OneHot(-1, 1).eval(-1)
    (array([0., 1., 0.], dtype=float32), array([1., 0.], dtype=float32))

    Raises:
      ValueError: the range is empty; TypeError: `start` or `stop` is no int.
    """
    check_int('start', start)
    ints = range(start) if stop is None else range(start, check_int('stop', stop))
    if not ints:
        raise ValueError(
            f'OneHot: expected `stop` above `start`, got {ints.start} and {ints.stop}'
        )
    return OneHotFromList(ints, dtype)


@block
class Zeros(Block):
    """A constant zero of any type; tuples of zeros, and empty sequences, included.

    >>> Zeros(('int32', 2)).eval(None)
    (array(0, dtype=int32), array([0., 0.], dtype=float32))
    """

    type: Type

    def __init__(self, type: TypeLike) -> None:
        vars(self).update(type=convert_to_type(type))


@block
class Void(Block):
    """A sink: takes any value, gives no result."""


# ---- rows of arrays that are passed when a batch runs --------------------------------


@dataclass(frozen=True)
class Rows:
    """The function `(table [rows, *shape], index) -> row [*shape]` of an `External`."""

    name: str  # of the table, in `external`
    type: TensorType  # of a row

    @property
    def spec(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of a table with a single row."""
        return array_spec((1, *self.type.shape), self.type.dtype)

    def __call__(self, table: Any, index: jax.Array) -> jax.Array:
        # The value of a row beyond the table: NaN, the least int, or False.
        # One object: JAX compiles anew for each static value that equals none before.
        dtype, missing = self.type.dtype, jnp.nan
        if not jnp.issubdtype(dtype, jnp.inexact):
            missing = 0 if dtype.kind == 'b' else int(jnp.iinfo(dtype).min)  # type: ignore[no-untyped-call]
        if table.shape[0] == 0:  # JAX refuses to index an empty axis
            table = jnp.full(self.spec.shape, missing, dtype)
        rows = jnp.asarray(table)
        row: jax.Array = rows.at[index].get(mode='fill', fill_value=missing)
        return row


def shown_rows(table: Any) -> str:
    """Return the type of a table as text for errors, such as 'float32[rows, 3]'."""
    shape = ', '.join(map(str, ('rows', *table.shape[1:])))
    return f'{table.dtype}[{shape}]'


@api_boundary
def External(name: str, type: TypeLike) -> Pipe:
    """A row, at the input's index, of an array passed when a batch runs.

    So results of another network flow in and gradients flow out, and a table of
    embeddings can be held elsewhere. The input is a Python int, the result a tensor. An
    index without a row gives NaN, in an array of ints their least value, of bools
    False; negative indices count from the end, as in Python.

    Args:
      name: the name of the array [rows, *shape] in `Model.apply(..., external={name:
        array})`. Its number of rows may change; JAX then compiles again.
      type: the type of a row, or a short-hand for it, as `convert_to_type` takes them.

    Raises:
      TypeError: `name` is no str, or is empty, or `type` is not that of a tensor.

    >>> import jax.numpy as jnp
    >>> from jfold import Map, Sum
    >>> block = Map(External('features', 2)) >> Sum()
    >>> features = jnp.array([[1.0, 2.0], [30.0, 40.0], [5.0, 6.0]])
    >>> block.eval([0, 2, 2], external={'features': features}).tolist()
    [11.0, 14.0]
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f'External: expected `name` as a word, got {name!r}')
    row = convert_to_type(type)
    if not isinstance(row, TensorType):
        raise TypeError(f'External: expected `type` as that of a tensor, got {row!r}')
    return Scalar('int32') >> Function(Rows(name, row), name=name)
