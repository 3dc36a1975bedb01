# SPDX-License-Identifier: Apache-2.0
"""What types of registers do not tell of the order of rows: ways and visits.

Ways tell places apart, so no two of a plan may be one. Visits are the order of
evaluation: nothing is evaluated before what it reads, and what is inside a visit comes
behind its beginning, before all that follows it.

    r4: places[b] = Enter r2 r0 visit=1        1, at r0
      Observe r4 r5 visit=4                      4, at r4: behind 1, before 7
      Observe r4 r6 visit=5                      5
    r8: places[b] = Enter r2 r0 visit=7        7, at r0
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jfold import instructions as ir
from jfold.registers import PLACES, RegisterType
from jfold.traits import Visiting

Types = Mapping[int, RegisterType]  # of registers
Origins = dict[int, frozenset[int]]  # of places, the registers that had them first
Spot = tuple[ir.Body, int]  # a body, and such a register


def wrong_order(
    bodies: Iterable[tuple[ir.Body, Types]],
    declarations: Sequence[ir.Body],
    metrics: Collection[int],
) -> Iterator[str]:
    """What is wrong with the ways and visits of a plan, if anything is.

    Takes time in proportion to the registers that are read and written, and sorts what
    is in one visit.

    Args:
      bodies: all of the plan, with the types of their registers.
      declarations: those of them that calls refer to.
      metrics: the results whose rows are in the order of evaluation.
    """
    origins = {body: _origins(body, types) for body, types in bodies}
    yield from _wrong_ways(origins)
    for body in origins:
        yield from _wrong_statements(body, metrics)
        yield from _too_early(body)
        yield from _keys_read_again(body)
    yield from _wrong_visits(list(_steps(origins, declarations)))


def _origins(body: ir.Body, types: Types) -> Origins:
    """Of each register of places, those in which its items were at first."""
    found = {r: frozenset([r]) for r in range(body.arity) if types[r].kind == PLACES}
    for i in body.instructions:
        for r in i.outputs:
            if types[r].kind == PLACES:
                # Who only moves items leaves them the places that they had.
                moved = i.traits.moves_columns
                found[r] = _all(found, i.inputs) if moved else frozenset([r])
    return found


def _all(origins: Origins, registers: Iterable[int]) -> frozenset[int]:
    """Those of several registers, of which some may hold no places."""
    return frozenset().union(*(origins[r] for r in registers if r in origins))


# ---- ways ----------------------------------------------------------------------------


def _wrong_ways(origins: Mapping[ir.Body, Origins]) -> Iterator[str]:
    """What has the way of another, or makes rows of the kind of another's at the same
    places: nothing would tell their order but what else is in the batch."""
    known: set[Hashable] = set()
    for body, of_body in origins.items():
        for i in body.instructions:
            told = {*_told_by(i, body, of_body)}
            if not known.isdisjoint(told):
                yield f'{body}: {i}: expected a way of its own, got that of another'
            known |= told


def _told_by(i: Any, body: ir.Body, origins: Origins) -> Iterator[Hashable]:
    """What tells the places that an instruction leads to from those of others."""
    if isinstance(i, ir.Maker):
        yield from ((body, i.makes, r, i.way) for r in _all(origins, i.inputs))
        yield from [i.way] * bool(i.way)  # else it makes rows at the places themselves
    elif i.traits.visiting.is_way:
        yield i.way


# ---- what each instruction states ----------------------------------------------------


def _wrong_statements(body: ir.Body, metrics: Collection[int]) -> Iterator[str]:
    """What states a visit that does nothing with visits, or none though it does."""
    for i in body.instructions:
        if i.traits.visiting is Visiting.NOTHING and i.visit is not None:
            yield f'{body}: {i}: expected no visit, as of what makes no rows, got one'
        if i.visit is not None and i.visit < 0:
            yield f'{body}: {i}: expected a visit from 0 on, got {i.visit}'
        if isinstance(i, ir.Observe) and (i.visit is None) == (i.result in metrics):
            told = (
                'a visit, got none' if i.visit is None else f'no visit, got {i.visit}'
            )
            yield f'{body}: {i}: expected, of result {i.result}, {told}'


def _too_early(body: ir.Body) -> Iterator[str]:
    """What is to be evaluated before something that it reads."""
    latest: dict[int, int] = {}
    for i in body.instructions:
        read = max((latest.get(r, -1) for r in i.inputs), default=-1)
        visit = read if i.visit is None else i.visit
        # What goes on in parts of a visit reads what was evaluated in others of them.
        continues = i.traits.visiting is Visiting.CONTINUES
        if i.visit is not None and visit <= read and not continues:
            yield f'{body}: {i}: expected a visit behind {read}, got {visit}'
        latest |= dict.fromkeys(i.outputs, max(read, visit))


def _keys_read_again(body: ir.Body) -> Iterator[str]:
    """What draws with a key that another has drawn with: both would be equal."""
    drawn = {r for i in body.instructions if isinstance(i, ir.Draw) for r in i.outputs}
    read: set[int] = set()
    for i in body.instructions:
        for r in drawn.intersection(i.inputs):
            if r in read or i.inputs.count(r) > 1:
                yield f'{body}: {i}: expected a key of its own, got r{r} again'
            read.add(r)


# ---- what is inside what -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Step:
    """What an instruction does in visits.

    Attributes:
      at: the places that it is at.
      inside: those that it leads to.
      written: whether what is there is numbered between its visit and the next; a
        declaration, which many may call, is numbered elsewhere.
    """

    body: ir.Body
    instruction: ir.Instruction
    at: frozenset[Spot]
    inside: frozenset[Spot]
    written: bool

    @property
    def visit(self) -> int:
        """The one that is stated; -1 if none is."""
        visit = self.instruction.visit
        return -1 if visit is None else visit

    @property
    def continues(self) -> bool:
        """Whether it does so in parts of visits that were entered before."""
        return self.instruction.traits.visiting is Visiting.CONTINUES

    def expected(self, text: str) -> str:
        """What is said of it if it is wrong."""
        return f'{self.body}: {self.instruction}: expected {text}'


def _steps(
    origins: Mapping[ir.Body, Origins], declarations: Sequence[ir.Body]
) -> Iterator[_Step]:
    for body, of_body in origins.items():
        for i in body.instructions:
            visiting = i.traits.visiting
            if visiting is Visiting.NOTHING:
                continue
            first = next(r for r in i.inputs if r in of_body)
            written = visiting not in (Visiting.CALLS, Visiting.TELLS)
            inside = {(inner, 0) for inner in i.bodies}
            inside |= {(body, r) for r in i.outputs if r in of_body and written}
            if visiting is Visiting.TELLS:
                inside |= {(body, r) for r in of_body[i.inputs[-1]]}
            if isinstance(i, ir.Call):
                inside.add((declarations[i.declaration], 0))
            at = frozenset((body, r) for r in of_body[first])
            yield _Step(body, i, at, frozenset(inside), written)


def _wrong_visits(steps: Sequence[_Step]) -> Iterator[str]:
    """What has the visit of another, or none though something is observed inside, or is
    numbered outside of what it is in."""
    entered: dict[Spot, _Step] = {}  # by what leads there and is numbered around it
    known: dict[int, _Step] = {}
    for step in steps:
        if step.continues:
            begun = {entered[spot].visit for spot in step.at if spot in entered}
            if begun != {step.visit}:
                yield step.expected(
                    f'the visit of its places, {begun}, got {step.visit}'
                )
        elif step.visit >= 0 and known.setdefault(step.visit, step) is not step:
            yield step.expected(f'a visit of its own, got {step.visit}, of another')
        if step.written:
            entered |= dict.fromkeys(step.inside, step)
    busy = {spot for step in steps if step.visit >= 0 for spot in step.at}
    for step in steps:
        seen = not busy.isdisjoint(step.inside)
        if step.visit < 0 and seen:
            yield step.expected('a visit, since something is observed inside, got none')
        if step.visit >= 0 and step.inside and not seen and not step.continues:
            yield step.expected(
                f'no visit, since nothing is observed inside, got {step.visit}'
            )
    yield from _outside(steps, entered)


def _outside(steps: Sequence[_Step], entered: Mapping[Spot, _Step]) -> Iterator[str]:
    """What is numbered outside of what it is in."""
    path: list[_Step] = []  # to the step before, from the outside in
    told = (step for step in steps if step.visit >= 0 and not step.continues)
    for step in sorted(told, key=operator.attrgetter('visit')):
        around = _around(step, entered)
        while path and path[-1] is not around:
            path.pop()
        if around is not None and not path:
            begin = f'behind {around.visit}, before all that follows that'
            yield step.expected(f'a visit {begin}, got {step.visit}')
        path.append(step)


def _around(step: _Step, entered: Mapping[Spot, _Step]) -> _Step | None:
    """The step that one is inside of; `None` for those of whole bodies."""
    found: _Step | None = step
    while found is not None and (found is step or found.continues):
        found = entered.get(min(found.at, key=operator.itemgetter(1)))
    return found
