# SPDX-License-Identifier: Apache-2.0
"""What examples demand of a schedule, one by one.

A batch's capacity follows from its examples' demands by sums and maxima, so batches of
examples that were traced before need no look into their graphs:

    example  constants  nodes  sums   levels  uses at once  rounds of sums
       0         3        5      0       3         1               0
       1         2        9      7       2         4               2
    batch        5       14      7       3         4               2
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from jfold.graph import Array, Table, shared_counts
from jfold.kept import lazy
from jfold.operations import Operations
from jfold.planning.growth import Chance
from jfold.planning.layout import active_types
from jfold.planning.reads import needs
from jfold.planning.sections import SUM_ARITY
from jfold.planning.slots import slots
from jfold.planning.uses import Uses, adding, most_uses, sum_room, use_counts
from jfold.shards import Shards
from jfold.spec import Capacity

ADDED = 'constants', 'rows', 'sums', 'metrics', 'summands'  # what adds up
T = TypeVar('T')
FEW = 16  # examples, whose spread tells nothing of others


@dataclass(frozen=True, eq=False)
class Demands:
    """What each example needs.

    Attributes:
      program: what the examples were traced for.
      added: [examples, numbers], what adds up over a batch: constants per type, nodes
        per operation, rows of sums per type, values per metric, summands per slot.
      highest: [examples, numbers], what only the largest decides: levels, fans per
        type, stages; of each slot whether it is indexed, and whether sums have rows.
    """

    program: Operations
    added: Array
    highest: Array

    @property
    def row_columns(self) -> slice:
        """Which numbers of `added` count nodes per operation."""
        first = len(self.program.types)
        return slice(first, first + len(self.program.operations))

    @lazy
    def nodes(self) -> Array:
        """How many operations each example runs [examples]."""
        rows = self.added[:, self.row_columns]
        return np.asarray(rows.sum(axis=1, dtype=np.int64))

    def pick(self, examples: Array) -> Demands:
        """The demands of the given examples [n]."""
        return Demands(self.program, self.added[examples], self.highest[examples])

    def capacity(self, size: int) -> Capacity:
        """The least capacity for all examples in one batch; `size` rows of results."""
        added = self.added.sum(0, dtype=np.int64).tolist()
        highest = self.highest.max(0, initial=0).tolist()
        return make_capacity(self.program, added, highest, size)

    def chance(self, count: int | None = None) -> Chance:
        """How much more as many other examples may need by chance, of what adds up.

        `count` of them, if not as many as these.

        Six standard deviations of a sum, by those of the examples; nothing is told from
        a few.
        """
        if len(self.added) < FEW:
            return {}
        # Of examples drawn apart, variances add up.
        count = len(self.added) if count is None else count
        deviations = np.sqrt(count * self.added.var(axis=0))
        more = np.ceil(6 * deviations).astype(np.int64).tolist()
        return dict(zip(ADDED, _parts(self.program, more), strict=True))


def make_capacity(
    program: Operations,
    added: list[int],
    highest: list[int],
    size: int,
    shards: Shards | None = None,
) -> Capacity:
    """A capacity from the sums and maxima of demands; those of one shard."""
    types, active = len(program.types), active_types(program)
    constants, rows, sums, metrics, summands = _parts(program, added)
    levels, *fans = highest[: 1 + types]
    stages, *of_slots = highest[1 + types :]
    *indexed, sum_rows = of_slots or [0]
    return Capacity(
        examples=size,
        levels=levels,
        constants=tuple(map(operator.add, shared_counts(program), constants)),
        rows=rows,
        # With no example at all, gradients still flow.
        fans=tuple([max(fan, int(t in active)) for t, fan in enumerate(fans)]),
        sums=sums,
        stages=stages,
        metrics=metrics,
        indexed=tuple(indexed),
        summands=summands,
        sum_rows=sum_rows,
        shards=shards,
    )


def fits(program: Operations, demanded: Demands) -> bool:
    """Whether these are demands of a program: others may be of one with loops, whose
    graphs are the same."""
    highest = 2 + len(program.types)  # levels, fans and stages
    highest += len(slots(program)) + 1 if program.once else 0
    widths = demanded.added.shape[1:], demanded.highest.shape[1:]
    return widths == ((sum(_counts(program)),), (highest,))


def _counts(program: Operations) -> tuple[int, ...]:
    """How many numbers add up, by the dimensions of `ADDED`."""
    types, operations = len(program.types), len(program.operations)
    return types, operations, types, len(program.observed), len(slots(program))


def _parts(program: Operations, numbers: list[int]) -> list[tuple[int, ...]]:
    """Numbers that add up, by the dimensions of `ADDED`."""
    ends = itertools.accumulate(_counts(program), initial=0)
    return [tuple(numbers[a:b]) for a, b in itertools.pairwise(ends)]


def needed(uses: Uses, size: int) -> Capacity:
    """As `demands(uses).capacity(size)`, without telling examples apart."""
    program, graph = uses.program, uses.graph
    fans, sums, stages = [0] * len(program.types), [0] * len(program.types), 0
    for t in active_types(program):
        counts = use_counts(uses, t)
        fans[t] = int(np.maximum.reduce(counts, initial=0))
        if fans[t] > SUM_ARITY or adding(program, t):
            most = most_uses(uses, t)
            fans[t] = int(counts.clip(max=most).max(initial=0))
            rows, rounds = sum_room(counts, most, uses.numbers.first[t])
            sums[t], stages = int(rows.sum()), max(stages, int(rounds.max(initial=0)))
    added, highest = _added(uses, sums, len), [graph.depth, *fans, stages]
    if program.once:
        of_slots = needs(uses)
        added += [int(x.sum()) for x in of_slots.summands]
        indexed = (int(x.any()) for x in of_slots.indexed)
        highest += *indexed, int(of_slots.sum_rows.any())
    return make_capacity(program, added, highest, size)


def _added(uses: Uses, sums: Iterable[T], size: Callable[[Table], T]) -> list[T]:
    """Numbers that add up over examples, as `ADDED` has them: of sums, and of tables
    that are so large. A row an example takes no room beside the examples'."""
    graph = uses.graph
    observed = [graph.results[r] for r in uses.program.observed]
    counted = map(size, graph.constants + graph.operations)
    return [*counted, *sums, *map(size, observed)]


