# SPDX-License-Identifier: Apache-2.0
"""Unification: type variables, and the bindings that make two types equal."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import ClassVar

from jfold.language.field_names import merge_names, without_names
from jfold.types import Nested, TupleType, Type


class TypeVariable(Type):
    """A type not yet known, equal to itself alone; it exists during inference only."""

    ground: ClassVar[bool] = False

    def __repr__(self) -> str:
        return '?'


ITSELF = (
    'a type would contain itself: make tensors of one shape of what it gives, by a '
    'Function, or a sequence by Map'
)


class Mismatch(Exception):
    """An error: two types cannot be made equal; the message is a hint, or empty."""


@dataclass
class Unifier:
    """The bindings of the type variables of one expression.

    Attributes:
      bound: by variable, the type or other variable that it stands for.
      resolved: a memo of `resolve`: types without variables, by the unresolved type.
      bare: a memo of `without_names`.
    """

    bound: dict[Type, Type] = field(default_factory=dict)
    resolved: dict[Type, Type] = field(default_factory=dict)
    bare: dict[int, tuple[Type, Type]] = field(default_factory=dict)

    def fresh(self) -> TypeVariable:
        """Return a new variable that is not bound."""
        return TypeVariable()

    def alias(self, type_: Type) -> TypeVariable:
        """Return a new variable bound to a type."""
        variable = TypeVariable()
        self.bound[variable] = type_
        return variable

    def head(self, type_: Type) -> Type:
        """Return the type that a variable is bound to; any other type itself.

        If a chain of variables ends in one that is not bound, that one is returned.
        """
        last = self._last(type_)
        return self.bound.get(last, last)

    def _last(self, type_: Type) -> Type:
        """Return the last variable in a chain of bound ones; any other type itself."""
        last = type_
        while isinstance(then := self.bound.get(last), TypeVariable):
            last = then
        while type_ is not last:  # path compression, as in a union-find structure
            self.bound[type_], type_ = last, self.bound[type_]
        return last

    def resolve(self, type_: Type) -> Type:
        """Return a type with all bound variables replaced, at any depth.

        `TypeError` is raised for a type nested deeper than calls of Python may be.
        """
        try:
            return self._resolve(type_, {})
        except RecursionError:
            raise TypeError(
                'expected values nested less deep, got tuples or sequences in each '
                f'other beyond the {sys.getrecursionlimit():,} calls that Python nests'
            ) from None

    def _resolve(self, type_: Type, partial: dict[Type, Type]) -> Type:
        head = self.head(type_)
        if head.ground or not isinstance(head, Nested):
            return head
        result = self.resolved.get(head) or partial.get(head)
        if result is None:
            result = head.around([self._resolve(part, partial) for part in head.parts])
            # A result with a variable left is kept for this call alone, because the
            # variable may be bound later.
            (self.resolved if result.ground else partial)[head] = result
        return result

    def plain(self, type_: Type) -> Type:
        """Return a type with bound variables replaced, and without names of fields."""
        return without_names(self.resolve(type_), self.bare)

    def known(self, type_: Type) -> bool:
        """Return whether a type resolves to one without variables."""
        return self.resolve(type_).ground

    def unify(self, left: Type, right: Type) -> None:
        """Make `left` and `right` equal by binding variables.

        The names of fields of `left` are added to those of `right`, which may get names
        from several sources, such as the cases of a `OneOf`.

        Raises:
          Mismatch: the types cannot be made equal. Some variables may be bound already.
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
        """Bind `variable` to `type_`; raise `Mismatch` if it contains the variable."""
        if self._occurs(variable, type_):
            raise Mismatch(ITSELF)
        self.bound[variable] = type_

    def _name(self, left: Type, right: Type, last: Type) -> None:
        """Bind variable `last` to tuple `right` with the field names of `left` added.

        Other types are not bound. Raise `Mismatch` if the orders of names contradict.
        """
        if isinstance(left, TupleType) and isinstance(right, TupleType):
            tuple_type = merge_names(right, left)
            if tuple_type is None:
                raise Mismatch('write the fields in one order')
            if isinstance(last, TypeVariable):
                self.bound[last] = tuple_type

    def _occurs(self, variable: TypeVariable, type_: Type) -> bool:
        """Return whether `type_` contains `variable`: the occurs check."""
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
    """Pair parts of `left` and `right`; raise `Mismatch` if kind or length differs."""
    if isinstance(left, Nested) and isinstance(right, Nested):
        # A tuple with names of fields unifies with one without.
        both = isinstance(left, TupleType) and isinstance(right, TupleType)
        if (both or type(left) is type(right)) and left.form == right.form:
            if len(left.parts) == len(right.parts):
                return list(zip(left.parts, right.parts, strict=True))
    raise Mismatch
