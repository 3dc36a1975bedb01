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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
from jfold.objects import Reread
from jfold.rules import NONE, RULES, Column, join

Array = np.ndarray[Any, Any]
Rule = Callable[[Any, list[Column], Trace], None]


def trace_in_passes(
    program: p.Program,
    halves: Sequence[Halves],
    examples: list[Any],
    reread: Reread,
    limit: int,
) -> Graph:
    """Runs the plan on a batch whose data is nested no deeper than `limit`."""
    state = _Late(program, len(examples), reread)
    tracked = halves[-1].tracked
    given: list[Column] = [example_places(len(examples))] if tracked else []
    given += [examples] * (program.body.arity - 1)
    items = _take_apart(halves, given, state, limit)
    tokens = _first_tokens(halves, items)
    *of_declarations, outputs = (
        _finish(half, each, tokens, state)
        for half, each in zip(halves, items, strict=True)
    )
    waves = sum(len(each.sizes) for each in items)
    outputs = state.settle(itertools.chain(*of_declarations), outputs, waves)
    return state.graph(outputs)


# ---- what runs when ------------------------------------------------------------------

# Their results number items of a wave, so the second pass has to run them again.
_AGAIN = p.Positions, p.Ranges, p.Order, p.Position, p.Cut, p.Join
_NEVER_EARLY = p.Maker, p.FoldLoop, p.ReduceLoop


@dataclass(frozen=True, eq=False)
class Halves:
    """A body, cut.

    Attributes:
      early: what runs in each wave, before the calls.
      calls: of each call, its declaration and the registers that go with it.
      outputs: of each call, the registers of its results.
      kept: the registers that the second pass needs of the first.
      empty: what registers hold before they are written, but for the inputs.
      body: what runs in the second pass.
      tracked: whether the first pass knows the places of items.
    """

    early: tuple[tuple[Rule, p.Instruction], ...]
    calls: tuple[tuple[int, tuple[int, ...]], ...]
    outputs: tuple[tuple[int, ...], ...]
    kept: tuple[int, ...]
    empty: list[None]
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
    every = [i for stage in body.stages for i in stage.instructions]
    needed = {r for call in calls for r in call.inputs[not tracked :]}
    read = (
        {i.inputs[0] for i in every if isinstance(i, p.Convert)} if tracked else set()
    )
    # Objects are better read in their wave than again when the cache has lost them.
    for wanted in needed | read, needed:
        early = _sources(every, wanted)
        if _may_run_early(early, wanted, calls):
            return _halves(body, early, calls, tracked)
    return None


def _halves(
    body: p.Body, early: list[p.Instruction], calls: tuple[p.Call, ...], tracked: bool
) -> Halves:
    every = [i for stage in body.stages for i in stage.instructions]
    late = [i for i in every if i not in early]
    needed = _read(late) | set(body.outputs)
    late += _sources([i for i in early if isinstance(i, _AGAIN)], needed)
    late.sort(key=every.index)
    written = {r for i in (*late, *calls) for r in i.outputs}
    kept = _read(late) | set(body.outputs) | {0}
    return Halves(
        tuple((RULES[type(i)], i) for i in _narrowed(early)),
        tuple((call.declaration, call.inputs[not tracked :]) for call in calls),
        tuple(call.outputs for call in calls),
        tuple(sorted(kept - written - (set() if tracked else {0}))),
        [None] * (body.registers - body.arity),
        replace(body, stages=(p.Stage(tuple(late), ()),)),
        tracked,
    )


