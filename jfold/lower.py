# SPDX-License-Identifier: Apache-2.0
"""Lowering: an expression → a `Program`: its types, its operations, its source."""

from __future__ import annotations

from jfold import combinators as c

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
from jfold.language.expression import Expression
from jfold.language.generate import Chosen, check_recursion, settled
from jfold.language.inference import infer, input_type, result_type
from jfold.language.joining import joined
from jfold.language.outputs import check_output
from jfold.language.tables import Tables
from jfold.language.turns import without_turns
from jfold.program import Program, check_program
from jfold.tracing.record import Source

# What is asked of types needs the rules of all blocks, so it is to be had here.
__all__ = 'FAMILIES', 'input_type', 'lower', 'result_type'
FAMILIES = (
    *(inputs, tensors, composition, control),
    *(sequences, reduction, alignment, chaining, wiring),
)


def lower(root: c.Block, fuses: bool = True, once: bool = False) -> Program:
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
    tables, chosen = Tables(typing), Chosen()
    round_, text = settled(tables, chosen)
    check_recursion(round_)
    if fuses:
        applied = round_.program(list(tables.operations))
        chosen = joined(applied, round_.uses, round_.grouped)
        round_, text = settled(tables, chosen)
    if once:
        round_, text, chosen = without_turns(tables, chosen, round_)
    made = round_.program(round_.operations)
    result = Program(
        **{name: getattr(made, name) for name in made.__dataclass_fields__ if name != 'once'},
        source=Source(text, round_.names, round_.recording()),
        expression=Expression(typing, tables, chosen),
        once=once,
    )
    check_program(result)
    return result
