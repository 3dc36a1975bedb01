# SPDX-License-Identifier: Apache-2.0
"""The names of fields, from a record to the function that takes its items.

Names are part of a type during inference, and nowhere else: later passes know the order
in which a function takes the items of its input, and no names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from jfold.base.printing import Printed, enclosed
from jfold.blocks.control import Arguments
from jfold.combinators import Block, Function
from jfold.language.paths import fail
from jfold.language.signatures import input_names, inputs_of_init, keyword_names
from jfold.types import Nested, TupleType, Type

Names: TypeAlias = tuple[frozenset[str], ...]  # per item; several if OneOf cases differ
Order: TypeAlias = tuple[int, ...]  # per argument, the index of its item


@dataclass(frozen=True, init=False, eq=False, repr=False)
class RecordType(TupleType):
    """A tuple type whose items may have names, which count when types are compared."""

    names: Names

    def __init__(self, items: Iterable[Type], names: Names) -> None:
        super().__init__(tuple(items))
        vars(self).update(names=names, _head=(*self._head, names))

    def around(self, parts: Iterable[Type]) -> RecordType:
        """Return a record type of the item types `parts`, with this type's names."""
        return RecordType(parts, self.names)

    def _pieces(self) -> Iterator[str | Printed]:
        labels = (f'{"|".join(sorted(x))}: ' if x else '' for x in self.names)
        parts = zip(labels, self.items, strict=True)
        return enclosed('(', parts, ',)' if len(self.items) == 1 else ')')

    def __getitem__(self, key: int | slice) -> Type:
        if isinstance(key, slice):
            return record_type(self.items[key], self.names[key])
        return self.items[key]


def record_type(items: Iterable[Type], names: Names) -> TupleType:
    """Return a `RecordType` if an item has a name, else a plain `TupleType`."""
    return RecordType(items, names) if any(names) else TupleType(tuple(items))


def merge_names(one: TupleType, other: TupleType) -> TupleType | None:
    """Return `one`, each item with its names in `other` too; `None` on conflict.

    The cases of a `OneOf` may name their fields differently: an item has all names.
    Types conflict if they have the same names in different orders.
    """
    here, there = (x.names if isinstance(x, RecordType) else () for x in (one, other))
    if not (here and there):
        return record_type(one.items, here or there)
    if here != there and set(here) == set(there):
        return None
    both = (x | y for x, y in zip(here, there, strict=True))
    return record_type(one.items, tuple(both))


def without_names(type_: Type, known: dict[int, tuple[Type, Type]]) -> Type:
    """Return a type without names of fields at any depth; `known` is a memo."""
    if not isinstance(type_, Nested):
        return type_
    if id(type_) not in known:
        parts = [without_names(part, known) for part in type_.parts]
        bare: Type = type_
        if isinstance(type_, RecordType):
            bare = TupleType(tuple(parts))
        elif any(x is not y for x, y in zip(parts, type_.parts, strict=True)):
            bare = type_.around(parts)
        # The entry keeps the type alive, so that no other object gets its id.
        known[id(type_)] = type_, bare
    return known[id(type_)][1]


def argument_order(node: object, block: Block, type_: Type) -> Order | None:
    """Return, per parameter of a function, the index of the input item of that name.

    Items go by name if the parameters of the function have the names of all items.
    `None` is returned if the items are in order already, or have no names.

    Raises:
      TypeError: a parameter has the name of an item but would get another item, or is
        keyword-only and would get none.
    """
    if not isinstance(type_, RecordType):
        return None
    if isinstance(block, Arguments):
        return _order(node, block.parameters, type_.names)
    if not isinstance(block, Function):
        return None
    fields = frozenset[str]().union(*type_.names)
    if keywords := [name for name in keyword_names(block) if name in fields]:
        got = f'(*, {", ".join(keywords)})'
        hint = 'write them before the `*`, or call them otherwise'
        fail(node, 'positional parameters for fields', got, hint)
    order = _order(node, input_names(block), type_.names)
    names = type_.names if order is None else tuple(type_.names[k] for k in order)
    if not _are_in_place(of_init := inputs_of_init(block), names):
        _refuse(node, 'inputs of `init`', of_init, names)
    return order


def _are_in_place(parameters: Sequence[str], names: Names) -> bool:
    """Return whether each parameter named after a field has the index of that field."""
    return all(
        place == k
        for k, name in enumerate(parameters)
        for place, labels in enumerate(names)
        if name in labels
    )


def _order(node: object, parameters: Sequence[str], names: Names) -> Order | None:
    if _are_in_place(parameters, names):
        return None
    first, others = parameters[: len(names)], parameters[len(names) :]
    unique = [next(iter(labels)) for labels in names if len(labels) == 1]
    if len(unique) < len(names) or {*first} != {*unique} or {*others} & {*unique}:
        _refuse(node, 'parameters', parameters, names)
    return tuple(map(unique.index, first))


def _refuse(
    node: object, what: str, parameters: Iterable[str], names: Names
) -> NoReturn:
    shown = ', '.join('|'.join(sorted(labels)) or '_' for labels in names)
    fail(
        node,
        f'{what} that bear the names of all fields, ({shown}), or each where its field '
        'stands',
        f'({", ".join(parameters)})',
        'call them otherwise, or write the fields in their order',
    )
