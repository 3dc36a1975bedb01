# SPDX-License-Identifier: Apache-2.0
"""Sums over the uses of values that have many.

In the reverse pass each use of a value leaves a cotangent in a row of its own, an *edge
row*, and the producer of the value gathers them: nothing is scattered, and sums have a
fixed order. So the host computes where each value is used, and how often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jfold.base.memo import memoized
from jfold.graph import Array, concatenate_arrays
from jfold.program.operations import Operations
from jfold.scheduling.sections import SUM_ARITY
from jfold.scheduling.selections import Selection


@memoized
def adding(program: Operations, t: int) -> tuple[int, ...]:
    """Return the operations that add up values of a type to another of it."""
    pairs = enumerate(program.operations)
    return tuple(o for o, x in pairs if x.is_sum and x.outputs == (t,))


@memoized
def most_uses(selection: Selection, t: int) -> Array:
    """Return the most edge rows that each value of a type may have [values], int8.

    The output of a sum has one, as its operands point to it instead of an own edge row.
    """
    begin, end = selection.numbers.ends[t : t + 2]
    most = np.full(end - begin, SUM_ARITY, np.int8)
    for o in adding(selection.program, t):
        most[selection.made(o) - begin] = 1
    return most


def sum_room(counts: Array, most: Array, begin: Array) -> tuple[Array, Array]:
    """Return the rows and the rounds of the sums of each example, both [examples].

    Args:
      counts: [values] uses of each.
      most: [values] the most uses that may be left of each.
      begin: [examples] the number of each example's first value.
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
    """Return the number of sums over uses [n], each of `SUM_ARITY` at most."""
    return -(-counts // SUM_ARITY)


# ---- sums over many uses -------------------------------------------------------------


class RowUses(NamedTuple):
    """The uses of computed values of a type.

    Attributes:
      rows: [uses] rows of values, once for each use.
      edges: [uses] int32, the edge row of each; `~row` where a sum uses the value, for
        the edge row of the sum's output, which is in value row `row`.
    """

    rows: Array
    edges: Array

    def chosen(self, which: Array) -> RowUses:
        """Return some of the uses, by a mask [uses] or numbers [n]."""
        return RowUses(self.rows[which], self.edges[which])


def resolve_edges(edges: Array, totals: Array) -> Array:
    """Return edge rows [n], where `~row` is replaced by that of `totals` [rows]."""
    result = edges.copy()
    waiting = edges < 0
    result[waiting] = totals[~edges[waiting]]
    return result


def total_cotangent_rows(uses: RowUses, rows: int, zero: int) -> Array:
    """Return the edge row of each value's total cotangent [rows]; `zero` without a use.

    Args:
      uses: of values that have one use at most.
    """
    totals = np.full(rows, zero, np.int32)
    totals[uses.rows] = uses.edges
    # A sum may be used by a sum, and so on: each round follows twice as many links.
    while len(waiting := np.flatnonzero(totals < 0)):
        totals[waiting] = totals[~totals[waiting]]
    return totals


@dataclass(frozen=True, eq=False)
class SumTree:
    """Sums over the uses of values that have more than they may have.

    Attributes:
      table: [sums, SUM_ARITY] int32, the edge rows that each adds up.
      values: [sums] the row of the value whose uses it adds up.
      stages: [sums] its depth: the number of rounds before it.
      left: the uses that remain, plain ones and sums that no other sum adds up.
    """

    table: Array
    values: Array
    stages: Array
    left: RowUses


def sum_tree(uses: RowUses, most: Array, base: int, zero: int) -> SumTree:
    """Sum uses in groups of `SUM_ARITY`, until no value has more than it may have.

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
      most: [rows] the most uses that may be left of the value of each row.
      base: the edge row of the first sum; the others come behind it.
      zero: an edge row of zeros, which fills sums of fewer.
    """
    is_wide = np.bincount(uses.rows, minlength=len(most)) > most
    wide = is_wide[uses.rows]
    left = [uses.chosen(~wide)]
    rows, edges = uses.chosen(wide)
    # Begun with empty parts, as no value of the type may have many uses.
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
    uses = RowUses(*map(concatenate_arrays, zip(*left, strict=True)))
    return SumTree(table, value, stage, uses)


def _groups(rows: Array, edges: Array, zero: int) -> tuple[Array, Array, Array]:
    """Return uses in groups of one value: edge rows [groups, SUM_ARITY].

    And of each group, the row of its value, and the number of groups of that, [groups].
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
    """Return a tree with its sums sorted by round, and edge rows renumbered.

    Args:
      rounds: [sums] the round of the reverse pass in which each is taken.
      base: the edge row of the first sum.
    """
    # The device takes the sums of a round as one run of rows.
    order = np.argsort(rounds, kind='stable')
    moved = np.empty(len(order), np.int32)
    moved[order] = np.arange(base, base + len(order))

    def placed(edges: Array) -> Array:
        """Return edge rows [n], those of sums moved."""
        # Other edge rows, of plain uses and the row of zeros, stay where they are.
        is_sum = (edges >= base) & (edges < base + len(order))
        return np.where(is_sum, moved[np.where(is_sum, edges - base, 0)], edges)

    if not len(order):
        return tree
    of_sums = placed(tree.table[order]), tree.values[order], tree.stages[order]
    return SumTree(*of_sums, RowUses(tree.left.rows, placed(tree.left.edges)))
