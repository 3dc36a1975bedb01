# SPDX-License-Identifier: Apache-2.0
"""Profiles: the rows of each level of a batch, with headroom for other batches.

A profile is of a component, the operations of one recurrence; it has the rows of each
operation on each level. It is () for components that are not recurrent, with one level.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np

from jfold.graph import Array
from jfold.program.components import components
from jfold.program.operations import Operations
from jfold.scheduling.selections import Selection
from jfold.scheduling.staircase import (
    Profile,
    by_level,
    larger,
    run_length_encode,
)

Profiles: TypeAlias = tuple[Profile, ...]
# Takes the level and the example index of each node of an operation, both [nodes], and
# returns a number of rows for each level [levels].
Count: TypeAlias = Callable[[Array, Array], Array]
DEVIATIONS = 3  # standard deviations of a level's number of rows, as headroom


def profiles(program: Operations, selections: Iterable[Selection]) -> Profiles:
    """Return, per component, the most rows of any of the selections on each level."""
    nothing: Profiles = ((),) * len(components(program))
    parts = (_profiles(selection, _rows) for selection in selections)
    return functools.reduce(lambda a, b: tuple(map(larger, a, b)), parts, nothing)


def largest_profiles(selection: Selection, examples: int) -> Profiles:
    """Return, per component, the most rows of any `examples` examples on each level.

    Args:
      selection: all examples; the batch may have any of them, each once.
      examples: the number of examples in the batch.
    """

    def counted(levels: Array, owner: Array) -> Array:
        """Return the most rows of `examples` examples on each level [levels]."""
        level, count = _by_example(levels, owner, len(selection))
        order = np.lexsort((-count, level))
        level, count = level[order], count[order]
        # Sorted by level, then largest first: take the first `examples` of each.
        place = np.arange(len(level)) - np.searchsorted(level, level)
        chosen = place < examples
        rows: Array = np.bincount(level[chosen], count[chosen])
        return rows[1:]

    return _profiles(selection, counted)


def margins(selection: Selection, examples: int) -> Profiles:
    """Estimate how far levels' row counts exceed their means in batches of `examples`.

    Per component and level, three standard deviations of a sum over `examples`
    examples, estimated from those of the selection. A level that has even more rows
    takes one of the spare steps.
    """

    def counted(levels: Array, owner: Array) -> Array:
        level, count = _by_example(levels, owner, len(selection))
        mean = np.bincount(level, count) / max(len(selection), 1)
        square = np.bincount(level, count * count) / max(len(selection), 1)
        deviation = np.sqrt(examples * np.maximum(square - mean * mean, 0))
        # A whole number with a rounding error shall not be rounded up to the next.
        margin: Array = np.ceil(DEVIATIONS * deviation - 1e-6).astype(np.int64)
        return margin[1:]

    return _profiles(selection, counted)


def _by_example(levels: Array, owner: Array, examples: int) -> tuple[Array, Array]:
    """Count nodes per level and example; return levels and counts of these pairs [n].

    Sorted by level, then by example; pairs without nodes are left out.

    Args:
      levels: [nodes] the level of each node.
      owner: [nodes] the example index of each node.
      examples: the number of examples.
    """
    keys = levels.astype(np.int64) * max(examples, 1) + owner
    keys, count = np.unique(keys, return_counts=True)
    return keys // max(examples, 1), count


def _rows(levels: Array, owner: Array) -> Array:
    """Count the rows on each level [levels]; `owner` is not used."""
    return np.bincount(levels, minlength=1)[1:]


def _profiles(selection: Selection, counted: Count) -> Profiles:
    types = len(selection.program.types)

    def rows(o: int) -> Array:
        return counted(selection.levels(o), selection.owners(types + o))

    applied = selection.program.applied
    return tuple(
        run_length_encode(by_level([rows(o) for o in component.operations]))
        if component.recurrent and not applied.issuperset(component.operations)
        else ()
        for component in components(selection.program)
    )
