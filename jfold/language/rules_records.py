# SPDX-License-Identifier: Apache-2.0
"""The rules of pipes, and of blocks that build or read tuples, such as `Record`."""

from __future__ import annotations

from typing import Any

import numpy as np

from jfold import blocks as b
from jfold.base.errors import describe_error, short_repr
from jfold.base.functions import take_item, why_no_item
from jfold.base.trampoline import Steps
from jfold.blocks.lazy import Struct
from jfold.language import symbols as s
from jfold.language.data_paths import EXAMPLE
from jfold.language.field_names import argument_order, record_type
from jfold.language.inference import Inference, output_type
from jfold.language.lines import Lines, write
from jfold.language.paths import fail, join_path
from jfold.language.rules_functions import apply_layer, write_layer
from jfold.language.rules_sequences import NO_ITEMS
from jfold.language.typed import TypedExpression, TypedUse
from jfold.language.walk import Located, Walk, misfit, path_of, walk
from jfold.language.writing import as_object, cut, item_at, literal, number
from jfold.tracing.strict_reading import PICK, count_of, length_of
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

output_type.register(b.Identity, lambda block, node, state: node.input)
walk.register(b.Identity, lambda block, node, x, state: x)
write.register(b.Identity, lambda block, node, value, w: value)


@output_type.register
def _(block: b.Pipe, node: TypedUse, state: Inference) -> Steps[Type]:
    parts: list[TypedUse] = []
    input_ = node.input
    for i, inner in enumerate(block.blocks):
        where = join_path(node.where, f'Pipe[{i}]')
        input_ = input_ if i else state.input_of(inner, input_)
        parts.append((yield state.visit(inner, input_, where)))
        input_ = parts[-1].output
    node.parts = tuple(parts)
    return input_


@walk.register
def _(block: b.Pipe, node: TypedUse, x: object, state: Walk) -> Steps[Any]:
    for part in node.parts:
        x = yield state.part(part, x)
    return x


@write.register
def _(block: b.Pipe, node: TypedUse, value: Any, w: Lines) -> Any:
    parts = [*node.parts]
    # `a >> b >> c` is a pipe of a pipe and `c`. A shared pipe is memoized as a whole.
    while isinstance(parts[0].block, b.Pipe) and not parts[0].shared:
        parts[:1] = parts[0].parts
    for part in parts:
        value = w.part(part, value, tail=part is node.parts[-1])
    return value


@output_type.register
def _(block: b.AllOf, node: TypedUse, state: Inference) -> Steps[Type]:
    parts: list[TypedUse] = []
    for i, inner in enumerate(block.blocks):
        parts.append((yield state.part(node, inner, node.input, f'[{i}]')))
    node.parts = tuple(parts)
    return TupleType(part.output for part in parts)


@walk.register
def _(block: b.AllOf, node: TypedUse, x: object, state: Walk) -> Steps[Any]:
    values = []
    for part in node.parts:
        values.append((yield state.part(part, x)))
    return tuple(values)


@write.register
def _(block: b.AllOf, node: TypedUse, value: Any, w: Lines) -> Any:
    value = w.held(value)
    # A list, since a generator inside `tuple` would nest C calls, which Python limits.
    return tuple([w.part(part, value) for part in node.parts])


@output_type.register
def type_record(block: b.Record, node: TypedUse, state: Inference) -> Steps[Type]:
    """Infer the types of the fields' blocks; return the tuple of their output types."""
    inputs: list[Type] = [state.types.fresh() for _ in block.fields]
    keys, most = [key for key, _ in block.fields], block.length
    read = [k for k, (_, x) in enumerate(block.fields) if x not in state.constants]

    def link(head: Type) -> None:
        if isinstance(head, TupleType) and most is not None and len(head) > most:
            shown = str(state.types.resolve(head))
            fail(node, f'at most {count_of(most)}', shown, PICK)
        node.order = argument_order(node, block, head)
        for place in read:
            key: Any = keys[place]
            taken = key if node.order is None else node.order[key]
            field = _field_type(node, head, taken, state)
            state.equal(node, field, inputs[place], f'for {key!r}')
            # If the outermost input type is known already, a part gets the variable of
            # the field itself. Uses that share a variable are computed once.
            inputs[place] = field

    # A record of constants alone takes no input, so there is no type to wait for.
    if read:
        state.when_head(node, link)
    parts: list[TypedUse] = []
    for place, (key, inner) in enumerate(block.fields):
        parts.append((yield state.part(node, inner, inputs[place], f'[{key!r}]')))
    node.parts = tuple(parts)
    names = (frozenset({x} if isinstance(x, str) else ()) for x in keys)
    return record_type((part.output for part in parts), tuple(names))


