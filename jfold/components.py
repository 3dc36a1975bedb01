# SPDX-License-Identifier: Apache-2.0
"""Components: operations that take turns, and the order in which they run.

Two operations are of one component if each may read, through others, what the other
makes: the cells of a tree, an encoder's step. Components run one after another, each
with levels of its own, so a batch never waits for what it does not read. An operation
alone that does not read its own results (an embedding, a softmax, a loss) has no
levels: it runs once, over all its nodes. For a component of one operation the number of
levels is the longest chain in the data, the least that any order needs.

Who may read what is found on the program, whatever the data: each register is given the
results of operations that it may hold, until nothing changes.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from jfold import program as p
from jfold.kept import kept

Makers = int  # a set of operations, or of their results, as bits


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


@kept
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


@kept
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


@dataclass(frozen=True)
class Sources:
    """Of which operations' results, as bits, each value that is read may be.

    Results are numbered through all operations.

    Attributes:
      inputs: per operation and input.
      results: per result and tensor.
    """

    inputs: tuple[tuple[Makers, ...], ...]
    results: tuple[tuple[Makers, ...], ...]


def first_results(program: p.Program) -> list[int]:
    """Per operation, the number of its first result; in the end, how many there are."""
    counts = (len(operation.outputs) for operation in program.operations)
    return list(itertools.accumulate(counts, initial=0))


def results_in(makers: Makers) -> Iterator[int]:
    """The numbers in a set."""
    while makers:
        lowest = makers & -makers
        yield lowest.bit_length() - 1
        makers ^= lowest


@kept
def sources(program: p.Program) -> Sources:
    """Who reads what, found by following a program until nothing changes."""
    inputs = [[0 for _ in each.inputs] for each in program.operations]
    results = [[0 for _ in each.tensors] for each in program.results]
    first = first_results(program)
    flow = _Flow(first, inputs, results, program.declarations)
    before: list[Makers] = []
    while before != (now := list(itertools.chain(*inputs, *flow.held.values()))):
        before = now
        flow.follow(program.body)
        for body in program.declarations:
            flow.follow(body)
    results[0] = [flow.registers(program.body)[r] for r in program.body.outputs]
    return Sources(tuple(map(tuple, inputs)), tuple(map(tuple, results)))


def _reads(program: p.Program) -> list[Makers]:
    """Per operation, which operations' results it may read directly."""
    counts = enumerate(len(each.outputs) for each in program.operations)
    owner = [o for o, count in counts for _ in range(count)]
    return [
        _union([1 << owner[number] for number in results_in(_union(inputs))])
        for inputs in sources(program).inputs
    ]


@dataclass(frozen=True, eq=False)
class _Flow:
    """What is known so far: whose results each input and each tensor of a result may
    be, and per body and register whose results it holds."""

    first: Sequence[int]
    inputs: list[list[Makers]]
    results: list[list[Makers]]
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
            self.inputs[i.operation][:] = _joined(self.inputs[i.operation], given[1:])
            first = self.first[i.operation]
            return [1 << first + k for k in range(len(before))]
        if isinstance(i, p.Observe):
            self.results[i.result][:] = _joined(self.results[i.result], given[1:])
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
