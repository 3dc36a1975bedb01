# SPDX-License-Identifier: Apache-2.0
"""Programs in which no operation takes turns: uses of one operation, told apart.

A function that is used in several places is one operation, so that all its nodes run
together. But in rounds of messages

    sum >> round 0 >> sum >> round 1 >> sum

the one `sum` reads what the rounds make, and they read it: all three would be of one
component and take turns, level by level, though no use of any reads what itself has
made. So uses are looked at one by one. Those of a component that stand one behind
another become operations of their own, by how many stand before them,

    sum 0 >> round 0 >> sum 1 >> round 1 >> sum 2

each of which runs once, over all its nodes. Uses that may run beside each other stay
one operation. Where the data decide how often something runs on its own results, in a
recursion or a loop over a sequence, operations take turns and there is no such program.
Sums of sequences take turns as well, in groups of groups, but these are summed at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from jfold import instructions as ir
from jfold.language.rewriting import rewritten
from jfold.operations import Operation
from jfold.program import HostPlan, Program, check_program
from jfold.recurrence import component_of, components, reads, results_in
from jfold.registers import OBJECTS

LOOPS = ir.FoldLoop, ir.ReduceLoop
Number = Callable[[int], int]  # of an operation, asked once for each of its uses


def without_turns(program: Program) -> Program:
    """The program with more operations, of which none takes turns but sums.

    Raises:
      TypeError: the data decide how often something runs on its own results; the
        message names the block.
    """
    for loop in _of_kind(program.plan, LOOPS):
        raise _takes_turns(loop.where, 'a loop over a sequence')
    for call in _recursive(program.plan):
        raise _takes_turns(call.where, 'a recursion')
    made = _by_component(_told_apart(program))
    for groups in _of_kind(made.plan, ir.ReduceGroups):
        if not _adds(made, groups):
            raise _takes_turns(groups.where, 'a reduction that is no sum of numbers')
    for call in _used_again(made):
        raise _takes_turns(call.where, 'a declaration that may be given its own result')
    made = replace(made, once=True)
    check_program(made)
    return made


def _of_kind(plan: HostPlan, kind: Any) -> Iterator[Any]:
    """All instructions of a kind, or of several."""
    return (i for i in plan.instructions if isinstance(i, kind))


def _takes_turns(where: str, got: str) -> TypeError:
    return TypeError(
        f"{where}: expected nothing that runs on its own results, as `strategy='once'` "
        f'says, got {got}: leave `strategy` out'
    )


def _adds(program: Program, i: ir.ReduceGroups) -> bool:
    """Whether groups are added up, of numbers."""
    own = [program.operations[o] for o in i.operations]
    types = [program.types[t] for each in own for t in each.outputs]
    return all(x.is_sum for x in own) and all(t.dtype.kind != 'b' for t in types)


def _recursive(plan: HostPlan) -> list[ir.Call]:
    """The calls of declarations that call themselves, through others or not."""
    left = {d: list(_calls(body)) for d, body in enumerate(plan.declarations)}
    while done := [d for d, calls in left.items() if not _called(calls) & left.keys()]:
        for d in done:
            del left[d]
    return [
        call for calls in left.values() for call in calls if call.declaration in left
    ]


def _called(calls: Iterable[ir.Call]) -> set[int]:
    return {call.declaration for call in calls}


def _calls(body: ir.Body) -> Iterator[ir.Call]:
    """Those of a body, and of the bodies inside."""
    for i in body.instructions:
        if isinstance(i, ir.Call):
            yield i
        for inner in i.bodies:
            yield from _calls(inner)


def _used_again(program: Program) -> Iterator[ir.Call]:
    """The calls of declarations that take turns, or may: used in several places, on
    tensors, where something is recurrent. What is in such a body is used once for all
    of these places."""
    plan, parts = program.plan, components(program)
    recurrent = {o for each in parts if each.recurrent for o in each.operations}
    bodies = [*plan.declarations, plan.body]
    calls = [call for body in bodies for call in _calls(body)]
    places = Counter(call.declaration for call in calls)
    runs: set[int] = set()  # declarations in which something is recurrent
    for _ in plan.declarations:  # those that call others, too
        runs |= {
            d
            for d, body in enumerate(plan.declarations)
            if recurrent.intersection(_operations(body)) or runs & _called(_calls(body))
        }
    for call in calls:
        takes = plan.declarations[call.declaration].inputs[1:]
        tensors = any(each.kind != OBJECTS for each in takes)
        if call.declaration in runs and tensors and places[call.declaration] > 1:
            yield call


def _operations(body: ir.Body) -> Iterator[int]:
    """Those that instructions of a body, and of the bodies inside, name."""
    for i in body.instructions:
        if isinstance(i, ir.Apply):
            yield i.operation
        if isinstance(i, ir.ReduceGroups):
            yield from i.operations
        for inner in i.bodies:
            yield from _operations(inner)


# ---- uses, told apart ----------------------------------------------------------------


def _told_apart(program: Program) -> Program:
    uses: list[int] = []

    def use(o: int) -> int:
        """The number of a use of an operation, among those of all."""
        uses.append(o)
        return len(uses) - 1

    every = _renumbered(program, use, lambda: [program.operations[o] for o in uses])
    kinds = list(zip(_stages(every, uses, program), uses, strict=True))
    made = sorted({*kinds})
    number, chosen = {kind: n for n, kind in enumerate(made)}, iter(kinds)
    operations = [program.operations[o] for _, o in made]
    return _renumbered(program, lambda _: number[next(chosen)], lambda: operations)


def _by_component(program: Program) -> Program:
    """The program with the operations of each component, and so their rows, side by
    side."""
    order = [o for component in components(program) for o in component.operations]
    number = {o: n for n, o in enumerate(order)}
    operations = [program.operations[o] for o in order]
    return _renumbered(program, lambda o: number[o], lambda: operations)


def _stages(every: Program, uses: Sequence[int], program: Program) -> list[int]:
    """Of each use, how many stand before it in the component of its operation.

    Args:
      every: the program, with an operation for each use.
      uses: the operation of each.
    """
    owner, read, stages = component_of(program), reads(every), [0 for _ in uses]
    for inner in components(every):  # each behind those that it reads
        own = inner.operations
        before = {q for u in own for q in results_in(read[u])}.difference(own)
        c = owner[uses[own[0]]]
        behind = [stages[q] + 1 for q in before if owner[uses[q]] == c]
        for u in own:
            stages[u] = max(behind, default=0)
    return stages


# ---- other numbers of operations -----------------------------------------------------


def _renumbered(
    program: Program, number: Number, operations: Callable[[], Sequence[Operation]]
) -> Program:
    """The program with operations of other numbers, asked for use by use, in order."""

    def change(i: ir.Instruction, body: ir.Body) -> Iterable[ir.Instruction]:
        if isinstance(i, ir.Apply):
            i = replace(i, operation=number(i.operation))
        if isinstance(i, ir.ReduceGroups):
            i = replace(i, operations=tuple(map(number, i.operations)))
        return [i]

    return rewritten(program, change, operations)
