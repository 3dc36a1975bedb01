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
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from jfold import combinators as c
from jfold import program as p
from jfold.infer import Typed, Typing, fail, infer
from jfold.layers import arguments_of
from jfold.types import (
    BroadcastType,
    ObjectType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    VoidType,
    terminals,
)


@dataclass(frozen=True)
class Ragged:
    """A sequence as registers: its lengths, and its items one after another."""

    lengths: int
    items: Value


# What stands for a value while lowering: a register (tensor or object), a tuple of
# values, a sequence, or nothing (void).
Value: TypeAlias = 'int | tuple[Value, ...] | Ragged | None'


@dataclass(frozen=True)
class Context:
    """Registers that tell, where an instruction runs, how many items there are, and
    which example each belongs to (only kept for metrics)."""

    size: int
    example: int | None

    @property
    def registers(self) -> tuple[int, ...]:
        return (self.size,) if self.example is None else (self.size, self.example)


def lower(root: c.Block) -> p.Program:
    """Compiles an expression.

    Raises:
      TypeError: the types clash, cannot be determined, or the result is not made of
        tensors; the message starts with the path of the block at fault.
    """
    typing = infer(root)
    _check_output(typing.root, typing.metrics)
    builder = Builder(typing)
    body = builder.body('expression', typing.root, None)
    builder.write_declarations()
    builder.check_recursion()
    metrics = [
        (name, given, builder.type_numbers(given))
        for name, given in sorted(typing.metrics.items())
    ]
    output = typing.root.output
    result = p.Program(
        types=(),
        layers=typing.layers,
        operations=tuple(builder.operations),
        constants=tuple(builder.constants),
        body=body,
        declarations=tuple(builder.bodies),
        output=output,
        output_types=builder.type_numbers(output),
        metrics=tuple(metrics),
    )
    object.__setattr__(result, 'types', tuple(builder.types))
    p.check_program(result)
    return result


def _check_output(root: Typed, metrics: dict[str, Type]) -> None:
    if not metrics and not any(terminals(root.output)):
        fail(root, 'a result of tensors, or a Metric', str(root.output))
    for leaf in terminals(root.output):
        if isinstance(leaf, SequenceType):
            hint = 'reduce the sequence, or collect its items by Metric'
            fail(root, 'a result of tensors in tuples', str(root.output), hint)
        if not isinstance(leaf, TensorType):
            hint = 'end with Scalar, Vector, Tensor or a Function'
            fail(root, 'a result of tensors in tuples', str(root.output), hint)


