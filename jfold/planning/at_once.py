# SPDX-License-Identifier: Apache-2.0
"""Filling the arrays of a spec for a program without loops.

What examples read is known by references, whatever the batch; here it becomes rows, all
of it at once: a batch is a choice of examples, in some order.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jfold.graph import Array, Graph, Table, ranges, shared_counts, value_parts
from jfold.kept import kept
from jfold.planning.build import constants_of, write_owners
from jfold.planning.layout import layout, running
from jfold.planning.reads import Reads, Ways, make_reads
from jfold.planning.sections import NOWHERE, Section, Sections, summed_at_once
from jfold.planning.slots import Way, slots, sums_have_rows, ways
from jfold.planning.uses import Uses
from jfold.spec import Spec


class Target(NamedTuple):
    """Where a column of references is written.

    Attributes:
      before: what is taken off each row.
      spare: what spare places hold; -1 for the last row that there is.
    """

    section: Section
    before: int = 0
    spare: int = -1


@kept
def targets(spec: Spec) -> tuple[Target, ...]:
    """Of each column that `make_reads` gives, where it is written."""
    return tuple(_targets(spec, layout(spec).sections))


def _targets(spec: Spec, sections: Sections) -> Iterator[Target]:
    own, sums = sections.inputs + sections.results, sections.input_sums
    to = sums + sections.result_sums
    for slot, way in zip(slots(spec.program), ways(spec), strict=True):
        if way is not Way.IN_PLACE:
            yield Target(own[slot.table][slot.column])
        if way is Way.SUMMED:
            # Spare ones are added to a row that is not there.
            yield Target(to[slot.table][slot.column], spare=NOWHERE)
    for c, component in enumerate(running(spec)):
        if summed_at_once(spec, c) and sums_have_rows(spec):
            begin = _first_row(spec, component.operations)
            yield Target(sections.summands[c])
            yield Target(sections.sums_of[c], begin, NOWHERE)


def _first_row(spec: Spec, operations: Sequence[int]) -> int:
    return layout(spec).value_base[operations[0]][0] if operations else 0


@dataclass(frozen=True, eq=False)
class _Parts:
    """Where parts of the values begin.

    Attributes:
      table: [parts] the number of each one's table; that of none for constants of the
        program.
      base: [parts] the row of its first value.
    """

    table: Array
    base: Array


@kept
def _parts(spec: Spec) -> _Parts:
    """Those of values, then the program's constants, then the rows of tables."""
    program, bases = spec.program, layout(spec).value_base
    types, shared = len(program.types), shared_counts(program)
    tables = types + len(program.operations) + len(program.results)
    found = [
        (table, shared[t] if table < types else bases[table - types][k])
        for t, table, k in value_parts(program)
    ]
    found += [(tables, 0), *((table, 0) for table in range(types, tables))]
    return _Parts(*np.array(found, np.intp).T)


@dataclass(frozen=True, eq=False)
class Selection:
    """Examples that a batch is put together of.

    Attributes:
      graph: what they are chosen from.
      examples: [n] which of them, in order.
      reads: gives what those of the graph read, by the ways of slots.
    """

    graph: Graph
    examples: Array
    reads: Callable[[Ways], Reads]

    @property
    def labels(self) -> tuple[Table, ...]:
        """Of the examples."""
        return tuple(table.pick(self.examples) for table in self.graph.labels)


def every(uses: Uses) -> Selection:
    """All examples of a graph, given where they use values."""
    graph = uses.graph
    reads = functools.partial(make_reads, uses)
    return Selection(graph, np.arange(graph.examples), reads)


def fill(selection: Selection, spec: Spec) -> tuple[Array, tuple[Array, ...]]:
    """As `jfold.planning.build.fill`, of chosen examples."""
    sections, examples = layout(spec).sections, selection.examples
    indices = np.empty(sections.size, np.int32)
    reads = selection.reads(ways(spec))
    counts = reads.tables[:, examples]
    _write_counts(spec, counts, indices)
    _write_rows(spec, reads, examples, counts, indices)
    write_owners(spec, sections, [*counts[-len(sections.owners) :]], indices)
    constants = [table.pick(examples) for table in selection.graph.constants]
    return indices, constants_of(constants, spec)


# ---- how much there is ---------------------------------------------------------------


def _write_counts(spec: Spec, counts: Array, indices: Array) -> None:
    """Writes how many rows there are, all as one tile.

    Args:
      counts: of constants per type, operations and results [tables, n].
      indices: [size].
    """
    rows = counts[len(spec.program.types) :].sum(1)
    of_components = np.zeros(len(running(spec)), rows.dtype)
    components, operations, places = _tiles(spec)
    of_components[components[rows[operations] > 0]] = 1
    header = layout(spec).sections.header.whole
    header.write(indices, np.concatenate([of_components, rows, [1]]))
    indices[places] = 0
    indices[places + 1] = rows[operations]


@kept
def _tiles(spec: Spec) -> tuple[Array, Array, Array]:
    """Of the operations that run [n], their components, their numbers, and where the
    two numbers of their tiles are."""
    places = layout(spec)
    found = [
        (c, o, places.sections.tiles[c].start + places.column[o])
        for c, component in enumerate(running(spec))
        for o in component.operations
    ]
    components, operations, starts = np.array(found, np.intp).reshape(-1, 3).T
    return components, operations, starts


# ---- what is read --------------------------------------------------------------------


def _write_rows(
    spec: Spec, reads: Reads, examples: Array, counts: Array, indices: Array
) -> None:
    """Writes what some examples read.

    Args:
      examples: [n] which of them, in order.
      counts: [tables, n] the rows of their tables.
      indices: [size].
    """
    rows, ends = _rows(reads, examples, counts, spec), [0]
    ends += reads.counts[:, examples].sum(1).cumsum().tolist()
    columns = zip(targets(spec), itertools.pairwise(ends), strict=True)
    for (section, before, spare), (a, b) in columns:
        own = rows[a:b] - before if before else rows[a:b]
        last = own[-1] if b > a else 0
        section.fill(indices, own, last if spare < 0 else spare)


def _rows(reads: Reads, examples: Array, counts: Array, spec: Spec) -> Array:
    """The rows that references of some examples stand for, column by column [n]."""
    parts = _parts(spec)
    taken = reads.counts[:, examples].ravel()
    at = ranges(reads.begin[:, examples].ravel(), taken)
    # Where each part of each example begins [examples, parts].
    before = np.zeros((len(counts) + 1, len(examples)), np.intp)
    np.cumsum(counts[:, :-1], axis=1, out=before[:-1, 1:])
    begin = before.T[:, parts.table] + parts.base
    # One look-up, by example and part.
    first = np.arange(0, begin.size, begin.shape[1])
    place = np.tile(first, len(reads.counts)).repeat(taken)
    place += reads.part.take(at)
    rows: Array = begin.ravel().take(place)
    rows += reads.number.take(at)
    return rows
