# SPDX-License-Identifier: Apache-2.0
"""Consumers of values, and trees of sums, which `device/cotangent_sums.py` adds up.

In the reverse pass each use of a value leaves a cotangent in a row of its own, an *edge
row*, and the producer of the value gathers these rows: nothing is scattered, and sums
have a fixed order. So the host computes where each value is used. Each row of a value
buffer has *consumers*, at most `fan` edge rows. For values with more uses, groups of
edge rows are summed before, into edge rows of their own.

Two kinds of sums occur here. *Sum operations* add up values in the forward pass, such
as a node that adds its children. *Sums* in trees add up edge rows in the reverse pass.
`t` is the number of a tensor type, and rows [rows] are those of its value buffer behind
the constants, the *computed* rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jfold.base.memo import memoized
from jfold.graph import Array, concatenate_arrays
from jfold.program.operations import Operations
from jfold.scheduling.index_array import SUM_ARITY
from jfold.scheduling.layout import layout
from jfold.scheduling.selections import Selection
from jfold.scheduling.spec import Spec


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
    """Return, per value, the most cotangents that its gather adds up [values] int8.

    For the output of a sum operation it is 1: the operands have no edge rows of their
    own, and read the single edge row of the output.
    """
    begin, end = selection.numbers.ends[t : t + 2]
    most = np.full(end - begin, SUM_ARITY, np.int8)
    for o in adding(selection.program, t):
        most[selection.outputs_of(o) - begin] = 1
    return most


def sum_room(counts: Array, most: Array, begin: Array) -> tuple[Array, Array]:
    """Return how many sums, and rounds of sums, `sum_tree` makes: arrays [examples].

    Args:
      counts: [values] the number of uses of each value.
      most: [values] the most uses of each value that may be left after sums.
      begin: [examples] the index of each example's first value.
    """
    # All uses of a value are in its own example, and so are its sums: so the rows of a
    # batch are the sum of those of its examples, and its rounds the maximum.
    examples = len(begin)
    owner = np.repeat(np.arange(examples), np.diff(begin, append=len(counts)))
    rows, rounds = np.zeros((2, examples), np.int64)
    while len(wide := np.flatnonzero(counts > most)):
        counts, most, owner = -(-counts[wide] // SUM_ARITY), most[wide], owner[wide]
        rows += np.bincount(owner, counts, examples).astype(np.int64)
        rounds[owner] += 1
    return rows, rounds


# ---- sums over many uses -------------------------------------------------------------


class RowUses(NamedTuple):
    """The uses of values: per use, the value's row and the cotangent's edge row.

    Attributes:
      rows: [uses] the row of the value that is used.
      edges: [uses] int32, the edge row of the use; of a use by a sum operation `~row`,
        as the cotangent is that of the operation's output in row `row`.
    """

    rows: Array
    edges: Array

    def chosen(self, which: Array) -> RowUses:
        """Return the uses that `which`, a mask [uses] or indices [n], selects."""
        return RowUses(self.rows[which], self.edges[which])


def resolve_edges(edges: Array, totals: Array) -> Array:
    """Return a copy of `edges` [..., n] in which each `~row` becomes `totals[row]`."""
    result = edges.copy()
    waiting = edges < 0
    result[waiting] = totals[~edges[waiting]]
    return result


def total_cotangent_rows(uses: RowUses, rows: int, zero: int) -> Array:
    """Return, per value, the edge row of its total cotangent [rows]; `zero` if unused.

    Each value has at most one use.
    """
    totals = np.full(rows, zero, np.int32)
    totals[uses.rows] = uses.edges
    # A sum operation may be used by another, and so on: by pointer jumping, each round
    # follows twice as many links.
    while len(waiting := np.flatnonzero(totals < 0)):
        totals[waiting] = totals[~totals[waiting]]
    return totals


def sum_tree(
    uses: RowUses, most: Array, rounds: Array, base: int, zero: int
) -> tuple[Array, Array, RowUses]:
    """Sum each value's uses in groups, then the sums, until `most` or fewer remain.

    A value with 18 uses, of edge rows a to r, where the first sum gets edge row 50:

        a b c d   e f g h   i j k l   m n o p   q r   uses
        └──┬──┘   └──┬──┘   └──┬──┘   └──┬──┘   └┬┘
           50        51        52        53      54   stage 0
           └─────────┴────┬────┴─────────┘       │
                          55                     56   stage 1

    55 and 56 are left. The tree is the same in every run, which sums by scattering are
    not. A value with 4 uses or fewer costs no sum, unless only one may be left.

    Args:
      most: [rows] the most uses that may be left of the value in each row.
      rounds: [rows] the round in which the sums of stage 0 of a value are taken.
      base: the edge row of the first sum; the others come behind it, round by round.
      zero: an edge row of zeros, which fills sums of fewer uses.

    Returns:
      The edge rows of each sum [sums, SUM_ARITY] int32, its round [sums], ascending,
      and the uses that remain: those in no sum, and sums that no other sum adds up.
    """
    is_wide = np.bincount(uses.rows, minlength=len(most)) > most
    wide = is_wide[uses.rows]
    left = [uses.chosen(~wide)]
    rows, edges = uses.chosen(wide)
    # Begun with empty arrays, since maybe no value of the type has many uses.
    tables = [np.zeros((0, SUM_ARITY), np.int32)]
    values, stages = [rows[:0]], [rows[:0]]
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
    rows, edges = map(concatenate_arrays, zip(*left, strict=True))
    # The device takes the sums of a round as one run of rows.
    rounds = rounds[value] + stage
    order = np.argsort(rounds, kind='stable')
    moved = np.empty(len(order), np.int32)
    moved[order] = np.arange(base - len(order), base)

    def placed(edges: Array) -> Array:
        if not len(order):
            return edges
        # Edge rows of plain uses, and the row of zeros, stay where they are.
        first, result = base - len(order), edges.copy()
        is_sum = (edges >= first) & (edges < base)
        result[is_sum] = moved[edges[is_sum] - first]
        return result

    return placed(table[order]), rounds[order], RowUses(rows, placed(edges))


def _groups(rows: Array, edges: Array, zero: int) -> tuple[Array, Array, Array]:
    """Group each value's uses by up to `SUM_ARITY`.

    Return the edge rows of each group [groups, SUM_ARITY], filled up with `zero`, the
    row of its value [groups], and the number of groups of that value [groups].
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
    groups = -(-uses // SUM_ARITY)
    return table, rows[begins], np.repeat(groups, groups)


# ---- in the index array --------------------------------------------------------------


def write_consumers(
    spec: Spec, indices: Array, t: int, uses: RowUses, steps: Array | None
) -> None:
    """Write the consumers of each value of type `t` into the index array `indices`.

    They go to the section `consumers[t]` [fan, rows]; sums that values with many uses
    need go to the sections `sums[t]` and `steps[t]`.

    Args:
      uses: all uses of values of the type, by rows of the whole value buffer.
      steps: [rows] the loop step at which each value's level ends; `None` if the
        capacity has no sums of the type.
    """
    places, computed = layout(spec), spec.capacity.constants[t]
    zero, table = places.edge_rows[t] - 1, places.sections.consumers[t]
    # Constants lie first in the buffer of values, and have no cotangents.
    if computed:
        uses = uses.chosen((uses.rows >= computed).nonzero()[0])
        uses = RowUses(uses.rows - computed, uses.edges)
    by_sums = bool(adding(spec.program, t))
    if by_sums or steps is not None:
        uses = _summed(spec, indices, t, uses, steps)
    _write_columns(table.of(indices), uses, zero, unique=not by_sums)


def _summed(
    spec: Spec, indices: Array, t: int, uses: RowUses, steps: Array | None
) -> RowUses:
    """Write sums for values of type `t` with too many uses; return the new uses.

    Among them a sum counts as one use of its value, in place of those that it adds up.
    Arguments are as of `write_consumers`, but `uses` counts rows behind the constants.
    """
    places, computed = layout(spec), spec.capacity.constants[t]
    most = np.full(places.value_rows[t] - computed, SUM_ARITY, np.int8)
    for o in adding(spec.program, t):  # by row, as `most_uses` by number
        first = places.value_base[o][0] - computed
        most[first : first + places.region[o]] = 1
    zero = places.edge_rows[t] - 1
    if steps is not None:
        # All uses of a level's values are in later levels or components. So the reverse
        # pass has all their cotangents when it comes to the level, and sums them there,
        # in round `step * stages + stage`.
        rounds = steps * spec.capacity.stages
        base = places.edge_sums[t]
        table, rounds, uses = sum_tree(uses, most, rounds, base, zero)
    # The output of a sum operation has one use left, whose edge row holds its total
    # cotangent. That is also the cotangent of each operand, so operands read this row.
    is_total = (most < SUM_ARITY)[uses.rows]
    totals = total_cotangent_rows(uses.chosen(is_total), len(most), zero)
    uses = uses.chosen(~is_total)
    if steps is not None:
        # Per round, the first sum and the number of tiles.
        sections = places.sections
        edges = resolve_edges(table, totals).T
        for section, column in zip(sections.sums[t].rows, edges, strict=True):
            section.fill(indices, column, zero)
        taken, count = np.unique(rounds, return_counts=True)
        begins = sections.steps[t].of(indices).reshape(-1, 2)
        begins[...] = 0
        begins[taken, 0] = count.cumsum() - count
        begins[taken, 1] = -(-count // places.sum_width[t])
    return RowUses(uses.rows, resolve_edges(uses.edges, totals))


def _write_columns(table: Array, uses: RowUses, zero: int, *, unique: bool) -> None:
    """Write the edge rows of each value's uses into a table [fan, rows].

    One column of the table takes a use of each value, whichever is written last; the
    next column takes from the uses that are left, and so on. Free places get `zero`:

        value   uses         column 0   1   2   3
          0     4 9 12             12   9   4   -
          1     5                   5   -   -   -
          2     6 13               13   6   -   -

    Each `table[f]` is one column above. `unique` tells whether no two uses have the
    same edge row.
    """
    table[...] = zero
    rows, edges = uses
    for f, column in enumerate(table):
        if f + 1 == len(table):
            column[rows] = edges  # all other uses are in the columns before
            return
        # A sum may use a value twice, with the same edge row, and both uses count. So
        # uses are told apart by their numbers.
        numbers = edges if unique else np.arange(len(rows), dtype=np.int32)
        column[rows] = numbers
        written = column[rows]
        if not unique:
            column[rows] = edges[written]
        # Of several writes to a row NumPy keeps the last: the other uses are left.
        left = (written != numbers).nonzero()[0]
        rows, edges = rows[left], edges[left]
