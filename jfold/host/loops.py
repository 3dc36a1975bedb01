# SPDX-License-Identifier: Apache-2.0
"""Loops over sequences, and the bodies that they and calls run, on columns."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Generator
from typing import Any, TypeAlias

import numpy as np

from jfold import instructions as ir
from jfold.errors import BadItem
from jfold.host.groups import Cut, Left, cut, merged
from jfold.host.origin import Frame, Origin, located, start
from jfold.host.pieces import whole
from jfold.host.prepared_rules import make_whole, steps
from jfold.host.promises import Promises
from jfold.host.rules import Column, put, starts, take
from jfold.host.trace import Trace
from jfold.host.waves import take_apart
from jfold.traits import refusal

Array = np.ndarray[Any, Any]
Calls = list[tuple[ir.Call, list[Column]]]
MAX_ROUNDS = 64  # no sequence is longer than 2**64

Combine: TypeAlias = Callable[[list[Column], Array, Array], Any]  # see `_rounds`
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
                    make_whole(instruction, registers)
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
    places, *given = (whole(r[k]) for k in call.inputs)
    return [state.inside(call, places), *given]


# ---- loops over sequences ------------------------------------------------------------


def _fold(i: ir.FoldLoop, frame: Frame, state: Trace) -> Any:
    """Position by position, over the sequences that are long enough."""
    r = frame.registers
    lengths, places, *columns = (r[k] for k in i.inputs)
    # Longest first: at each position those that go on are the first so many, and what
    # they have is a slice.
    order = np.argsort(-lengths, kind='stable')
    entered = isinstance(i, ir.FoldEntered)
    places = places if entered else places[order]
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
        at = places[now] if entered else places[:count]
        inputs = [state.inside(i, at, item), *given]
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

    def pairs(given: list[Column], places: Array, owner: Array) -> Any:
        origin = _owner_origin(frame, i, owner)
        return run(start(i.combine, [places, *given], origin), state)

    return _rounds(i, frame, state, cut((2,), together=False), pairs)


def _reduce_groups(i: ir.ReduceGroups, frame: Frame, state: Trace) -> Any:
    """Rounds over groups of neighbours, by operations of as many items."""
    columns = len(i.outputs)

    def group(given: list[Column], places: Array, owner: Array) -> Any:
        which = bisect.bisect_left(i.sizes, len(given) // columns)
        missing = i.sizes[which] - len(given) // columns
        constants = [np.full(len(places), state.shared[k]) for k in i.fill]
        fill = given[-columns:] if i.again else constants
        yield from ()  # nothing waits here, but `_rounds` runs bodies that may
        at = state.at(0, places)
        try:
            return state.apply(i.operations[which], at, given + fill * missing)
        except BadItem as error:
            index = int(owner[error.index])
            raise BadItem(index, str(error), error.hint) from None

    together = i.again or bool(i.fill)
    return _rounds(i, frame, state, cut(i.sizes, together), group)


def _rounds(
    i: ir.ReduceLoop | ir.ReduceGroups,
    frame: Frame,
    state: Trace,
    cut: Cut,
    combine: Combine,
) -> Any:
    """Combines groups of neighbours, until one item is left of each sequence.

    `combine` is given columns of first items, of second ones, and so on, their places,
    and the sequences that they belong to.
    """
    r = frame.registers
    lengths, places, *items = (r[k] for k in i.inputs)
    left = Left(np.arange(len(lengths)), starts(lengths), lengths, items)
    finished = [left.ones()]
    for number in range(MAX_ROUNDS):
        left = left.longer()
        if not len(left.owner):
            break
        groups, made = left.groups(cut), []
        for at, given in groups.by_length():
            owner, result = left.owner[groups.owner[at]], given
            if len(given) > len(items):
                # Rounds shorten sequences: a group is told by its number and its round.
                told = functools.partial(np.add, groups.number[at] * MAX_ROUNDS, number)
                inside = state.inside(i, places[owner], told)
                result = yield from combine(given, inside, owner)
            made.append((at, result))
        left = left.after(groups, made)
        finished.append(left.ones())
    # What a default makes is made only where there is a sequence without items.
    empty = (lengths == 0).nonzero()[0]
    if len(empty):
        origin = _owner_origin(frame, i, empty)
        inputs = [state.inside(i, places[empty])]
        given = yield from run(start(i.default, inputs, origin), state)
        finished.append((empty, given))
    for register, column in zip(i.outputs, merged(finished), strict=True):
        r[register] = column


def _owner_origin(
    frame: Frame, i: ir.ReduceLoop | ir.ReduceGroups, owner: Array
) -> Origin:
    """Inputs of a reduction's body are traced back to their sequence as a whole."""
    return lambda register, item: (frame, i.inputs[0], int(owner[item]))


def _waves(i: ir.Waves, frame: Frame, state: Promises) -> Any:
    take_apart(i, frame.registers, state)
    yield from ()


LOOPS: dict[type, Callable[..., Any]] = {
    ir.FoldLoop: _fold,
    ir.FoldEntered: _fold,
    ir.ReduceLoop: _reduce,
    ir.ReduceGroups: _reduce_groups,
    ir.Waves: _waves,
}


def _loop(i: ir.Instruction) -> Callable[..., Any]:
    if type(i) not in LOOPS:
        raise refusal('evaluation', type(i))
    return LOOPS[type(i)]
