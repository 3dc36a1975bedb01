# SPDX-License-Identifier: Apache-2.0
"""The `Program`: what lowering makes of an expression, and all that later parts see.

Two halves. `Operations` run on the device, and say alone what that needs to know. The
`HostPlan` makes graphs of examples, on columns: *bodies* are straight lines of
instructions over registers, one for the expression, one for each declaration, one for
each block inside a `Fold` or `Reduce`. A register holds what a whole batch has at that
point: a list of Python objects, an int32 array of value ids (a tensor each), an array
of lengths or positions, or the *places* of items, int64 numbers that tell the example
of each item and where in it, or stand in for what does (`Waves`). Tuples do not exist
here; a sequence is a register of lengths beside registers of its items, one after
another. The *way* of an instruction leads from one place to another, where a place
alone would be ambiguous.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from jfold.checking.bodies import infer
from jfold.checking.order import wrong_order
from jfold.checking.sources import follow
from jfold.checking.waves import wrong_waves
from jfold.instructions import Body, CallOnce, Instruction, Numbers, Observe
from jfold.kept import kept
from jfold.operations import Makers, Operations, check_operations
from jfold.recurrence import results_in, sources
from jfold.registers import BODY_ROWS, OBJECTS, PLACES, TENSORS, RegisterType
from jfold.result_tables import IN_ROW, Making, Result, made_by
from jfold.types import SequenceType, terminals


@dataclass(frozen=True, eq=False)
class HostPlan:
    """How examples become a graph.

    Attributes:
      body: where evaluation starts; its input is the column of examples.
      declarations: bodies that calls refer to.
    """

    body: Body
    declarations: tuple[Body, ...]

    @property
    def bodies(self) -> Iterator[Body]:
        """The expression's, the declarations', and those inside of instructions."""
        waiting = [self.body, *self.declarations]
        for body in waiting:  # which grows meanwhile
            yield body
            waiting += [inner for i in body.instructions for inner in i.bodies]

    @property
    def instructions(self) -> Iterator[Instruction]:
        """Those of all bodies."""
        return itertools.chain(*(body.instructions for body in self.bodies))


@dataclass(frozen=True, eq=False, repr=False)
class Program(Operations):
    """An expression, lowered: operations, and the plan that makes graphs of them."""

    plan: HostPlan

    def types_in(self, body: Body) -> dict[int, RegisterType]:
        """The type of every register of a body."""
        return infer(body, self, self.plan.declarations)

    def __str__(self) -> str:
        bodies = [line for body in self.plan.bodies for line in _lines(body, self)]
        return '\n'.join([super().__str__(), *bodies])


def _lines(body: Body, program: Program) -> Iterator[str]:
    """A body as text, each register with its type where it is written."""
    types = program.types_in(body)

    def written(registers: tuple[int, ...] | range) -> list[str]:
        return [f'r{register}: {types[register]}' for register in registers]

    yield f'{body} {", ".join(written(range(body.arity)))}'
    for i in body.instructions:
        yield f'  {i.shown(written(i.outputs))}'
    yield f'  return {" ".join(f"r{register}" for register in body.outputs)}'.rstrip()


@kept
def is_breadth_first(program: Program) -> bool:
    """Whether every body makes all its calls at once, before anything waits for one.

    Then a call runs when the depth of the data says, whatever else is in the batch.
    """
    held = {id(inner) for i in program.plan.instructions for inner in i.bodies}
    return all(
        not any(stage.calls for stage in body.stages[0 if id(body) in held else 1 :])
        for body in program.plan.bodies
    )


@kept
def shares(program: Program) -> bool:
    """Whether some calls run once for each object of an example."""
    return any(isinstance(i, CallOnce) for i in program.plan.instructions)


def check_program(program: Program) -> None:
    """Refuses a program in which anything does not fit, in time that grows with it.

    Raises:
      AssertionError: something does not; names the body and the instruction, and says
        what was expected and what was got.
    """
    check_operations(program)
    for wrong in _wrong(program):
        raise AssertionError(f'jfold made a wrong program, please report it: {wrong}')


def _wrong(program: Program) -> Iterator[str]:
    """What is wrong with a program whose operations are right."""
    plan = program.plan
    main, *others = plan.bodies
    types, *_ = found = list(map(program.types_in, (main, *others)))
    yield from _wrong_ends(program)
    yield from _wrong_rows(program, types)
    bodies = zip((main, *others), found, strict=True)
    yield from wrong_order(bodies, plan.declarations, program.visited_results)
    yield from wrong_waves(main, others, types)
    stated = sources(program)
    own = program.results.index(program.own)
    tables = program.operations, program.results, own
    read = follow(main, plan.declarations, *tables)
    named = [repr(each) for each in program.operations]
    yield from _unsaid(named, stated.inputs, read.inputs)
    named = [f'result {r}' for r in range(len(program.results))]
    yield from _unsaid(named, stated.results, read.results)


def _wrong_ends(program: Program) -> Iterator[str]:
    """What the expression's body takes and gives that is not of whole examples."""
    main = program.plan.body
    takes = [RegisterType(PLACES, BODY_ROWS), RegisterType(OBJECTS, BODY_ROWS)]
    if [*main.inputs] != (expected := takes[: max(main.arity, 1)]):
        yield f'{main}: expected inputs {_shown(expected)}, got {_shown(main.inputs)}'
    given = [program.types[number] for number in program.own.tensors]
    expected = [RegisterType(TENSORS, BODY_ROWS, tensor=each) for each in given]
    if [*main.results] != expected:
        got = _shown(main.results)
        yield f'{main}: expected results {_shown(expected)}, got {got}'


