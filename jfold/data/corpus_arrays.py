# SPDX-License-Identifier: Apache-2.0
"""A corpus in files: its arrays by name, and graphs in several files."""

from __future__ import annotations

import functools
import itertools
import json
import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jfold.base.errors import short_repr
from jfold.graph import Array, Graph, Table, concatenate, first_of
from jfold.program.operations import Program
from jfold.scheduling.selections import Demands

DEMANDS = 'added', 'highest'  # fields of `Demands`
OUTPUTS = 'outputs'  # the table of results with one row per example


def arrays_of(program: Program, graph: Graph, demanded: Demands) -> dict[str, Array]:
    """Return, by name, the arrays of `graph`, without labels, and of `demanded`."""
    arrays = {}
    for name, table in zip(
        _names(program, len(program.types)), graph.tables, strict=True
    ):
        # With one row per example, `first` is 0, 1, 2, ... and need not be written.
        if name != OUTPUTS:
            arrays[f'{name}/first'] = table.first
        for k, column in enumerate(table.columns):
            arrays[f'{name}/{k}'] = column
    for name in DEMANDS:
        arrays[f'demands/{name}'] = getattr(demanded, name)
    return arrays


def graph_of_arrays(
    program: Program, arrays: Mapping[str, Array], examples: int, types: int
) -> tuple[Graph, Demands]:
    """Return the graph, labels included, and the demands read from `arrays`.

    Args:
      types: how many types the program had that the examples were traced for.
    """
    columns = [1 for _ in range(types)]
    columns += [1 + len(operation.inputs) for operation in program.operations]
    columns += [len(result.tensors) for result in program.results]
    tables = tuple(
        Table(
            np.arange(examples + 1) if name == OUTPUTS else arrays[f'{name}/first'],
            tuple(arrays[f'{name}/{k}'] for k in range(count)),
        )
        for name, count in zip(_names(program, types), columns, strict=True)
    )
    behind = types + len(program.operations)
    results, labels = tables[behind:], []
    for n, r in enumerate(program.labelled):
        texts = json.loads(arrays[f'labels/{n}'].tobytes())
        column = np.fromiter(texts, object, len(texts))
        labels.append(Table(results[r].first, (column,)))
    operations = tables[types:behind]
    graph = Graph(examples, tables[:types], operations, results, tuple(labels))
    return graph, Demands(*(arrays[f'demands/{name}'] for name in DEMANDS))


def _names(program: Program, types: int) -> list[str]:
    """Return tables' names in a file: constants (`types`), operations, results."""
    names = [f'constants/{t}' for t in range(types)]
    names += [f'operations/{o}' for o in range(len(program.operations))]
    numbers = {r: n for n, r in enumerate(program.observed)}
    return names + [
        f'metrics/{numbers[r]}' if r in numbers else OUTPUTS
        for r in range(len(program.results))
    ]


# ---- labels of metrics ---------------------------------------------------------------


def labels_as_text(labels: Mapping[str, Array]) -> dict[str, Array]:
    """Return each metric's labels [rows], as JSON bytes [size], by name in a file.

    Raises TypeError if JSON would not give a label back unchanged.
    """
    arrays = {}
    for n, (name, column) in enumerate(labels.items()):
        text = _encoded(column.tolist())
        if text is None:
            label = next(x for x in column.tolist() if _encoded([x]) is None)
            raise TypeError(
                f'metric {name!r}: expected labels that a file can hold as JSON (None, '
                'bools, numbers, strings, lists and dicts of these by strings), got '
                f'{short_repr(label)}: label rows by those, as by a number or a path'
            )
        arrays[f'labels/{n}'] = np.frombuffer(text, np.uint8)
    return arrays


def _encoded(labels: list[Any]) -> bytes | None:
    """Return labels as JSON; `None` if reading the JSON would not give equal labels."""
    try:
        text = json.dumps(labels, allow_nan=False)
        return text.encode() if bool(json.loads(text) == labels) else None
    except (TypeError, ValueError, RecursionError):
        return None


# ---- several files -------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Parts:
    """Several graphs used as one, for consecutive examples; they may stay in files."""

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
    """Return the graphs of `Parts`, or a single graph, as a tuple."""
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
