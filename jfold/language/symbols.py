# SPDX-License-Identifier: Apache-2.0
"""Values as they stand while source is written: texts, and what is known of them.

    Object('x')                          an object, in the variable x
    Tensor('left', type=0, makers=0b10)  a row number, made by the operation output 1
    (Tensor(...), Tensor(...))           a tuple, of which no object exists
    Items(Tensor('words'), n='n')        a sequence: a list for each leaf of its items
    Items(Nested('lists', ...), n='n')   one of sequences: a list of lists
    Endless(Object('y'))                 a value repeated without end
    None                                 nothing

A *template* is the same without texts: what is known of a value in a place that several
values reach. Where a value has to be one Python object, tuples are tuples and sequences
are lists of their items; `packed` gives its text.
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
    """A Python object; `kind` is its class, where that is known."""

    text: str = ''
    kind: type | None = None


@dataclass(frozen=True, eq=False)
class Tensor:
    """The number of a row, or a list of them.

    Attributes:
      type: the number of its type.
      makers: the outputs of operations that it may be, as bits.
      step: the region whose rows it is one of, and who makes it there.
      use: the application that made it and which output it is, if it is that itself.
      level: the same for tensors whose levels are equal; `None` if that is not known.
    """

    name: str = ''
    type: int = 0
    makers: ProducerSet = 0
    step: Any = None
    use: Any = None
    level: Any = None

    @property
    def text(self) -> str:
        """The text; whoever asks reads it in another way than as an input."""
        if self.use is not None:
            self.use[0].readers.add(None)
        return self.name


@dataclass(frozen=True, eq=False)
class Items:
    """A sequence of `n` items: each leaf of `items` is a list of so many."""

    items: Symbol
    n: str = ''


@dataclass(frozen=True, eq=False)
class Nested:
    """Of the items of a sequence those that are sequences: a list of packed ones."""

    text: str
    item: Items  # a template


@dataclass(frozen=True, eq=False)
class Endless:
    """A value repeated without end."""

    item: Symbol


Symbol: TypeAlias = (
    'Object | Tensor | Items | Nested | Endless | tuple[Symbol, ...] | None'
)
Leaf: TypeAlias = Object | Tensor | Nested


def template(type_: Type, number: Callable[[TensorType], int]) -> Symbol:
    """What is known of any value of a type; `number` numbers tensor types."""
    if isinstance(type_, TensorType):
        return Tensor('', number(type_))
    if isinstance(type_, ObjectType):
        return Object()
    if isinstance(type_, Product):
        return tuple(template(each, number) for each in type_)
    if isinstance(type_, SequenceType):
        return Items(_listed(template(type_.item, number)))
    if isinstance(type_, BroadcastType):
        return Endless(template(type_.item, number))
    return None


def _listed(item: Symbol) -> Symbol:
    """The template of a list of values, given that of one."""
    if isinstance(item, tuple):
        return tuple(map(_listed, item))
    if isinstance(item, Endless):
        return Endless(_listed(item.item))
    return Nested('', item) if isinstance(item, Items) else item


def leaves(value: Symbol) -> Iterator[Leaf]:
    """The leaves of a value, from left to right."""
    if isinstance(value, tuple):
        for each in value:
            yield from leaves(each)
    elif isinstance(value, Items):
        yield from leaves(value.items)
    elif isinstance(value, Endless):
        yield from leaves(value.item)
    elif value is not None:
        yield value


def mapped(fn: Callable[[Leaf], Symbol], value: Symbol) -> Symbol:
    """The same structure with `fn` of each leaf in its place."""
    if isinstance(value, tuple):
        return tuple(mapped(fn, each) for each in value)
    if isinstance(value, Items):
        return replace(value, items=mapped(fn, value.items))
    if isinstance(value, Endless):
        return Endless(mapped(fn, value.item))
    return None if value is None else fn(value)


def renamed(value: Symbol, texts: Iterator[str], n: str = '') -> Symbol:
    """A value in other variables, of which nothing is known but makers."""

    def leaf(each: Leaf) -> Leaf:
        if isinstance(each, Tensor):
            return Tensor(next(texts), each.type, each.makers)
        return replace(each, text=next(texts))

    made = mapped(leaf, value)
    return replace(made, n=n) if isinstance(made, Items) else made


def makers(value: Symbol) -> Iterator[ProducerSet]:
    """The makers of each tensor in a value, those of items of sequences too."""
    for each in leaves(value):
        if isinstance(each, Tensor):
            yield each.makers
        elif isinstance(each, Nested):
            yield from makers(each.item)


def with_makers(value: Symbol, found: Iterator[ProducerSet]) -> Symbol:
    """The value with other makers; the inverse of `makers`."""

    def leaf(each: Leaf) -> Leaf:
        if isinstance(each, Tensor):
            known = each.step, each.use, each.level
            return Tensor(each.name, each.type, next(found), *known)
        if isinstance(each, Nested):
            return Nested(each.text, cast(Items, with_makers(each.item, found)))
        return each

    return mapped(leaf, value)


def levels(value: Symbol) -> Iterator[Any]:
    """The levels of the tensors in a value, but for those in sequences."""
    if isinstance(value, Tensor):
        yield value.level
    elif isinstance(value, tuple):
        for each in value:
            yield from levels(each)
    elif isinstance(value, Endless):
        yield from levels(value.item)


def with_levels(value: Symbol, found: Iterator[Any]) -> Symbol:
    """The value with other levels; the inverse of `levels`."""
    if isinstance(value, Tensor):
        known = value.makers, value.step, value.use
        return Tensor(value.name, value.type, *known, next(found))
    if isinstance(value, tuple):
        return tuple(with_levels(each, found) for each in value)
    if isinstance(value, Endless):
        return Endless(with_levels(value.item, found))
    return value


def packed(value: Symbol) -> str:
    """The text of a value as one Python object."""
    if value is None:
        return 'None'
    if isinstance(value, tuple):
        return in_parentheses([packed(each) for each in value])
    if isinstance(value, Items):
        return _packed_items(value.items, value.n)
    return packed(value.item) if isinstance(value, Endless) else value.text


def in_parentheses(texts: list[str]) -> str:
    """The text of a tuple."""
    return f'({", ".join(texts)}{"," if len(texts) == 1 else ""})'


def _packed_items(items: Symbol, n: str) -> str:
    if isinstance(items, tuple):
        if not items:
            return f'[()] * {n}'
        return f'[*zip({", ".join(_packed_items(each, n) for each in items)})]'
    if isinstance(items, Endless):
        return _packed_items(items.item, n)
    if items is None:
        return f'[None] * {n}'
    assert not isinstance(items, Items)
    return items.text
