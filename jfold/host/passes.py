# SPDX-License-Identifier: Apache-2.0
"""The host plan in two passes, for programs that allow it.

The first takes the data apart, wave by wave, and does no more than the calls need and
what is better done while the objects are in the cache. The second does everything else:
as no call waits any longer, each body runs once, on the items of all waves. So a level
of nesting costs a few loops over lists.

Until the second pass is over, the results of calls are *tokens*, negative numbers in
place of value ids, since bodies copy ids and never compute with them.

Items that do not fit are not told here: whoever sees an exception runs the plan again,
wave by wave.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jfold import instructions as ir
from jfold.graph import Graph, gather, ranges
from jfold.host.cycles import SuspicionError, Watch
from jfold.host.early import Step, steps
from jfold.host.frames import run
from jfold.host.objects import Reread, check_all_lengths
from jfold.host.origin import Frame, start
from jfold.host.places import example_places, moments, stable_order
from jfold.host.rules import NONE, Column, join
from jfold.host.trace import Chunk, Trace
from jfold.kept import kept
from jfold.program import Program
from jfold.registers import TENSORS
from jfold.traits import Effect, Ordering

Array = np.ndarray[Any, Any]
Reader = Callable[[list[Column]], tuple[Column, ...]]


def trace_in_passes(
    program: Program,
    halves: Sequence[Halves],
    examples: list[Any],
    reread: Reread,
    limit: int,
) -> Graph:
    """Runs the plan on a batch whose data is nested no deeper than `limit`."""
    state = _Late(program, len(examples), reread)
    items = _take_apart(halves, examples, state, limit)
    places, (*results, outputs) = _finish(halves, items, state)
    outputs = state.settle(places, itertools.chain(*results), outputs)
    return state.graph(outputs)


# ---- what runs when ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Halves:
    """A body, cut.

    Attributes:
      early: what runs in each wave, before the calls.
      calls: of each call, its declaration and what reads the registers of its items.
      callers: of each call, the register of its places.
      outputs: of each call, the registers of its results.
      kept: the registers that the second pass needs of the first.
      keep: what reads them.
      empty: what registers hold before they are written, but for the inputs.
      body: what runs in the second pass.
    """

    early: tuple[Step, ...]
    calls: tuple[tuple[int, Reader], ...]
    callers: tuple[int, ...]
    outputs: tuple[tuple[int, ...], ...]
    kept: tuple[int, ...]
    keep: Reader
    empty: list[None]
    body: ir.Body


@kept
def cut(program: Program, few: bool) -> tuple[Halves, ...] | None:
    """The bodies of declarations, then that of the expression, cut.

    `few` examples are better read late. `None`: the program cannot run in two passes.
    """
    declarations = program.plan.declarations
    bodies = [_with_cases(body) for body in (*declarations, program.plan.body)]
    calls = [call for body in bodies for stage in body.stages for call in stage.calls]
    if any(body.arity < 2 for body in bodies):  # no data to take apart
        return None
    called = {call.declaration for call in calls}
    results = itertools.chain(*(declarations[number].results for number in called))
    if any(each.kind != TENSORS for each in results):  # for which tokens could stand
        return None
    made = [_cut(body, few) for body in bodies]
    found = [half for half in made if half]
    return tuple(found) if len(found) == len(made) else None


def _with_cases(body: ir.Body) -> ir.Body:
    """The body with `Partition` and `Present` in halves."""
    registers = itertools.count(body.registers)

    def halves(i: ir.Instruction) -> Iterator[ir.Instruction]:
        if isinstance(i, ir.Partition | ir.Present):
            codes = (next(registers),)
            yield ir.Cases(i.inputs, codes, i.where, i)
            yield ir.Positions(codes, i.outputs, i.where)
        else:
            yield i

    stages = tuple(
        ir.Stage(tuple(itertools.chain(*map(halves, stage.instructions))), stage.calls)
        for stage in body.stages
    )
    return replace(body, stages=stages, registers=next(registers))


def _cut(body: ir.Body, few: bool) -> Halves | None:
    calls = body.stages[0].calls if body.stages else ()
    every = [i for stage in body.stages for i in stage.instructions]
    needed = {r for call in calls for r in call.inputs[1:]}
    # Many objects are better read in their wave than again, lost by the cache.
    read = set() if few else {i.inputs[0] for i in every if isinstance(i, ir.Convert)}
    for wanted in needed | read, needed:
        early = _sources(every, wanted)
        if _may_run_early(early, wanted, calls):
            return _halves(body, early, calls)
    return None


def _halves(
    body: ir.Body, early: list[ir.Instruction], calls: tuple[ir.Call, ...]
) -> Halves:
    every = [i for stage in body.stages for i in stage.instructions]
    place = {i: number for number, i in enumerate(every)}
    late = list(place.keys() - early)
    needed = _read(late) | set(body.outputs)
    # What numbers the items of a wave has to number those of all waves.
    late += _sources([i for i in early if i.traits.numbers_items], needed)
    late.sort(key=place.__getitem__)
    written = {r for i in (*late, *calls) for r in i.outputs}
    callers = {call.inputs[0] for call in calls}
    kept = sorted((_read(late) | callers | set(body.outputs)) - written - {0})
    return Halves(
        steps(early, {*kept, *(r for call in calls for r in call.inputs)}),
        tuple((call.declaration, _reader(call.inputs[1:])) for call in calls),
        tuple(call.inputs[0] for call in calls),
        tuple(call.outputs for call in calls),
        tuple(kept),
        _reader(kept),
        [None] * (body.registers - body.arity),
        replace(body, stages=(ir.Stage(tuple(late), ()),)),
    )


def _reader(registers: Sequence[int]) -> Reader:
    """Reads registers, faster than a loop."""
    if len(registers) == 1:
        (register,) = registers
        return lambda columns: (columns[register],)
    return operator.itemgetter(*registers) if registers else lambda columns: ()


def _read(instructions: Iterable[ir.Instruction]) -> set[int]:
    return {r for i in instructions for r in i.inputs}


def _sources(instructions: list[ir.Instruction], needed: set[int]) -> list[Any]:
    """Those of the instructions that registers are made by."""
    needed, found = set(needed), []
    for i in reversed(instructions):
        if not needed.isdisjoint(i.outputs):
            needed.update(i.inputs)
            found.append(i)
    return found[::-1]


# What asks for the numbers of items, and gives none.
_USES = Ordering.SELECTS, Ordering.MERGES


def _may_run_early(
    early: list[ir.Instruction], wanted: set[int], calls: tuple[ir.Call, ...]
) -> bool:
    """Whether they wait for nothing, make no rows, ask for no places, and keep items in
    their order."""
    numbering = [i for i in early if i.traits.numbers_items]
    within = {r for i in numbering for r in i.outputs}
    plain = [i for i in early if i.traits.order not in _USES and i not in numbering]
    later = {0} | {r for call in calls for r in call.outputs}
    return (
        not any(i.traits.effect & ~Effect.RAISES for i in early)
        and _read(early).isdisjoint(later)
        and within.isdisjoint(_read(plain) | wanted)
    )


# ---- the first pass ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Items:
    """What the first pass finds out about the items of a body; lists go by waves.

    Attributes:
      moments, sizes: when the wave is, a number that grows with the depth of the data,
        and how many items it has.
      kept: the columns of the registers that are kept.
      called: per call, the numbers of the first items, and how many there are.
    """

    moments: list[int]
    sizes: list[int]
    kept: list[tuple[Column, ...]]
    called: list[tuple[list[int], list[int]]]


def _take_apart(
    halves: Sequence[Halves], examples: list[Any], state: Trace, limit: int
) -> list[_Items]:
    """Runs the early halves of all bodies, wave by wave."""
    found = [_Items([], [], [], [([], []) for _ in half.calls]) for half in halves]
    counts = [0] * len(halves)
    given: tuple[Column, ...] = (examples,) * (halves[-1].body.arity - 1)
    pool = {len(halves) - 1: [given]}
    depth, watch = 0, Watch()
    while pool:
        if depth > limit:
            raise RecursionError
        waves, pool = pool, {}
        for number in sorted(waves) if len(waves) > 1 else waves:
            calls = waves[number]
            half, items = halves[number], found[number]
            inputs = (
                calls[0] if len(calls) == 1 else map(join, zip(*calls, strict=True))
            )
            registers = [None, *inputs, *half.empty]
            size = len(registers[1])
            if watch.wakes(depth, size) and watch.sees_again(
                depth, number, registers[1 : half.body.arity]
            ):
                raise SuspicionError
            items.moments.append(depth * len(halves) + number)
            items.sizes.append(size)
            for step in half.early:
                step(registers, state)
            items.kept.append(half.keep(registers))
            _call(half, registers, items, counts, pool)
        depth += 1
    check_all_lengths(state.lengths)
    return found


def _call(
    half: Halves,
    registers: list[Column],
    items: _Items,
    counts: list[int],
    pool: dict[int, list[tuple[Column, ...]]],
) -> None:
    """Puts the calls of a wave into the next one.

    `counts` are those of the items of all bodies so far.
    """
    for (declaration, read), (begins, sizes) in zip(
        half.calls, items.called, strict=True
    ):
        columns = read(registers)
        size = len(columns[0])
        begins.append(counts[declaration])
        sizes.append(size)
        if size:
            counts[declaration] += size
            pool.setdefault(declaration, []).append(columns)


# ---- the second pass -----------------------------------------------------------------


def _finish(
    halves: Sequence[Halves], items: list[_Items], state: _Late
) -> tuple[Array, list[list[Column]]]:
    """Runs the late halves on the items of all waves.

    Gives the places of all items, and the outputs of each body.

    Meanwhile items of all bodies, one body after another, are numbered, and their
    numbers stand in for their places.
    """
    sizes = [sum(each.sizes) for each in items]
    first = list(itertools.accumulate(sizes, initial=0))
    tokens = _first_tokens(halves, sizes)
    parents = np.zeros(first[-1] if state.examples > 1 else 0, np.int64)
    results = []
    for half, each, a, b in zip(halves, items, first, first[1:], strict=False):
        if a == b:
            results.append([NONE] * len(half.body.outputs))
            continue
        frame = _all_waves(half, each, np.arange(a, b))
        called = [ranges(*map(np.array, numbers)) for numbers in each.called]
        _promise(frame, half, called, tokens)
        results.append(_result(run(frame, state)))
        for (declaration, _), numbers, caller in zip(
            half.calls, called, half.callers, strict=True
        ):
            if len(parents):  # else of one example, which is that of all
                parents[numbers + first[declaration]] = frame.registers[caller]
    return _places(items, parents, state.examples), results


def _all_waves(half: Halves, items: _Items, numbers: Array) -> Frame:
    """The frame of the late half, on the items of all waves."""
    frame = start(half.body, [], None)
    frame.registers[0] = numbers
    kept = zip(*items.kept, strict=True)
    for register, columns in zip(half.kept, kept, strict=True):
        frame.registers[register] = join(columns)
    return frame


def _first_tokens(halves: Sequence[Halves], sizes: list[int]) -> list[list[int]]:
    """Per body and output, how many tokens there are before its items'."""
    found, first = [], 0
    for half, size in zip(halves, sizes, strict=True):
        outputs = len(half.body.outputs)
        found.append([first + size * j for j in range(outputs)])
        first += size * outputs
    return found


