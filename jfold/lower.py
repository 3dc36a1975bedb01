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

# Importing a family of blocks makes the rules of its blocks known to all passes.
from jfold.language import (
    alignment,
    composition,
    control,
    inputs,
    sequences,
    tensors,
    wiring,
)
from jfold.language.emission import write_body
from jfold.language.flow import follow
from jfold.language.inference import infer
from jfold.language.typed import Typed, fail
from jfold.language.writer import Builder
from jfold.operations import Result
from jfold.program import HostPlan, Program, check_program
from jfold.trampoline import run
from jfold.types import BroadcastType, SequenceType, TensorType, Type, terminals

FAMILIES = inputs, tensors, composition, control, sequences, alignment, wiring


def lower(root: c.Block) -> Program:
    """Compiles an expression.

    Raises:
      TypeError: the types clash, cannot be determined, or the result is not made of
        tensors; the message starts with the path of the block at fault.
    """
    typing = infer(root)
    _check_output(typing.root, typing.metrics)
    builder = Builder(typing)
    body = run(write_body(builder, 'expression', typing.root))
    write_declarations(builder)
    check_recursion(builder)
    rows = typing.results.items()
    results = [Result(name, row, builder.type_numbers(row)) for name, row in rows]
    plan, operations = HostPlan(body, tuple(builder.bodies)), tuple(builder.operations)
    result = Program(
        types=tuple(builder.types),
        layers=typing.layers,
        operations=operations,
        constants=tuple(builder.constants),
        results=tuple(results),
        sources=follow(plan, operations, results),
        plan=plan,
    )
    check_program(result)
    return result


def _check_output(root: Typed, metrics: dict[str, Type]) -> None:
    if not metrics and not any(terminals(root.output)):
        fail(root, 'a result of tensors, or a Metric', str(root.output))
    for leaf in terminals(root.output):
        if isinstance(leaf, SequenceType):
            hint = 'reduce the sequence, or collect its items by Metric'
            if not any(terminals(leaf.item)):
                hint = 'drop what a sink leaves by `>> Void()`'
            fail(root, 'a result of tensors in tuples', str(root.output), hint)
        if not isinstance(leaf, TensorType):
            hint = 'end with Scalar, Vector, Tensor or a Function'
            if isinstance(leaf, BroadcastType):
                hint = 'put it beside a sequence, by ZipWith'
            fail(root, 'a result of tensors in tuples', str(root.output), hint)


def write_declarations(builder: Builder) -> None:
    """Writes the bodies asked for; writing one may ask for more."""
    while len(builder.bodies) < len(builder.declarations):
        number = len(builder.bodies)
        declaration = list(builder.declarations)[number]
        typed = builder.typing.declarations[declaration].parts[0]
        assert typed is not None
        body = run(write_body(builder, declaration.name, typed, number))
        builder.bodies.append(body)


def check_recursion(builder: Builder) -> None:
    """Refuses a declaration that reaches itself without taking its input apart."""
    for start in builder.unconsumed:
        seen: set[int] = set()
        waiting = [start]
        while waiting:
            for callee, where in builder.unconsumed.get(waiting.pop(), []):
                if callee == start:
                    raise TypeError(
                        f'{where}: expected a recursion on a part of its input, got '
                        'one on the same input, without end; take a field or an item '
                        'of it first'
                    )
                if callee not in seen:
                    seen.add(callee)
                    waiting.append(callee)
