# SPDX-License-Identifier: Apache-2.0
"""Consumers: the edge rows that the reverse pass sums for each value row.

An edge row is where a use of a value leaves its cotangent. Each row of a value buffer
has *consumers*, at most `fan` edge rows. For values with more uses, groups of edge rows
are summed before, into edge rows of their own. `t` is the number of a tensor type, and
rows [rows] are those of its value buffer behind the constants, the *computed* rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from jfold.graph import Array
from jfold.scheduling.index_array import SUM_ARITY
from jfold.scheduling.layout import in_buffers, running_components
from jfold.scheduling.levels import Batch
from jfold.scheduling.sum_trees import (
    RowUses,
    SumTree,
    adding,
    resolve_edges,
    sorted_by_round,
    sum_tree,
    total_cotangent_rows,
)


def write_consumers(batch: Batch, t: int, uses: RowUses) -> None:
    """Write, for each value of type `t`, which rows hold the cotangents of its uses.

    These rows of the edge buffer, which the reverse pass sums, are the *consumers* of a
    value. They go to the section `consumers[t]` [fan, rows]; sums that values with many
    uses need go to the sections `sums[t]` and `steps[t]`.

    Args:
      uses: all uses of values of the type, by rows of the whole value buffer.
    """
    places, computed = batch.places, batch.spec.capacity.constants[t]
    zero, table = places.edge_rows[t] - 1, places.sections.consumers[t]
    # Constants lie first in the buffer of values, and have no cotangents.
    if computed:
        uses = uses.chosen((uses.rows >= computed).nonzero()[0])
        uses = RowUses(uses.rows - computed, uses.edges)
    by_sums = bool(adding(batch.spec.program, t))
    if by_sums or batch.spec.capacity.sums[t]:
        uses = _summed(batch, t, uses)
    _write_columns(table.of(batch.indices), uses, zero, unique=not by_sums)


def _summed(batch: Batch, t: int, uses: RowUses) -> RowUses:
    """Replace uses by sums where values of type `t` have too many for one gather.

    Return the uses left, in which a sum counts as one use in place of those that it
    adds up. The sums are written into the index array.
    """
    most, tree, zero = _most_uses(batch, t), None, batch.places.edge_rows[t] - 1
    if batch.spec.capacity.sums[t]:
        base = batch.places.edge_sums[t]
        tree = sum_tree(uses, most, base, zero)
        # All uses of a level's values are in later levels or components. So the reverse
        # pass has all their cotangents when it comes to the level, and sums them there,
        # in round `step * stages + stage`.
        steps: Array = _row_steps(batch, t)[tree.values]
        rounds = steps * batch.spec.capacity.stages + tree.stages
        tree = sorted_by_round(tree, rounds, base)
        uses = tree.left
    # The output of a sum operation has one use left, whose edge row holds its total
    # cotangent. That is also the cotangent of each operand, so operands read this row.
    is_total = (most < SUM_ARITY)[uses.rows]
    totals = total_cotangent_rows(uses.chosen(is_total), len(most), zero)
    uses = uses.chosen(~is_total)
    if tree is not None:
        table = resolve_edges(tree.table, totals)
        _write_sums(batch, t, replace(tree, table=table), np.sort(rounds))
    return RowUses(uses.rows, resolve_edges(uses.edges, totals))


def _write_columns(table: Array, uses: RowUses, zero: int, *, unique: bool) -> None:
    """Write, per value, the row numbers of its uses' cotangents into a table.

    One column of the table takes a use of each value, whichever is written last; the
    next column takes from the uses that are left, and so on. Free places get `zero`:

        value   uses         column 0   1   2   3
          0     4 9 12             12   9   4   -
          1     5                   5   -   -   -
          2     6 13               13   6   -   -

    Args:
      table: [fan, rows] to write into; each `table[f]` [rows] is one column above.
      zero: the edge row that stays zero.
      unique: whether no two uses have the same edge row.
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


def _most_uses(batch: Batch, t: int) -> Array:
    """Return the limit on uses per value of type `t`, beyond which uses are summed.

    [rows] int8: 1 for outputs of sum operations, `SUM_ARITY` for others.
    """
    places, computed = batch.places, batch.spec.capacity.constants[t]
    most = np.full(places.value_rows[t] - computed, SUM_ARITY, np.int8)
    for o in adding(batch.spec.program, t):
        first = places.value_base[o][0] - computed
        most[first : first + places.region[o]] = 1
    return most


def _write_sums(batch: Batch, t: int, tree: SumTree, rounds: Array) -> None:
    """Write which cotangents of type `t` each sum adds up, and each round's sums.

    They go into the sections `sums[t]` and `steps[t]` of the index array.

    Args:
      tree: the sums, sorted by round.
      rounds: [sums] the round of each sum, ascending.
    """
    places, sections = batch.places, batch.places.sections
    steps = sections.steps[t].of(batch.indices)
    steps[...] = 0
    for f in range(SUM_ARITY):
        edges, zero = tree.table[:, f], places.edge_rows[t] - 1
        sections.sums[t][f].fill(batch.indices, edges, zero)
    taken, count = np.unique(rounds, return_counts=True)
    flat = steps.reshape(-1, 2)
    width = places.sum_width[t]
    flat[taken, 0], flat[taken, 1] = count.cumsum() - count, -(-count // width)


def _row_steps(batch: Batch, t: int) -> Array:
    """Return, for type `t`, the loop step at which each value's level ends [rows].

    Steps are counted through all components. Constants are left out.
    """
    places, computed = batch.places, batch.spec.capacity.constants[t]
    steps = np.zeros(places.value_rows[t] - computed, np.int64)
    # A level may take several steps. The reverse pass comes first to the last of them.
    begin = 0
    inside = in_buffers(batch.spec.program)
    for c, component in enumerate(running_components(batch.spec)):
        for o in inside.intersection(component.operations):
            last = begin + _last_steps(batch, c, o)
            outputs = batch.spec.program.operations[o].outputs
            for number, base in zip(outputs, places.value_base[o], strict=True):
                if number == t:
                    steps[base - computed :][: len(last)] = last
        begin += places.tables[c][0]
    return steps


def _last_steps(batch: Batch, c: int, o: int) -> Array:
    """Return the step at which the level of each node of operation `o` ends [nodes].

    Steps are counted in component `c` alone, which has the operation.
    """
    if c in batch.last_steps:
        counts = batch.counts[o]
        steps: Array = batch.last_steps[c][: len(counts)].repeat(counts)
        return steps
    table = len(batch.spec.program.types) + o
    return np.zeros(batch.selection.totals[table], np.int64)