def _promise(
    frame: Frame, half: Halves, called: list[Array], tokens: list[list[int]]
) -> None:
    """Writes tokens for the results of calls, of items with the given numbers."""
    for (declaration, _), numbers, outputs in zip(
        half.calls, called, half.outputs, strict=True
    ):
        for register, before in zip(outputs, tokens[declaration], strict=True):
            below = np.subtract(-1 - before, numbers, dtype=np.int32)
            frame.registers[register] = below


def _result(running: Any) -> list[Column]:
    """What a body without calls returns."""
    try:
        next(running)
    except StopIteration as stop:
        result: list[Column] = stop.value
        return result
    raise AssertionError('a body waits in the second pass')


def _places(items: list[_Items], parents: Array, examples: int) -> Array:
    """The places of all items, which tell their examples and their moments.

    `parents` are the numbers of the items whose calls they come from.
    """
    moment = np.concatenate([np.array(each.moments, np.int64) for each in items])
    size = np.concatenate([np.array(each.sizes, np.int64) for each in items])
    found = moment.repeat(size)
    if examples == 1:
        return found
    first = size.cumsum() - size
    of_examples = np.zeros(len(parents), np.int64)
    of_examples[first[-1] :] = example_places(examples)
    for wave in moment[:-1].argsort().tolist():
        rows = slice(first[wave], first[wave] + size[wave])
        of_examples[rows] = of_examples.take(parents[rows])
    found |= of_examples
    return found


