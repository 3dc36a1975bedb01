# SPDX-License-Identifier: Apache-2.0
"""Emission: the instructions of one use of a block, by the rule of its kind.

A rule gives a `Value`, the registers that hold the result, or a generator of one where
blocks inside, or parts of a value, are emitted on the way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from typing import TypeAlias

import numpy as np

from jfold import combinators as c
from jfold import instructions as p
from jfold.language.typed import Typed
from jfold.language.writer import (
    Builder,
    SequenceValue,
    Value,
    Writer,
    Writing,
    flatten,
)
from jfold.registers import wrapped
from jfold.trampoline import Steps, in_turn
from jfold.types import Product, SequenceType, TensorType, Type, VoidType

Lines: TypeAlias = Callable[[Value, int, Writer], Writing]  # of a value, at places


@functools.singledispatch
def emit(
    block: c.Block, node: Typed, value: Value, places: int, w: Writer
) -> Value | Writing:
    """Writes the instructions of one use of a block; where its result is."""
    raise NotImplementedError(f'lowering has no rule for {block!r}')


def emit_part(part: Typed | None, value: Value, places: int, w: Writer) -> Writing:
    """Writes a block inside another; what is written already is used again."""
    assert part is not None
    given = None if isinstance(part.input, VoidType) else value
    # By identity: to hash a nested tuple takes all of it, on Python's stack. Places are
    # part of the key, for a value of nothing says nothing of whose constant is wanted.
    key = part, given if isinstance(given, int) else id(given), places
    if key in w.written:
        return w.written[key][1]
    made = emit(part.block, part, given, places, w)
    result: Value = (yield made) if isinstance(made, Generator) else made
    if part.shared and not part.draws:
        w.written[key] = given, result
    return result


def emit_zeros(type_: Type, node: Typed, places: int, w: Writer) -> Writing:
    """Zeros of a type for every item."""
    if isinstance(type_, Product):
        parts = (emit_zeros(item, node, places, w) for item in type_)
        return tuple((yield in_turn(parts)))
    if isinstance(type_, TensorType):
        zeros = np.zeros(type_.shape, type_.dtype)
        index = w.builder.constant(type_, zeros)
        return w.one(p.Constant, (places,), node, index=index)
    if isinstance(type_, SequenceType):
        # No items, but registers for them: whoever reads the value reads its structure.
        lengths = w.one(p.Fixed, (places,), node, length=0)
        inner = w.item_places(lengths, places, node)
        return SequenceValue(lengths, (yield emit_zeros(type_.item, node, inner, w)))
    return None


def write_body(
    builder: Builder, name: str, node: Typed, number: int | None = None
) -> Steps[p.Body]:
    """Writes `node` as a body of its own; `number` is that of its declaration."""
    writer = Writer(builder, number)
    _, result = yield write_lines(node, writer)
    return writer.finish(name, node.input, result, node.output)


def write_lines(node: Typed, writer: Writer) -> Steps[tuple[int, Value]]:
    """Writes the lines of a new body; its places, and what `node` makes there."""
    places = writer.new()  # of the items, by which the rows they make are ordered
    value = yield writer.like(node.input)
    writer.untouched = set(flatten(value))
    return places, (yield emit_part(node, value, places, writer))


def write_loop(
    builder: Builder, node: Typed, given: Type, made: Type, lines: Lines
) -> Steps[p.Body]:
    """Writes the body of a loop, which carries sequences along whole.

    Args:
      given, made: the types of what it takes, and gives.
      lines: writes what is between.
    """
    w = Writer(builder, None)
    places = w.new()
    value = yield w.unwrap((yield w.like(wrapped(given))), given, node)
    result = yield w.wrap((yield lines(value, places, w)), made, node)
    return w.finish(str(node), wrapped(given), result, wrapped(made))


def write_in_loop(
    builder: Builder, part: Typed, given: Type, made: Type
) -> Steps[p.Body]:
    """Writes a block as the body of a loop, which it may take nothing of."""
    return write_loop(builder, part, given, made, functools.partial(emit_part, part))