def _narrowed(early: list[p.Instruction]) -> list[p.Instruction]:
    """The instructions, without positions where the items of one case alone are read,
    and once."""
    read = Counter(r for i in early for r in i.inputs)
    positions = {r: i for i in early if isinstance(i, p.Positions) for r in i.outputs}
    made: list[p.Instruction] = []
    for i in early:
        source = positions.get(i.inputs[-1]) if isinstance(i, p.Select) else None
        if source and sum(read[r] for r in source.outputs) == 1:
            made.remove(source)
            case = source.outputs.index(i.inputs[1])
            given = i.inputs[0], *source.inputs
            made.append(p.Among(given, i.outputs, i.where, case))
        else:
            made.append(i)
    return made


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
    early: list[p.Instruction], wanted: set[int], calls: tuple[p.Call, ...]
) -> bool:
    """Whether they wait for nothing, make no rows, and keep items in their order."""
    within = {r for i in early if isinstance(i, _AGAIN) for r in i.outputs}
    plain = [i for i in early if not isinstance(i, (*_AGAIN, p.Select, p.Merge))]
    return (
        not any(isinstance(i, _NEVER_EARLY) for i in early)
        and _read(early).isdisjoint(r for call in calls for r in call.outputs)
        and within.isdisjoint(_read(plain) | wanted)
    )


# ---- the first pass ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Items:
    """What the first pass finds out about the items of a body; lists go by waves.

    Attributes:
      moments, sizes: when the wave is, and how many items it has.
      kept: the columns of the registers that are kept.
      called: per call, the numbers of the first items, and how many there are.
    """

    moments: list[int]
    sizes: list[int]
    kept: list[list[Column]]
    called: list[tuple[list[int], list[int]]]


def _take_apart(
    halves: Sequence[Halves], given: list[Column], state: Trace, limit: int
) -> list[_Items]:
    """Runs the early halves of all bodies, wave by wave."""
    found = [_Items([], [], [], [([], []) for _ in half.calls]) for half in halves]
    counts = [0] * len(halves)
    pool = {len(halves) - 1: [given]} if len(given[0]) else {}
    for depth in range(limit + 1):
        if not pool:
            return found
        called, pool = sorted(pool.items()), {}
        for number, calls in called:
            moment = depth and depth * (len(halves) - 1) + number
            registers = _begin(halves[number], calls, moment, found[number])
            for rule, instruction in halves[number].early:
                rule(instruction, registers, state)
            _end(halves[number], registers, found[number], counts, pool)
    raise RecursionError


def _begin(
    half: Halves, calls: list[list[Column]], moment: int, items: _Items
) -> list[Column]:
    """The registers of a wave, of which the inputs are written."""
    inputs = (
        calls[0] if len(calls) == 1 else [join(x) for x in zip(*calls, strict=True)]
    )
    items.moments.append(moment)
    items.sizes.append(len(inputs[0]))
    if half.tracked:
        inputs[0] = at_moment(inputs[0], moment)
        return inputs + half.empty
    return [None, *inputs, *half.empty]


def _end(
    half: Halves,
    registers: list[Column],
    items: _Items,
    counts: list[int],
    pool: dict[int, list[list[Column]]],
) -> None:
    """Keeps registers, and puts the calls of a wave into the next one.

    `counts` are those of the items of all bodies so far.
    """
    items.kept.append([registers[k] for k in half.kept])
    for (declaration, inputs), (begins, sizes) in zip(
        half.calls, items.called, strict=True
    ):
        columns = [registers[k] for k in inputs]
        size = len(columns[0])
        begins.append(counts[declaration])
        sizes.append(size)
        if size:
            counts[declaration] += size
            if declaration in pool:
                pool[declaration].append(columns)
            else:
                pool[declaration] = [columns]


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
    for register, columns in zip(half.kept, zip(*items.kept, strict=True), strict=True):
        frame.registers[register] = join(columns)
    if not half.tracked:
        frame.registers[0] = np.repeat(items.moments, items.sizes)
    for (declaration, _), called, outputs in zip(
        half.calls, items.called, half.outputs, strict=True
    ):
        numbers = ranges(*map(np.array, called))
        for register, before in zip(outputs, tokens[declaration], strict=True):
            below = np.subtract(-1 - before, numbers, dtype=np.int32)
            frame.registers[register] = below
    return _result(run(frame, state))


def _result(running: Any) -> list[Column]:
    """What a body without calls returns."""
    try:
        next(running)
    except StopIteration as stop:
        result: list[Column] = stop.value
        return result
    raise AssertionError('a body waits in the second pass')


_PENDING = 1 << 62  # a height above all others


