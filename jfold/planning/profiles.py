# SPDX-License-Identifier: Apache-2.0
"""How many rows each level of a batch has, and how many another may have.

Of components with several levels alone; of others the number of rows says all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np

from jfold.graph import Array, Graph, Table
from jfold.operations import Operations
from jfold.recurrence import components
from jfold.staircase import Profile, larger, runs

Profiles: TypeAlias = tuple[Profile, ...]
# Of an operation's table, the rows of each level [levels].
Count: TypeAlias = Callable[[Table], Array]
DEVIATIONS = 3  # that a level may have more rows than in the batch that was first


def profiles(program: Operations, graphs: Iterable[Graph]) -> Profiles:
    """Per component, the rows of each level, in the graph that has most."""
    nothing: Profiles = ((),) * len(components(program))
    found = (_profiles(program, graph, _rows) for graph in graphs)
    return functools.reduce(lambda a, b: tuple(map(larger, a, b)), found, nothing)


def most(program: Operations, graph: Graph, examples: int) -> Profiles:
    """Per component, the most rows of each level that so many examples of a graph, all
    different, have together."""

    def counted(table: Table) -> Array:
        """The most rows of each level [levels]."""
        level, count = _by_example(table)
        order = np.lexsort((-count, level))
        level, count = level[order], count[order]
        # Of each level the largest come first.
        place = np.arange(len(level)) - np.searchsorted(level, level)
        chosen = place < examples
        rows: Array = np.bincount(level[chosen], count[chosen])
        return rows[1:]

    return _profiles(program, graph, counted)


def margins(program: Operations, graph: Graph, examples: int) -> Profiles:
    """Per component, how many more rows each level of as many other examples may have
    by chance.

    Three standard deviations of a sum, by those of the examples of a graph. A level
    that has even more takes a step more, of which some are spare.
    """

    def counted(table: Table) -> Array:
        """How many more rows each level may have [levels]."""
        level, count = _by_example(table)
        mean = np.bincount(level, count) / max(graph.examples, 1)
        square = np.bincount(level, count * count) / max(graph.examples, 1)
        deviation = np.sqrt(examples * np.maximum(square - mean * mean, 0))
        # What is whole but for rounding stays.
        margin: Array = np.ceil(DEVIATIONS * deviation - 1e-6).astype(np.int64)
        return margin[1:]

    return _profiles(program, graph, counted)


def _by_example(table: Table) -> tuple[Array, Array]:
    """For each level of each example that has any rows there, which level it is [n] and
    how many rows there are [n]."""
    examples = len(table.counts)
    owner = np.arange(examples).repeat(table.counts)
    keys = table.columns[0].astype(np.int64) * max(examples, 1) + owner
    found, count = np.unique(keys, return_counts=True)
    return found // max(examples, 1), count


def _rows(table: Table) -> Array:
    """How many rows each level of an operation has [levels]."""
    return np.bincount(table.columns[0], minlength=1)[1:]


def _profiles(program: Operations, graph: Graph, counted: Count) -> Profiles:
    return tuple(
        _joined([counted(graph.operations[o]) for o in each.operations])
        if each.recurrent
        else ()
        for each in components(program)
    )


def _joined(counts: Sequence[Array]) -> Profile:
    """The rows of each level of several operations, given those of each [levels or
    fewer]."""
    levels = np.zeros((max(map(len, counts)), len(counts)), np.int64)
    for column, each in zip(levels.T, counts, strict=True):
        column[: len(each)] = each
    return runs(levels)
