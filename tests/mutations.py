# SPDX-License-Identifier: Apache-2.0
"""Random mistakes in programs: one instruction is another, or is not there."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from programs import with_stages

from jfold import instructions as ir
from jfold.program import HostPlan, Program

Mistake = Callable[[Any, ir.Body, random.Random], Any]
KEPT = {
    'inputs',
    'outputs',
    'where',
    'visit',
    'way',
}  # which have mistakes of their own


def mutant(program: Program, rng: random.Random) -> Program | None:
    """The program with a mistake; `None` if what was drawn changes nothing."""
    bodies = [program.plan.body, *program.plan.declarations]
    number = rng.randrange(len(bodies))
    made = _changed(bodies[number], rng)
    if made is None:
        return None
    bodies[number] = made
    return replace(program, plan=HostPlan(bodies[0], tuple(bodies[1:])))


def _changed(body: ir.Body, rng: random.Random) -> ir.Body | None:
    found = list(body.instructions)
    if not found or rng.random() < 0.1:
        return _returning_another(body, rng)
    chosen, mistake = rng.choice(found), rng.choice(MISTAKES)
    made = mistake(chosen, body, rng)
    if made is chosen:
        return None
    stages = tuple(
        ir.Stage(_with(x.instructions, chosen, made), _with(x.calls, chosen, made))
        for x in body.stages
    )
    return with_stages(body, stages)


def _with(instructions: tuple[Any, ...], chosen: Any, made: Any) -> tuple[Any, ...]:
    """The instructions, with another, or none, in the place of one."""
    found = (made if i is chosen else i for i in instructions)
    return tuple(i for i in found if i is not None)


def _returning_another(body: ir.Body, rng: random.Random) -> ir.Body | None:
    if not body.outputs:
        return None
    return replace(body, outputs=_one_other(body.outputs, body, rng))


def _one_other(
    registers: tuple[int, ...], body: ir.Body, rng: random.Random
) -> tuple[int, ...]:
    at, other = rng.randrange(len(registers)), rng.randrange(body.registers)
    return (*registers[:at], other, *registers[at + 1 :])


def _two_swapped(registers: tuple[int, ...], rng: random.Random) -> tuple[int, ...]:
    a, b = sorted(rng.sample(range(len(registers)), 2))
    found = list(registers)
    found[a], found[b] = found[b], found[a]
    return tuple(found)


# ---- mistakes ------------------------------------------------------------------------


def _other_input(i: Any, body: ir.Body, rng: random.Random) -> Any:
    return replace(i, inputs=_one_other(i.inputs, body, rng)) if i.inputs else i


def _swapped_inputs(i: Any, body: ir.Body, rng: random.Random) -> Any:
    some = len(i.inputs) > 1
    return replace(i, inputs=_two_swapped(i.inputs, rng)) if some else i


def _swapped_outputs(i: Any, body: ir.Body, rng: random.Random) -> Any:
    some = len(i.outputs) > 1
    return replace(i, outputs=_two_swapped(i.outputs, rng)) if some else i


def _none(i: Any, body: ir.Body, rng: random.Random) -> None:
    return None


def _other_visit(i: Any, body: ir.Body, rng: random.Random) -> Any:
    visit = rng.choice([None, *range(12)])
    return i if visit == i.visit else replace(i, visit=visit)


def _other_way(i: Any, body: ir.Body, rng: random.Random) -> Any:
    return replace(i, way=rng.randrange(6)) if hasattr(i, 'way') else i


def _other_option(i: Any, body: ir.Body, rng: random.Random) -> Any:
    """A number that is one more or less, or an entry of a tuple that is."""
    values = {x.name: getattr(i, x.name) for x in fields(i) if x.name not in KEPT}
    numbers = {k: v for k, v in values.items() if isinstance(v, int | tuple) and v}
    if not numbers:
        return i
    name = rng.choice(sorted(numbers))
    return replace(i, **{name: _another(numbers[name], rng)})


def _another(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        at = rng.randrange(len(value))
        entry = () if rng.random() < 0.3 else (_another(value[at], rng),)
        return (*value[:at], *entry, *value[at + 1 :])
    return value + rng.choice([-1, 1]) if isinstance(value, int) else value


MISTAKES: tuple[Mistake, ...] = (
    *(_other_input, _swapped_inputs, _swapped_outputs, _none),
    *(_other_visit, _other_way, _other_option),
)
