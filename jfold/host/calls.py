# SPDX-License-Identifier: Apache-2.0
"""Frames that wait for calls, and calls of one declaration that run as one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from jfold import instructions as ir
from jfold.host.loops import Running
from jfold.host.origin import Frame, Origin, start
from jfold.host.pieces import part, whole
from jfold.host.rules import NONE, Column, join
from jfold.program import Program

Array = np.ndarray[Any, Any]
Ready: TypeAlias = 'tuple[Running, Callers | None, Any]'  # and what it is sent


@dataclass(eq=False)
class Waiting:
    """A frame that waits for the results of its calls."""

    running: Running
    callers: Callers | None
    results: list[list[Column]] = field(default_factory=list)
    missing: int = 0


@dataclass(frozen=True, eq=False)
class Receiver:
    """Who gets the results of a call, and how many items of them."""

    waiting: Waiting
    slot: int
    size: int

    def receive(self, columns: list[Column]) -> Iterator[Ready]:
        """Takes the results; the frame, if it can go on."""
        waiting = self.waiting
        waiting.results[self.slot] = columns
        waiting.missing -= 1
        if not waiting.missing:
            yield waiting.running, waiting.callers, waiting.results


class Callers(Protocol):
    """Who gets the results of a frame."""

    def deliver(self, outputs: list[Column]) -> Iterator[Ready]:
        """Hands out the results; the frames that can go on."""


class Made(NamedTuple):
    """A call that waits for others of its declaration, with what it is given."""

    receiver: Receiver
    inputs: list[Column]
    frame: Frame
    call: ir.Call


def wait(
    program: Program,
    running: Running,
    callers: Callers | None,
    calls: Any,
    pool: dict[int, list[Made]],
) -> Waiting:
    """Puts a frame's calls into the pool; one on no items has its result at once."""
    waiting = Waiting(running, callers)
    for slot, (frame, call, inputs) in enumerate(calls):
        size = len(inputs[0])
        if not size:
            # A recursion calls itself on the items that are left, be they none: were
            # these to run, it would never end.
            lists = program.plan.declarations[call.declaration].lists
            waiting.results.append([[] if x else NONE for x in lists])
            continue
        waiting.results.append([])  # in the order of calls, whichever returns first
        waiting.missing += 1
        made = Made(Receiver(waiting, slot, size), inputs, frame, call)
        pool.setdefault(call.declaration, []).append(made)
    return waiting


def joined(calls: list[Made]) -> list[Column]:
    """What all calls are given, one call after another."""
    return list(map(join, zip(*(made.inputs for made in calls), strict=True)))


def origin_in(calls: list[Made], item: int) -> tuple[Made, int]:
    """The call that an item of all is of, and which of its items it is."""
    for made in calls:
        if item < made.receiver.size:
            return made, item
        item -= made.receiver.size
    raise IndexError(item)


def origin_of(calls: list[Made], at: Sequence[int] | Array) -> Origin:
    """Where the items of a frame come from: those of all calls at [items]."""

    # Asked for only where something is wrong, so it may search.
    def origin(register: int, item: int) -> tuple[Frame, int, int]:
        made, number = origin_in(calls, int(at[item]))
        return made.frame, made.call.inputs[register], number

    return origin


def merge(body: ir.Body, calls: list[Made]) -> tuple[Frame, Callers]:
    """One frame for all calls that wait for the same declaration."""
    given = joined(calls)
    callers = Parts(body.owners, [made.receiver for made in calls])
    return start(body, given, origin_of(calls, range(len(given[0])))), callers


@dataclass(frozen=True, eq=False)
class Parts:
    """Callers that get a part each, one after another.

    Attributes:
      owners: which outputs hold the lengths of others.
    """

    owners: tuple[int, ...]
    receivers: list[Receiver]

    def deliver(self, outputs: list[Column]) -> Iterator[Ready]:
        """Hands each caller its part of the results."""
        sizes = [receiver.size for receiver in self.receivers]
        ends = _ends(outputs, self.owners, sizes)
        first = [0] * len(outputs)
        for receiver, last in zip(self.receivers, ends, strict=True):
            parts = zip(outputs, first, last, strict=True)
            first = last
            yield from receiver.receive(list(itertools.starmap(part, parts)))


def _ends(
    outputs: list[Column], owners: tuple[int, ...], sizes: list[int]
) -> Iterator[list[int]]:
    """Of each call, where its part of each output ends.

    The items of a sequence end where the lengths, in an output before, say.
    """
    ends = list(itertools.accumulate(sizes))
    columns: list[list[int]] = []
    for owner in owners:
        column = ends
        if owner >= 0:
            # A caller has as many items as all its sequences have together.
            total = np.append(0, np.cumsum(whole(outputs[owner])))
            column = total[columns[owner]].tolist()
        columns.append(column)
    return map(list, zip(*columns, strict=True)) if columns else iter([[]] * len(sizes))
