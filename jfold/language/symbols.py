# SPDX-License-Identifier: Apache-2.0
"""Symbols: values while source is written, as texts and what is known of them.

    Object('x')                          an object, in the variable x
    Tensor('left', type=0, makers=0b10)  a row number, made by the operation output 1
    (Tensor(...), Tensor(...))           a tuple, of which no object exists
    Items(Tensor('words'), n='n')        a sequence: a list for each leaf of its items
    Items(Nested('lists', ...), n='n')   one of sequences: a list of lists
    Endless(Object('y'))                 a value repeated without end
    None                                 nothing

A text is a Python expression, mostly a variable. A *leaf* is an `Object`, a `Tensor` or
a `Nested`; a *part* of a value is a leaf or a sequence that stands in no other. A
*template* is a value without texts: what is known of all values that reach one point of
the source. Where a value has to be one Python object, it is *packed*: tuples are tuples
and sequences are lists of their items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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
      makers: the producers: the operation outputs that it may be, as a bit set.
      step: the region whose row it is, and its maker, if it is in step (`lines`).
      use: the application that made it and the number of the output; `None` if other
        producers are possible.
      level: a token that tensors of equal levels share; `None` if nothing is known.
    """

    name: str = ''
    type: int = 0
    makers: ProducerSet = 0
    step: Any = None
    use: Any = None
    level: Any = None

    @property
    def text(self) -> str:
        """The expression for readers other than operations; `use` notes the reader."""
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
    item: Items  # a template


@dataclass(frozen=True, eq=False)
class Endless:
    """A value repeated without end in generated source, as by `Broadcast`."""

    item: Symbol


Symbol: TypeAlias = (
    'Object | Tensor | Items | Nested | Endless | tuple[Symbol, ...] | None'
)
Leaf: TypeAlias = Object | Tensor | Nested


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


# ---- parts and leaves ----------------------------------------------------------------


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


def renamed(value: Symbol, texts: Iterator[str], n: str = '') -> Symbol:
    """Return a value with a new expression for each leaf, and a new length `n`.

    Of tensors the type and the producers are kept, but not `step`, `use` and `level`.
    """

    def leaf(value: Leaf) -> Leaf:
        if isinstance(value, Tensor):
            return Tensor(next(texts), value.type, value.makers)
        return replace(value, text=next(texts))

    result = map_leaves(leaf, value)
    return replace(result, n=n) if isinstance(result, Items) else result


# ---- templates -----------------------------------------------------------------------


def blank(value: Symbol) -> Any:
    """Return a value without expressions: the types and producers of its tensors."""

    def leaf(value: Leaf) -> Symbol:
        if isinstance(value, Tensor):
            return Tensor('', value.type, value.makers)
        return Nested('', value.item) if isinstance(value, Nested) else Object()

    return map_leaves(leaf, value)


def template_of(value: Symbol) -> Symbol:
    """Return a value without expressions; levels of tensors and object classes stay."""

    def leaf(value: Leaf) -> Symbol:
        if isinstance(value, Tensor):
            return Tensor('', value.type, value.makers, level=value.level)
        return replace(value, text='')

    return map_leaves(leaf, value)


def listed(item: Symbol) -> Symbol:
    """Return the template of a list of items, stored as one list per leaf."""
    return map_parts(lambda x: Nested('', x) if isinstance(x, Items) else x, item)


def in_list(part: Leaf | Items, name: str) -> Symbol:
    """Return a symbol for the list variable `name`, whose items are like `part`."""
    if isinstance(part, Items):
        return Nested(name, blank(part))
    return renamed(part, iter([name]))


def one_of_lists(items: Symbol) -> Symbol:
    """Return the template of one item of a list stored per leaf; inverts `listed`."""
    return map_parts(lambda x: x.item if isinstance(x, Nested) else x, items)


# ---- producers and levels ------------------------------------------------------------


def makers(value: Symbol) -> Iterator[ProducerSet]:
    """Yield the producers of each tensor in a value, sequences included."""
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
    """Yield a token per tensor outside sequences: the same token for the same level."""
    return (part.level for part in parts(value) if isinstance(part, Tensor))


def with_levels(value: Symbol, others: Iterator[Any]) -> Symbol:
    """Return a value whose tensors outside sequences have the level tokens `others`."""

    def leveled(part: Leaf | Items) -> Symbol:
        return replace(part, level=next(others)) if isinstance(part, Tensor) else part

    return map_parts(leveled, value)


# ---- packed values -------------------------------------------------------------------


def packed(value: Symbol) -> str:
    """Return source text that packs a value into one Python object, as '(a, b)'."""
    if value is None:
        return 'None'
    if isinstance(value, tuple):
        return in_parentheses([packed(part) for part in value])
    if isinstance(value, Items):
        return _packed_items(value.items, value.n)
    return packed(value.item) if isinstance(value, Endless) else value.text


def in_parentheses(texts: list[str]) -> str:
    """Return the source text of a tuple of these items: ['a'] -> '(a,)'."""
    return f'({", ".join(texts)}{"," if len(texts) == 1 else ""})'


def _packed_items(items: Symbol, n: str) -> str:
    if isinstance(items, tuple):
        if not items:
            return f'[()] * {n}'
        # The lists of a tuple's leaves, transposed, are a list of tuples.
        return f'[*zip({", ".join(_packed_items(part, n) for part in items)})]'
    if isinstance(items, Endless):
        return _packed_items(items.item, n)
    if items is None:
        return f'[None] * {n}'
    assert not isinstance(items, Items)
    return items.text
