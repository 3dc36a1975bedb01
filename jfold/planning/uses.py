# SPDX-License-Identifier: Apache-2.0
"""Where values are used, and the sums over the uses of those that have many.

In the reverse pass each use of a value leaves a cotangent in a row of its own, an *edge
row*, and who made the value gathers them: nothing is scattered, and sums have a fixed
order. So it must be known of every value where it is used, and how often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jfold.graph import (
    Array,
    Graph,
    Numbering,
    Table,
    concatenated,
    numbering,
    ranges,
    shared_counts,
    values_before,
)
from jfold.kept import Owner, kept
from jfold.operations import Operations
from jfold.planning.sections import SUM_ARITY
from jfold.tracing.check_graph import checked


@dataclass(frozen=True, eq=False)
class Uses(Owner):
    """Which values are used where, in a graph.

    Values are given by their numbers when all examples stand one after another.

    Attributes:
      program: what the examples were traced for.
      graph: what they compute.
      numbers: how their values are numbered.
      inputs: per operation and input, the value that each node reads [nodes].
      results: per result and tensor, the value of each row [rows].
    """

    program: Operations
    graph: Graph
    numbers: Numbering
    inputs: tuple[tuple[Array, ...], ...]
    results: tuple[tuple[Array, ...], ...]

    @property
    def labels(self) -> tuple[Table, ...]:
        """Of the graph."""
        return self.graph.labels

    def of_type(self, t: int) -> list[Array]:
        """The values of a type, once for each use, in parts [uses]."""
        columns = self.inputs + self.results
        return [columns[i][a] for i, a in _uses_of(self.program, t)]


@kept
def _uses_of(program: Operations, t: int) -> tuple[tuple[int, int], ...]:
    """Where values of a type are used: the number of an operation, or that of a result
    after all of them, and the number of its input or tensor."""
    types = [each.inputs for each in program.operations]
    types += [each.tensors for each in program.results]
    return tuple(
        (i, a)
        for i, numbers in enumerate(types)
        for a, number in enumerate(numbers)
        if number == t
    )


def make_uses(program: Operations, graph: Graph) -> Uses:
    """The uses of all values of a graph: what plans are made of, so one that is not
    known to fit is `checked` here, in about 0.1 us a node.

    Raises:
      ValueError: it does not fit the program.
    """
    graph = checked(program, graph)
    numbers = numbering(program, graph)

    def among(
        types: Sequence[int], table: Table, columns: Sequence[Array]
    ) -> tuple[Array, ...]:
        """Numbers of values [rows] each, among those of all examples."""
        if graph.examples == 1:  # whose numbers are those of all
            return tuple(columns)
        # Once for each type: most operations have several inputs of one.
        before = {t: values_before(numbers.first[t], table.counts) for t in {*types}}
        return tuple(x + before[t] for t, x in zip(types, columns, strict=True))

    of_nodes = zip(program.operations, graph.operations, strict=True)
    of_rows = zip(program.results, graph.results, strict=True)
    inputs = tuple(among(each.inputs, x, x.columns[1:]) for each, x in of_nodes)
    results = tuple(among(each.tensors, x, x.columns) for each, x in of_rows)
    return Uses(program, graph, numbers, inputs, results)


@kept
def use_counts(uses: Uses, t: int) -> Array:
    """How often each computed value of a type is used [values]; 0 for constants."""
    first = uses.numbers.first[t]
    values = uses.of_type(t) or [np.zeros(0, np.int64)]
    counts = np.bincount(concatenated(values), minlength=int(first[-1]))
    # Constants have no cotangents, so it does not matter how often they are used.
    shared, own = shared_counts(uses.program)[t], uses.graph.constants[t]
    if len(first) == 2:  # one example, whose constants are its first values
        counts[: shared + len(own)] = 0
    elif shared or len(own):
        counts[ranges(first[:-1], own.counts + shared)] = 0
    return counts


@kept
def adding(program: Operations, t: int) -> tuple[int, ...]:
    """The operations that make values of a type by adding up others of it."""
    found = enumerate(program.operations)
    return tuple(o for o, each in found if each.is_sum and each.outputs == (t,))


@kept
def most_uses(uses: Uses, t: int) -> Array:
    """How many edge rows may be left of each value of a type [values], int8: one of
    what a sum has made, which other values point to in place of a cotangent of their
    own."""
    most = np.full(int(uses.numbers.first[t][-1]), SUM_ARITY, np.int8)
    for o in adding(uses.program, t):
        counts = uses.graph.operations[o].counts
        most[ranges(uses.numbers.outputs[o][0], counts)] = 1
    return most


def sum_room(counts: Array, most: Array, first: Array) -> tuple[Array, Array]:
    """Of each example [examples], rows and rounds of the sums that leave no value with
    more uses than it may have.

    Args:
      counts: [values] uses of each.
      most: [values] how many may be left of each.
      first: [examples + 1] the number of each example's first value.
    """
    # All uses of a value are in its own example, and so are its sums: examples need no
    # more of them in company, and their numbers add up.
    examples = len(first) - 1
    owner = np.repeat(np.arange(examples), np.diff(first))
    rows = np.zeros(examples, np.int64)
    rounds = np.zeros(examples, np.int64)
    while (wide := np.flatnonzero(counts > most)).size:
        counts, most, owner = _after_sums(counts[wide]), most[wide], owner[wide]
        rows += np.bincount(owner, counts, examples).astype(np.int64)
        rounds[owner] += 1
    return rows, rounds


def _after_sums(counts: Array) -> Array:
    """How many sums so many uses [n] make, each of `SUM_ARITY` at most."""
    return -(-counts // SUM_ARITY)


# ---- sums over many uses -------------------------------------------------------------


class RowUses(NamedTuple):
    """The uses of computed values of a type.

    Attributes:
      rows: [uses] rows of values, once for each use.
      edges: [uses] int32, the edge row of each; `~row` of a value that a sum has made
        stands for wherever the cotangent of that will be.
    """

    rows: Array
    edges: Array

    def chosen(self, which: Array) -> RowUses:
        """Some of them [uses] bool, or [n] their numbers."""
        return RowUses(self.rows[which], self.edges[which])


NO_USES = RowUses(np.zeros(0, np.intp), np.zeros(0, np.int32))


def followed(edges: Array, whole: Array) -> Array:
    """Edge rows [n], where `~row` stands for the one that `whole` [rows] has."""
    found = edges.copy()
    waiting = edges < 0
    found[waiting] = whole[~edges[waiting]]
    return found


def whole_cotangents(uses: RowUses, rows: int, zero: int) -> Array:
    """The edge row [rows] where all of a value's cotangent is, of so many rows of
    values; `zero` without a use.

    Args:
      uses: of values that have one use at most.
    """
    whole = np.full(rows, zero, np.int32)
    whole[uses.rows] = uses.edges
    # A sum may be used by a sum, and so on: each round follows twice as many.
    while len(waiting := np.flatnonzero(whole < 0)):
        whole[waiting] = whole[~whole[waiting]]
    return whole


def end_summands(read: Array, made: Array) -> tuple[Array, Array]:
    """What sums add up in the end, of trees of sums: what is read that is no sum, and
    the last sum that it gets into, of rows [reads] that are read, and made of each.

        made   read
          8    0 1 2 3           8 is read by 10, so 10 is the sum of 0 to 5
          9    4 5
         10    8 9

    A sum that others read has one reader.
    """
    if not len(read) or not ((read >= made.min()) & (read <= made.max())).any():
        return read, made  # no sum is read
    reader = np.full(int(max(read.max(initial=0), made.max(initial=0))) + 1, -1)
    reader[made] = made
    inner = reader[read] >= 0
    reader[read[inner]] = made[inner]
    sums = made[~inner]
    while (reader[sums] != sums).any():  # trees are not deep
        sums = reader[sums]
    return read[~inner], sums


@dataclass(frozen=True, eq=False)
class SumTree:
    """Sums over the uses of values that have more than may be left.

    Attributes:
      table: [sums, SUM_ARITY] int32, the edge rows that each adds up.
      values: [sums] the row of the value that each is of.
      stages: [sums] how many rounds come before it.
      left: plain uses, and sums that nothing else adds up; of each value as many as may
        be left.
    """

    table: Array
    values: Array
    stages: Array
    left: RowUses


def sum_tree(uses: RowUses, most: Array, base: int, zero: int) -> SumTree:
    """Sums uses in groups of `SUM_ARITY`, until no value has more than it may have.

    A value with 18 uses, of edge rows a to r, where the first sum gets edge row 50:

        a b c d   e f g h   i j k l   m n o p   q r   uses
        └──┬──┘   └──┬──┘   └──┬──┘   └──┬──┘   └┬┘
           50        51        52        53      54   stage 0
           └─────────┴────┬────┴─────────┘       │
                          55                     56   stage 1

    55 and 56 are left. One gather adds up 4 edge rows, so a tree has few rounds, and it
    is the same in every run, which sums by scattering are not. A value with 4 uses
    or fewer costs no sum, unless it may have one alone.

    Args:
      most: [rows] how many uses may be left of the value of each row.
      base: the edge row of the first sum; the others come behind it.
      zero: an edge row of zeros, which fills sums of fewer.
    """
    is_wide = np.bincount(uses.rows, minlength=len(most)) > most
    wide = is_wide[uses.rows]
    left = [uses.chosen(~wide)]
    rows, edges = uses.chosen(wide)
    # An empty part each, for types of which no value has many uses this time.
    tables, values, stages = (
        [np.zeros((0, SUM_ARITY), np.int32)],
        [rows[:0]],
        [rows[:0]],
    )
    while len(rows):
        # A sum is a use of its value like any other, in place of those that it adds up.
        table, targets, groups = _groups(rows, edges, zero)
        sums = RowUses(targets, np.arange(base, base + len(table), dtype=np.int32))
        stages.append(np.full(len(table), len(tables) - 1))
        tables.append(table)
        values.append(targets)
        wide, base = groups > most[targets], base + len(table)
        left.append(sums.chosen(~wide))
        rows, edges = sums.chosen(wide)
    table, value, stage = map(np.concatenate, (tables, values, stages))
    return SumTree(
        table, value, stage, RowUses(*map(concatenated, zip(*left, strict=True)))
    )


def _groups(rows: Array, edges: Array, zero: int) -> tuple[Array, Array, Array]:
    """Uses in groups per value: edge rows [groups, SUM_ARITY]; of each group, the row
    of its value [groups] and how many groups that has [groups]."""
    # Stable: uses are added up in the order in which they are given.
    order = np.argsort(rows, kind='stable')
    rows, edges = rows[order], edges[order]
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    uses = np.diff(first, append=len(rows))
    within = np.arange(len(rows)) - np.repeat(first, uses)
    begins = within % SUM_ARITY == 0
    group = np.cumsum(begins) - 1
    table = np.full((int(begins.sum()), SUM_ARITY), zero, np.int32)
    table[group, within % SUM_ARITY] = edges
    groups = _after_sums(uses)
    return table, rows[begins], np.repeat(groups, groups)


def in_order(tree: SumTree, rounds: Array, base: int) -> SumTree:
    """The same tree with its sums sorted by round; edge rows follow.

    Args:
      rounds: [sums] in which round of the reverse pass each is taken.
      base: the edge row of the first sum.
    """
    # The device takes the sums of a round as one run of rows.
    order = np.argsort(rounds, kind='stable')
    moved = np.empty(len(order), np.int32)
    moved[order] = np.arange(base, base + len(order))

    def placed(edges: Array) -> Array:
        """Edge rows [n], where those of sums are now."""
        # Other edge rows, of plain uses and the row of zeros, stay where they are.
        is_sum = (edges >= base) & (edges < base + len(order))
        return np.where(is_sum, moved[np.where(is_sum, edges - base, 0)], edges)

    if not len(order):
        return tree
    of_sums = placed(tree.table[order]), tree.values[order], tree.stages[order]
    return SumTree(*of_sums, RowUses(tree.left.rows, placed(tree.left.edges)))
