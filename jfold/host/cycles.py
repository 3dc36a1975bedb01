# SPDX-License-Identifier: Apache-2.0
"""Data that contain themselves, found while they are taken apart.

A call whose objects are those of a call that led to it never ends. Looking for such
calls costs nothing on ordinary data: only when these are nested deep, or have become
many, the objects of some waves are remembered, and of later ones each sixteenth is
compared with them; again when there is twice as much of either, as in Brent's search
for cycles.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from jfold.errors import InputError, middle_out
from jfold.host.origin import Frame, entries, located_at

Key: TypeAlias = tuple[int, ...]  # ids of the objects of one call

MAX_DEPTH = 1_000_000  # beyond it, data that functions make without end fill the memory
DEEP = 1_000
MANY = 1 << 19
REMEMBERED = 4096  # calls
WAVES = 64  # one after another that are remembered: a part of any cycle, or all of it
EVERY = 16  # waves, of which one is compared: no such part comes again between them
WIDE = MANY // EVERY  # calls of a wave which is looked at in any case
_NOTHING: tuple[set[tuple[int, ...]], None] = set(), None
_ATOMS = int, float, complex, str, bytes, bool, type(None), np.generic


class SuspicionError(Exception):
    """Data may contain themselves; they may also share parts."""


@dataclass(eq=False)
class Watch:
    """Looks at waves of calls.

    Attributes:
      deep, many: the depth and the number of calls from which waves are remembered.
      room, until: how many more calls are, and before which depth.
      looks: of how many calls it is asked whether they led to themselves.
      known: per declaration, the calls remembered, and their columns, which keep the
        ids theirs.
    """

    deep: int = DEEP
    many: int = MANY
    calls: int = 0
    room: int = 0
    until: int = 0
    looks: int = 64
    known: dict[int, tuple[set[Key], list[Any]]] = field(default_factory=dict)

    def wakes(self, depth: int, calls: int) -> bool:
        """Whether to look at a wave, up to whose end there were so many calls."""
        self.calls = calls
        if depth >= self.deep or self.calls >= self.many:
            return True
        return bool(self.known) and (depth < self.until or not depth % EVERY)

    def sees_again(self, depth: int, declaration: int, columns: Sequence[Any]) -> bool:
        """Whether a wave has objects in common with those that are remembered."""
        due = depth >= self.deep or self.calls >= self.many
        found, _ = self.known.get(declaration, _NOTHING)
        seen = bool(found) and not found.isdisjoint(_keys(columns))
        if due:
            self.known, self.room, self.until = {}, REMEMBERED, depth + WAVES
            self.deep, self.many = max(self.deep, 2 * depth), 2 * self.calls
        if self.room > 0 and depth < self.until:
            self._remember(declaration, columns)
        return seen

    def _remember(self, declaration: int, columns: Sequence[Any]) -> None:
        """Adds a wave; so many follow that each part of a cycle is among them."""
        known, held = self.known.setdefault(declaration, (set(), []))
        pairs = zip(_keys(columns), *_objects(columns), strict=False)
        # Of numbers and words, which may come first, there is nothing to be learned.
        keys = (key for key, *parts in pairs if not _are_atoms(parts))
        chosen = list(itertools.islice(keys, self.room))
        known.update(chosen)
        held.append(columns)
        self.room -= len(chosen)

    def refuse(self, declaration: int, frame: Frame, where: str) -> None:
        """Raises if a call of a wave led to itself; if not, looks no more for a while.

        Raises:
          InputError: it did.
        """
        found, _ = self.known.pop(declaration)
        self.room = 0
        keys = enumerate(_keys(frame.registers[1 : frame.body.arity]))
        again = (item for item, key in keys if key in found)
        for item in itertools.islice(again, self.looks):
            _refuse_item(frame, item, where)
        self.looks *= 2  # what is met again and ends may have come before


def _objects(columns: Sequence[Any]) -> list[list[Any]]:
    return [column for column in columns if isinstance(column, list)]


def _keys(columns: Sequence[Any]) -> Iterator[Key]:
    """The key of each call; none where sequences were given, whose items are more."""
    plain = all(isinstance(x, list) or x.dtype == np.int32 for x in columns)
    objects = _objects(columns) if plain else []
    return zip(*(map(id, column) for column in objects), strict=True)


def _are_atoms(parts: Sequence[Any]) -> bool:
    """Whether values are such as stand in many places and contain nothing."""
    return all(isinstance(x, _ATOMS) or (isinstance(x, tuple) and not x) for x in parts)


def _refuse_item(frame: Frame, item: int, where: str) -> None:
    """Raises if the objects of a call are those of one that led to it."""
    (key,) = itertools.islice(_keys(_of_item(frame, item)), 1)
    same = [
        (each, number)
        for each, register, number in entries(frame, 1, item, [])
        if each.body is frame.body and register < each.body.arity
        if next(_keys(_of_item(each, number)), None) == key
    ]
    if len(same) < 2:
        return
    example, path = located_at(*same[-1])
    _, again = located_at(*same[-2])
    kind = type(_objects(_of_item(frame, item))[0][0]).__name__
    way = middle_out(again.removeprefix(path)) or 'it is'
    text = f'expected data that end, got {kind} that contains itself, as {way}'
    raise InputError(text, example, path, where)


def _of_item(frame: Frame, item: int) -> list[Any]:
    return [column[item : item + 1] for column in frame.registers[1 : frame.body.arity]]
