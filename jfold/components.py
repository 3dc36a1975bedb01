# SPDX-License-Identifier: Apache-2.0
"""Components: operations that take turns, and the order in which they run.

Two operations are of one component if each may read, through others, what the other
makes: the cells of a tree, an encoder's step. Components run one after another, each
with levels of its own, so a batch never waits for what it does not read. An operation
alone that does not read its own results (an embedding, a softmax, a loss) has no
levels: it runs once, over all its nodes. For a component of one operation the number of
levels is the longest chain in the data, the least that any order needs.

Who may read what is found on the program, whatever the data: each register is given the
operations whose results it may hold, until nothing changes.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

from jfold import program as p

Makers = int  # a set of operations, as bits


@dataclass(frozen=True)
class Component:
    """Operations that run level by level together.

    Attributes:
      operations: in the program's order.
      recurrent: whether they read their own results; if not it is one operation, whose
        nodes are all of level 1.
    """

    operations: tuple[int, ...]
    recurrent: bool


@p.kept
def components(program: p.Program) -> tuple[Component, ...]:
    """All operations, so that each component reads itself and earlier ones alone."""
    reads = _closure(_reads(program))
    reached = [made | 1 << o for o, made in enumerate(reads)]
    groups: dict[Makers, list[int]] = {}
    for o, made in enumerate(reached):  # equal for those that read each other
        groups.setdefault(made, []).append(o)
    # What a component reads reaches less than it does.
    ordered = sorted(groups.values(), key=lambda group: reached[group[0]].bit_count())
    return tuple(
        Component(tuple(group), bool(reads[group[0]] >> group[0] & 1))
        for group in ordered
    )


@p.kept
def component_of(program: p.Program) -> tuple[int, ...]:
    """Per operation, the number of its component."""
    numbers = enumerate(components(program))
    found = {o: c for c, component in numbers for o in component.operations}
    return tuple(found[o] for o in range(len(program.operations)))


def _closure(reads: list[Makers]) -> list[Makers]:
    """What each operation reads, directly or through others."""
    reads = list(reads)
    for q in range(len(reads)):
        for o in range(len(reads)):
            if reads[o] >> q & 1:
                reads[o] |= reads[q]
    return reads


# ---- who reads what ------------------------------------------------------------------


def _reads(program: p.Program) -> list[Makers]:
    """Per operation, whose results it may read directly."""
    flow = _Flow([0 for _ in program.operations], program.declarations)
    before: list[Makers] = []
    while before != (now := [*flow.reads, *itertools.chain(*flow.held.values())]):
        before = now
        flow.follow(program.body)
        for body in program.declarations:
            flow.follow(body)
    return flow.reads


@dataclass(frozen=True, eq=False)
class _Flow:
    """What is known so far: per operation whose results it reads, and per body and
    register whose results it holds."""

    reads: list[Makers]
    declarations: Sequence[p.Body]
    held: dict[p.Body, list[Makers]] = field(default_factory=dict)

    def registers(self, body: p.Body) -> list[Makers]:
        """What the registers of a body hold."""
        return self.held.setdefault(body, [0] * body.registers)

    def follow(self, body: p.Body) -> None:
        """Once through the instructions of a body."""
        held = self.registers(body)
        for instruction in itertools.chain(*body.stages):
            given = [held[r] for r in instruction.inputs]
            before = [held[r] for r in instruction.outputs]
            made = self._made(instruction, given, before)
            for register, makers in zip(instruction.outputs, made, strict=True):
                held[register] |= makers

    def _made(
        self, i: p.Instruction, given: list[Makers], before: list[Makers]
    ) -> Sequence[Makers]:
        """What the outputs of an instruction may hold, beyond what was known before."""
        if isinstance(i, p.Apply):
            self.reads[i.operation] |= _union(given)
            return [1 << i.operation] * len(before)
        if isinstance(i, p.Call):
            return self._results(self.declarations[i.declaration], given)
        if isinstance(i, p.FoldLoop):
            states, items = given[2 : 2 + i.states], given[2 + i.states :]
            states = _joined(states, before)
            made = self._results(i.combine, [0, *states, *items])
            kept = len(states) - len(made)  # the body changes the last ones
            return _joined(states, [0] * kept + made)
        if isinstance(i, p.ReduceLoop):
            items = _joined(given[2:], before)
            made = self._results(i.combine, [0, *items, *items])
            return _joined(items, _joined(made, self._results(i.default, [0])))
        return [_union(given)] * len(before)

    def _results(self, body: p.Body, given: Sequence[Makers]) -> list[Makers]:
        """What a body returns, given what its arguments may hold."""
        held = self.registers(body)
        for register, makers in enumerate(given):
            held[register] |= makers
        if body not in self.declarations:
            self.follow(body)
        return [held[r] for r in body.outputs]


def _union(given: Sequence[Makers]) -> Makers:
    return functools.reduce(operator.or_, given, 0)


def _joined(left: Sequence[Makers], right: Sequence[Makers]) -> list[Makers]:
    return list(map(operator.or_, left, right))