@output_type.register
def _(block: Struct, node: TypedUse, state: Inference) -> Steps[Type]:
    parts: TupleType = yield type_record(block, node, state)
    return StructType(block.form, parts.items)


def _field_type(node: TypedUse, head: Type, key: object, state: Inference) -> Type:
    if isinstance(head, Product):
        return _product_item_type(node, head, key, state)
    type_ = state.types.resolve(head)
    if not type_.of_objects:
        hint = 'give the whole of it to several blocks by AllOf'
        if isinstance(type_, SequenceType):
            hint = 'use Map, for the fields of each item'
        fail(node, 'an object or a tuple', str(type_), hint)
    return ObjectType()


def _product_item_type(
    node: TypedUse, input_: Product, key: object, state: Inference
) -> Type:
    if (place := input_.place(key)) is not None:
        return state.item(node, place, input_.items[place])
    shown = str(state.types.resolve(input_))
    choices = input_.form.choices(len(input_))
    hint = choices and f'write {choices}'
    if isinstance(input_, StructType):
        fail(node, f'a key of its input, {shown}', repr(key), hint)
    if isinstance(key, bool) or not isinstance(key, int | np.integer):
        expected = f'int keys, for its input is the tuple {shown}'
        fail(node, expected, repr(key), hint)
    least = key + 1 if key >= 0 else -key
    fail(node, f'at least {least} items', shown, hint)


@walk.register
def _(block: b.Record, node: TypedUse, x: object, state: Walk) -> Steps[Any]:
    reads = not isinstance(node.input, VoidType)
    if reads and not isinstance(node.input, Product):
        x = state.as_object(x)
        if block.length is not None and (got := length_of(x.value)) > block.length:
            most = f'expected {count_of(block.length)}'
            raise misfit(node, f'{most}, got {got} in {short_repr(x.value)}; {PICK}', x)
    values, x = [], node.arranged(x)
    for (key, _), part in zip(block.fields, node.parts, strict=True):
        if isinstance(part.input, VoidType):
            item = None
        elif isinstance(x, tuple):
            item = x[_index_of(node.input, key)]
        else:
            item = state.get(node, x, key, _default(part, state.typing))
        values.append((yield state.part(part, item)))
    return tuple(values)


@write.register
def _(block: b.Record, node: TypedUse, value: Any, w: Lines) -> Any:
    keys, typing = [key for key, _ in block.fields], w.g.typing
    reads = [not isinstance(part.input, VoidType) for part in node.parts]
    value = node.arranged(value)
    is_tuple = isinstance(value, tuple) or value is None
    if not is_tuple:
        x = w.held(as_object(value))
        # A tuple or list is unpacked in one line if all its items are read, in order.
        reads_all = all(reads) and not any(_default(p, typing) for p in node.parts)
        if keys == [*range(len(keys))] and block.length == len(keys) and reads_all:
            return _write_unpacking(x, node, w)
        if block.length is not None and any(reads):
            w.line(f'at_most({x.text}, {number(block.length)})')
    values: list[Any] = []
    for key, part, is_read in zip(keys, node.parts, reads, strict=True):
        item = None
        if is_read and is_tuple:
            item = value[_index_of(node.input, key)]
        elif is_read:
            item = _write_field(x, key, _default(part, typing), w)
        values.append(w.part(part, item))
    return tuple(values)


def _default(node: TypedUse, typing: TypedExpression) -> tuple[None, ...]:
    """Return `(None,)`, a default, if `node` begins with `Optional`, else `()`."""
    seen = set()
    while isinstance(node.block, b.Pipe | b.Reference):
        if isinstance(node.block, b.Reference):
            if node.block.declaration in seen:
                return ()
            seen.add(node.block.declaration)
            node = typing.declarations[node.block.declaration]
        node = node.parts[0]
    return (None,) if isinstance(node.block, b.Optional) else ()


@output_type.register
def _(block: b.GetItem, node: TypedUse, state: Inference) -> Type:
    # At once if possible: then uses of the result share the variable of the item.
    head = state.types.head(node.input)
    if isinstance(head, Product):
        return _item_type(block, node, head, state)
    output = state.types.fresh()

    def link(head: Type) -> None:
        state.equal(node, _item_type(block, node, head, state), output, 'to give')

    state.when_head(node, link)
    return output


