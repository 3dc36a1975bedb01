# SPDX-License-Identifier: Apache-2.0
"""The rules of blocks over sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any, cast

import numpy as np

from jfold import combinators as c
from jfold import instructions as p
from jfold.host.objects import READ_ONCE, why_no_sequence
from jfold.language.cells import check_end
from jfold.language.eager import Eager, Endless, eval_anew, eval_part, value_of, zeros
from jfold.language.emission import (
    emit,
    emit_part,
    emit_zeros,
    write_in_loop,
    write_loop,
)
from jfold.language.inference import Inference, check_dtype, output_type
from jfold.language.inputs import is_same
from jfold.language.paths import fail
from jfold.language.typed import Typed
from jfold.language.writer import (
    Builder,
    Repeated,
    SequenceValue,
    Value,
    Writer,
    Writing,
    flatten,
)
from jfold.registers import wrapped
from jfold.trampoline import Steps, in_turn
from jfold.types import (
    BroadcastType,
    ObjectType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    VoidType,
    item_of,
)

Array = np.ndarray[Any, Any]

# ---- what they take ------------------------------------------------------------------

UNLIKE = 'make them alike by a Record, which has a block for each item'


def why_no_items(given: Type) -> str:
    """What to do about a value that has no items, or no end of them."""
    if isinstance(given, BroadcastType):
        return 'put it beside a sequence, by ZipWith'
    if isinstance(given, TensorType):
        return (
            'use a Function for what is in one tensor, and Map for a list of the data'
        )
    return ''


def items(
    node: Typed,
    state: Inference,
    item: Type,
    broadcast: bool = False,
    of: Type | None = None,
) -> None:
    """Links `item` to the items of the input, or of another type."""

    def link(head: Type) -> None:
        if isinstance(head, ObjectType):
            state.equal(node, ObjectType(), item, 'items of type')
        elif isinstance(head, SequenceType) or (
            broadcast and isinstance(head, BroadcastType)
        ):
            state.equal(node, head.item, item, 'items of type')
        # An empty tuple would leave the type of the items open for good.
        elif isinstance(head, TupleType) and head.items:
            for each in head:
                state.equal(node, each, item, 'items of one type,', UNLIKE)
        else:
            expected = 'a sequence, a non-empty tuple of one type, or an object'
            got = state.types.resolve(head)
            fail(node, expected, str(got), why_no_items(got))

    state.when_head(node, link, of)


def sequence_as_given(node: Typed, state: Inference, item: Type) -> Type:
    """The type of a sequence of `item`, repeated without end where the input is."""
    output = state.types.fresh()

    def link(head: Type) -> None:
        kind = BroadcastType if isinstance(head, BroadcastType) else SequenceType
        state.equal(node, kind(item), output, 'to give')

    state.when_head(node, link)
    return output


def in_order(node: Typed, x: Iterable[Any]) -> Iterable[Any]:
    """Refuses an iterable whose order says nothing, or that can be read only once."""
    why = why_no_sequence(type(x)) or (READ_ONCE if iter(x) is iter(x) else '')
    if why:
        raise TypeError(f'{node}: expected a sequence, got {x!r}; {why}')
    return x


# ---- Map -----------------------------------------------------------------------------


@output_type.register
def _(block: c.Map, node: Typed, state: Inference) -> Steps[Type]:
    item = state.types.fresh()
    items(node, state, item, broadcast=True)
    fn = yield state.part(node, block.fn, item, '')
    node.parts = (fn,)
    return sequence_as_given(node, state, fn.output)


@emit.register
def _(block: c.Map, node: Typed, value: Value, places: int, w: Writer) -> Writing:
    if isinstance(value, Repeated):
        return Repeated((yield emit_part(node.parts[0], value.item, places, w)))
    given = yield w.sequence(value, node.input, places, node)
    inner = w.item_places(given.lengths, places, node, w.builder.visit(node))
    items = yield emit_part(node.parts[0], given.items, inner, w)
    return SequenceValue(given.lengths, items)


@value_of.register
def _(block: c.Map, node: Typed, x: Iterable[Any], state: Eager) -> Steps[Any]:
    if isinstance(node.input, BroadcastType):
        item = yield eval_anew(node.parts[0], next(iter(x)), state)
        return Endless(item)
    items = in_order(node, x)
    return (yield in_turn(eval_anew(node.parts[0], item, state) for item in items))


# ---- Fold ----------------------------------------------------------------------------


@output_type.register
def _(block: c.Fold, node: Typed, state: Inference) -> Steps[Type]:
    item = state.types.fresh()
    items(node, state, item)
    start: Typed = yield state.part(node, block.start, VoidType(), '.start')
    # The state is another value in each round, though always of the type of the start.
    given = TupleType(state.carries(node, start.output), item)
    combine = yield state.part(node, block.combine, given, '.combine')
    hint = 'make `start` of the type that `combine` gives, which is always the same'
    state.equal(combine, combine.output, start.output, 'to give its state,', hint)
    node.parts = (start, combine)
    return start.output


@emit.register
def _(block: c.Fold, node: Typed, value: Value, places: int, w: Writer) -> Writing:
    _, combine = node.parts
    assert combine is not None
    given = yield w.sequence(value, node.input, places, node)
    items, inner = yield emit_of_items(combine, given, places, w)
    before = yield emit_part(node.parts[0], None, places, w)
    taken = _taken(combine, node)
    state, *rest = yield w.wrap((before, *items), taken, node)
    states, at = list(flatten(state)), places if inner is None else inner
    folded = yield w.shaped(
        p.FoldLoop if inner is None else p.FoldEntered,
        (given.lengths, at, *states, *flatten(tuple(rest))),
        node,
        state,
        combine=(yield write_combine(w.builder, combine, taken, node.output)),
        states=len(states),
        way=next(w.builder.ways),
        visit=w.builder.visit(combine),
    )
    return (yield w.unwrap(folded, node.output, node))


def _taken(combine: Typed, node: Typed) -> TupleType:
    """The type of what a fold's body takes: a state, and what is made of an item."""
    ready = [part.output for part in fields_of_item(combine)]
    return TupleType(node.output, *(ready or [item_of(node.input)]))


