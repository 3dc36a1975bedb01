# SPDX-License-Identifier: Apache-2.0
"""Blocks that pass values on, choose among blocks, collect values, or are declared."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NamedTuple, Self, TypeAlias

import jax
import jax.numpy as jnp

from jfold.base.arguments import check_int, expect
from jfold.base.printing import Printed, callable_name, in_braces, in_call
from jfold.base.structs import is_leaf
from jfold.base.tracebacks import api_boundary
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
from jfold.types import ObjectType, TypeLike, convert_to_type

# A function or a block from a value to the key of a case.
KeyFunction: TypeAlias = Callable[[Any], Any] | Block


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
    """Return the function of a `Concat`, cached, so that its uses are one layer.

    It raises TypeError for different dtypes, and for pytrees without `flatten`.
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

    If the parameters have the names of all fields of a `Record`, items go by name.
    """

    parameters: tuple[str, ...]  # their names

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
        0, 1, ..., and negative ones). All cases have results of one type; of several
        for one key the last counts.
      pre_block: a block applied before the cases; `key_fn` gets the value before it.
      default: the block for any other hashable key; if left out, such a key is an
        error.

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
    targets: dict[Any, Block]  # by key; those of a tuple also by negative keys
    pre_block: Block | None
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
        blocks: dict[int, Block] = {}  # by id of a short-hand, even in several cases

        def as_block(case: Convertible) -> Block:
            return blocks.setdefault(id(case), convert_to_block(case))

        by_key = {key: as_block(case) for key, case in pairs.items()}
        is_tuple, count = isinstance(cases, tuple), len(by_key)
        from_end = {key - count: x for key, x in by_key.items()} if is_tuple else {}
        vars(self).update(
            key_fn=key_fn,
            cases=tuple(by_key.items()),
            targets=by_key | from_end,
            default=None if default is None else as_block(default),
            pre_block=None if pre_block is None else convert_to_block(pre_block),
        )

    def _pieces(self) -> Iterator[str | Printed]:
        key = self.key_fn
        shown = key if isinstance(key, Block) else callable_name(key)
        yield from ('OneOf(', shown, ', ', *in_braces(self.cases))
        yield from () if self.pre_block is None else (', pre_block=', self.pre_block)
        yield from () if self.default is None else (', default=', self.default)
        yield ')'


@block
class Optional(Block):
    """A choice: `some_case` for a value; for `None`, `none_case` or, without it, zeros.

    A missing field of a `Record` counts as `None` if it comes straight to this block.

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
        none = None if none_case is None else convert_to_block(none_case)
        vars(self).update(some_case=convert_to_block(some_case), none_case=none)

    def _pieces(self) -> Iterator[str | Printed]:
        return in_call('Optional', self.some_case, none_case=self.none_case)


