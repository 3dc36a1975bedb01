# SPDX-License-Identifier: Apache-2.0
"""Columns of the items of sequences, put together when somebody asks for all of them.

A recursion that collects what its nodes give has at every level all that is below. Were
it copied there, a chain of n nodes would take n * n steps. So a level says which parts
of which columns it has, one for each sequence, and not for each item; and who needs the
items has each copied once, however many levels it came through.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jfold.graph import first_of, ranges

Array = np.ndarray[Any, Any]
Column = Any  # a list of objects, an array, or one of those below
SHORT = 8  # items of a sequence, on average, which are copied at once

_numbers = itertools.count()


@dataclass(frozen=True, eq=False)
class Spans:
    """Positions, some neighbours for each sequence: where these begin, and how many
    there are [sequences] each."""

    begins: Array
    counts: Array

    def __len__(self) -> int:
        return int(self.counts.sum())

    @property
    def are_few(self) -> bool:
        """Whether to copy items at once is as well."""
        return len(self) <= SHORT * len(self.counts)


@dataclass(eq=False)
class Pieces:
    """Neighbouring items of other columns, one piece after another.

    Attributes:
      sources: the columns.
      of: [pieces] which of them each is of.
      begins: [pieces] the first item of each there.
      first: [pieces + 1] the number of each one's first item here.
      empty: a column of their kind, without items.
      number: larger than those of the sources.
      made: the items, once they were asked for; then there are no sources.
    """

    sources: tuple[Column, ...]
    of: Array
    begins: Array
    first: Array
    empty: Column
    number: int = field(default_factory=lambda: next(_numbers))
    made: Column | None = None

    def __len__(self) -> int:
        return int(self.first[-1])


def picked(column: Column, spans: Spans) -> Pieces:
    """The items of a column at positions."""
    of = np.zeros(len(spans.begins), np.intp)
    first = first_of(spans.counts)
    return Pieces((column,), of, spans.begins, first, _empty(column))


def joined(columns: Sequence[Column]) -> Pieces:
    """Columns one after another."""
    counts = np.array(list(map(len, columns)))
    of, first = np.arange(len(columns)), first_of(counts)
    begins = np.zeros_like(counts)
    return Pieces(tuple(columns), of, begins, first, _empty(columns[0]))


def _empty(column: Column) -> Column:
    return column.empty if isinstance(column, Pieces) else column[:0]


def part(column: Column, begin: int, end: int) -> Column:
    """Some neighbouring items of a column."""
    if not isinstance(column, Pieces):
        return column[begin:end]
    return picked(column, Spans(np.array([begin]), np.array([end - begin])))


def whole(column: Column) -> Column:
    """The items of a column, or the positions, one by one."""
    if isinstance(column, Spans):
        return ranges(column.begins, column.counts)
    if not isinstance(column, Pieces):
        return column
    if column.made is None:
        column.made = _copied(column)
        column.sources = ()
    return column.made


# ---- copying -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Wanted:
    """Items of a column, and where they are to go: three numbers for some neighbours,
    where these go, where they begin, and how many there are [n] each."""

    to: Array
    begins: Array
    counts: Array

    def only(self, chosen: Array) -> _Wanted:
        """Those chosen [n] bool."""
        return _Wanted(self.to[chosen], self.begins[chosen], self.counts[chosen])


def _copied(top: Pieces) -> Column:
    """All items, through however many levels: each level is gone through once, as what
    it is made of was there before it."""
    everything = _Wanted(*np.array([[0], [0], [len(top)]]))
    wanted, known = {top.number: [everything]}, {top.number: top}
    heap, found = [-top.number] * (len(top) > 0), []
    while heap:
        number = -heapq.heappop(heap)
        for source, items in _in_sources(known.pop(number), wanted.pop(number)):
            below = source.made if isinstance(source, Pieces) else source
            if below is not None:
                found.append((below, items))
                continue
            if source.number not in known:
                known[source.number], wanted[source.number] = source, []
                heapq.heappush(heap, -source.number)
            wanted[source.number].append(items)
    return _written(len(top), top.empty, found)


def _in_sources(
    column: Pieces, parts: list[_Wanted]
) -> Iterator[tuple[Column, _Wanted]]:
    """The same items, of which there are some, as those of a column's sources."""
    to, begins, counts = (
        np.concatenate([getattr(each, name) for each in parts])
        for name in ('to', 'begins', 'counts')
    )
    first, ends = column.first, begins + counts
    lowest = np.searchsorted(first, begins, side='right') - 1
    pieces = np.searchsorted(first, ends, side='left') - lowest
    at, owner = ranges(lowest, pieces), np.arange(len(pieces)).repeat(pieces)
    low = np.maximum(first[at], begins[owner])
    high = np.minimum(first[at + 1], ends[owner])
    moved = column.begins[at] + low - first[at]
    inside = _Wanted(to[owner] + low - begins[owner], moved, high - low)
    if len(column.sources) == 1:
        yield column.sources[0], inside.only(high > low)
        return
    for number, source in enumerate(column.sources):
        chosen = (column.of[at] == number) & (high > low)
        if chosen.any():
            yield source, inside.only(chosen)


def _written(size: int, empty: Column, found: list[tuple[Column, _Wanted]]) -> Column:
    """Items [size] from where they are, in a column of a kind."""
    if isinstance(empty, list):
        return _listed(size, found)
    made = np.empty(size, np.result_type(empty, *(array for array, _ in found)))
    for array, items in found:
        made[ranges(items.to, items.counts)] = array[ranges(items.begins, items.counts)]
    return made


def _listed(size: int, found: list[tuple[list[Any], _Wanted]]) -> list[Any]:
    made: list[Any] = [None] * size
    for column, items in found:
        numbers = (x.tolist() for x in (items.to, items.begins, items.counts))
        for to, begin, count in zip(*numbers, strict=True):
            made[to : to + count] = column[begin : begin + count]
    return made
