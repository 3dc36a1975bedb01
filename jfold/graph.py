# SPDX-License-Identifier: Apache-2.0
"""The `Graph` of examples: for each operation, its nodes as rows of input values.

All of it is arrays, example by example, and what belongs to one example refers to that
example alone; so graphs can be kept, cut and put together without looking inside.

Values of one tensor type are numbered within their example: first the program's
constants, then the example's own, then the outputs of each operation in the program's
order, node by node. The graph of an example does not depend on what it was traced
together with: nodes of an operation, constants and values of a metric are in the order
of tracing where the data alone decides it, else in that of their *places*, numbers that
tell where in the example they arise.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jfold.components import component_of, components
from jfold.kept import kept
from jfold.objects import Reread
from jfold.program import Program, is_breadth_first

Array = np.ndarray[Any, Any]
_NONE = np.zeros(0, np.int32)


@dataclass(frozen=True, eq=False)
class Table:
    """Rows that belong to examples, one example after another.

    Attributes:
      first: [examples + 1] int64, where the rows of each example begin.
      columns: arrays [rows, ...].
    """

    first: Array
    columns: tuple[Array, ...]

    @functools.cached_property
    def counts(self) -> Array:
        """Rows per example [examples]."""
        return np.subtract(self.first[1:], self.first[:-1])

    def __len__(self) -> int:
        return int(self.first[-1])

    def pick(self, examples: Array) -> Table:
        """The rows of the given examples, in that order."""
        begin, counts = self.first[examples], self.counts[examples]
        first = _first(counts)
        rows = ranges(begin, counts, first)
        return Table(first, tuple(column.take(rows, 0) for column in self.columns))


@dataclass(frozen=True, eq=False)
class Graph:
    """What examples compute.

    Attributes:
      examples: how many there are.
      constants: per type, the examples' own; columns: values [rows, *shape].
      operations: per operation, its nodes; columns: levels [nodes], then per input the
        value numbers [nodes]. A level is 1 + the highest of those inputs that the
        node's own component makes, 1 if there are none. Nodes of a component do not
        depend on others of their level.
      outputs: per tensor of the result, the value numbers [examples].
      metrics: per metric; columns: per tensor the value numbers [rows].
    """

    examples: int
    constants: tuple[Table, ...]
    operations: tuple[Table, ...]
    outputs: tuple[Array, ...]
    metrics: tuple[Table, ...]
    _numbering: list[Numbering] = field(default_factory=list, init=False, repr=False)

    @property
    def levels(self) -> tuple[Array, ...]:
        """Per operation, the level of each node."""
        return tuple(table.columns[0] for table in self.operations)

    @property
    def nodes(self) -> int:
        """How many operations run."""
        return sum(map(len, self.operations))

    @property
    def depth(self) -> int:
        """The highest level of any component."""
        highest = [np.maximum.reduce(x, initial=0) for x in self.levels]
        return int(max(highest, default=0))

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables."""
        return self.constants + self.operations + self.metrics

    def pick(self, examples: Array) -> Graph:
        """The graph of the given examples, in that order."""
        return Graph(
            len(examples),
            tuple(table.pick(examples) for table in self.constants),
            tuple(table.pick(examples) for table in self.operations),
            tuple(values[examples] for values in self.outputs),
            tuple(table.pick(examples) for table in self.metrics),
        )

    def __str__(self) -> str:
        counts = ', '.join(str(len(x)) for x in self.operations)
        return f'Graph({self.examples} examples, nodes ({counts}), depth {self.depth})'


def concatenate(graphs: Sequence[Graph]) -> Graph:
    """The graph of all examples of several graphs of one program."""
    if len(graphs) == 1:
        return graphs[0]

    def joined(tables: Iterable[tuple[Table, ...]]) -> tuple[Table, ...]:
        return tuple(map(_join, zip(*tables, strict=True)))

    return Graph(
        sum(graph.examples for graph in graphs),
        joined(graph.constants for graph in graphs),
        joined(graph.operations for graph in graphs),
        tuple(
            np.concatenate(parts)
            for parts in zip(*(graph.outputs for graph in graphs), strict=True)
        ),
        joined(graph.metrics for graph in graphs),
    )


def _join(tables: Sequence[Table]) -> Table:
    counts = np.concatenate([table.counts for table in tables])
    columns = zip(*(table.columns for table in tables), strict=True)
    return Table(_first(counts), tuple(map(np.concatenate, columns)))


