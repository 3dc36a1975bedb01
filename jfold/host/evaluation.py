# SPDX-License-Identifier: Apache-2.0
"""The host plan: a `Program` on a batch of examples gives a `Graph`.

Each body runs on columns, which hold the whole batch's values at one point. A body that
calls a declaration waits until all bodies that can run have run; then all calls of one
declaration run as one, on the column of all their items. So the number of Python steps
is the nesting depth of the data, not its number of nodes, and no Python recursion
follows the data.

Most programs are rewritten so that nothing waits, which is faster; see `two_passes`.
All others run as they are, and so does what something is wrong with, to tell what.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jfold import instructions as ir
from jfold.errors import BadItem, InputError
from jfold.graph import Graph, concatenate
from jfold.host import cycles
from jfold.host.cycles import SuspicionError, Watch
from jfold.host.frames import Running, run
from jfold.host.objects import Reread
from jfold.host.origin import Frame, locate, start
from jfold.host.places import MAX_EXAMPLES, example_places
from jfold.host.promises import Promises
from jfold.host.rules import NONE, Column, join
from jfold.host.trace import Trace
from jfold.host.two_passes import in_two_passes
from jfold.program import Program


def trace(
    program: Program, examples: Sequence[Any], reread: Reread | None = None
) -> Graph:
    """Runs the host plan on a batch.

    Args:
      reread: that of an earlier call with some of the same examples.

    Raises:
      InputError: an example does not fit the expression. Nothing is kept of the batch.
      RuntimeError: an example did not fit, and did when it was read again.
    """
    parts, reread = [], Reread() if reread is None else reread
    # Places have no room for the numbers of more examples.
    for first in range(0, max(len(examples), 1), MAX_EXAMPLES):
        try:
            part = list(examples[first : first + MAX_EXAMPLES])
            parts.append(_trace(program, part, reread))
        except InputError as error:
            if not first:
                raise
            raise error.renumbered(first + error.example) from error
    return concatenate(parts)


OF_DATA = BadItem, RecursionError, SuspicionError  # what a plan says of its examples


def _trace(program: Program, examples: list[Any], reread: Reread) -> Graph:
    rewritten = in_two_passes(program, len(examples) == 1) if examples else None
    failure = None
    if rewritten:
        try:
            promises = Promises(rewritten, len(examples), reread)
            return graph_of(rewritten, examples, promises, Watch())
        except Exception as error:
            failure = error
            if isinstance(error, OF_DATA):
                error.with_traceback(None)  # which holds all that was traced
    # What is wrong with an example is found by the plan as it was.
    suspected = isinstance(failure, SuspicionError)
    watch = Watch(deep=1) if suspected else Watch()
    graph = graph_of(program, examples, Trace(program, len(examples), reread), watch)
    if failure is None or suspected:
        return graph
    if isinstance(failure, OF_DATA):
        raise RuntimeError(_UNSTEADY) from failure
    raise failure


def graph_of(
    program: Program, examples: list[Any], state: Trace, watch: Watch
) -> Graph:
    """What a plan makes of examples, in a new trace."""
    given: list[Column] = [example_places(len(examples))]
    given += [examples] * (program.plan.body.arity - len(given))
    return state.graph(_evaluate(program, given, state, watch))


_UNSTEADY = (
    'expected functions that give the same results on the same data, got examples that '
    'did not fit the expression, and did when they were read again; make what '
    '`InputTransform` and `OneOf` call depend on nothing else'
)


# ---- frames that wait for calls ------------------------------------------------------


@dataclass(eq=False)
class Waiting:
    """A frame that waits for the results of its calls."""

    running: Running
    callers: Callers
    results: list[list[Column]] = field(default_factory=list)
    missing: int = 0


@dataclass(frozen=True, eq=False)
class Receiver:
    """Who gets the results of a call, and how many items of them."""

    waiting: Waiting
    slot: int
    size: int


@dataclass(frozen=True, eq=False)
class Callers:
    """Who gets the results of a frame, and which outputs hold the lengths of others."""

    owners: tuple[int, ...]
    receivers: list[Receiver]


def _evaluate(
    program: Program, given: list[Column], state: Trace, watch: Watch
) -> list[Column]:
    root = run(start(program.plan.body, given, None), state)
    pool: dict[int, list[tuple[Receiver, list[Column], Frame, ir.Call]]] = {}
    ready: list[tuple[Running, Callers, Any]] = [(root, Callers((), []), None)]
    result: list[Column] = []
    depth = 0
    while ready or pool:
        if not ready:
            depth += 1
            if depth > cycles.MAX_DEPTH:
                raise _too_deep(next(iter(pool.values())))
            for number in sorted(pool, reverse=True):  # the first is taken first
                moment = depth * len(program.plan.declarations) + number
                frame, callers = _merge(program.plan.declarations[number], pool[number])
                columns = frame.registers[1 : frame.body.arity]
                woken = columns and watch.wakes(depth, len(columns[0]))
                if woken and watch.sees_again(depth, number, columns):
                    watch.refuse(number, frame, pool[number][0][3].where)
                places = frame.registers[0]
                frame.registers[0] = state.order.entered(places, moment)
                ready.append((run(frame, state), callers, None))
            pool = {}
        running, callers, sent = ready.pop()
        try:
            frame_calls = running.send(sent)
        except StopIteration as stop:
            if not callers.receivers:
                result = stop.value
            ready += _deliver(stop.value, callers)
            continue
        waiting = _wait(program, running, callers, frame_calls, pool)
        if not waiting.missing:
            ready.append((running, callers, waiting.results))
    return result


def _too_deep(calls: list[tuple[Receiver, list[Column], Frame, ir.Call]]) -> InputError:
    _, _, frame, call = calls[0]
    text = f'nested more than {cycles.MAX_DEPTH:,} deep; does the data contain itself?'
    example, path = locate(frame, call.inputs[-1], 0)
    return InputError(text, example, path, call.where)


def _wait(
    program: Program, running: Running, callers: Callers, calls: Any, pool: Any
) -> Waiting:
    """Puts a frame's calls into the pool; one on no items has its result at once."""
    waiting = Waiting(running, callers)
    for slot, (frame, call, inputs) in enumerate(calls):
        size = len(inputs[0])
        if not size:
            lists = program.plan.declarations[call.declaration].lists
            waiting.results.append([[] if x else NONE for x in lists])
            continue
        waiting.results.append([])
        waiting.missing += 1
        item = (Receiver(waiting, slot, size), inputs, frame, call)
        pool.setdefault(call.declaration, []).append(item)
    return waiting


