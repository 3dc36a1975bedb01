# SPDX-License-Identifier: Apache-2.0
"""Symbols, the values while source is written, and the tapes that it records on.

    Object('x')                          an object, in the variable x
    Tensor('left', type=0, makers=0b10)  a row number, whose only producer is 1
    (Tensor(...), Tensor(...))           a tuple, of which no object exists
    Items(Tensor('words'), n='n')        a sequence: a list for each leaf of its items
    Items(Nested('lists', ...), n='n')   one of sequences: a list of lists
    Endless(Object('y'))                 a value repeated without end
    None                                 nothing

A text is a Python expression, mostly a variable. A *leaf* is an `Object`, a `Tensor` or
a `Nested`; a *part* of a value is a leaf or an outermost sequence. A *template* is a
value without texts: the structure of all values that reach one point of the source.
Where a value has to be one Python object, it is *packed*: tuples are tuples and
sequences are lists of their items.

There is a *tape* for each input of an operation, with an entry for each row; for the
constants of a type; and for each tensor in the rows of a result. An entry is the number
of the row that made the operand (`tracing.tape_reader`); its index was the length of a
tape. The level is in the highest bits, so the largest number has the highest level.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from jfold.program.operations import ProducerSet
from jfold.types import (
    BroadcastType,
    ObjectType,
    Product,
    SequenceType,
    TensorType,
    Type,
)


@dataclass(frozen=True, eq=False)
class Object:
    """A Python object in generated source: its expression, and its class if known."""

    text: str = ''
    kind: type | None = None


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor or list of tensors in generated source: its row numbers as text.

    Attributes:
      name: the text of the number, or of the list.
      type: the number of the tensor type in `Tables.types`.
      makers: its possible producers (see `facts`), as a bit set.
      step: if it is in step (see `lines`), the region whose row it is, and its maker.
      use: the application that made it and the index of the output; `None` if other
        producers are possible.
      level: a token that tensors of equal levels share; `None` if nothing is known.
    """

    name: str = ''
    type: int = 0
    makers: ProducerSet = 0
    step: tuple[Region, Maker] | None = None
    use: tuple[Use, int] | None = None
    level: Any = None

    @property
    def text(self) -> str:
        """The expression, for readers other than operations; such a reader is noted."""
        if self.use is not None:
            self.use[0].readers.add(None)
        return self.name


@dataclass(frozen=True, eq=False)
class Items:
    """A sequence in generated source: one list for each leaf of an item."""

    items: Symbol
    n: str = ''  # the expression of its length


@dataclass(frozen=True, eq=False)
class Nested:
    """A list of lists in generated source: a sequence of sequences."""

    text: str
    item: Items  # as in a template: its texts are not read


@dataclass(frozen=True, eq=False)
class Endless:
    """A value repeated without end in generated source, as by `Broadcast`."""

    item: Symbol


Symbol: TypeAlias = (
    'Object | Tensor | Items | Nested | Endless | tuple[Symbol, ...] | None'
)
Leaf: TypeAlias = Object | Tensor | Nested


# ---- tapes ---------------------------------------------------------------------------


@dataclass(eq=False)
class Tape:
    """A list in generated source, to which each recorded row appends its entries.

    Attributes:
      about: the comment behind the line that makes it.
      width: the number of entries a row; for groups of items several.
    """

    name: str
    about: str
    width: int = 1

    @property
    def rows(self) -> str:
        """The source text for the number of rows, such as `len(tape) // 2`."""
        size = f'len({self.name})'
        return size if self.width == 1 else f'{size} // {self.width}'


@dataclass(frozen=True, eq=False)
class Maker:
    """An origin of tensors of one type: constants, or an output of an operation.

    Attributes:
      name: the integer constant of the source that is added to the index of a row.
      number: the `maker` in row numbers, from 1; 0 stands for constants of the program.
      output: the index among the outputs of the operation.
      recurrent: whether its values are one level above their inputs.
    """

    name: str
    type: int  # the number of the tensor type
    number: int
    output: int = 0
    recurrent: bool = False


@dataclass(eq=False)
class Rows:
    """A table that generated source records: of an operation, constants or a result.

    Attributes:
      key: its name, the same each time that source is written.
      columns: per input, its tape or, if in step, its maker; `None` at first.
      makers: per input, its producers so far.
      counter: the tape whose length counts the rows; `None` if no row is written.
    """

    key: tuple[Hashable, ...]
    columns: list[Tape | Maker | None]
    makers: tuple[ProducerSet, ...]
    counter: Tape | None = None


@dataclass(eq=False)
class Region:
    """A piece of straight-line source: one index may serve for all rows it records."""

    row: str = ''  # the variable with the index; '' before there is one
    counter: Tape | None = None  # the tape whose length is the index


@dataclass(eq=False)
class Use:
    """An application of an operation by one statement of generated source.

    Attributes:
      readers: the applications that read its outputs; `None` stands for all readers
        that are no operation, such as results.
    """

    operation: int  # its number in `Tables.listed`
    inputs: list[Tensor]
    readers: set[Use | None] = field(default_factory=set)


# ---- templates -----------------------------------------------------------------------


def template(type_: Type, number: Callable[[TensorType], int]) -> Symbol:
    """Return the template of a type, with tensor types numbered by `number`."""
    if isinstance(type_, TensorType):
        return Tensor('', number(type_))
    if isinstance(type_, ObjectType):
        return Object()
    if isinstance(type_, Product):
        return tuple(template(item, number) for item in type_)
    if isinstance(type_, SequenceType):
        return Items(listed(template(type_.item, number)))
    if isinstance(type_, BroadcastType):
        return Endless(template(type_.item, number))
    return None


