# SPDX-License-Identifier: Apache-2.0
"""A model of trees, and comparing corpora and schedules to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from binary_trees import binary_tree, tree_block

import jfold as jf
from jfold.data.corpus import Corpus

TREES: list[Any] = [1, (2, 3), ((1, 2), (3, 4)), 5, (6, (7, 8))]


def trees() -> jf.Model:
    """A small model of binary trees."""
    return jf.compile(tree_block(4))


def forest(count: int, most: int, seed: int = 0) -> list[Any]:
    """Random trees of 1 to `most` leaves."""
    rng = np.random.default_rng(seed)
    return [binary_tree(rng, int(rng.integers(1, most + 1))) for _ in range(count)]


def assert_same(left: jf.Schedule, right: jf.Schedule) -> None:
    """Equal specs, and arrays equal to the bit."""
    assert left.spec == right.spec
    np.testing.assert_array_equal(left.indices, right.indices)
    for a, b in zip(left.constants, right.constants, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes()


def assert_equal(left: Corpus, right: Corpus) -> None:
    """Equal arrays."""
    ours, theirs = left._arrays, right._arrays
    assert list(ours) == list(theirs)
    for name, array in ours.items():
        assert array.dtype == theirs[name].dtype, name
        np.testing.assert_array_equal(array, theirs[name], name)
    assert left.skipped == right.skipped
