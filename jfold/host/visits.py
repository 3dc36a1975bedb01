# SPDX-License-Identifier: Apache-2.0
"""In which order the rows of metrics come: that in which the eager twin meets them.

A *visit* is a run of a body for one item, or what a loop does with one. What happens in
it has the numbers that instructions state, and a loop makes one visit after another:

    <tree> r0: places[a]           in the visit of a tree, in order     its rows
      Call r0 ... visit=3            3   the visit of its left tree     a b c
      Call r0 ... visit=4            4   the visit of its right tree          d
      Observe r0 ... visit=7         7   a row                                  e

So rows are numbered by how many each visit has in all. Numbers of visits stand in for
places while a plan runs; `Visits` knows the places.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from jfold import instructions as ir
from jfold.host.row_order import ByWay, RowOrder
from jfold.traits import Visiting, refusal

Array = np.ndarray[Any, Any]
NARROW = 8  # items a wave
Wave: TypeAlias = tuple[int, int]  # the first visit, and the one behind the last
Within: TypeAlias = ir.Enter | ir.Call | ir.FoldLoop | ir.ReduceLoop | ir.ReduceGroups


class Event(NamedTuple):
    """What happened at once in some visits.

    Attributes:
      visit: as the instruction states it.
      parents: [n] in which visits.
      made: [n] the visits inside them, or nothing: then they are rows.
      many: whether there are several in a visit, which come one after another.
    """

    visit: int
    parents: Array
    made: Array | None = None
    many: bool = False


@dataclass(eq=False)
class Visits:
    """Collects visits while a plan runs.

    Attributes:
      order: what tells places apart.
      places: [count or more] of each visit.
      events: in the order in which they are told.
      again: visits that are parts of others, which were made before; and these.
      shared: of what runs once for each object, the visits that ask for it, with the
        numbers of objects.
      results: of those that are rows, the result.
      items: how many visits are items of waves, which come first.
    """

    order: RowOrder
    places: Array = field(default_factory=lambda: np.zeros(256, np.int64))
    count: int = 0
    events: list[Event] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    again: list[tuple[Array, Array]] = field(default_factory=list)
    shared: dict[Hashable, list[tuple[Array, Array]]] = field(default_factory=dict)
    items: int = 0
    _known: dict[int, tuple[Array, Array]] = field(default_factory=dict)

    def new(self, places: Array) -> Array:
        """Visits [n] at places [n]."""
        first, self.count = self.count, self.count + len(places)
        # Twice as many, so that all growing together takes as long as one array does.
        if self.count > len(self.places):
            grown = np.zeros(2 * self.count, np.int64)
            grown[:first] = self.places[:first]
            self.places = grown
        self.places[first : self.count] = places
        return np.arange(first, self.count)

    def new_items(self, count: int) -> Array:
        """Visits that are items of waves, whose numbers stand in for places."""
        made = self.new(np.arange(self.items, self.items + count))
        self.items = self.count
        return made

    def of(self, visits: Array) -> Array:
        """The places of visits [n]."""
        if self.items == self.count:
            return visits
        # By identity: columns are not written again, and many tables have one.
        if id(visits) not in self._known:
            self._known[id(visits)] = visits, self.places[visits]
        return self._known[id(visits)][1]

    def entered(self, visits: Array, moment: int) -> Array:
        """The visits [n] of a body that starts at a moment."""
        self.places[visits] = self.order.entered(self.places[visits], moment)
        return visits

    def inside(
        self,
        i: Within,
        visits: Array,
        items: Callable[[], Array] | None,
    ) -> Array:
        """The visits [n] that an instruction makes inside others [n]."""
        visiting = i.traits.visiting
        if not visiting.is_way:
            raise refusal('the order of rows', type(i))
        continues, told = visiting is Visiting.CONTINUES, i.visit is not None
        # A loop without a metric inside needs no visits of its own, unless places are
        # told by the way to them, which every loop goes further. The places of calls
        # are written anew when their body begins.
        is_new = visiting is Visiting.CALLS or (told and not continues)
        if not is_new and not isinstance(self.order, ByWay):
            return visits
        made = self.new(self.order.inside(self.places[visits], i.way, items))
        if continues:
            self.again.append((made, visits))
        elif i.visit is not None:
            many = visiting is Visiting.ENTERS_MANY
            self.events.append(Event(i.visit, visits, made, many))
        return made

    def observe(self, visit: int, result: int, visits: Array) -> None:
        """Adds rows of a result in visits [n]."""
        self.events.append(Event(visit, visits))
        self.results.append(result)

    def ask(self, key: Hashable, visits: Array, numbers: Array) -> None:
        """Says that visits [n] ask for what runs once for objects with numbers [n]."""
        self.shared.setdefault(key, []).append((visits, numbers))

    def rows(
        self, roots: Wave, waves: Sequence[Wave] = (), above: Array | None = None
    ) -> list[Array]:
        """The numbers [n] of the rows of each event that is of rows.

        Args:
          roots: the visits of the examples.
          waves: those inside others, after these; unless it is as they were made.
          above: [items] the item that each is inside of.
        """
        events = self._told()
        if len(self.results) == 1 and all(x.many or x.made is None for x in events):
            # Items of sequences alone, of which columns keep the order.
            return [np.arange(len(x.parents)) for x in events if x.made is None]
        if self.shared:
            # Who of several asked first is known only by going through all in order.
            return _one_by_one(events, self.count, range(*roots), self._first_asked())
        if above is None:
            waves, above = _as_made(events, self.count)
        places = self.places[: self.count]
        tree = _Tree(events, places, self.items or self.count)
        return tree.numbered(roots, waves, above)

    def _told(self) -> list[Event]:
        """The events, in visits that are no parts of others."""
        if not self.again:
            return self.events
        # A part may be of a visit that is itself a part: in the order in which they
        # were made, what a visit is a part of is known before it is asked.
        whole = np.arange(self.count)
        for made, visits in self.again:
            whole[made] = whole[visits]
        return [each._replace(parents=whole[each.parents]) for each in self.events]

    def _first_asked(self) -> dict[int, int]:
        """By visit that asks for an object, the first that asked."""
        found: dict[int, int] = {}
        for pairs in self.shared.values():
            # It runs for the first that asks, so what is inside was made in that visit;
            # `np.unique` gives the first of equal numbers.
            visits, numbers = map(np.concatenate, zip(*pairs, strict=True))
            _, first, each = np.unique(numbers, return_index=True, return_inverse=True)
            asked = visits[first[each]]
            found |= zip(visits.tolist(), asked.tolist(), strict=True)
        return found


def _as_made(events: Iterable[Event], count: int) -> tuple[list[Wave], Array]:
    """The waves of visits that were made inside of others, one event after another, and
    which [count] those are."""
    above, waves = np.zeros(count, np.int64), []
    for _, parents, made, _ in events:
        if made is not None and len(made):
            above[made] = parents
            waves.append((int(made[0]), int(made[-1]) + 1))
    return waves, above


def order_of(numbers: Array, total: int) -> Array:
    """The order [n] of rows with numbers [n], each another below `total`."""
    found = np.full(total, -1)
    found[numbers] = np.arange(len(numbers))
    return found if len(numbers) == total else found[found >= 0]


# ---- numbers from how many rows there are --------------------------------------------


class _Tree:
    """Visits inside others, whose rows are counted twice through:

        from the inside out     sizes    root 5 = left 3 + right 1 + a row of its own
        from the outside in     first    root 0, left 0, right 0 + 3, the row 0 + 3 + 1

    First every visit knows how many rows it has, then each begins where those before it
    in the visit around it end. So no row is looked at alone.

    Visits from `items` on have the number of an item for a place, the one that they are
    inside of: they are made in all waves at once.

    Attributes:
      sizes: [visits] how many rows each has in all.
      first: [visits] the number of its first row; until this is known, among those of
        the visit, then of the item, that it is inside of.
      nested: events that make visits inside of others that are no items, from the
        outside in.
    """

    def __init__(self, events: Sequence[Event], places: Array, items: int) -> None:
        self.events = [
            Event(
                x.visit,
                x.parents if x.many else _run(x.parents),
                None if x.made is None else _run(x.made),
                x.many,
            )
            for x in events
        ]
        self.places, self.items = places, items
        self.sizes = np.zeros(len(places), np.int64)
        self.first = np.zeros(len(places), np.int64)
        nested = [
            x for x in events if x.made is not None and _any_from(x.parents, items)
        ]
        self.nested = sorted(nested, key=lambda x: not _any_from(x.made, items))

    def numbered(self, roots: Wave, waves: Sequence[Wave], above: Array) -> list[Array]:
        """See `Visits.rows`."""
        self._count(waves, above)
        rows = self._place()
        for _, parents, made, _ in self.nested:
            self.first[made] += self.first[parents]
        # So far each was counted within what is around it. Now from the outside in:
        # examples one behind another, items of waves, what is inside of items.
        a, b = roots
        self.first[a:b] = self.sizes[a:b].cumsum() - self.sizes[a:b]
        _add_down(self.first, waves, above)
        self.first[self.items :] += self.first[self.places[self.items :]]
        return [found + self.first[parents] for found, parents in rows]

    def _count(self, waves: Sequence[Wave], above: Array) -> None:
        """Finds the sizes, from the inside out."""
        sizes, items = self.sizes, self.items
        for _, parents, made, _ in self.events:
            # Of one event no visit has two rows, so nothing is added to twice here.
            if made is None:
                sizes[parents] += 1
        if sizes[items:].any():
            np.add.at(sizes, self.places[items:], sizes[items:])
        _add_up(sizes, waves, above)
        for _, parents, made, many in reversed(self.nested):
            if many:
                begins = _begins(parents)
                sizes[parents[begins]] += np.add.reduceat(sizes[made], begins)
            else:
                sizes[parents] += sizes[made]

    def _place(self) -> list[tuple[Array, Any]]:
        """Finds where each visit begins in the one that it is inside of; of events that
        are rows, these numbers, and the visits that they are in."""
        # `before` is, for each visit, how many rows of it have been met so far: events
        # go in the order in which instructions state them, whenever they happened.
        before = np.zeros(len(self.sizes), np.int64)
        rows: dict[int, tuple[Array, Any]] = {}
        for n in sorted(range(len(self.events)), key=lambda n: self.events[n].visit):
            _, parents, made, many = self.events[n]
            if made is None:
                rows[n] = before[parents].copy(), parents
                before[parents] += 1
            elif many:
                self.first[made] = _one_after_another(before, parents, self.sizes[made])
            else:
                self.first[made] = found = before[parents]
                before[parents] = found + self.sizes[made]
        return [rows[n] for n in sorted(rows)]


def _run(numbers: Array) -> Any:
    """Numbers [n] as a slice, if they follow one another: which reads faster."""
    if not len(numbers) or numbers[-1] - numbers[0] != len(numbers) - 1:
        return numbers
    is_run = bool((numbers[1:] > numbers[:-1]).all())
    return slice(numbers[0], numbers[-1] + 1) if is_run else numbers


def _any_from(visits: Any, first: int) -> bool:
    """Whether visits, which are all items or none is, are no items."""
    return len(visits) > 0 and bool(visits[0] >= first)


def _begins(parents: Array) -> Array:
    """Where each begins of those that stand side by side as often as they are there."""
    return np.flatnonzero(np.diff(parents, prepend=-1))


def _one_after_another(before: Array, parents: Array, sizes: Array) -> Array:
    """Where each of several visits begins, which stand side by side if they are inside
    of one; counts them among what is before the next."""
    #     parents  4 4 4 7 7      begins 0 3
    #     sizes    2 1 3 5 1      ahead  0 2 3 6 11, of all
    #     found    0 2 3 0 5      less what is ahead of the first inside of each
    begins = _begins(parents)
    ahead = sizes.cumsum() - sizes
    counts = np.diff(begins, append=len(parents))
    found: Array = (before[parents[begins]] - ahead[begins]).repeat(counts) + ahead
    if len(begins):
        before[parents[begins]] += np.add.reduceat(sizes, begins)
    return found


def _are_narrow(waves: Sequence[Wave]) -> bool:
    """Whether waves have so few items that a loop over these is faster than NumPy."""
    return bool(waves) and sum(b - a for a, b in waves) < NARROW * len(waves)


def _add_up(values: Array, waves: Sequence[Wave], above: Array) -> None:
    """Adds the value of each item to that of the item above, from the last wave on."""
    if not _are_narrow(waves):
        for a, b in reversed(waves):
            np.add.at(values, above[a:b], values[a:b])
        return
    found, items = values.tolist(), above.tolist()
    for k in itertools.chain(*itertools.starmap(range, reversed(waves))):
        found[items[k]] += found[k]
    values[:] = found


def _add_down(values: Array, waves: Sequence[Wave], above: Array) -> None:
    """Adds to the value of each item that of the item above, from the first wave on."""
    if not _are_narrow(waves):
        for a, b in waves:
            values[a:b] += values[above[a:b]]
        return
    found, items = values.tolist(), above.tolist()
    for k in itertools.chain(*itertools.starmap(range, waves)):
        found[k] += found[items[k]]
    values[:] = found


# ---- numbers visit by visit ----------------------------------------------------------


def _one_by_one(
    events: Sequence[Event], visits: int, roots: Iterable[int], first: dict[int, int]
) -> list[Array]:
    """The numbers of the rows of events, where some visits are asked for from several
    others: the one that comes first has the rows.

    Args:
      first: by visit that asks, the one that has what is inside.
    """
    inside, begins, ends = _by_visit(events, visits)
    numbers: list[int] = []
    waiting, entered = [*roots][::-1], set[int]()
    while waiting:
        visit = waiting.pop()
        if visit >= visits:
            numbers.append(visit - visits)
            continue
        visit = first.get(visit, visit)
        if visit not in entered:
            entered.add(visit)
            waiting += inside[begins[visit] : begins[visit + 1]][::-1]
    back = np.empty(len(numbers), np.int64)
    back[numbers] = np.arange(len(numbers))
    return [back[a:b] for a, b in itertools.pairwise(ends)]


def _by_visit(
    events: Sequence[Event], visits: int
) -> tuple[list[int], list[int], list[int]]:
    """What is inside of each visit, in order, with rows numbered behind visits; where
    this begins, for each visit; and where the rows of each event end, from 0."""
    ends, made = [0], []
    for event in events:
        if event.made is None:
            begin = ends[-1]
            ends.append(begin + len(event.parents))
            made.append(visits + np.arange(begin, ends[-1]))
        else:
            made.append(event.made)
    parents = np.concatenate([event.parents for event in events])
    when = np.repeat([e.visit for e in events], [len(e.parents) for e in events])
    order = np.lexsort((when, parents))
    begins = np.searchsorted(parents[order], np.arange(visits + 1))
    return np.concatenate(made)[order].tolist(), begins.tolist(), ends
