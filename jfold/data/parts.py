# SPDX-License-Identifier: Apache-2.0
"""Graphs in several files, used as one without reading all of them."""

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
    """The graphs of consecutive groups of examples, which stay in their files."""

    graphs: tuple[Graph, ...]  # one or more, of one program

    @functools.cached_property
    def first(self) -> Array:
        """The index of each graph's first example, and the end [graphs + 1]."""
        return first_of(np.array([graph.examples for graph in self.graphs]))

    @property
    def examples(self) -> int:
        """The number of examples."""
        return int(self.first[-1])

    @property
    def nodes(self) -> int:
        """The number of operations that all examples run."""
        return sum(graph.nodes for graph in self.graphs)

    def pick(self, examples: Array) -> Graph:
        """Return one graph of the examples with these indices [n], in that order."""
        part = np.searchsorted(self.first, examples, side='right') - 1
        order = part.argsort(kind='stable')  # so each file is read once
        picked, ends = [], np.searchsorted(part[order], np.arange(len(self.first)))
        for number, (a, b) in enumerate(itertools.pairwise(ends.tolist())):
            if a < b:
                places = examples[order[a:b]] - self.first[number]
                picked.append(self.graphs[number].pick(places))
        if not picked:
            return self.graphs[0].pick(examples)
        return concatenate(picked).pick(order.argsort())  # undoes the sort by file


def in_parts(graphs: Iterable[Graph | Parts]) -> Graph | Parts:
    """Return several graphs as one graph, or as `Parts` if some lie in files.

    Neighbours in memory are concatenated; those in files stay apart, and are not read.
    """
    parts: list[Graph] = []
    pieces = itertools.chain(*map(graphs_in, graphs))
    for in_file, group in itertools.groupby(pieces, key=_is_in_file):
        together = list(group)
        parts += together if in_file else [concatenate(together)]
    return parts[0] if len(parts) == 1 else Parts(tuple(parts))


def graphs_in(graph: Graph | Parts) -> tuple[Graph, ...]:
    """Return the graphs of `Parts`; of a single graph, a tuple of it."""
    return graph.graphs if isinstance(graph, Parts) else (graph,)


def joined_graph(graph: Graph | Parts) -> Graph:
    """Return one graph of all examples, read into memory."""
    return concatenate(graphs_in(graph))


def _is_in_file(graph: Graph) -> bool:
    """Return whether an array of a graph is a view of a memory-mapped file."""
    for table in graph.constants + graph.operations:
        for array in table.columns:
            base: object = array
            while isinstance(base, np.ndarray):
                base = base.base
            if isinstance(base, mmap.mmap):
                return True
    return False
