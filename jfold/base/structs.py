# SPDX-License-Identifier: Apache-2.0
"""Forms of values that have children: tuples and structs.

A struct is a dict, or any other pytree node that is no tuple or list. A form knows how
to take a value into its children, the `parts`, and to build it of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np

T = TypeVar('T')
PyTreeDef: TypeAlias = jax.tree_util.PyTreeDef


def is_leaf(value: object) -> bool:
    """Return whether a value is a leaf of JAX's pytrees."""
    return bool(jax.tree_util.all_leaves([value]))


def is_struct(value: object) -> bool:
    """Return whether a value is a pytree node, but no tuple, list or `None`."""
    return not is_leaf(value) and not isinstance(value, tuple | list | None)


def flatten_once(value: object) -> tuple[list[Any], PyTreeDef]:
    """Return the children of a pytree node, and the structure of that one level."""
    return jax.tree.flatten(value, is_leaf=lambda x: x is not value)


def key_name(key: object) -> object:
    """Return the dict key, index or attribute in one entry of a JAX key path.

    An entry of an unknown class gives its text.
    """
    for name in 'key', 'idx', 'name':
        if hasattr(key, name):
            return getattr(key, name)
    return str(key)


@dataclass(frozen=True)
class Form:
    """The form of a tuple: how it is taken apart, rebuilt, indexed and printed.

    It is the base class of `StructForm`, the form of dicts and other pytree nodes.
    """

    def opened(self, value: Any) -> list[Any]:
        """Take a tuple apart: return its parts, the items, as a list."""
        return [*value]

    def closed(self, parts: Iterable[Any]) -> Any:
        """Return a value of this form, built of its parts: the inverse of `opened`."""
        return tuple(parts)

    def place(self, key: object, count: int) -> int | None:
        """Return `key` as an index from 0; `None` if no part has this index.

        For example -1 gives `count - 1`. Only ints within range are indices, not bools.

        Args:
          count: the number of parts.
        """
        if isinstance(key, bool) or not isinstance(key, int | np.integer):
            return None
        return int(key) % count if -count <= key < count else None

    def choices(self, count: int) -> str:
        """Return the range of indices of `count` parts, as text for an error.

        For two parts it is 'a place from -2 to 1', for none ''.
        """
        return f'a place from {-count} to {count - 1}' if count else ''

    def around(self, shown: Iterable[T]) -> Iterator[T | str]:
        """Iterate over the pieces of `(a, b)`; `shown` has the texts of the parts."""
        parts = [*shown]
        yield '('
        for number, part in enumerate(parts):
            yield from (', ', part) if number else (part,)
        yield ',)' if len(parts) == 1 else ')'


@dataclass(frozen=True)
class StructForm(Form):
    """The form of a dict or other pytree node: its class name, keys and structure.

    Attributes:
      name: the name of the class; '' for a dict.
      keys: the key, field name or index of each part in JAX's order, sorted for a dict.
      structure: JAX's structure of the one level; `None` if this process lacks the
        class.
    """

    name: str
    keys: tuple[Any, ...]
    structure: PyTreeDef | None

    @classmethod
    def of(cls, value: object) -> StructForm:
        """Return the class name, keys and structure of a dict or pytree node."""
        parts, structure = jax.tree_util.tree_flatten_with_path(
            value, is_leaf=lambda x: x is not value
        )
        name = '' if type(value) is dict else type(value).__name__
        return cls(name, tuple(key_name(key) for (key,), _ in parts), structure)

    @classmethod
    def of_keys(cls, name: str, keys: tuple[Any, ...]) -> StructForm:
        """Return the form of a dict, or of a class called `name`, with these keys.

        Args:
          name: the name of the class; '' for a dict.
        """
        if not name:
            return cls.of(dict.fromkeys(keys))
        return cls(name, keys, None)

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the structure: another process may not have the user's classes.
        return StructForm.of_keys, (self.name, self.keys)

    def opened(self, value: object) -> list[Any]:
        """Take a pytree node apart: return its parts, the children, in JAX's order."""
        return flatten_once(value)[0]

    def closed(self, parts: Iterable[Any]) -> Any:
        """Return a value of this form, built of its parts: the inverse of `opened`.

        The form must have a `structure`, which `of_keys` gives only to dicts.
        """
        assert self.structure is not None
        return jax.tree.unflatten(self.structure, parts)

    def place(self, key: object, count: int) -> int | None:
        """Return the index of the part with key `key`; `None` if no part has it.

        Keys are equal if their values and classes are: 1 is not `True`.
        """
        same = (k for k, x in enumerate(self.keys) if (type(x), x) == (type(key), key))
        return next(same, None)

    def choices(self, count: int) -> str:
        """Return the keys of the parts, joined by "or", as text for an error."""
        return ' or '.join(map(repr, self.keys))

    def around(self, shown: Iterable[T]) -> Iterator[T | str]:
        """Iterate over the pieces of `Name(k=a)`; `shown` has the texts of parts."""
        is_call = bool(self.name) and all(isinstance(x, str) for x in self.keys)
        begin, colon, end = ('(', '=', ')') if is_call else ('{', ': ', '}')
        yield f'{self.name}{begin}'
        for number, (key, part) in enumerate(zip(self.keys, shown, strict=True)):
            comma, text = ', ' if number else '', key if is_call else repr(key)
            yield from (f'{comma}{text}{colon}', part)
        yield end


TUPLE = Form()
