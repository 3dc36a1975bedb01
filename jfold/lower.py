# SPDX-License-Identifier: Apache-2.0
"""Lowering: a typed expression to a `Program`.

Each body is written once, in the order of evaluation, then cut into stages: what can
run before any call has returned, then the calls, then what needs their results. Calls
of one stage wait together, which is what makes a recursion run a whole frontier at a
time. Dispatch (`OneOf`) becomes positions, selections and a permutation, so that calls
in different cases wait together too.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

from jfold import combinators as c
from jfold import instructions as p
from jfold.language.constants import is_constant
from jfold.language.flow import follow
from jfold.language.infer import Typed, fail, infer
from jfold.language.writer import Builder, Ragged, Value, Writer, flatten, rebuild
from jfold.operations import Result
from jfold.program import HostPlan, Program, check_program
from jfold.registers import owners_of, row_names, types_of
from jfold.types import (
    ObjectType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    VoidType,
    terminals,
)


def lower(root: c.Block) -> Program:
    """Compiles an expression.

    Raises:
      TypeError: the types clash, cannot be determined, or the result is not made of
        tensors; the message starts with the path of the block at fault.
    """
    typing = infer(root)
    _check_output(typing.root, typing.metrics)
    builder = Builder(typing)
    body = write_body(builder, 'expression', typing.root)
    write_declarations(builder)
    check_recursion(builder)
    rows = [(None, typing.root.output), *sorted(typing.metrics.items())]
    results = [Result(name, row, builder.type_numbers(row)) for name, row in rows]
    plan, operations = HostPlan(body, tuple(builder.bodies)), tuple(builder.operations)
    result = Program(
        types=tuple(builder.types),
        layers=typing.layers,
        operations=operations,
        constants=tuple(builder.constants),
        results=tuple(results),
        sources=follow(plan, operations, results),
        plan=plan,
    )
    check_program(result)
    return result


def _check_output(root: Typed, metrics: dict[str, Type]) -> None:
    if not metrics and not any(terminals(root.output)):
        fail(root, 'a result of tensors, or a Metric', str(root.output))
    for leaf in terminals(root.output):
        if isinstance(leaf, SequenceType):
            hint = 'reduce the sequence, or collect its items by Metric'
            if not any(terminals(leaf.item)):
                hint = 'drop what a sink leaves by `>> Void()`'
            fail(root, 'a result of tensors in tuples', str(root.output), hint)
        if not isinstance(leaf, TensorType):
            hint = 'end with Scalar, Vector, Tensor or a Function'
            fail(root, 'a result of tensors in tuples', str(root.output), hint)


def write_body(
    builder: Builder, name: str, node: Typed, number: int | None = None
) -> p.Body:
    """Writes `node` as a body of its own; `number` is that of its declaration."""
    writer = Writer(builder, number)
    places = writer.new()
    value = writer.like(node.input)
    writer.untouched = set(flatten(value))
    result = emit(node.block, node, value, places, writer)
    return writer.finish(name, node.input, result, node.output)


def write_declarations(builder: Builder) -> None:
    """Writes the bodies asked for; writing one may ask for more."""
    while len(builder.bodies) < len(builder.declarations):
        number = len(builder.bodies)
        declaration = list(builder.declarations)[number]
        typed = builder.typing.declarations[declaration].parts[0]
        assert typed is not None
        builder.bodies.append(write_body(builder, declaration.name, typed, number))


def check_recursion(builder: Builder) -> None:
    """Refuses a declaration that reaches itself without taking its input apart."""
    for start in builder.unconsumed:
        seen: set[int] = set()
        waiting = [start]
        while waiting:
            for callee, where in builder.unconsumed.get(waiting.pop(), []):
                if callee == start:
                    raise TypeError(
                        f'{where}: expected a recursion on a part of its input, got '
                        'one on the same input, without end; take a field or an item '
                        'of it first'
                    )
                if callee not in seen:
                    seen.add(callee)
                    waiting.append(callee)


# ---- a rule per block ----------------------------------------------------------------


@functools.singledispatch
def emit(block: c.Block, node: Typed, value: Value, places: int, w: Writer) -> Value:
    """Writes the instructions of one use of a block; where its result is."""
    raise NotImplementedError(f'lowering has no rule for {block!r}')


def emit_part(part: Typed | None, value: Value, places: int, w: Writer) -> Value:
    """Writes a block inside another."""
    assert part is not None
    given = None if isinstance(part.input, VoidType) else value
    return emit(part.block, part, given, places, w)


@emit.register
def _(block: c.Tensor, node: Typed, value: Value, places: int, w: Writer) -> Value:
    number = w.builder.type_number(block.type)
    column = w.object(value, node)
    return w.one(p.Convert, (column, places), node, type=number, tensor=block.type)


@emit.register
def _(
    block: c.InputTransform, node: Typed, value: Value, places: int, w: Writer
) -> Value:
    column = w.object(value, node)
    if not isinstance(block.fn, Mapping):
        return w.one(p.Transform, (column,), node, fn=block.fn)
    table = {'table': dict(block.fn), 'default': block.default}
    return w.one(p.Lookup, (column,), node, **table)


@emit.register
def _(block: c.FromTensor, node: Typed, value: Value, places: int, w: Writer) -> Value:
    index = w.builder.constant(id(block.value), block.value)
    return w.one(p.Constant, (places,), node, index=index)


@emit.register
def _(block: c.Zeros, node: Typed, value: Value, places: int, w: Writer) -> Value:
    return emit_zeros(block.type, node, places, w)


def emit_zeros(type_: Type, node: Typed, places: int, w: Writer) -> Value:
    """Zeros of a type for every item."""
    if isinstance(type_, TupleType):
        return tuple(emit_zeros(item, node, places, w) for item in type_)
    if isinstance(type_, TensorType):
        zeros = np.zeros(type_.shape, type_.dtype)
        index = w.builder.constant(type_, zeros)
        return w.one(p.Constant, (places,), node, index=index)
    if isinstance(type_, SequenceType):
        lengths = w.one(p.Fixed, (places,), node, length=0)
        inner = w.item_places(lengths, places, node)
        return Ragged(lengths, emit_zeros(type_.item, node, inner, w))
    return None


@emit.register
def _(block: c.Void, node: Typed, value: Value, places: int, w: Writer) -> Value:
    return None


@emit.register
def _(block: c.Identity, node: Typed, value: Value, places: int, w: Writer) -> Value:
    return value


@emit.register
def _(block: c.Function, node: Typed, value: Value, places: int, w: Writer) -> Value:
    assert node.layer is not None
    number = w.builder.operation(node.layer, node.input, node.output)
    shape = _tuple_value(node.output)
    inputs = (places, *flatten(value))
    outputs = len(list(flatten(shape)))
    written = w.add(p.Apply, inputs, node, outputs=outputs, operation=number)
    return rebuild(shape, iter(written))


def _tuple_value(type_: Type) -> Value:
    """A placeholder with the structure of nested tuples of tensors."""
    if isinstance(type_, TupleType):
        return tuple(map(_tuple_value, type_))
    return 0


@emit.register
def _(block: c.Pipe, node: Typed, value: Value, places: int, w: Writer) -> Value:
    for part in node.parts:
        value = emit_part(part, value, places, w)
    return value


@emit.register
def _(block: c.AllOf, node: Typed, value: Value, places: int, w: Writer) -> Value:
    return tuple(emit_part(part, value, places, w) for part in node.parts)


@emit.register
def _(block: c.Record, node: Typed, value: Value, places: int, w: Writer) -> Value:
    is_tuple = isinstance(value, tuple)
    column = None if is_tuple or value is None else w.object(value, node)
    most = block.length  # looked at once, with the first field
    results = []
    for (key, each), part in zip(block.fields, node.parts, strict=True):
        item: Value = None
        if not is_constant(each):
            item = value[key] if isinstance(value, tuple) else None
            if column is not None:
                item = w.one(p.Field, (column,), node, key=key, most=most)
                most = None
        results.append(emit_part(part, item, places, w))
    return tuple(results)


@emit.register
def _(block: c.GetItem, node: Typed, value: Value, places: int, w: Writer) -> Value:
    if isinstance(value, tuple):
        item: Value = value[block.key]
        return item
    if isinstance(value, Ragged):
        if isinstance(block.key, slice):
            cut = (value.lengths,)
            return w.ranges(p.Cut, cut, value.items, node, key=block.key)
        positions = w.one(p.Position, (value.lengths,), node, key=block.key)
        return w.select(value.items, positions, node)
    if node.layer is not None:
        number = w.builder.operation(node.layer, node.input, node.output)
        return w.one(p.Apply, (places, value), node, operation=number)
    return w.one(p.Field, (value,), node, key=block.key)


@emit.register
def _(block: c.OneOf, node: Typed, value: Value, places: int, w: Writer) -> Value:
    key, pre, *cases = node.parts
    if key is not None:
        keys = w.object(emit_part(key, value, places, w), key)
    else:
        keys = w.one(p.Transform, (w.object(value, node),), node, fn=block.key_fn)
    if pre is not None:
        value = emit_part(pre, value, places, w)
    blocks = [case.block for case in cases if case is not None]
    number = {id(each): place for place, each in enumerate(blocks)}
    case_of = {k: number[id(b)] for k, b in block.targets.items()}
    options = {'case_of': case_of, 'cases': len(cases)}
    positions = w.add(p.Partition, (keys,), node, outputs=len(cases), **options)
    return emit_cases(cases, positions, value, node, places, w)


def emit_cases(
    cases: list[Typed | None],
    positions: tuple[int, ...],
    value: Value,
    node: Typed,
    places: int,
    w: Writer,
) -> Value:
    """Each case on its items; the results in the original order."""
    results = []
    for case, at in zip(cases, positions, strict=True):
        inner = w.one(p.Select, (places, at), node)
        if case is None:
            results.append(emit_zeros(node.output, node, inner, w))
        else:
            results.append(emit_part(case, w.select(value, at, node), inner, w))
    return w.merge(results, positions, node)


@emit.register
def _(block: c.Optional, node: Typed, value: Value, places: int, w: Writer) -> Value:
    column = w.object(value, node)
    positions = w.add(p.Present, (column,), node, outputs=2)
    return emit_cases(list(node.parts), positions, column, node, places, w)


@emit.register
def _(block: c.Reference, node: Typed, value: Value, places: int, w: Writer) -> Value:
    number = w.builder.declaration(block.declaration)
    if isinstance(w.builder.typing.declarations[block.declaration].input, ObjectType):
        value = w.object(value, node)
    given = list(flatten(value))
    if w.declaration is not None and w.untouched.issuperset(given):
        unconsumed = w.builder.unconsumed.setdefault(w.declaration, [])
        unconsumed.append((number, str(node)))
    result = Writer(w.builder, None).like(node.output)
    outputs = len(list(flatten(result)))
    names = row_names()
    written = w.add(
        p.Call,
        (places, *given),
        node,
        outputs=outputs,
        declaration=number,
        way=next(w.builder.ways),
        owners=owners_of([*types_of(node.output, names, next(names))]),
    )
    return rebuild(result, iter(written))


@emit.register
def _(block: c.Metric, node: Typed, value: Value, places: int, w: Writer) -> Value:
    number = sorted(w.builder.typing.metrics).index(block.name)
    w.add(p.Observe, (places, *flatten(value)), node, outputs=0, metric=number)
    return None


# ---- sequences -----------------------------------------------------------------------


@emit.register
def _(block: c.Map, node: Typed, value: Value, places: int, w: Writer) -> Value:
    given = w.sequence(value, places, node)
    inner = w.item_places(given.lengths, places, node)
    return Ragged(given.lengths, emit_part(node.parts[0], given.items, inner, w))


def _check_state(node: Typed, type_: Type) -> None:
    for leaf in terminals(type_):
        if not isinstance(leaf, TensorType | ObjectType):
            fail(node, 'items and states of tensors or objects', str(type_))


@emit.register
def _(block: c.Fold, node: Typed, value: Value, places: int, w: Writer) -> Value:
    combine, start = node.parts
    assert combine is not None
    assert start is not None
    _check_state(node, combine.input)
    given = w.sequence(value, places, node)
    items = emit_of_items(combine, given, places, w)
    state = emit_part(start, None, places, w)
    states = list(flatten(state))
    written = w.add(
        p.FoldLoop,
        (given.lengths, places, *states, *flatten(items)),
        node,
        outputs=len(states),
        combine=write_combine(w.builder, combine, state, items),
        states=len(states),
        way=next(w.builder.ways),
    )
    return rebuild(state, iter(written))


def fields_of_item(combine: Typed) -> list[Typed]:
    """The parts of a fold's body that read the item alone, and could run before it.

    They are the fields 1 of a leading `Record` over (state, item).
    """
    first = combine.parts[0] if isinstance(combine.block, c.Pipe) else combine
    if first is None or not isinstance(first.block, c.Record):
        return []
    keys = [key for key, _ in first.block.fields]
    if not set(keys) <= {0, 1}:
        return []
    return [part for key, part in zip(keys, first.parts, strict=True) if part and key]


def emit_of_items(combine: Typed, given: Ragged, places: int, w: Writer) -> Value:
    """What a fold's body takes as its items: what can be computed for all at once is.

    A recursion in there then runs for all items together, not position by position.
    """
    parts = fields_of_item(combine)
    if not parts:
        return given.items
    inner = w.item_places(given.lengths, places, combine)
    return tuple(emit_part(part, given.items, inner, w) for part in parts)


def write_combine(
    builder: Builder, combine: Typed, state: Value, items: Value
) -> p.Body:
    """The body of a fold, whose items are as `emit_of_items` makes them."""
    ready = fields_of_item(combine)
    if not ready:
        return write_body(builder, str(combine), combine)
    w = Writer(builder, None)
    places = w.new()
    before = rebuild(state, iter(w.new, None))
    item = rebuild(items, iter(w.new, None))
    piped = isinstance(combine.block, c.Pipe)
    record = combine.parts[0] if piped else combine
    assert record is not None
    assert isinstance(item, tuple)
    assert isinstance(combine.input, TupleType)
    start, _ = combine.input
    rest = iter(item)
    value: Value = tuple(
        next(rest) if part in ready else emit_part(part, before, places, w)
        for part in record.parts
    )
    for part in combine.parts[1:] if piped else ():
        value = emit_part(part, value, places, w)
    given = TupleType(start, *(part.output for part in ready))
    return w.finish(str(combine), given, value, combine.output)


@emit.register
def _(block: c.Reduce, node: Typed, value: Value, places: int, w: Writer) -> Value:
    combine, default = node.parts
    assert combine is not None
    _check_state(node, combine.input)
    given = w.sequence(value, places, node)
    if default is None:
        zeros = c.Zeros(node.output)
        default = Typed(zeros, str(node), VoidType(), node.output)
    items = list(flatten(given.items))
    written = w.add(
        p.ReduceLoop,
        (given.lengths, places, *items),
        node,
        outputs=len(items),
        combine=write_body(w.builder, str(combine), combine),
        default=write_body(w.builder, str(default), default),
        way=next(w.builder.ways),
    )
    return rebuild(given.items, iter(written))


@emit.register
def _(block: c.Length, node: Typed, value: Value, places: int, w: Writer) -> Value:
    if isinstance(node.input, ObjectType):
        lengths = w.one(p.Count, (value,), node)
    elif isinstance(value, Ragged):
        lengths = value.lengths
    else:
        length = len(node.input) if isinstance(node.input, TupleType) else 0
        lengths = w.one(p.Fixed, (places,), node, length=length)
    number = w.builder.type_number(block.type)
    given = (lengths, places)
    return w.one(p.Numbers, given, node, type=number, tensor=block.type)
