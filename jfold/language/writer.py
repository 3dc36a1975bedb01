# SPDX-License-Identifier: Apache-2.0
"""Writing bodies: tables that the bodies of a program share, and one body's lines."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

import numpy as np

from jfold import combinators as c
from jfold import instructions as p
from jfold.language.layers import arguments_of
from jfold.language.numbering import gives_objects, value_number
from jfold.language.origins import computing
from jfold.language.typed import Typed, Typing
from jfold.language.visits import number_visits
from jfold.operations import Layer, Operation
from jfold.registers import (
    PLACES,
    RegisterType,
    row_names,
    types_of,
    wrapped,
)
from jfold.traits import Effect
from jfold.trampoline import Steps, in_turn
from jfold.types import (
    BroadcastType,
    KeyType,
    Product,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    VoidType,
    item_of,
    tensors,
)


@dataclass(frozen=True)
class SequenceValue:
    """A sequence as registers: its lengths, and its items one after another."""

    lengths: int
    items: Value


@dataclass(frozen=True)
class Repeated:
    """A value repeated without end, which takes no more registers than one."""

    item: Value


# What stands for a value while lowering: a register (tensor or object), a tuple of
# values, a sequence, a repetition, or nothing (void).
Value: TypeAlias = int | tuple['Value', ...] | SequenceValue | Repeated | None
Writing: TypeAlias = Steps[Any]  # to a `Value`
Kind: TypeAlias = type[p.Instruction]
Inputs: TypeAlias = Iterable[Value]  # of an instruction: registers


@dataclass(eq=False)
class Builder:
    """The tables that the bodies of one program share."""

    typing: Typing
    types: dict[TensorType, int] = field(default_factory=dict)
    operations: dict[Operation, int] = field(default_factory=dict)
    constants: list[tuple[int, np.ndarray[Any, Any]]] = field(default_factory=list)
    known: dict[Hashable, int] = field(default_factory=dict)
    parts: dict[tuple[Layer, tuple[Type, ...]], Layer] = field(default_factory=dict)
    declarations: dict[c.ForwardDeclaration, int] = field(default_factory=dict)
    bodies: list[p.Body] = field(default_factory=list)
    unconsumed: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    ways: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def type_number(self, type_: TensorType) -> int:
        """The number of a tensor type, new if need be."""
        return self.types.setdefault(type_, len(self.types))

    def type_numbers(self, type_: Type) -> tuple[int, ...]:
        """The numbers of the tensors in nested tuples."""
        return tuple(map(self.type_number, tensors(type_)))

    def operation(
        self,
        layer: Layer,
        given: Type,
        result: Type,
        from_left: bool = False,
        is_straight: bool = False,
    ) -> int:
        """The number of a layer at given types: equal ones are one operation."""
        keys = map(KeyType, layer.rngs)
        arguments = *keys, *arguments_of(given)
        numbers = self.type_numbers(TupleType(arguments)), self.type_numbers(result)
        made = Operation(layer, arguments, result, *numbers, from_left, is_straight)
        return self.operations.setdefault(made, len(self.operations))

    def computing(self, node: Typed) -> int:
        """The number of the operation that computes what the layer of a node has to."""
        layer, origins, arguments = node.layer, node.origins, arguments_of(node.input)
        assert layer is not None and origins is not None
        given, made = (list(tensors(x)) for x in (TupleType(arguments), node.output))
        computed, reads, read = origins.computed, origins.reads, node.input
        result, count = node.output, len(layer.rngs) + len(given)
        if (len(computed), len(reads)) != (len(made), count):
            if (layer, arguments) not in self.parts:
                self.parts[layer, arguments] = computing(layer, arguments, origins)
            layer, read = (
                self.parts[layer, arguments],
                TupleType(given[i] for i in reads),
            )
            results = [made[k] for k in computed]
            result = results[0] if len(results) == 1 else TupleType(results)
        return self.operation(layer, read, result, is_straight=origins.is_straight)

    def constant(self, key: Hashable, value: np.ndarray[Any, Any]) -> int:
        """The number of a constant; equal keys are one."""
        if key not in self.known:
            self.known[key] = len(self.constants)
            number = self.type_number(TensorType(value.shape, value.dtype))
            self.constants.append((number, value))
        return self.known[key]

    @functools.cached_property
    def visits(self) -> dict[Typed, int]:
        """The uses of blocks with a metric inside, in the order of evaluation."""
        return number_visits(self.typing)

    def visit(self, node: Typed) -> int | None:
        """The number of a use of a block in there."""
        return self.visits.get(node)

    def declaration(self, declaration: c.ForwardDeclaration) -> int:
        """The number of a declaration's body, which is written later."""
        return self.declarations.setdefault(declaration, len(self.declarations))


