# SPDX-License-Identifier: Apache-2.0
"""A plan rewritten so that nothing in it waits for calls.

The data are taken apart first, by what the calls need and little more. Everything else
is done once, on the items of all waves, since the results of calls are promised:

    <tree> r0: places[a], r1: objects[a]         <tree> r0: objects[a]
      cases[a: b/c] = Cases ...                    cases[a: b/c] = Cases ...
      positions[b of a], positions[c of a] = ...   objects[c] = Among ... case=1
      objects[c] = Select ...                      positions[c of @0] = Send ...
      tensors[c] = Call ...                        return cases, positions
      ...
      tensors[a] = Merge ...                     <main> r0: places[a], r1: objects[a]
      return tensors[a]                            places[@0], cases[@0: b/c],
                                                     positions[c of @0], ... = Waves r1
    <main> r0: places[a], r1: objects[a]           tensors[c] = Promise ...
      tensors[a] = Call ...                        ...
      return tensors[a]                            tensors[@0] = Merge ...
                                                   Descend ...
                                                   Fulfil ...

The result is a program as any other: printed, checked and run in the same way. What
does not fit is not told by it: whoever sees an exception runs the plan as it was.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from jfold import instructions as ir
from jfold.checking.bodies import infer
from jfold.kept import kept
from jfold.program import HostPlan, Program, check_program, is_breadth_first, shares
from jfold.registers import OBJECTS, TENSORS, RegisterType
from jfold.traits import Effect, Ordering
from jfold.types import TensorType

Instructions = list[ir.Instruction]
Types = dict[int, RegisterType]  # of registers


@kept
def in_two_passes(program: Program, few: bool) -> Program | None:
    """The program with its plan in two passes; `None` where it cannot be.

    `few` examples, of which there is one, are better read late, and all is theirs.
    """
    plan = program.plan
    bodies = [*plan.declarations, plan.body]
    if not is_breadth_first(program) or any(body.arity < 2 for body in bodies):
        return None  # calls wait for calls, or no data is there to take apart
    if shares(program):
        return None  # a wave does not know which example an object is of
    called = {c.declaration for body in bodies for c in _calls(body)}
    results = itertools.chain(*(plan.declarations[d].results for d in called))
    if any(each.kind != TENSORS for each in results):
        return None  # instructions look into objects and lengths: no token can stand in
    halves = [_cut(body, few, program.types_in(body)) for body in bodies]
    found = [half for half in halves if half]
    if len(found) < len(halves):
        return None
    early = _typed([_early(half) for half in found], program)
    made = replace(program, plan=HostPlan(_main(found, early, program, few), early))
    check_program(made)
    return made


def _calls(body: ir.Body) -> Iterable[ir.Call]:
    return (call for stage in body.stages for call in stage.calls)


# ---- what runs when ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Half:
    """A body, cut.

    Attributes:
      body: it.
      early: what takes items apart, before the calls.
      sends: what the calls become there.
      kept: the registers that the second pass needs of the first.
      late: what is left, and what has to run again.
    """

    body: ir.Body
    early: Instructions
    sends: list[ir.Send]
    kept: list[int]
    late: Instructions


def _cut(body: ir.Body, few: bool, types: Types) -> _Half | None:
    """A body in halves; `None` if the early one would have to wait, or if what it joins
    would meet what is joined of all waves."""
    calls = list(_calls(body))
    sends = [
        ir.Send(call.inputs[1:], (register,), call.where, call.declaration)
        for register, call in enumerate(calls, body.registers)
    ]
    every = [i for stage in body.stages for i in stage.instructions]
    counted = _counted(body, every, types)
    needed = _read(sends)
    # Many objects are better read in their wave than again, lost by the cache. Where
    # that would have to wait, what the calls need alone may not.
    read = set() if few else {i.inputs[0] for i in every if isinstance(i, ir.Convert)}
    for wanted in needed | read, needed:
        early = _sources(counted, wanted)
        # A wave has no places, which it would cost time to carry.
        unknown = {0, *(r for call in calls for r in call.outputs)}
        if _may_run_early(early, wanted, unknown):
            asked = set(early)
            chosen = [
                x if x in asked else i for i, x in zip(every, counted, strict=True)
            ]
            half = _halves(body, chosen, early, sends, types)
            return None if _mixes_joined(half, types) else half
    return None


def _counted(body: ir.Body, every: Instructions, types: Types) -> Instructions:
    """The instructions of a body, of which those that ask a column of places for its
    length alone ask one of objects, if there is any: waves have no places."""
    objects: dict[str, int] = {}
    for register, type_ in types.items():
        if type_.kind == OBJECTS:
            objects.setdefault(type_.rows, register)

    def counted(i: ir.Instruction) -> ir.Instruction:
        if i.traits.counts_alone:
            asked, *rest = i.inputs
            read = objects.get(types[asked].rows, asked)
            # One that is written later would be read too early.
            return replace(i, inputs=(read, *rest)) if read < i.outputs[0] else i
        return i

    return list(map(counted, every))


def _halves(
    body: ir.Body,
    every: Instructions,
    early: Instructions,
    sends: list[ir.Send],
    types: Types,
) -> _Half:
    place = {i: number for number, i in enumerate(every)}
    late = list(place.keys() - early)
    needed = _read(late) | set(body.outputs)
    # What numbers the items of a wave has to number those of all waves.
    again = set(_numbering(early))
    late += _sources([i for i in early if i in again], needed)
    late.sort(key=place.__getitem__)
    objects = [i for i in late if types[i.inputs[0]].kind == OBJECTS]
    late = _with_among(late, objects, body.outputs)
    written = {r for i in (*late, *_calls(body)) for r in i.outputs}
    read = _read(late) | set(body.outputs)
    # Their positions are kept; the lengths tell how many items each wave has.
    cuts = [i for i in early if i.traits.names_rows]
    read |= {i.inputs[0] for i in cuts if not read.isdisjoint(i.outputs[1:])}
    kept = sorted(read - written - {0})
    asked = {*kept, *_read(sends)}
    chosen = _with_fields(_with_keys(_with_among(early, early, asked), asked))
    return _Half(body, chosen, sends, kept, late)


def _mixes_joined(half: _Half, types: Types) -> bool:
    """Whether the second pass joins columns, and is handed some that were joined.

    Of two waves with items of two cases, those are in the order 1 2 1 2, these 1 1 2 2.
    """
    handed = [types[r] for r in (*half.kept, *_read(half.sends))]
    joined = any('+' in each.rows + each.of for each in handed)
    return joined and any(i.traits.order is Ordering.JOINS for i in half.late)


def _numbering(instructions: Instructions) -> Instructions:
    return [
        i for i in instructions if i.traits.numbers_items and not i.traits.names_rows
    ]


def _read(instructions: Iterable[ir.Instruction]) -> set[int]:
    return {r for i in instructions for r in i.inputs}


def _sources(instructions: Instructions, needed: set[int]) -> Instructions:
    """Those of the instructions that registers are made by."""
    needed, found = set(needed), []
    for i in reversed(instructions):
        if not needed.isdisjoint(i.outputs):
            needed.update(i.inputs)
            found.append(i)
    return found[::-1]


# What asks for the numbers of items, and gives none but of items that it names.
_USES = Ordering.SELECTS, Ordering.MERGES


def _may_run_early(early: Instructions, wanted: set[int], unknown: set[int]) -> bool:
    """Whether they wait for nothing, make no rows, and keep items in their order."""
    numbering = _numbering(early)
    within = {r for i in numbering for r in i.outputs}
    plain = [i for i in early if i.traits.order not in _USES and i not in numbering]
    return (
        not any(i.traits.effect & ~Effect.RAISES for i in early)
        and _read(early).isdisjoint(unknown)
        and within.isdisjoint(_read(plain) | wanted)
    )


# ---- instructions that do the work of several ----------------------------------------


def _with_among(
    instructions: Instructions, chosen: Instructions, kept: Iterable[int]
) -> Instructions:
    """Those chosen of the instructions read items of a case by the numbers of cases,
    not by positions, which may then be asked for by nothing."""
    positions = {
        r: i for i in instructions if isinstance(i, ir.Positions) for r in i.outputs
    }
    made: Instructions = []
    for i in instructions:
        source = positions.get(i.inputs[-1]) if isinstance(i, ir.Select) else None
        if source and i in chosen:
            case = source.outputs.index(i.inputs[1])
            read = i.inputs[0], *source.inputs
            made.append(ir.Among(read, i.outputs, i.where, case))
        else:
            made.append(i)
    used = {*_read(made), *kept}
    return [i for i in made if not isinstance(i, ir.Positions) or used & {*i.outputs}]


def _with_keys(instructions: Instructions, kept: set[int]) -> Instructions:
    """A function whose results are looked up, and nothing else, is asked on the way."""
    reads = Counter(r for i in instructions for r in i.inputs)
    keys = {
        i.outputs[0]: i
        for i in instructions
        if isinstance(i, ir.Transform) and reads[i.outputs[0]] == 1
    }
    made: Instructions = []
    asked: set[ir.Instruction] = set()
    for i in instructions:
        key = keys.get(i.inputs[0]) if isinstance(i, ir.Cases) else None
        if isinstance(i, ir.Cases) and key and key.outputs[0] not in kept:
            asked.add(key)
            made.append(replace(i, inputs=key.inputs, key_fn=key.fn))
        else:
            made.append(i)
    return [i for i in made if i not in asked]


def _with_fields(instructions: Instructions) -> Instructions:
    """Fields of the same items are read together, but for those with a default."""
    fields: dict[tuple[int, ...], list[ir.Field]] = {}
    for i in instructions:
        if isinstance(i, ir.Field) and i.default is None:
            fields.setdefault(i.inputs, []).append(i)
    made: Instructions = []
    for i in instructions:
        if not isinstance(i, ir.Field) or i.default is not None:
            made.append(i)
            continue
        alike = fields[i.inputs]
        if i is alike[0]:
            outputs = tuple(each.outputs[0] for each in alike)
            keys = tuple(each.key for each in alike)
            most = min((x.most for x in alike if x.most is not None), default=None)
            made.append(ir.Fields(i.inputs, outputs, i.where, keys, most))
    return made


# ---- the first pass ------------------------------------------------------------------


def _early(half: _Half) -> ir.Body:
    """The body that runs in each wave, which does not state its results yet."""
    made = tuple(_moved(i, -1) for i in (*half.early, *half.sends))
    outputs = [r - 1 for r in (*half.kept, *_written(half.sends))]
    count = half.body.registers + len(half.sends) - 1
    return _body(half.body.name, half.body.inputs[1:], made, outputs, (), count)


def _typed(bodies: Sequence[ir.Body], program: Program) -> tuple[ir.Body, ...]:
    """The bodies, with results of the types that they have."""
    # What a body returns is not asked for where items are sent to it, so types can be
    # inferred before any is stated.
    stubs = [replace(body, outputs=()) for body in bodies]
    types = [infer(stub, program, stubs) for stub in stubs]
    return tuple(
        replace(body, results=tuple(of_body[r] for r in body.outputs))
        for body, of_body in zip(bodies, types, strict=True)
    )


def _body(
    name: str,
    inputs: tuple[RegisterType, ...],
    instructions: Sequence[ir.Instruction],
    outputs: Iterable[int],
    results: tuple[RegisterType, ...],
    registers: int,
) -> ir.Body:
    """A body without calls."""
    writer = {r: i for i in instructions for r in i.outputs}
    stages = (ir.Stage(tuple(instructions), ()),)
    return ir.Body(name, inputs, stages, tuple(outputs), results, registers, writer)


def _moved(i: ir.Instruction, shift: int) -> ir.Instruction:
    """The instruction on other registers, so many further."""
    inputs, outputs = (tuple(r + shift for r in x) for x in (i.inputs, i.outputs))
    return replace(i, inputs=inputs, outputs=outputs)


def _written(instructions: Iterable[ir.Instruction]) -> list[int]:
    return [r for i in instructions for r in i.outputs]


# ---- the second pass -----------------------------------------------------------------


def _main(
    halves: Sequence[_Half], early: Sequence[ir.Body], program: Program, few: bool
) -> ir.Body:
    """Takes the examples apart, then does all else, body by body.

    The registers of each body follow those of the one before; its places are the first.
    """
    body = program.plan.body
    sizes = (half.body.registers + len(half.sends) for half in halves)
    begins = list(itertools.accumulate(sizes, initial=body.arity))
    given = [
        begin + r
        for begin, half in zip(begins, halves, strict=False)
        for r in (0, *half.kept, *_written(half.sends))
    ]
    read = tuple(range(1, body.arity))
    waves = ir.Waves(read, tuple(given), body.name, len(early) - 1, few)
    types = _result_types(halves, program)
    made: list[ir.Instruction] = [waves]
    for half, begin in zip(halves, begins, strict=False):
        made += _promises(half, begin, begins, types)
        made += [_moved(i, begin) for i in half.late]
        told = _descents(half, begin, begins)
        made += [x for x in told if not few or x.visit is not None]
    # Behind all that promises them: a body may call itself, or one that comes later.
    for d, of_results in types.items():
        read = tuple(begins[d] + r for r in (0, *halves[d].body.outputs))
        made.append(ir.Fulfil(read, (), halves[d].body.name, d, of_results))
    outputs = [begins[-2] + r for r in body.outputs]
    return _body(body.name, body.inputs, made, outputs, body.results, begins[-1])


def _descents(half: _Half, begin: int, begins: Sequence[int]) -> Iterable[ir.Descend]:
    """Whose items those of a body's calls are."""
    for call, send in zip(_calls(half.body), half.sends, strict=True):
        read = begin + call.inputs[0], begin + send.outputs[0], begins[send.declaration]
        yield ir.Descend(read, (), call.where, visit=call.visit)


def _result_types(
    halves: Sequence[_Half], program: Program
) -> dict[int, tuple[int, ...]]:
    """By the number of each declaration that is called, and gives something, the
    numbers of the types of its results."""
    called = sorted({send.declaration for half in halves for send in half.sends})
    numbers = {type_: t for t, type_ in enumerate(program.types)}
    return {
        d: tuple(
            numbers[x.tensor]
            for x in halves[d].body.results
            if isinstance(x.tensor, TensorType)
        )
        for d in called
        if halves[d].body.results
    }


def _promises(
    half: _Half, begin: int, begins: Sequence[int], types: dict[int, tuple[int, ...]]
) -> Iterable[ir.Promise]:
    """The results of a body's calls."""
    for call, send in zip(_calls(half.body), half.sends, strict=True):
        d, made = call.declaration, tuple(begin + r for r in call.outputs)
        if made:
            read = begin + send.outputs[0], begins[d]
            yield ir.Promise(read, made, call.where, d, types[d])