def fields_of_item(combine: Typed) -> list[Typed]:
    """The parts of a fold's body that read the item alone, and could run before it.

    They are the fields 1 of a leading `Record` over (state, item).
    """
    first = combine.parts[0] if isinstance(combine.block, c.Pipe) else combine
    if first is None or not isinstance(first.block, c.Record):
        return []
    keys = [key for key, _ in first.block.fields]
    if not set(keys) <= {0, 1}:
        return []  # a negative key, say: rare, and as right without this
    return [part for key, part in zip(keys, first.parts, strict=True) if part and key]


def emit_of_items(
    combine: Typed, given: SequenceValue, places: int, w: Writer
) -> Steps[tuple[tuple[Value, ...], int | None]]:
    """What a fold's body takes of its items: what can be computed for all at once is.

    A recursion in there then runs for all items together, not position by position. If
    something is observed there, the body needs the places of items too.
    """
    parts = fields_of_item(combine)
    if not parts:
        return (given.items,), None
    seen = any(w.builder.visit(part) is not None for part in parts)
    visit = w.builder.visit(combine) if seen else None
    inner = w.item_places(given.lengths, places, combine, visit)
    made = (emit_part(part, given.items, inner, w) for part in parts)
    return tuple((yield in_turn(made))), inner if seen else None


def write_combine(
    builder: Builder, combine: Typed, taken: TupleType, state: Type
) -> Steps[p.Body]:
    """The body of a fold, whose items are as `emit_of_items` makes them."""
    if not fields_of_item(combine):
        body: p.Body = yield write_in_loop(builder, combine, taken, state)
        return body
    # Its arguments are the state and what was made of the items, not the items: so the
    # leading record is taken apart here, and only its fields of the state are emitted.
    piped = isinstance(combine.block, c.Pipe)
    record = combine.parts[0] if piped else combine
    assert record is not None
    assert isinstance(record.block, c.Record)
    fields = list(zip(record.block.fields, record.parts, strict=True))

    def lines(value: Value, places: int, w: Writer) -> Writing:
        assert isinstance(value, tuple)
        before, *rest = value
        items, given = iter(rest), list[Value]()
        for (key, _), part in fields:
            of_state = None if key else emit_part(part, before, places, w)
            given.append((yield of_state) if of_state else next(items))
        value = tuple(given)
        for part in combine.parts[1:] if piped else ():
            value = yield emit_part(part, value, places, w)
        return value

    body = yield write_loop(builder, combine, taken, state, lines)
    return body


@value_of.register
def _(block: c.Fold, node: Typed, x: Iterable[Any], state: Eager) -> Steps[Any]:
    start, combine = node.parts
    value = yield eval_part(start, None, state)
    for item in in_order(node, x):
        value = yield eval_anew(combine, (value, item), state)
    return value


# ---- RNN -----------------------------------------------------------------------------


