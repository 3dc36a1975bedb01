# SPDX-License-Identifier: Apache-2.0
"""Lowering: a typed expression to a `Program`.

Each body is written once, in the order of evaluation, then cut into stages: what can
run before any call has returned, then the calls, then what needs their results. Calls
of one stage wait together, which is what makes a recursion run a whole frontier at a
time. Dispatch (`OneOf`) becomes positions, selections and a permutation, so that calls
in different cases wait together too.
"""

from __future__ import annotations

from jfold import combinators as c
from jfold.checking.sources import follow

# Importing a family of blocks makes the rules of its blocks known to all passes.
from jfold.language import (
    alignment,
    chaining,
    composition,
    control,
    inputs,
    reduction,
    sequences,
    tensors,
    wiring,
)
from jfold.language.emission import write_body
from jfold.language.fusion import fused
from jfold.language.inference import infer, input_type, result_type
from jfold.language.outputs import check_output, list_results, write_expression
from jfold.language.recursion import endless
from jfold.language.writer import Builder
from jfold.program import HostPlan, Program, check_program
from jfold.trampoline import run

# What is asked of types needs the rules of all blocks, so it is to be had here.
__all__ = 'FAMILIES', 'input_type', 'lower', 'result_type'
FAMILIES = (
    *(inputs, tensors, composition, control),
    *(sequences, reduction, alignment, chaining, wiring),
)


def lower(root: c.Block, fuses: bool = True) -> Program:
    """Compiles an expression.

    Args:
      fuses: whether functions in a row are one operation, where that costs nothing; if
        not each is one of its own.

    Raises:
      TypeError: the types clash, cannot be determined, or the result is not made of
        tensors; the message starts with the path of the block at fault.
    """
    typing = infer(root)
    check_output(typing.root, typing.metrics)
    builder = Builder(typing)
    body = run(write_expression(builder))
    write_declarations(builder)
    if told := endless(builder.unconsumed):
        raise TypeError(told)
    results = list_results(builder)
    plan, operations = HostPlan(body, tuple(builder.bodies)), tuple(builder.operations)
    result = Program(
        types=tuple(builder.types),
        layers=typing.layers,
        operations=operations,
        constants=tuple(builder.constants),
        results=tuple(results),
        # The value's own result is the first that is listed.
        sources=follow(body, plan.declarations, operations, results, 0),
        plan=plan,
    )
    result = fused(result) if fuses else result
    check_program(result)
    return result


def write_declarations(builder: Builder) -> None:
    """Writes the bodies asked for; writing one may ask for more."""
    while len(builder.bodies) < len(builder.declarations):
        number = len(builder.bodies)
        declaration = list(builder.declarations)[number]
        typed = builder.typing.declarations[declaration].parts[0]
        assert typed is not None
        body = run(write_body(builder, declaration.name, typed, number))
        builder.bodies.append(body)
