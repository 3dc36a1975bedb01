# SPDX-License-Identifier: Apache-2.0
"""What examples demand of a schedule, one by one.

A batch's capacity follows from its examples' demands by sums and maxima, so batches of
examples that were traced before need no look into their graphs.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jfold.graph import (
    Graph,
    Numbering,
    among_all,
    concatenated,
    numbering,
    ranges,
    shared_counts,
)
from jfold.operations import Operations
from jfold.planning.layout import SUM_ARITY, Capacity, Chance, active_types

Array = np.ndarray[Any, Any]

ADDED = 'constants', 'rows', 'sums', 'metrics'  # the dimensions that add up
FEW = 16  # examples, whose spread tells nothing of others


@dataclass(frozen=True, eq=False)
class Demands:
    """What each example needs.

    Attributes:
      program: what the examples were traced for.
      added: [examples, numbers], what adds up over a batch: constants per type, nodes
        per operation, rows of sums per type, values per metric.
      highest: [examples, numbers], what only the largest decides: levels, fans per
        type, stages.
    """

    program: Operations
    added: Array
    highest: Array

    @property
    def row_columns(self) -> slice:
        """Which numbers of `added` count nodes per operation."""
        first = len(self.program.types)
        return slice(first, first + len(self.program.operations))

    @property
    def nodes(self) -> Array:
        """How many operations each example runs [examples]."""
        rows = self.added[:, self.row_columns]
        return np.asarray(rows.sum(axis=1, dtype=np.int64))

    def pick(self, examples: Array) -> Demands:
        """The demands of the given examples."""
        return Demands(
            self.program,
            self.added[examples],
            self.highest[examples],
        )

    def capacity(self, size: int) -> Capacity:
        """The least capacity for all examples in one batch; `size` rows of results."""
        added = self.added.sum(0, dtype=np.int64).tolist()
        highest = self.highest.max(0, initial=0).tolist()
        return make_capacity(self.program, added, highest, size)

    def chance(self) -> Chance:
        """How much more as many other examples may need by chance, of what adds up.

        Six standard deviations of a sum, by those of the examples; nothing is told from
        a few.
        """
        if len(self.added) < FEW:
            return {}
        deviations = np.sqrt(len(self.added) * self.added.var(axis=0))
        more = np.ceil(6 * deviations).astype(np.int64).tolist()
        return dict(zip(ADDED, _parts(self.program, more), strict=True))


def make_capacity(
    program: Operations, added: list[int], highest: list[int], size: int
) -> Capacity:
    """A capacity from the sums and maxima of demands."""
    types, active = len(program.types), active_types(program)
    constants, rows, sums, metrics = _parts(program, added)
    return Capacity(
        examples=size,
        levels=highest[0],
        constants=tuple(map(operator.add, shared_counts(program), constants)),
        rows=rows,
        # With no example at all, gradients still flow.
        fans=tuple([max(highest[1 + t], int(t in active)) for t in range(types)]),
        sums=sums,
        stages=highest[-1],
        metrics=metrics,
    )


def _parts(program: Operations, numbers: list[int]) -> list[tuple[int, ...]]:
    """Numbers that add up, by the dimensions of `ADDED`."""
    types, operations = len(program.types), len(program.operations)
    ends = 0, types, types + operations, 2 * types + operations, len(numbers)
    return [tuple(numbers[a:b]) for a, b in itertools.pairwise(ends)]


def needed(program: Operations, graph: Graph, size: int) -> Capacity:
    """As `demands(program, graph).capacity(size)`, without telling examples apart."""
    numbers = numbering(program, graph)
    fans, sums, stages = [0] * len(program.types), [0] * len(program.types), 0
    for t in active_types(program):
        uses = _uses(program, graph, numbers, t)
        widest = int(np.maximum.reduce(uses, initial=0))
        fans[t] = min(widest, SUM_ARITY)
        if widest > SUM_ARITY:
            rows, rounds = _sum_rows(uses, numbers.first[t])
            sums[t], stages = int(rows.sum()), max(stages, int(rounds.max()))
    counts = map(len, graph.constants + graph.operations)
    observed = [len(graph.results[r]) for r in program.observed]
    added = [*counts, *sums, *observed]
    return make_capacity(program, added, [graph.depth, *fans, stages], size)


def demands(program: Operations, graph: Graph) -> Demands:
    """The demands of every example of a graph."""
    numbers = numbering(program, graph)
    examples, types = graph.examples, range(len(program.types))
    fans = np.zeros((len(types), examples), np.int64)
    sums = np.zeros((len(types), examples), np.int64)
    stages = np.zeros(examples, np.int64)
    for t in sorted(active_types(program)):
        uses = _uses(program, graph, numbers, t)
        widest = _largest(uses, numbers.first[t])
        fans[t] = np.minimum(np.maximum(widest, 1), SUM_ARITY)
        if examples and widest.max() > SUM_ARITY:
            sums[t], rounds = _sum_rows(uses, numbers.first[t])
            stages = np.maximum(stages, rounds)
    counts = [table.counts for table in graph.constants + graph.operations]
    observed = [graph.results[r].counts for r in program.observed]
    depth = np.zeros(examples, np.int64)
    for table in graph.operations:
        depth = np.maximum(depth, _largest(table.columns[0], table.first))
    return Demands(
        program,
        _by_example([*counts, *sums, *observed]),
        _by_example([depth, *fans, stages]),
    )


def _by_example(numbers: list[Array]) -> Array:
    """Numbers [examples] of several kinds as an array [examples, kinds]."""
    return np.array(numbers, np.int32).T.copy()


def _largest(values: Array, first: Array) -> Array:
    """The largest value of each example, 0 for none."""
    if len(first) == 2:
        return np.array([values.max(initial=0)], np.int64)
    result = np.zeros(len(first) - 1, np.int64)
    filled = np.flatnonzero(np.diff(first))
    if len(filled):
        result[filled] = np.maximum.reduceat(values, first[filled])
    return result


def _uses(program: Operations, graph: Graph, numbers: Numbering, t: int) -> Array:
    """How often each computed value of a type is used; 0 for constants."""
    first = numbers.first[t]
    values = list(_all_uses(program, graph, first, t)) or [np.zeros(0, np.int64)]
    uses = np.bincount(concatenated(values), minlength=int(first[-1]))
    shared, own = shared_counts(program)[t], graph.constants[t]
    if shared or len(own):
        uses[ranges(first[:-1], own.counts + shared)] = 0
    return uses


def _all_uses(
    program: Operations, graph: Graph, first: Array, t: int
) -> Iterator[Array]:
    """The numbers of the values of a type, once for each use.

    `first` is that of the type in `Numbering`.
    """
    for operation, table in zip(program.operations, graph.operations, strict=True):
        for number, values in zip(operation.inputs, table.columns[1:], strict=True):
            if number == t:
                yield among_all(values, first, table.counts)
    for result, table in zip(program.results, graph.results, strict=True):
        for number, values in zip(result.tensors, table.columns, strict=True):
            if number == t:
                yield among_all(values, first, table.counts)


def _sum_rows(uses: Array, first: Array) -> tuple[Array, Array]:
    """Of each example, rows and rounds of the sums that leave no value with more than
    `SUM_ARITY` uses."""
    examples = len(first) - 1
    owner = np.repeat(np.arange(examples), np.diff(first))
    rows = np.zeros(examples, np.int64)
    rounds = np.zeros(examples, np.int64)
    while (wide := np.flatnonzero(uses > SUM_ARITY)).size:
        uses, owner = -(-uses[wide] // SUM_ARITY), owner[wide]
        rows += np.bincount(owner, uses, examples).astype(np.int64)
        rounds[owner] += 1
    return rows, rounds


def join_demands(parts: Sequence[Demands]) -> Demands:
    """The demands of the examples of several parts."""
    if len(parts) == 1:
        return parts[0]
    return Demands(
        parts[0].program,
        np.concatenate([part.added for part in parts]),
        np.concatenate([part.highest for part in parts]),
    )
