# SPDX-License-Identifier: Apache-2.0
"""Forms of values that have children, and parameters as plain dicts, lists and tuples.

A struct is a dict, or any other pytree node that is no tuple or list. A form takes a
value apart into its children, the `parts`, and rebuilds the value from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np
from jax.tree_util import GetAttrKey

from jfold.base.errors import short_repr
from jfold.base.printing import enclosed

T = TypeVar('T')
PyTreeDef: TypeAlias = jax.tree_util.PyTreeDef
PLAIN = dict, list, tuple


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
    """Return the dict key, index or attribute in one entry of a key path."""
    for name in 'key', 'idx', 'name':
        if hasattr(key, name):
            return getattr(key, name)
    return str(key)


@dataclass(frozen=True)
class Form:
    """The form of a tuple: how it is taken apart, rebuilt, indexed and printed."""

    def opened(self, value: Any) -> list[Any]:
        """Take a value apart: return its parts."""
        return [*value]

    def closed(self, parts: Iterable[Any]) -> Any:
        """Return a value of this form, built of its parts: the inverse of `opened`."""
        return tuple(parts)

    def place(self, key: object, count: int) -> int | None:
        """Return `key` as an index from 0 below `count`; `None` if it is no index.

        For example -1 gives `count - 1`. Only ints within range are indices, not bools.
        """
        if isinstance(key, bool) or not isinstance(key, int | np.integer):
            return None
        return int(key) % count if -count <= key < count else None

    def choices(self, count: int) -> str:
        """Return which indices `count` items have, as 'a place from -2 to 1', or ''."""
        return f'a place from {-count} to {count - 1}' if count else ''

    def around(self, shown: Iterable[T]) -> Iterator[T | str]:
        """Iterate over the pieces of `(a, b)`; `shown` has the texts of the parts."""
        parts = [*shown]
        pairs = (('', part) for part in parts)
        return enclosed('(', pairs, ',)' if len(parts) == 1 else ')')


@dataclass(frozen=True)
class StructForm(Form):
    """The form of a dict or other pytree node, whose parts are in JAX's order.

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
        """Return the form of a dict or other pytree node.

        Raise TypeError if the keys of a dict cannot be sorted.
        """
        try:
            parts, structure = jax.tree_util.tree_flatten_with_path(
                value, is_leaf=lambda x: x is not value
            )
        except ValueError as error:  # JAX's, which sorts the keys of a dict
            raise TypeError(
                'expected a dict with keys in an order, got '
                f'{short_repr(value)}; write names alone'
            ) from error
        name = '' if type(value) is dict else type(value).__name__
        return cls(name, tuple(key_name(key) for (key,), _ in parts), structure)

    @classmethod
    def of_keys(cls, name: str, keys: tuple[Any, ...]) -> StructForm:
        """Return the form of a dict, or of a class called `name`, with these keys."""
        if not name:
            return cls.of(dict.fromkeys(keys))
        return cls(name, keys, None)

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the structure: another process may not have the user's classes.
        return StructForm.of_keys, (self.name, self.keys)

    def opened(self, value: object) -> list[Any]:
        return flatten_once(value)[0]

    def closed(self, parts: Iterable[Any]) -> Any:
        assert self.structure is not None
        return jax.tree.unflatten(self.structure, parts)

    def place(self, key: object, count: int) -> int | None:
        # Keys are equal if their values and classes are: 1 is not `True`.
        same = (k for k, x in enumerate(self.keys) if (type(x), x) == (type(key), key))
        return next(same, None)

    def choices(self, count: int) -> str:
        return ' or '.join(map(repr, self.keys))

    def around(self, shown: Iterable[T]) -> Iterator[T | str]:
        """Iterate over the pieces of `Name(k=a)`; `shown` has the texts of parts."""
        is_call = bool(self.name) and all(isinstance(x, str) for x in self.keys)
        labels = (f'{key}=' if is_call else f'{key!r}: ' for key in self.keys)
        begin, end = '()' if is_call else '{}'
        return enclosed(f'{self.name}{begin}', zip(labels, shown, strict=True), end)


TUPLE = Form()


# ---- plain containers ----------------------------------------------------------------

# Flax NNX holds parameters in its own classes, which may be missing where a file is
# read. So files have dicts in their place.


def plain_containers(tree: object) -> Any:
    """Return `tree` with dicts in place of all containers but lists and tuples.

    The keys of a new dict are the keys, indices or attribute names of the children. A
    box, a node whose one attribute is `value`, is replaced by the content of `value`. A
    new dict leaves out containers that hold no leaves and are no dict, list or tuple.

    >>> from flax.core import freeze
    >>> plain_containers(freeze({'a': [1, (2, None)]}))
    {'a': [1, (2, None)]}
    """
    parts, structure = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda x: x is not tree
    )
    if jax.tree_util.treedef_is_leaf(structure) or tree is None:
        if isinstance(tree, Mapping) and jax.tree_util.all_leaves([tree]):
            return plain_containers({**tree})  # JAX does not know its class
        return tree
    if type(tree) in PLAIN:
        return jax.tree.unflatten(
            structure, [plain_containers(part) for _, part in parts]
        )
    by_key = {
        path[0]: plain_containers(part)
        for path, part in parts
        if part is None or type(part) in PLAIN or jax.tree.leaves(part)
    }
    if [*by_key] == [GetAttrKey('value')]:
        (content,) = by_key.values()
        return content
    return {key_name(key): part for key, part in by_key.items()}


def plain_leaves(tree: object) -> list[Any]:
    """Return the leaves of `plain_containers(tree)`, in the order of that pytree."""
    return jax.tree.leaves(plain_containers(tree))


def leaf_restorer(like: object) -> Callable[[list[Any]], Any]:
    """Return a function that rebuilds a pytree like `like` from its `plain_leaves`.

    It raises ValueError if the number of leaves differs.
    """
    structure: Any = jax.tree.structure(like)
    numbers = range(structure.num_leaves)
    # JAX sorts the keys of a plain dict, but not the attributes of a class. So leaves
    # may change their order: number them, and read the order off.
    order = plain_leaves(jax.tree.unflatten(structure, numbers))

    def restore(leaves: list[Any]) -> Any:
        by_number = dict(zip(order, leaves, strict=True))
        return jax.tree.unflatten(structure, [by_number[n] for n in numbers])

    return restore