def _first(counts: Array) -> Array:
    first = np.zeros(len(counts) + 1, np.int64)
    counts.cumsum(out=first[1:])
    return first


def ranges(begin: Array, counts: Array, first: Array | None = None) -> Array:
    """`begin[i], begin[i] + 1, ...`, `counts[i]` of them, for each i."""
    if len(counts) == 1:
        return np.arange(begin[0], begin[0] + counts[0])
    first = _first(counts) if first is None else first
    return np.asarray((begin - first[:-1]).repeat(counts) + np.arange(first[-1]))


def gather(values: Array, ids: Array) -> Array:
    """Values at ids; with ids as wide as pointers, NumPy is several times as fast."""
    return np.asarray(values[ids.astype(np.intp, copy=False)])


def among_all(values: Array, first: Array, counts: Array) -> Array:
    """Numbers in examples as numbers among those of all.

    `first` [examples + 1] are those of each example's first, `counts` [examples] how
    many values are given of each.
    """
    return values if len(counts) == 1 else values + first[:-1].repeat(counts)


# ---- numbers of values ---------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Numbering:
    """The numbers of values when all examples of a graph stand one after another.

    Attributes:
      first: per type [examples + 1], the number of each example's first value.
      constants: per type [examples], of its first own constant.
      outputs: per operation and output [examples], of its first node's.
    """

    first: tuple[Array, ...]
    constants: tuple[Array, ...]
    outputs: tuple[tuple[Array, ...], ...]


def numbering(program: Program, graph: Graph) -> Numbering:
    """How the values of a graph are numbered; worked out once."""
    if not graph._numbering:
        tables = graph.constants + graph.operations
        found, _ = _number(program, graph.examples, tables)
        graph._numbering.append(found)
    return graph._numbering[0]


@kept
def _parts(program: Program) -> tuple[tuple[int, int, int], ...]:
    """Parts of the values, in order of their numbers: own constants, then outputs.

    Of each its type, the number of its table, constants first, and which output of the
    rows it is.
    """
    types = len(program.types)
    own = [(t, t, 0) for t in range(types)]
    return *own, *(
        (t, types + o, k)
        for o, operation in enumerate(program.operations)
        for k, t in enumerate(operation.outputs)
    )


def _number(
    program: Program, examples: int, tables: Sequence[Table]
) -> tuple[Numbering, list[Array]]:
    """The numbering, given the tables of constants and then those of operations.

    And of each part [examples] the number of its first value in its example.
    """
    zero = np.zeros(examples, np.int64)
    ends = [zero + count if count else zero for count in shared_counts(program)]
    begins = []
    for t, table, _ in _parts(program):
        begins.append(ends[t])
        ends[t] = ends[t] + tables[table].counts
    first = tuple(map(_first, ends))
    places = begins
    if examples != 1:
        of_parts = (first[t] for t, _, _ in _parts(program))
        places = [x + y[:-1] for x, y in zip(begins, of_parts, strict=True)]
    rest = iter(places)
    constants = tuple(itertools.islice(rest, len(program.types)))
    outputs = tuple(
        tuple(itertools.islice(rest, len(operation.outputs)))
        for operation in program.operations
    )
    return Numbering(first, constants, outputs), begins


@kept
def shared_counts(program: Program) -> tuple[int, ...]:
    """Per type, how many constants the program itself has."""
    counts = Counter(t for t, _ in program.constants)
    return tuple(counts[t] for t in range(len(program.types)))


# ---- places --------------------------------------------------------------------------

# The upper bits are the number of the example, the others a hash of the way to it.
# Nodes of one operation in one example share a hash once in 2**44 pairs; their order,
# and nothing else, may then depend on what else is traced.
WAY_BITS = 44
MAX_EXAMPLES = 1 << (63 - WAY_BITS)
_WAY = np.int64((1 << WAY_BITS) - 1)
_FACTOR, _STEP = 0x5851F42D4C957F2D, 0x14057B7EF767814F


def example_places(examples: int) -> Array:
    """The places [examples] of whole examples."""
    return np.arange(examples, dtype=np.int64) << WAY_BITS


def example_of(places: Array) -> Array:
    """The examples that places are in."""
    return places >> WAY_BITS


