# SPDX-License-Identifier: Apache-2.0
"""The `Program`: what lowering makes of an expression, and all that later parts see.

Two halves. *Operations* run on the device: a layer's function at given tensor types,
one per distinct callable and types. *Bodies* run on the host, on columns: straight-line
lists of instructions over registers, one for the expression, one for each declaration,
one for each block inside a `Fold` or `Reduce`. A register holds what a whole batch has
at that point: a list of Python objects, an int32 array of value ids (a tensor each), an
array of lengths or positions, or the *places* of items, int64 numbers that tell the
example of each item and where in it. Tuples do not exist here; a sequence is a register
of lengths beside registers of its items, one after another. The *way* of an instruction
leads from one place to another, where a place alone would be ambiguous.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

import jax
import numpy as np

from jfold.kept import Owner, kept
from jfold.types import TensorType, Type


@dataclass(frozen=True, eq=False)
class Layer:
    """A callable with its parameters; shared by every use of that callable."""

    name: str
    call: Callable[..., Any]  # (params, *inputs) -> outputs
    init: Callable[..., Any] | None  # (key) -> params
    params: Any  # pytree of jax.ShapeDtypeStruct, None without parameters
    batched: bool = False

    @functools.cached_property
    def leaves(self) -> tuple[list[Any], Any]:
        """The parameters as leaves and structure, to compare others with."""
        return jax.tree.flatten(self.params)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Operation(Owner):
    """A layer at given types; the unit of batching.

    Types are given twice: as the user wrote them (nested tuples), and flat, as numbers
    in `Program.types`.
    """

    layer: Layer
    arguments: tuple[Type, ...]
    result: Type
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def __repr__(self) -> str:
        given = ', '.join(map(repr, self.arguments))
        return f'{self.layer.name}({given}) -> {self.result!r}'


# ---- instructions --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Instruction:
    """Reads and writes registers; `where` is the path of the block it comes from."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    where: str

    def __str__(self) -> str:
        shown = [
            f'{f.name}={_shown(getattr(self, f.name)) if f.repr else "..."}'
            for f in fields(self)
            if f.name not in ('inputs', 'outputs', 'where')
            and (f.default is MISSING or getattr(self, f.name) is not None)
        ]
        out, given = ([f'r{r}' for r in rs] for rs in (self.outputs, self.inputs))
        equals = ['='] if out else []
        return ' '.join([*out, *equals, type(self).__name__, *given, *shown])


@dataclass(frozen=True, eq=False)
class Maker(Instruction):
    """Makes rows at places: constants, nodes or values of a metric."""

    way: int = field(default=0, kw_only=True)


def _shown(value: Any) -> str:
    name = getattr(value, '__name__', None)  # of a function, without its address
    return str(name or value)


@dataclass(frozen=True, eq=False)
class Convert(Maker):
    """Objects to tensors; inputs are the objects, then the places."""

    type: int
    tensor: TensorType


@dataclass(frozen=True, eq=False)
class Constant(Instruction):
    """The same constant for each place."""

    index: int


@dataclass(frozen=True, eq=False)
class Numbers(Maker):
    """An array of numbers to tensors []; inputs are the numbers, then the places."""

    type: int
    tensor: TensorType


@dataclass(frozen=True, eq=False)
class Transform(Instruction):
    """A Python function of each object."""

    fn: Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Lookup(Instruction):
    """The entry of each object in a table; of one it lacks, the default, if any."""

    table: dict[Any, Any] = field(repr=False)  # it may be large
    default: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Field(Instruction):
    """One field of each object, which has so many items at `most`, if that is said."""

    key: Any
    most: int | None = None


@dataclass(frozen=True, eq=False)
class Fields(Instruction):
    """Several fields of each object, an output for each."""

    keys: tuple[Any, ...]
    most: int | None


@dataclass(frozen=True, eq=False)
class Pack(Instruction):
    """Columns of objects to a column of tuples."""


@dataclass(frozen=True, eq=False)
class Group(Instruction):
    """Lengths and items to a column of lists."""


@dataclass(frozen=True, eq=False)
class Apply(Maker):
    """An operation; inputs are the places, then value ids."""

    operation: int


