# SPDX-License-Identifier: Apache-2.0
"""How values hold others: as tuples, or as what JAX takes apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np

T = TypeVar('T')
PyTreeDef: TypeAlias = jax.tree_util.PyTreeDef


def is_leaf(value: object) -> bool:
    """Whether JAX does not take a value apart."""
    return bool(jax.tree_util.all_leaves([value]))


def is_struct(value: object) -> bool:
    """Whether a value is a dict or an object whose parts JAX knows."""
    return not is_leaf(value) and not isinstance(value, tuple | list | None)


def opened(value: object) -> tuple[list[Any], PyTreeDef]:
    """The parts of a value, which may be nested without limit, and what they are in."""
    return jax.tree.flatten(value, is_leaf=lambda x: x is not value)


@dataclass(frozen=True)
class Form:
    """That of a tuple, and the base of others."""

    def opened(self, value: Any) -> list[Any]:
        """The parts of a value."""
        return [*value]

    def closed(self, parts: Iterable[Any]) -> Any:
        """The value of these parts."""
        return tuple(parts)

    def place(self, key: object, count: int) -> int | None:
        """That of a key, among so many parts; `None` if there is no such."""
        if isinstance(key, bool) or not isinstance(key, int | np.integer):
            return None
        return int(key) % count if -count <= key < count else None

    def choices(self, count: int) -> str:
        """What may be written as the key of a part."""
        return f'a place from {-count} to {count - 1}' if count else ''

    def around(self, shown: Iterable[T]) -> Iterator[T | str]:
        """What it prints as, with parts that are shown so."""
        parts = [*shown]
        yield '('
        for number, part in enumerate(parts):
            yield from (', ', part) if number else (part,)
        yield ',)' if len(parts) == 1 else ')'


@dataclass(frozen=True)
class StructForm(Form):
    """That of a dict, or of an object that JAX takes apart.

    Attributes:
      name: of its class; '' of a dict.
      keys: of its parts, in the order in which JAX has them, which is that of the
        sorted keys of a dict.
      structure: as JAX has it; `None` where the class is not known.
    """

    name: str
    keys: tuple[Any, ...]
    structure: PyTreeDef | None

    @classmethod
    def of(cls, value: object) -> StructForm:
        """The form of a value."""
        name = '' if type(value) is dict else type(value).__name__
        return cls(name, tuple(_keys(value)), opened(value)[1])

    @classmethod
    def of_keys(cls, name: str, keys: tuple[Any, ...]) -> StructForm:
        """The form of a dict; of an object, one by which none can be made."""
        if not name:
            return cls.of(dict.fromkeys(keys))
        return cls(name, keys, None)

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process need not have a user's classes.
        return StructForm.of_keys, (self.name, self.keys)

    def opened(self, value: object) -> list[Any]:
        """The parts of a value."""
        return opened(value)[0]

    def closed(self, parts: Iterable[Any]) -> Any:
        """The value of these parts."""
        assert self.structure is not None
        return jax.tree.unflatten(self.structure, parts)

    def place(self, key: object, count: int) -> int | None:
        """That of a key; `True` is not 1."""
        same = (k for k, x in enumerate(self.keys) if (type(x), x) == (type(key), key))
        return next(same, None)

    def choices(self, count: int) -> str:
        """What may be written as the key of a part."""
        return ' or '.join(map(repr, self.keys))

    def getter(self) -> str:
        """How to write the block that takes a part, the first for one."""
        return f'`GetItem({self.keys[0]!r})`'

    def around(self, shown: Iterable[T]) -> Iterator[T | str]:
        """What it prints as, with parts that are shown so."""
        is_call = bool(self.name) and all(isinstance(x, str) for x in self.keys)
        begin, colon, end = ('(', '=', ')') if is_call else ('{', ': ', '}')
        yield f'{self.name}{begin}'
        for number, (key, part) in enumerate(zip(self.keys, shown, strict=True)):
            comma, text = ', ' if number else '', key if is_call else repr(key)
            yield from (f'{comma}{text}{colon}', part)
        yield end


TUPLE = Form()


def _keys(value: object) -> Iterator[Any]:
    """The keys of a dict, the names of a dataclass; of others, numbers."""
    is_part = lambda x: x is not value  # noqa: E731
    paths, _ = jax.tree_util.tree_flatten_with_path(value, is_leaf=is_part)
    for (key, *_), _ in paths:
        names = (name for name in ('key', 'name', 'idx') if hasattr(key, name))
        yield getattr(key, next(names, ''), str(key))
