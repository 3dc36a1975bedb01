# SPDX-License-Identifier: Apache-2.0
"""Slots: the places that read values outside of loops, and their read modes.

A *slot* is an input of an operation outside of loops, a tensor of a result, or a
segment sum, which reads all its summands. Few slots need an index for each row:

    in place           row i reads row i of one producer: an output, or the constants
    indexed            row i reads any value, by an index
    shared             row i reads what row i of an indexed slot reads, its twin
    summed             row i reads the sum of all values that are paired with i
    summed in place    the same, where value k of one producer is paired with row to[k]

A sum that is read once has no row of its own: the slot that reads it adds up. The mode
of a slot depends on the data, and is part of the capacity: a slot that was read in
place in all batches so far may be indexed from some batch on.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from jfold.base.memo import memoized
from jfold.program.components import (
    SUMMANDS,
    Place,
    components,
    makers_at,
    operand_types,
    outputs_of,
    phases,
    results_in,
    segment_sums,
    sources,
    type_at,
    union,
)
from jfold.program.operations import Operations, ProducerSet
from jfold.scheduling.spec import Capacity, Spec

TWINS = 3  # earlier slots that a slot is compared with
SUMS = 4  # slots that may add up values of one producer in place


class ReadMode(enum.Enum):
    """A way to read a value outside of loops."""

    IN_PLACE = enum.auto()
    INDEXED = enum.auto()
    SHARED = enum.auto()
    SUMMED = enum.auto()
    SUMMED_IN_PLACE = enum.auto()
    UNREAD = enum.auto()  # of a segment sum without rows, which its readers add up

    @property
    def adds(self) -> bool:
        """Return whether values are added up where they are read."""
        return self in (ReadMode.SUMMED, ReadMode.SUMMED_IN_PLACE)


@dataclass(frozen=True)
class SumGroup:
    """Segment sums of which all have rows, or none: linked, or read by one slot.

    Attributes:
      operations: the operations that the sums are recorded as, in increasing order.
      needs_rows: whether the sums have rows in every batch: if loops read them, or if
        they are of several kinds (sums and maxima).
    """

    operations: tuple[int, ...]
    needs_rows: bool


@dataclass(frozen=True)
class Slot:
    """A reader outside of loops: an operation's input, a result's tensor, or a sum.

    Attributes:
      part: the producer that it may read in place, as an index in `value_parts`; `None`
        if it may read outputs of loops, of several operations, or of sums with rows.
      group: the segment sums that it may read, or is one of; `None` if there are none.
      combines: how it adds up: the `Operation.combines` of sums; '' without sums.
    """

    part: int | None
    group: SumGroup | None
    combines: str


@memoized
def sum_groups(program: Operations) -> tuple[SumGroup, ...]:
    """Divide the segment sums of a program into groups."""
    sums, outputs = segment_sums(program), outputs_of(program)
    groups = [{*operations} for operations in sum_components(program)]
    tables = enumerate((*sources(program).inputs, *sources(program).results))
    for table, makers in ((table, x) for table, columns in tables for x in columns):
        read = {o for o in sums if outputs[o] & makers}
        joined = [x for x in groups if read & x or (read and table in x)]
        if len(joined) > 1:
            groups = [x for x in groups if x not in joined] + [set().union(*joined)]
    entering = phases(program).entering
    result = []
    for group in sorted(map(sorted, groups)):
        kinds = {program.operations[o].combines for o in group}
        enters = any(outputs[o] & entering for o in group)
        result.append(SumGroup((*group,), enters or len(kinds) > 1))
    return tuple(result)


@memoized
def slots(program: Operations) -> dict[Place, Slot]:
    """Map places to slots: inputs of operations outside of loops, tensors of results.

    Behind them are segment sums, in place of their inputs. Empty for programs that run
    in loops alone.
    """
    if not has_slots(program):
        return {}
    sums, groups = segment_sums(program), sum_groups(program)
    producers, outputs = sources(program), outputs_of(program)
    of_group = {o: group for group in groups for o in group.operations}
    # Sums may have no rows, so they cannot be read in place.
    elsewhere = phases(program).looped | union(outputs[o] for o in sums)

    def slot(t: int, makers: ProducerSet, inside: tuple[int, ...]) -> Slot:
        """Make a slot of values by `makers`, where sums `inside` are flattened."""
        read = (of_group[o] for o in sums if outputs[o] & makers or o in inside)
        group = next(read, None)
        inside = inside or (group.operations if group else ())
        makers |= union(union(producers.inputs[o]) for o in inside)
        makers &= ~union(outputs[o] for o in inside)
        part = None
        if not makers & elsewhere and makers.bit_count() < 2:
            # `value_parts` has the constants of each type, then all outputs.
            part = len(program.types) + next(results_in(makers)) if makers else t
        return Slot(
            part, group, program.operations[inside[0]].combines if inside else ''
        )

    result: dict[Place, Slot] = {}
    makers = producers.inputs + producers.results
    for table, columns in enumerate(zip(operand_types(program), makers, strict=True)):
        is_looped = table < len(outputs) and table not in program.applied
        if not is_looped and table not in sums:
            for column, (t, may) in enumerate(zip(*columns, strict=True)):
                result[table, column] = slot(t, may, ())
    for operations in sum_components(program):
        (t,) = program.operations[operations[0]].outputs
        result[operations[0], SUMMANDS] = slot(t, 0, operations)
    # A slot needs a target for each value of its part, though other slots add them up.
    adding = Counter(x.part for place, x in result.items() if x.group and place[1] >= 0)
    return {
        place: replace(x, part=None) if x.group and adding[x.part] > SUMS else x
        for place, x in result.items()
    }


@memoized
def twins(program: Operations) -> tuple[tuple[Place, Place], ...]:
    """Return pairs of slots, the later one first, that may read the same rows.

    These are slots of the same producers; of constants and sums there are no pairs.
    """
    pairs, alike = [], defaultdict[tuple[int, ProducerSet], list[Place]](list)
    for place, slot in slots(program).items():
        if slot.group is None and (makers := makers_at(program, place)):
            earlier = alike[type_at(program, place), makers]
            pairs += [(place, twin) for twin in earlier[-TWINS:]]
            earlier.append(place)
    return tuple(pairs)


def sum_components(program: Operations) -> Iterator[tuple[int, ...]]:
    """Yield the operations of each component of segment sums, in topological order."""
    sums = segment_sums(program)
    parts = (part.operations for part in components(program))
    return (operations for operations in parts if sums.issuperset(operations))


def has_slots(program: Operations) -> bool:
    """Return whether an operation runs outside of loops, or there are no loops."""
    return bool(program.applied) or not program.has_loops


def with_slots(program: Operations, capacity: Capacity) -> Capacity:
    """Complete a capacity's numbers of slots; set those that do not count.

    If the capacity has numbers for another count of slots, all slots are indexed, and
    all sums have rows. Slots without a `part` are indexed, and those that read sums
    with rows.
    """
    places, indexed = slots(program), capacity.indexed
    summands, sum_rows, apart = capacity.summands, capacity.sum_rows, capacity.apart
    counts = [*map(len, (indexed, summands, sum_rows, apart))]
    if counts != [len(places)] * 3 + [len(twins(program))]:
        indexed, summands = (1,) * len(places), (0,) * len(places)
        sum_rows = tuple(int(slot.group is not None) for slot in places.values())
        apart = (1,) * len(twins(program))
    # Of a group all sums have rows, or none.
    having = {x.group for x, n in zip(places.values(), sum_rows, strict=True) if n}
    having |= {group for group in sum_groups(program) if group.needs_rows}
    sum_rows = tuple(int(x.group in having and bool(x.group)) for x in places.values())
    by_index = [
        slot.part is None or (has_rows and place[1] != SUMMANDS)
        for (place, slot), has_rows in zip(places.items(), sum_rows, strict=True)
    ]
    return replace(
        capacity,
        indexed=tuple(1 if x else n for x, n in zip(by_index, indexed, strict=True)),
        summands=tuple(
            0 if has_rows else n for n, has_rows in zip(summands, sum_rows, strict=True)
        ),
        sum_rows=sum_rows,
        apart=apart,
    )


@memoized
def read_modes(spec: Spec) -> dict[Place, ReadMode]:
    """Return how each slot reads its values, in the order of `slots`."""
    places, capacity = slots(spec.program), with_slots(spec.program, spec.capacity)
    shared, result = shared_reads(spec), {}
    numbers = zip(capacity.indexed, capacity.sum_rows, strict=True)
    for (place, slot), (indexed, has_rows) in zip(places.items(), numbers, strict=True):
        mode = ReadMode.INDEXED if indexed else ReadMode.IN_PLACE
        is_sum = place[1] == SUMMANDS
        # Sums that have rows are added up there, others by the slots that read them.
        if is_sum and not has_rows:
            mode = ReadMode.UNREAD
        elif slot.group and is_sum == bool(has_rows):
            mode = ReadMode.SUMMED if indexed else ReadMode.SUMMED_IN_PLACE
        elif place in shared:
            mode = ReadMode.SHARED
        result[place] = mode
    return result


@memoized
def shared_reads(spec: Spec) -> dict[Place, Place]:
    """Map slots that read what another indexed slot reads, row by row, to that slot."""
    capacity = with_slots(spec.program, spec.capacity)
    indexed = dict(zip(slots(spec.program), capacity.indexed, strict=True))
    result: dict[Place, Place] = {}
    for (place, twin), apart in zip(twins(spec.program), capacity.apart, strict=True):
        if indexed[place] and indexed[twin] and not apart:
            result.setdefault(place, result.get(twin, twin))
    return result


def mode_at(spec: Spec, place: Place) -> ReadMode:
    """Return how a place reads values: by index if it is no slot."""
    return read_modes(spec).get(place, ReadMode.INDEXED)
