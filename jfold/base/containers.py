# SPDX-License-Identifier: Apache-2.0
"""Parameters in dicts, lists and tuples, whatever else holds them.

Those of Flax NNX are in classes of its own, which a reader of a file need not have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.tree_util import GetAttrKey, keystr

PLAIN = dict, list, tuple


def plain(tree: object) -> Any:
    """A pytree with dicts in the place of other containers, by what leads to each part.

    A box, whose one attribute is its value, is left out, as is what a container has of
    its own that holds nothing.

    >>> from flax.core import freeze
    >>> plain(freeze({'a': [1, (2, None)]}))
    {'a': [1, (2, None)]}
    """
    parts, structure = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda x: x is not tree
    )
    if jax.tree_util.treedef_is_leaf(structure) or tree is None:
        return tree
    if type(tree) in PLAIN:
        return jax.tree.unflatten(structure, [plain(part) for _, part in parts])
    found = {path[0]: plain(part) for path, part in parts if not _is_empty(part)}
    if [*found] == [GetAttrKey('value')]:
        (content,) = found.values()
        return content
    return {_name(key): part for key, part in found.items()}


def _is_empty(part: object) -> bool:
    """Whether it is a container of a kind of its own that holds nothing."""
    is_plain = part is None or type(part) in PLAIN
    return not is_plain and not jax.tree.leaves(part)


def _name(key: object) -> object:
    """What a key of a path says: of a dict, a sequence or an attribute."""
    for attribute in 'key', 'idx', 'name':
        if hasattr(key, attribute):
            return getattr(key, attribute)
    return keystr((key,))


def leaves_of(tree: object) -> list[Any]:
    """The leaves of a pytree in the order of the plain one."""
    return jax.tree.leaves(plain(tree))


def restored(like: object) -> Callable[[list[Any]], Any]:
    """The inverse of `leaves_of`, for pytrees of one structure."""
    structure: Any = jax.tree.structure(like)
    numbers = range(structure.num_leaves)
    places = leaves_of(jax.tree.unflatten(structure, numbers))

    def made(leaves: list[Any]) -> Any:
        by_place = dict(zip(places, leaves, strict=True))
        return jax.tree.unflatten(structure, [by_place[n] for n in numbers])

    return made