_PENDING = 1 << 62  # a height above all others


class _Late(Trace):
    """A trace of rows that stand at numbers of items, and whose inputs may be tokens,
    until both are settled.

    Attributes:
      unsettled: of the chunks of nodes that read tokens, operation and number.
      pending: of those whose heights depend on tokens.
    """

    tentative = True

    def __init__(self, program: Program, examples: int, reread: Reread) -> None:
        super().__init__(program, examples, reread)
        self.unsettled: list[tuple[int, int]] = []
        self.pending: list[tuple[int, int]] = []

    def apply(self, o: int, places: Array, inputs: list[Array]) -> list[Array]:
        """As of `Trace`; heights that depend on tokens are left open."""
        known = all(int(np.minimum.reduce(x)) >= 0 for x in inputs)
        if known or not self.recurrent[o]:
            height = self._height(o, inputs, len(places))
        if self.recurrent[o] and (not known or height.max() >= _PENDING):
            height = np.full(len(places), _PENDING)
        chunk = o, len(self._nodes[o])
        if not known:
            self.unsettled.append(chunk)
        if self.recurrent[o] and height[0] == _PENDING:
            self.pending.append(chunk)
        return self._add(o, places, inputs, height)

    def settle(
        self, places: Array, results: Iterable[Array], outputs: list[Array]
    ) -> list[Array]:
        """Gives places and heights to all rows, and ids for all tokens.

        Args:
          places: [items], of those whose numbers stood in for them.
          results: ids of those of calls, in the order of tokens.
          outputs: ids of the expression's result, or tokens.

        Returns:
          The ids of outputs.
        """
        found = np.concatenate([NONE, *results])
        while (tokens := (found < 0).nonzero()[0]).size:
            found[tokens] = found[~found[tokens]]

        def settled(values: Sequence[Array]) -> list[Array]:
            return [_settled(x, found) for x in values] if len(found) else [*values]

        tables = *self._constants, *self._nodes, *self._results
        numbers = {id(x.places): x.places for chunks in tables for x in chunks}
        placed = {key: places[at] for key, at in numbers.items()}
        for chunks in tables:
            chunks[:] = [Chunk(placed[id(at)], *rest) for at, *rest in chunks]
        for o, k in self.unsettled:
            at, ids, (heights, *inputs) = self._nodes[o][k]
            self._nodes[o][k] = Chunk(at, ids, (heights, *settled(inputs)))
        for chunks in self._results:
            chunks[:] = [Chunk(at, ids, (*settled(x),)) for at, ids, x in chunks]
        by_base = lambda chunk: self.bases[chunk[0]]  # noqa: E731
        for _, rows in itertools.groupby(sorted(self.pending, key=by_base), by_base):
            self._settle_heights(list(rows))
        return settled(outputs)

    def _settle_heights(self, pending: list[tuple[int, int]]) -> None:
        """The heights of pending rows of a component, from those that the data is
        deepest at; components before it have theirs.

            moment   7: leaves' parents      heights 2        deepest first, since a row
                     5:   their parents      heights 3        of a moment reads those of
                     1:     the root         height  4        later ones alone
        """
        work, parts = [], []
        for t in {t for o, _ in pending for t in self.program.operations[o].inputs}:
            below = self._values[t].heights  # once, and no longer for each row
            np.maximum(below, self.bases[pending[0][0]], out=below)
        for number, (o, k) in enumerate(pending):
            places, made, (_, *inputs) = self._nodes[o][k]
            operation = self.program.operations[o]
            heights = [self._values[t].heights for t in operation.inputs]
            ids = [each.astype(np.intp) for each in inputs]  # which index faster
            written = [
                self._values[t].heights[ids[0] : ids[0] + len(ids)]
                for t, ids in zip(operation.outputs, made, strict=True)
            ]
            work.append((list(zip(heights, ids, strict=True)), written))
            found = _by_moment(moments(places))
            parts += [(-moment, number, rows) for moment, rows in found]
        parts.sort(key=operator.itemgetter(0, 1))
        for _, number, rows in parts:
            _raise_heights(*work[number], rows)
        for (o, k), (_, (height, *_)) in zip(pending, work, strict=True):
            places, made, (_, *inputs) = self._nodes[o][k]
            # A copy: the next component raises what is below it.
            self._nodes[o][k] = Chunk(places, made, (height.copy(), *inputs))


