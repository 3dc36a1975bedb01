# SPDX-License-Identifier: Apache-2.0
"""Forms of values with parts: tuples, and structs, which are other pytrees."""

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
    """Return whether a value is a pytree node, but no tuple or list."""
    return not is_leaf(value) and not isinstance(value, tuple | list | None)


def flatten_once(value: object) -> tuple[list[Any], PyTreeDef]:
    """Flatten one level of a pytree: return its parts and its structure."""
    return jax.tree.flatten(value, is_leaf=lambda x: x is not value)


@dataclass(frozen=True)
class Form:
    """The form of a tuple, and the base class of other forms."""

    def opened(self, value: Any) -> list[Any]:
        """Return the parts of a value."""
        return [*value]

    def closed(self, parts: Iterable[Any]) -> Any:
        """Return the value with these parts."""
        return tuple(parts)

    def place(self, key: object, count: int) -> int | None:
        """Return the index of the part with a key, or `None`."""
        if isinstance(key, bool) or not isinstance(key, int | np.integer):
            return None
        return int(key) % count if -count <= key < count else None

    def choices(self, count: int) -> str:
        """Return a text that lists the keys of the parts."""
        return f'a place from {-count} to {count - 1}' if count else ''

    def around(self, shown: Iterable[T]) -> Iterator[T | str]:
        """Iterate over the pieces of a value whose parts are shown so."""
        parts = [*shown]
        yield '('
        for number, part in enumerate(parts):
            yield from (', ', part) if number else (part,)
        yield ',)' if len(parts) == 1 else ')'


@dataclass(frozen=True)
class StructForm(Form):
    """The form of a dict, or of another pytree node.

    Attributes:
      name: the name of the class; '' for a dict.
      keys: the keys of the parts in JAX's order, for a dict sorted.
      structure: the tree structure of JAX; `None` where the class is not known.
    """

    name: str
    keys: tuple[Any, ...]
    structure: PyTreeDef | None

    @classmethod
    def of(cls, value: object) -> StructForm:
        """Return the form of a value."""
        name = '' if type(value) is dict else type(value).__name__
        return cls(name, tuple(_keys(value)), flatten_once(value)[1])

    @classmethod
    def of_keys(cls, name: str, keys: tuple[Any, ...]) -> StructForm:
        """Return the form of a dict, or one for an object of an unknown class."""
        if not name:
            return cls.of(dict.fromkeys(keys))
        return cls(name, keys, None)

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process may not have the user's classes.
        return StructForm.of_keys, (self.name, self.keys)

    def opened(self, value: object) -> list[Any]:
        """Return the parts of a value."""
        return flatten_once(value)[0]

    def closed(self, parts: Iterable[Any]) -> Any:
        """Return the value with these parts."""
        assert self.structure is not None
        return jax.tree.unflatten(self.structure, parts)

    def place(self, key: object, count: int) -> int | None:
        """Return the index of the part with a key, or `None`; `True` is not 1."""
        same = (k for k, x in enumerate(self.keys) if (type(x), x) == (type(key), key))
        return next(same, None)

    def choices(self, count: int) -> str:
        """Return a text that lists the keys of the parts."""
        return ' or '.join(map(repr, self.keys))

    def getter(self) -> str:
        """Return the source of a block that takes the first part, for errors."""
        return f'`GetItem({self.keys[0]!r})`'

    def around(self, shown: Iterable[T]) -> Iterator[T | str]:
        """Iterate over the pieces of a value whose parts are shown so."""
        is_call = bool(self.name) and all(isinstance(x, str) for x in self.keys)
        begin, colon, end = ('(', '=', ')') if is_call else ('{', ': ', '}')
        yield f'{self.name}{begin}'
        for number, (key, part) in enumerate(zip(self.keys, shown, strict=True)):
            comma, text = ', ' if number else '', key if is_call else repr(key)
            yield from (f'{comma}{text}{colon}', part)
        yield end


TUPLE = Form()


def _keys(value: object) -> Iterator[Any]:
    """Iterate over the keys of a dict, the field names of a dataclass, else indices."""
    is_part = lambda x: x is not value  # noqa: E731
    paths, _ = jax.tree_util.tree_flatten_with_path(value, is_leaf=is_part)
    for (key, *_), _ in paths:
        names = (name for name in ('key', 'name', 'idx') if hasattr(key, name))
        yield getattr(key, next(names, ''), str(key))
