# SPDX-License-Identifier: Apache-2.0
"""Types as far as inference can determine them, of a block or an expression."""

from __future__ import annotations

import contextlib
from typing import TypeAlias

from jfold import blocks as b
from jfold.base.trampoline import run
from jfold.language.inference import Enough, begin
from jfold.language.typed import TypedExpression, TypedUse
from jfold.types import ObjectType, TupleType, Type, VoidType

Types: TypeAlias = dict[b.Block, tuple[Type, Type]]  # of input and output, by block


def all_types(typing: TypedExpression) -> Types:
    """Return the input and output type of each block in `typing`, at its first use."""
    waiting = [*typing.declarations.values(), typing.root]
    types: Types = {}
    seen: set[TypedUse | None] = {None}
    while waiting:
        use = waiting.pop()
        if use not in seen:
            seen.add(use)
            types.setdefault(use.block, (use.input, use.output))
            waiting += reversed(use.parts)
    return types


def partial_types(root: b.Block, steps: int) -> tuple[Types, str]:
    """Return the types in `root` after so many `steps`, and the first error's text.

    A step is a use of a block, or a constraint, such as a function to trace. The rules
    of all blocks have to be registered (`jfold.lower`).

    Returns:
      The input and output type of each block's first use that has both known, and the
      message of the first error, '' if there is none.
    """
    problem, state = '', begin(root)
    state.steps = iter(range(steps))
    try:
        run(state.visit(root, state.input_of(root, ObjectType()), ''))
        state.settle()
    except Enough:
        pass
    except Exception as error:  # a function of the user's may raise anything
        problem = str(error)
    types: Types = {}
    for use in reversed(state.nodes):
        input_, output = map(state.types.plain, (use.input, use.output))
        if input_.ground and output.ground:
            types[use.block] = input_, output
    return types, problem


def _known_types(
    block: b.Block, input_: Type | None
) -> tuple[Type | None, Type | None]:
    """Return a block's input and output type; `None` for one that is unknown."""
    state = begin(block, infers_input=input_ is None)
    input_ = state.input_of(block, state.types.fresh() if input_ is None else input_)
    top = run(state.visit(block, input_, ''))
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
    """Return a block's result type on arguments of these types; `None` if unknown.

    Raises:
      TypeError: the block does not take such arguments.
    """
    several = TupleType(arguments) if arguments else VoidType()
    return _known_types(block, arguments[0] if len(arguments) == 1 else several)[1]