# ---- parts and leaves ---------------------------------------------------------------


def parts(value: Symbol) -> Iterator[Any]:
    """Yield the parts of a value, left to right: leaves, and sequences as a whole."""
    if isinstance(value, tuple):
        for item in value:
            yield from parts(item)
    elif isinstance(value, Endless):
        yield from parts(value.item)
    elif value is not None:
        yield value


def map_parts(fn: Callable[[Any], Symbol], value: Symbol) -> Symbol:
    """Return a value with `fn` applied to each leaf and to each whole sequence."""
    if isinstance(value, tuple):
        return tuple([map_parts(fn, item) for item in value])
    if isinstance(value, Endless):
        return Endless(map_parts(fn, value.item))
    return None if value is None else fn(value)


def leaves(value: Symbol) -> Iterator[Leaf]:
    """Yield the leaves of a value, left to right, also those in sequences."""
    for part in parts(value):
        if isinstance(part, Items):
            yield from leaves(part.items)
        else:
            yield part


def map_leaves(fn: Callable[[Leaf], Symbol], value: Symbol) -> Symbol:
    """Return a value with `fn` applied to each leaf, also in sequences."""

    def mapped(part: Leaf | Items) -> Symbol:
        if isinstance(part, Items):
            return replace(part, items=map_leaves(fn, part.items))
        return fn(part)

    return map_parts(mapped, value)


def texts(value: Symbol) -> Iterator[str]:
    """Yield the source expressions of a value's leaves and lengths, left to right."""
    for part in parts(value):
        if isinstance(part, Items):
            yield part.n
            yield from texts(part.items)
        else:
            yield part.text


def renamed(value: Symbol, texts: Iterator[str]) -> Symbol:
    """Return a value with its leaves renamed to `texts`.

    Tensors keep their types and producers, but lose `step`, `use` and `level`; objects
    lose their classes, for the texts may stand for other objects.
    """

    def leaf(value: Leaf) -> Leaf:
        if isinstance(value, Tensor):
            return Tensor(next(texts), value.type, value.makers)
        if isinstance(value, Object):
            return Object(next(texts))
        return replace(value, text=next(texts))

    return map_leaves(leaf, value)


# ---- lists of values -----------------------------------------------------------------


def listed(item: Symbol) -> Symbol:
    """Return the template of a list of items like `item`, as one list per leaf."""
    return map_parts(lambda x: in_list(x, ''), item)


def in_list(part: Leaf | Items, name: str) -> Symbol:
    """Return a symbol for the list variable `name`, whose items are like `part`."""
    if isinstance(part, Items):
        return Nested(name, part)
    return renamed(part, iter([name]))


def one_of_lists(items: Symbol) -> Symbol:
    """Return the template of an item, from that of a list; the inverse of `listed`."""
    return map_parts(lambda x: x.item if isinstance(x, Nested) else x, items)


# ---- producers and levels ------------------------------------------------------------


def makers(value: Symbol) -> Iterator[ProducerSet]:
    """Yield the producers, a bit set, of each tensor in a value."""
    for leaf in leaves(value):
        if isinstance(leaf, Tensor):
            yield leaf.makers
        elif isinstance(leaf, Nested):
            yield from makers(leaf.item)


def with_makers(value: Symbol, sets: Iterator[ProducerSet]) -> Symbol:
    """Return a value whose tensors have the producers `sets`, in order."""

    def leaf(value: Leaf) -> Leaf:
        if isinstance(value, Tensor):
            return replace(value, makers=next(sets))
        if isinstance(value, Nested):
            return Nested(value.text, cast(Items, with_makers(value.item, sets)))
        return value

    return map_leaves(leaf, value)


def levels(value: Symbol) -> Iterator[Any]:
    """Yield a token per tensor in `value`, not in sequences: equal for equal levels."""
    return (part.level for part in parts(value) if isinstance(part, Tensor))


def with_levels(value: Symbol, others: Iterator[Any]) -> Symbol:
    """Return a value whose tensors outside sequences have the level tokens `others`."""

    def leveled(part: Leaf | Items) -> Symbol:
        return replace(part, level=next(others)) if isinstance(part, Tensor) else part

    return map_parts(leveled, value)


# ---- packed values -------------------------------------------------------------------


def packed(value: Symbol, n: str = '') -> str:
    """Return source text that packs a value into one Python object, as '(a, b)'.

    With `n`, the leaves of `value` are lists of that length, and so is the object.
    """
    if isinstance(value, tuple):
        texts = [packed(part, n) for part in value]
        if not n:
            return in_parentheses(texts)
        # The lists of a tuple's leaves, transposed, are a list of tuples.
        return f'[*zip({", ".join(texts)})]' if texts else f'[()] * {n}'
    if isinstance(value, Items):
        return packed(value.items, value.n)
    if isinstance(value, Endless):
        return packed(value.item, n)
    if value is None:
        return f'[None] * {n}' if n else 'None'
    return value.text


def unpacking(names: list[str]) -> str:
    """Return the left side of an assignment that unpacks: `['a', 'b'] -> 'a, b'`."""
    return f'{", ".join(names)}{"," if len(names) == 1 else ""}'


def in_parentheses(texts: list[str]) -> str:
    """Return the source text of a tuple of these items: ['a'] -> '(a,)'."""
    return f'({unpacking(texts)})'
