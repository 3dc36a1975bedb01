# SPDX-License-Identifier: Apache-2.0
"""Calls that run once for each object of an example, whatever calls them.

    calls on   a b a | b c     of two frames that wait together
    numbers    0 1 0 | 1 2     by example and object, in the order of first use
    a frame    a b c           of the new ones, whose results are promised at once
    later on   c d             c is known already; d is of the next frame

No call waits: `a` may need what `b` gives, which runs beside it.
"""

from __future__ import annotations

import itertools
import operator
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from jfold import instructions as ir
from jfold.errors import BadItem, InputError
from jfold.host import objects
from jfold.host.calls import Made, Ready, joined, origin_in, origin_of
from jfold.host.origin import Frame, entries, locate, start
from jfold.host.promises import Tokens
from jfold.host.row_order import example_of
from jfold.host.rules import Column, take
from jfold.host.trace import Trace
from jfold.printing import callable_name

Array = np.ndarray[Any, Any]
Node: TypeAlias = 'tuple[int, int]'  # a declaration, and the number of an object


@dataclass(eq=False)
class Home:
    """The frame of some objects.

    Attributes:
      tokens: by which the results were promised.
      first: the number of the first of the objects.
      slots: of the results.
    """

    frame: Frame
    tokens: Tokens
    first: int
    slots: list[int]

    def deliver(self, outputs: list[Column]) -> Iterator[Ready]:
        """Keeps what was promised; nobody waits for it."""
        for slot, column in zip(self.slots, outputs, strict=True):
            self.tokens.fulfil(slot, column)
        yield from ()


@dataclass(frozen=True, eq=False)
class First:
    """What a declaration was called on first.

    Attributes:
      examples: [n] of the objects.
      column: [n] the objects.
      numbers: [n] theirs.
      numbered: these by example and key, in their order.
    """

    examples: Array
    column: list[Any]
    numbers: Array
    numbered: Mapping[Any, int]

    def is_on(self, examples: Array, column: list[Any]) -> bool:
        """Whether these are the very objects, of the same examples."""
        if len(column) != len(self.column):
            return False
        same = all(map(operator.is_, column, self.column))
        return same and np.array_equal(examples, self.examples)


@dataclass(eq=False)
class Once:
    """What one declaration was called on so far.

    Attributes:
      key: what tells objects apart.
      firsts: what declarations with this key were called on first, the last that was
        another than those before.
      numbers: by example and key.
      homes: in the order of the numbers.
      calls: with the numbers of what they are on, to say what leads back to itself.
      tokens: of each result, those promised [numbers or more].
    """

    key: Callable[[Any], Hashable]
    firsts: list[First]
    numbers: defaultdict[Any, int] = field(
        default_factory=lambda: defaultdict(itertools.count().__next__)
    )
    homes: list[Home] = field(default_factory=list)
    calls: list[tuple[list[Made], Array]] = field(default_factory=list)
    tokens: list[Array] = field(default_factory=list)

    def ask(
        self, body: ir.Body, calls: list[Made], state: Trace
    ) -> tuple[Home | None, Iterator[Ready]]:
        """The frame of the objects that are new, if any, and the callers, which go on.

        Raises:
          InputError: an object has no key.
        """
        places, column = joined(calls)
        known = len(self.numbers)
        numbers = self._numbered(state.at(0, places), column, calls)
        state.ask(calls[0].call, self, places, numbers)
        # The frames hold the objects, whose ids therefore stay theirs.
        self.calls.append((calls, numbers))
        home = None
        if known < len(self.numbers):
            # Several calls may be on one new object: the first gives its place, and
            # tells where it comes from.
            new = (numbers >= known).nonzero()[0]
            at = new[np.unique(numbers[new], return_index=True)[1]]
            given = [places[at], take(column, at)]
            frame = start(body, given, origin_of(calls, at))
            assert isinstance(state.tokens, Tokens)
            home = self._home(frame, state.tokens, known)
            self.homes.append(home)
        return home, self._answered(calls, numbers)

    def _numbered(self, places: Array, column: list[Any], calls: list[Made]) -> Array:
        """The numbers [n] of objects at places [n]."""
        examples = example_of(places)
        if self.numbers:
            return self._found(examples, column, calls)
        # A round of messages is on the objects of the round before, in their order.
        for first in self.firsts:
            if first.is_on(examples, column):
                self.numbers.update(first.numbered)
                # What comes later is numbered behind these.
                counted = itertools.count(len(self.numbers))
                self.numbers.default_factory = counted.__next__
                return first.numbers
        numbers = self._found(examples, column, calls)
        self.firsts[:] = [First(examples, column, numbers, self.numbers.copy())]
        return numbers

    def _found(self, examples: Array, column: list[Any], calls: list[Made]) -> Array:
        """The numbers [n] of objects of examples [n], some of which may be new."""
        try:
            keys = objects.each(self.key, column, expected='what its key takes')
            # An object of two examples runs in both, so that the graph of an example
            # does not depend on what else is traced.
            pairs = zip(examples.tolist(), keys, strict=True)
            return np.array(_found(self.numbers, pairs, keys), np.intp)
        except BadItem as error:
            made, item = origin_in(calls, error.index)
            example, path = locate(made.frame, made.call.inputs[1], item)
            where = made.call.where
            raise InputError(str(error), example, path, where, error.hint) from None

    def _home(self, frame: Frame, tokens: Tokens, first: int) -> Home:
        """Promises the results of the objects that are new."""
        end = len(self.numbers)
        slots = tokens.new_slots(len(frame.body.outputs))
        self.tokens = self.tokens or [np.empty(256, np.int32) for _ in slots]
        for k, slot in enumerate(slots):
            if end > len(self.tokens[k]):
                self.tokens[k] = np.resize(self.tokens[k], 2 * end)
            promised = tokens.promise(slot, np.arange(end - first), end - first)
            self.tokens[k][first:end] = promised
        return Home(frame, tokens, first, slots)

    def _answered(self, calls: list[Made], numbers: Array) -> Iterator[Ready]:
        first = 0
        for made in calls:
            part = numbers[first : first + made.receiver.size]
            first += made.receiver.size
            yield from made.receiver.receive([x[part] for x in self.tokens])


