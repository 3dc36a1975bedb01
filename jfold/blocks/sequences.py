# SPDX-License-Identifier: Apache-2.0
"""The blocks over sequences.

Their input is a sequence of values, a tuple of values of one type, or a Python
iterable; where a docstring says so, also a repetition without end (`Broadcast`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jfold.base.arguments import LEFT_OUT, check_at_least, expect, is_int
from jfold.base.printing import Printed, in_call
from jfold.combinators import (
    Block,
    Convertible,
    Function,
    Pipe,
    block,
    convert_to_block,
)
from jfold.types import TensorType

# By the function with which a `Reduce` combines, the short name that it prints as.
NAMES: dict[Any, str] = {jnp.add: 'Sum', jnp.maximum: 'Max', jnp.minimum: 'Min'}


@block
class Map(Block):
    """A block applied to every item of a sequence, homogeneous tuple or iterable.

    `Map`, `Fold` and `Reduce` take no mappings and no sets as inputs.

    >>> from jfold import Scalar, Sum
    >>> (Map(Scalar()) >> Sum()).eval([1, 2, 3]).item()
    6.0
    """

    fn: Block

    def __init__(self, fn: Convertible) -> None:
        vars(self).update(fn=convert_to_block(fn))


@block
class Fold(Block):
    """A left fold: `state = combine((state, item))` over the items, from `start`.

    Its depth is the length of the sequence. An empty sequence gives `start`, a block
    that takes no input.
    """

    combine: Block
    start: Block

    def __init__(self, combine: Convertible, start: Convertible) -> None:
        vars(self).update(
            combine=convert_to_block(combine), start=convert_to_block(start)
        )


@block
class RNN(Block):
    """A loop that carries a state along a sequence; gives `(outputs, last state)`.

    `output, state = cell((item, state))` for each item in turn: the item comes first,
    unlike in `Fold`. An empty sequence gives no outputs, and the initial state.

    Args:
      cell: a block from a pair of item and state to a pair of output and next state.
      initial_state: a block that takes no input; zeros when left out, if the type of
        the state follows from the cell.
      initial_state_from_input: whether the input is a pair of a sequence and a state.

    >>> import jax.numpy as jnp
    >>> from jfold import Function, Scalar, Zeros
    >>> cell = Function(lambda item, total: (item + total, item + total))
    >>> outputs, last = (Map(Scalar()) >> RNN(cell, Zeros([]))).eval([1, 2, 3])
    >>> [x.item() for x in outputs], last.item()
    ([1.0, 3.0, 6.0], 6.0)

    Raises:
      ValueError: `initial_state` and `initial_state_from_input` are both given.
    """

    cell: Block
    initial_state: Block | None
    initial_state_from_input: bool

    def __init__(
        self,
        cell: Convertible,
        initial_state: Convertible | None = None,
        initial_state_from_input: bool = False,
    ) -> None:
        if initial_state is not None and initial_state_from_input:
            got = f'both {initial_state!r} and `initial_state_from_input`'
            raise ValueError(f'RNN: expected one initial state, got {got}')
        start = None if initial_state is None else convert_to_block(initial_state)
        vars(self).update(
            cell=convert_to_block(cell),
            initial_state=start,
            initial_state_from_input=initial_state_from_input,
        )

    def _pieces(self) -> Iterator[str | Printed]:
        start = () if self.initial_state is None else (self.initial_state,)
        option = self.initial_state_from_input
        return in_call('RNN', self.cell, *start, initial_state_from_input=option)


@block
class Reduce(Block):
    """A balanced reduction of a sequence: each round combines adjacent pairs of items.

    If a round has an odd number of items, the last goes on to the next round. The depth
    is log2 of the length: `f(f(1, 2), 3)`, `f(f(f(1, 2), f(3, 4)), 5)`. A single item
    is the result; an empty sequence gives `default`, or zeros.

    If `f(f(1, 2), 3)` equals `f(1, f(2, 3))`, but for rounding, pass `associative`.
    Then rounds combine eight neighbours, from left to right, which takes a third of the
    depth and stores an eighth of the values. But only if `combine` is a single
    `Function`; other blocks still combine pairs.

    Args:
      combine: a block from a pair of items to one item.
      default: a block without input, the result for an empty sequence.
      associative: whether items may be combined in any grouping.
    """

    combine: Block
    default: Block | None
    associative: bool

    def __init__(
        self,
        combine: Convertible,
        default: Convertible | None = None,
        associative: bool = False,
    ) -> None:
        if not isinstance(associative, bool):
            raise TypeError(
                f'Reduce: expected `associative` as bool, got {associative!r}'
            )
        combine = convert_to_block(combine)
        default = None if default is None else convert_to_block(default)
        vars(self).update(combine=combine, default=default, associative=associative)

    def _pieces(self) -> Iterator[str | Printed]:
        fn = self.combine.fn if isinstance(self.combine, Function) else None
        name = NAMES.get(fn) if self.associative and isinstance(fn, Hashable) else None
        if name is not None and not (fn is jnp.add and self.default):  # `Sum` has none
            return in_call(name, default=self.default)
        options = {'default': self.default, 'associative': self.associative}
        return in_call('Reduce', self.combine, **options)


@block
class Length(Block):
    """The length of a sequence, tuple or Python value, as a scalar.

    Mappings and sets may be its input too. It is an error if the dtype cannot hold the
    length.
    """

    dtype: DTypeLike = 'float32'

    def __post_init__(self) -> None:
        vars(self).update(type=TensorType((), self.dtype))

    type: ClassVar[TensorType]

    def __repr__(self) -> str:
        return f'Length({self.type.dtype.name!r})'


# ---- items ----------------------------------------------------------------------


@block
class GetItem(Block):
    """An item: `x[key]` of a Python value, a tuple, a sequence or a tensor.

    A slice of a tuple is a tuple, of a sequence a sequence. An index out of range is an
    error: of `compile` for tuples and tensors, of `schedule` for others.

    Args:
      key: the key or index of the item; for a Python value that has no items, or none
        by name, the name of an attribute.
      default: the result for Python values that have items or attributes, but not this
        one; without it they are an error.

    >>> from jfold import Map, Scalar
    >>> sizes = Map(GetItem('size', default=1) >> Scalar())
    >>> [x.item() for x in sizes.eval([{'size': 3}, {}])]
    [3.0, 1.0]

    Raises:
      ValueError: there is a default and `key` is a slice, which no value lacks.
    """

    key: Any
    default: tuple[Any, ...]  # empty, or of one item

    def __init__(self, key: object, *, default: object = LEFT_OUT) -> None:
        if isinstance(key, slice) and default is not LEFT_OUT:
            raise ValueError(
                f'GetItem: expected no `default` for {key}, got {default!r}: a slice '
                'of what has fewer items is shorter'
            )
        key = int(key) if isinstance(key, np.integer) else key
        vars(self).update(key=key, default=() if default is LEFT_OUT else (default,))

    def __repr__(self) -> str:
        option = ''.join(f', default={value!r}' for value in self.default)
        return f'GetItem({self.key!r}{option})'


@block
class Nth(Block):
    """An item of a sequence at an index that the data give.

    Its input is a pair of the sequence and the index, an int; a negative index counts
    from the end.

    >>> from jfold import Identity, Record, Scalar
    >>> chosen = Record({'a': Map(Scalar()), 'index': Identity()}) >> Nth()
    >>> chosen.eval({'a': [5, 6, 7], 'index': 1}).item()
    6.0
    """


@block
class Chain(Block):
    """The items of several sequences, in a sequence or a tuple, joined to one sequence.

    The items are in order, as from `itertools.chain`.

    >>> from jfold import AllOf, Identity, Scalar
    >>> back = AllOf(Identity(), Slice(step=-1)) >> Chain()
    >>> [x.item() for x in (Map(Scalar()) >> back).eval([1, 2, 3])]
    [1.0, 2.0, 3.0, 3.0, 2.0, 1.0]
    """


@block
class Padded(Block):
    """A sequence as a tuple of a fixed length, padded with zeros at its end.

    Items are tensors, or tuples or sequences of tensors. A longer sequence is an error.

    >>> from jfold import Scalar
    >>> [x.item() for x in (Map(Scalar()) >> Padded(3)).eval([1, 2])]
    [1.0, 2.0, 0.0]
    """

    length: int

    def __post_init__(self) -> None:
        vars(self).update(length=check_at_least('length', self.length, 1))


@block
class Pick(Block):
    """The items of a sequence at positions that the data give.

    Its input is a pair of the sequence and the positions, a list or an array of ints;
    negative positions count from the end. So the edges of a graph can be arrays of
    positions in a sequence of nodes, and no Python code runs for each edge.

    >>> from jfold import Identity, Record, Scalar
    >>> chosen = Record([('x', Map(Scalar())), ('at', Identity())]) >> Pick()
    >>> [x.item() for x in chosen.eval({'x': [5, 6, 7], 'at': [2, 0, 2]})]
    [7.0, 5.0, 7.0]
    """


@block
class Regroup(Block):
    """The items of a sequence, sorted into groups: a sequence of sequences.

    Its input is a tuple of the sequence, the index of each item's group (a list or an
    array of ints), and a sequence with as many items as there are groups. Items of a
    group keep their order. For messages along the edges of a graph, `Pick` takes the
    state at the source of each edge, and messages that arrive at a node are a group.

    >>> from jfold import Identity, Record, Scalar, Sum
    >>> parts = [('x', Map(Scalar())), ('to', Identity()), ('nodes', Identity())]
    >>> arrived = Record(parts) >> Regroup() >> Map(Sum())
    >>> sums = arrived.eval({'x': [5, 6, 7], 'to': [1, 0, 1], 'nodes': 'abc'})
    >>> [x.item() for x in sums]
    [6.0, 12.0, 0.0]
    """


def Slice(
    *, start: int | None = None, stop: int | None = None, step: int | None = None
) -> GetItem:
    """A slice `x[start:stop:step]` of a sequence, a tuple or a Python value.

    Raises:
      TypeError: an argument is no int; ValueError: `step` is 0.
    """
    arguments = {'start': start, 'stop': stop, 'step': step}
    for name, value in arguments.items():
        if value is not None and not is_int(value):
            raise TypeError(f'Slice: expected `{name}` as int or None, got {value!r}')
    if step == 0:
        raise ValueError('Slice: expected `step` other than 0, got 0')
    return GetItem(slice(*(x if x is None else int(x) for x in arguments.values())))


# ---- several sequences ---------------------------------------------------------------


@block
class Broadcast(Block):
    """A repetition of a value without end, to be zipped with a sequence.

    `Map` and `NGrams` of a repetition are repetitions. It is an error at `compile` if a
    block needs the length or an item of a repetition, or a model returns one.
    """


@block
class Zip(Block):
    """A tuple of sequences as a sequence of tuples, as long as the shortest.

    Repetitions (`Broadcast`) are as long as needed; a tuple of repetitions alone gives
    a repetition of tuples.

    Args:
      strict: whether sequences of different lengths are an error of the example.

    >>> import jax.numpy as jnp
    >>> from jfold import AllOf, Scalar, Sum
    >>> total = Map(Scalar()) >> Sum() >> Broadcast()
    >>> share = AllOf(Map(Scalar()), total) >> Zip() >> Map(jnp.divide)
    >>> [x.item() for x in (share >> AllOf(GetItem(0), GetItem(1))).eval([1, 3])]
    [0.25, 0.75]

    Raises:
      TypeError: `strict` is no bool.
    """

    strict: bool

    def __init__(self, *, strict: bool = False) -> None:
        expect('strict', strict, isinstance(strict, bool), 'bool')
        vars(self).update(strict=strict)

    def _pieces(self) -> Iterator[str | Printed]:
        return in_call('Zip', strict=self.strict)


def ZipWith(fn: Convertible, *, strict: bool = False) -> Pipe:
    """A block applied to the tuples of items of several sequences: `Zip() >> Map(fn)`.

    Args:
      fn: a block from a tuple of items, one of each sequence.
      strict: whether sequences of different lengths are an error of the example.

    >>> import jax.numpy as jnp
    >>> from jfold import Record, Scalar, Sum
    >>> dot = Record((Map(Scalar()),) * 2) >> ZipWith(jnp.multiply) >> Sum()
    >>> dot.eval(([1, 2, 3], [4, 5])).item()
    14.0
    """
    return Zip(strict=strict) >> Map(fn)


@block
class NGrams(Block):
    """The windows of `n` adjacent items, as tuples; a shorter sequence has none.

    >>> import jax.numpy as jnp
    >>> from jfold import Scalar, Sum
    >>> steps = Map(Scalar()) >> NGrams(2) >> Map(jnp.subtract) >> Sum()
    >>> steps.eval([7, 4, 2]).item()
    5.0

    Raises:
      TypeError: `n` is no int; ValueError: `n` is not positive.
    """

    n: int

    def __post_init__(self) -> None:
        vars(self).update(n=check_at_least('n', self.n, 1))
