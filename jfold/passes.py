# SPDX-License-Identifier: Apache-2.0
"""The host plan in two passes, for programs that allow it.

The first takes the data apart, wave by wave, and does no more than the calls need. The
second does everything else: as no call waits any longer, each body runs once, on the
items of all waves. So a level of nesting costs a few loops over lists.

Until the second pass is over, the results of calls are *tokens*, negative numbers in
place of value ids, since bodies copy ids and never compute with them.

Items that do not fit are not told here: whoever sees an exception runs the plan again,
wave by wave.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jfold import program as p
from jfold.frames import run, start
from jfold.graph import (
    Graph,
    Trace,
    at_moment,
    example_places,
    moments,
    ranges,
    stable_order,
)
from jfold.rules import NONE, RULES, Column, join

Array = np.ndarray[Any, Any]
Rule = Callable[[Any, list[Column], Trace], None]


def trace_in_passes(
    program: p.Program, halves: Sequence[Halves], examples: list[Any], limit: int
) -> Graph:
    """Runs the plan on a batch whose data is nested no deeper than `limit`."""
    state = _Late(program, len(examples))
    tracked = halves[-1].tracked
    given = [example_places(len(examples))] if tracked else []
    given += [examples] * (program.body.arity - 1)
    items = _take_apart(halves, given, state, limit)
    tokens = _first_tokens(halves, items)
    *of_declarations, outputs = (
        _finish(half, each, tokens, state)
        for half, each in zip(halves, items, strict=True)
    )
    return state.graph(state.settle(itertools.chain(*of_declarations), outputs))


# ---- what runs when ------------------------------------------------------------------

# Their results number items of a wave, so the second pass has to run them again.
_AGAIN = p.Positions, p.Ranges, p.Order, p.Position, p.Cut, p.Join
_NEVER_EARLY = p.Maker, p.FoldLoop, p.ReduceLoop


@dataclass(frozen=True, eq=False)
class Halves:
    """A body, cut.

    Attributes:
      early: what runs in each wave, before the calls.
      calls: all calls.
      inputs: of each call, the registers that go with it.
      kept: the registers that the second pass needs of the first.
      body: what runs in the second pass.
      tracked: whether the first pass knows the places of items.
    """

    early: tuple[tuple[Rule, p.Instruction], ...]
    calls: tuple[p.Call, ...]
    inputs: tuple[tuple[int, ...], ...]
    kept: tuple[int, ...]
    body: p.Body
    tracked: bool


@functools.lru_cache(maxsize=512)
def cut(program: p.Program, single: bool) -> tuple[Halves, ...] | None:
    """The bodies of declarations, then that of the expression, cut.

    A single example needs no places. `None`: the program cannot run in two passes.
    """
    bodies = [_with_cases(body) for body in (*program.declarations, program.body)]
    calls = [call for body in bodies for stage in body.stages for call in stage.calls]
    if any(any(c.lists) or _has_sequences(program, c) for c in calls):
        return None
    tracked = not single or any(body.arity < 2 for body in bodies)
    made = [_cut(body, tracked) for body in bodies]
    if not tracked and any(_reads_places(half) for half in made if half):
        made = [_cut(body, True) for body in bodies]
    found = [half for half in made if half]
    return tuple(found) if len(found) == len(made) else None


def _has_sequences(program: p.Program, call: p.Call) -> bool:
    return max(program.declarations[call.declaration].owners, default=-1) >= 0


def _reads_places(half: Halves) -> bool:
    return any(0 in i.inputs for _, i in half.early)


def _with_cases(body: p.Body) -> p.Body:
    """The body with `Partition` and `Present` in halves."""
    registers = itertools.count(body.registers)

    def halves(i: p.Instruction) -> Iterator[p.Instruction]:
        if isinstance(i, p.Partition | p.Present):
            codes = (next(registers),)
            yield p.Cases(i.inputs, codes, i.where, i)
            yield p.Positions(codes, i.outputs, i.where)
        else:
            yield i

    stages = tuple(
        p.Stage(tuple(itertools.chain(*map(halves, stage.instructions))), stage.calls)
        for stage in body.stages
    )
    return replace(body, stages=stages, registers=next(registers))


def _cut(body: p.Body, tracked: bool) -> Halves | None:
    calls = body.stages[0].calls if body.stages else ()
    inputs = tuple(call.inputs[not tracked :] for call in calls)
    every = [i for stage in body.stages for i in stage.instructions]
    early = _sources(every, set(itertools.chain(*inputs)))
    # breadth-first: nothing early waits for a call
    if not _may_run_early(early, inputs):
        return None
    again = [i for i in every if i in early and isinstance(i, _AGAIN)]
    late = [i for i in every if i not in early]
    needed = _read(late) | set(body.outputs)
    late += _sources(again, needed)
    late.sort(key=every.index)
    written = {r for i in (*late, *calls) for r in i.outputs}
    kept = (_read(late) | set(body.outputs) | {0}) - written
    kept -= set() if tracked else {0}
    return Halves(
        tuple((RULES[type(i)], i) for i in early),
        calls,
        inputs,
        tuple(sorted(kept)),
        replace(body, stages=(p.Stage(tuple(late), ()),)),
        tracked,
    )


def _read(instructions: Iterable[p.Instruction]) -> set[int]:
    return {r for i in instructions for r in i.inputs}


def _sources(instructions: list[p.Instruction], needed: set[int]) -> list[Any]:
    """Those of the instructions that registers are made by."""
    needed, found = set(needed), []
    for i in reversed(instructions):
        if not needed.isdisjoint(i.outputs):
            needed.update(i.inputs)
            found.append(i)
    return found[::-1]


def _may_run_early(
    early: list[p.Instruction], inputs: tuple[tuple[int, ...], ...]
) -> bool:
    """Whether early instructions make no rows, and keep what is in order in order."""
    within = {r for i in early if isinstance(i, _AGAIN) for r in i.outputs}
    plain = [i for i in early if not isinstance(i, (*_AGAIN, p.Select, p.Merge))]
    return (
        not any(isinstance(i, _NEVER_EARLY) for i in early)
        and within.isdisjoint(_read(plain))
        and within.isdisjoint(itertools.chain(*inputs))
    )


# ---- the first pass ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Items:
    """What the first pass finds out about the items of a body; lists go by waves.

    Attributes:
      moments, sizes: of each wave, when it is and how many items it has.
      kept: per register that is kept, its columns.
      called: per call, the numbers of the first items, and how many there are.
    """

    moments: list[int]
    sizes: list[int]
    kept: tuple[list[Column], ...]
    called: tuple[tuple[list[int], list[int]], ...]


def _take_apart(
    halves: Sequence[Halves], given: list[Column], state: Trace, limit: int
) -> list[_Items]:
    """Runs the early halves of all bodies, wave by wave."""
    found = [
        _Items([], [], tuple([] for _ in half.kept), tuple(([], []) for _ in half.calls))
        for half in halves
    ]
    counts = [0] * len(halves)
    pool = {len(halves) - 1: [given]} if len(given[0]) else {}
    for depth in range(limit + 1):
        if not pool:
            return found
        called, pool = sorted(pool.items()), {}
        for number, calls in called:
            moment = depth and depth * (len(halves) - 1) + number
            registers = _begin(halves[number], calls, moment, found[number])
            _run_early(halves[number], registers, found[number], state)
            _call(halves[number], registers, found[number], counts, pool)
    raise RecursionError


def _begin(
    half: Halves, calls: list[list[Column]], moment: int, items: _Items
) -> list[Column]:
    """The registers of a wave, of which the inputs are written."""
    inputs = calls[0] if len(calls) == 1 else list(map(join, zip(*calls, strict=True)))
    items.moments.append(moment)
    items.sizes.append(len(inputs[0]))
    first = [at_moment(inputs.pop(0), moment)] if half.tracked else [None]
    return first + inputs + [None] * (half.body.registers - 1 - len(inputs))


def _run_early(
    half: Halves, registers: list[Column], items: _Items, state: Trace
) -> None:
    for rule, instruction in half.early:
        rule(instruction, registers, state)
    for columns, register in zip(items.kept, half.kept, strict=True):
        columns.append(registers[register])


def _call(
    half: Halves,
    registers: list[Column],
    items: _Items,
    counts: list[int],
    pool: dict[int, list[list[Column]]],
) -> None:
    """Puts the calls of a wave into the next one; `counts` are those of all items."""
    for call, inputs, (first, sizes) in zip(
        half.calls, half.inputs, items.called, strict=True
    ):
        columns = [registers[register] for register in inputs]
        size = len(columns[0])
        first.append(counts[call.declaration])
        sizes.append(size)
        counts[call.declaration] += size
        if size:
            pool.setdefault(call.declaration, []).append(columns)


# ---- the second pass -----------------------------------------------------------------


def _first_tokens(halves: Sequence[Halves], items: list[_Items]) -> list[list[int]]:
    """Per body and output, how many tokens there are before its items'."""
    found, first = [], 0
    for half, each in zip(halves, items, strict=True):
        size, outputs = sum(each.sizes), len(half.body.outputs)
        found.append([first + size * j for j in range(outputs)])
        first += size * outputs
    return found


