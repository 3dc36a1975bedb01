# SPDX-License-Identifier: Apache-2.0
"""What programs without loops read, example by example, whatever the batch.

A *reference* tells of which part a value is, and which it is of those that its example
has there; a batch adds where the part begins, and the example in it. All references of
many examples lie in two arrays, column by column, so that a batch is put together in a
few steps, however many operations there are:

    column       input 0 of update        its pairs: value     and row
    example      0     1   2              0       1            0       1
    part         a a a a a a a a          a b b   a b          u u u   u u
    number       0 1 2 0 1 0 1 2          0 0 1   1 0          0 1 1   0 0
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np

from jfold.graph import (
    Array,
    Graph,
    Table,
    concatenated,
    ranges,
    shared_counts,
    value_parts,
)
from jfold.kept import Owner, kept
from jfold.operations import Operations
from jfold.planning.slots import Slot, Way, slots, sum_operations
from jfold.planning.uses import Uses, end_summands, make_uses, use_counts
from jfold.recurrence import components

Ways: TypeAlias = tuple[Way, ...]


# ---- what examples need --------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Needs:
    """What the examples of a graph need, for what they read.

    Attributes:
      indexed: per slot, whether its rows have to have an index [examples] bool.
      summands: per slot, how many values are added up in it, if sums have no rows
        [examples].
      sum_rows: whether sums have rows, since one is read more than once [examples]
        bool.
    """

    indexed: tuple[Array, ...]
    summands: tuple[Array, ...]
    sum_rows: Array


@kept
def needs(uses: Uses) -> Needs:
    """What the examples of a graph need, given where they use values."""
    examples = uses.graph.examples
    pairs = list(zip(slots(uses.program), summed(uses), strict=True))
    return Needs(
        tuple(_is_indexed(uses, slot) for slot, _ in pairs),
        tuple(
            np.bincount(_owners(_table(uses, slot))[rows], minlength=examples)
            for slot, (_, rows) in pairs
        ),
        _have_rows(uses),
    )


def _is_indexed(uses: Uses, slot: Slot) -> Array:
    """Of which examples a slot is not read in place [examples] bool."""
    table = _table(uses, slot)
    if slot.part is None:
        return np.ones(uses.graph.examples, bool)
    begin, counts = _part(uses, slot.part)
    indexed: Array = counts != table.counts
    found = _read(uses, slot)
    other = found != ranges(begin, table.counts) if len(found) else found
    if other.any():
        indexed[_owners(table)[other]] = True
    return indexed


@kept
def _have_rows(uses: Uses) -> Array:
    """In which examples a sum is read more than once [examples] bool."""
    found = np.zeros(uses.graph.examples, bool)
    for o in sum_operations(uses.program):
        (t,) = uses.program.operations[o].outputs
        often = use_counts(uses, t)[_outputs(uses, o)] > 1
        found[_owners(uses.graph.operations[o])[often]] = True
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


@kept
def summed(uses: Uses) -> tuple[Pairs, ...]:
    """Per slot, what is added up in its rows, if sums have no rows; nothing of one that
    reads no sums."""
    types = {slot.type for slot in slots(uses.program) if slot.sums}
    leaves = {t: _leaves(uses, t) for t in types}
    return tuple(
        _summed(uses, slot, leaves[slot.type]) if slot.sums else NO_PAIRS
        for slot in slots(uses.program)
    )


def _leaves(uses: Uses, t: int) -> Pairs:
    """What all sums of a type add up in the end, by the last sum that it gets into; no
    zeros that fill groups."""
    values, sums = end_summands(*_added(uses, t))
    counted = ~_neutral(uses, t)[values]
    return Pairs(values[counted], sums[counted])


def _sums_of(uses: Uses, t: int) -> list[int]:
    """The operations that add up values of a type."""
    operations = uses.program.operations
    own = sorted(sum_operations(uses.program))
    return [o for o in own if operations[o].outputs == (t,)]


def _added(uses: Uses, t: int) -> Pairs:
    """What the sums of a type add up, by the number of the sum; nothing of examples in
    which sums have rows."""
    apart, columns = _have_rows(uses), [NO_PAIRS]
    for o in _sums_of(uses, t):
        made, rows = _outputs(uses, o), ~apart[_owners(uses.graph.operations[o])]
        columns += [Pairs(column[rows], made[rows]) for column in uses.inputs[o]]
    return Pairs(*map(np.concatenate, zip(*columns, strict=True)))


def _neutral(uses: Uses, t: int) -> Array:
    """Which values of a type are the program's constants that make no difference to a
    sum [values] bool."""
    first = uses.numbers.first[t]
    found = np.zeros(int(first[-1]), bool)
    own = [value for number, value in uses.program.constants if number == t]
    for k in (k for k, value in enumerate(own) if _is_neutral(value)):
        found[first[:-1] + k] = True
    return found


def _is_neutral(value: Array) -> bool:
    """Whether a constant makes no difference to a sum: of floats, 0.0 does to -0.0."""
    if (value != 0).any():
        return False
    is_float = jnp.issubdtype(value.dtype, jnp.floating)
    return not is_float or bool(np.signbit(value.astype('float64')).all())


def _summed(uses: Uses, slot: Slot, leaves: Pairs) -> Pairs:
    """What is added up in the rows of a slot: what it reads, or what a sum adds up that
    it reads. Sums may be of nothing, all of it neutral."""
    read, number = _read(uses, slot), int(uses.numbers.first[slot.type][-1])
    sums, reader = np.zeros(number, bool), np.full(number, -1)
    for o in _sums_of(uses, slot.type):
        sums[_outputs(uses, o)] = True
    is_sum = sums[read]
    (plain,) = np.nonzero(~is_sum)
    reader[read[is_sum]] = np.nonzero(is_sum)[0]
    rows = reader[leaves.rows]
    mine = rows >= 0
    values = np.concatenate([read[plain], leaves.values[mine]])
    rows = np.concatenate([plain, rows[mine]])
    order = rows.argsort(kind='stable')
    return Pairs(values[order], rows[order])


# ---- references ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Reads:
    """All references of examples, column by column.

    Attributes:
      part, number: [references] int32.
      begin: [columns, examples] where those of each example begin.
      counts: [columns, examples] how many it has.
      tables: [tables, examples] rows of constants per type, operations and results.
    """

    part: Array
    number: Array
    begin: Array
    counts: Array
    tables: Array


@dataclass(frozen=True, eq=False)
class Readable(Owner):
    """Examples that were traced for a program without loops."""

    program: Operations
    graph: Graph


@kept
def reads(readable: Readable, ways: Ways) -> Reads:
    """What the examples read, of which each slot is read in one of the ways."""
    return make_reads(make_uses(readable.program, readable.graph), ways)


def make_reads(uses: Uses, ways: Ways) -> Reads:
    """The same, given where values are used: of each slot that has any its column of
    values, or of values and rows; then of each component of sums, if these have rows,
    its column of values and of sums."""
    columns = list(_columns(uses, ways))
    counts = np.zeros((len(columns), uses.graph.examples), np.intp)
    for row, each in zip(counts, columns, strict=True):
        row[:] = each.counts
    ends = counts.cumsum().reshape(counts.shape)
    tables = [table.counts for table in _tables(uses.graph)]
    return Reads(
        concatenated([each.part for each in columns] or [np.zeros(0, np.int32)]),
        concatenated([each.number for each in columns] or [np.zeros(0, np.int32)]),
        ends - counts,
        counts,
        np.array(tables),
    )


class _Column(NamedTuple):
    """References of all examples, one after another.

    Attributes:
      part, number: [references] int32.
      counts: [examples].
    """

    part: Array
    number: Array
    counts: Array


def _columns(uses: Uses, ways: Ways) -> Iterator[_Column]:
    for s, (slot, way) in enumerate(zip(slots(uses.program), ways, strict=True)):
        table = _table(uses, slot)
        if way is Way.SUMMED:
            pairs = summed(uses)[s]
            owner = _owners(table)[pairs.rows]
            yield _of_values(uses, slot.type, pairs.values, owner)
            yield _of_rows(uses, slot.table, pairs.rows, owner)
        elif way is Way.INDEXED:
            yield _of_values(uses, slot.type, _read(uses, slot), _owners(table))
    if Way.SUMMED not in ways:
        yield from _of_sums(uses)


def _of_sums(uses: Uses) -> Iterator[_Column]:
    """What each component of sums adds up in the end, and into which of them."""
    for component in components(uses.program):
        if component.recurrent:
            (t,) = uses.program.operations[component.operations[0]].outputs
            columns = [NO_PAIRS]
            for o in component.operations:
                columns += [Pairs(x, _outputs(uses, o)) for x in uses.inputs[o]]
            found = end_summands(*map(np.concatenate, zip(*columns, strict=True)))
            order = found[1].argsort(kind='stable')
            values, sums = (x[order] for x in found)
            # What a sum reads is of its own example.
            owner = np.searchsorted(uses.numbers.first[t], sums, 'right') - 1
            yield _of_values(uses, t, values, owner)
            yield _of_values(uses, t, sums, owner)


def _of_values(uses: Uses, t: int, values: Array, owner: Array) -> _Column:
    """References to values [n] of examples [n]."""
    part, number = _references(uses, t)
    at = values.astype(np.intp, copy=False)
    counts = np.bincount(owner, minlength=uses.graph.examples)
    return _Column(part[at], number[at], counts)


def _of_rows(uses: Uses, table: int, rows: Array, owner: Array) -> _Column:
    """References to rows [n] of a table of operations or results, of examples [n]."""
    types, parts = len(uses.program.types), len(value_parts(uses.program))
    first = _tables(uses.graph)[types + table].first
    counts = np.bincount(owner, minlength=uses.graph.examples)
    number = (rows - first[owner]).astype(np.int32)
    return _Column(np.full(len(rows), parts + 1 + table, np.int32), number, counts)


@kept
def _references(uses: Uses, t: int) -> tuple[Array, Array]:
    """Of each value of a type, its part and which it is of those of its example there
    [values] int32. Behind all parts come the program's constants, which are one."""
    program, first = uses.program, uses.numbers.first[t]
    parts = value_parts(program)
    part = np.full(int(first[-1]), len(parts), np.int32)
    number = np.zeros(int(first[-1]), np.int32)
    for k in range(shared_counts(program)[t]):
        number[first[:-1] + k] = k
    for p, (type_, *_) in enumerate(parts):
        if type_ == t:
            begin, counts = _part(uses, p)
            rows = ranges(begin, counts)
            part[rows], number[rows] = p, ranges(np.zeros_like(counts), counts)
    return part, number


# ---- tables and parts ----------------------------------------------------------------


def _tables(graph: Graph) -> tuple[Table, ...]:
    """All tables: those of constants, operations and results."""
    return graph.constants + graph.operations + graph.results


def _table(uses: Uses, slot: Slot) -> Table:
    return _tables(uses.graph)[len(uses.program.types) + slot.table]


def _read(uses: Uses, slot: Slot) -> Array:
    """The values that a slot reads [rows]."""
    return (uses.inputs + uses.results)[slot.table][slot.column]


def _owners(table: Table) -> Array:
    """The example of each row [rows]."""
    return np.arange(len(table.counts)).repeat(table.counts)


def _part(uses: Uses, p: int) -> tuple[Array, Array]:
    """Of a part of the values, the number of each example's first, and how many it has
    [examples]."""
    t, table, k = value_parts(uses.program)[p]
    numbers, types = uses.numbers, len(uses.program.types)
    begin = numbers.constants[t] if table < types else numbers.outputs[table - types][k]
    return begin, _tables(uses.graph)[table].counts


def _outputs(uses: Uses, o: int) -> Array:
    """The values that an operation of one output makes [nodes]."""
    return ranges(uses.numbers.outputs[o][0], uses.graph.operations[o].counts)