@dataclass(eq=False)
class Builder:
    """The tables that the bodies of one program share."""

    typing: Typing
    types: dict[TensorType, int] = field(default_factory=dict)
    operations: dict[p.Operation, int] = field(default_factory=dict)
    constants: list[tuple[int, np.ndarray[Any, Any]]] = field(default_factory=list)
    known: dict[Any, int] = field(default_factory=dict)
    declarations: dict[c.ForwardDeclaration, int] = field(default_factory=dict)
    bodies: list[p.Body] = field(default_factory=list)
    unconsumed: dict[int, list[tuple[int, str]]] = field(default_factory=dict)

    @property
    def carries_example(self) -> bool:
        return bool(self.typing.metrics)

    def type_number(self, type_: TensorType) -> int:
        """The number of a tensor type, new if need be."""
        return self.types.setdefault(type_, len(self.types))

    def type_numbers(self, type_: Type) -> tuple[int, ...]:
        """The numbers of the tensors in nested tuples."""
        leaves = [t for t in terminals(type_) if isinstance(t, TensorType)]
        return tuple(map(self.type_number, leaves))

    def operation(self, layer: p.Layer, given: Type, result: Type) -> int:
        """The number of a layer at given types: equal ones are one operation."""
        arguments = arguments_of(given)
        numbers = self.type_numbers(TupleType(arguments))
        made = p.Operation(layer, arguments, result, numbers, self.type_numbers(result))
        return self.operations.setdefault(made, len(self.operations))

    def constant(self, key: Any, value: np.ndarray[Any, Any]) -> int:
        """The number of a constant; equal keys are one."""
        if key not in self.known:
            self.known[key] = len(self.constants)
            number = self.type_number(TensorType(value.shape, value.dtype))
            self.constants.append((number, value))
        return self.known[key]

    def declaration(self, declaration: c.ForwardDeclaration) -> int:
        """The number of a declaration's body, which is written later."""
        return self.declarations.setdefault(declaration, len(self.declarations))

    def write_declarations(self) -> None:
        """Writes the bodies asked for; writing one may ask for more."""
        while len(self.bodies) < len(self.declarations):
            number = len(self.bodies)
            declaration = list(self.declarations)[number]
            typed = self.typing.declarations[declaration].parts[0]
            assert typed is not None
            self.bodies.append(self.body(declaration.name, typed, number))

    def body(self, name: str, node: Typed, number: int | None) -> p.Body:
        """Writes `node` as a body of its own; `number` is that of its declaration."""
        writer = Writer(self, number)
        size = writer.new()
        context = Context(size, writer.new() if self.carries_example else None)
        value = writer.like(node.input)
        writer.untouched = set(flatten(value))
        arity = writer.count
        result = emit(node.block, node, value, context, writer)
        return writer.finish(name, arity, result)

    def check_recursion(self) -> None:
        """Refuses a declaration that reaches itself without taking its input apart."""
        for start in self.unconsumed:
            seen: set[int] = set()
            waiting = [start]
            while waiting:
                for callee, where in self.unconsumed.get(waiting.pop(), []):
                    if callee == start:
                        raise TypeError(
                            f'{where}: refers to itself on the same input, without '
                            'end; a recursion must go to a part of its input'
                        )
                    if callee not in seen:
                        seen.add(callee)
                        waiting.append(callee)


# ---- writing one body ----------------------------------------------------------------