def inside(places: Array, way: int, items: Array | None = None) -> Array:
    """The places inside others: `way` tells how, `items` which item each is."""
    found = places * np.int64(_FACTOR)
    found += np.int64(way * _STEP & int(_WAY))
    if items is not None:
        found += items * np.int64(_FACTOR ^ _STEP)
    found &= _WAY
    found |= places & ~_WAY
    return found


def at_moment(places: Array, moment: int) -> Array:
    """The same examples with the number of a moment in place of a way."""
    return places & ~_WAY | np.int64(moment)


def moments(places: Array) -> Array:
    """The moments that `at_moment` gave."""
    return places & _WAY


# ---- tracing -------------------------------------------------------------------------

LEVEL_BITS = 40


@kept
def _bases(program: Program) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Per operation, the height below all of its nodes, and whether it is recurrent."""
    of = component_of(program)
    recurrent = [each.recurrent for each in components(program)]
    return tuple(c << LEVEL_BITS for c in of), tuple(recurrent[c] for c in of)


class Trace:
    """Collects nodes while the host plan runs.

    What is collected comes in chunks. Of a program that is `by_moment`, places tell the
    moment of their frame, a number that grows with the depth of the data, and no way.

    Values get an *id* per type in the order in which they are made, since how many
    constants and nodes there will be is not known yet; `graph` turns ids into numbers.

    Attributes:
      tentative: whether examples may be read again, by another trace.
      reread: what has been read of the data that can be read once, for other traces.
    """

    tentative = False

    def __init__(
        self, program: Program, examples: int, reread: Reread | None = None
    ) -> None:
        self.program = program
        self.examples = examples
        self.reread = Reread() if reread is None else reread
        self._values = [_Values(count) for count in shared_counts(program)]
        self._constants: list[list[Any]] = [[] for _ in program.types]
        self._nodes: list[list[Any]] = [[] for _ in program.operations]
        self._metrics: list[list[Any]] = [[] for _ in program.metrics]
        self._shared = _shared_ids(program)
        self.bases, self.recurrent = _bases(program)
        self.by_moment = is_breadth_first(program)

    def inside(
        self, places: Array, way: int, items: Callable[[], Array] | None = None
    ) -> Array:
        """`inside` of places, where more than their examples is ever looked at."""
        if self.by_moment:
            return places
        return inside(places, way, None if items is None else items())

    def constants(self, t: int, places: Array, values: Array) -> Array:
        """Ids [n] for constants [n, *shape] of type `t`."""
        ids = self._values[t].new(len(values))
        self._constants[t].append((places, [ids], values))
        return ids

    def shared_constant(self, index: int) -> int:
        """The id of one of the program's constants."""
        return self._shared[index]

    def apply(self, o: int, places: Array, inputs: list[Array]) -> list[Array]:
        """Ids of each output for new nodes with the given places and inputs."""
        return self._add(o, places, inputs, self._height(o, inputs, len(places)))

    def _add(
        self, o: int, places: Array, inputs: list[Array], height: Array
    ) -> list[Array]:
        types = self.program.operations[o].outputs
        made = [self._values[t].new(len(places), height) for t in types]
        self._nodes[o].append([places, made, height, *inputs])
        return made

    def _height(self, o: int, inputs: Sequence[Array], rows: int) -> Array:
        """The heights of new nodes."""
        base = self.bases[o]
        if not self.recurrent[o]:
            return np.full(rows, base + 1)
        types = self.program.operations[o].inputs
        result: Array = gather(self._values[types[0]].heights, inputs[0])
        for t, ids in zip(types[1:], inputs[1:], strict=True):
            np.maximum(result, gather(self._values[t].heights, ids), out=result)
        np.maximum(result, base, out=result)
        result += 1
        return result

    def observe(self, metric: int, places: Array, values: list[Array]) -> None:
        """Records values of a metric."""
        self._metrics[metric].append([places, [], *values])

    def graph(self, outputs: list[Array]) -> Graph:
        """What was traced."""
        program = self.program
        constants = [
            self._sorted(chunks, (np.zeros((0, *type_.shape), type_.dtype),))
            for chunks, type_ in zip(self._constants, program.types, strict=True)
        ]
        nodes = [
            self._sorted(chunks, (_NONE,) * (1 + len(operation.inputs)))
            for chunks, operation in zip(self._nodes, program.operations, strict=True)
        ]
        observed = [
            self._sorted(chunks, (_NONE,) * len(types))
            for chunks, (_, _, types) in zip(
                self._metrics, program.metrics, strict=True
            )
        ]
        numbering, numbers = self._numbers(constants, nodes)
        graph = Graph(
            self.examples,
            tuple(x.table for x in constants),
            tuple(
                x.renumbered(numbers, operation.inputs, heights=1)
                for x, operation in zip(nodes, program.operations, strict=True)
            ),
            tuple(
                _numbered(numbers[t], x)
                for t, x in zip(program.output_types, outputs, strict=True)
            ),
            tuple(
                x.renumbered(numbers, types)
                for x, (_, _, types) in zip(observed, program.metrics, strict=True)
            ),
        )
        graph._numbering.append(numbering)
        return graph

    def _sorted(self, chunks: list[Any], none: tuple[Array, ...]) -> _Sorted:
        """Rows by example, in each in an order that no other example changes."""
        if not chunks:
            return _Sorted(Table(np.zeros(self.examples + 1, np.int64), none), [])
        places, ids, *columns = zip(*chunks, strict=True)
        joined = self._placed(places)
        order = self._order(joined)

        def sorted_(parts: Sequence[Array]) -> Array:
            return concatenated(parts) if order is None else concatenated(parts)[order]

        made = [sorted_(x) for x in zip(*ids, strict=True)]
        table = Table(self._first(joined), tuple(map(sorted_, columns)))
        return _Sorted(table, made, len(chunks) == 1 and order is None)

    def _placed(self, chunks: Sequence[Array]) -> Array:
        """The places of all rows, given in chunks."""
        return concatenated(chunks)

    def _first(self, places: Array) -> Array:
        """Where the rows of each example begin."""
        if self.examples == 1:
            return np.array([0, len(places)])
        return _first(np.bincount(example_of(places), minlength=self.examples))

    def _order(self, places: Array) -> Array | None:
        """The order of rows, by example first; `None` if they are in order."""
        if not self.by_moment:
            return places.argsort()
        if self.examples == 1:  # then places are moments
            return stable_order(places)
        order = stable_order(moments(places))
        examples = example_of(places)
        outer = stable_order(examples if order is None else examples[order])
        return outer if order is None else order if outer is None else order[outer]

    def _numbers(
        self, constants: list[_Sorted], nodes: list[_Sorted]
    ) -> tuple[Numbering, list[Array | None]]:
        """How values are numbered; per type, the number of each id, `None` if they are
        the same, as those of small examples often are."""
        sources = constants + nodes
        tables = [source.table for source in sources]
        numbering, begins = _number(self.program, self.examples, tables)
        parts = [
            (t, sources[table], output, begin)
            for (t, table, output), begin in zip(
                _parts(self.program), begins, strict=True
            )
            if sources[table].ids
        ]
        other = {
            t
            for t, source, output, begin in parts
            if self.examples != 1 or not source.begins(output, begin[0])
        }
        numbers = [
            np.arange(x.count, dtype=np.int32) if t in other else None
            for t, x in enumerate(self._values)
        ]
        for t, source, output, begin in parts:
            of_type = numbers[t]
            if of_type is not None:
                rows = ranges(begin, source.table.counts, source.table.first)
                of_type[source.ids[output].astype(np.intp)] = rows
        return numbering, numbers


@dataclass(frozen=True, eq=False)
class _Sorted:
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
def _shared_ids(program: Program) -> tuple[int, ...]:
    """The place of each of the program's constants among those of its type."""
    types = [t for t, _ in program.constants]
    return tuple(types[:place].count(t) for place, t in enumerate(types))


def stable_order(keys: Array) -> Array | None:
    """The order that sorts numbers and keeps equal ones as they are, if it is another.

    Few numbers are sorted fast, those of sixteen bits, by radix, even faster.
    """
    if np.logical_and.reduce(keys[1:] >= keys[:-1]):
        return None
    small = keys.max() < 1 << 15
    keys = keys.astype(np.int16) if small else keys
    return keys.argsort(kind='stable')


def concatenated(chunks: Sequence[Array]) -> Array:
    """Arrays one after another."""
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)


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
        if height is not None:
            self.heights[first : self.count] = height
        return np.arange(first, self.count, dtype=np.int32)
