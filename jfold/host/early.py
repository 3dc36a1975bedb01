# SPDX-License-Identifier: Apache-2.0
"""What the first pass runs in every wave, made ready once.

A wave may have a single item; what an instruction looks up, and what it could share
with its neighbours, would then cost more than its work. Exceptions tell that something
is wrong, never what: whoever sees one runs the plan again, by `rules`.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from jfold import instructions as ir
from jfold.host.objects import (
    by_attribute,
    fields,
    have_attributes_alone,
)
from jfold.host.rules import RULES, Column
from jfold.host.trace import Trace
from jfold.traits import Effect

Step = Callable[[list[Column], Trace], None]
Instructions = list[ir.Instruction]
BYTE = 256  # numbers of so many cases are kept in bytes


def steps(instructions: Instructions, kept: set[int]) -> tuple[Step, ...]:
    """What instructions do to registers, of which some are `kept` for later."""
    chosen = _with_fields(_with_keys(_with_among(instructions), kept))
    return tuple(map(_ready, chosen))


# ---- instructions that do the work of several ----------------------------------------


def _with_among(instructions: Instructions) -> Instructions:
    """Items of a case are read by the numbers of cases, not by positions."""
    positions = {
        r: i for i in instructions if isinstance(i, ir.Positions) for r in i.outputs
    }
    made: Instructions = []
    for i in instructions:
        source = positions.get(i.inputs[-1]) if isinstance(i, ir.Select) else None
        if source:
            case = source.outputs.index(i.inputs[1])
            read = i.inputs[0], *source.inputs
            made.append(ir.Among(read, i.outputs, i.where, case))
        else:
            made.append(i)
    used = {r for i in made for r in i.inputs}
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
            made.append(replace(i, inputs=key.inputs, key=key.fn))
        else:
            made.append(i)
    return [i for i in made if i not in asked]


def _with_fields(instructions: Instructions) -> Instructions:
    """Fields of the same items are read together."""
    fields: dict[tuple[int, ...], list[ir.Field]] = {}
    for i in instructions:
        if isinstance(i, ir.Field):
            fields.setdefault(i.inputs, []).append(i)
    made: Instructions = []
    for i in instructions:
        if not isinstance(i, ir.Field):
            made.append(i)
            continue
        alike = fields[i.inputs]
        if i is alike[0]:
            outputs = tuple(each.outputs[0] for each in alike)
            keys = tuple(each.key for each in alike)
            most = next((x.most for x in alike if x.most is not None), None)
            made.append(ir.Fields(i.inputs, outputs, i.where, keys, most))
    return made


# ---- instructions made ready ---------------------------------------------------------


def _ready(i: ir.Instruction) -> Step:
    if i.traits.effect & ~Effect.RAISES:
        raise ir.refusal('early execution', type(i))
    make = _READY.get(type(i))
    return make(i) if make else functools.partial(RULES[type(i)], i)


def _transform(i: ir.Transform) -> Step:
    (source,), (target,), fn = i.inputs, i.outputs, i.fn

    def step(r: list[Column], state: Trace) -> None:
        r[target] = _whole(list(map(fn, r[source])), r[source])

    return step


def _cases(i: ir.Cases) -> Step:
    (source,), (target,) = i.inputs, i.outputs
    find, count, key = _finder(i.whole), len(i.whole.outputs), i.key
    make = bytes if count <= BYTE else list

    def step(r: list[Column], state: Trace) -> None:
        items = r[source]
        r[target] = _whole(make(map(find, map(key, items) if key else items)), items)

    return step


def _finder(whole: ir.Partition | ir.Present) -> Callable[[Any], int]:
    if isinstance(whole, ir.Partition):
        return whole.case_of.__getitem__
    return functools.partial(operator.is_, None)


def _among(i: ir.Among) -> Step:
    (source, codes), (target,), case = i.inputs, i.outputs, i.case
    table = bytes(number == case for number in range(BYTE))

    def step(r: list[Column], state: Trace) -> None:
        column, numbers = r[source], r[codes]
        chosen = (
            numbers.translate(table)
            if isinstance(numbers, bytes)
            else bytes(map(case.__eq__, numbers))
        )
        if isinstance(column, list):
            r[target] = list(itertools.compress(column, chosen))
        else:
            r[target] = column[np.frombuffer(chosen, bool)]

    return step


def _fields(i: ir.Fields) -> Step:
    (source,) = i.inputs
    by_item = [
        (t, operator.itemgetter(k)) for t, k in zip(i.outputs, i.keys, strict=True)
    ]
    by_name = [
        (target, by_attribute(key) or get)
        for (target, get), key in zip(by_item, i.keys, strict=True)
    ]
    named, most = by_name != by_item, i.most

    def step(r: list[Column], state: Trace) -> None:
        items = r[source]
        alone = named and have_attributes_alone(items)
        try:
            for target, get in by_name if alone else by_item:
                r[target] = _whole(list(map(get, items)), items)
        except Exception:  # some have items, others attributes
            for target, key in zip(i.outputs, i.keys, strict=True):
                r[target] = fields(items, key)
        if most is not None:
            state.lengths.append((items, most))

    return step


def _whole(made: Any, items: Column) -> Any:
    """What was made of items, if it was of all of them."""
    if len(made) != len(items):  # `StopIteration` looks like the end of the items
        raise RuntimeError('a function raised StopIteration')
    return made


_READY: dict[type, Callable[..., Step]] = {
    ir.Transform: _transform,
    ir.Cases: _cases,
    ir.Among: _among,
    ir.Fields: _fields,
}