@dataclass(eq=False)
class Writer:
    """Appends instructions to one body."""

    builder: Builder
    declaration: int | None
    count: int = 0
    instructions: list[p.Instruction] = field(default_factory=list)
    untouched: set[int] = field(default_factory=set)

    def new(self) -> int:
        """A register nothing has written."""
        self.count += 1
        return self.count - 1

    def add(
        self, kind: Any, inputs: Any, node: Typed, outputs: int = 1, **options: Any
    ) -> tuple[int, ...]:
        """Appends an instruction; the registers it writes."""
        written = tuple(self.new() for _ in range(outputs))
        made = kind(tuple(inputs), written, str(node), **options)
        self.instructions.append(made)
        return written

    def one(self, kind: Any, inputs: Any, node: Typed, **options: Any) -> int:
        """Appends an instruction that writes one register."""
        return self.add(kind, inputs, node, **options)[0]

    def like(self, type_: Type) -> Value:
        """New registers for a value of a type."""
        if isinstance(type_, TupleType):
            return tuple(map(self.like, type_))
        if isinstance(type_, SequenceType | BroadcastType):
            return Ragged(self.new(), self.like(type_.item))
        return None if isinstance(type_, VoidType) else self.new()

    def object(self, value: Value, node: Typed) -> int:
        """A value made of objects as one column of objects."""
        if isinstance(value, tuple):
            return self.one(p.Pack, [self.object(v, node) for v in value], node)
        if isinstance(value, Ragged):
            items = self.object(value.items, node)
            return self.one(p.Group, (value.lengths, items), node)
        assert value is not None
        return value

    def select(self, value: Value, positions: int, node: Typed) -> Value:
        """The items of a value at given positions."""
        if isinstance(value, tuple):
            return tuple(self.select(v, positions, node) for v in value)
        if isinstance(value, Ragged):
            return self.ranges(p.Ranges, (value.lengths, positions), value.items, node)
        if value is None:
            return None
        result = self.one(p.Select, (value, positions), node)
        if value in self.untouched:
            self.untouched.add(result)
        return result

    def ranges(
        self, kind: Any, inputs: Any, items: Value, node: Typed, **options: Any
    ) -> Ragged:
        """A sequence by an instruction that gives lengths and positions of items."""
        lengths, positions = self.add(kind, inputs, node, outputs=2, **options)
        return Ragged(lengths, self.select(items, positions, node))

    def join(self, values: list[Value], node: Typed) -> Value:
        """Values one after another."""
        first = values[0]
        if isinstance(first, tuple):
            parts = zip(*values, strict=True)
            return tuple(self.join(list(part), node) for part in parts)
        if isinstance(first, Ragged):
            sequences = [v for v in values if isinstance(v, Ragged)]
            lengths = self.one(p.Join, [s.lengths for s in sequences], node)
            return Ragged(lengths, self.join([s.items for s in sequences], node))
        return None if first is None else self.one(p.Join, values, node)

    def part_context(self, positions: int, context: Context, node: Typed) -> Context:
        """The context of the items at given positions."""
        example = context.example
        if example is not None:
            example = self.one(p.Select, (example, positions), node)
        return Context(self.one(p.Size, (positions,), node), example)

    def item_context(self, lengths: int, context: Context, node: Typed) -> Context:
        """The context of all items of sequences."""
        example = context.example
        if example is not None:
            example = self.one(p.Spread, (example, lengths), node)
        return Context(self.one(p.Total, (lengths,), node), example)

    def sequence(self, value: Value, context: Context, node: Typed) -> Ragged:
        """The input of a sequence block as a sequence."""
        given = node.input
        if isinstance(given, ObjectType):
            assert isinstance(value, int)
            return Ragged(*self.add(p.Iterate, (value,), node, outputs=2))
        if isinstance(value, tuple):
            length = len(value)
            lengths = self.one(p.Fixed, (context.size,), node, length=length)
            return Ragged(lengths, self.interleave(list(value), node))
        assert isinstance(value, Ragged)
        return value

    def interleave(self, values: list[Value], node: Typed) -> Value:
        """The items of a tuple of one type, as those of a sequence."""
        if isinstance(values[0], tuple):
            parts = zip(*values, strict=True)
            return tuple(self.interleave(list(part), node) for part in parts)
        if isinstance(values[0], Ragged):
            fail(node, 'a tuple of tensors or objects', str(node.input))
        return None if values[0] is None else self.one(p.Interleave, values, node)

    def finish(self, name: str, arity: int, result: Value) -> p.Body:
        """The body, without instructions nobody reads, cut into stages."""
        outputs = tuple(flatten(result))
        kept = _live(self.instructions, outputs)
        writer = {r: i for i in kept for r in i.outputs}
        example = self.builder.carries_example
        stages = tuple(_stages(kept))
        owners = tuple(_owners(result))
        count = self.count
        return p.Body(name, arity, stages, outputs, owners, count, example, writer)


# Instructions that may raise on bad data stay even where nobody reads their result.
_BOOKKEEPING = (
    p.Constant,
    p.Numbers,
    p.Apply,
    p.Pack,
    p.Group,
    p.Size,
    p.Total,
    p.Select,
    p.Join,
    p.Order,
    p.Ranges,
    p.Spread,
    p.Interleave,
    p.Fixed,
)


def _live(
    instructions: list[p.Instruction], outputs: tuple[int, ...]
) -> list[p.Instruction]:
    needed, kept = set(outputs), []
    for instruction in reversed(instructions):
        dead = isinstance(instruction, _BOOKKEEPING)
        if dead and needed.isdisjoint(instruction.outputs):
            continue
        needed.update(instruction.inputs)
        kept.append(instruction)
    return kept[::-1]


