# SPDX-License-Identifier: Apache-2.0
"""The types that a block takes and gives, as far as it tells."""

from __future__ import annotations

import contextlib

from jfold import blocks as b
from jfold.base.trampoline import run
from jfold.language.inference import begin
from jfold.types import ObjectType, TupleType, Type, VoidType


def _known_types(
    block: b.Block, input_: Type | None
) -> tuple[Type | None, Type | None]:
    """Return the input and output type of a block; `None` for each unknown one."""
    state = begin(block, infers_input=input_ is None)
    input_ = state.types.fresh() if input_ is None else input_
    top = run(state.visit(block, state.input_of(block, input_), ''))
    state.settle()
    types = map(state.types.plain, (top.input, top.output))
    known_input, output = (type_ if type_.ground else None for type_ in types)
    return known_input, output


def input_type(block: b.Block) -> Type | None:
    """Return the type that a block takes; `None` if the block does not determine it."""
    return _known_types(block, None)[0]


def result_type(block: b.Block) -> Type | None:
    """Return the type that a block gives; `None` if the block does not determine it."""
    known_input, output = _known_types(block, None)
    if known_input is None and output is None:
        # The type may follow if the input is taken to be an object.
        with contextlib.suppress(TypeError):
            return _known_types(block, ObjectType())[1]
    return output


def call_type(block: b.Block, arguments: tuple[Type, ...]) -> Type | None:
    """Return the type of a block's result on arguments of these types, if they tell.

    Raises:
      TypeError: the block does not take such arguments.
    """
    several = TupleType(arguments) if arguments else VoidType()
    return _known_types(block, arguments[0] if len(arguments) == 1 else several)[1]