# ---- writing one body ----------------------------------------------------------------


@dataclass(eq=False)
class Writer:
    """Appends instructions to one body.

    Attributes:
      written: the results of blocks that are used more than once, by block, value and
        places; with the values, whose ids stay theirs as long as they are kept.
      numbered: what instructions write, by what they do to which registers: what is
        the same is done once.
      alike: by register of objects, one that holds equal ones. Objects are read each
        time, since an attribute may give another iterator to each reader. Also by one
        of places at which something is observed: each use counts.
      seen: these registers of places.
    """

    builder: Builder
    declaration: int | None
    count: int = 0
    instructions: list[p.Instruction] = field(default_factory=list)
    untouched: set[int] = field(default_factory=set)
    written: dict[tuple[Typed, int, int], tuple[Value, Value]] = field(
        default_factory=dict
    )
    numbered: dict[Hashable, tuple[int, ...]] = field(default_factory=dict)
    alike: dict[int, int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    def new(self) -> int:
        """A register nothing has written."""
        self.count += 1
        return self.count - 1

    def add(
        self, kind: Kind, inputs: Inputs, node: Typed, outputs: int, **options: Any
    ) -> tuple[int, ...]:
        """Appends an instruction, if there is no such one; the registers it writes."""
        registers = cast(tuple[int, ...], tuple(inputs))
        alike = [self.alike.get(r, r) for r in registers]
        number = value_number(kind, alike, outputs, options)
        known = self.numbered.get(number) if number else None
        is_seen = self._is_seen(kind, registers, options)
        if known and not is_seen and not gives_objects(kind):
            return known
        written = tuple(self.new() for _ in range(outputs))
        self.instructions.append(kind(registers, written, str(node), **options))
        self.seen.update(written if is_seen else ())
        if known:
            self.alike |= zip(written, known, strict=True)
        elif number:
            self.numbered[number] = written
        return written

    def _is_seen(
        self, kind: Kind, inputs: tuple[int, ...], options: dict[str, Any]
    ) -> bool:
        """Whether an instruction gives places at which something is observed."""
        traits = kind.traits
        if traits.moves_columns:
            return not self.seen.isdisjoint(inputs)
        gives = any(each.gives_any(PLACES) for each in traits.signatures)
        return gives and options['visit'] is not None

    def one(self, kind: Kind, inputs: Inputs, node: Typed, **options: Any) -> int:
        """Appends an instruction that writes one register."""
        return self.add(kind, inputs, node, 1, **options)[0]

    def shaped(
        self, kind: Kind, inputs: Inputs, node: Typed, shape: Value, **options: Any
    ) -> Writing:
        """Appends an instruction that gives a value of the structure of another."""
        outputs = len(list(flatten(shape)))
        written = self.add(kind, inputs, node, outputs, **options)
        return rebuild(shape, iter(written))

    def shape_of(self, type_: Type) -> Writing:
        """The structure of a value of a type, in registers of another body."""
        return Writer(self.builder, None).like(type_)

    def like(self, type_: Type) -> Writing:
        """New registers for a value of a type."""
        if isinstance(type_, Product):
            return tuple((yield in_turn(map(self.like, type_))))
        if isinstance(type_, SequenceType):
            return SequenceValue(self.new(), (yield self.like(type_.item)))
        if isinstance(type_, BroadcastType):
            return Repeated((yield self.like(type_.item)))
        return None if isinstance(type_, VoidType) else self.new()

    def object(self, value: Value, node: Typed) -> Steps[int]:
        """A value made of objects as one column of objects."""
        if isinstance(value, tuple):
            columns = yield in_turn(self.object(each, node) for each in value)
            return self.one(p.Pack, columns, node)
        if isinstance(value, SequenceValue):
            items = yield self.object(value.items, node)
            return self.one(p.Group, (value.lengths, items), node)
        assert isinstance(value, int)
        return value

    def keys(self, layer: Layer, places: int, node: Typed) -> list[int]:
        """The keys that a layer draws with at each place."""
        types = [(self.builder.type_number(t), t) for t in map(KeyType, layer.rngs)]
        return [self.one(p.Draw, (places,), node, type=k, tensor=t) for k, t in types]

    def select(self, value: Value, positions: int, node: Typed) -> Writing:
        """The items of a value at given positions."""
        if isinstance(value, tuple):
            parts = (self.select(part, positions, node) for part in value)
            return tuple((yield in_turn(parts)))
        if isinstance(value, SequenceValue):
            inputs = value.lengths, positions
            return (yield self.ranges(p.Ranges, inputs, value.items, node))
        if isinstance(value, Repeated):
            return Repeated((yield self.select(value.item, positions, node)))
        if value is None:
            return None
        result = self.one(p.Select, (value, positions), node)
        if value in self.untouched:
            self.untouched.add(result)
        return result

    def ranges(
        self, kind: Kind, inputs: Inputs, items: Value, node: Typed, **options: Any
    ) -> Steps[SequenceValue]:
        """A sequence by an instruction that gives lengths and positions of items."""
        lengths, positions = self.add(kind, inputs, node, outputs=2, **options)
        return SequenceValue(lengths, (yield self.select(items, positions, node)))

    def join(self, values: list[Value], node: Typed) -> Writing:
        """Values one after another."""
        first = values[0]
        if isinstance(first, tuple):
            return (yield _by_item(values, lambda part: self.join(part, node)))
        if isinstance(first, SequenceValue):
            sequences = [v for v in values if isinstance(v, SequenceValue)]
            lengths = self.one(p.Join, [s.lengths for s in sequences], node)
            items = yield self.join([s.items for s in sequences], node)
            return SequenceValue(lengths, items)
        if isinstance(first, Repeated):
            repeated = [v.item for v in values if isinstance(v, Repeated)]
            return Repeated((yield self.join(repeated, node)))
        return None if first is None else self.one(p.Join, values, node)

    def merge(
        self, values: list[Value], positions: tuple[int, ...], node: Typed
    ) -> Writing:
        """One value of those at the positions of each case."""
        first = values[0]
        if isinstance(first, tuple):
            return (
                yield _by_item(values, lambda part: self.merge(part, positions, node))
            )
        if isinstance(first, SequenceValue):
            order = self.one(p.Order, positions, node)
            return (yield self.select((yield self.join(values, node)), order, node))
        if isinstance(first, Repeated):
            repeated = [v.item for v in values if isinstance(v, Repeated)]
            return Repeated((yield self.merge(repeated, positions, node)))
        if first is None:
            return None
        return self.one(p.Merge, (*positions, *values), node)

    def item_places(
        self, lengths: int, places: int, node: Typed, visit: int | None = None
    ) -> int:
        """The places of all items of sequences."""
        way = next(self.builder.ways)
        return self.one(p.Enter, (lengths, places), node, way=way, visit=visit)

    def sequence(
        self, value: Value, type_: Type, places: int, node: Typed
    ) -> Steps[SequenceValue]:
        """A value of a type that a sequence block takes as a sequence."""
        if isinstance(value, int):  # a column of objects
            return SequenceValue(*self.add(p.Iterate, (value,), node, outputs=2))
        if isinstance(value, tuple):
            item = item_of(type_)
            made: SequenceValue = yield self.of_tuple(value, item, places, node)
            return made
        assert isinstance(value, SequenceValue)
        return value

    def of_tuple(
        self, value: tuple[Value, ...], item: Type, places: int, node: Typed
    ) -> Steps[SequenceValue]:
        """A tuple of items of a type as a sequence."""
        lengths = self.one(p.Fixed, (places,), node, length=len(value))
        parts = yield in_turn(self.wrap(each, item, node) for each in value)
        items = yield self.interleave(parts, node)
        return SequenceValue(lengths, (yield self.unwrap(items, item, node)))

    def wrap(self, value: Value, type_: Type, node: Typed) -> Writing:
        """A value with each sequence in it in one register."""
        if isinstance(value, tuple):
            parts = zip(value, cast(Product, type_), strict=True)
            return tuple((yield in_turn(self.wrap(*each, node) for each in parts)))
        if isinstance(value, Repeated):
            item = cast(BroadcastType, type_).item
            return Repeated((yield self.wrap(value.item, item, node)))
        if isinstance(value, SequenceValue):
            sequence = cast(SequenceType, type_)
            items = yield self.wrap(value.items, sequence.item, node)
            inputs = value.lengths, *flatten(items)
            return self.one(p.Wrap, inputs, node, sequence=sequence)
        return value

    def unwrap(self, value: Value, type_: Type, node: Typed) -> Writing:
        """The inverse of `wrap`."""
        if isinstance(value, tuple):
            parts = zip(value, cast(Product, type_), strict=True)
            return tuple((yield in_turn(self.unwrap(*each, node) for each in parts)))
        if isinstance(value, Repeated):
            item = cast(BroadcastType, type_).item
            return Repeated((yield self.unwrap(value.item, item, node)))
        if isinstance(type_, SequenceType):
            shape = SequenceValue(0, (yield self.shape_of(wrapped(type_.item))))
            made = yield self.shaped(p.Unwrap, (value,), node, shape, sequence=type_)
            items = yield self.unwrap(made.items, type_.item, node)
            return SequenceValue(made.lengths, items)
        return value

    def aligned(
        self, sequences: list[SequenceValue], node: Typed, strict: bool = False
    ) -> Steps[SequenceValue]:
        """Sequences as one of tuples, as long as the shortest; or all, if `strict`."""
        lengths = sequences[0].lengths
        if all(each.lengths == lengths for each in sequences):
            return SequenceValue(lengths, tuple(each.items for each in sequences))
        kind = p.Same if strict else p.Shortest
        lengths = self.one(kind, [each.lengths for each in sequences], node)
        items = []
        for each in sequences:
            positions = self.one(p.Leading, (each.lengths, lengths), node)
            items.append((yield self.select(each.items, positions, node)))
        return SequenceValue(lengths, tuple(items))

    def interleave(self, values: list[Value], node: Typed) -> Writing:
        """The items of a tuple of one type, as those of a sequence."""
        if isinstance(values[0], tuple):
            return (yield _by_item(values, lambda part: self.interleave(part, node)))
        if isinstance(values[0], Repeated):
            repeated = [v.item for v in values if isinstance(v, Repeated)]
            return Repeated((yield self.interleave(repeated, node)))
        return None if values[0] is None else self.one(p.Interleave, values, node)

    def finish(self, name: str, given: Type, result: Value, type_: Type) -> p.Body:
        """The body, without instructions nobody reads, cut into stages.

        `given` is the type of its input, `type_` that of its result.
        """
        outputs = tuple(flatten(result))
        kept = self._told_apart(_live(self.instructions, outputs))
        writer = {r: i for i in kept for r in i.outputs}
        stages, names = tuple(_stages(kept)), row_names()
        rows = next(names)
        inputs = RegisterType(PLACES, rows), *types_of(given, names, rows)
        results = tuple(types_of(type_, names, rows))
        return p.Body(name, inputs, stages, outputs, results, self.count, writer)

    def _told_apart(self, instructions: list[p.Instruction]) -> list[p.Instruction]:
        """Gives ways of their own to instructions that make the same kind of thing.

        At one place they would make rows whose order nothing tells.
        """
        makers = [each for each in instructions if isinstance(each, p.Maker)]
        counts = Counter(each.makes for each in makers)
        return [
            replace(each, way=next(self.builder.ways))
            if isinstance(each, p.Maker) and counts[each.makes] > 1
            else each
            for each in instructions
        ]


def _by_item(tuples: list[Any], fn: Callable[[list[Value]], Writing]) -> Writing:
    """A tuple of what the first items of tuples give, the second ones, and so on."""
    parts = map(list, zip(*tuples, strict=True))
    return tuple((yield in_turn(map(fn, parts))))


def _live(
    instructions: list[p.Instruction], outputs: tuple[int, ...]
) -> list[p.Instruction]:
    """Those that somebody reads, or that do more than to write registers."""
    needed, kept = set(outputs), []
    for instruction in reversed(instructions):
        told = instruction.traits.effect & (Effect.RAISES | Effect.RECORDS)
        if not told and needed.isdisjoint(instruction.outputs):
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
        if isinstance(each, p.Call):
            calls.append(each)
        else:
            plain.append(each)
        ready |= dict.fromkeys(each.outputs, stage + isinstance(each, p.Call))
    for _, (plain, calls) in sorted(stages.items()):
        yield p.Stage(tuple(plain), tuple(calls))


def flatten(value: Value) -> Iterator[int]:
    """The registers of a value, in the order of `Writer.like`."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, tuple):
            waiting.extend(reversed(each))
        elif isinstance(each, SequenceValue):
            yield each.lengths
            waiting.append(each.items)
        elif isinstance(each, Repeated):
            waiting.append(each.item)
        elif each is not None:
            yield each


def rebuild(value: Value, registers: Iterator[int]) -> Writing:
    """The same structure around other registers; the inverse of `flatten`."""
    if isinstance(value, tuple):
        return tuple((yield in_turn(rebuild(each, registers) for each in value)))
    if isinstance(value, SequenceValue):
        return SequenceValue(next(registers), (yield rebuild(value.items, registers)))
    if isinstance(value, Repeated):
        return Repeated((yield rebuild(value.item, registers)))
    return None if value is None else next(registers)
