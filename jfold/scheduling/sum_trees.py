# SPDX-License-Identifier: Apache-2.0
"""Trees of sums for values with many uses: the reverse pass adds up their cotangents.

In the reverse pass each use of a value leaves a cotangent in a row of its own, an *edge
row*, and the producer of the value gathers these rows: nothing is scattered, and sums
have a fixed order. So the host computes where each value is used, and how often.

Two kinds of sums occur here. *Sum operations* add up values in the forward pass, such
as a node that adds its children. *Sums* in trees add up edge rows in the reverse pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jfold.base.memo import memoized
from jfold.graph import Array, concatenate_arrays
from jfold.program.operations import Operations
from jfold.scheduling.index_array import SUM_ARITY
from jfold.scheduling.selections import Selection


@memoized
def adding(program: Operations, t: int) -> tuple[int, ...]:
    """Return the numbers of operations in loops that add up values of type `t`."""
    return tuple(
        o
        for o, x in enumerate(program.operations)
        if x.is_sum and x.outputs == (t,) and o not in program.applied
    )


@memoized
def most_uses(selection: Selection, t: int) -> Array:
    """Return how many cotangents a gather may add up, per value of type `t` [values].

    At most, int8. The output of a sum operation has one, since operands have no edge
    rows of their own and read this one.
    """
    begin, end = selection.numbers.ends[t : t + 2]
    most = np.full(end - begin, SUM_ARITY, np.int8)
    for o in adding(selection.program, t):
        most[selection.outputs_of(o) - begin] = 1
    return most


def sum_room(counts: Array, most: Array, begin: Array) -> tuple[Array, Array]:
    """Return how many sums, and rounds of sums, each example's uses need [examples].

    Two arrays, of as many sums and rounds as `sum_tree` makes.

    Args:
      counts: [values] the number of uses of each value.
      most: [values] the most uses of each value that may be left after sums.
      begin: [examples] the index of each example's first value.
    """
    # All uses of a value are in its own example, and so are its sums: so the rows of a
    # batch are the sum of those of its examples, and its rounds the maximum.
    examples = len(begin)
    owner = np.repeat(np.arange(examples), np.diff(begin, append=len(counts)))
    rows = np.zeros(examples, np.int64)
    rounds = np.zeros(examples, np.int64)
    while (wide := np.flatnonzero(counts > most)).size:
        counts, most, owner = _sum_counts(counts[wide]), most[wide], owner[wide]
        rows += np.bincount(owner, counts, examples).astype(np.int64)
        rounds[owner] += 1
    return rows, rounds


def _sum_counts(counts: Array) -> Array:
    """Return how many sums `counts` uses need [n]: a sum takes `SUM_ARITY` at most."""
    return -(-counts // SUM_ARITY)


# ---- sums over many uses -------------------------------------------------------------


class RowUses(NamedTuple):
    """A list of uses of values: rows of values, and rows of the uses' cotangents.

    Attributes:
      rows: [uses] the row of the value that is used.
      edges: [uses] int32, the edge row of the use, where it leaves its cotangent. If a
        sum operation uses the value it is `~row`: the cotangent is that of the
        operation's output in row `row`.
    """

    rows: Array
    edges: Array

    def chosen(self, which: Array) -> RowUses:
        """Return some of the uses, by a mask [uses] or indices [n]."""
        return RowUses(self.rows[which], self.edges[which])


def resolve_edges(edges: Array, totals: Array) -> Array:
    """Return a copy of `edges` [..., n] in which each `~row` becomes `totals[row]`."""
    result = edges.copy()
    waiting = edges < 0
    result[waiting] = totals[~edges[waiting]]
    return result


def total_cotangent_rows(uses: RowUses, rows: int, zero: int) -> Array:
    """Return the row with each value's whole cotangent [rows]; `zero` if it is unused.

    Args:
      uses: the uses of values that have at most one use each.
      rows: the number of rows.
      zero: an edge row of zeros.
    """
    totals = np.full(rows, zero, np.int32)
    totals[uses.rows] = uses.edges
    # A sum operation may be used by another, and so on: by pointer jumping, each round
    # follows twice as many links.
    while len(waiting := np.flatnonzero(totals < 0)):
        totals[waiting] = totals[~totals[waiting]]
    return totals


@dataclass(frozen=True, eq=False)
class SumTree:
    """The sums of cotangents of values that have too many uses for one gather.

    Attributes:
      table: [sums, SUM_ARITY] int32, the edge rows that each sum adds up.
      values: [sums] the row of the value whose uses the sum adds up.
      stages: [sums] the depth of the sum: the number of rounds before it.
      left: the uses that remain: those in no sum, and sums that no other sum adds up.
    """

    table: Array
    values: Array
    stages: Array
    left: RowUses


def sum_tree(uses: RowUses, most: Array, base: int, zero: int) -> SumTree:
    """Sum each value's uses in groups, then the sums, until `most` or fewer remain.

    A value with 18 uses, of edge rows a to r, where the first sum gets edge row 50:

        a b c d   e f g h   i j k l   m n o p   q r   uses
        └──┬──┘   └──┬──┘   └──┬──┘   └──┬──┘   └┬┘
           50        51        52        53      54   stage 0
           └─────────┴────┬────┴─────────┘       │
                          55                     56   stage 1

    55 and 56 are left. One gather adds up 4 edge rows, so a tree has few rounds, and it
    is the same in every run, which sums by scattering are not. A value with 4 uses or
    fewer costs no sum, unless only one may be left.

    Args:
      most: [rows] the most uses that may be left of the value in each row.
      base: the edge row of the first sum; the others come behind it.
      zero: an edge row of zeros, which fills sums of fewer uses.
    """
    is_wide = np.bincount(uses.rows, minlength=len(most)) > most
    wide = is_wide[uses.rows]
    left = [uses.chosen(~wide)]
    rows, edges = uses.chosen(wide)
    # Begun with empty arrays, since maybe no value of the type has many uses.
    tables, values, stages = (
        [np.zeros((0, SUM_ARITY), np.int32)],
        [rows[:0]],
        [rows[:0]],
    )
    while len(rows):
        # A sum counts as one use of its value, in place of the uses that it adds up.
        table, targets, groups = _groups(rows, edges, zero)
        sums = RowUses(targets, np.arange(base, base + len(table), dtype=np.int32))
        stages.append(np.full(len(table), len(tables) - 1))
        tables.append(table)
        values.append(targets)
        wide, base = groups > most[targets], base + len(table)
        left.append(sums.chosen(~wide))
        rows, edges = sums.chosen(wide)
    table, value, stage = map(np.concatenate, (tables, values, stages))
    uses = RowUses(*map(concatenate_arrays, zip(*left, strict=True)))
    return SumTree(table, value, stage, uses)


def _groups(rows: Array, edges: Array, zero: int) -> tuple[Array, Array, Array]:
    """Group uses of one value, up to `SUM_ARITY` each; return groups, values, counts.

    Returns:
      The edge rows of each group [groups, SUM_ARITY], filled up with `zero`; the row of
      its value [groups]; the number of groups of that value [groups].
    """
    # Stable, so that uses are added up in a fixed order.
    order = np.argsort(rows, kind='stable')
    rows, edges = rows[order], edges[order]
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    uses = np.diff(first, append=len(rows))
    within = np.arange(len(rows)) - np.repeat(first, uses)
    begins = within % SUM_ARITY == 0
    group = np.cumsum(begins) - 1
    table = np.full((int(begins.sum()), SUM_ARITY), zero, np.int32)
    table[group, within % SUM_ARITY] = edges
    groups = _sum_counts(uses)
    return table, rows[begins], np.repeat(groups, groups)


def sorted_by_round(tree: SumTree, rounds: Array, base: int) -> SumTree:
    """Sort a tree's sums by their `rounds`, and renumber their result rows from `base`.

    Args:
      rounds: [sums] the round of the reverse pass in which each sum is taken.
      base: the edge row of the first sum.
    """
    # The device takes the sums of a round as one run of rows.
    order = np.argsort(rounds, kind='stable')
    moved = np.empty(len(order), np.int32)
    moved[order] = np.arange(base, base + len(order))

    def placed(edges: Array) -> Array:
        """Return `edges` with the rows of sums replaced by their new ones."""
        # Other edge rows, of plain uses and the row of zeros, stay where they are.
        is_sum = (edges >= base) & (edges < base + len(order))
        return np.where(is_sum, moved[np.where(is_sum, edges - base, 0)], edges)

    if not len(order):
        return tree
    of_sums = placed(tree.table[order]), tree.values[order], tree.stages[order]
    return SumTree(*of_sums, RowUses(tree.left.rows, placed(tree.left.edges)))
