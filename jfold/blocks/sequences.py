# SPDX-License-Identifier: Apache-2.0
"""Blocks over sequences.

What they take as a sequence: a sequence of values, a tuple of values of one type, a
Python iterable, and, where it is said, a repetition without end.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import MISSING
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jfold.base.errors import expect, is_int
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


def check_positive(block: str, option: str, value: object) -> None:
    """Refuses an option that is no int above 0.

    Raises:
      TypeError: it is no int; ValueError: it is not positive.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f'{block}: expected `{option}` as int, got {value!r}')
    if value < 1:
        raise ValueError(f'{block}: expected `{option}` of at least 1, got {value}')


# Reductions that have names of their own.
NAMES: dict[Any, str] = {jnp.add: 'Sum', jnp.maximum: 'Max', jnp.minimum: 'Min'}


@block
class Map(Block):
    """A block on every item of a sequence, a tuple of one type, or a Python iterable.

    A mapping or a set is none, here as in `Fold` and `Reduce`.

    >>> from jfold import Scalar, Sum
    >>> (Map(Scalar()) >> Sum()).eval([1, 2, 3]).item()
    6.0
    """

    fn: Block

    def __init__(self, fn: Convertible) -> None:
        vars(self).update(fn=convert_to_block(fn))

    def _pieces(self) -> Iterator[str | Printed]:
        return in_call('Map', self.fn)


@block
class Fold(Block):
    """Left fold: `state = combine((state, item))` over the items, from `start`.

    Its depth is the length. An empty sequence gives `start`, which takes no input.
    """

    combine: Block
    start: Block

    def __init__(self, combine: Convertible, start: Convertible) -> None:
        vars(self).update(
            combine=convert_to_block(combine), start=convert_to_block(start)
        )

    def _pieces(self) -> Iterator[str | Printed]:
        return in_call('Fold', self.combine, self.start)


@block
class RNN(Block):
    """Carries a state along a sequence: gives `(outputs, last state)`.

    `output, state = cell((item, state))` for each item in turn: the item comes first,
    other than in `Fold`. An empty sequence gives no outputs, and the initial state.

    Args:
      cell: takes a pair of an item and a state, gives a pair of an output and a state.
      initial_state: takes no input; zeros when left out, if the type of the state
        follows from the cell.
      initial_state_from_input: the input is a pair of a sequence and the state.

    >>> import jax.numpy as jnp
    >>> from jfold import Function, Scalar, Zeros
    >>> cell = Function(lambda item, total: (item + total, item + total))
    >>> outputs, last = (Map(Scalar()) >> RNN(cell, Zeros([]))).eval([1, 2, 3])
    >>> [x.item() for x in outputs], last.item()
    ([1.0, 3.0, 6.0], 6.0)

    Raises:
      ValueError: an initial state, and one from the input.
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
        given = () if self.initial_state is None else (', ', self.initial_state)
        told = ', initial_state_from_input=True' * self.initial_state_from_input
        yield from ('RNN(', self.cell, *given, f'{told})')


@block
class Reduce(Block):
    """Balanced reduction: rounds over adjacent pairs, an odd last item passes.

    Its depth is log2 of the length: `f(f(1, 2), 3)`, `f(f(f(1, 2), f(3, 4)), 5)`. One
    item is itself; none gives `default`, or zeros.

    Where `f(f(1, 2), 3)` is `f(1, f(2, 3))`, but for rounding, say `associative`: then
    rounds are over eight neighbours, from left to right, so that a sequence of `n` is
    a third as deep, and an eighth as many values are kept. That is so if `combine` is a
    single `Function`; other blocks are given pairs.

    Args:
      combine: takes two items, gives one.
      default: what an empty sequence gives.
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
        none = None if default is None else convert_to_block(default)
        made = convert_to_block(combine)
        vars(self).update(combine=made, default=none, associative=associative)

    def _pieces(self) -> Iterator[str | Printed]:
        default = () if self.default is None else ('default=', self.default)
        if name := self._name():
            yield from (f'{name}(', *default, ')')
            return
        told = ', associative=True' * self.associative
        yield from ('Reduce(', self.combine, ', ' if default else '', *default)
        yield f'{told})'

    def _name(self) -> str:
        """That of the function which makes such a block, if there is one."""
        fn = self.combine.fn if isinstance(self.combine, Function) else None
        is_plain = self.associative and isinstance(fn, Hashable)
        is_sum_of_none = fn is jnp.add and self.default is not None
        return '' if not is_plain or is_sum_of_none else NAMES.get(fn, '')