@block
class Metric(Block):
    """A sink: collects, under a name, each value that it takes; gives no result.

    Its input is a tensor or a (nested) tuple of tensors; `apply` then returns
    `(values, metrics)` with a `MetricValues` for each name. Its rows are in the order
    of a plain evaluation of the expression, example by example.

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


# ---- blocks that are defined once and used in many places ----------------------------


class CallKind(NamedTuple):
    """A kind of block call in lazy functions, whose rows are recorded when called.

    Attributes:
      number: the number of its entry, the first item of the nodes of calls.
      operands: how many a call has.
      of: if it takes an item of the result of a call, the declaration of that call.
      place: the index of this item.
    """

    number: int
    operands: int
    of: ForwardDeclaration | None = None
    place: int = 0


class ForwardDeclaration:
    """A name for a block that is defined later and may refer to itself.

    Args:
      input_type: the type of the block's input, when inference cannot tell.
      output_type: the type of the block's result, when inference cannot tell: if every
        case of a recursion depends on the recursion itself.
      name: the name in prints.

    >>> import jax.numpy as jnp
    >>> from jfold import OneOf, Record, Scalar
    >>> tree = ForwardDeclaration()
    >>> leaf, pair = Scalar(), Record((tree(), tree())) >> jnp.add
    >>> tree.resolve_to(OneOf(type, {float: leaf, tuple: pair}))
    >>> tree().eval((1.0, (2.0, 3.0))).item()
    6.0
    """

    @api_boundary
    def __init__(
        self,
        input_type: TypeLike | None = None,
        output_type: TypeLike | None = None,
        name: str | None = None,
    ) -> None:
        self.input_type = None if input_type is None else convert_to_type(input_type)
        self.output_type = None if output_type is None else convert_to_type(output_type)
        self.name = name or 'declaration'
        self.target: Block | None = None
        # For `Share`, the key of an object: objects with equal keys are evaluated once.
        self.key: Callable[[Any], Hashable] | None = None
        # For calls of one kind in lazy functions, what they are.
        self.calls: CallKind | None = None

    def __deepcopy__(self, memo: object) -> Self:
        return self  # as blocks do: a `Reference` holds this declaration

    def __call__(self, *wires: Any) -> Any:
        """Return a block that stands for the target, which may be set later.

        Called on wires, within `compose`, return the wire of the block's result.
        """
        reference = Reference(self)
        return reference(*wires) if wires else reference

    @api_boundary
    def resolve_to(self, target: Convertible) -> None:
        """Set the block that this declaration stands for.

        Raises:
          TypeError: the declaration is resolved already, or `target` is no block.
        """
        if self.target is not None:
            raise TypeError(
                f'{self!r}: expected a declaration that is not resolved yet, got one '
                f'resolved to {self.target!r}; make another'
            )
        self.target = convert_to_block(target)

    def __repr__(self) -> str:
        return f'ForwardDeclaration({self.name!r})'


@block
class Reference(Block):
    """A use of a `ForwardDeclaration`, made by calling the declaration."""

    declaration: ForwardDeclaration

    def __repr__(self) -> str:
        return f'{self.declaration.name}()'


@block
class Share(Block):
    """A block that is evaluated once for each object of an example, with a memo.

    So the work grows with the nodes of a graph of objects, not with the paths to them.
    If the block is recursive, objects may be shared, but not contain themselves. If
    there is one `Share` for each round, which reads the `Share` of the round before,
    objects may have cycles. Gradients of all uses add up. A `Metric` inside collects a
    value for each object once.

    Args:
      block: a block from an object to tensors.
      key: a function from an object to a hashable key; objects with equal keys are one.
        When left out, objects are compared by identity, so an equal copy is another.

    >>> import jax.numpy as jnp
    >>> from jfold import AllOf, GetItem, Map, Scalar, Sum
    >>> before = Share(GetItem('x') >> Scalar())
    >>> around = GetItem('next') >> Map(before) >> Sum()
    >>> after = Share(AllOf(before, around) >> jnp.add)
    >>> a, b = {'x': 1.0}, {'x': 2.0}
    >>> a['next'], b['next'] = [b], [a, b]
    >>> (Map(after) >> Sum()).eval([a, b]).item()
    8.0

    Raises:
      TypeError: `key` is not callable, or is a block.
    """

    block: Block
    key: Callable[[Any], Hashable] | None
    reference: Reference

    def __init__(
        self, block: Convertible, key: Callable[[Any], Hashable] | None = None
    ) -> None:
        if key is not None and (not callable(key) or isinstance(key, Block)):
            hint = '; a function such as `operator.itemgetter(...)` reads a field'
            raise TypeError(f'Share: expected `key` callable, got {key!r}{hint}')
        declaration = ForwardDeclaration(ObjectType(), name='Share')
        declaration.resolve_to(block)
        declaration.key = id if key is None else key
        target, reference = declaration.target, Reference(declaration)
        vars(self).update(block=target, key=key, reference=reference)

    def _pieces(self) -> Iterator[str | Printed]:
        key = '' if self.key is None else f', key={callable_name(self.key)}'
        yield from ('Share(', self.block, f'{key})')
