# SPDX-License-Identifier: Apache-2.0
"""The host plan: a `Program` on a batch of examples gives a `Graph`.

Each body runs on columns, which hold the whole batch's values at one point. A body that
calls a declaration waits until all bodies that can run have run; then all calls of one
declaration run as one, on the column of all their items. So the number of Python steps
is the nesting depth of the data, not its number of nodes, and no Python recursion
follows the data.

Most programs are rewritten so that nothing waits, which is faster; see `two_passes`.
All others run as they are, and so does what something is wrong with, to tell what.
Calls that run once for each object never wait; see `sharing`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from jfold import instructions as ir
from jfold.errors import BadItem, InputError
from jfold.graph import Graph, concatenate
from jfold.host import cycles
from jfold.host.calls import Callers, Made, Ready, merge, wait
from jfold.host.cycles import SuspicionError, Watch
from jfold.host.deferred import deferred
from jfold.host.loops import run
from jfold.host.origin import Frame, locate, start
from jfold.host.pieces import whole
from jfold.host.promises import CircularError, promising
from jfold.host.row_order import MAX_EXAMPLES
from jfold.host.rules import Column
from jfold.host.sharing import First, Once, circle
from jfold.host.trace import Trace
from jfold.host.two_passes import in_two_passes
from jfold.program import Program, is_breadth_first, shares


def trace(program: Program, examples: Sequence[Any]) -> Graph:
    """Runs the host plan on a batch.

    Raises:
      InputError: an example does not fit the expression. Nothing is kept of the batch.
      RuntimeError: an example did not fit, and did when it was read again.
    """
    parts, size = [], _most_together(program)
    for first in range(0, max(len(examples), 1), size):
        try:
            part = list(examples[first : first + size])
            parts.append(_trace(program, part))
        except InputError as error:
            if not first:
                raise
            raise error.renumbered(first + error.example) from error
    return concatenate(parts)


def _most_together(program: Program) -> int:
    """How many examples are traced at once."""
    if shares(program) and not is_breadth_first(program):
        return 1  # who asks first for an object depends on when other examples wait
    return MAX_EXAMPLES  # places have no room for the numbers of more


OF_DATA = BadItem, RecursionError, SuspicionError  # what a plan says of its examples


def _trace(program: Program, examples: list[Any]) -> Graph:
    rewritten = in_two_passes(program, len(examples) == 1) if examples else None
    failure = None
    if rewritten:
        try:
            state = promising(rewritten, len(examples))
            return graph_of(rewritten, examples, state, Watch())
        except Exception as error:
            failure = error
            if isinstance(error, OF_DATA):
                error.with_traceback(None)  # which holds all that was traced
    # What is wrong with an example is found by the plan as it was.
    suspected = isinstance(failure, SuspicionError)
    watch = Watch(deep=1) if suspected else Watch()
    make = deferred if shares(program) else Trace
    graph = graph_of(program, examples, make(program, len(examples)), watch)
    if failure is None or suspected:
        return graph
    if isinstance(failure, OF_DATA):
        raise RuntimeError(_UNSTEADY) from failure
    raise failure


def graph_of(
    program: Program, examples: list[Any], state: Trace, watch: Watch
) -> Graph:
    """What a plan makes of examples, in a new trace."""
    given: list[Column] = [state.placing.begin()]
    given += [examples] * (program.plan.body.arity - len(given))
    work = _Evaluation(program, state, watch)
    outputs = _evaluate(work, given)
    try:
        return state.graph(outputs)
    except CircularError:
        raise circle(work.once.values()) from None


_UNSTEADY = (
    'expected functions that give the same results on the same data, got examples that '
    'did not fit the expression, and did when they were read again; make what '
    '`InputTransform` and `OneOf` call depend on nothing else'
)


# ---- frames that wait for calls ------------------------------------------------------


@dataclass(eq=False)
class _Evaluation:
    """A plan at work.

    Attributes:
      once: of declarations that run once for each object, what they were called on.
      firsts: by the id of a key, what such were called on first.
      depth: how often all that could run has run.
    """

    program: Program
    state: Trace
    watch: Watch
    once: dict[int, Once] = field(default_factory=dict)
    firsts: dict[int, list[First]] = field(default_factory=dict)
    depth: int = 0

    def started(self, pool: dict[int, list[Made]]) -> Iterator[Ready]:
        """The frames of all calls that wait, and what goes on without."""
        self.depth += 1
        if self.depth > cycles.MAX_DEPTH:
            raise _too_deep(next(iter(pool.values())))
        for number in sorted(pool, reverse=True):  # the first is taken first
            body = self.program.plan.declarations[number]
            call = pool[number][0].call
            if isinstance(call, ir.CallOnce):
                firsts = self.firsts.setdefault(id(call.key), [])
                table = self.once.setdefault(number, Once(call.key, firsts))
                home, answered = table.ask(body, pool[number], self.state)
                yield from answered
                if home is not None:
                    yield self._ready(number, home.frame, home)
            else:
                frame, callers = merge(body, pool[number])
                self._look(number, frame, call)
                yield self._ready(number, frame, callers)

    def _ready(self, number: int, frame: Frame, callers: Callers) -> Ready:
        moment = self.depth * len(self.program.plan.declarations) + number
        frame.registers[0] = self.state.entered(frame.registers[0], moment)
        return run(frame, self.state), callers, None

    def _look(self, number: int, frame: Frame, call: ir.Call) -> None:
        """Refuses data that contain themselves."""
        columns = frame.registers[1 : frame.body.arity]
        if not columns:
            return
        woken = self.watch.wakes(self.depth, self.watch.calls + len(columns[0]))
        if woken and self.watch.sees_again(self.depth, number, columns):
            self.watch.refuse(number, frame, call.where)


def _evaluate(work: _Evaluation, given: list[Column]) -> list[Column]:
    root = run(start(work.program.plan.body, given, None), work.state)
    pool: dict[int, list[Made]] = {}
    ready: list[Ready] = [(root, None, None)]
    result: list[Column] = []
    while ready or pool:
        if not ready:
            waiting_calls, pool = pool, {}
            ready += work.started(waiting_calls)
            continue
        running, callers, sent = ready.pop()
        try:
            frame_calls = running.send(sent)
        except StopIteration as stop:
            if callers is None:
                result = list(map(whole, stop.value))
            else:
                ready += callers.deliver(stop.value)
            continue
        waiting = wait(work.program, running, callers, frame_calls, pool)
        if not waiting.missing:
            ready.append((running, callers, waiting.results))
    return result


def _too_deep(calls: list[Made]) -> InputError:
    _, _, frame, call = calls[0]
    text = f'nested more than {cycles.MAX_DEPTH:,} deep; does the data contain itself?'
    example, path = locate(frame, call.inputs[-1], 0)
    return InputError(text, example, path, call.where)
