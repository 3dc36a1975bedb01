# SPDX-License-Identifier: Apache-2.0
"""Which operations' results are read where, found by following bodies.

Each register is given the results that it may hold, whatever the data, until nothing
changes: a recursion brings them round.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from jfold import instructions as ir
from jfold.operations import Makers, Operation, Result, Sources
from jfold.program import HostPlan
from jfold.traits import Effect, refusal


def follow(
    plan: HostPlan, operations: Sequence[Operation], results: Iterable[Result]
) -> Sources:
    """The sources of all that is read."""
    counts = (len(each.outputs) for each in operations)
    first = list(itertools.accumulate(counts, initial=0))
    inputs = [[0 for _ in each.inputs] for each in operations]
    given = [[0 for _ in each.tensors] for each in results]
    flow = _Flow(first, inputs, given, plan.declarations)
    before: list[Makers] | None = None  # which nothing found is equal to
    while before != (now := list(itertools.chain(*inputs, *flow.held.values()))):
        before = now
        for body in (plan.body, *plan.declarations):
            flow.follow(body)
    # What the body returns is the value's own result, which lowering puts first.
    given[0] = [flow.registers(plan.body)[r] for r in plan.body.outputs]
    return Sources(tuple(map(tuple, inputs)), tuple(map(tuple, given)))


@dataclass(eq=False)
class _Flow:
    """What is known so far: whose results each input and each tensor of a result may
    be, and per body and register whose results it holds."""

    first: Sequence[int]
    inputs: list[list[Makers]]
    results: list[list[Makers]]
    declarations: Sequence[ir.Body]
    held: dict[ir.Body, list[Makers]] = field(default_factory=dict)

    def registers(self, body: ir.Body) -> list[Makers]:
        """What the registers of a body hold."""
        return self.held.setdefault(body, [0] * body.registers)

    def follow(self, body: ir.Body) -> None:
        """Once through the instructions of a body."""
        held = self.registers(body)
        for instruction in body.instructions:
            given = [held[r] for r in instruction.inputs]
            before = [held[r] for r in instruction.outputs]
            made = self._made(instruction, given, before)
            for register, makers in zip(instruction.outputs, made, strict=True):
                held[register] |= makers

    def _made(
        self, i: ir.Instruction, given: list[Makers], before: list[Makers]
    ) -> Sequence[Makers]:
        """What the outputs of an instruction may hold, beyond what was known before."""
        if isinstance(i, ir.Apply):
            self.inputs[i.operation][:] = _joined(self.inputs[i.operation], given[1:])
            first = self.first[i.operation]
            return [1 << first + k for k in range(len(before))]
        if isinstance(i, ir.Observe):
            self.results[i.result][:] = _joined(self.results[i.result], given[1:])
            return []
        if isinstance(i, ir.Call):
            return self._results(self.declarations[i.declaration], given)
        if isinstance(i, ir.FoldLoop):
            states, items = given[2 : 2 + i.states], given[2 + i.states :]
            states = _joined(states, before)
            made = self._results(i.combine, [0, *states, *items])
            return [*_joined(states, made), *made[i.states :]]
        if isinstance(i, ir.ReduceLoop):
            items = _joined(given[2:], before)
            made = self._results(i.combine, [0, *items, *items])
            return _joined(items, _joined(made, self._results(i.default, [0])))
        if isinstance(i, ir.ReduceGroups):
            return self._groups(i, _joined(given[2:], before))
        makes = i.traits.holds or i.traits.effect & Effect.MAKES
        if makes and not isinstance(i, ir.ConstantMaker):
            raise refusal('who reads what', type(i))
        return [_union(given)] * len(before)  # the others move values, or make none

    def _groups(self, i: ir.ReduceGroups, items: list[Makers]) -> Sequence[Makers]:
        """What groups of items may give, beyond what was known before."""
        made = _joined(items, self._results(i.default, [0]))
        for o in i.operations:
            given = itertools.cycle(items)
            self.inputs[o][:] = map(operator.or_, self.inputs[o], given)
            made = [each | 1 << self.first[o] + k for k, each in enumerate(made)]
        return made

    def _results(self, body: ir.Body, given: Sequence[Makers]) -> list[Makers]:
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
