# SPDX-License-Identifier: Apache-2.0
"""Parameters as plain dicts, lists and tuples, for files.

Flax NNX holds parameters in its own classes, which may be missing where a file is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.tree_util import GetAttrKey

from jfold.base.structs import key_name

PLAIN = dict, list, tuple


def plain_containers(tree: object) -> Any:
    """Return a pytree with dicts in place of all containers but lists and tuples.

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
