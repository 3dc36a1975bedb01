# SPDX-License-Identifier: Apache-2.0
"""A trace in two passes: calls have results before anybody knows them.

Until the second pass is over, the results of calls are *tokens*, negative numbers in
place of value ids, since instructions copy ids and never compute with them; and so the
heights of nodes that read them are open.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from jfold.graph import gather
from jfold.host.row_order import (
    ShortKeys,
    example_places,
    moments,
    short_keys,
    stable_order,
)
from jfold.host.trace import Chunk, KnownPlaces, Trace, first_rows
from jfold.host.visits import Event, Visits
from jfold.kept import lazy
from jfold.program import Program

Array = np.ndarray[Any, Any]
Columns = tuple[Any, ...]
Named = tuple[int, int]  # a chunk of nodes: operation and number
_PENDING = 1 << 62  # a height above all others


class CircularError(Exception):
    """Results need each other."""


# ---- places that are told later ------------------------------------------------------


@dataclass(eq=False)
class Waved:
    """Places of items that are sent, wave by wave, and known when it is told whose.

    Until then numbers of items stand in for them, one declaration after another, the
    expression last; but not of one example, whose all items are.

    Attributes:
      known: what is done with places once they are known.
      single: whether all items are of one example, and need not be told apart.
      counts: how many items each declaration was sent so far.
      waiting: by declaration, the columns of those that wait for the next wave.
      waves: of each, its moment and the numbers of its first item and behind its last.
    """

    known: KnownPlaces
    single: bool
    counts: list[int]
    waiting: dict[int, list[Columns]] = field(default_factory=dict)
    waves: list[tuple[int, int, int]] = field(default_factory=list)

    def enter(self, moments: list[int], sizes: list[int]) -> Array:
        """The places of the items of a declaration, or what stands in for them; given
        the moment and the size of each of its waves."""
        if self.single:
            return np.array(moments, np.int64).repeat(sizes)
        if self.known.visits is not None:
            self.known.visits.new_items(sum(sizes))
        first = self.waves[-1][2] if self.waves else 0
        ends = list(itertools.accumulate(sizes, initial=first))
        self.waves += zip(moments, ends, ends[1:], strict=False)
        return np.arange(first, ends[-1])

    def begin(self) -> Array:
        return example_places(self.known.examples)  # of which nothing is made

    def descend(self, visit: int | None, parents: Array, items: Array) -> None:
        """Says whose items are: the numbers of `parents` [n], and of their `items` [n],
        which run a wave later."""
        visits = self.known.visits
        self._parents[items] = parents if visits is None else visits.of(parents)
        if visits is not None and visit is not None:
            visits.events.append(Event(visit, parents, items))

    def placed(self, places: Array) -> Array:
        return places if self.single else self._places[places]

    def row_numbers(self, visits: Visits) -> list[Array]:
        (_, *roots), *waves = sorted(self.waves)
        inside = any(each.made is not None for each in visits.events)
        found = [(a, b) for _, a, b in waves] if inside else []
        return visits.rows((roots[0], roots[1]), found, self._parents)

    def sorting(self, places: Array) -> tuple[Array | None, Array]:
        if (keys := self._short(places)) is None:
            return self.known.sorting(self.placed(places))
        first = first_rows(keys.examples(), self.known.examples)
        return stable_order(keys.values), first

    def moments(self, places: Array) -> Array:
        """When rows [n] were made."""
        keys = self._short(places)
        return moments(self.placed(places)) if keys is None else keys.moments()

    def _short(self, places: Array) -> ShortKeys | None:
        """The keys of rows [n], if they are short."""
        if self.single or self._keys is None:
            return None
        return self._keys.of(places)

    @lazy
    def _parents(self) -> Array:
        """Per item of all that have entered, the number of the one whose it is."""
        return np.zeros(self.waves[-1][2], np.int64)

    @lazy
    def _places(self) -> Array:
        """The places of all items [items], from the examples on, which are the first
        wave of the last declaration, down."""
        found = np.zeros_like(self._parents)
        (_, a, b), *waves = sorted(self.waves)
        found[a:b] = example_places(self.known.examples)
        for _, a, b in waves if self.known.examples > 1 else ():
            found[a:b] = found[self._parents[a:b]]
        moments, first, ends = np.array(self.waves, np.int64).T
        found |= moments.repeat(ends - first)
        return found

    @lazy
    def _keys(self) -> ShortKeys | None:
        """Of all items, if they are short."""
        return short_keys(self._places, self.known.examples)


class Promises(Protocol):
    """What a trace in two passes is, for what is in no other plan."""

    program: Program
    examples: int
    placing: Waved
    tokens: Tokens


def promising(program: Program, examples: int) -> Trace:
    """A trace of a plan in two passes."""

    def waved(known: KnownPlaces) -> Waved:
        single = examples == 1 and known.visits is None
        return Waved(known, single, [0] * len(program.plan.declarations))

    tokens = Tokens(by_depth)
    return Trace(program, examples, placing=waved, tokens=tokens, tentative=True)


# ---- what stands in for results ------------------------------------------------------


@dataclass(eq=False)
class Tokens:
    """Tokens of a trace, and what they leave open of its nodes.

    Attributes:
      settle_heights: gives heights to chunks of nodes of a component, which read tokens
        in its rows.
      slots: of each slot, as of one result of a declaration, the number of its first
        token.
      found: of each slot, the ids that were promised.
      count: how many tokens there are.
      unsettled: of the chunks of nodes that read tokens, operation and number.
      pending: of those whose heights depend on tokens.
    """

    settle_heights: Callable[[Trace, list[Named]], None]
    slots: dict[Hashable, int] = field(default_factory=dict)
    found: dict[Hashable, Array] = field(default_factory=dict)
    count: int = 0
    unsettled: list[Named] = field(default_factory=list)
    pending: list[Named] = field(default_factory=list)

    def new_slots(self, count: int) -> list[int]:
        """Slots that nothing was promised in, to be used at once."""
        return list(range(len(self.slots), len(self.slots) + count))

    def promise(self, slot: Hashable, numbers: Array, count: int) -> Array:
        """Tokens [n] for the items of a slot with the given numbers [n], of `count`."""
        # Two calls of one declaration share its slot, each by the numbers of its items.
        if slot not in self.slots:
            self.slots[slot] = self.count
            self.count += count
        return np.subtract(-1 - self.slots[slot], numbers, dtype=np.int32)

    def fulfil(self, slot: Hashable, ids: Array) -> None:
        """Says what was promised: the ids [items] of all items of a slot, or tokens."""
        self.found[slot] = ids

    def height(self, trace: Trace, o: int, inputs: Sequence[Array], rows: int) -> Array:
        """As of a trace; heights that depend on tokens are left open."""
        recurrent, chunk = trace.recurrent[o], (o, len(trace.made.nodes[o]))
        known = all(int(np.minimum.reduce(x)) >= 0 for x in inputs)
        if not known:
            self.unsettled.append(chunk)
        if known or not recurrent:
            height = trace.height(o, inputs, rows)
            if not recurrent or height.max() < _PENDING:
                return height
        self.pending.append(chunk)
        return np.full(rows, _PENDING)

    def settle(self, trace: Trace, outputs: list[Array]) -> list[Array]:
        """Gives heights to all rows and ids for all tokens; those of the outputs."""
        slots = (self.found[slot] for slot in self.slots)
        found = _ids(np.concatenate([np.zeros(0, np.int32), *slots]))

        def settled(values: Sequence[Array]) -> list[Array]:
            return [_settled(x, found) for x in values] if len(found) else [*values]

        nodes = trace.made.nodes
        for o, k in self.unsettled:
            at, ids, (heights, *inputs) = nodes[o][k]
            nodes[o][k] = Chunk(at, ids, (heights, *settled(inputs)))
        for chunks in trace.made.results:
            chunks[:] = [Chunk(at, ids, (*settled(x),)) for at, ids, x in chunks]
        by_base = lambda chunk: trace.bases[chunk[0]]  # noqa: E731
        for _, rows in itertools.groupby(sorted(self.pending, key=by_base), by_base):
            self.settle_heights(trace, list(rows))
        return settled(outputs)


def by_depth(trace: Trace, pending: list[Named]) -> None:
    """The heights of pending rows of a component, from those that the data is deepest
    at; components before it have theirs.

        moment   7: leaves' parents      heights 2        deepest first, since a row
                 5:   their parents      heights 3        of a moment reads those of
                 1:     the root         height  4        later ones alone
    """
    placing: Any = trace.placing  # `Waved`, which knows moments
    work, parts = [], []
    for t in {t for o, _ in pending for t in trace.program.operations[o].inputs}:
        below = trace.values[t].heights  # once, and no longer for each row
        np.maximum(below, trace.bases[pending[0][0]], out=below)
    for number, (o, k) in enumerate(pending):
        places, made, (_, *inputs) = trace.made.nodes[o][k]
        operation = trace.program.operations[o]
        heights = [trace.values[t].heights for t in operation.inputs]
        ids = [each.astype(np.intp) for each in inputs]  # which index faster
        written = [
            trace.values[t].heights[ids[0] : ids[0] + len(ids)]
            for t, ids in zip(operation.outputs, made, strict=True)
        ]
        work.append((list(zip(heights, ids, strict=True)), written))
        found = _by_moment(placing.moments(places))
        parts += [(-moment, number, rows) for moment, rows in found]
    parts.sort(key=operator.itemgetter(0, 1))
    for _, number, rows in parts:
        _raise_heights(*work[number], rows)
    for (o, k), (_, (height, *_)) in zip(pending, work, strict=True):
        places, made, (_, *inputs) = trace.made.nodes[o][k]
        # A copy: the next component raises what is below it.
        trace.made.nodes[o][k] = Chunk(places, made, (height.copy(), *inputs))


def _ids(found: Array) -> Array:
    """The ids [tokens] that were promised, or are of what stands for other tokens.

    Raises:
      CircularError: tokens stand for each other.
    """
    for _ in range(len(found).bit_length() + 1):  # each round doubles how far one sees
        tokens = (found < 0).nonzero()[0]
        if not tokens.size:
            return found
        found[tokens] = found[~found[tokens]]
    raise CircularError


def _settled(values: Array, found: Array) -> Array:
    """The ids, with those found for tokens in their place."""
    if np.maximum.reduce(values, initial=-1) < 0:
        return gather(found, ~values)
    ids = np.maximum(~values, 0, dtype=np.intp)
    return np.where(values < 0, found[ids], values)


_ONE = np.ones((), np.int64)  # faster than a number of Python's


def _raise_heights(
    inputs: list[tuple[Array, Array]], written: list[Array], rows: Any
) -> None:
    """Writes heights of rows from those of their inputs."""
    # One input after another: an index of two dimensions takes twice as long.
    (heights, ids), *more = inputs
    height = heights[ids[rows]]
    for heights, ids in more:
        np.maximum(height, heights[ids[rows]], out=height)
    np.add(height, _ONE, out=height)
    for each in written:
        each[rows] = height


def _by_moment(keys: Array) -> Iterator[tuple[int, Any]]:
    """Each moment with the rows that have it."""
    order = stable_order(keys)
    if order is not None:
        keys = keys[order]
    last = (keys[1:] != keys[:-1]).nonzero()[0]
    ends = [*(last + 1).tolist(), len(keys)]
    found = [*keys[last].tolist(), int(keys[-1])]
    for moment, a, b in zip(found, [0, *ends], ends, strict=False):
        yield moment, slice(a, b) if order is None else order[a:b]
