# SPDX-License-Identifier: Apache-2.0
"""The lowering of an expression to a `Program`: its types, operations and source."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields

from jfold import blocks as b
from jfold.base.trampoline import tall_stack

# Importing a family registers the rules of its blocks.
from jfold.language import (
    rules_alignment,
    rules_control,
    rules_declarations,
    rules_functions,
    rules_inputs,
    rules_records,
    rules_reduce,
    rules_sequences,
)
from jfold.language.endless_recursion import endless_recursion
from jfold.language.expression import Expression
from jfold.language.facts import OperationChoice
from jfold.language.fusion import choose_operations
from jfold.language.generate import generate_source
from jfold.language.inference import infer
from jfold.language.partial import input_type, result_type
from jfold.language.paths import fail
from jfold.language.tables import Tables
from jfold.language.typed import TypedExpression, TypedUse
from jfold.language.unrolling import unroll_rounds
from jfold.program.operations import Operations, Program, check_operations
from jfold.program.result_tables import nesting
from jfold.types import (
    BroadcastType,
    SequenceType,
    TensorType,
    Type,
    count_leaves,
    leaf_types,
)

# `input_type` and `result_type` need the rules of all blocks: import them from here.
__all__ = 'FAMILIES', 'input_type', 'lower', 'lower_typed', 'result_type'
FAMILIES = (
    *(rules_inputs, rules_functions, rules_records, rules_control),
    *(rules_declarations, rules_sequences, rules_reduce, rules_alignment),
)
MOST_TENSORS = 1 << 16  # each is an array of its own, and a line of the program
EXPECTED = 'a result of tensors, in tuples and sequences'


def lower(root: b.Block, fuses: bool = True, unrolls: bool = False) -> Program:
    """Lower the expression `root` to a `Program`: types, operations and source.

    Args:
      fuses: whether functions in a row are fused into one operation; see `fusion`.
      unrolls: whether rounds of message passing become operations of their own, so that
        as much of the program as can be runs outside of loops; see `unrolling`.

    Raises:
      TypeError: the types clash or cannot be determined, the result is not made of
        tensors, or a recursion never ends; the message starts with the path of the
        block at fault. Or blocks are nested too deep.
    """
    typing = infer(root)
    check_output(typing.root, typing.metrics)
    return lower_typed(typing, fuses, unrolls)


@tall_stack()
def lower_typed(typing: TypedExpression, fuses: bool, unrolls: bool) -> Program:
    """Lower a typed expression to a `Program`; `fuses`, `unrolls` are as in `lower`.

    Its layers may lack their code, as in a process that only records examples.

    Raises:
      TypeError: a recursion never ends, or blocks are nested too deep.
    """
    tables = Tables(typing)
    # Written without fusion first, to see which results are read where.
    round_, text = generate_source(tables, OperationChoice())
    if problem := endless_recursion(round_.untouched):
        raise TypeError(problem)
    program, facts = round_.program(), round_.facts
    chosen = choose_operations(program, round_.uses, facts.reductions, fuses)
    facts = facts.fused(program.operations, chosen)
    unrolled = unroll_rounds(program, chosen, facts) if unrolls else None
    applied: frozenset[int] = frozenset()
    if unrolled:
        chosen, facts, applied = unrolled
    # The operations have other numbers, so the source is written again.
    if chosen.feeds or chosen.kinds:
        round_, text = generate_source(tables, chosen, facts=facts)
        program = round_.program()
    attributes = {x.name: getattr(program, x.name) for x in fields(Operations)}
    sites = round_.sites_in_order()
    result = Program(
        **attributes | {'applied': applied},
        source=round_.source(text),
        expression=Expression(typing, tables, chosen, unrolled is not None, sites),
    )
    check_operations(result)
    return result


def check_output(root: TypedUse, metrics: Collection[str]) -> None:
    """Raise TypeError unless the value of `root` is tensors or, with `metrics`, void.

    The tensors may be in tuples and sequences, at most `MOST_TENSORS` per row.
    """
    if not metrics and not any(leaf_types(root.output)):
        hint = 'end with tensors, or collect them by a Metric'
        fail(root, 'a result of tensors, or a Metric', str(root.output), hint)
    for number, level in enumerate(nesting(root.output)):
        if (count := count_leaves(level)) > MOST_TENSORS:
            hint = 'take what is wanted by GetItem or a Function'
            limit = f'a result of at most {MOST_TENSORS:,} tensors'
            fail(root, limit, f'{count:,}', hint)
        for leaf in leaf_types(level):
            if hint := _why_no_result(leaf, inside=bool(number)):
                fail(root, EXPECTED, str(root.output), hint)


def _why_no_result(leaf: Type, inside: bool) -> str:
    """Return a hint if results, or items `inside`, cannot have this type; else ''."""
    if isinstance(leaf, TensorType):
        return ''
    if isinstance(leaf, SequenceType):
        empty = not any(leaf_types(leaf.item))
        return 'drop what a sink leaves by `>> Void()`' if empty else ''
    if isinstance(leaf, BroadcastType):
        return 'put it beside a sequence, by ZipWith'
    if inside:
        return 'make tensors of the items, as `Map(Scalar())` does'
    return 'end with Scalar, Vector, Tensor or a Function'