def _found(
    numbers: Mapping[Any, int], pairs: Iterable[tuple[int, Any]], keys: list[Any]
) -> list[int]:
    """The numbers of pairs of an example and a key."""
    try:
        return list(map(numbers.__getitem__, pairs))
    except TypeError:
        objects.entries({}, keys, lambda *_: 'a key that is hashable', None)
        raise


# ---- objects that lead back to themselves --------------------------------------------


def circle(tables: Iterable[Once]) -> InputError:
    """The error of objects whose results need each other."""
    # Who needs what is not kept on the way: it is found again, from the origins of what
    # calls were given.
    tables = list(tables)
    every = ((t, home) for t, table in enumerate(tables) for home in table.homes)
    homes = {id(home.frame): (t, home.first) for t, home in every}
    needs: dict[Node, list[Node]] = {}
    known: dict[Any, Node | None] = {}
    for t, table in enumerate(tables):
        for calls, numbers in table.calls:
            for at, number in enumerate(numbers.tolist()):
                asking = _asking(*origin_in(calls, at), homes, known)
                if asking is not None:
                    needs.setdefault(asking, []).append((t, number))
    t, number = _on_a_circle(needs)
    home = next(x for x in reversed(tables[t].homes) if x.first <= number)
    item = number - home.first
    example, path = locate(home.frame, 1, item)
    kind = type(home.frame.registers[1][item]).__name__
    by = _told(tables[t].key)
    text = (
        f'expected data that end, got {kind} that leads back to itself{by}; write a '
        'block for each round of a graph with circles, which reads the one before'
    )
    return InputError(text, example, path, str(home.frame.body.name))


def _told(key: Callable[[Any], Hashable]) -> str:
    """What is meant by the same object, where that is not plain."""
    return '' if key is id else f', or to another of the same `{callable_name(key)}`'


def _asking(
    made: Made, item: int, homes: dict[int, Node], known: dict[Any, Node | None]
) -> Node | None:
    """The object whose evaluation makes a call on an item; none for the expression.

    What was found on the way is `known`: calls share most of theirs.
    """
    found, passed = None, []
    for frame, register, number in entries(made.frame, made.call.inputs[1], item, []):
        key = id(frame), register, number
        if key in known:
            found = known[key]
            break
        passed.append(key)
        if id(frame) in homes:
            t, first = homes[id(frame)]
            found = t, first + number
            break
    known.update(dict.fromkeys(passed, found))
    return found


def _on_a_circle(needs: dict[Node, list[Node]]) -> Node:
    """A node that leads back to itself, which there is."""
    # Depth first, by a list of iterators: circles may be longer than Python's stack.
    done: set[Node] = set()
    for first in needs:
        way, nodes = [iter([first])], dict[Node, None]()
        while way:
            following = next(way[-1], None)
            if following is None:
                way.pop()
                done.update([nodes.popitem()[0]] if nodes else [])
            elif following in nodes:
                return following
            elif following not in done:
                nodes[following] = None
                way.append(iter(needs.get(following, ())))
    raise AssertionError('jfold found no circle, please report it')