def _merge(body: ir.Body, calls: Any) -> tuple[Frame, Callers]:
    """One frame for all calls that wait for the same declaration."""
    columns = list(zip(*(inputs for _, inputs, _, _ in calls), strict=True))
    inputs = list(map(join, columns))

    def origin(register: int, item: int) -> tuple[Frame, int, int]:
        counts = list(map(len, columns[register]))
        number = 0
        while item >= counts[number]:
            item, number = item - counts[number], number + 1
        _, _, frame, call = calls[number]
        return frame, call.inputs[register], item

    callers = Callers(body.owners, [receiver for receiver, *_ in calls])
    return start(body, inputs, origin), callers


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
            total = np.append(0, np.cumsum(outputs[owner]))
            column = total[columns[owner]].tolist()
        columns.append(column)
    return map(list, zip(*columns, strict=True)) if columns else iter([[]] * len(sizes))


def _deliver(
    outputs: list[Column], callers: Callers
) -> Iterator[tuple[Running, Callers, Any]]:
    """Hands each caller its part of the results; the frames that can go on."""
    sizes = [receiver.size for receiver in callers.receivers]
    ends = _ends(outputs, callers.owners, sizes)
    first = [0] * len(outputs)
    for receiver, last in zip(callers.receivers, ends, strict=True):
        waiting = receiver.waiting
        parts = zip(outputs, first, last, strict=True)
        waiting.results[receiver.slot] = [x[a:b] for x, a, b in parts]
        first = last
        waiting.missing -= 1
        if not waiting.missing:
            yield waiting.running, waiting.callers, waiting.results
