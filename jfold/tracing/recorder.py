# SPDX-License-Identifier: Apache-2.0
"""The lists that a recording function has filled → a `Graph`.

It knows no blocks: any function of examples will do that puts rows on tapes and says,
per example, how long they are then.

    ends [examples] of [tapes]    lengths of all tapes behind each example
    tapes                         lists: of objects, for constants and labels; else of
                                  numbers of rows, so many a row

The number of a row is `level << LEVEL | maker << ROW | entries before it`; see
`jfold.language.lines`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jfold.graph import Graph, Table, first_of, number_values
from jfold.kept import kept
from jfold.operations import Operations
from jfold.recurrence import are_recurrent, component_of, results_in, sources
from jfold.tracing.convert import BadConstant, check_below, to_array
from jfold.types import KeyType, TensorType

Array = np.ndarray[Any, Any]
ROW = 30
ENTRY = (1 << ROW) - 1


@dataclass(frozen=True)
class Column:
    """An input of an operation: its place in a row of the tape, or who makes it."""

    place: int = -1
    maker: int = -1


# Of rows: the tape that counts them and how many of its entries are a row, the tape of
# their own entries (-1 without) and how many a row has, and the columns.
Place = tuple[int, int, int, int, tuple[Column, ...]]


@dataclass(frozen=True)
class Recording:
    """Where what is recorded stands on tapes.

    Attributes:
      tapes: how many there are.
      level: the bit at which levels begin.
      constants: per type, the tapes of those of examples, with their makers and bounds.
      makers: per type, the number of each, what it is of, 'constants' and a tape, or
        'operation', its number and the output, and how many entries its rows count.
      operations: where the rows of each are; `None` without any.
      results: the same.
      labels: per result with labels, their tape; -1 without any.
    """

    tapes: int
    level: int
    constants: tuple[tuple[tuple[int, int, int | None], ...], ...]
    makers: tuple[tuple[tuple[int, str, int, int, int], ...], ...]
    operations: tuple[Place | None, ...]
    results: tuple[Place | None, ...]
    labels: tuple[int, ...]


def graph_of(
    program: Operations,
    recording: Recording,
    examples: int,
    ends: list[tuple[int, ...]],
    tapes: Sequence[list[Any]],
) -> Graph:
    """The graph of what was recorded for a program.

    Raises:
      BadConstant: an entry of a tape of constants is none of its type.
    """
    return _reader(program, recording).graph(examples, ends, tapes)


@kept
def _reader(program: Operations, recording: Recording) -> Reader:
    return Reader(program, recording)


class Reader:
    """Reads tapes; what can be known before there are any is found once.

    Attributes:
      program: whose operations are applied.
      recording: where everything stands.
    """

    def __init__(self, program: Operations, recording: Recording) -> None:
        self.program, self.recording = program, recording
        p, r = program, recording
        first = [0]
        for each in p.operations:
            first.append(first[-1] + len(each.outputs))
        self.recurrent = are_recurrent(p)
        part, stated = component_of(p), sources(p)
        owner = [o for o, each in enumerate(p.operations) for _ in each.outputs]
        # Of each operation the inputs whose levels count, and the makers whose do, if
        # others of recurrent components may make that input too.
        self.counted: list[list[tuple[int, Array | None]]] = []
        for o, operation in enumerate(p.operations):
            own: list[tuple[int, Array | None]] = []
            for k, may in enumerate(stated.inputs[o]):
                if not self.recurrent[o]:
                    continue
                made = {owner[x] for x in results_in(may)}
                if part[o] not in {part[x] for x in made}:
                    continue
                mask = None
                if any(self.recurrent[x] and part[x] != part[o] for x in made):
                    of = r.makers[operation.inputs[k]]
                    mask = np.zeros(max(n for n, *_ in of) + 1, bool)
                    for n, kind, x, *_ in of:
                        mask[n] = kind == 'operation' and part[x] == part[o]
                own.append((k, mask))
            self.counted.append(own)
        self.outputs: dict[tuple[int, int], int] = {}
        at = len(p.types)
        for o, operation in enumerate(p.operations):
            for k, _ in enumerate(operation.outputs):
                self.outputs[o, k] = at
                at += 1
        self.bits = (1 << (r.level - ROW)) - 1

    # ---- the graph

    def graph(
        self, examples: int, ends: list[tuple[int, ...]], tapes: Sequence[list[Any]]
    ) -> Graph:
        """The graph of what was recorded.

        Raises:
          BadConstant: an entry of a tape of constants is none of its type.
        """
        p, r, e = self.program, self.recording, examples
        firsts = np.zeros((r.tapes, e + 1), np.int64)
        if e:
            firsts[:, 1:] = np.array(ends, np.int64).reshape(e, r.tapes).T
        none = np.zeros(e + 1, np.int64)
        arrays: dict[int, Array] = {}

        def array(tape: int) -> Array:
            if tape not in arrays:
                arrays[tape] = np.fromiter(tapes[tape], np.int64, len(tapes[tape]))
            return arrays[tape]

        constants, offsets = self._constants(tapes, firsts, none)
        begin = [self._first(each, firsts, none) for each in r.operations]
        tables = [*constants, *(Table(first, ()) for first in begin)]
        numbers, begins = number_values(p, e, tables)
        shifts = self._shifts(tables, begins, offsets, firsts)
        whose: dict[int, Any] = {}

        def examples_of(first: Array) -> Any:
            if e == 1:
                return None
            if id(first) not in whose:
                whose[id(first)] = first, np.arange(e).repeat(np.diff(first))
            return whose[id(first)][1]

        def column(each: Place, k: int, rows: int) -> Any:
            where = each[4][k]
            if where.maker >= 0:
                return where.maker
            entries = array(each[2])
            return (
                entries
                if each[3] == 1
                else entries.reshape(rows, each[3])[:, where.place]
            )

        def named(ids: Any, rows: int, t: int, of: Any) -> Array:
            """Numbers of rows as numbers of values [rows]."""
            shift, units = shifts[t]
            if isinstance(ids, int):
                by = shift[ids]
                if of is None:
                    return np.arange(by, by + rows, dtype=np.int32)
                return (np.arange(rows) + by[of]).astype(np.int32)
            entry = ids & ENTRY
            who = (ids >> ROW) & self.bits
            if units is not None:
                entry //= units[who]
            entry += shift[who] if of is None else shift[who, of]
            return entry.astype(np.int32)

        operations = []
        for o, place in enumerate(r.operations):
            inputs, first = p.operations[o].inputs, begin[o]
            rows = int(first[-1])
            if place is None or not rows:
                nothing = np.zeros(0, np.int32)
                operations.append(Table(first, (nothing,) * (1 + len(inputs))))
                continue
            of, ids = (
                examples_of(first),
                [column(place, k, rows) for k in range(len(inputs))],
            )
            made = [self._levels(o, ids, rows)]
            made += [named(x, rows, t, of) for x, t in zip(ids, inputs, strict=True)]
            operations.append(Table(first, tuple(made)))
        results = []
        for n, place in enumerate(r.results):
            types = p.results[n].tensors
            first = self._first(place, firsts, none)
            if n == p.value_results[0]:
                first = np.arange(e + 1)
            rows, of = int(first[-1]), examples_of(first)
            if place is None or not types:
                columns = tuple(
                    np.zeros(rows if not types else 0, np.int32) for _ in types
                )
                results.append(Table(first, columns))
                continue
            pairs = enumerate(types)
            results.append(
                Table(
                    first,
                    tuple(named(column(place, k, rows), rows, t, of) for k, t in pairs),
                )
            )
        labels = []
        for k, n in enumerate(p.labelled):
            values = np.empty(len(results[n]), object)
            if r.labels[k] >= 0:
                values[:] = tapes[r.labels[k]]
            labels.append(Table(results[n].first, (values,)))
        return Graph(
            e,
            tuple(constants),
            tuple(operations),
            tuple(results),
            numbers,
            tuple(labels),
            fits=True,
        )

    def _first(self, place: Place | None, firsts: Array, none: Array) -> Array:
        """Where the rows of each example begin [examples + 1]."""
        if place is None or place[0] < 0:
            return none
        first = firsts[place[0]]
        return first if place[1] == 1 else first // place[1]

    def _constants(
        self, tapes: Sequence[list[Any]], firsts: Array, none: Array
    ) -> tuple[list[Table], dict[int, Array]]:
        """Those of examples, by type; by tape, how many of its type each example has
        before its own."""
        made, before = [], {}
        for type_, of in zip(self.program.types, self.recording.constants, strict=True):
            values = []
            for tape, _, below in of:
                first = firsts[tape]
                values.append(_converted(tapes[tape], type_, below, first))
            if not of:
                empty = np.zeros((0, *type_.shape), type_.dtype)
                made.append(Table(none, (empty,)))
            elif len(of) == 1:
                made.append(Table(firsts[of[0][0]], (values[0],)))
            else:
                counts = [np.diff(firsts[tape]) for tape, *_ in of]
                ahead = np.cumsum([np.zeros_like(counts[0]), *counts], 0)
                before |= {tape: x for (tape, *_), x in zip(of, ahead, strict=False)}
                whose = [np.arange(len(x)).repeat(x) for x in counts]
                order = np.concatenate(whose).argsort(kind='stable')
                joined = np.concatenate(values)[order]
                made.append(Table(first_of(ahead[-1]), (joined,)))
        return made, before

    def _shifts(
        self,
        tables: list[Table],
        begins: list[Array],
        before: dict[int, Array],
        firsts: Array,
    ) -> list[tuple[Array, Array | None]]:
        """Per type: what makes rows numbers of values [makers, examples], or [makers]
        of one example; and how many entries are a row [makers], if any has several."""
        p, r = self.program, self.recording
        e, found = firsts.shape[1] - 1, []
        for t, of in enumerate(r.makers):
            shift = np.zeros((max((n for n, *_ in of), default=0) + 1, e), np.int64)
            units = np.ones(len(shift), np.int64)
            for n, kind, x, output, unit in of:
                units[n] = unit
                if kind == 'operation':
                    first = tables[len(p.types) + x].first[:-1]
                    shift[n] = begins[self.outputs[x, output]] - first
                else:
                    shift[n] = begins[t] - firsts[x, :-1]
                    if x in before:
                        shift[n] += before[x]
            made = shift[:, 0] if e == 1 else shift
            found.append((made, units if (units > 1).any() else None))
        return found

    def _levels(self, o: int, ids: list[Any], rows: int) -> Array:
        """The levels of nodes [rows], read off the highest inputs."""
        highest = np.zeros(rows, np.int64)
        for k, mask in self.counted[o]:
            if isinstance(ids[k], int):
                continue
            level = ids[k] >> self.recording.level
            if mask is not None:
                level = level * mask[(ids[k] >> ROW) & self.bits]
            np.maximum(highest, level, out=highest)
        highest += 1
        return highest.astype(np.int32)


def _converted(
    items: list[Any], type_: TensorType, below: int | None, first: Array
) -> Array:
    """Constants as an array [items, *shape]."""
    if isinstance(type_, KeyType):  # told by their numbers alone
        return np.zeros((len(items), *type_.shape), type_.dtype)
    try:
        values = to_array(items, type_)
        if below is not None:
            check_below(values, below)
    except BadConstant as error:
        error.example = int(np.searchsorted(first, error.index, side='right')) - 1
        raise
    return values