def _item_type(block: b.GetItem, node: TypedUse, head: Type, state: Inference) -> Type:
    key = block.key
    if isinstance(head, ObjectType):
        return ObjectType()
    if block.default:
        got = f'{state.types.resolve(head)}, of which it is known what it has'
        fail(node, 'an object, for there is a `default`', got)
    if isinstance(key, slice) and isinstance(head, TupleType | SequenceType):
        try:
            key.indices(0)
        except (TypeError, ValueError) as error:
            got = f'{key}: {describe_error(error)}'
            fail(node, 'a slice of ints', got, 'write it by Slice')
        return head[key] if isinstance(head, TupleType) else head
    if isinstance(head, Product):
        return _product_item_type(node, head, key, state)
    if isinstance(head, SequenceType):
        if not isinstance(key, int):
            sequence_ = state.types.resolve(head)
            expected = f'an int or a slice, for its input is {sequence_}'
            fail(node, expected, repr(key), 'use Map, for an item of each of its items')
        return head.item
    if isinstance(head, TensorType):
        return _tensor_item_type(node, head, key, state)
    got = str(state.types.resolve(head))
    hint = NO_ITEMS.get(type(head), '')
    fail(node, 'an object, tuple, sequence or tensor', got, hint)


def _tensor_item_type(
    node: TypedUse, tensor: TensorType, key: object, state: Inference
) -> Type:
    try:
        fn = take_item(key)
    except TypeError:
        hint = 'pick rows by their numbers in a Function, as `x[jnp.array(...)]` does'
        fail(node, 'ints and slices as the key of a tensor', repr(key), hint)
    if hint := why_no_item(key, tensor.shape):
        fail(node, f'a tensor with an item {key!r}', str(tensor), hint)
    return apply_layer(node, tensor, b.Function(fn), state)


@walk.register
def _(block: b.GetItem, node: TypedUse, x: object, state: Walk) -> Any:
    if isinstance(node.input, TensorType):
        return state.tensors.call(node, x)
    if not isinstance(node.input, ObjectType):
        if isinstance(x, tuple):
            return x[_index_of(node.input, block.key)]
        if isinstance(x, list):
            return _item_at(node, x, block.key)
    return state.get(node, x, block.key, block.default)


@write.register
def _(block: b.GetItem, node: TypedUse, value: Any, w: Lines) -> Any:
    if isinstance(value, tuple):
        return value[_index_of(node.input, block.key)]
    if isinstance(value, s.Items):
        if isinstance(key := block.key, slice):
            parts = [key.start, key.stop] + ([] if key.step is None else [key.step])
            text = ':'.join('' if x is None else number(x) for x in parts)
            return cut(value, text, w)
        return w.opened(item_at(value, number(block.key), w))
    if node.layer is not None:
        return write_layer(node, value, w)
    return _write_field(w.held(as_object(value)), block.key, block.default, w)


def _item_at(node: TypedUse, items: list[Any], key: Any) -> Any:
    """Return `items[key]`, an item or slice; raise `Misfit` if out of range."""
    if isinstance(key, slice):
        return items[key]
    if not -len(items) <= key < len(items):
        got = f'got a sequence of length {len(items)}'
        sequence = Located(items, path_of(items) or EXAMPLE)  # empty ones have no path
        raise misfit(node, f'expected an item {key}, {got}', sequence)
    return items[key]


def _index_of(input_: Type, key: object) -> Any:
    """Return `key`, as an index if it names an item of tuple or struct `input_`."""
    if isinstance(key, slice) or not isinstance(input_, Product):
        return key
    return input_.place(key)


def _write_unpacking(x: s.Object, node: TypedUse, w: Lines) -> Any:
    """Write `a, b = x`, then each part of `node` on its item; return results."""
    names = [w.variable(_ordinal(k)) for k, _ in enumerate(node.parts)]
    count = len(names)
    left = ', '.join(names) if count > 1 else f'[{"".join(names)}]'
    if x.kind in (tuple, list):
        w.line(f'{left} = {x.text}')
    else:
        items = f'items({x.text}, {count})'
        w.line(f'{left} = {x.text} if type({x.text}) is tuple else {items}')
    pairs = zip(node.parts, names, strict=True)
    return tuple([w.part(part, s.Object(name)) for part, name in pairs])


def _ordinal(k: int) -> str:
    """Return a variable name for item `k`: `first` to `sixth`, then `item_6`."""
    names = 'first', 'second', 'third', 'fourth', 'fifth', 'sixth'
    return names[k] if k < len(names) else f'item_{k}'


def _write_field(x: s.Object, key: Any, default: tuple[Any, ...], w: Lines) -> s.Object:
    """Write code that reads field `key` of `x`, or else `default`; return the variable.

    `default` is `(value,)` or `()`.
    """
    shown = literal(key, w, 'place')
    text = f'{x.text}[{shown}]'
    if default:
        text = f'field_or({x.text}, {shown}, {literal(default[0], w)})'
    elif isinstance(key, str) and x.kind is not dict:
        text += f' if type({x.text}) is dict else field({x.text}, {shown})'
    wanted = key if isinstance(key, str) else 'item'
    name = w.variable(_ordinal(key) if type(key) is int and key >= 0 else wanted)
    w.line(f'{name} = {text}')
    return s.Object(name)
