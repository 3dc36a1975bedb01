# SPDX-License-Identifier: Apache-2.0
"""Blocks that pass values on, choose among blocks, or collect values of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from jfold.base.errors import check_int, expect
from jfold.base.functions import concatenate
from jfold.base.printing import Printed, callable_name, in_braces
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

# Of the data: a function, or a block.
KeyFunction: TypeAlias = Callable[[Any], Any] | Block


def _block_or_none(value: Convertible | None) -> Block | None:
    return None if value is None else convert_to_block(value)


# ---- tensors and tuples --------------------------------------------------------------


@block
class Concat(Function):
    """A tuple of tensors joined along `concat_dim`; scalars count as vectors [1].

    Args:
      concat_dim: the axis, batch dimension not counted.
      flatten: also accept nested tuples.
    """

    def __init__(self, concat_dim: int = 0, flatten: bool = False) -> None:
        hint = 'write `AllOf(a, b) >> Concat()`'
        expect('concat_dim', concat_dim, not isinstance(concat_dim, Block), 'int', hint)
        expect('flatten', flatten, isinstance(flatten, bool), 'bool')
        super().__init__(concatenate(check_int('concat_dim', concat_dim), flatten))


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
