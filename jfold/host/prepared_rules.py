# SPDX-License-Identifier: Apache-2.0
"""Instructions made ready to run, once for all times that their body does.

A wave may have a single item; what an instruction looks up then costs more than its
work. So kinds that run in every wave have looked it up before; other kinds have a rule.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jfold import instructions as ir
from jfold.host.objects import (
    are_so_long,
    by_attribute,
    check_lengths,
    each,
    entries,
    fields,
    have_attributes_alone,
)
from jfold.host.pieces import whole
from jfold.host.promises import Promises
from jfold.host.rules import PIECED, RULES, Column
from jfold.host.trace import Trace
from jfold.kept import kept

Step = Callable[[list[Column], Any], None]
Reader = Callable[[list[Column]], tuple[Column, ...]]
BYTE = 256  # numbers of so many cases are kept in bytes


@kept
def steps(body: ir.Body) -> tuple[tuple[tuple[ir.Instruction, Step | None], ...], ...]:
    """Per stage, its instructions with what they do to registers; loops have `None`."""
    ready = _pieced if _collects(body) else _ready
    return tuple(
        tuple((i, ready(i)) for i in stage.instructions) for stage in body.stages
    )


def _collects(body: ir.Body) -> bool:
    """Whether there are sequences that a call gave."""
    calls = itertools.chain(*(stage.calls for stage in body.stages))
    return any(owner >= 0 for call in calls for owner in call.owners)


def _ready(i: ir.Instruction) -> Step | None:
    make, rule = MAKERS.get(type(i)), RULES.get(type(i))
    return make(i) if make else functools.partial(rule, i) if rule else None


def _pieced(i: ir.Instruction) -> Step | None:
    """A step where columns may be pieces, of which few kinds make others."""
    step, rule = _ready(i), PIECED.get(type(i))
    if rule or not step:  # loops see to it themselves
        return functools.partial(rule, i) if rule else None

    def on_whole(r: list[Column], state: Trace) -> None:
        make_whole(i, r)
        step(r, state)

    return on_whole


def make_whole(i: ir.Instruction, r: list[Column]) -> None:
    """Puts together what an instruction reads."""
    for register in i.inputs:
        r[register] = whole(r[register])


def reader(registers: Sequence[int]) -> Reader:
    """Reads registers, faster than a loop."""
    if len(registers) == 1:
        (register,) = registers
        return lambda columns: (columns[register],)
    return operator.itemgetter(*registers) if registers else lambda columns: ()


# ---- kinds that run in every wave ----------------------------------------------------


def _cases(i: ir.Cases) -> Step:
    (source,), (target,), key = i.inputs, i.outputs, i.key_fn
    find = _finder(i)
    collect: Callable[[Iterable[int]], Any] = bytes if i.cases <= BYTE else list

    def step(r: list[Column], state: Trace) -> None:
        items = r[source]
        try:
            made = collect(find(map(key, items) if key else items))
        except Exception:  # of which item, is told below
            made = b''
        if len(made) != len(items):  # `StopIteration` looks like the end of the items
            made = collect(_told(i, items))
        r[target] = made

    return step


def _finder(i: ir.Cases) -> Callable[[Iterable[Any]], Iterable[int]]:
    """From keys to the numbers of their cases, without a call from Python for each."""
    if i.case_of is None:
        return functools.partial(map, functools.partial(operator.is_, None))
    if i.default is None:
        return functools.partial(map, i.case_of.__getitem__)
    find, other = i.case_of.get, itertools.repeat(i.default)
    return lambda keys: map(find, keys, other)


def _told(i: ir.Cases, items: list[Any]) -> list[int]:
    """The number of each item's case.

    Raises:
      BadItem: an item has none.
    """
    assert i.case_of is not None  # else every item has one
    if i.key_fn is not None:
        items = each(i.key_fn, items, expected='what its function takes')
    if i.default is not None:
        return entries(i.case_of, items, lambda *_: 'a hashable key', i.default)
    hint = 'give it a case, or pass `default=`'
    return entries(i.case_of, items, _one_of, hint=hint)


def _one_of(case_of: dict[Any, Any], hashable: bool) -> str:
    return f'one of the keys {", ".join(map(repr, itertools.islice(case_of, 20)))}'


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
                r[target] = made = list(map(get, items))
                if len(made) != len(items):
                    raise RuntimeError('an item raised StopIteration')
        except Exception:  # some have items, others attributes
            for target, key in zip(i.outputs, i.keys, strict=True):
                r[target] = fields(items, key)
        if most is not None and not are_so_long(items, most):
            check_lengths(items, most)

    return step


def _send(i: ir.Send) -> Step:
    (target,), d, read = i.outputs, i.declaration, reader(i.inputs)
    source, *others = i.inputs

    def step(r: list[Column], state: Promises) -> None:
        placing, size = state.placing, len(r[source])
        first = placing.counts[d]
        placing.counts[d] = last = first + size
        r[target] = range(first, last)
        if size:
            columns = read(r) if others else (r[source],)
            placing.waiting.setdefault(d, []).append(columns)

    return step


MAKERS: dict[type, Callable[..., Step]] = {
    ir.Cases: _cases,
    ir.Among: _among,
    ir.Fields: _fields,
    ir.Send: _send,
}