def _stages(instructions: list[p.Instruction]) -> Iterator[p.Stage]:
    ready: dict[int, int] = {}
    stages: dict[int, tuple[list[p.Instruction], list[p.Call]]] = {}
    for each in instructions:
        stage = max((ready.get(r, 0) for r in each.inputs), default=0)
        plain, calls = stages.setdefault(stage, ([], []))
        is_call = isinstance(each, p.Call)
        calls.append(each) if isinstance(each, p.Call) else plain.append(each)
        ready |= dict.fromkeys(each.outputs, stage + is_call)
    for number in sorted(stages):
        yield p.Stage(*map(tuple, stages[number]))  # type: ignore[arg-type]


def flatten(value: Value) -> Iterator[int]:
    """The registers of a value, in the order of `Writer.like`."""
    if isinstance(value, tuple):
        yield from itertools.chain.from_iterable(map(flatten, value))
    elif isinstance(value, Ragged):
        yield value.lengths
        yield from flatten(value.items)
    elif value is not None:
        yield value


def _owners(value: Value, first: int = 0, owner: int = -1) -> Iterator[int]:
    """Of each register, which one, by place, holds the lengths of its sequence."""
    if isinstance(value, tuple):
        for part in value:
            yield from _owners(part, first, owner)
            first += len(list(flatten(part)))
    elif isinstance(value, Ragged):
        yield owner
        yield from _owners(value.items, first + 1, first)
    elif value is not None:
        yield owner


def rebuild(value: Value, registers: Iterator[int]) -> Value:
    """The same structure around other registers; the inverse of `flatten`."""
    if isinstance(value, tuple):
        return tuple(rebuild(v, registers) for v in value)
    if isinstance(value, Ragged):
        return Ragged(next(registers), rebuild(value.items, registers))
    return None if value is None else next(registers)


# ---- a rule per block ----------------------------------------------------------------


@functools.singledispatch
def emit(
    block: c.Block, node: Typed, value: Value, context: Context, w: Writer
) -> Value:
    """Writes the instructions of one use of a block; where its result is."""
    raise NotImplementedError(f'lowering has no rule for {block!r}')


def emit_part(part: Typed | None, value: Value, context: Context, w: Writer) -> Value:
    """Writes a block inside another."""
    assert part is not None
    given = None if isinstance(part.input, VoidType) else value
    return emit(part.block, part, given, context, w)


@emit.register
def _(block: c.Tensor, node: Typed, value: Value, context: Context, w: Writer) -> Value:
    number = w.builder.type_number(block.type)
    column = w.object(value, node)
    return w.one(p.Convert, (column,), node, type=number, tensor=block.type)


@emit.register
def _(
    block: c.InputTransform, node: Typed, value: Value, context: Context, w: Writer
) -> Value:
    return w.one(p.Transform, (w.object(value, node),), node, fn=block.fn)


@emit.register
def _(
    block: c.FromTensor, node: Typed, value: Value, context: Context, w: Writer
) -> Value:
    index = w.builder.constant(id(block.value), block.value)
    return w.one(p.Constant, (context.size,), node, index=index)


@emit.register
def _(block: c.Zeros, node: Typed, value: Value, context: Context, w: Writer) -> Value:
    return emit_zeros(block.type, node, context, w)


def emit_zeros(type_: Type, node: Typed, context: Context, w: Writer) -> Value:
    """Zeros of a type for every item."""
    if isinstance(type_, TupleType):
        return tuple(emit_zeros(item, node, context, w) for item in type_)
    if isinstance(type_, TensorType):
        zeros = np.zeros(type_.shape, type_.dtype)
        index = w.builder.constant(type_, zeros)
        return w.one(p.Constant, (context.size,), node, index=index)
    if isinstance(type_, SequenceType):
        lengths = w.one(p.Fixed, (context.size,), node, length=0)
        inner = w.item_context(lengths, context, node)
        return Ragged(lengths, emit_zeros(type_.item, node, inner, w))
    return None


