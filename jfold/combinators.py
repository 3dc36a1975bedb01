# SPDX-License-Identifier: Apache-2.0
"""The language: blocks, and the ways to compose them.

A block maps one example's value to another. Blocks are small immutable values: one may
be used in any number of places, and nothing happens before `jfold.compile`. Names and
meanings follow TensorFlow Fold (Looks et al. 2017, section 3).
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import MISSING
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

from jax.typing import DTypeLike

from jfold.blocks import (
    AllOf,
    Block,
    Convertible,
    Fields,
    FromTensor,
    Function,
    Pipe,
    Record,
    block,
    convert_to_block,
    key_value_pairs,
)
from jfold.declarations import ForwardDeclaration, Reference, Share
from jfold.errors import expect, integer, whole
from jfold.functions import concatenate
from jfold.printing import Printed, callable_name, in_braces, shown_table
from jfold.sequence_blocks import (
    RNN,
    Broadcast,
    Chain,
    Fold,
    GetItem,
    Length,
    Map,
    NGrams,
    Nth,
    Padded,
    Pick,
    Reduce,
    Regroup,
    Slice,
    Zip,
    ZipWith,
)
from jfold.tracebacks import boundary
from jfold.types import TensorType, Type, TypeLike, convert_to_type

__all__ = [
    'RNN',
    'AllOf',
    'Block',
    'Broadcast',
    'Chain',
    'Concat',
    'Fold',
    'ForwardDeclaration',
    'FromTensor',
    'Function',
    'GetItem',
    'Identity',
    'InputTransform',
    'Length',
    'Map',
    'Metric',
    'NGrams',
    'Nth',
    'OneHot',
    'OneHotFromList',
    'OneOf',
    'Optional',
    'Padded',
    'Pick',
    'Pipe',
    'Record',
    'Reduce',
    'Reference',
    'Regroup',
    'Scalar',
    'Share',
    'Slice',
    'Tensor',
    'Vector',
    'Void',
    'Zeros',
    'Zip',
    'ZipWith',
    'convert_to_block',
]

# Of the data: a function, or a table of what it gives; a function, or a block.
Transform: TypeAlias = Callable[[Any], Any] | Mapping[Any, Any]
KeyFunction: TypeAlias = Callable[[Any], Any] | Block


def _block_or_none(value: Convertible | None) -> Block | None:
    return None if value is None else convert_to_block(value)


# ---- input ---------------------------------------------------------------------------


@block
class Tensor(Block):
    """A Python value as a tensor of exactly this shape and dtype; strict.

    A wrong shape, `None`, a string, a value that the dtype cannot hold (3.7 as int32,
    300 as int8) is an error that names the example and the path to the value. So is an
    int that is not below `below`, or negative, where that is given: indices of a table,
    of which JAX would make NaN or another row.
    """

    shape: tuple[int, ...]
    dtype: DTypeLike = 'float32'
    below: int | None = None

    def __post_init__(self) -> None:
        type_ = TensorType(self.shape, self.dtype)
        vars(self).update(type=type_, shape=type_.shape)
        if self.below is not None:
            vars(self).update(below=whole('below', self.below, 1))
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
        size = ''.join(f'{each}, ' for each in self.type.shape)
        return f'{"Vector" if size else "Scalar"}({size}{options})'


@boundary
def Scalar(dtype: DTypeLike = 'float32', *, below: int | None = None) -> Tensor:
    """A Python number as a tensor []; see `Tensor`.

    >>> print(Scalar('int32').eval(3))
    3
    """
    return Tensor((), dtype, below)


@boundary
def Vector(
    size: int, dtype: DTypeLike = 'float32', *, below: int | None = None
) -> Tensor:
    """A list or array of `size` numbers as a tensor [size]; see `Tensor`."""
    return Tensor((size,), dtype, below)


@block
class InputTransform(Block):
    """A Python function of the data, object to object, run while a schedule is built.

    It runs once for each value, and once more in a batch that something is wrong with,
    to tell what: so it should give the same result for the same data. Millions of
    values a second pass through a function that is written in C, such as `len`, `type`
    or `operator.attrgetter('name')`, and through a table, which is copied here.

    Args:
      fn: a function, or a mapping, which gives the entry of each value.
      default: what a mapping gives for a value that it lacks; when left out, such a
        value is an error.

    >>> (InputTransform(len) >> Scalar()).eval('four').item()
    4.0
    >>> words = InputTransform({'the': 1, 'cat': 2}, default=0)
    >>> [words.eval(word) for word in ('the', 'blue', 'cat')]
    [1, 0, 2]

    Raises:
      TypeError: `fn` is neither, or is no mapping and has a default; ValueError: no
        keys and no default.
    """

    fn: Transform
    default: tuple[Any, ...]  # holds the one there is

    def __init__(self, fn: Transform, *, default: object = MISSING) -> None:
        given = () if default is MISSING else (default,)
        expected = 'a mapping beside `default`' if given else 'a callable or a mapping'
        if isinstance(fn, Mapping):
            fn = MappingProxyType(dict(fn))
            if not fn and not given:
                raise ValueError('InputTransform: expected at least one key, got none')
        elif given or not callable(fn) or isinstance(fn, Block):
            raise TypeError(f'InputTransform: expected {expected}, got {fn!r}')
        vars(self).update(fn=fn, default=given)

    def __repr__(self) -> str:
        if not isinstance(self.fn, Mapping):
            return f'InputTransform({callable_name(self.fn)})'
        given = ''.join(f', default={value!r}' for value in self.default)
        return f'InputTransform({shown_table(self.fn)}{given})'


@block
class OneHotFromList(Block):
    """The vector [n] with a one where a Python value stands among `items`, else zeros.

    All n vectors are constants of the model, so a use costs no more than an index. Of
    thousands these take a square: there, look a number up by `InputTransform`, and make
    the vector in a `Function` of `Scalar('int32')`.

    Args:
      items: n values, all different, as keys of a dict are: `1`, `True` and `1.0` are
        the same.
      strict: whether any other value is an error, rather than zeros.

    >>> OneHotFromList('abc', 'int32').eval('b')
    array([0, 1, 0], dtype=int32)

    Raises:
      TypeError: an item is not hashable; ValueError: there is none, or one twice.
    """

    items: tuple[Any, ...]
    dtype: DTypeLike
    strict: bool

    def __init__(
        self, items: Iterable[Any], dtype: DTypeLike = 'float32', strict: bool = True
    ) -> None:
        is_several = isinstance(items, Iterable)
        expect('items', items, is_several, 'a list', 'write `OneHotFromList([...])`')
        given = tuple(items)
        if not given:
            raise ValueError('OneHotFromList: expected at least one item, got none')
        for item in given:
            hint = 'make keys of them by an InputTransform before'
            expect('items', item, isinstance(item, Hashable), 'hashable values', hint)
        if len(set(given)) < len(given):
            twice = {repr(x) for x in given if given.count(x) > 1}
            got = f'{", ".join(sorted(twice))} more than once'
            raise ValueError(f'OneHotFromList: expected different items, got {got}')
        type_ = TensorType((len(given),), dtype)
        vars(self).update(items=given, dtype=dtype, strict=strict, type=type_)

    type: ClassVar[TensorType]

    def __repr__(self) -> str:
        shown = reprlib.repr(list(self.items))
        strict = '' if self.strict else ', strict=False'
        return f'OneHotFromList({shown}, {self.type.dtype.name!r}{strict})'


@boundary
def OneHot(
    start: int, stop: int | None = None, dtype: DTypeLike = 'float32'
) -> OneHotFromList:
    """The vector with a one for each int from `start` up to `stop`, as of `range`.

    >>> OneHot(3).eval(1), OneHot(-1, 1).eval(-1)
    (array([0., 1., 0.], dtype=float32), array([1., 0.], dtype=float32))

    Raises:
      ValueError: there is no such int; TypeError: `start` or `stop` is none.
    """
    integer('start', start)
    ints = range(start) if stop is None else range(start, integer('stop', stop))
    if not ints:
        raise ValueError(
            f'OneHot: expected `stop` above `start`, got {ints.start} and {ints.stop}'
        )
    return OneHotFromList(ints, dtype)


@block
class Zeros(Block):
    """Zeros of any type of tensors: recursive in tuples, sequences are empty.

    >>> Zeros(('int32', 2)).eval(None)
    (array(0, dtype=int32), array([0., 0.], dtype=float32))
    """

    type: Type

    def __init__(self, type: TypeLike) -> None:
        vars(self).update(type=convert_to_type(type))

    def __repr__(self) -> str:
        return f'Zeros({self.type!r})'


@block
class Void(Block):
    """Drops any value."""

    def __repr__(self) -> str:
        return 'Void()'


# ---- tensors and tuples --------------------------------------------------------------


@block
class Concat(Function):
    """A tuple of tensors joined along `concat_dim`; scalars count as vectors [1].

    Args:
      concat_dim: the axis, batch dimension not counted.
      flatten: also accept nested tuples.
    """

    def __init__(self, concat_dim: int = 0, flatten: bool = False) -> None:
        expect('flatten', flatten, isinstance(flatten, bool), 'bool')
        super().__init__(concatenate(integer('concat_dim', concat_dim), flatten))


@block
class Identity(Block):
    """Passes its input on."""

    def __repr__(self) -> str:
        return 'Identity()'


@block
class Arguments(Record):
    """The items of a tuple as a function of wires takes them, by name if they have any.

    Attributes:
      parameters: what the function calls them.
    """

    parameters: tuple[str, ...]

    def __init__(self, parameters: tuple[str, ...]) -> None:
        super().__init__((Identity(),) * len(parameters))
        vars(self).update(parameters=parameters)


# ---- control -------------------------------------------------------------------------


@block
class OneOf(Block):
    """Dispatches each value to one of several blocks by a key.

    Args:
      key_fn: a Python function of the value, or a block that gives an object.
      cases: key to block: a dict, a list of pairs, or a tuple (keys 0, 1, ...; a tuple
        also takes negative keys). All cases give one type.
      pre_block: applied before the cases; `key_fn` sees the original.
      default: the block of every other key; without one, such a key is an error.

    >>> sign = OneOf(lambda x: x < 0, {True: Zeros([]), False: Scalar()})
    >>> sign.eval(-3.0).item(), sign.eval(2.0).item()
    (0.0, 2.0)
    >>> size = GetItem('size') >> Scalar()
    >>> known = OneOf(GetItem('kind'), {'box': size}, default=Zeros([]))
    >>> known.eval({'kind': 'box', 'size': 2}).item(), known.eval({'kind': 'x'}).item()
    (2.0, 0.0)

    Raises:
      TypeError: `key_fn` is not callable; ValueError: no cases.
    """

    key_fn: KeyFunction
    cases: tuple[tuple[Any, Block], ...]
    pre_block: Block | None
    positional: bool
    default: Block | None

    def __init__(
        self,
        key_fn: KeyFunction,
        cases: Fields,
        pre_block: Convertible | None = None,
        *,
        default: Convertible | None = None,
    ) -> None:
        if not callable(key_fn) and not isinstance(key_fn, Block):
            raise TypeError(f'OneOf: expected a callable `key_fn`, got {key_fn!r}')
        is_mapping = isinstance(cases, Mapping)
        pairs = dict(cases if is_mapping else key_value_pairs('OneOf', cases))
        if not pairs:
            raise ValueError('OneOf: expected at least one case, got none')
        made: dict[int, Block] = {}

        def once(each: Convertible) -> Block:
            return made.setdefault(id(each), convert_to_block(each))

        vars(self).update(
            key_fn=key_fn,
            cases=tuple((key, once(each)) for key, each in pairs.items()),
            default=None if default is None else once(default),
            pre_block=_block_or_none(pre_block),
            positional=isinstance(cases, tuple),
        )

    @property
    def targets(self) -> dict[Any, Block]:
        """The block of every key, negative ones included."""
        found = dict(self.cases)
        if self.positional:
            found |= {key - len(found): block for key, block in self.cases}
        return found

    def _pieces(self) -> Iterator[str | Printed]:
        key = self.key_fn
        shown = key if isinstance(key, Block) else callable_name(key)
        yield from ('OneOf(', shown, ', ', *in_braces(self.cases))
        yield from () if self.pre_block is None else (', pre_block=', self.pre_block)
        yield from () if self.default is None else (', default=', self.default)
        yield ')'


@block
class Optional(Block):
    """`some_case` for a value, `none_case` (zeros when left out) for `None`.

    In a `Record`, for a field that the data lack, too.

    >>> Optional(Scalar()).eval(None).item()
    0.0
    >>> point = Record({'x': Scalar(), 'y': Optional(Scalar(), Zeros([]))})
    >>> [y.item() for _, y in map(point.eval, [{'x': 1, 'y': 2}, {'x': 1}])]
    [2.0, 0.0]
    """

    some_case: Block
    none_case: Block | None

    def __init__(
        self, some_case: Convertible, none_case: Convertible | None = None
    ) -> None:
        none, some = _block_or_none(none_case), convert_to_block(some_case)
        vars(self).update(some_case=some, none_case=none)

    def _pieces(self) -> Iterator[str | Printed]:
        none = () if self.none_case is None else (', none_case=', self.none_case)
        yield from ('Optional(', self.some_case, *none, ')')


@block
class Metric(Block):
    """Collects a value per node under a name; a sink.

    Takes a tensor or a (nested) tuple of tensors; `apply` then returns
    `(values, metrics)` with a `MetricValues` per name. Its rows are in the order in
    which one would evaluate the expression, example by example.

    Or it takes a pair of that and of Python objects, the label of the row, which stays
    on the host: `Schedule.labels` has those of all rows. Every use of a name has labels
    or none has.

    >>> import jfold as jf
    >>> word = jf.Record({'length': jf.Scalar('int32'), 'text': jf.Identity()})
    >>> model = jf.compile(jf.Map(word >> jf.Metric('words')) >> jf.Void())
    >>> words = [{'length': 2, 'text': 'so'}, {'length': 3, 'text': 'far'}]
    >>> schedule = model.schedule([words, words[:1]])
    >>> _, metrics = model.apply({}, schedule)
    >>> metrics['words'].values[metrics['words'].mask].tolist()
    [2, 3, 2]
    >>> schedule.labels['words'].tolist()
    ['so', 'far', 'so']
    """

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f'Metric: expected `name` as str, got {self.name!r}')

    def __repr__(self) -> str:
        return f'Metric({self.name!r})'
