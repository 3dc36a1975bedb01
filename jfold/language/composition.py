# SPDX-License-Identifier: Apache-2.0
"""The rules of blocks that put values together and take them apart."""

from __future__ import annotations

import operator
from typing import Any, cast

import numpy as np

from jfold import combinators as c
from jfold import instructions as p
from jfold.errors import reason
from jfold.functions import take_item
from jfold.host.objects import PICK, count_of, length_of
from jfold.language import eager
from jfold.language.eager import Eager, eval_part, get_or, value_of
from jfold.language.emission import emit, emit_part
from jfold.language.inference import Inference, output_type
from jfold.language.paths import fail, further
from jfold.language.tensors import apply_layer, emit_layer
from jfold.language.typed import Typed
from jfold.language.writer import SequenceValue, Value, Writer, Writing
from jfold.trampoline import Steps, in_turn
from jfold.types import (
    ObjectType,
    Product,
    SequenceType,
    StructType,
    TensorType,
    TupleType,
    Type,
    VoidType,
)

# ---- Identity, Pipe ------------------------------------------------------------------


@output_type.register
def _(block: c.Identity, node: Typed, state: Inference) -> Type:
    return node.input


@emit.register
def _(block: c.Identity, node: Typed, value: Value, places: int, w: Writer) -> Value:
    return value


@value_of.register
def _(block: c.Identity, node: Typed, x: object, state: Eager) -> object:
    return x


@output_type.register
def _(block: c.Pipe, node: Typed, state: Inference) -> Steps[Type]:
    parts: list[Typed] = []
    given = node.input
    for i, each in enumerate(block.blocks):
        where = further(node.where, f'Pipe[{i}]')
        given = given if i else state.given_to(each, given)
        parts.append((yield state.visit(each, given, where)))
        given = parts[-1].output
    node.parts = tuple(parts)
    return given


@emit.register
def _(block: c.Pipe, node: Typed, value: Value, places: int, w: Writer) -> Writing:
    for part in node.parts:
        value = yield emit_part(part, value, places, w)
    return value


@value_of.register
def _(block: c.Pipe, node: Typed, x: object, state: Eager) -> Steps[Any]:
    for each in node.parts:
        x = yield eval_part(each, x, state)
    return x


# ---- AllOf ---------------------------------------------------------------------------


@output_type.register
def _(block: c.AllOf, node: Typed, state: Inference) -> Steps[Type]:
    parts: list[Typed] = []
    for i, each in enumerate(block.blocks):
        parts.append((yield state.part(node, each, node.input, f'[{i}]')))
    node.parts = tuple(parts)
    return TupleType(part.output for part in parts)


@emit.register
def _(block: c.AllOf, node: Typed, value: Value, places: int, w: Writer) -> Writing:
    parts = (emit_part(part, value, places, w) for part in node.parts)
    return tuple((yield in_turn(parts)))


@value_of.register
def _(block: c.AllOf, node: Typed, x: object, state: Eager) -> Steps[Any]:
    return tuple((yield in_turn(eval_part(each, x, state) for each in node.parts)))


# ---- Record --------------------------------------------------------------------------


@output_type.register
def _(block: c.Record, node: Typed, state: Inference) -> Steps[Type]:
    given: list[Type] = [state.types.fresh() for _ in block.fields]
    fields = enumerate(block.fields)
    read = [
        (place, key) for place, (key, each) in fields if each not in state.constants
    ]

    def link(head: Type) -> None:
        if isinstance(head, TupleType) and block.length is not None:
            _check_length(node, head, block.length, state)
        for place, key in read:
            field = _field_type(node, head, key, state)
            state.equal(node, field, given[place], f'for {key!r}')
            # Parts that are not typed yet get the variable of the field itself, by
            # which several fields of one value are known to be one.
            given[place] = field

    # A record of constants alone takes nothing, of which no field could be read.
    if read:
        state.when_head(node, link)
    parts: list[Typed] = []
    for place, (key, each) in enumerate(block.fields):
        parts.append((yield state.part(node, each, given[place], f'[{key!r}]')))
    node.parts = tuple(parts)
    return TupleType(part.output for part in parts)


def _check_length(node: Typed, given: TupleType, most: int, state: Inference) -> None:
    if len(given) > most:
        fail(node, f'at most {count_of(most)}', str(state.types.resolve(given)), PICK)


def _field_type(node: Typed, head: Type, key: object, state: Inference) -> Type:
    if isinstance(head, Product):
        return _item_of(node, head, key, state)
    given = state.types.resolve(head)
    if not given.of_objects:
        hint = 'give the whole of it to several blocks by AllOf'
        if isinstance(given, SequenceType):
            hint = 'use Map, for the fields of each item'
        fail(node, 'an object or a tuple', str(given), hint)
    return ObjectType()


def _item_of(node: Typed, given: Product, key: object, state: Inference) -> Type:
    place = given.place(key)
    if place is not None:
        return state.item(node, place, given.items[place])
    shown, choices = str(state.types.resolve(given)), given.form.choices(len(given))
    hint = choices and f'write {choices}'
    if isinstance(given, StructType):
        fail(node, f'a key of its input, {shown}', repr(key), hint)
    if isinstance(key, bool) or not isinstance(key, int | np.integer):
        expected = f'int keys, for its input is the tuple {shown}'
        fail(node, expected, repr(key), hint)
    least = key + 1 if key >= 0 else -key
    fail(node, f'at least {least} items', shown, hint)