class _Late(Trace):
    """A trace of rows whose inputs may be tokens, until `settle`."""

    tentative = True

    def __init__(self, program: p.Program, examples: int, reread: Reread) -> None:
        super().__init__(program, examples, reread)
        self._unsettled: list[list[Any]] = []
        self._pending: list[tuple[int, list[Any]]] = []

    def apply(self, o: int, places: Array, inputs: list[Array]) -> list[Array]:
        """As of `Trace`; heights that depend on tokens are left open."""
        known = all(int(np.minimum.reduce(x)) >= 0 for x in inputs)
        if known or not self.recurrent[o]:
            height = self._height(o, inputs, len(places))
        if self.recurrent[o] and (not known or height.max() >= _PENDING):
            height = np.full(len(places), _PENDING)
        made = self._add(o, places, inputs, height)
        if not known:
            self._unsettled.append(self._nodes[o][-1])
        if self.recurrent[o] and height[0] == _PENDING:
            self._pending.append((o, self._nodes[o][-1]))
        return made

    def settle(
        self, results: Iterable[Array], outputs: list[Array], waves: int
    ) -> list[Array]:
        """Gives heights to all rows, and ids for all tokens; the ids of outputs.

        `results` are those of calls, in the order of tokens; `waves` is the depth.
        """
        found = np.concatenate([NONE, *results])
        while (tokens := np.flatnonzero(found < 0)).size:
            found[tokens] = found[~found[tokens]]

        def settled(values: list[Array]) -> list[Array]:
            if not len(found):
                return values
            return [np.where(x < 0, found.take(~x, mode='clip'), x) for x in values]

        for chunk in self._unsettled:
            chunk[3:] = settled(chunk[3:])
        for chunk in itertools.chain(*self._metrics):
            chunk[2:] = settled(chunk[2:])
        self._settle_heights(waves)
        return settled(outputs)

    def _settle_heights(self, waves: int) -> None:
        """The heights of pending rows, from those that the data is deepest at."""
        work = [self._heights_of(*each) for each in self._pending]
        keys = [moments(chunk[0]) for _, chunk in self._pending]
        if waves * sum(map(len, keys)) < FEW_HEIGHTS:
            # Every round settles a wave more; what it writes elsewhere is passing.
            last = [not each.any() for each in keys]  # rows of the expression itself
            rounds = itertools.compress(work, map(operator.not_, last))
            order = [*rounds] * waves + [*itertools.compress(work, last)]
            for each in order:
                _raise_heights(*each, slice(None))
            return
        parts = [
            (-moment, number, rows)
            for number, each in enumerate(keys)
            for moment, rows in _by_moment(each)
        ]
        parts.sort(key=operator.itemgetter(0, 1))
        for _, number, rows in parts:
            _raise_heights(*work[number], rows)

    def _heights_of(
        self, o: int, chunk: list[Any]
    ) -> tuple[int, list[tuple[Array, Array]], list[Array]]:
        """The height below all nodes of an operation; of each input all heights and its
        ids; the heights to be written."""
        _, made, height, *inputs = chunk
        operation = self.program.operations[o]
        taken = [self._values[t].heights for t in operation.inputs]
        written = [
            self._values[t].heights[ids[0] : ids[0] + len(ids)]
            for t, ids in zip(operation.outputs, made, strict=True)
        ]
        return self.bases[o], list(zip(taken, inputs, strict=True)), [*written, height]


FEW_HEIGHTS = 1 << 14


def _raise_heights(
    base: int, inputs: list[tuple[Array, Array]], written: list[Array], rows: Any
) -> None:
    """Writes heights of rows from those of their inputs."""
    (heights, ids), *more = inputs
    height = heights.take(ids[rows])
    for heights, ids in more:
        np.maximum(height, heights.take(ids[rows]), out=height)
    np.maximum(height, base, out=height)
    height += 1
    for each in written:
        each[rows] = height


def _by_moment(keys: Array) -> Iterator[tuple[int, Any]]:
    """Each moment with the rows that have it."""
    order = stable_order(keys)
    if order is not None:
        keys = keys[order]
    first = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), len(keys)]
    for moment, (a, b) in zip(
        keys[first[:-1]].tolist(), itertools.pairwise(first), strict=True
    ):
        yield moment, slice(a, b) if order is None else order[a:b]