@emit.register
def _(block: c.Void, node: Typed, value: Value, context: Context, w: Writer) -> Value:
    return None


@emit.register
def _(
    block: c.Identity, node: Typed, value: Value, context: Context, w: Writer
) -> Value:
    return value


@emit.register
def _(
    block: c.Function, node: Typed, value: Value, context: Context, w: Writer
) -> Value:
    assert node.layer is not None
    number = w.builder.operation(node.layer, node.input, node.output)
    shape = _tuple_value(node.output)
    inputs = (context.size, *flatten(value))
    outputs = len(list(flatten(shape)))
    written = w.add(p.Apply, inputs, node, outputs=outputs, operation=number)
    return rebuild(shape, iter(written))


def _tuple_value(type_: Type) -> Value:
    """A placeholder with the structure of nested tuples of tensors."""
    if isinstance(type_, TupleType):
        return tuple(map(_tuple_value, type_))
    return 0


@emit.register
def _(block: c.Pipe, node: Typed, value: Value, context: Context, w: Writer) -> Value:
    for part in node.parts:
        value = emit_part(part, value, context, w)
    return value


@emit.register
def _(block: c.AllOf, node: Typed, value: Value, context: Context, w: Writer) -> Value:
    return tuple(emit_part(part, value, context, w) for part in node.parts)


@emit.register
def _(block: c.Record, node: Typed, value: Value, context: Context, w: Writer) -> Value:
    is_tuple = isinstance(value, tuple)
    column = None if is_tuple or value is None else w.object(value, node)
    results = []
    for (key, each), part in zip(block.fields, node.parts, strict=True):
        item: Value = None
        if not c.is_constant(each):
            item = value[key] if isinstance(value, tuple) else None
            if column is not None:
                item = w.one(p.Field, (column,), node, key=key)
        results.append(emit_part(part, item, context, w))
    return tuple(results)


@emit.register
def _(
    block: c.GetItem, node: Typed, value: Value, context: Context, w: Writer
) -> Value:
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
        return w.one(p.Apply, (context.size, value), node, operation=number)
    return w.one(p.Field, (value,), node, key=block.key)


@emit.register
def _(block: c.OneOf, node: Typed, value: Value, context: Context, w: Writer) -> Value:
    key, pre, *cases = node.parts
    if key is not None:
        keys = w.object(emit_part(key, value, context, w), key)
    else:
        keys = w.one(p.Transform, (w.object(value, node),), node, fn=block.key_fn)
    if pre is not None:
        value = emit_part(pre, value, context, w)
    blocks = [case.block for case in cases if case is not None]
    case_of = {k: blocks.index(b) for k, b in block.targets.items()}
    options = {'case_of': case_of, 'cases': len(cases)}
    positions = w.add(p.Partition, (keys,), node, outputs=len(cases), **options)
    return emit_cases(cases, positions, value, node, context, w)


def emit_cases(
    cases: list[Typed | None],
    positions: tuple[int, ...],
    value: Value,
    node: Typed,
    context: Context,
    w: Writer,
) -> Value:
    """Each case on its items; the results in the original order."""
    results = []
    for case, at in zip(cases, positions, strict=True):
        inner = w.part_context(at, context, node)
        if case is None:
            results.append(emit_zeros(node.output, node, inner, w))
        else:
            results.append(emit_part(case, w.select(value, at, node), inner, w))
    order = w.one(p.Order, positions, node)
    return w.select(w.join(results, node), order, node)


@emit.register
def _(
    block: c.Optional, node: Typed, value: Value, context: Context, w: Writer
) -> Value:
    column = w.object(value, node)
    positions = w.add(p.Present, (column,), node, outputs=2)
    return emit_cases(list(node.parts), positions, column, node, context, w)


