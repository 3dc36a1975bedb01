# SPDX-License-Identifier: Apache-2.0
"""A trace: nodes collected while the host plan runs, and put in order at its end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from jfold.graph import (
    NO_NUMBERS,
    Graph,
    Numbering,
    Table,
    concatenated,
    first_of,
    gather,
    number_values,
    ranges,
    shared_counts,
    value_parts,
)
from jfold.host.row_order import RowOrder, example_of, example_places, row_order
from jfold.host.visits import Visits, Within, order_of
from jfold.instructions import Call, Observe
from jfold.kept import kept
from jfold.program import Program
from jfold.recurrence import are_recurrent, component_of
from jfold.result_tables import Making

Array = np.ndarray[Any, Any]

# ---- tracing -------------------------------------------------------------------------

LEVEL_BITS = 40


@kept
def _bases(program: Program) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Per operation, the height below all of its nodes, and whether it is recurrent."""
    of = component_of(program)
    return tuple(c << LEVEL_BITS for c in of), are_recurrent(program)


class Chunk(NamedTuple):
    """Rows that were made at once: constants of a type, nodes, or rows of a result.

    Attributes:
      places: [rows] int64.
      ids: per value that a row makes [rows] int32.
      columns: of constants their values [rows, ...]; else value ids [rows], behind the
        heights [rows] of nodes.
    """

    places: Array
    ids: tuple[Array, ...]
    columns: tuple[Array, ...]


@dataclass(frozen=True, eq=False)
class Made:
    """What was made, by number of type, operation and result."""

    constants: list[list[Chunk]]
    nodes: list[list[Chunk]]
    results: list[list[Chunk]]


class Placing(Protocol):
    """How places are told, and so the order of rows."""

    def begin(self) -> Array:
        """The places [examples] of the examples."""

    def placed(self, places: Array) -> Array:
        """The places [rows] that were meant, if others stood in for them [rows]."""

    def sorting(self, places: Array) -> tuple[Array | None, Array]:
        """The order of rows at places [rows], `None` if they are in order; and where
        those of each example begin [examples + 1]."""

    def row_numbers(self, visits: Visits) -> list[Array]:
        """The numbers of the rows of each event that is of rows."""


@dataclass(eq=False)
class KnownPlaces:
    """Places that are known as soon as there is something at them."""

    order: RowOrder
    examples: int
    visits: Visits | None

    def begin(self) -> Array:
        places = example_places(self.examples)
        return places if self.visits is None else self.visits.new(places)

    def placed(self, places: Array) -> Array:
        return places

    def sorting(self, places: Array) -> tuple[Array | None, Array]:
        order = self.order.order(places, self.examples)
        return order, first_rows(example_of(places), self.examples)

    def row_numbers(self, visits: Visits) -> list[Array]:
        return visits.rows((0, self.examples))


class Opening(Protocol):
    """What leaves something open of nodes, until all are made."""

    def height(self, trace: Trace, o: int, inputs: Sequence[Array], rows: int) -> Array:
        """The heights [rows] of new nodes, of inputs [rows] each, as far as known."""

    def settle(self, trace: Trace, outputs: list[Array]) -> list[Array]:
        """Fills in what was left open; the outputs, in which nothing is."""


