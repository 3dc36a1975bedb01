# SPDX-License-Identifier: Apache-2.0
"""The rules of compositions by `jf.compose`: types, values and source."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from jfold import blocks as b
from jfold.base.operands import map_sources
from jfold.base.trampoline import Steps
from jfold.blocks.compose import Composition, Numbers
from jfold.language import symbols as s
from jfold.language.inference import Inference, output_type
from jfold.language.lines import Lines
from jfold.language.paths import fail, join_path
from jfold.language.typed import TypedUse
from jfold.language.walk import Walk, walk
from jfold.language.writing import write
from jfold.types import TupleType, Type, VoidType


@output_type.register
def _(block: Composition, node: TypedUse, state: Inference) -> Steps[Type]:
    types, parts = [node.input], list[TypedUse]()
    for number, (step, source) in enumerate(block.wiring.steps):
        where = join_path(node.where, f'{block.name}.x{number + 1}')
        part = yield state.visit(step, _type_of(source, types), where)
        # An unread item of a tuple is no mistake: to take it costs nothing.
        if number + 1 not in block.wiring.read and not isinstance(step, b.GetItem):
            state.when(part, functools.partial(_check_unread, part, state))
        parts.append(part)
        types.append(part.output)
    node.parts = tuple(parts)
    sources = tuple(source for _, source in block.wiring.steps)
    node.facts = sources, block.wiring.output
    return _type_of(block.wiring.output, types)


def _type_of(numbers: Numbers, types: Sequence[Type]) -> Type:
    """Return the type at an index, or a tuple of those at several indices.

    `None` stands for no operand, which is void.
    """
    if isinstance(numbers, tuple):
        return TupleType(_type_of(number, types) for number in numbers)
    return VoidType() if numbers is None else types[numbers]


def _check_unread(part: TypedUse, state: Inference) -> bool:
    """Refuse an unread result unless it is void; return whether its type is known.

    Return whether its type is known yet.
    """
    type_ = state.types.resolve(part.output)
    if type_.ground and type_.terminal_types():
        hint = 'return it, or drop it by Void()'
        fail(part, 'a result that something reads', f'{type_}, read by nothing', hint)
    return type_.ground


@walk.register
def _(block: Composition, node: TypedUse, x: object, state: Walk) -> Steps[Any]:
    values = [x]  # the input, then the result of each step
    sources, output = node.facts
    for part, source in zip(node.parts, sources, strict=True):
        operand = map_sources(source, values.__getitem__)
        values.append((yield state.part(part, operand)))
    return map_sources(output, values.__getitem__)


@write.register(Composition)
def _(block: Composition, node: TypedUse, value: s.Symbol, w: Lines) -> s.Symbol:
    values = [w.held(value, 'value')]
    sources, output = node.facts
    for part, source in zip(node.parts, sources, strict=True):
        operand = map_sources(source, values.__getitem__)
        values.append(w.held(w.part(part, operand), 'value'))
    result: s.Symbol = map_sources(output, values.__getitem__)
    return result
