# SPDX-License-Identifier: Apache-2.0
"""Slots: the places that read values outside of loops, and their read modes.

A *slot* is an input of an operation outside of loops, or a tensor of a result. Few
slots need an index for each of their rows:

    in place   row i reads row i of the output of one operation, or of the constants
    summed     row i reads the sum of all values that are paired with i: a sum that is
               read once has no row of its own
    indexed    row i reads any value, by an index

The mode of a slot depends on the data, and is part of the capacity: a slot that was
read in place in all batches so far may be indexed from some batch on.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from jfold.base.memo import memoized
from jfold.program.components import (
    Place,
    first_results,
    operand_types,
    phases,
    results_in,
    segment_sums,
    sources,
)
from jfold.program.operations import Operations
from jfold.scheduling.spec import Capacity, Spec


class ReadMode(enum.Enum):
    """A way to read a value outside of loops."""

    IN_PLACE = enum.auto()
    SUMMED = enum.auto()
    INDEXED = enum.auto()


@dataclass(frozen=True)
class Slot:
    """A reader outside of loops: an operation's input, or a tensor of a result.

    Attributes:
      part: the producer that it may read in place, as an index in `value_parts`; `None`
        if it may read outputs of loops, of several operations, or of sums.
      combines: the `Operation.combines` (add, maximum, ...) of the segment sums that
        it may read; '' if it may read none.
    """

    part: int | None
    combines: str


@memoized
def sums_need_rows(program: Operations) -> bool:
    """Return whether segment sums need buffer rows of their own in every batch.

    They do if loops read them, if one operand may read segment sums of several kinds
    (sums and maxima), or if a segment sum may read one of another kind.
    """
    sums, first = segment_sums(program), first_results(program)
    kinds = {first[o]: program.operations[o].combines for o in sums}
    if any(n in kinds for n in results_in(phases(program).entering)):
        return True
    for o, columns in enumerate((*sources(program).inputs, *sources(program).results)):
        for makers in columns:
            read = {kinds[n] for n in results_in(makers) if n in kinds}
            if len(read | ({kinds[first[o]]} if o in sums and read else set())) > 1:
                return True
    return False


@memoized
def slots(program: Operations) -> dict[Place, Slot]:
    """Map places to slots: inputs of operations outside of loops, tensors of results.

    Inputs of `segment_sums` are left out. Empty for programs that run in loops alone.
    """
    result: dict[Place, Slot] = {}
    if not has_slots(program):
        return result
    producers, sums = sources(program), segment_sums(program)
    first, operations = first_results(program), len(program.operations)
    of_sums = sum(1 << first[o] for o in sums)
    combines = {first[o]: program.operations[o].combines for o in sums}
    # Outputs of sums may have no rows, so they cannot be read in place.
    elsewhere = of_sums | phases(program).looped
    makers = producers.inputs + producers.results
    for table, columns in enumerate(zip(operand_types(program), makers, strict=True)):
        if table in sums or (table < operations and table not in program.applied):
            continue
        for column, (t, may) in enumerate(zip(*columns, strict=True)):
            part = None
            if not may & elsewhere and may.bit_count() < 2:
                # `value_parts` has the constants of each type, then all outputs.
                part = len(program.types) + next(results_in(may)) if may else t
            kinds = {combines[n] for n in results_in(may & of_sums)}
            result[table, column] = Slot(part, min(kinds, default=''))
    return result


def has_slots(program: Operations) -> bool:
    """Return whether an operation runs outside of loops, or there are no loops."""
    return bool(program.applied) or not program.has_loops


def with_slots(program: Operations, capacity: Capacity) -> Capacity:
    """Complete a capacity's `indexed` and `summands` to one number per slot.

    If the capacity has numbers for another count of slots, all slots are indexed. Slots
    without a `part` always are.
    """
    places, indexed = slots(program).values(), capacity.indexed
    summands = capacity.summands
    none, sums_have_rows = (0,) * len(places), capacity.sum_rows
    if not len(places) == len(indexed) == len(summands):
        indexed, summands = (1,) * len(places), none
        sums_have_rows = int(has_slots(program))
    pairs = zip(places, indexed, strict=True)
    return replace(
        capacity,
        indexed=tuple(1 if slot.part is None else number for slot, number in pairs),
        summands=none if sums_have_rows else summands,
        sum_rows=sums_have_rows,
    )


@memoized
def read_modes(spec: Spec) -> dict[Place, ReadMode]:
    """Return how each slot reads its values, in the order of `slots`."""
    places, capacity = slots(spec.program), spec.capacity
    if not capacity.indexed:
        return dict.fromkeys(places, ReadMode.INDEXED)
    of_sums = ReadMode.INDEXED if capacity.sum_rows else ReadMode.SUMMED
    modes = [of_sums if x.combines else ReadMode.INDEXED for x in places.values()]
    triples = zip(places, modes, capacity.indexed, strict=True)
    return {
        place: mode if indexed else ReadMode.IN_PLACE
        for place, mode, indexed in triples
    }


def mode_at(spec: Spec, place: Place) -> ReadMode:
    """Return how a place reads values: by index if it is no slot."""
    return read_modes(spec).get(place, ReadMode.INDEXED)


def sums_have_rows(spec: Spec) -> bool:
    """Return whether buffers hold segment sums, else each reader computes them."""
    return ReadMode.SUMMED not in read_modes(spec).values()