@emit.register
def _(block: c.Record, node: Typed, value: Value, places: int, w: Writer) -> Writing:
    is_tuple = isinstance(value, tuple)
    column = None if is_tuple or value is None else (yield w.object(value, node))
    most = block.length  # looked at once, with the first field
    results = []
    for (key, _), part in zip(block.fields, node.parts, strict=True):
        item: Value = None
        if part is not None and not isinstance(part.input, VoidType):
            item = _part(node.input, value, key) if is_tuple else None
            if column is not None:
                options = {'default': (None,)} if _may_lack(part.block) else {}
                item = w.one(p.Field, (column,), node, key=key, most=most, **options)
                most = None
        results.append((yield emit_part(part, item, places, w)))
    return tuple(results)


@value_of.register
def _(block: c.Record, node: Typed, x: object, state: Eager) -> Steps[Any]:
    most = None if isinstance(node.input, VoidType) else block.length
    if most is not None and length_of(x) > most:
        raise TypeError(f'{node}: expected {count_of(most)}, got {x!r}; {PICK}')
    made = []
    for (key, _), each in zip(block.fields, node.parts, strict=True):
        item = None
        if each is not None and not isinstance(each.input, VoidType):
            item = get_or(x, key, (None,) if _may_lack(each.block) else ())
        made.append((yield eval_part(each, item, state)))
    return tuple(made)


def _may_lack(block: c.Block) -> bool:
    """Whether a field that the data lack is `None`: what reads it expects that."""
    declared = set()
    while isinstance(block, c.Pipe | c.Reference):
        if isinstance(block, c.Pipe):
            block = block.blocks[0]
            continue
        target = block.declaration.target
        if target is None or block.declaration in declared:
            return False
        declared.add(block.declaration)
        block = target
    return isinstance(block, c.Optional)


# ---- GetItem -------------------------------------------------------------------------


@output_type.register
def _(block: c.GetItem, node: Typed, state: Inference) -> Type:
    # At once where it can be: then the result has the variable of the item.
    head = state.types.head(node.input)
    if isinstance(head, Product):
        return _item_type(block, node, head, state)
    output = state.types.fresh()

    def link(head: Type) -> None:
        state.equal(node, _item_type(block, node, head, state), output, 'to give')

    state.when_head(node, link)
    return output


def _item_type(block: c.GetItem, node: Typed, head: Type, state: Inference) -> Type:
    key = block.key
    if isinstance(head, ObjectType):
        return ObjectType()
    if block.default:
        got = f'{state.types.resolve(head)}, of which it is known what it has'
        fail(node, 'an object, for there is a `default`', got)
    if isinstance(key, slice) and isinstance(head, TupleType | SequenceType):
        _check_slice(node, key)
    if isinstance(key, slice) and isinstance(head, TupleType):
        return TupleType(head.items[key])
    if isinstance(head, Product):
        return _item_of(node, head, key, state)
    if isinstance(head, SequenceType):
        if not isinstance(key, int | slice):
            given = state.types.resolve(head)
            expected = f'an int or a slice, for its input is {given}'
            fail(node, expected, repr(key), 'use Map, for an item of each of its items')
        return head if isinstance(key, slice) else head.item
    if isinstance(head, TensorType):
        return _part_type(node, head, key, state)
    got = str(state.types.resolve(head))
    fail(node, 'an object, tuple, sequence or tensor', got)


def _check_slice(node: Typed, key: slice) -> None:
    try:
        key.indices(0)
    except (TypeError, ValueError) as error:
        fail(node, 'a slice of ints', f'{key}: {reason(error)}', 'write it by Slice')


def _part_type(node: Typed, given: TensorType, key: object, state: Inference) -> Type:
    try:
        fn = take_item(key)
    except TypeError:
        hint = 'pick rows by their numbers in a Function, as `x[jnp.array(...)]` does'
        fail(node, 'ints and slices as the key of a tensor', repr(key), hint)
    # NumPy is asked: JAX clamps an index that is out of range, and says nothing.
    try:
        operator.getitem(cast(Any, np.broadcast_to(np.False_, given.shape)), key)
    except (IndexError, TypeError, ValueError):
        hint = 'take ints within its shape, and slices'
        if not given.shape:
            hint = 'leave it out, for a scalar has no items'
        fail(node, f'a tensor with an item {key!r}', str(given), hint)
    return apply_layer(node, given, c.Function(fn), state)


@emit.register
def _(block: c.GetItem, node: Typed, value: Value, places: int, w: Writer) -> Writing:
    if isinstance(value, tuple):
        return _part(node.input, value, block.key)
    if isinstance(value, SequenceValue):
        if isinstance(block.key, slice):
            cut = (value.lengths,)
            return (yield w.ranges(p.Cut, cut, value.items, node, key=block.key))
        positions = w.one(p.Position, (value.lengths,), node, key=block.key)
        return (yield w.select(value.items, positions, node))
    if node.layer is not None:
        return (yield emit_layer(node, value, places, w))
    default = block.default or None
    return w.one(p.Field, (value,), node, key=block.key, default=default)


def _part(type_: Type, value: Value, key: Any) -> Value:
    """Some of the registers of a value of a type, by the key of an item."""
    assert isinstance(type_, Product) and isinstance(value, tuple)
    return value[key if isinstance(key, slice) else cast(int, type_.place(key))]


@value_of.register
def _(block: c.GetItem, node: Typed, x: object, state: Eager) -> object:
    if isinstance(node.input, TensorType):
        return eager.call(node, x, state)
    return get_or(x, block.key, block.default)
