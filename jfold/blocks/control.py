# SPDX-License-Identifier: Apache-2.0
"""The blocks that pass values on, choose among blocks, or collect values of nodes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from jfold.base.errors import check_int, expect
from jfold.base.printing import Printed, callable_name, in_braces
from jfold.base.structs import is_leaf
from jfold.combinators import (
    Block,
    Convertible,
    Fields,
    Function,
    Record,
    block,
    convert_to_block,
    key_value_pairs,
)

# A function or a block from a value to the key of a case.
KeyFunction: TypeAlias = Callable[[Any], Any] | Block


def _block_or_none(value: Convertible | None) -> Block | None:
    return None if value is None else convert_to_block(value)


# ---- tensors and tuples --------------------------------------------------------------


@block
class Concat(Function):
    """The concatenation of a tuple of tensors; scalars count as vectors [1].

    Args:
      concat_dim: the axis along which tensors are joined, in a single example.
      flatten: whether nested tuples are accepted too.
    """

    def __init__(self, concat_dim: int = 0, flatten: bool = False) -> None:
        hint = 'write `AllOf(a, b) >> Concat()`'
        expect('concat_dim', concat_dim, not isinstance(concat_dim, Block), 'int', hint)
        expect('flatten', flatten, isinstance(flatten, bool), 'bool')
        axis = check_int('concat_dim', concat_dim)
        super().__init__(_concatenation(axis, flatten))


@functools.cache
def _concatenation(axis: int, flatten: bool) -> Callable[..., jax.Array]:
    """Return a function `concat(*inputs)` that joins tensors along an axis.

    Scalars count as vectors [1]; with `flatten`, inputs may be pytrees of tensors. Else
    these raise TypeError, and so do different dtypes. The function is cached, so that
    all its uses are one layer.
    """

    def concat(*inputs: jax.Array) -> jax.Array:
        arrays = jax.tree.leaves(inputs) if flatten else inputs
        nested = [type(x).__name__ for x in inputs if not is_leaf(x)]
        if nested and not flatten:
            raise TypeError(f'expected tensors, got a {nested[0]}; pass `flatten=True`')
        if len(dtypes := sorted({x.dtype.name for x in arrays})) > 1:
            raise TypeError(f'expected tensors of one dtype, got {dtypes}; cast them')
        return jnp.concatenate([jnp.atleast_1d(x) for x in arrays], axis)

    return concat


@block
class Identity(Block):
    """A block whose result is its input."""


@block
class Arguments(Record):
    """A block that splits a tuple into arguments of a function passed to `compose`.

    Attributes:
      parameters: the names of the function's parameters; if they are the names of all
        fields of a `Record`, items are taken by name.
    """

    parameters: tuple[str, ...]

    def __init__(self, parameters: tuple[str, ...]) -> None:
        super().__init__((Identity(),) * len(parameters))
        vars(self).update(parameters=parameters)


# ---- control -------------------------------------------------------------------------


@block
class OneOf(Block):
    """A choice: each value goes to one of several blocks by its key.

    Args:
      key_fn: a Python function from the value to its key, or a block whose result is a
        Python object, the key.
      cases: the block for each key: a dict, a list of pairs, or a tuple of blocks (keys
        0, 1, ..., and negative ones). All cases have results of one type.
      pre_block: a block applied before the cases; `key_fn` gets the value before it.
      default: the block for any other key; if left out, such a key is an error.

    >>> from jfold import GetItem, Scalar, Zeros
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
            hint = 'write one function of the value, as `lambda x: (x[0], x[1])`'
            if isinstance(key_fn, str | int):
                hint = f'write `GetItem({key_fn!r})` for a field'
            raise TypeError(
                f'OneOf: expected a callable `key_fn`, got {key_fn!r}; {hint}'
            )
        is_mapping = isinstance(cases, Mapping)
        pairs = dict(cases if is_mapping else key_value_pairs('OneOf', cases))
        if not pairs:
            raise ValueError('OneOf: expected at least one case, got none')
        blocks: dict[int, Block] = {}  # one for each short-hand, also in several cases

        def as_block(case: Convertible) -> Block:
            return blocks.setdefault(id(case), convert_to_block(case))

        vars(self).update(
            key_fn=key_fn,
            cases=tuple((key, as_block(case)) for key, case in pairs.items()),
            default=None if default is None else as_block(default),
            pre_block=_block_or_none(pre_block),
            positional=isinstance(cases, tuple),
        )

    @property
    def targets(self) -> dict[Any, Block]:
        """The blocks by key; those of a tuple by negative keys as well, as -1.

        The default block, which has no key, is left out.
        """
        targets = dict(self.cases)
        if self.positional:
            targets |= {key - len(targets): block for key, block in self.cases}
        return targets

    def _pieces(self) -> Iterator[str | Printed]:
        key = self.key_fn
        shown = key if isinstance(key, Block) else callable_name(key)
        yield from ('OneOf(', shown, ', ', *in_braces(self.cases))
        yield from () if self.pre_block is None else (', pre_block=', self.pre_block)
        yield from () if self.default is None else (', default=', self.default)
        yield ')'


@block
class Optional(Block):
    """The block `some_case` for a value, and `none_case`, or zeros, for `None`.

    A field that is missing in a `Record` counts as `None`.

    >>> from jfold import Scalar, Zeros
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
    """A sink that collects a value for each node under a name.

    Its input is a tensor or a (nested) tuple of tensors; `apply` then returns
    `(values, metrics)` with a `MetricValues` for each name. The rows of that are in the
    order of a plain evaluation of the expression, example by example.

    Or its input is a pair of such a value and a Python object, the label of the row,
    which stays on the host: `Schedule.labels` has the labels of all rows. Either all
    uses of a name have labels, or none has.

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
