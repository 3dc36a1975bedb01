# SPDX-License-Identifier: Apache-2.0
"""The names of fields, on their way from a record to the function that takes them.

They go with the type of a value while types are inferred, and nowhere else: what
follows knows in which order a function takes the items of its input, and no names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from jfold.base.printing import Printed
from jfold.base.trampoline import Steps, in_turn, run
from jfold.blocks.control import Arguments
from jfold.combinators import Block, Function
from jfold.language.paths import fail
from jfold.language.signatures import inputs_of, inputs_of_init
from jfold.types import Nested, TupleType, Type

Names: TypeAlias = tuple[frozenset[str], ...]  # of each item; several of several cases
Order: TypeAlias = tuple[int, ...]  # of items: the place of each


@dataclass(frozen=True, init=False, eq=False, repr=False)
class RecordType(TupleType):
    """A tuple whose items have names; equal to those alone that have the same."""

    names: Names

    def __init__(self, items: Iterable[Type], names: Names) -> None:
        super().__init__(tuple(items))
        vars(self).update(names=names, _head=(*self._head, names))

    def around(self, parts: Iterable[Type]) -> RecordType:
        """The same names, of other items."""
        return RecordType(parts, self.names)

    def _pieces(self) -> Iterator[str | Printed]:
        pairs = zip(self.items, self.names, strict=True)
        for number, (item, names) in enumerate(pairs):
            label = f'{"|".join(sorted(names))}: ' if names else ''
            yield from (', ' if number else '(', label, item)
        yield ',)' if len(self.items) == 1 else ')'

    def __getitem__(self, key: int | slice) -> Type:
        if isinstance(key, slice):
            return record_type(self.items[key], self.names[key])
        return self.items[key]


def record_type(items: Iterable[Type], names: Names) -> TupleType:
    """A tuple of items of which some may have names."""
    return RecordType(items, names) if any(names) else TupleType(tuple(items))


def names_of(type_: Type) -> Names:
    """The names of the items of a tuple, none of one without names."""
    return type_.names if isinstance(type_, RecordType) else ()


def merged(one: TupleType, other: TupleType) -> TupleType | None:
    """The first tuple with the names of both; `None` if their order contradicts.

    Two cases may well call their fields otherwise; what neither says is known of none.
    """
    here, there = names_of(one), names_of(other)
    if not (here and there):
        return record_type(one.items, here or there)
    if here != there and set(here) == set(there):
        return None
    both = (x | y for x, y in zip(here, there, strict=True))
    return record_type(one.items, tuple(both))


def without_names(type_: Type, known: dict[int, tuple[Type, Type]]) -> Type:
    """A type in which nothing has names; what is found is added to what is known."""
    return run(_bare(type_, known))


def _bare(type_: Type, known: dict[int, tuple[Type, Type]]) -> Steps[Type]:
    if not isinstance(type_, Nested):
        return type_
    if id(type_) not in known:
        parts = yield in_turn(_bare(part, known) for part in type_.parts)
        made: Type = type_
        if isinstance(type_, RecordType):
            made = TupleType(tuple(parts))
        elif any(x is not y for x, y in zip(parts, type_.parts, strict=True)):
            made = type_.around(parts)
        known[id(type_)] = type_, made  # both, so that no other gets the id
    return known[id(type_)][1]


# ---- what takes them -----------------------------------------------------------------


def order_for(node: object, block: Block, given: Type) -> Order | None:
    """In which order a function takes the items of a tuple; `None` for that they have.

    That of its parameters, if these bear the names of all items.

    Raises:
      TypeError: a parameter bears the name of an item and would be given another.
    """
    if not isinstance(given, RecordType):
        return None
    if isinstance(block, Arguments):
        return _order(node, block.parameters, given.names)
    if not isinstance(block, Function):
        return None
    order = _order(node, inputs_of(block), given.names)
    names = given.names if order is None else tuple(given.names[k] for k in order)
    if not _stand(of_init := inputs_of_init(block), names):
        _refuse(node, 'inputs of `init`', of_init, names)
    return order


def _stand(parameters: Sequence[str], names: Names) -> bool:
    """Whether parameters that bear a name of a field stand for that alone."""
    return all(
        place == k
        for k, name in enumerate(parameters)
        for place, each in enumerate(names)
        if name in each
    )


def _order(node: object, parameters: Sequence[str], names: Names) -> Order | None:
    if _stand(parameters, names):
        return None
    first, rest = parameters[: len(names)], parameters[len(names) :]
    told = [next(iter(each)) for each in names if len(each) == 1]
    if len(told) < len(names) or {*first} != {*told} or {*rest} & {*told}:
        _refuse(node, 'parameters', parameters, names)
    return tuple(map(told.index, first))


def _refuse(
    node: object, what: str, parameters: Iterable[str], names: Names
) -> NoReturn:
    shown = ', '.join('|'.join(sorted(each)) or '_' for each in names)
    fail(
        node,
        f'{what} that bear the names of all fields, ({shown}), or each where its field '
        'stands',
        f'({", ".join(parameters)})',
        'call them otherwise, or write the fields in their order',
    )