@block
class Length(Block):
    """The length of a sequence, a tuple or a Python value with `len`, as a scalar.

    Mappings and sets have one too. A length that the dtype cannot hold is an error.
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
    """One item: `x[key]` of a Python value, a tuple, a sequence or a tensor.

    A slice of a tuple is a tuple, of a sequence a sequence. An index that is out of
    range is an error at compile for tuples and tensors, at schedule otherwise.

    Args:
      key: of the item; the name of an attribute of what has no items.
      default: what Python values that lack the key give instead.

    >>> from jfold import Map, Scalar
    >>> sizes = Map(GetItem('size', default=1) >> Scalar())
    >>> [x.item() for x in sizes.eval([{'size': 3}, {}])]
    [3.0, 1.0]

    Raises:
      ValueError: a default for a slice, which never lacks.
    """

    key: Any
    default: tuple[Any, ...]  # holds the one there is

    def __init__(self, key: object, *, default: object = MISSING) -> None:
        if isinstance(key, slice) and default is not MISSING:
            raise ValueError(
                f'GetItem: expected no `default` for {key}, got {default!r}: a slice '
                'of what has fewer items is shorter'
            )
        key = int(key) if isinstance(key, np.integer) else key
        vars(self).update(key=key, default=() if default is MISSING else (default,))

    def __repr__(self) -> str:
        given = ''.join(f', default={value!r}' for value in self.default)
        return f'GetItem({self.key!r}{given})'


@block
class Nth(Block):
    """One item of a sequence by an index in the data: takes a pair of these.

    An index is an int, from the end if it is negative.

    >>> from jfold import Identity, Record, Scalar
    >>> chosen = Record({'a': Map(Scalar()), 'index': Identity()}) >> Nth()
    >>> chosen.eval({'a': [5, 6, 7], 'index': 1}).item()
    6.0
    """

    def __repr__(self) -> str:
        return 'Nth()'


@block
class Chain(Block):
    """The items of several sequences in one: of a sequence of sequences, or of a tuple.

    As `itertools.chain`; those of the first come first.

    >>> from jfold import AllOf, Identity, Scalar
    >>> back = AllOf(Identity(), Slice(step=-1)) >> Chain()
    >>> [x.item() for x in (Map(Scalar()) >> back).eval([1, 2, 3])]
    [1.0, 2.0, 3.0, 3.0, 2.0, 1.0]
    """

    def __repr__(self) -> str:
        return 'Chain()'


@block
class Padded(Block):
    """A sequence as a tuple of a fixed length, with zeros behind its last item.

    Items are tensors, or tuples or sequences of them. A longer sequence is an error.

    >>> from jfold import Scalar
    >>> [x.item() for x in (Map(Scalar()) >> Padded(3)).eval([1, 2])]
    [1.0, 2.0, 0.0]
    """

    length: int

    def __post_init__(self) -> None:
        check_positive('Padded', 'length', self.length)

    def __repr__(self) -> str:
        return f'Padded({self.length})'


@block
class Pick(Block):
    """Items of a sequence by positions in the data: takes a pair of these.

    Positions are a list or an array of ints, from the end if negative. So a graph may
    be a sequence of nodes and its edges pairs of positions, with no Python for each.

    >>> from jfold import Identity, Record, Scalar
    >>> chosen = Record([('x', Map(Scalar())), ('at', Identity())]) >> Pick()
    >>> [x.item() for x in chosen.eval({'x': [5, 6, 7], 'at': [2, 0, 2]})]
    [7.0, 5.0, 7.0]
    """

    def __repr__(self) -> str:
        return 'Pick()'


@block
class Regroup(Block):
    """Items of a sequence by groups: takes the sequence, the group of each item, a list
    or an array of ints, and a sequence with as many items as there are groups.

    Gives a sequence of sequences; in each the items are in their order. With `Pick` it
    makes rounds of messages over edges: each sends what it picks of its source, and
    what arrives at a node is a group.

    >>> from jfold import Identity, Record, Scalar, Sum
    >>> parts = [('x', Map(Scalar())), ('to', Identity()), ('nodes', Identity())]
    >>> arrived = Record(parts) >> Regroup() >> Map(Sum())
    >>> found = arrived.eval({'x': [5, 6, 7], 'to': [1, 0, 1], 'nodes': 'abc'})
    >>> [x.item() for x in found]
    [6.0, 12.0, 0.0]
    """

    def __repr__(self) -> str:
        return 'Regroup()'


def Slice(
    *, start: int | None = None, stop: int | None = None, step: int | None = None
) -> GetItem:
    """`GetItem(slice(start, stop, step))`: a part of a sequence, tuple or Python value.

    Raises:
      TypeError: an argument is no int; ValueError: `step` is 0.
    """
    given = {'start': start, 'stop': stop, 'step': step}
    for name, value in given.items():
        if value is not None and not is_int(value):
            raise TypeError(f'Slice: expected `{name}` as int or None, got {value!r}')
    if step == 0:
        raise ValueError('Slice: expected `step` other than 0, got 0')
    return GetItem(slice(*(x if x is None else int(x) for x in given.values())))


# ---- several sequences ---------------------------------------------------------------


@block
class Broadcast(Block):
    """Repeats a value without end, to be zipped with a sequence.

    `Map` and `NGrams` of a repetition are repetitions; whatever asks for its length or
    for an item refuses it, and it is no result of a model.
    """

    def __repr__(self) -> str:
        return 'Broadcast()'


@block
class Zip(Block):
    """A tuple of sequences to a sequence of tuples, as long as the shortest.

    Repetitions (`Broadcast`) are as long as needed; of these alone it gives another.

    Args:
      strict: sequences are to be of one length; where they are not, that is an error
        of the example.

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

    def __repr__(self) -> str:
        return f'Zip({"strict=True" * self.strict})'


def ZipWith(fn: Convertible, *, strict: bool = False) -> Pipe:
    """`Zip() >> Map(fn)`: a block on the first items of all, on the second, and so on.

    Args:
      fn: takes a tuple of items.
      strict: as of `Zip`.

    >>> import jax.numpy as jnp
    >>> from jfold import Record, Scalar, Sum
    >>> dot = Record((Map(Scalar()),) * 2) >> ZipWith(jnp.multiply) >> Sum()
    >>> dot.eval(([1, 2, 3], [4, 5])).item()
    14.0
    """
    return Zip(strict=strict) >> Map(fn)


@block
class NGrams(Block):
    """All windows of `n` neighbours, as tuples; none of a sequence that is shorter.

    >>> import jax.numpy as jnp
    >>> from jfold import Scalar, Sum
    >>> steps = Map(Scalar()) >> NGrams(2) >> Map(jnp.subtract) >> Sum()
    >>> steps.eval([7, 4, 2]).item()
    5.0

    Raises:
      TypeError: `n` is no int; ValueError: it is not positive.
    """

    n: int

    def __post_init__(self) -> None:
        check_positive('NGrams', 'n', self.n)

    def __repr__(self) -> str:
        return f'NGrams({self.n})'
