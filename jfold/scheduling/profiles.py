# SPDX-License-Identifier: Apache-2.0
"""How many rows each level of a batch has, and how many another may have.

Of components with several levels alone; of others the number of rows says all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np

from jfold.graph import Array
from jfold.program.components import components
from jfold.program.operations import Operations
from jfold.scheduling.selections import Selection
from jfold.scheduling.staircase import Profile, larger, run_length_encode

Profiles: TypeAlias = tuple[Profile, ...]
# Of the levels of an operation's nodes [nodes], and the example of each [nodes], the
# rows of each level [levels].
Count: TypeAlias = Callable[[Array, Array], Array]
DEVIATIONS = 3  # that a level may have more rows than in the batch that was first


def profiles(program: Operations, selections: Iterable[Selection]) -> Profiles:
    """Return per component the rows of each level, in the selection that has most."""
    nothing: Profiles = ((),) * len(components(program))
    found = (_profiles(each, _rows) for each in selections)
    return functools.reduce(lambda a, b: tuple(map(larger, a, b)), found, nothing)


def most(selection: Selection, examples: int) -> Profiles:
    """Return per component the most rows of each level that so many examples of a
    selection, all different, have together."""

    def counted(levels: Array, owner: Array) -> Array:
        """Return the most rows of each level [levels]."""
        level, count = _by_example(levels, owner, len(selection))
        order = np.lexsort((-count, level))
        level, count = level[order], count[order]
        # Of each level the largest come first.
        place = np.arange(len(level)) - np.searchsorted(level, level)
        chosen = place < examples
        rows: Array = np.bincount(level[chosen], count[chosen])
        return rows[1:]

    return _profiles(selection, counted)


def margins(selection: Selection, examples: int) -> Profiles:
    """Return per component how many more rows each level of so many other examples may
    have by chance.

    Three standard deviations of a sum, by those of the examples of a selection. A level
    that has even more takes a step more, of which some are spare.
    """

    def counted(levels: Array, owner: Array) -> Array:
        """Return how many more rows each level may have [levels]."""
        level, count = _by_example(levels, owner, len(selection))
        mean = np.bincount(level, count) / max(len(selection), 1)
        square = np.bincount(level, count * count) / max(len(selection), 1)
        deviation = np.sqrt(examples * np.maximum(square - mean * mean, 0))
        # What is whole but for rounding stays.
        margin: Array = np.ceil(DEVIATIONS * deviation - 1e-6).astype(np.int64)
        return margin[1:]

    return _profiles(selection, counted)


def _by_example(levels: Array, owner: Array, examples: int) -> tuple[Array, Array]:
    """Return for each level of each example that has any rows there which level it is
    [n], and how many rows there are [n]."""
    keys = levels.astype(np.int64) * max(examples, 1) + owner
    found, count = np.unique(keys, return_counts=True)
    return found // max(examples, 1), count


def _rows(levels: Array, owner: Array) -> Array:
    """Return how many rows each level of an operation has [levels]."""
    return np.bincount(levels, minlength=1)[1:]


def _profiles(selection: Selection, counted: Count) -> Profiles:
    types = len(selection.program.types)

    def rows(o: int) -> Array:
        return counted(selection.levels(o), selection.owners(types + o))

    return tuple(
        _joined([rows(o) for o in each.operations]) if each.recurrent else ()
        for each in components(selection.program)
    )


def _joined(counts: Sequence[Array]) -> Profile:
    """The rows of each level of several operations, given those of each [levels or
    fewer]."""
    levels = np.zeros((max(map(len, counts)), len(counts)), np.int64)
    for column, each in zip(levels.T, counts, strict=True):
        column[: len(each)] = each
    return run_length_encode(levels)