def _settled(values: Array, found: Array) -> Array:
    """The ids, with those found for tokens in their place."""
    if np.maximum.reduce(values, initial=-1) < 0:
        return gather(found, ~values)
    ids = np.maximum(~values, 0, dtype=np.intp)
    return np.where(values < 0, found[ids], values)


_ONE = np.ones((), np.int64)  # faster than a number of Python's


def _raise_heights(
    inputs: list[tuple[Array, Array]], written: list[Array], rows: Any
) -> None:
    """Writes heights of rows from those of their inputs."""
    (heights, ids), *more = inputs
    height = heights[ids[rows]]
    for heights, ids in more:
        np.maximum(height, heights[ids[rows]], out=height)
    np.add(height, _ONE, out=height)
    for each in written:
        each[rows] = height


def _by_moment(keys: Array) -> Iterator[tuple[int, Any]]:
    """Each moment with the rows that have it."""
    order = stable_order(keys)
    if order is not None:
        keys = keys[order]
    last = (keys[1:] != keys[:-1]).nonzero()[0]
    first = [0, *(last + 1).tolist(), len(keys)]
    for moment, (a, b) in zip(
        keys[first[:-1]].tolist(), itertools.pairwise(first), strict=True
    ):
        yield moment, slice(a, b) if order is None else order[a:b]
