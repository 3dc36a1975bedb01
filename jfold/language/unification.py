# SPDX-License-Identifier: Apache-2.0
"""Unification: type variables, and the bindings that make types equal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from jfold.base.trampoline import Steps, in_turn, run
from jfold.language.fields import merge_names, without_names
from jfold.types import Nested, TupleType, Type


@dataclass(frozen=True, eq=False)
class TypeVariable(Type):
    """A type not yet known, which equals only itself; exists during inference alone."""

    number: int
    ground: ClassVar[bool] = False

    def __repr__(self) -> str:
        return '?'


ITSELF = (
    'a type would contain itself: make tensors of one shape of what it gives, by a '
    'Function, or a sequence by Map'
)


class Mismatch(Exception):
    """Two types cannot be made equal; the message, if any, is a hint."""


@dataclass
class Unifier:
    """The bindings of the type variables of one expression.

    Attributes:
      bound: the type, or other variable, that a variable stands for.
      resolved: types without variables, by the type that they were resolved from.
      bare: by id, types and the same without names of fields.
    """

    bound: dict[Type, Type] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    resolved: dict[Type, Type] = field(default_factory=dict)
    bare: dict[int, tuple[Type, Type]] = field(default_factory=dict)

    def fresh(self) -> TypeVariable:
        """Return a new variable that is not bound."""
        return TypeVariable(next(self.numbers))

    def alias(self, type_: Type) -> TypeVariable:
        """Return a new variable bound to a type."""
        variable = self.fresh()
        self.bound[variable] = type_
        return variable

    def head(self, type_: Type) -> Type:
        """Return `type_` with its outermost variable replaced, if it is bound."""
        last = self._last(type_)
        return self.bound.get(last, last)

    def _last(self, type_: Type) -> Type:
        """Return the last of a chain of variables bound to variables."""
        last = type_
        while isinstance(then := self.bound.get(last), TypeVariable):
            last = then
        while type_ is not last:  # path compression, as in a union-find structure
            self.bound[type_], type_ = last, self.bound[type_]
        return last

    def resolve(self, type_: Type) -> Type:
        """Return `type_` with all bound variables replaced."""
        head = self.head(type_)
        if head.ground or not isinstance(head, Nested):
            return head
        return self.resolved.get(head) or run(self._resolve(head, {}))

    def _resolve(self, type_: Type, partial: dict[Type, Type]) -> Steps[Type]:
        head = self.head(type_)
        if head.ground or not isinstance(head, Nested):
            return head
        result = self.resolved.get(head) or partial.get(head)
        if result is None:
            parts = yield in_turn(self._resolve(part, partial) for part in head.parts)
            result = head.around(parts)
            # With a variable left it is memoized for this call alone: the variable may
            # be bound later.
            (self.resolved if result.ground else partial)[head] = result
        return result

    def plain(self, type_: Type) -> Type:
        """Return `type_` resolved, and without names of fields."""
        return without_names(self.resolve(type_), self.bare)

    def known(self, type_: Type) -> bool:
        """Return whether `type_` resolves to a type without variables."""
        return self.resolve(type_).ground

    def unify(self, left: Type, right: Type) -> None:
        """Make both types equal by binding variables.

        The names of fields of `left` are added to those of `right`, which may get names
        from several sources, such as the cases of a `OneOf`.

        Raises:
          Mismatch: they cannot be.
        """
        waiting = [(left, right)]
        seen: set[tuple[int, int]] = set()
        while waiting:
            # `last` is the variable bound to `right`, if any: names are added to it.
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
        """Bind `last` to the right type with the names of items of both."""
        if isinstance(left, TupleType) and isinstance(right, TupleType):
            tuple_type = merge_names(right, left)
            if tuple_type is None:
                raise Mismatch('write the fields in one order')
            if isinstance(last, TypeVariable):
                self.bound[last] = tuple_type

    def _occurs(self, variable: TypeVariable, type_: Type) -> bool:
        """Return whether binding the variable to the type would make it infinite."""
        # By id, since types are graphs: a part may stand in many places.
        waiting = [self.resolve(type_)]
        seen: set[int] = set()
        while waiting:
            part = waiting.pop()
            if part == variable:
                return True
            if isinstance(part, Nested) and not part.ground and id(part) not in seen:
                seen.add(id(part))
                waiting.extend(part.parts)
        return False


def _pairs(left: Type, right: Type) -> list[tuple[Type, Type]]:
    """Return pairs of parts of two types with equal heads; raises `Mismatch`."""
    if isinstance(left, Nested) and isinstance(right, Nested):
        if _head_key(left) == _head_key(right):
            return list(zip(left.parts, right.parts, strict=True))
    raise Mismatch


def _head_key(type_: Nested) -> tuple[object, ...]:
    """Return a key that is equal for types that may be unified part by part."""
    # A tuple with names of fields unifies with one without.
    constructor = TupleType if isinstance(type_, TupleType) else type(type_)
    return constructor, type_.form, len(type_.parts)
