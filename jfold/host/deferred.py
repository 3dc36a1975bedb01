# SPDX-License-Identifier: Apache-2.0
"""A trace in which results may be read that run beside what reads them, or later.

They are promised, as in a trace in two passes; but here the depth of the data does not
tell what needs what. So heights are found from what needs nothing on:

    row   needs       height     a row has its height when all that it needs have theirs
    0     1 2         3
    1     2           2
    2                 1
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from jfold.graph import ranges
from jfold.host.promises import CircularError, Named, Tokens
from jfold.host.trace import Trace
from jfold.program import Program

Array = np.ndarray[Any, Any]


def deferred(program: Program, examples: int) -> Trace:
    """A trace of rows at known places, whose inputs may be tokens."""
    return Trace(program, examples, tokens=Tokens(by_need))


def by_need(trace: Trace, pending: list[Named]) -> None:
    """The heights of pending rows of a component, one above all that they read."""
    nodes = trace.made.nodes
    chunks = [(o, *nodes[o][k]) for o, k in pending]
    # Rows of all chunks are numbered together, since any may read any other.
    ends = np.cumsum([len(places) for _, places, _, _ in chunks])
    needs = _needs(trace, chunks, ends)
    # From the base on: what earlier components made is lower, and does not count.
    height = np.full(ends[-1], trace.bases[pending[0][0]], np.int64)
    known = needs.source < 0
    np.maximum.at(height, needs.row[known], needs.height[known])
    found = _longest(height, needs.source[~known], needs.row[~known])
    for (o, k), of_chunk in zip(pending, np.split(found, ends[:-1]), strict=True):
        chunk, types = nodes[o][k], trace.program.operations[o].outputs
        for t, ids in zip(types, chunk.ids, strict=True):
            trace.values[t].heights[ids] = of_chunk
        nodes[o][k] = chunk._replace(columns=(of_chunk, *chunk.columns[1:]))


def _needs(trace: Trace, chunks: list[Any], ends: Array) -> _Needs:
    """What the rows of chunks read."""
    begins = ends - [len(places) for _, places, _, _ in chunks]
    rows = list(map(np.arange, begins, ends))
    operations = trace.program.operations
    owner = [np.full(x.count, -1) for x in trace.values]
    for (o, _, made, _), of_chunk in zip(chunks, rows, strict=True):
        for t, ids in zip(operations[o].outputs, made, strict=True):
            owner[t][ids] = of_chunk
    read = [
        (owner[t][ids], of_chunk, trace.values[t].heights[ids])
        for (o, _, _, (_, *inputs)), of_chunk in zip(chunks, rows, strict=True)
        for t, ids in zip(operations[o].inputs, inputs, strict=True)
    ]
    return _Needs(*map(np.concatenate, zip(*read, strict=True)))


@dataclass(frozen=True, eq=False)
class _Needs:
    """Which rows read which values.

    Attributes:
      source: [edges] the row that makes the value, -1 if its height is known.
      row: [edges] the row that reads it.
      height: [edges] that of the value, if it is known.
    """

    source: Array
    row: Array
    height: Array


def _longest(height: Array, source: Array, row: Array) -> Array:
    """The heights [rows], one more than those of all that a row reads.

    Args:
      height: [rows] of what is known of what they read.
      source, row: [edges] of those that read each other.

    Raises:
      CircularError: some read each other in a circle.
    """
    # A topological order, front by front: as many steps of NumPy as the longest chain
    # is long, and none for each row.
    order = source.argsort(kind='stable')
    row, counts = row[order], np.bincount(source, minlength=len(height))
    begins = counts.cumsum() - counts
    missing = np.bincount(row, minlength=len(height))
    height, left = height + 1, len(height)
    for now in _fronts(missing, row, begins, counts):
        left -= len(now)
        read = row[ranges(begins[now], counts[now])]
        np.maximum.at(height, read, (height[now] + 1).repeat(counts[now]))
    if left:  # rows that were never in a front wait for each other
        raise CircularError
    return height


def _fronts(
    missing: Array, row: Array, begins: Array, counts: Array
) -> Iterator[Array]:
    """Rows that need nothing any more, front by front; `missing` [rows] counts what
    each still needs."""
    now = (missing == 0).nonzero()[0]
    while len(now):
        yield now
        read = row[ranges(begins[now], counts[now])]
        # Not `missing[read] -= 1`, which counts a row once that reads two of the front.
        np.subtract.at(missing, read, 1)
        now = np.unique(read[missing[read] == 0])
