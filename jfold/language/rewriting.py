# SPDX-License-Identifier: Apache-2.0
"""Programs rewritten: other operations, and bodies that apply them.

What becomes of an instruction is decided one by one; that the bodies inside of it, who
writes which register, and what is read where follow from that is seen to here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from jfold import instructions as ir
from jfold.checking.sources import follow
from jfold.operations import Operation
from jfold.program import HostPlan, Program

# From an instruction, in which the bodies inside are rewritten, and the body that it
# stood in, to those that stand in its place.
Change: TypeAlias = Callable[[ir.Instruction, ir.Body], Iterable[ir.Instruction]]


def rewritten(
    program: Program, change: Change, operations: Callable[[], Sequence[Operation]]
) -> Program:
    """The program with other instructions and operations.

    Args:
      change: is asked for each instruction, in order, those inside of it before.
      operations: gives the new ones, when `change` has been asked for all.
    """
    body = _body(program.plan.body, change)
    declarations = tuple(_body(each, change) for each in program.plan.declarations)
    made, own = tuple(operations()), program.value_results[0]
    return replace(
        program,
        operations=made,
        sources=follow(body, declarations, made, program.results, own),
        plan=HostPlan(body, declarations),
    )


def _body(body: ir.Body, change: Change) -> ir.Body:
    stages = tuple(
        replace(stage, instructions=tuple(_instructions(stage, body, change)))
        for stage in body.stages
    )
    writer = {r: i for stage in stages for i in stage for r in i.outputs}
    return replace(body, stages=stages, writer=writer)


def _instructions(
    stage: ir.Stage, body: ir.Body, change: Change
) -> Iterator[ir.Instruction]:
    for i in stage.instructions:
        inner: dict[str, Any] = {
            name: _body(getattr(i, name), change) for name in i.traits.holds
        }
        yield from change(replace(i, **inner) if inner else i, body)