class Trace:
    """Collects nodes while the host plan runs.

    Values get an *id* per type in the order in which they are made, since how many
    constants and nodes there will be is not known yet; `graph` turns ids into numbers.

    Attributes:
      placing: how places are told; all are known, if nothing else is said.
      tokens: what stands in for ids that are not known yet, if anything does.
      tentative: whether examples may be read again, by another trace.
      values: those of each type.
      made: all chunks.
      shared: [constants] int32, the ids of the program's constants.
      order: what tells rows of an example apart, and puts them in order.
      visits: what orders rows of metrics, if there are any: then the numbers of visits
        stand in for places in a plan.
      labels: by result, those of its rows as they were added.
      sorts: by the id of places, the places and how rows there are sorted; tables
        often have theirs at the same ones, as leaves and what is made of them.
    """

    def __init__(
        self,
        program: Program,
        examples: int,
        *,
        placing: Callable[[KnownPlaces], Placing] = lambda known: known,
        tokens: Opening | None = None,
        tentative: bool = False,
    ) -> None:
        self.program = program
        self.examples = examples
        self.tokens, self.tentative = tokens, tentative
        self.values = [_Values(count) for count in shared_counts(program)]
        self.made = Made(
            [[] for _ in program.types],
            [[] for _ in program.operations],
            [[] for _ in program.results],
        )
        self.labels: dict[int, Any] = {r: [] for r in program.labelled}
        self.shared = _shared_ids(program)
        self.bases, self.recurrent = _bases(program)
        self.order = row_order(program)
        self.visits = Visits(self.order) if program.visited_results else None
        self.sorts: dict[int, tuple[Array, Array | None, Array]] = {}
        self.placing = placing(KnownPlaces(self.order, examples, self.visits))

    def entered(self, places: Array, moment: int) -> Array:
        """The places [n] of items of a body that starts at a moment."""
        return (self.visits or self.order).entered(places, moment)

    def inside(
        self, i: Within, places: Array, items: Callable[[], Array] | None = None
    ) -> Array:
        """The places [n] that an instruction leads to from others [n]."""
        if self.visits is not None:
            return self.visits.inside(i, places, items)
        return self.order.inside(places, i.way, items)

    def at(self, way: int, places: Array) -> Array:
        """The places [rows] at which rows are made."""
        known = places if self.visits is None else self.visits.of(places)
        return self.order.inside(known, way) if way else known

    def ask(self, call: Call, key: Hashable, places: Array, numbers: Array) -> None:
        """Says that a call at places [n] is on objects with numbers [n]; all calls with
        the same key share what they give."""
        if self.visits is not None and call.visit is not None:
            self.visits.ask(key, places, numbers)

    def constants(self, t: int, places: Array, values: Array) -> Array:
        """Ids [n] for constants [n, *shape] of type `t`."""
        ids = self.values[t].new(len(values))
        self.made.constants[t].append(Chunk(places, (ids,), (values,)))
        return ids

    def apply(self, o: int, places: Array, inputs: list[Array]) -> list[Array]:
        """Ids [n] of each output for new nodes at places [n], of inputs [n] each."""
        if self.tokens is None:
            height = self.height(o, inputs, len(places))
        else:
            height = self.tokens.height(self, o, inputs, len(places))
        types = self.program.operations[o].outputs
        made = [self.values[t].new(len(places), height) for t in types]
        self.made.nodes[o].append(Chunk(places, tuple(made), (height, *inputs)))
        return made

    def height(self, o: int, inputs: Sequence[Array], rows: int) -> Array:
        """The heights [rows] of new nodes, of inputs [rows] each."""
        base = self.bases[o]
        # What runs once has level 1, whatever it reads; the upper bits of a height tell
        # the component, so what is below `base` is of earlier ones and does not count.
        if not self.recurrent[o]:
            return np.full(rows, base + 1)
        types = self.program.operations[o].inputs
        result: Array = gather(self.values[types[0]].heights, inputs[0])
        for t, ids in zip(types[1:], inputs[1:], strict=True):
            np.maximum(result, gather(self.values[t].heights, ids), out=result)
        np.maximum(result, base, out=result)
        result += 1
        return result

    def observe(self, i: Observe, places: Array, values: list[Array]) -> None:
        """Adds rows to a result, of values [rows] each."""
        if self.visits is None or i.visit is None:
            places = self.at(i.way, places)
        else:
            self.visits.observe(i.visit, i.result, places)
        self.made.results[i.result].append(Chunk(places, (), tuple(values)))

    def graph(self, outputs: list[Array]) -> Graph:
        """What was traced; `outputs` [examples] are the columns of the expression's own
        result."""
        if self.tokens is not None:
            outputs = self.tokens.settle(self, outputs)
        program, made = self.program, self.made
        constants = [
            self._sorted(chunks, (np.zeros((0, *type_.shape), type_.dtype),))
            for chunks, type_ in zip(made.constants, program.types, strict=True)
        ]
        nodes = [
            self._sorted(chunks, (NO_NUMBERS,) * (1 + len(operation.inputs)))
            for chunks, operation in zip(made.nodes, program.operations, strict=True)
        ]
        results = self._results(outputs)
        numbering, numbers = self._numbers(constants, nodes)
        pairs = zip(nodes, program.operations, strict=True)
        rows = zip(results, program.results, strict=True)
        labels = ((results[r].table.first, (x,)) for r, x in self.labels.items())
        return Graph(
            self.examples,
            tuple(x.table for x in constants),
            tuple(x.renumbered(numbers, o.inputs, heights=1) for x, o in pairs),
            tuple(x.renumbered(numbers, result.tensors) for x, result in rows),
            numbering,
            tuple(itertools.starmap(Table, labels)),
            fits=True,
        )

    def _results(self, outputs: list[Array]) -> list[_Sorted]:
        """The rows of each result; `outputs` [examples] are those of the expression's
        own."""
        collected = self._collected()
        return [
            collected[r] if r in collected else self._rows(r, outputs)
            for r in range(len(self.program.results))
        ]

    def _rows(self, r: int, outputs: list[Array]) -> _Sorted:
        """The rows of a result that come in the order of examples, and have to stay."""
        if self.program.results[r].kind.making is Making.RETURNED:
            return _Sorted(Table(np.arange(self.examples + 1), tuple(outputs)), [])
        ((places, _, columns),) = self.made.results[r]
        return _Sorted(Table(self._first(places), columns), [])

    def _collected(self) -> dict[int, _Sorted]:
        """By result the rows that are in the order of visits; so the labels."""
        if self.visits is None:
            return {}
        rows: dict[int, list[Array]] = {r: [] for r in self.program.visited_results}
        numbers = self.placing.row_numbers(self.visits)
        for r, of_event in zip(self.visits.results, numbers, strict=True):
            rows[r].append(of_event)
        total = sum(map(len, numbers))
        orders = {r: order_of(_all(x), total) for r, x in rows.items()}
        for r, labels in self.labels.items():
            self.labels[r] = np.fromiter(labels, object, len(labels))[orders[r]]
        return {r: self._in_order(r, order) for r, order in orders.items()}

    def _in_order(self, r: int, order: Array) -> _Sorted:
        """The rows [rows] of a metric in an order [rows]."""
        chunks = self.made.results[r]
        if not chunks:
            columns = (NO_NUMBERS,) * len(self.program.results[r].tensors)
            return _Sorted(Table(np.zeros(self.examples + 1, np.int64), columns), [])
        places, _, columns = zip(*chunks, strict=True)
        moved = [concatenated(x)[order] for x in zip(*columns, strict=True)]
        first = self._first(self.at(0, concatenated(places)))
        return _Sorted(Table(first, tuple(moved)), [])

    def _sorted(self, chunks: list[Chunk], none: tuple[Array, ...]) -> _Sorted:
        """Rows by example, in each in an order that no other example changes."""
        if not chunks:
            return _Sorted(Table(np.zeros(self.examples + 1, np.int64), none), [])
        places, ids, columns = chunks[0] if len(chunks) == 1 else _together(chunks)
        order, first = self.sort(places)
        if order is None:
            return _Sorted(Table(first, columns), list(ids), len(chunks) == 1)
        moved = tuple(x[order] for x in columns)
        return _Sorted(Table(first, moved), [x[order] for x in ids])

    def sort(self, places: Array) -> tuple[Array | None, Array]:
        """The order of rows at places [rows], `None` if they are in order; and where
        those of each example begin [examples + 1]."""
        if id(places) not in self.sorts:
            # Which keeps the places alive, and so their id theirs.
            self.sorts[id(places)] = places, *self.placing.sorting(places)
        _, order, first = self.sorts[id(places)]
        return order, first

    def _first(self, places: Array) -> Array:
        """Where the rows of each example begin [examples + 1], of rows at places [rows]
        that are in order."""
        return first_rows(example_of(self.placing.placed(places)), self.examples)

    def _numbers(
        self, constants: list[_Sorted], nodes: list[_Sorted]
    ) -> tuple[Numbering, list[Array | None]]:
        """How values are numbered; per type, the number of each id, `None` if they are
        the same, as those of small examples often are."""
        sources = constants + nodes
        tables = [source.table for source in sources]
        numbering, begins = number_values(self.program, self.examples, tables)
        parts = [
            (t, sources[table], output, begin)
            for (t, table, output), begin in zip(
                value_parts(self.program), begins, strict=True
            )
            if sources[table].ids
        ]
        # With one example, ids are numbers where each table was made at once: nothing
        # has to be looked up again.
        other = {
            t
            for t, source, output, begin in parts
            if self.examples != 1 or not source.begins(output, begin[0])
        }
        numbers = [
            np.arange(x.count, dtype=np.int32) if t in other else None
            for t, x in enumerate(self.values)
        ]
        for t, source, output, begin in parts:
            of_type = numbers[t]
            if of_type is not None:
                rows = ranges(begin, source.table.counts, source.table.first)
                # Of one type with what they are written to: NumPy is twice as fast.
                of_type[source.ids[output].astype(np.intp)] = rows.astype(np.int32)
        return numbering, numbers


