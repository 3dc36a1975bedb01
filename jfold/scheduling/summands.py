# SPDX-License-Identifier: Apache-2.0
"""What programs without loops read otherwise than by the numbers in their graphs.

Of a slot that is read in place, no number at all; of one whose sums have no rows, what
is added up in the end, by a table of pairs of a value and the row that it is added to.
Such tables stand behind those of a graph, so examples are chosen of them all alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np

from jfold.base.memo import memoized
from jfold.graph import Array, Graph, Table, first_of, ranges, value_parts
from jfold.program.components import components
from jfold.scheduling.selections import Selection, use_counts
from jfold.scheduling.slots import ReadMode, Slot, slots, sum_operations

Ways: TypeAlias = tuple[ReadMode, ...]


# ---- what examples need --------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Needs:
    """What the examples of a graph need, for what they read.

    Attributes:
      summands: per slot, how many values are added up in it, if sums have no rows
        [slots, examples].
      highest: per slot, whether its rows have to have an index; then whether sums have
        rows, since one is read more than once [slots + 1, examples].
    """

    summands: Array
    highest: Array


@memoized
def needs(every: Selection) -> Needs:
    """Return what all examples of a graph need."""
    found = slots(every.program)
    summands = np.zeros((len(found), len(every)), np.int64)
    highest = np.zeros((len(found) + 1, len(every)), bool)
    for s, (slot, pairs) in enumerate(zip(found, summed(every), strict=True)):
        owner = every.owners(_table(every, slot))
        summands[s] = np.bincount(owner[pairs.rows], minlength=len(every))
        highest[s] = _is_indexed(every, slot)
    highest[-1] = _have_rows(every)
    return Needs(summands, highest)


def _is_indexed(every: Selection, slot: Slot) -> Array:
    """Return of which examples a slot is not read in place [examples] bool."""
    if slot.part is None:
        return np.ones(len(every), bool)
    table, (_, part, output) = (
        _table(every, slot),
        value_parts(every.program)[slot.part],
    )
    indexed: Array = every.counts[part] != every.counts[table]
    found = _read(every, slot)
    begin = every.numbers.begin(part, output)
    other = found != ranges(begin, every.counts[table])
    if other.any():
        indexed[every.owners(table)[other]] = True
    return indexed


@memoized
def _have_rows(every: Selection) -> Array:
    """Return in which examples a sum is read more than once [examples] bool."""
    found, types = np.zeros(len(every), bool), len(every.program.types)
    for o in sum_operations(every.program):
        counts = use_counts(every)[every.made(o)]
        found[every.owners(types + o)[counts > 1]] = True
    return found


# ---- sums without rows ---------------------------------------------------------------


class Pairs(NamedTuple):
    """What is added up.

    Attributes:
      values: [pairs] their numbers.
      rows: [pairs] to which row of a slot each is added, in order; or to which sum.
    """

    values: Array
    rows: Array


NO_PAIRS = Pairs(np.zeros(0, np.intp), np.zeros(0, np.intp))


@memoized
def summed(every: Selection) -> tuple[Pairs, ...]:
    """Return per slot what is added up in its rows, if sums have no rows; nothing of
    one that reads no sums."""
    found = slots(every.program)
    if not any(slot.sums for slot in found):
        return (NO_PAIRS,) * len(found)
    sums = sorted(sum_operations(every.program))
    is_sum = np.zeros(every.numbers.ends[-1], bool)
    for o in sums:
        is_sum[every.made(o)] = True
    leaves = _leaves(every, sums)
    return tuple(
        _summed(_read(every, slot), is_sum, leaves) if slot.sums else NO_PAIRS
        for slot in found
    )


def _leaves(every: Selection, sums: list[int]) -> Pairs:
    """Return what sums add up in the end, by the last sum that it gets into; no zeros
    that fill groups, and nothing of examples in which sums have rows."""
    apart = _have_rows(every)
    values, made = _end_pairs(every, sums, ~apart)
    counted = ~_neutral(every)[values]
    return Pairs(values[counted], made[counted])


def _end_pairs(every: Selection, sums: list[int], chosen: Array) -> Pairs:
    """Return what sums add up in the end, of chosen examples [examples] bool."""
    columns, types = [NO_PAIRS], len(every.program.types)
    for o in sums:
        made, rows = every.made(o), chosen[every.owners(types + o)]
        for a in range(len(every.program.operations[o].inputs)):
            read = every.values.column(types + o, 1 + a)
            columns.append(Pairs(read[rows], made[rows]))
    return Pairs(*end_summands(*map(np.concatenate, zip(*columns, strict=True))))


def _neutral(every: Selection) -> Array:
    """Return which values are the program's constants that make no difference to a sum
    [values] bool."""
    found = np.zeros(every.numbers.ends[-1], bool)
    before: dict[int, int] = {}
    for t, value in every.program.constants:
        k = before[t] = before.get(t, -1) + 1
        if _is_neutral(value):
            found[every.numbers.first[t] + k] = True
    return found


def _is_neutral(value: Array) -> bool:
    """Return whether a constant makes no difference to a sum: of floats, 0.0 does to
    -0.0."""
    if (value != 0).any():
        return False
    is_float = jnp.issubdtype(value.dtype, jnp.floating)
    return not is_float or bool(np.signbit(value.astype('float64')).all())


def _summed(read: Array, is_sum: Array, leaves: Pairs) -> Pairs:
    """Return what is added up in the rows of a slot: what it reads [rows], or what a
    sum adds up that it reads. Sums may be of nothing, all of it neutral."""
    of_sums = is_sum[read]
    plain, reader = np.flatnonzero(~of_sums), np.full(len(is_sum), -1)
    reader[read[of_sums]] = np.flatnonzero(of_sums)
    rows = reader[leaves.rows]
    own = rows >= 0
    values = np.concatenate([read[plain], leaves.values[own]])
    rows = np.concatenate([plain, rows[own]])
    order = rows.argsort(kind='stable')
    return Pairs(values[order], rows[order])


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


# ---- tables --------------------------------------------------------------------------


@memoized
def with_sums(every: Selection, ways: Ways) -> Graph:
    """Return the graph with tables of pairs behind its own: of each slot that is summed
    its values and rows; or, if sums have rows, of each component of sums its values and
    sums."""
    found = zip(slots(every.program), ways, summed(every), strict=True)
    tables = [
        _of_slot(every, slot, pairs)
        for slot, way, pairs in found
        if way is ReadMode.SUMMED
    ]
    if ReadMode.SUMMED not in ways:
        parts = components(every.program)
        tables = [_of_sums(every, each.operations) for each in parts if each.recurrent]
    if not tables:
        return every.graph
    return replace(every.graph, results=(*every.graph.results, *tables))


def _of_slot(every: Selection, slot: Slot, pairs: Pairs) -> Table:
    """Return the pairs of a slot, by numbers in their example."""
    table = _table(every, slot)
    owner = every.owners(table)[pairs.rows]
    rows = pairs.rows - every.before[table][owner]
    values = pairs.values - every.numbers.first[slot.type][owner]
    return _table_of(every, owner, values, rows)


def _of_sums(every: Selection, operations: tuple[int, ...]) -> Table:
    """Return what a component of sums adds up in the end, and into which of them."""
    pairs = _end_pairs(every, [*operations], np.ones(len(every), bool))
    order = pairs.rows.argsort(kind='stable')
    values, sums = pairs.values[order], pairs.rows[order]
    (t,) = every.program.operations[operations[0]].outputs
    # What a sum reads is of its own example.
    begin = every.numbers.first[t]
    owner = np.searchsorted(begin, sums, 'right') - 1
    return _table_of(every, owner, values - begin[owner], sums - begin[owner])


def _table_of(every: Selection, owner: Array, *columns: Array) -> Table:
    """Return a table of rows of examples, in order [rows]."""
    first = first_of(np.bincount(owner, minlength=len(every)))
    return Table(first, tuple(x.astype(np.int32) for x in columns))


def _table(every: Selection, slot: Slot) -> int:
    """Return the number of the table of a slot."""
    return len(every.program.types) + slot.table


def _read(every: Selection, slot: Slot) -> Array:
    """Return the values that a slot reads [rows]."""
    is_operation = slot.table < len(every.program.operations)
    return every.values.column(_table(every, slot), slot.column + is_operation)
