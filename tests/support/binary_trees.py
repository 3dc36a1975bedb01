# SPDX-License-Identifier: Apache-2.0
"""Binary trees of all depths, and small networks on them."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jfold as jf

Rng = np.random.Generator


def binary_tree(rng: Rng, leaves: int, words: int = 16) -> Any:
    """Nested pairs around ints, built without recursion so that it may be deep."""
    made: list[Any] = []
    todo: list[int] = [leaves]
    while todo:
        size = todo.pop()
        if size == 0:
            right, left = made.pop(), made.pop()
            made.append((left, right))
        elif size == 1:
            made.append(int(rng.integers(words)))
        else:
            left_size = int(rng.integers(1, size))
            todo += [0, size - left_size, left_size]
    return made[0]


def chain(length: int) -> Any:
    """The deepest binary tree, built without recursion."""
    made: Any = 0
    for i in range(length):
        made = (made, i % 16)
    return made


def kind_of(tree: Any) -> str:
    """Whether a binary tree is a leaf."""
    return 'pair' if isinstance(tree, tuple) else 'word'


def embedding(size: int, words: int = 16, name: str = 'embed') -> jf.Function:
    """A table of vectors."""

    def init(key: Any, _: Any) -> Any:
        return jax.random.normal(key, (words, size))

    return jf.Function(lambda table, word: table[word], init, name=name)


def dense_cell(size: int, name: str = 'cell') -> jf.Function:
    """A cell of one matrix on two vectors."""

    def init(key: Any, *_: Any) -> Any:
        weight = jax.random.normal(key, (size, 2 * size)) / math.sqrt(2 * size)
        return {'weight': weight, 'bias': jnp.full(size, 0.1)}

    def cell(params: Any, left: Any, right: Any) -> Any:
        x = jnp.concatenate([left, right])
        return jnp.tanh(params['weight'] @ x + params['bias'])

    return jf.Function(cell, init, name=name)


def binary(leaf: Any, cell: Any) -> Any:
    """A recursion over binary trees."""
    tree = jf.ForwardDeclaration(name='tree')
    pair = jf.Record((tree(), tree())) >> cell
    tree.resolve_to(jf.OneOf(kind_of, {'word': leaf, 'pair': pair}))
    return tree()


def tree_block(size: int = 4) -> Any:
    """A small tree network."""
    return binary(jf.Scalar('int32') >> embedding(size), dense_cell(size))
