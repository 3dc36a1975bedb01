# SPDX-License-Identifier: Apache-2.0
"""Tables of summands, and other needs of operations outside of loops.

A slot that adds up the values that it reads needs a table of pairs: a value, and the
row that it is added to. If all values are those of one producer, each at most once, one
column will do: the row, if any, that each of the producer's values is added to, "in
place". Such tables are appended to those of a graph, so that selections pick from all
tables alike. *Sums* are results of `segment_sums`. A segment sum is recorded as a tree
of sums: only the next sum of the tree reads an inner sum, and no sum reads the *root*.
All functions take the selection of all examples of a graph, which keeps their memos.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jfold.base.memo import memoized
from jfold.graph import Array, Graph, Table, first_of, ranges, value_parts
from jfold.program.components import SUMMANDS, Place, component_of, components, type_at
from jfold.program.operations import ADD
from jfold.scheduling.index_array import NOWHERE
from jfold.scheduling.read_modes import ReadMode, Slot, SumGroup, slots, twins
from jfold.scheduling.selections import Selection, use_counts

SKIPPED = 16  # values of an example that a sum in place may skip, beside half of them

# ---- needs of examples ---------------------------------------------------------------


@memoized
def slot_needs(selection: Selection) -> tuple[Array, Array]:
    """Return the number of summands of each slot, and what it needs, per example.

    Returns:
      [slots, examples] int64, the number of values that are added up in each slot, if
      sums have no rows; and [n, examples] bool: per slot whether it needs indices, then
      whether the sums that it reads need rows; per pair of `twins` whether they differ.
    """
    places = slots(selection.program)
    summands = np.zeros((len(places), len(selection)), np.int64)
    indexed, sum_rows = np.zeros((2, len(places), len(selection)), bool)
    for s, (place, slot) in enumerate(places.items()):
        if slot.group is None:
            indexed[s] = _is_indexed(selection, place, slot)
        else:
            sum_rows[s] = _have_rows(selection, slot.group)
            if place[1] == SUMMANDS:
                indexed[s], _ = _targets_in_place(selection, place)
            elif not sum_rows[s].all():  # where sums have rows the slot adds up nothing
                indexed[s] = _targets_in_place(selection, place)[0] & ~sum_rows[s]
                owner = _owners(selection, place, pairs_at(selection, place))
                added = np.bincount(owner, minlength=len(selection))
                summands[s] = np.where(sum_rows[s], 0, added)
    apart = [_are_apart(selection, *pair) for pair in twins(selection.program)]
    return summands, np.concatenate([indexed, sum_rows, *(x[None] for x in apart)])


def _is_indexed(selection: Selection, place: Place, slot: Slot) -> Array:
    """Return, per example, whether a slot needs row indices there [examples] bool.

    Without indices the slot reads in place: row i reads value i of one producer.
    """
    if slot.part is None:
        return np.ones(len(selection), bool)
    table = len(selection.program.types) + place[0]
    _, part, output = value_parts(selection.program)[slot.part]
    indexed: Array = selection.counts[part] != selection.counts[table]
    begin = selection.numbers.begin(part, output)
    differs = selection.read_at(place) != ranges(begin, selection.counts[table])
    if differs.any():
        indexed[selection.owners(table)[differs]] = True
    return indexed


def _are_apart(selection: Selection, place: Place, twin: Place) -> Array:
    """Return, per example, whether two slots read different values [examples] bool."""
    types = len(selection.program.types)
    table, other = types + place[0], types + twin[0]
    apart: Array = selection.counts[table] != selection.counts[other]
    if not apart.all():
        owner = selection.owners(table)
        alike, of_twin = ~apart[owner], ~apart[selection.owners(other)]
        read, same = selection.read_at(place), selection.read_at(twin)
        apart[owner[alike][read[alike] != same[of_twin]]] = True
    return apart


@memoized
def _targets_in_place(selection: Selection, place: Place) -> tuple[Array, Array]:
    """Return which examples need indices in a slot that adds up, and all targets.

    Without indices a slot adds up values of one producer, its part, each at most once,
    and of many at least half. Rows that nothing is added to read a zero.

    Returns:
      [examples] bool, and [rows of the part] int32 the row that each value is added to,
      numbered within its example; where it is to none, a row that does not exist.
    """
    program, slot = selection.program, slots(selection.program)[place]
    nowhere, pairs = np.zeros(0, np.int32), pairs_at(selection, place)
    if slot.part is None:
        return np.ones(len(selection), bool), nowhere
    _, part, output = value_parts(program)[slot.part]
    begin, counts = selection.numbers.begin(part, output), selection.counts[part]
    is_sum, table = place[1] == SUMMANDS, len(program.types) + place[0]
    indexed = np.zeros(len(selection), bool)
    if not is_sum:
        is_empty = np.ones(selection.totals[table], bool)
        is_empty[pairs.rows] = False
        if is_empty.any():
            indexed[selection.owners(table)[is_empty]] = True
        pairs = _without_zeros(selection, place, pairs)
    owner = _owners(selection, place, pairs)
    added = np.bincount(owner, minlength=len(selection))
    if not is_sum:  # a sum leaves out what is the only item of a list
        indexed |= counts > 2 * added + SKIPPED
    indexed |= added > counts  # some are added up twice
    if indexed.all():
        return indexed, nowhere
    rows = pairs.values - begin[owner]
    is_there = (rows >= 0) & (rows < counts[owner])
    if not is_there.all():
        indexed[owner[~is_there]] = True
        pairs, owner, rows = _of(pairs, is_there), owner[is_there], rows[is_there]
    rows += selection.before[part][owner]
    # Ascending, as values are: so equal ones stand side by side.
    if (again := rows[1:] == rows[:-1]).any():
        indexed[selection.owners(part)[rows[1:][again]]] = True
    if is_sum:  # the target of what is not added up is itself, which is no sum
        first = selection.numbers.first[type_at(program, place)]
        targets = ranges(begin - first, counts).astype(np.int32)
    else:
        first = selection.before[table]
        targets = np.full(counts.sum(), NOWHERE, np.int32)
    targets[rows] = pairs.rows - first[owner]
    return indexed, targets


def _owners(selection: Selection, place: Place, pairs: Pairs) -> Array:
    """Return the example of each pair of a slot [pairs]; values are of one example."""
    if len(selection) == 1:
        return np.zeros(len(pairs.values), np.intp)
    first = selection.numbers.first[type_at(selection.program, place)]
    return np.searchsorted(first, pairs.values, 'right') - 1


@memoized
def _have_rows(selection: Selection, group: SumGroup) -> Array:
    """Return, per example, whether segment sums need rows in buffers [examples] bool.

    They do if one is read more than once.
    """
    result, types = np.zeros(len(selection), bool), len(selection.program.types)
    if group.needs_rows:
        return ~result
    for o in group.operations:
        counts = use_counts(selection, False)[selection.outputs_of(o)]
        result[selection.owners(types + o)[counts > 1]] = True
    return result


# ---- pairs ---------------------------------------------------------------------------


class Pairs(NamedTuple):
    """Pairs of a summand and its target: the row of a slot, or a sum.

    Attributes:
      values: [pairs] the merged number of each value, ascending: so the order in which
        values are added up does not depend on the mode.
      rows: [pairs] the number of each row; or the merged number of the sum.
    """

    values: Array
    rows: Array


def pairs_at(selection: Selection, place: Place) -> Pairs:
    """Return the pairs of a summand and a target of a slot that adds up.

    In examples whose sums have rows those of other slots than sums are not used.
    """
    group = slots(selection.program)[place].group
    assert group is not None
    if place[1] != SUMMANDS:
        return _summed(selection, place, group)
    part = components(selection.program)[component_of(selection.program)[place[0]]]
    return _leaves(selection, part.operations)


@memoized
def _leaves(selection: Selection, sums: tuple[int, ...]) -> Pairs:
    """Return pairs (leaf, root) of all trees that the sum operations `sums` form.

    Those that change no sum are left out: zeros that fill up groups, and items of a
    maximum or minimum that occur twice.
    """
    pairs = _ordered(_leaf_pairs(selection, sums))
    if selection.program.operations[sums[0]].combines == ADD:
        return _of(pairs, ~_constants(selection)[0][pairs.values])
    is_new = [np.diff(x, prepend=-1) != 0 for x in pairs]
    return _of(pairs, np.logical_or(*is_new))


def _leaf_pairs(selection: Selection, sums: tuple[int, ...]) -> Pairs:
    """Return pairs (leaf, root) of the trees that `sums` form, in any order.

    sum      reads
         8   0 1 2 3         8 is read by 10, so 10 is the sum of 0 to 5
         9   4 5
        10   8 9
    """
    columns = []
    for o in sums:
        results = selection.outputs_of(o)
        for a in range(len(selection.program.operations[o].inputs)):
            columns.append(Pairs(selection.read_at((o, a)), results))
    read, parent = map(np.concatenate, zip(*columns, strict=True))
    if not len(read) or not ((read >= parent.min()) & (read <= parent.max())).any():
        return Pairs(read, parent)  # no sum is read
    reader = np.full(int(max(read.max(), parent.max())) + 1, -1)
    reader[parent] = parent
    inner = reader[read] >= 0
    reader[read[inner]] = parent[inner]  # at most one sum reads a sum
    roots = parent[~inner]
    # `reader` maps an inner sum to its parent and a root to itself: follow it to roots.
    while (reader[roots] != roots).any():  # trees are not deep
        roots = reader[roots]
    return Pairs(read[~inner], roots)


@memoized
def _summed(selection: Selection, place: Place, group: SumGroup) -> Pairs:
    """Pair the rows of a slot with the values, or leaves of sums, they read.

    A sum of nothing but additive identities has no leaves.
    """
    read, leaves = selection.read_at(place), _leaves(selection, group.operations)
    is_sum = np.zeros(selection.numbers.ends[-1], bool)
    for o in group.operations:
        is_sum[selection.outputs_of(o)] = True
    of_sums = is_sum[read]
    plain, reader = np.flatnonzero(~of_sums), np.full(len(is_sum), -1)
    reader[read[of_sums]] = np.flatnonzero(of_sums)
    rows = reader[leaves.rows]
    is_read = rows >= 0
    values = np.concatenate([read[plain], leaves.values[is_read]])
    return _ordered(Pairs(values, np.concatenate([plain, rows[is_read]])))


def _ordered(pairs: Pairs) -> Pairs:
    """Return the pairs in ascending order of their values."""
    if (pairs.values[1:] >= pairs.values[:-1]).all():
        return pairs
    return _of(pairs, pairs.values.argsort(kind='stable'))


def _without_zeros(selection: Selection, place: Place, pairs: Pairs) -> Pairs:
    """Return the pairs of a slot without rows that read a constant zero."""
    is_zero = _constants(selection)[1][pairs.values]
    if is_zero.any():  # a zero may be a summand, too
        is_zero &= selection.read_at(place)[pairs.rows] == pairs.values
        pairs = _of(pairs, ~is_zero)
    return pairs


def _of(pairs: Pairs, which: Array) -> Pairs:
    """Return the pairs that `which` chooses, indices or a mask."""
    return Pairs(pairs.values[which], pairs.rows[which])


@memoized
def _constants(selection: Selection) -> tuple[Array, Array]:
    """Return masks [values] of the program's additive identities, and of its zeros.

    An identity changes no sum: it is 0, but of floats -0.0, where zeros are 0.0.
    """
    neutral, zeros = np.zeros((2, selection.numbers.ends[-1]), bool)
    before: dict[int, int] = {}
    for t, value in selection.program.constants:
        k = before[t] = before.get(t, -1) + 1
        if (value != 0).any():
            continue
        is_zero = is_neutral = True
        if jnp.issubdtype(value.dtype, jnp.floating):
            signs = np.signbit(value.astype('float64'))
            is_zero, is_neutral = not signs.any(), signs.all()
        places = selection.numbers.first[t] + k
        neutral[places], zeros[places] = is_neutral, is_zero
    return neutral, zeros


# ---- tables --------------------------------------------------------------------------


@memoized
def with_pair_tables(selection: Selection, modes: tuple[ReadMode, ...]) -> Graph:
    """Return the graph with further tables: of summands and the rows to add them to.

    There is one for each slot that adds values up, with columns of values and rows; or,
    in place, with a column of rows alone, for each value of the slot's part. `modes`
    are those of the slots.
    """
    pairs = zip(slots(selection.program), modes, strict=True)
    tables = [_table(selection, place, mode) for place, mode in pairs if mode.adds]
    if not tables:
        return selection.graph
    return replace(selection.graph, results=(*selection.graph.results, *tables))


def _table(selection: Selection, place: Place, mode: ReadMode) -> Table:
    """Return the table of a slot's pairs, numbered within each example."""
    program, slot = selection.program, slots(selection.program)[place]
    if mode is ReadMode.SUMMED_IN_PLACE:
        assert slot.part is not None
        _, part, _ = value_parts(program)[slot.part]
        _, targets = _targets_in_place(selection, place)
        return Table(first_of(selection.counts[part]), (targets,))
    pairs = pairs_at(selection, place)
    owner = _owners(selection, place, pairs)
    first = before = selection.numbers.first[type_at(program, place)]
    if place[1] != SUMMANDS:
        before = selection.before[len(program.types) + place[0]]
    columns = pairs.values - first[owner], pairs.rows - before[owner]
    begins = first_of(np.bincount(owner, minlength=len(selection)))
    return Table(begins, tuple(x.astype(np.int32) for x in columns))