@dataclass(frozen=True, eq=False)
class Partition(Instruction):
    """Keys to the positions of each case."""

    case_of: dict[Any, int]
    cases: int


@dataclass(frozen=True, eq=False)
class Present(Instruction):
    """Objects to the positions of those that are not `None`, and of those that are."""


@dataclass(frozen=True, eq=False)
class Cases(Instruction):
    """The first half of a `Partition` or `Present`: items, or what `key` makes of them,
    to the numbers of cases, in bytes if they fit."""

    whole: Partition | Present
    key: Callable[[Any], Any] | None = None


@dataclass(frozen=True, eq=False)
class Positions(Instruction):
    """The second half: numbers of cases to the positions of each case."""


@dataclass(frozen=True, eq=False)
class Among(Instruction):
    """A column's items of one case; inputs are the column, then numbers of cases."""

    case: int


@dataclass(frozen=True, eq=False)
class Select(Instruction):
    """A column's items at given positions."""


@dataclass(frozen=True, eq=False)
class Join(Instruction):
    """Columns one after another."""


@dataclass(frozen=True, eq=False)
class Order(Instruction):
    """Positions of each case to the permutation that restores the original order."""


@dataclass(frozen=True, eq=False)
class Merge(Instruction):
    """Positions of each case, then a column of each, to one column."""


@dataclass(frozen=True, eq=False)
class Ranges(Instruction):
    """Lengths and positions to the lengths there and the positions of their items."""


@dataclass(frozen=True, eq=False)
class Enter(Instruction):
    """Lengths and places of sequences to the places of their items."""

    way: int


@dataclass(frozen=True, eq=False)
class Iterate(Instruction):
    """Python iterables to lengths and items."""


@dataclass(frozen=True, eq=False)
class Interleave(Instruction):
    """Columns to one: the first item of each, the second of each, and so on."""


@dataclass(frozen=True, eq=False)
class Fixed(Instruction):
    """The same length for each place."""

    length: int


@dataclass(frozen=True, eq=False)
class Count(Instruction):
    """The `len` of each object."""


@dataclass(frozen=True, eq=False)
class Position(Instruction):
    """Lengths to the position of item `key` of each sequence."""

    key: int


@dataclass(frozen=True, eq=False)
class Cut(Instruction):
    """Lengths to those of `sequence[key]` and the positions of its items."""

    key: slice


@dataclass(frozen=True, eq=False)
class FoldLoop(Instruction):
    """Inputs: lengths, places, then `states` registers of states, then of items."""

    combine: Body
    states: int
    way: int


@dataclass(frozen=True, eq=False)
class ReduceLoop(Instruction):
    """Inputs: lengths, places, then registers of items; `default` is for empty ones."""

    combine: Body
    default: Body
    way: int


@dataclass(frozen=True, eq=False)
class Call(Instruction):
    """A declaration's body on a column; all calls that wait for it run as one.

    Inputs are the places, then the values.
    """

    declaration: int
    way: int
    lists: tuple[bool, ...]  # of each output, whether it holds objects


@dataclass(frozen=True, eq=False)
class Observe(Maker):
    """Collects values for a metric; inputs are the places, then value ids."""

    metric: int

    @property
    def result(self) -> int:
        """The number of the result that it adds rows to; the first is no metric's."""
        return 1 + self.metric


# ---- bodies and programs -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Body:
    """A straight line of instructions.

    Its first `arity` registers are its inputs: the place of each item, then the values.
    """

    name: str
    arity: int
    stages: tuple[Stage, ...]
    outputs: tuple[int, ...]
    owners: tuple[int, ...]  # of each output, the one with its lengths, or -1
    registers: int
    writer: dict[int, Instruction] = field(repr=False)

    def __str__(self) -> str:
        return f'<{self.name}>'


@dataclass(frozen=True, eq=False)
class Stage:
    """Instructions, then calls that wait together."""

    instructions: tuple[Instruction, ...]
    calls: tuple[Call, ...]

    def __iter__(self) -> Iterator[Instruction]:
        return itertools.chain(self.instructions, self.calls)


