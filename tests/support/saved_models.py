# SPDX-License-Identifier: Apache-2.0
"""Models that are saved, and a check that whoever reads one predicts the same."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from saved_functions import kind, lower, words

import jfold as jf

TREES: list[Any] = ['Good', ['bad', 'x'], [['good', 'y'], ['BAD', ['bad', 'good']]]]


def word_tree() -> jf.Block:
    """Trees of words: a vector, the lengths of all words, and a metric with labels."""
    tree = jf.ForwardDeclaration(name='tree')
    number = jf.InputTransform(lower) >> jf.InputTransform(
        {'good': 1, 'bad': 2}, default=0
    )
    leaf = number >> jf.Scalar('int32') >> jf.Function(nn.Embed(3, 4), name='word')
    join = jf.Function(nn.Sequential([nn.Dense(4), nn.Dropout(0.5)]), name='join')
    pair = jf.Record((tree(), tree())) >> jf.Concat() >> join >> jf.Function(jnp.tanh)
    tree.resolve_to(jf.OneOf(kind, {'leaf': leaf, 'node': pair}))
    lengths = jf.Map(jf.InputTransform(len) >> jf.Scalar('int32'))
    roots = jf.AllOf(tree(), jf.InputTransform(kind)) >> jf.Metric('roots')
    return jf.AllOf(tree(), jf.InputTransform(words) >> lengths, roots)


@functools.cache
def model() -> jf.Model:
    """Of trees of words, with room for one tree and for four."""
    made = jf.compile(word_tree())
    corpus = made.trace(TREES * 4)
    for size in 4, 1:
        made.reserve(corpus.capacities(size))
    return made


@functools.cache
def params() -> dict[str, Any]:
    """Drawn once."""
    return model().init(jax.random.key(0))


def sums() -> jf.Model:
    """Of numbers in lists, one after another."""
    add = jf.Function(jnp.add)
    return jf.compile(jf.Map(jf.Scalar()) >> jf.Fold(add, jf.Zeros([])))


def rooms(made: jf.Model, most: int, *sizes: int) -> list[jf.Capacity]:
    """Room for so many lists of up to so many numbers, for each size."""
    corpus = made.trace([[1] * n for n in range(most + 1)])
    return [corpus.capacities(size) for size in sizes]


def same(got: Any, want: Any) -> None:
    """Equal in structure and to the bit."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for pair in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        one, other = map(np.asarray, pair)
        assert one.dtype == other.dtype and one.shape == other.shape
        assert one.tobytes() == other.tobytes()


def check(block: Any, examples: list[Any], folder: Path, **options: Any) -> Any:
    """A model that is saved and read gives what it gave; returns what was read."""
    made = jf.compile(block, **options)
    given = made.init(jax.random.key(0))
    room = made.reserve(made.trace(examples).capacities(len(examples)))
    jf.save(folder / 'model', made, given, room)
    loaded = jf.load(folder / 'model')
    assert str(loaded.program) == str(made.program)
    schedule = loaded.schedule(examples)
    expected = made.schedule(examples)
    same(
        [*schedule.constants, schedule.indices], [*expected.constants, expected.indices]
    )
    want = jax.jit(functools.partial(made.apply, deterministic=True))(given, expected)
    same(loaded.apply(loaded.params, schedule), want)
    same(
        loaded.predict(examples),
        made.predict(given, examples, batch_size=len(examples)),
    )
    return loaded