@emit.register
def _(
    block: c.Reference, node: Typed, value: Value, context: Context, w: Writer
) -> Value:
    number = w.builder.declaration(block.declaration)
    if isinstance(w.builder.typing.declarations[block.declaration].input, ObjectType):
        value = w.object(value, node)
    given = list(flatten(value))
    if w.declaration is not None and w.untouched.issuperset(given):
        unconsumed = w.builder.unconsumed.setdefault(w.declaration, [])
        unconsumed.append((number, str(node)))
    result = Writer(w.builder, None).like(node.output)
    registers = (*context.registers, *given)
    outputs = len(list(flatten(result)))
    options = {'declaration': number, 'lists': tuple(_lists(node.output))}
    written = w.add(p.Call, registers, node, outputs=outputs, **options)
    return rebuild(result, iter(written))


def _lists(type_: Type) -> Iterator[bool]:
    """Of each register of a value, whether it holds objects."""
    if isinstance(type_, TupleType):
        yield from itertools.chain.from_iterable(map(_lists, type_))
    elif isinstance(type_, SequenceType):
        yield False
        yield from _lists(type_.item)
    elif not isinstance(type_, VoidType):
        yield isinstance(type_, ObjectType)


@emit.register
def _(block: c.Metric, node: Typed, value: Value, context: Context, w: Writer) -> Value:
    number = sorted(w.builder.typing.metrics).index(block.name)
    assert context.example is not None
    inputs = (context.example, *flatten(value))
    w.add(p.Observe, inputs, node, outputs=0, metric=number)
    return None


# ---- sequences -----------------------------------------------------------------------


@emit.register
def _(block: c.Map, node: Typed, value: Value, context: Context, w: Writer) -> Value:
    given = w.sequence(value, context, node)
    inner = w.item_context(given.lengths, context, node)
    return Ragged(given.lengths, emit_part(node.parts[0], given.items, inner, w))


def _check_state(node: Typed, type_: Type) -> None:
    for leaf in terminals(type_):
        if not isinstance(leaf, TensorType | ObjectType):
            fail(node, 'items and states of tensors or objects', str(type_))


@emit.register
def _(block: c.Fold, node: Typed, value: Value, context: Context, w: Writer) -> Value:
    combine, start = node.parts
    assert combine is not None
    assert start is not None
    _check_state(node, combine.input)
    given = w.sequence(value, context, node)
    state = emit_part(start, None, context, w)
    states = [*context.registers[1:], *flatten(state)]
    body = w.builder.body(str(combine), combine, None)
    written = w.add(
        p.FoldLoop,
        (given.lengths, *states, *flatten(given.items)),
        node,
        outputs=len(states),
        combine=body,
        states=len(states),
    )
    return rebuild(state, iter(written[len(context.registers) - 1 :]))


@emit.register
def _(block: c.Reduce, node: Typed, value: Value, context: Context, w: Writer) -> Value:
    combine, default = node.parts
    assert combine is not None
    _check_state(node, combine.input)
    given = w.sequence(value, context, node)
    if default is None:
        zeros = c.Zeros(node.output)
        default = Typed(zeros, str(node), VoidType(), node.output)
    items = list(flatten(given.items))
    written = w.add(
        p.ReduceLoop,
        (given.lengths, *context.registers[1:], *items),
        node,
        outputs=len(items),
        combine=w.builder.body(str(combine), combine, None),
        default=w.builder.body(str(default), default, None),
    )
    return rebuild(given.items, iter(written))


@emit.register
def _(block: c.Length, node: Typed, value: Value, context: Context, w: Writer) -> Value:
    if isinstance(node.input, ObjectType):
        lengths = w.one(p.Count, (value,), node)
    elif isinstance(value, Ragged):
        lengths = value.lengths
    else:
        length = len(node.input) if isinstance(node.input, TupleType) else 0
        lengths = w.one(p.Fixed, (context.size,), node, length=length)
    number = w.builder.type_number(block.type)
    return w.one(p.Numbers, (lengths,), node, type=number, tensor=block.type)
