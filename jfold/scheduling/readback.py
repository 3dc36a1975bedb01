# SPDX-License-Identifier: Apache-2.0
"""The nodes of an example, read back from the arrays of a schedule, for pictures.

It is the inverse of `fill`, row by row. A node is one application of an operation;
`part` is a schedule without shards, one of `Schedule.parts`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from jfold.graph import Array, shared_counts, value_parts
from jfold.program.components import SUMMANDS, Place, component_of
from jfold.scheduling.layout import layout
from jfold.scheduling.read_modes import ReadMode, mode_at, shared_reads, slots
from jfold.scheduling.schedule import Schedule

Node: TypeAlias = tuple[int, int]  # (operation, row); for a constant (~type, row)


def level_of(part: Schedule, node: Node) -> int:
    """Return a node's level plus the depths of earlier components; 0 for constants."""
    o, row = node
    if o < 0:
        return 0
    c, depths = component_of(part.spec.program)[o], part.depths
    table = part.sections.tiles[c].of(_indices(part))
    ends = table[: depths[c], layout(part.spec).column[o] + 1]
    return int(depths[:c].sum() + 1 + np.searchsorted(ends, row, 'right'))


def nodes_of_result(part: Schedule, r: int, example: int) -> Iterator[Node]:
    """Yield the nodes and constants that result `r` returns for one example."""
    program, rows = part.spec.program, np.array([example])
    if program.results[r].kind.is_counted:
        rows = np.flatnonzero(part.sections.owners[r].of(_indices(part)) == example)
    for row in rows.tolist():
        for j, t in enumerate(program.results[r].tensors):
            for value in _column(part, len(program.operations) + r, j, t, row):
                yield _maker(part, t, value)


def operands_of(part: Schedule, node: Node) -> Iterator[Node]:
    """Yield the nodes and constants that a node reads, in the order of its operands."""
    (o, row), spec = node, part.spec
    component, bases = component_of(spec.program), layout(spec).value_base
    inputs, c = spec.program.operations[o].inputs, component[o]
    place, sections = (component.index(c), SUMMANDS), part.sections
    if place in sections.reads:
        inside = [x for x, y in enumerate(component) if y == c]
        first = min(bases[x][0] for x in inside if spec.capacity.rows[x])
        values = _summands(part, place, inputs[0], bases[o][0] + row - first)
        yield from (_maker(part, inputs[0], x) for x in values)
        return
    for a, t in enumerate(inputs):
        yield from (_maker(part, t, x) for x in _column(part, o, a, t, row))


def _column(part: Schedule, table: int, a: int, t: int, row: int) -> list[int]:
    """Return the buffer rows that a node's input `a`, or a result's tensor `a`, reads.

    Args:
      table: the number of the operation; or of the result, behind all operations.
      t: the type number of the values that are read.
      row: the row of the node, or of the result.
    """
    mode, place = mode_at(part.spec, (table, a)), (table, a)
    if mode in (ReadMode.INDEXED, ReadMode.SHARED):
        place = shared_reads(part.spec).get(place, place)
        return [int(part.sections.reads[place].of(_indices(part))[row])]
    if mode.adds:
        return _summands(part, place, t, row)
    return [_in_place(part, place, t, row)]


def _summands(part: Schedule, place: Place, t: int, row: int) -> list[int]:
    """Return the buffer rows of type `t` that a row of a slot adds up."""
    sections, indices = part.sections, _indices(part)
    added = np.flatnonzero(sections.targets[place].of(indices) == row).tolist()
    if mode_at(part.spec, place) is ReadMode.SUMMED_IN_PLACE:
        return [_in_place(part, place, t, x) for x in added]
    values: list[int] = sections.reads[place].of(indices)[added].tolist()
    return values


def _in_place(part: Schedule, place: Place, t: int, row: int) -> int:
    """Return the buffer row, of type `t`, of value `row` of a slot's producer."""
    program = part.spec.program
    number = slots(program)[place].part
    assert number is not None
    _, maker, k = value_parts(program)[number]
    if maker < len(program.types):
        return shared_counts(program)[t] + row
    return layout(part.spec).value_base[maker - len(program.types)][k] + row


def _maker(part: Schedule, t: int, row: int) -> Node:
    """Return the node or constant whose value is row `row` of type `t`'s buffer."""
    places, operations = layout(part.spec), part.spec.program.operations
    if row >= part.spec.capacity.constants[t]:
        for o, bases in enumerate(places.value_base):
            for first, type_ in zip(bases, operations[o].outputs, strict=True):
                if type_ == t and first <= row < first + places.region[o]:
                    return o, row - first
    return ~t, row


def _indices(part: Schedule) -> Array:
    return np.asarray(part.indices)
