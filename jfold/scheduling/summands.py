# SPDX-License-Identifier: Apache-2.0
"""Tables of summands, and other needs of operations outside of loops.

A slot, which is an input of such an operation or a tensor of a result, needs no indices
if it is read in place. A slot that reads sums which have no rows in buffers needs the
leaves of these sums, as a table of pairs: a value, and the row of the slot that it is
added to. Such tables are appended to those of a graph, so that selections pick from all
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
from jfold.program.components import Place, components, segment_sums, type_at
from jfold.program.operations import ADD
from jfold.scheduling.read_modes import ReadMode, slots, sums_need_rows
from jfold.scheduling.selections import Selection, use_counts

# ---- needs of examples ---------------------------------------------------------------


@memoized
def slot_needs(selection: Selection) -> tuple[Array, Array]:
    """Return each slot's number of summands, and whether the slot needs row indices.

    Returns:
      [slots, examples] int64, the number of values that are added up in each slot, if
      sums have no rows; and [slots + 1, examples] bool, whether each slot needs
      indices, then whether sums need rows, as of `_have_rows`.
    """
    places = slots(selection.program)
    summands = np.zeros((len(places), len(selection)), np.int64)
    highest = np.zeros((len(places) + 1, len(selection)), bool)
    for s, (place, pairs) in enumerate(zip(places, slot_pairs(selection), strict=True)):
        owner = selection.owners(len(selection.program.types) + place[0])
        summands[s] = np.bincount(owner[pairs.rows], minlength=len(selection))
        highest[s] = _is_indexed(selection, place)
    highest[-1] = _have_rows(selection)
    return summands, highest


def _is_indexed(selection: Selection, place: Place) -> Array:
    """Return, per example, whether a slot needs row indices there [examples] bool.

    Without indices the slot reads in place: row i reads value i of one producer.
    """
    program = selection.program
    if (number := slots(program)[place].part) is None:
        return np.ones(len(selection), bool)
    table = len(program.types) + place[0]
    _, part, output = value_parts(program)[number]
    indexed: Array = selection.counts[part] != selection.counts[table]
    begin = selection.numbers.begin(part, output)
    differs = selection.read_at(place) != ranges(begin, selection.counts[table])
    if differs.any():
        indexed[selection.owners(table)[differs]] = True
    return indexed


@memoized
def _have_rows(selection: Selection) -> Array:
    """Return, per example, whether segment sums need rows in buffers [examples] bool.

    They do if one is read more than once, or if `sums_need_rows`.
    """
    result, types = np.zeros(len(selection), bool), len(selection.program.types)
    if sums_need_rows(selection.program):
        return ~result
    for o in segment_sums(selection.program):
        counts = use_counts(selection, False)[selection.outputs_of(o)]
        result[selection.owners(types + o)[counts > 1]] = True
    return result


# ---- sums without rows ---------------------------------------------------------------


class Pairs(NamedTuple):
    """Pairs of a summand and its target: the row of a slot, or a sum.

    Attributes:
      values: [pairs] the merged number of each value.
      rows: [pairs] the number of each row, ascending; or the merged number of the sum.
    """

    values: Array
    rows: Array


NO_PAIRS = Pairs(np.zeros(0, np.intp), np.zeros(0, np.intp))


@memoized
def slot_pairs(selection: Selection) -> tuple[Pairs, ...]:
    """Return, per slot, pairs of a summand and the row to add it to.

    A slot that reads no sums has no pairs. In examples whose sums need rows the pairs
    are incomplete, and not used.
    """
    places = slots(selection.program)
    if not any(slot.combines for slot in places.values()):
        return (NO_PAIRS,) * len(places)
    sums = sorted(segment_sums(selection.program))
    is_sum = np.zeros(selection.numbers.ends[-1], bool)
    for o in sums:
        is_sum[selection.outputs_of(o)] = True
    leaves = _leaves(selection, sums)
    return tuple(
        _summed(selection.read_at(place), is_sum, leaves) if slot.combines else NO_PAIRS
        for place, slot in places.items()
    )


def _leaves(selection: Selection, sums: list[int]) -> Pairs:
    """Return pairs (leaf, root) of all trees that the sum operations `sums` form.

    Constants that change no sum are left out, such as zeros that fill up groups.
    """
    operations, chosen = selection.program.operations, ~_have_rows(selection)
    parts = [NO_PAIRS]
    for kind in sorted({operations[o].combines for o in sums}):
        alike = [o for o in sums if operations[o].combines == kind]
        pairs = _leaf_pairs(selection, alike, chosen)
        if kind == ADD:
            counted = ~_is_neutral(selection)[pairs.values]
            pairs = Pairs(pairs.values[counted], pairs.rows[counted])
        parts.append(pairs)
    return Pairs(*map(np.concatenate, zip(*parts, strict=True)))


def _leaf_pairs(selection: Selection, sums: list[int], chosen: Array) -> Pairs:
    """Return pairs (leaf, root) of the trees that `sums` form in `chosen` examples.

    sum      reads
         8   0 1 2 3         8 is read by 10, so 10 is the sum of 0 to 5
         9   4 5
        10   8 9
    """
    columns, types = [NO_PAIRS], len(selection.program.types)
    for o in sums:
        results, rows = selection.outputs_of(o), chosen[selection.owners(types + o)]
        for a in range(len(selection.program.operations[o].inputs)):
            read = selection.read_at((o, a))
            columns.append(Pairs(read[rows], results[rows]))
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


def _is_neutral(selection: Selection) -> Array:
    """Return a mask [values] of constants that change no sum: 0, but -0.0 if floats."""
    result = np.zeros(selection.numbers.ends[-1], bool)
    before: dict[int, int] = {}
    for t, value in selection.program.constants:
        k = before[t] = before.get(t, -1) + 1
        is_neutral = not (value != 0).any()
        if jnp.issubdtype(value.dtype, jnp.floating):
            is_neutral = is_neutral and np.signbit(value.astype('float64')).all()
        result[selection.numbers.first[t] + k] = is_neutral
    return result


def _summed(read: Array, is_sum: Array, leaves: Pairs) -> Pairs:
    """Pair each row with the value that it reads; if a sum, with its leaves.

    Args:
      read: [rows] the merged number of the value that each row reads.
      is_sum: [values] bool, whether each value is a sum.
      leaves: pairs of leaf and root; a sum of neutral constants alone has none.
    """
    of_sums = is_sum[read]
    plain, reader = np.flatnonzero(~of_sums), np.full(len(is_sum), -1)
    reader[read[of_sums]] = np.flatnonzero(of_sums)
    rows = reader[leaves.rows]
    is_read = rows >= 0
    values = np.concatenate([read[plain], leaves.values[is_read]])
    rows = np.concatenate([plain, rows[is_read]])
    order = rows.argsort(kind='stable')
    return Pairs(values[order], rows[order])


# ---- tables --------------------------------------------------------------------------


@memoized
def with_pair_tables(selection: Selection, modes: tuple[ReadMode, ...]) -> Graph:
    """Return the graph with further tables: of summands and the rows to add them to.

    There is one for each slot that reads sums without rows, with columns of values and
    rows; or, if sums have rows, one for each component of sums, with columns of leaves
    and roots. `modes` are those of the slots.
    """
    program, tables = selection.program, []
    triples = zip(slots(program), modes, slot_pairs(selection), strict=True)
    for place, mode, pairs in triples:
        if mode is ReadMode.SUMMED:
            table = len(program.types) + place[0]
            begin = selection.numbers.first[type_at(program, place)]
            owner = selection.owners(table)[pairs.rows]
            rows = pairs.rows - selection.before[table][owner]
            values = pairs.values - begin[owner]
            tables.append(_table_of(selection, owner, values, rows))
    if ReadMode.SUMMED not in modes:
        sums = segment_sums(program)
        parts = (part.operations for part in components(program))
        tables = [_of_sums(selection, part) for part in parts if sums.issuperset(part)]
    if not tables:
        return selection.graph
    return replace(selection.graph, results=(*selection.graph.results, *tables))


def _of_sums(selection: Selection, operations: tuple[int, ...]) -> Table:
    """Make a table of pairs (leaf, root) of the segment sum that `operations` form.

    Values are numbered within each example.
    """
    pairs = _leaf_pairs(selection, [*operations], np.ones(len(selection), bool))
    order = pairs.rows.argsort(kind='stable')
    values, sums = pairs.values[order], pairs.rows[order]
    (t,) = selection.program.operations[operations[0]].outputs
    # A sum reads values of its own example only.
    begin = selection.numbers.first[t]
    owner = np.searchsorted(begin, sums, 'right') - 1
    return _table_of(selection, owner, values - begin[owner], sums - begin[owner])


def _table_of(selection: Selection, owner: Array, *columns: Array) -> Table:
    """Make a table of `columns` [rows]; `owner`, ascending, is each row's example."""
    first = first_of(np.bincount(owner, minlength=len(selection)))
    return Table(first, tuple(x.astype(np.int32) for x in columns))
