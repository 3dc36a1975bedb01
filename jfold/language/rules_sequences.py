# SPDX-License-Identifier: Apache-2.0
"""The rules of `Map`, `Fold`, `RNN` and `Length`: types, values and source."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from jfold import blocks as b
from jfold.base.errors import BadItem
from jfold.base.trampoline import Steps
from jfold.language import symbols as s
from jfold.language.flax_cells import check_end
from jfold.language.inference import Inference, check_dtype, output_type
from jfold.language.lines import Lines, write
from jfold.language.paths import fail
from jfold.language.typed import TypedUse
from jfold.language.walk import Located, Walk, misfit, walk, zero_of
from jfold.language.writing import counted, sequence, zeros_written
from jfold.tracing.convert import to_array
from jfold.types import (
    BroadcastType,
    ObjectType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    VoidType,
)

# ---- the types of items --------------------------------------------------------------

UNLIKE = 'make them alike by a Record, which has a block for each item'
OF_RNN = 'take the outputs of an RNN by GetItem(0), or make them alike by a Record'
NO_ITEMS: dict[type, str] = {
    BroadcastType: 'put it beside a sequence, by ZipWith',
    TensorType: 'use a Function for what is in one tensor, and Map for a list of the '
    'data',
}


def refuse_sequence(node: TypedUse, state: Inference, expected: str, got: Type) -> None:
    """Raise TypeError, with text `expected`, for type `got`, which is no sequence."""
    fail(node, expected, str(state.types.resolve(got)), NO_ITEMS.get(type(got), ''))


def item_type(
    node: TypedUse, head: Type, state: Inference, broadcast: bool = False
) -> Type | None:
    """Return the type of the items of type `head`; `None` if it is no sequence.

    With `broadcast`, a `BroadcastType` is a sequence too. Raise TypeError if the items
    of a tuple are not of one type.
    """
    if isinstance(head, SequenceType) or (
        broadcast and isinstance(head, BroadcastType)
    ):
        return head.item
    # An empty tuple is refused: nothing would say the type of its items.
    if isinstance(head, TupleType) and head.items:
        is_rnn = len(head) == 2 and isinstance(head[0], SequenceType)
        for type_ in head:
            hint = OF_RNN if is_rnn else UNLIKE
            state.equal(node, type_, head.items[0], 'items of one type,', hint)
        return head.items[0]
    return head if isinstance(head, ObjectType) else None


def items_of(
    node: TypedUse, state: Inference, broadcast: bool = False, of: Type | None = None
) -> Type:
    """Return a type variable for the items of `node`'s input, or of type `of`.

    It is bound once the type is known, by `item_type`, which explains `broadcast`.
    Raise TypeError if the type is no sequence.
    """
    item = state.types.fresh()

    def link(head: Type) -> None:
        found = item_type(node, head, state, broadcast)
        if found is None:
            expected = 'a sequence, a non-empty tuple of one type, or an object'
            refuse_sequence(node, state, expected, head)
        else:
            state.equal(node, found, item, 'items of type')

    state.when_head(node, link, of)
    return item


def sequence_like_input(node: TypedUse, state: Inference, item: Type) -> Type:
    """Return a type variable for a sequence of `item`, endless if `node`'s input is."""
    output = state.types.fresh()

    def link(head: Type) -> None:
        outer_type = BroadcastType if isinstance(head, BroadcastType) else SequenceType
        state.equal(node, outer_type(item), output, 'to give')

    state.when_head(node, link)
    return output


@output_type.register
def _(block: b.Map, node: TypedUse, state: Inference) -> Steps[Type]:
    item = items_of(node, state, broadcast=True)
    fn = yield state.part(node, block.fn, item, '')
    node.parts = (fn,)
    return sequence_like_input(node, state, fn.output)


@walk.register
def _(block: b.Map, node: TypedUse, x: Iterable[object], state: Walk) -> Steps[Any]:
    if isinstance(node.input, BroadcastType):
        item = yield state.anew(node.parts[0], next(iter(x)))
        return itertools.repeat(item)
    values = []
    for item in state.items(node, x):
        values.append((yield state.anew(node.parts[0], item)))
    return values


@write.register(b.Map)
def _(block: b.Map, node: TypedUse, value: s.Symbol, w: Lines) -> s.Symbol:
    (part,) = node.parts
    operand = sequence(value, w)
    if isinstance(operand, s.Endless):
        return s.Endless(w.part(part, operand.item))
    operand = counted(operand, w)  # so what is made of its items is known to be as long
    values = w.loop(operand, lambda item: w.part(part, item), collects=True)
    return s.Items(values, operand.n)


