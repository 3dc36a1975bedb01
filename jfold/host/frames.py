# SPDX-License-Identifier: Apache-2.0
"""Bodies at work on columns, and loops over sequences."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from jfold import instructions as ir
from jfold.errors import BadItem
from jfold.host.origin import Frame, Origin, located, start
from jfold.host.promises import Promises
from jfold.host.rules import Column, merge, numbers, put, starts, take
from jfold.host.steps import steps
from jfold.host.trace import Trace
from jfold.host.waves import take_apart
from jfold.traits import refusal

Array = np.ndarray[Any, Any]
Calls = list[tuple[ir.Call, list[Column]]]
MAX_ROUNDS = 64  # no sequence is longer than 2**64

Running = Generator[Calls, list[list[Column]], list[Column]]


def run(frame: Frame, state: Trace) -> Any:
    """Runs a body; yields the calls of each stage and is sent their results."""
    registers = frame.registers
    for stage, ready in zip(frame.body.stages, steps(frame.body), strict=True):
        try:
            for instruction, step in ready:
                if step:
                    step(registers, state)
                else:
                    yield from _loop(instruction)(instruction, frame, state)
        except BadItem as error:
            if state.tentative:
                raise
            raise located(error, instruction, frame) from error.__cause__
        if stage.calls:
            results = yield [
                (frame, c, _arguments(c, registers, state)) for c in stage.calls
            ]
            for call, columns in zip(stage.calls, results, strict=True):
                for register, column in zip(call.outputs, columns, strict=True):
                    registers[register] = column
    return [registers[r] for r in frame.body.outputs]


def _arguments(call: ir.Call, r: list[Column], state: Trace) -> list[Column]:
    places, *given = (r[k] for k in call.inputs)
    return [state.order.inside(places, call.way), *given]


# ---- loops over sequences ------------------------------------------------------------


def _fold(i: ir.FoldLoop, frame: Frame, state: Trace) -> Any:
    """Position by position, over the sequences that are long enough."""
    r = frame.registers
    lengths, places, *columns = (r[k] for k in i.inputs)
    order = np.argsort(-lengths, kind='stable')
    places = places[order]
    states = [take(column, order) for column in columns[: i.states]]
    items = columns[i.states :]
    total = int(lengths.sum())
    lists = i.combine.lists[i.states :]
    kept = [[None] * total if each else np.empty(total, np.int32) for each in lists]
    first = starts(lengths)[order]
    active = len(lengths) - np.searchsorted(
        lengths[order[::-1]], np.arange(int(lengths.max(initial=0))), side='right'
    )
    for position, count in enumerate(active.tolist()):
        now = first[:count] + position
        # Copies, since what the body traces keeps them and the states are overwritten.
        given = [s[:count].copy() for s in states] + [take(x, now) for x in items]
        origin = _item_origin(frame, i, order, now)
        item = functools.partial(np.full, count, position)
        inputs = [state.order.inside(places[:count], i.way, item), *given]
        made = yield from run(start(i.combine, inputs, origin), state)
        for column, new in zip(states, made, strict=False):
            column[:count] = new
        for column, new in zip(kept, made[i.states :], strict=True):
            put(column, now, new)
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    last = [take(column, back) for column in states]
    for register, column in zip(i.outputs, (*last, *kept), strict=True):
        r[register] = column


def _item_origin(frame: Frame, i: ir.FoldLoop, order: Array, now: Array) -> Origin:
    """Inputs of a fold's body: places, states in sorted order, items at positions."""

    def origin(register: int, item: int) -> tuple[Frame, int, int]:
        in_items = register > i.states
        return frame, i.inputs[register + 1], int((now if in_items else order)[item])

    return origin


def _reduce(i: ir.ReduceLoop, frame: Frame, state: Trace) -> Any:
    """Rounds over adjacent pairs of all sequences that are longer than one."""
    r = frame.registers
    lengths, places, *items = (r[k] for k in i.inputs)
    left = _Left(np.arange(len(lengths)), starts(lengths), lengths, items)
    empty = left.owner[lengths == 0]
    finished = [left.ones()]
    for number in range(MAX_ROUNDS):
        left = left.longer()
        if not len(left.owner):
            break
        pair, owner, given = left.pairs()
        # Rounds halve the lengths: a pair is told by its number and its round.
        told = functools.partial(np.add, pair * MAX_ROUNDS, number)
        at_pairs = state.order.inside(places[owner], i.way, told)
        origin = _owner_origin(frame, i, owner)
        made = yield from run(start(i.combine, [at_pairs, *given], origin), state)
        left = left.halved(pair, made)
        finished.append(left.ones())
    if len(empty):
        origin = _owner_origin(frame, i, empty)
        inputs = [state.order.inside(places[empty], i.way)]
        made = yield from run(start(i.default, inputs, origin), state)
        finished.append((empty, made))
    owners, columns = zip(*finished, strict=True)
    for register, parts in zip(i.outputs, zip(*columns, strict=True), strict=True):
        r[register] = merge(owners, parts)


@dataclass(frozen=True, eq=False)
class _Left:
    """Sequences that a reduction is at work on.

    Attributes:
      owner: [sequences], their places among all.
      first, lengths: [sequences], where the items of each are in the columns.
      items: columns.
    """

    owner: Array
    first: Array
    lengths: Array
    items: list[Column]

    def ones(self) -> tuple[Array, list[Column]]:
        """The sequences of one item, and these items."""
        chosen = self.lengths == 1
        return self.owner[chosen], [take(x, self.first[chosen]) for x in self.items]

    def longer(self) -> _Left:
        """The sequences of more than one item."""
        chosen = self.lengths > 1
        owner, first = self.owner[chosen], self.first[chosen]
        return _Left(owner, first, self.lengths[chosen], self.items)

    def pairs(self) -> tuple[Array, Array, list[Column]]:
        """Of each pair its number and its owner; columns of left items, then right."""
        count = self.lengths // 2
        pair = numbers(count)
        at = self.first.repeat(count) + 2 * pair
        given = [take(x, k) for k in (at, at + 1) for x in self.items]
        return pair, self.owner.repeat(count), given

    def halved(self, pair: Array, made: list[Column]) -> _Left:
        """The sequences with what was made in the place of pairs."""
        count = self.lengths // 2
        lengths = self.lengths - count
        first = starts(lengths)
        odd = (lengths > count).nonzero()[0]
        positions = [first.repeat(count) + pair, first[odd] + count[odd]]
        last = self.first[odd] + self.lengths[odd] - 1
        items = [
            merge(positions, [new, take(old, last)])
            for new, old in zip(made, self.items, strict=True)
        ]
        return _Left(self.owner, first, lengths, items)


def _owner_origin(frame: Frame, i: ir.ReduceLoop, owner: Array) -> Origin:
    """Inputs of a reduction's body are traced back to their sequence as a whole."""
    return lambda register, item: (frame, i.inputs[0], int(owner[item]))


def _waves(i: ir.Waves, frame: Frame, state: Promises) -> Any:
    take_apart(i, frame.registers, state)
    yield from ()


LOOPS: dict[type, Callable[..., Any]] = {
    ir.FoldLoop: _fold,
    ir.ReduceLoop: _reduce,
    ir.Waves: _waves,
}


def _loop(i: ir.Instruction) -> Callable[..., Any]:
    if type(i) not in LOOPS:
        raise refusal('evaluation', type(i))
    return LOOPS[type(i)]
