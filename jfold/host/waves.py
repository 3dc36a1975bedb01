# SPDX-License-Identifier: Apache-2.0
"""Data taken apart wave by wave, before anything else is done with them.

Each wave runs the bodies of declarations on what was sent to them in the wave before,
and does no more than that needs and what is better done while objects are in the cache.
As nothing waits any longer, all else is then done once, on the items of all waves. So a
level of nesting costs a few loops over lists.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jfold import instructions as ir
from jfold.graph import ranges
from jfold.host import cycles
from jfold.host.cycles import EVERY, WIDE, SuspicionError, Watch
from jfold.host.prepared_rules import Step, reader, steps
from jfold.host.promises import Promises
from jfold.host.rules import NONE, Column, join
from jfold.kept import kept
from jfold.registers import CASES, LENGTHS, LISTED, POSITIONS, RegisterType
from jfold.traits import refusal

Array = np.ndarray[Any, Any]
Columns = tuple[Column, ...]

FEW = 24  # waves, whose numbers are made one after another as fast as at once


@dataclass(frozen=True, eq=False)
class _Ready:
    """A body, ready to run often.

    Attributes:
      steps: what runs.
      empty: what registers hold before they are written, but for the inputs.
      results: what reads them.
    """

    steps: tuple[Step, ...]
    empty: list[None]
    results: Callable[[list[Column]], Columns]


@kept
def _ready(body: ir.Body) -> _Ready:
    (stage,) = steps(body)
    made = tuple(step or _refuse(i) for i, step in stage)
    empty = [None] * (body.registers - body.arity)
    return _Ready(made, empty, reader(body.outputs))


def _refuse(i: ir.Instruction) -> Step:
    raise refusal('a wave', type(i))


@dataclass(eq=False)
class _Items:
    """What becomes of the items of a body; lists go by waves.

    Attributes:
      moments, sizes: when the wave is, a number that grows with the depth of the data,
        and how many items it has.
      results: what the body returns.
    """

    moments: list[int]
    sizes: list[int]
    results: list[Columns]


def take_apart(i: ir.Waves, r: list[Column], state: Promises) -> None:
    """Runs bodies wave by wave, and puts what they return of all waves together.

    Raises:
      RecursionError: data are nested too deep.
      SuspicionError: data may contain themselves.
      BadItem: an item does not fit, of which more is known when it is read again.
      ValueError: there are several examples, or one, where the program is of the other.
    """
    if i.single != (state.examples == 1):
        which = 'a single example' if i.single else 'several examples'
        raise ValueError(f'expected {which}, got {state.examples}')
    bodies = state.program.plan.declarations
    found = [_Items([], [], []) for _ in bodies]
    state.placing.waiting[i.declaration] = [tuple(r[k] for k in i.inputs)]
    _run_waves(list(map(_ready, bodies)), found, state)
    results: list[Column] = []
    for body, items in zip(bodies, found, strict=True):
        places = state.placing.enter(items.moments, items.sizes)
        results += [places, *_joined(body.results, items)]
    for register, column in zip(i.outputs, results, strict=True):
        r[register] = column


def _run_waves(
    bodies: Sequence[_Ready], found: Sequence[_Items], state: Promises
) -> None:
    """Runs the bodies of all that is waiting, until nothing is."""
    depth, watch, placing = 0, Watch(), state.placing
    while placing.waiting:
        if depth > cycles.MAX_DEPTH:
            raise RecursionError
        # In the order in which declarations run when calls wait, so rows are the same.
        waves, placing.waiting = placing.waiting, {}
        for d in sorted(waves) if len(waves) > 1 else waves:
            columns = _put_together(waves[d])
            # Only where something may come of it, since a wave may have a single item.
            if not depth % EVERY or depth < watch.until or len(columns[0]) > WIDE:
                _look(watch, depth, sum(placing.counts), d, columns)
            _run(bodies[d], columns, found[d], depth * len(bodies) + d, state)
        depth += 1


def _look(
    watch: Watch, depth: int, calls: int, declaration: int, columns: Columns
) -> None:
    if watch.wakes(depth, calls) and watch.sees_again(depth, declaration, columns):
        raise SuspicionError


def _put_together(parts: Sequence[Columns]) -> Columns:
    """Columns of several calls, one call after another."""
    if len(parts) == 1:
        return parts[0]
    if len(parts[0]) == 1:  # faster than in general, for waves of few items
        return (join([part[0] for part in parts]),)
    return tuple(map(join, zip(*parts, strict=True)))


def _run(
    body: _Ready, columns: Columns, items: _Items, moment: int, state: Promises
) -> None:
    """Runs a body on a wave, at a moment."""
    # No frame, and nothing that could wait: a body that runs in a wave has no calls.
    registers = [*columns, *body.empty]
    items.moments.append(moment)
    items.sizes.append(len(columns[0]))
    for step in body.steps:
        step(registers, state)
    items.results.append(body.results(registers))


def _joined(types: Sequence[RegisterType], items: _Items) -> list[Column]:
    """The results of all waves, one wave after another."""
    if not items.results:  # nothing was sent: no column shows what kind it would be
        return [[] if type_.kind in (*LISTED, CASES) else NONE for type_ in types]
    named = list(zip(types, zip(*items.results, strict=True), strict=True))
    lengths = {type_.of: parts for type_, parts in named if type_.kind == LENGTHS}
    return [_of_all_waves(type_, parts, lengths) for type_, parts in named]


def _of_all_waves(
    type_: RegisterType, parts: Columns, lengths: dict[str, Columns]
) -> Column:
    """One result of all waves; `lengths` are those of the items of sequences."""
    if type_.kind != POSITIONS:
        return join(parts)
    # Of items of a sequence, or of what was sent to a declaration; all other positions
    # are found anew.
    if type_.of in lengths:
        return _shifted(parts, lengths[type_.of])
    return _numbers(parts)


def _shifted(positions: Sequence[Array], lengths: Sequence[Array]) -> Array:
    """Positions among the items of each wave as positions among those of all."""
    counts = [int(each.sum()) for each in lengths]
    begins = itertools.accumulate(counts, initial=0)
    return np.concatenate([x + y for x, y in zip(positions, begins, strict=False)])


def _numbers(parts: Sequence[range]) -> Array:
    """Of what was sent, the numbers among the items of a declaration."""
    if len(parts) < FEW:
        return np.concatenate([np.arange(x.start, x.stop) for x in parts])
    # Each wave's are a range, which takes no array before there is one for all.
    first = np.fromiter(map(operator.attrgetter('start'), parts), np.int64, len(parts))
    return ranges(first, np.fromiter(map(len, parts), np.int64, len(parts)))