@output_type.register
def _(block: b.Fold, node: TypedUse, state: Inference) -> Steps[Type]:
    item = items_of(node, state)
    start: TypedUse = yield state.part(node, block.start, VoidType(), '.start')
    # The state is a new value in each round: a variable apart, of the start's type.
    pair = TupleType(state.carries(node, start.output), item)
    combine = yield state.part(node, block.combine, pair, '.combine')
    hint = 'make `start` of the type that `combine` gives, which is always the same'
    state_type, result = map(state.types.resolve, (start.output, combine.output))
    if isinstance(result, TupleType) and isinstance(state_type, TensorType):
        hint = 'take the state of what `combine` gives by GetItem, or use RNN'
    state.equal(combine, combine.output, start.output, 'to give its state,', hint)
    node.parts = (start, combine)
    return start.output


@walk.register
def _(block: b.Fold, node: TypedUse, x: object, state: Walk) -> Steps[Any]:
    start, combine = node.parts
    items = state.items(node, x)
    value = yield state.part(start, None)
    for item in items:
        value = yield state.anew(combine, (value, item))
    return value


@write.register(b.Fold)
def _(block: b.Fold, node: TypedUse, value: s.Symbol, w: Lines) -> s.Symbol:
    start, combine = node.parts
    operand = sequence(value, w)
    first = w.part(start, None)
    state = w.joined((node, 'state'), w.assigned('state', first))

    # The producers of the state are those of the start and of the body's results.
    def body(item: s.Symbol) -> None:
        next_state = w.part(combine, (state, item))
        w.joined((node, 'state'), next_state)
        w.assign(state, next_state)

    w.loop(operand, body)
    return w.joined((node, 'state'), state)


@output_type.register
def _(block: b.RNN, node: TypedUse, state: Inference) -> Steps[Type]:
    check_end(node, block.cell)
    carried, output = state.types.fresh(), state.types.fresh()
    if block.initial_state_from_input:
        pair = TupleType(state.types.fresh(), carried)
        expected = 'a pair of a sequence and a state,'
        state.equal(node, node.input, pair, expected, 'give both, as by a Record')
        item, start = items_of(node, state, of=pair[0]), None
    else:
        item = items_of(node, state)
        initial = node, block.initial_state, '.initial_state', carried
        hint = 'make it one of the type of the states that the cell gives'
        start = yield state.substitute(*initial, 'to give a state,', hint)
    pair = TupleType(item, state.carries(node, carried))
    cell = yield state.part(node, block.cell, pair, '.cell')
    result = TupleType(output, carried)
    hint = 'return a pair, of which the second is of the type of the initial state'
    state.equal(cell, cell.output, result, 'to give an output and a state,', hint)
    node.parts = (start, cell)
    return TupleType(SequenceType(output), carried)


@walk.register
def _(block: b.RNN, node: Any, x: Any, state: Walk) -> Steps[Any]:
    start, cell = node.parts
    if block.initial_state_from_input:
        x, carried = x
    elif start is None:
        carried = zero_of(node.output[1], node, state)
    else:
        carried = yield state.part(start, None)
    outputs: list[Any] = []
    for item in state.items(node, x):
        output, carried = yield state.anew(cell, (item, carried))
        outputs.append(output)
    return outputs, carried


@write.register(b.RNN)
def _(block: b.RNN, node: Any, value: Any, w: Lines) -> s.Symbol:
    start, cell = node.parts
    if block.initial_state_from_input:
        value, first = value
    elif start is None:
        first = zeros_written(node.output[1], w)
    else:
        first = w.part(start, None)
    operand = sequence(value, w)
    state = w.joined((node, 'state'), w.assigned('state', first))
    next_states: list[s.Symbol] = []  # gets one item, from `body`

    def body(item: s.Symbol) -> Any:
        output, carried = w.part(cell, (item, state))
        w.joined((node, 'state'), carried)
        next_states.append(carried)
        return output

    # The state is assigned after the output is appended, which may read the old state.
    outputs = w.loop(operand, body, True, lambda: w.assign(state, next_states[0]))
    return s.Items(outputs, operand.n), w.joined((node, 'state'), state)


@output_type.register
def _(block: b.Length, node: TypedUse, state: Inference) -> Type:
    def check(head: Type) -> None:
        if not isinstance(head, ObjectType | SequenceType | TupleType):
            refuse_sequence(node, state, 'a sequence, a tuple or an object', head)

    state.when_head(node, check)
    check_dtype(node, block.type)
    return block.type


@walk.register
def _(block: b.Length, node: TypedUse, x: Any, state: Walk) -> object:
    is_object = isinstance(x, Located)
    n = state.apply(node, len, x, 'something with a length') if is_object else len(x)
    try:
        to_array([n], block.type)
    except BadItem:
        name = block.type.dtype.name
        text = f'expected {block.type}, got the length {n}, which {name} cannot hold'
        raise misfit(node, text) from None
    return state.tensors.tensor(node, Located(n, None), block.type, None)


@write.register(b.Length)
def _(block: b.Length, node: TypedUse, value: s.Symbol, w: Lines) -> s.Symbol:
    n = value.n if isinstance(value, s.Items) else f'len({s.packed(value)})'
    n = str(len(value)) if isinstance(value, tuple) else n
    return w.constants(block.type, n, None, node)