def _shown(types: Iterable[RegisterType]) -> str:
    return ' '.join(map(str, types))


def _wrong_rows(program: Program, types: Mapping[int, RegisterType]) -> Iterator[str]:
    """What is not observed as it has to be: items of sequences stay in the order in
    which the expression's body has them all, so they are observed there, at once, and
    are all those whose lengths are told in the row that they are of."""
    main, *others = program.plan.bodies
    in_main, in_others = _observed([main]), _observed(others)
    for r in program.visited_results:
        if not (in_main[r] or in_others[r]):
            yield f'{main}: expected something to observe result {r}, got nothing'
    rows = _lengths_in(program.own, main.outputs)
    for r in made_by(program.results, Making.OBSERVED):
        if (len(in_main[r]), len(in_others[r])) != (1, 0):
            yield f'{main}: expected it alone to observe result {r}, once, got others'
            return  # of what follows, nothing is known
        (i,) = in_main[r]
        row = rows.pop(0)
        told = main.writer.get(row)
        lengths = types[told.inputs[0]].of if isinstance(told, Numbers) else None
        if lengths != (got := types[i.inputs[0]]).rows:
            yield f'{main}: {i}: expected items whose lengths r{row} tells, got {got}'
        rows += _lengths_in(program.results[r], i.inputs[1:])


def _lengths_in(result: Result, row: Sequence[int]) -> list[int]:
    """The registers of a row of a result that are the lengths of sequences in it."""
    leaves = (x for x in terminals(result.type) if isinstance(x, IN_ROW))
    pairs = zip(row, leaves, strict=True)
    return [register for register, leaf in pairs if isinstance(leaf, SequenceType)]


def _unsaid(
    named: Iterable[str],
    stated: Iterable[Sequence[Makers]],
    read: Iterable[Sequence[Makers]],
) -> Iterator[str]:
    """What is read that the operations do not say, on which their order depends."""
    for name, of_one, found in zip(named, stated, read, strict=True):
        for k, (may, does) in enumerate(zip(of_one, found, strict=True)):
            if more := list(results_in(does & ~may)):
                text = f'expected `sources` to say what is read, got {more} beside'
                yield f'{name}, {k}: {text}'


def _observed(bodies: Iterable[Body]) -> dict[int, list[Observe]]:
    """By result, the instructions of bodies that make its rows."""
    found: dict[int, list[Observe]] = defaultdict(list)
    for i in itertools.chain(*(body.instructions for body in bodies)):
        if isinstance(i, Observe):
            found[i.result].append(i)
    return found