def demands(uses: Uses) -> Demands:
    """The demands of every example of a graph."""
    program, graph = uses.program, uses.graph
    fans = np.zeros((len(program.types), graph.examples), np.int64)
    sums = np.zeros_like(fans)
    stages = np.zeros(graph.examples, np.int64)
    for t in sorted(active_types(program)):
        counts, first = use_counts(uses, t), uses.numbers.first[t]
        widest = _largest(counts, first)
        if widest.max(initial=0) > SUM_ARITY or adding(program, t):
            most = most_uses(uses, t)
            widest = _largest(counts.clip(max=most), first)
            sums[t], rounds = sum_room(counts, most, first)
            stages = np.maximum(stages, rounds)
        # One at least, even if no value is used: a sum of no rows has no shape.
        fans[t] = np.maximum(widest, 1)
    depth = np.zeros(graph.examples, np.int64)
    for table in graph.operations:
        depth = np.maximum(depth, _largest(table.columns[0], table.first))
    added = _added(uses, sums, operator.attrgetter('counts'))
    highest = [depth, *fans, stages]
    if program.once:
        of_slots = needs(uses)
        added += of_slots.summands
        highest += *of_slots.indexed, of_slots.sum_rows
    return Demands(program, _by_example(added), _by_example(highest))


def _by_example(numbers: list[Array]) -> Array:
    """Numbers [examples] of several kinds as an array [examples, kinds]."""
    # Copied, so that the numbers of an example lie together: batches pick whole rows.
    return np.array(numbers, np.int32).T.copy()


def _largest(values: Array, first: Array) -> Array:
    """The largest of the values [n] of each example [examples], 0 for none; they begin
    at `first` [examples + 1]."""
    if len(first) == 2:
        return np.array([values.max(initial=0)], np.int64)
    # `reduceat` would give an example without values the first value of the next.
    result = np.zeros(len(first) - 1, np.int64)
    filled = np.flatnonzero(np.diff(first))
    if len(filled):
        result[filled] = np.maximum.reduceat(values, first[filled])
    return result


def join_demands(parts: Sequence[Demands]) -> Demands:
    """The demands of the examples of several parts."""
    if len(parts) == 1:
        return parts[0]
    return Demands(
        parts[0].program,
        np.concatenate([part.added for part in parts]),
        np.concatenate([part.highest for part in parts]),
    )
