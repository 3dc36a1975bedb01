# SPDX-License-Identifier: Apache-2.0
"""Sums over the uses of values that have many.

In the reverse pass each use of a value leaves a cotangent in a row of its own, an *edge
row*, and who made the value gathers them: nothing is scattered, and sums have a fixed
order. So it must be known of every value where it is used, and how often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jfold.base.memo import memoized
from jfold.graph import Array, concatenated
from jfold.program.operations import Operations
from jfold.scheduling.sections import SUM_ARITY
from jfold.scheduling.selections import Selection


@memoized
def adding(program: Operations, t: int) -> tuple[int, ...]:
    """The operations that make values of a type by adding up others of it."""
    found = enumerate(program.operations)
    return tuple(o for o, each in found if each.is_sum and each.outputs == (t,))


@memoized
def most_uses(selection: Selection, t: int) -> Array:
    """How many edge rows may be left of each value of a type [values], int8: one of
    what a sum has made, which other values point to in place of a cotangent of their
    own."""
    begin, end = selection.numbers.ends[t : t + 2]
    most = np.full(end - begin, SUM_ARITY, np.int8)
    for o in adding(selection.program, t):
        most[selection.made(o) - begin] = 1
    return most


def sum_room(counts: Array, most: Array, begin: Array) -> tuple[Array, Array]:
    """Of each example [examples], rows and rounds of the sums that leave no value with
    more uses than it may have.

    Args:
      counts: [values] uses of each.
      most: [values] how many may be left of each.
      begin: [examples] the number of each example's first value.
    """
    # All uses of a value are in its own example, and so are its sums: examples need no
    # more of them in company, and their numbers add up.
    examples = len(begin)
    owner = np.repeat(np.arange(examples), np.diff(begin, append=len(counts)))
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