def first_rows(owners: Array, examples: int) -> Array:
    """Where the rows of each example begin [examples + 1], of the examples [rows] that
    rows are in."""
    if examples == 1:
        return np.array([0, len(owners)])
    return first_of(np.bincount(owners, minlength=examples))


def _together(chunks: Sequence[Chunk]) -> Chunk:
    """The rows of several chunks, one behind the other."""
    places, ids, columns = zip(*chunks, strict=True)
    return Chunk(
        concatenated(places),
        tuple(map(concatenated, zip(*ids, strict=True))),
        tuple(map(concatenated, zip(*columns, strict=True))),
    )


def _all(parts: Sequence[Array]) -> Array:
    return np.concatenate([np.zeros(0, np.int64), *parts])


class _Sorted(NamedTuple):
    """A table whose columns still hold ids, and the ids of what its rows make."""

    table: Table
    ids: list[Array]
    as_made: bool = False  # at once, and in this order

    def begins(self, output: int, id_: int) -> bool:
        """Whether ids follow one another from the given one on."""
        ids = self.ids[output]
        return self.as_made and (not len(ids) or int(ids[0]) == id_)

    def renumbered(
        self, numbers: list[Array | None], types: Sequence[int], heights: int = 0
    ) -> Table:
        """The table with numbers for ids and, in the first columns, levels for
        heights, of which they are the lower bits."""
        columns = self.table.columns
        levels = [x.astype(np.int32) for x in columns[:heights]]
        ids = zip(types, columns[heights:], strict=True)
        made = [_numbered(numbers[t], x) for t, x in ids]
        return Table(self.table.first, (*levels, *made))


def _numbered(numbers: Array | None, ids: Array) -> Array:
    return ids if numbers is None else gather(numbers, ids)


@kept
def _shared_ids(program: Program) -> Array:
    """[constants] int32: the place of each among the program's constants of its type,
    which come first among the values."""
    places = [itertools.count() for _ in program.types]
    return np.array([next(places[t]) for t, _ in program.constants], np.int32)


class _Values:
    """The values of one type, with the height of each.

    A height is a level, above all those of the components before: the number of the
    component in the upper bits. Constants have height 0.
    """

    def __init__(self, shared: int) -> None:
        self.heights = np.zeros(max(256, shared), np.int64)
        self.count = shared

    def new(self, size: int, height: Array | None = None) -> Array:
        """Ids for `size` new values."""
        first, self.count = self.count, self.count + size
        if self.count > len(self.heights):
            grown = np.zeros(2 * self.count, np.int64)
            grown[:first] = self.heights[:first]
            self.heights = grown
        if height is not None:  # those of constants are zeros already
            self.heights[first : self.count] = height
        return np.arange(first, self.count, dtype=np.int32)