def _finish(
    half: Halves, items: _Items, tokens: list[list[int]], state: Trace
) -> list[Column]:
    """Runs the late half of a body on the items of all waves; its outputs."""
    if not items.sizes:
        return [NONE] * len(half.body.outputs)
    frame = start(half.body, [], None)
    for register, columns in zip(half.kept, items.kept, strict=True):
        frame.registers[register] = join(columns)
    if not half.tracked:
        frame.registers[0] = np.repeat(items.moments, items.sizes)
    for call, (first, sizes) in zip(half.calls, items.called, strict=True):
        below = ~ranges(np.array(first), np.array(sizes)).astype(np.int32)
        for register, before in zip(
            call.outputs, tokens[call.declaration], strict=True
        ):
            frame.registers[register] = below - np.int32(before)
    return _result(run(frame, state))


def _result(running: Any) -> list[Column]:
    """What a body without calls returns."""
    try:
        next(running)
    except StopIteration as stop:
        result: list[Column] = stop.value
        return result
    raise AssertionError('a body waits in the second pass')


_PENDING = 1 << 30  # a level above all others


class _Late(Trace):
    """A trace of rows whose inputs may be tokens, until `settle`."""

    def __init__(self, program: p.Program, examples: int) -> None:
        super().__init__(program, examples)
        self._pending: list[tuple[p.Operation, list[Any]]] = []

    def apply(self, o: int, places: Array, inputs: list[Array]) -> list[Array]:
        """As of `Trace`; levels that depend on tokens are left open."""
        operation = self.program.operations[o]
        if all(x.min() >= 0 for x in inputs):
            level = self._highest(operation.inputs, inputs, len(places))
            if level.max() < _PENDING:
                return self._add(o, places, inputs, level + 1)
        made = self._add(o, places, inputs, np.full(len(places), _PENDING, np.int32))
        self._pending.append((operation, self._nodes[o][-1]))
        return made

    def settle(self, results: Iterable[Array], outputs: list[Array]) -> list[Array]:
        """Gives levels to all rows, and ids for all tokens; the ids of outputs.

        `results` are those of calls, in the order of tokens.
        """
        found = np.concatenate([NONE, *results])
        while (tokens := np.flatnonzero(found < 0)).size:
            found[tokens] = found[~found[tokens]]

        def settled(values: list[Array]) -> list[Array]:
            if not len(found):
                return values
            return [np.where(x < 0, found.take(~x, mode='clip'), x) for x in values]

        for _, chunk in self._pending:
            chunk[3:] = settled(chunk[3:])
        for chunk in itertools.chain(*self._metrics):
            chunk[2:] = settled(chunk[2:])
        self._settle_levels()
        return settled(outputs)

    def _settle_levels(self) -> None:
        """The levels of pending rows, from those that the data is deepest at."""
        parts = [
            (moment, -number, rows)
            for number, (_, chunk) in enumerate(self._pending)
            for moment, rows in _by_moment(moments(chunk[0]))
        ]
        parts.sort(key=operator.itemgetter(0, 1), reverse=True)
        for _, number, rows in parts:
            operation, (_, made, levels, *inputs) = self._pending[-number]
            taken = [x[rows] for x in inputs]
            level = self._highest(operation.inputs, taken, len(taken[0])) + 1
            levels[rows] = level
            for t, ids in zip(operation.outputs, made, strict=True):
                self._values[t].levels[ids[rows]] = level


def _by_moment(keys: Array) -> Iterator[tuple[int, Any]]:
    """Each moment with the rows that have it."""
    order = stable_order(keys)
    ends = np.flatnonzero(np.diff(keys[order])) + 1
    for rows in np.split(order, ends):
        yield int(keys[rows[0]]), rows
