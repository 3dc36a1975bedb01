# SPDX-License-Identifier: Apache-2.0
"""How programs without loops read: in place, as sums, or by index.

An input of an operation, or a tensor of a result, is a *slot*. Where nothing takes
turns few slots need an index for each of their rows:

    in place   row i is row i of what one operation has made, or of the constants
    summed     row i is the sum of values, each told by a pair of the value and i: a sum
               that nobody else reads has no row of its own
    indexed    row i is any value

Which of these a slot is depends on the data, and is part of the capacity: what was read
in place in all batches so far may be indexed from some batch on.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from jfold.base.memo import memoized
from jfold.graph import value_parts
from jfold.program.components import components, first_results, results_in, sources
from jfold.program.operations import Operations, ProducerSet
from jfold.scheduling.spec import ONCE, Capacity, Spec


class ReadMode(enum.Enum):
    """How a slot is read."""

    IN_PLACE = enum.auto()
    SUMMED = enum.auto()
    INDEXED = enum.auto()


@dataclass(frozen=True)
class Slot:
    """What is read row by row.

    Attributes:
      table: the number of its operation, or that of its result after all of them.
      column: which input or tensor it is.
      type: of the values.
      part: the part of the values of which it may be the rows, by its number in
        `value_parts`; `None` if there are several, or there may be other values.
      sums: whether a sum may be read.
    """

    table: int
    column: int
    type: int
    part: int | None
    sums: bool


@memoized
def sum_operations(program: Operations) -> frozenset[int]:
    """The operations that add up what others of them have made, too: all of a component
    are summed at once."""
    found = (each.operations for each in components(program) if each.recurrent)
    return frozenset(itertools.chain(*found)) if program.once else frozenset()


@memoized
def slots(program: Operations) -> tuple[Slot, ...]:
    """Those of operations that are no sums, then those of results; none of a program in
    which anything takes turns."""
    return tuple(_slots(program)) if program.once else ()


@memoized
def slot_numbers(program: Operations) -> dict[tuple[int, int], int]:
    """Of each slot its number, by its table and column."""
    return {(x.table, x.column): s for s, x in enumerate(slots(program))}


def _slots(program: Operations) -> Iterator[Slot]:
    made, own = sources(program), sum_operations(program)
    first = first_results(program)
    of_sums = sum(1 << first[o] for o in own)
    types = [each.inputs for each in program.operations]
    types += [each.tensors for each in program.results]
    tables = zip(types, made.inputs + made.results, strict=True)
    for table, (numbers, makers) in enumerate(tables):
        if table in own:
            continue
        for column, (t, may) in enumerate(zip(numbers, makers, strict=True)):
            part = _only_part(program, t, may)
            yield Slot(table, column, t, part, bool(may & of_sums))


def _only_part(program: Operations, t: int, makers: ProducerSet) -> int | None:
    """The part of all values of a type that some operations make; that of constants if
    none does."""
    parts = [p for p, part in enumerate(value_parts(program)) if part[0] == t]
    found = list(results_in(makers))
    if len(found) > 1:
        return None
    if not found:
        return parts[0]
    # Parts are the constants of each type, then results in their order.
    part = len(program.types) + found[0]
    return part if found[0] not in _results_of(program) else None


def _results_of(program: Operations) -> set[int]:
    """The results of sums, which may have no rows."""
    first = first_results(program)
    return {first[o] for o in sum_operations(program)}


def with_slots(program: Operations, capacity: Capacity) -> Capacity:
    """A capacity that says how each slot of a program is read, and nothing of others:
    by index where nothing is said of them, or where there is no part of which a slot
    may be the rows."""
    every, indexed, summands = slots(program), capacity.indexed, capacity.summands
    none, sums_have_rows = (0,) * len(every), capacity.sum_rows
    if not len(every) == len(indexed) == len(summands):
        indexed, summands, sums_have_rows = (1,) * len(every), none, int(program.once)
    pairs = zip(every, indexed, strict=True)
    return replace(
        capacity,
        indexed=tuple(1 if slot.part is None else number for slot, number in pairs),
        summands=none if sums_have_rows else summands,
        sum_rows=sums_have_rows,
    )


@memoized
def ways(spec: Spec) -> tuple[ReadMode, ...]:
    """How each slot is read."""
    program, capacity = spec.program, spec.capacity
    if spec.strategy != ONCE or not capacity.indexed:
        return tuple(ReadMode.INDEXED for _ in slots(program))
    pairs = zip(slots(program), capacity.indexed, strict=True)
    return tuple(_way(slot, indexed, capacity.sum_rows) for slot, indexed in pairs)


def _way(slot: Slot, indexed: int, sum_rows: int) -> ReadMode:
    if not indexed:
        return ReadMode.IN_PLACE
    return ReadMode.SUMMED if slot.sums and not sum_rows else ReadMode.INDEXED


def sums_have_rows(spec: Spec) -> bool:
    """Whether sums are values that are read, and not told to whoever reads them."""
    return ReadMode.SUMMED not in ways(spec)


def read_ways(spec: Spec, table: int, count: int) -> list[ReadMode]:
    """How the columns of a table are read, so many as it has; by index where there are
    loops."""
    numbers, found = slot_numbers(spec.program), ways(spec)
    chosen = [numbers.get((table, a)) for a in range(count)]
    return [ReadMode.INDEXED if s is None else found[s] for s in chosen]