@output_type.register
def _(block: c.RNN, node: Typed, state: Inference) -> Steps[Type]:
    check_end(node, block.cell)
    item, carried, made = (state.types.fresh() for _ in range(3))
    if block.initial_state_from_input:
        given = TupleType(state.types.fresh(), carried)
        expected = 'a pair of a sequence and a state,'
        state.equal(node, node.input, given, expected, 'give both, as by a Record')
        items(node, state, item, of=given[0])
        start = None
    else:
        items(node, state, item)
        begin = node, block.initial_state, '.initial_state', carried
        hint = 'make it one of the type of the states that the cell gives'
        start = yield state.substitute(*begin, 'to give a state,', hint)
    pair = TupleType(item, state.carries(node, carried))
    cell = yield state.part(node, block.cell, pair, '.cell')
    both = TupleType(made, carried)
    hint = 'return a pair, of which the second is of the type of the initial state'
    state.equal(cell, cell.output, both, 'to give an output and a state,', hint)
    node.parts = (start, cell)
    return TupleType(SequenceType(made), carried)


@emit.register
def _(block: c.RNN, node: Typed, value: Value, places: int, w: Writer) -> Writing:
    start, cell = node.parts
    assert cell is not None
    sequence, carried = cast(tuple[SequenceType, Type], node.output)
    state: Value
    type_ = node.input
    if block.initial_state_from_input:
        (value, state), type_ = cast(Any, value), cast(TupleType, type_)[0]
    elif start is None:
        state = yield emit_zeros(carried, node, places, w)
    else:
        state = yield emit_part(start, None, places, w)
    given = yield w.sequence(value, type_, places, node)
    taken = TupleType(carried, item_of(type_))
    state, items = yield w.wrap((state, given.items), taken, node)
    states = list(flatten(state))
    both = TupleType(carried, sequence.item)
    shape = yield w.shape_of(wrapped(both))
    made = yield w.shaped(
        p.FoldLoop,
        (given.lengths, places, *states, *flatten(items)),
        node,
        shape,
        combine=(yield _write_cell(w.builder, cell, taken, both)),
        states=len(states),
        way=next(w.builder.ways),
        visit=w.builder.visit(cell),
    )
    last, outputs = yield w.unwrap(made, both, node)
    return SequenceValue(given.lengths, outputs), last


def _write_cell(
    builder: Builder, cell: Typed, taken: Type, both: Type
) -> Steps[p.Body]:
    """The body of a loop, which takes and gives the state first."""

    def lines(value: Value, places: int, w: Writer) -> Writing:
        assert isinstance(value, tuple)
        made = yield emit_part(cell, value[::-1], places, w)
        return made[::-1]

    return write_loop(builder, cell, taken, both, lines)


@value_of.register
def _(block: c.RNN, node: Typed, x: Any, state: Eager) -> Steps[Any]:
    start, cell = node.parts
    if block.initial_state_from_input:
        x, carried = x
    elif start is None:
        assert isinstance(node.output, TupleType)
        carried = zeros(node.output[1])
    else:
        carried = yield eval_part(start, None, state)
    outputs: list[Any] = []
    for item in in_order(node, x):
        made, carried = yield eval_anew(cell, (item, carried), state)
        outputs.append(made)
    return outputs, carried


# ---- Length --------------------------------------------------------------------------


@output_type.register
def _(block: c.Length, node: Typed, state: Inference) -> Type:
    def check(head: Type) -> None:
        if not isinstance(head, ObjectType | SequenceType | TupleType):
            got = state.types.resolve(head)
            expected = 'a sequence, a tuple or an object'
            fail(node, expected, str(got), why_no_items(got))

    state.when_head(node, check)
    check_dtype(node, block.type)
    return block.type


@emit.register
def _(block: c.Length, node: Typed, value: Value, places: int, w: Writer) -> Value:
    if isinstance(node.input, ObjectType):
        lengths = w.one(p.Count, (value,), node)
    elif isinstance(value, SequenceValue):
        lengths = value.lengths
    else:
        length = len(node.input) if isinstance(node.input, TupleType) else 0
        lengths = w.one(p.Fixed, (places,), node, length=length)
    number = w.builder.type_number(block.type)
    given = (lengths, places)
    return w.one(p.Numbers, given, node, type=number, tensor=block.type)


@value_of.register
def _(block: c.Length, node: Typed, x: Sized, state: Eager) -> Array:
    length = np.asarray(len(x))
    made = length.astype(block.type.dtype)
    if not is_same(length, made):
        name = block.type.dtype.name
        text = f'expected {block.type}, got the length {length}'
        raise TypeError(f'{node}: {text}, which {name} cannot hold')
    return made
