# SPDX-License-Identifier: Apache-2.0
"""Graphs in several files, as one: examples are picked from where they lie."""

from __future__ import annotations

import functools
import itertools
import mmap
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from jfold.graph import Array, Graph, concatenate, first_of


@dataclass(frozen=True, eq=False)
class Parts:
    """Graphs of one program one after another, which are not put together.

    Attributes:
      graphs: one or more.
    """

    graphs: tuple[Graph, ...]

    @functools.cached_property
    def first(self) -> Array:
        """The number of the first example of each [parts + 1]."""
        return first_of(np.array([each.examples for each in self.graphs]))

    @property
    def examples(self) -> int:
        """How many there are."""
        return int(self.first[-1])

    @property
    def nodes(self) -> int:
        """How many operations run."""
        return sum(each.nodes for each in self.graphs)

    def pick(self, examples: Array) -> Graph:
        """The graph of the given examples [n], in that order."""
        part = np.searchsorted(self.first, examples, side='right') - 1
        order = part.argsort(kind='stable')
        picked, ends = [], np.searchsorted(part[order], np.arange(len(self.first)))
        for number, (a, b) in enumerate(itertools.pairwise(ends.tolist())):
            if a < b:
                own = examples[order[a:b]] - self.first[number]
                picked.append(self.graphs[number].pick(own))
        if not picked:
            return self.graphs[0].pick(examples)
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return concatenate(picked).pick(back)

    def whole(self) -> Graph:
        """All of it, put together in memory."""
        return concatenate(self.graphs)


def in_parts(graphs: Iterable[Graph | Parts]) -> Graph | Parts:
    """Graphs one after another: what lies in files stays there."""
    made: list[Graph] = []
    every = itertools.chain(*map(graphs_in, graphs))
    for in_file, group in itertools.groupby(every, key=_is_in_file):
        found = list(group)
        made += found if in_file else [concatenate(found)]
    return made[0] if len(made) == 1 else Parts(tuple(made))


def graphs_in(graph: Graph | Parts) -> tuple[Graph, ...]:
    """Those that lie apart."""
    return graph.graphs if isinstance(graph, Parts) else (graph,)


def _is_in_file(graph: Graph) -> bool:
    tables = graph.constants + graph.operations
    return any(_is_mapped(x) for table in tables for x in table.columns)


def _is_mapped(array: Array) -> bool:
    """Whether an array is a view of a file."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)