@dataclass(frozen=True)
class Result:
    """A table of rows that a batch gives: the user's value, or what a metric collects.

    Attributes:
      name: of the metric; `None` for the value of the expression itself.
      type: of a row, as the user wrote it.
      tensors: its tensors, as numbers in `Program.types`.
    """

    name: str | None
    type: Type
    tensors: tuple[int, ...]

    @property
    def per_example(self) -> bool:
        """Whether there is one row an example, else any number, which is data."""
        return self.name is None


@dataclass(frozen=True, eq=False, repr=False)
class Program(Owner):
    """An expression, lowered. Compared and hashed by identity; a copy is itself.

    Attributes:
      types: the tensor types; each has one buffer on the device.
      constants: arrays that are the same in every batch, with the number of their type.
      body: where evaluation starts; its input is the column of examples.
      declarations: bodies that calls refer to.
      results: what a batch gives; the expression's own value first, then metrics by
        name.
    """

    types: tuple[TensorType, ...]
    layers: tuple[Layer, ...]
    operations: tuple[Operation, ...]
    constants: tuple[tuple[int, np.ndarray[Any, Any]], ...]
    body: Body
    declarations: tuple[Body, ...]
    results: tuple[Result, ...]

    @property
    def output(self) -> Type:
        """The type of one example's result."""
        return self.results[0].type

    @functools.cached_property
    def observed(self) -> tuple[int, ...]:
        """The results with any number of rows: those of metrics."""
        return tuple(r for r, x in enumerate(self.results) if not x.per_example)

    def __copy__(self) -> Program:
        return self

    def __deepcopy__(self, memo: object) -> Program:
        return self

    def __repr__(self) -> str:
        return f'Program({self.output!r}, operations: {len(self.operations)})'

    def __str__(self) -> str:
        lines = ['operations']
        lines += [f'  {i}: {op!r}' for i, op in enumerate(self.operations)]
        for body in all_bodies(self):
            given = ' '.join(f'r{r}' for r in range(body.arity))
            lines.append(f'{body} {given}')
            for stage in body.stages:
                lines += [f'  {instruction}' for instruction in stage]
            lines.append(f'  return {" ".join(f"r{r}" for r in body.outputs)}')
        return '\n'.join(lines)


def all_bodies(program: Program) -> Iterator[Body]:
    """The expression's body, the declarations', and those inside `Fold`, `Reduce`."""
    waiting = [program.body, *program.declarations]
    while waiting:
        body = waiting.pop(0)
        yield body
        for instruction in itertools.chain(*body.stages):
            waiting += _inner(instruction)


@kept
def is_breadth_first(program: Program) -> bool:
    """Whether every body makes all its calls at once, before anything waits for one.

    Then a call runs when the depth of the data says, whatever else is in the batch.
    """
    loops = {
        id(body)
        for each in all_bodies(program)
        for instruction in itertools.chain(*each.stages)
        for body in _inner(instruction)
    }
    return all(
        not any(stage.calls for stage in body.stages[0 if id(body) in loops else 1 :])
        for body in all_bodies(program)
    )


def _inner(instruction: Instruction) -> tuple[Body, ...]:
    """The bodies inside an instruction."""
    if isinstance(instruction, FoldLoop):
        return (instruction.combine,)
    if isinstance(instruction, ReduceLoop):
        return instruction.combine, instruction.default
    return ()


def check_program(program: Program) -> None:
    """Every register is written once, before it is read; every number is in range."""
    for body in all_bodies(program):
        _check_body(body, program)
    for operation in program.operations:
        for number in operation.inputs + operation.outputs:
            _require(number < len(program.types), f'{operation!r} has no type {number}')


def _check_body(body: Body, program: Program) -> None:
    written = set(range(body.arity))
    for stage in body.stages:
        for instruction in stage:
            missing = set(instruction.inputs) - written
            _require(not missing, f'{body}: {instruction} reads {missing} too early')
            again = set(instruction.outputs) & written
            _require(not again, f'{body}: {instruction} writes {again} again')
            if not isinstance(instruction, Call):
                written |= set(instruction.outputs)
            else:
                known = instruction.declaration < len(program.declarations)
                _require(known, f'{body}: {instruction} has no such declaration')
        written |= {r for call in stage.calls for r in call.outputs}
    _require(set(body.outputs) <= written, f'{body} returns what it does not write')


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(f'jfold made a wrong program, please report it: {message}')
