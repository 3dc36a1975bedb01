# SPDX-License-Identifier: Apache-2.0
"""Which operations' results are read where, found by following bodies.

Each register is given the results that it may hold, whatever the data, until nothing
changes: a recursion brings them round.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

from jfold import instructions as ir
from jfold.operations import Makers, Operation, Sources
from jfold.result_tables import Result
from jfold.traits import Effect, refusal


def follow(
    main: ir.Body,
    declarations: Sequence[ir.Body],
    operations: Sequence[Operation],
    results: Sequence[Result],
    own: int,
) -> Sources:
    """The sources of all that is read, if evaluation starts in `main`, which returns
    the rows of the result `own`."""
    counts = (len(each.outputs) for each in operations)
    first = list(itertools.accumulate(counts, initial=0))
    inputs = [[0 for _ in each.inputs] for each in operations]
    given = [[0 for _ in each.tensors] for each in results]
    flow = _Flow(first, inputs, given, declarations)
    before: list[Makers] | None = None  # which nothing found is equal to
    while before != (now := flow.known()):
        before = now
        for body in (main, *declarations):
            flow.follow(body)
    given[own] = [flow.registers(main)[register] for register in main.outputs]
    return Sources(tuple(map(tuple, inputs)), tuple(map(tuple, given)))


@dataclass(eq=False)
class _Flow:
    """What is known so far: whose results each input and each tensor of a result may
    be, per body and register whose results it holds, and per declaration of a plan in
    two passes whose results it gives."""

    first: Sequence[int]
    inputs: list[list[Makers]]
    results: list[list[Makers]]
    declarations: Sequence[ir.Body]
    held: dict[ir.Body, list[Makers]] = field(default_factory=dict)
    promised: dict[int, list[Makers]] = field(default_factory=dict)

    def known(self) -> list[Makers]:
        """All of it, to tell whether there is more than before."""
        held = *self.held.values(), *self.promised.values()
        return list(itertools.chain(*self.inputs, *self.results, *held))

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
        if isinstance(i, ir.Promise):
            return self._promised(i)
        if isinstance(i, ir.Fulfil):
            self._promised(i)[:] = _joined(self._promised(i), given[1:])
            return []
        if isinstance(i, ir.Waves):
            return [0] * len(before)  # objects, and numbers of items
        makes = i.traits.holds or i.traits.effect & Effect.MAKES
        if makes and not isinstance(i, ir.ConstantMaker):
            raise refusal('who reads what', type(i))
        return [_union(given)] * len(before)  # the others move values, or make none

    def _promised(self, i: ir.Promise | ir.Fulfil) -> list[Makers]:
        """What a declaration gives."""
        return self.promised.setdefault(i.declaration, [0] * len(i.types))

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
