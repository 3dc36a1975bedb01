# SPDX-License-Identifier: Apache-2.0
"""Lowering: an expression → a `Program`: its types, its operations, its source."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from jfold import blocks as b

# Importing a family of blocks makes the rules of its blocks known to all passes.
from jfold.language import (
    rules_alignment,
    rules_chaining,
    rules_compose,
    rules_control,
    rules_functions,
    rules_inputs,
    rules_records,
    rules_reductions,
    rules_sequences,
)
from jfold.language.expression import Expression
from jfold.language.fusion import chosen_by, joined
from jfold.language.generate import settled
from jfold.language.inference import infer, input_type, result_type
from jfold.language.outputs import check_output
from jfold.language.portable import Portable
from jfold.language.recordings import recording
from jfold.language.recursion import endless
from jfold.language.rounds import Chosen
from jfold.language.tables import Tables
from jfold.language.typed import Typing
from jfold.language.unrolling import unroll_rounds
from jfold.program.operations import Operations, Program, check_operations
from jfold.tracing.record import Source

# What is asked of types needs the rules of all blocks, so it is to be had here.
__all__ = (
    'FAMILIES',
    'input_type',
    'lower',
    'lower_portable',
    'lower_typed',
    'result_type',
)
FAMILIES = (
    *(rules_inputs, rules_functions, rules_records, rules_control, rules_sequences),
    *(rules_reductions, rules_alignment, rules_chaining, rules_compose),
)

TALL = 10_000  # calls, of which each block takes four, and a part of the stack of C


def lower(root: b.Block, fuses: bool = True, once: bool = False) -> Program:
    """Compiles an expression.

    Args:
      fuses: whether functions in a row are one operation, where that costs nothing; if
        not each is one of its own.
      once: whether operations are to be told apart until none takes turns.

    Raises:
      TypeError: the types clash, cannot be determined, or the result is not made of
        tensors; the message starts with the path of the block at fault.
    """
    typing = infer(root)
    check_output(typing.root, typing.metrics)
    return lower_typed(typing, None if fuses else {}, once)


def lower_portable(given: Portable) -> Program:
    """The program of an expression from elsewhere; its layers do not run."""
    return lower_typed(given.typing, given.feeds, given.once)


def lower_typed(
    typing: Typing, feeds: Mapping[int, Sequence[Any]] | None, once: bool
) -> Program:
    """Compiles a typed expression.

    Args:
      feeds: of operations that are joined to others, as `Chosen.feeds`; found if
        `None`.
      once: as of `lower`.
    """
    with _tall_stack():
        return _lowered(typing, feeds, once)


@contextlib.contextmanager
def _tall_stack() -> Iterator[None]:
    """Room for expressions that are nested deep; says of others what is wrong."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, TALL))
    try:
        yield
    except RecursionError:
        raise TypeError(
            'expected an expression that is nested less deep, got more blocks inside '
            'each other than Python has room for; make parts of it declarations'
        ) from None
    finally:
        sys.setrecursionlimit(before)


def _lowered(
    typing: Typing, feeds: Mapping[int, Sequence[Any]] | None, once: bool
) -> Program:
    tables, chosen = Tables(typing), Chosen()
    round_, text = settled(tables, chosen)
    if told := endless(round_.untouched):
        raise TypeError(told)
    uses, grouped, applied = round_.uses, round_.grouped, tables.listed
    if feeds is None:
        chosen = joined(round_.program(applied), uses, grouped)
    else:
        chosen = chosen_by(feeds, applied, uses, grouped)
    if chosen.feeds:
        round_, text = settled(tables, chosen)
    if once:
        round_, text, chosen = unroll_rounds(tables, chosen, round_)
    made, sites = round_.program(round_.operations), round_.sites_in_order()
    own = {x.name: getattr(made, x.name) for x in fields(Operations)}
    result = Program(
        **own | {'once': once},
        source=Source(text, round_.names.values, recording(round_), round_.where),
        expression=Expression(typing, tables, chosen, once, sites),
    )
    check_operations(result)
    return result
