# SPDX-License-Identifier: Apache-2.0
"""Unification: what is known of types that are not given, and that they are equal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from jfold.base.trampoline import Steps, in_turn, run
from jfold.language.fields import merged, without_names
from jfold.types import Nested, TupleType, Type


@dataclass(frozen=True, eq=False)
class TypeVariable(Type):
    """A type not yet known; exists only during inference, and equals only itself."""

    number: int
    ground: ClassVar[bool] = False

    def __repr__(self) -> str:
        return '?'


ITSELF = (
    'a type would contain itself: make tensors of one shape of what it gives, by a '
    'Function, or a sequence by Map'
)


class Mismatch(Exception):
    """Two types that were to be equal are not."""


@dataclass
class Unifier:
    """What is known of the type variables of one expression."""

    bound: dict[Type, Type] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    resolved: dict[Type, Type] = field(default_factory=dict)  # what is for good
    bare: dict[int, tuple[Type, Type]] = field(default_factory=dict)  # without names

    def fresh(self) -> TypeVariable:
        """A variable that nothing is known of."""
        return TypeVariable(next(self.numbers))

    def named(self, type_: Type) -> TypeVariable:
        """A new variable for a type."""
        made = self.fresh()
        self.bound[made] = type_
        return made

    def head(self, type_: Type) -> Type:
        """`type_` with its outermost variable replaced by what it is bound to."""
        last = self._last(type_)
        return self.bound.get(last, last)

    def _last(self, type_: Type) -> Type:
        """The variable behind a variable that is bound to a type, or to none."""
        last = type_
        while isinstance(then := self.bound.get(last), TypeVariable):
            last = then
        while type_ is not last:  # the way is shorter the next time
            self.bound[type_], type_ = last, self.bound[type_]
        return last

    def resolve(self, type_: Type) -> Type:
        """`type_` with all bound variables replaced."""
        head = self.head(type_)
        if head.ground or not isinstance(head, Nested):
            return head
        return self.resolved.get(head) or run(self._resolve(head, {}))

    def _resolve(self, type_: Type, found: dict[Type, Type]) -> Steps[Type]:
        head = self.head(type_)
        if head.ground or not isinstance(head, Nested):
            return head
        made = self.resolved.get(head) or found.get(head)
        if made is None:
            parts = yield in_turn(self._resolve(part, found) for part in head.parts)
            made = head.around(parts)
            # What has a variable left may resolve to more once that is bound.
            (self.resolved if made.ground else found)[head] = made
        return made

    def plain(self, type_: Type) -> Type:
        """`type_` with all bound variables replaced, and without names of fields."""
        return without_names(self.resolve(type_), self.bare)

    def known(self, type_: Type) -> bool:
        """Whether no variable is left in `type_`."""
        return self.resolve(type_).ground

    def unify(self, left: Type, right: Type) -> None:
        """Makes both types equal by binding variables.

        Names of fields go from the left to the right, to what may have several sources.

        Raises:
          Mismatch: they cannot be.
        """
        waiting = [(left, right)]
        seen: set[tuple[int, int]] = set()
        while waiting:
            left, last = map(self._last, waiting.pop())
            left, right = map(self.head, (left, last))
            if (id(left), id(right)) in seen or left == right:
                continue
            # By id: a set of the types themselves would compare them part by part.
            seen.add((id(left), id(right)))
            if isinstance(left, TypeVariable):
                self._bind(left, right)
            elif isinstance(right, TypeVariable):
                self._bind(right, left)
            else:
                waiting.extend(reversed(_pairs(left, right)))
                self._name(left, right, last)

    def _bind(self, variable: TypeVariable, type_: Type) -> None:
        if self._occurs(variable, type_):
            raise Mismatch(ITSELF)
        self.bound[variable] = type_

    def _name(self, left: Type, right: Type, last: Type) -> None:
        """Gives a variable the names that the items of both types have."""
        if isinstance(left, TupleType) and isinstance(right, TupleType):
            made = merged(right, left)
            if made is None:
                raise Mismatch('write the fields in one order')
            if isinstance(last, TypeVariable):
                self.bound[last] = made

    def _occurs(self, variable: TypeVariable, type_: Type) -> bool:
        waiting = [self.resolve(type_)]
        seen: set[int] = set()
        while waiting:
            each = waiting.pop()
            if each == variable:
                return True
            if isinstance(each, Nested) and not each.ground and id(each) not in seen:
                seen.add(id(each))
                waiting.extend(each.parts)
        return False


def _pairs(left: Type, right: Type) -> list[tuple[Type, Type]]:
    """The parts of two types, which must be of one kind."""
    if isinstance(left, Nested) and isinstance(right, Nested):
        if _kind(left) == _kind(right):
            return list(zip(left.parts, right.parts, strict=True))
    raise Mismatch


def _kind(type_: Nested) -> tuple[object, ...]:
    """What is equal of two types, if all their parts may be; names may differ."""
    kind = TupleType if isinstance(type_, TupleType) else type(type_)
    return kind, type_.form, len(type_.parts)
