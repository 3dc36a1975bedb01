# SPDX-License-Identifier: Apache-2.0
"""Where a value comes from: back through the bodies, to the example and the way in it.

Nothing is written down for this while a plan runs. When something is wrong with an item
of a register, its way is followed backwards, instruction by instruction:

    r4: objects[c] = Select r3 r2      item 1 of r4 is item r2[1] of r3,
    r3: objects[b] = Field r1 key=0    which is field 0 of that item of r1,
    <tree> r0: places[a], r1: ...      which a caller's register gave
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from jfold import instructions as ir
from jfold.errors import BadItem, InputError
from jfold.host.pieces import whole
from jfold.registers import PLACES, RegisterType, expanded
from jfold.traits import Ordering, refusal

Array = np.ndarray[Any, Any]
Column = Any  # a list of objects, or an array
Step = tuple[str, Any]  # into data: as shown, and the key
Back = tuple[int, int]  # a register, and an item of it
APPLIED = 8  # operations, one on the result of another, that are looked through
Origin = Callable[[int, int], tuple['Frame', int, int]]


@dataclass(eq=False)
class Frame:
    """A body at work. `origin` tells where item `i` of input register `r` comes from:
    a frame, a register and an item; `None` in the frame of the examples."""

    body: ir.Body
    registers: list[Column]
    origin: Origin | None


def start(body: ir.Body, inputs: list[Column], origin: Origin | None) -> Frame:
    """A frame at the beginning of its body."""
    return Frame(body, inputs + [None] * (body.registers - len(inputs)), origin)


def located(error: BadItem, instruction: ir.Instruction, frame: Frame) -> InputError:
    """The error of an instruction, with the example and the way to it."""
    example, path = locate(frame, instruction.inputs[0], error.index)
    if isinstance(instruction, ir.Apply):  # places tell of no item of a sequence
        ways = _ways(frame, instruction, error.index, APPLIED)
        path = max(path, ''.join(_shared(ways)), key=len)
    return InputError(str(error), example, path, instruction.where, error.hint)


def locate(frame: Frame, register: int, item: int) -> tuple[int, str]:
    """The example of an item of a register, and its path in the example."""
    steps: list[Step] = []
    for _, _, example in entries(frame, register, item, steps):
        item = example
    return item, ''.join(text for text, _ in reversed(steps))


def _ways(frame: Frame, i: ir.Apply, item: int, depth: int) -> list[list[str]]:
    """The steps to what each input of an operation was made of, where it is told."""
    found = (_way(frame, register, item, depth) for register in i.inputs[1:])
    return [way for way in found if way is not None]


def _way(frame: Frame, register: int, item: int, depth: int) -> list[str] | None:
    """The steps to the data that an item of a register was made of, if any."""
    while register < frame.body.arity and frame.origin is not None:
        frame, register, item = frame.origin(register, item)
    writer = frame.body.writer.get(register)
    if isinstance(writer, ir.Apply) and depth:
        return _shared(_ways(frame, writer, item, depth - 1))
    steps: list[Step] = []
    try:
        for _ in entries(frame, register, item, steps):
            pass
    except NotImplementedError:
        return None
    of_data = not isinstance(writer, ir.Constant)
    return [text for text, _ in reversed(steps)] if of_data else None


def _shared(ways: list[list[str]]) -> list[str]:
    """The steps with which all ways begin."""
    columns = zip(*ways, strict=False)
    same = itertools.takewhile(lambda column: len({*column}) == 1, columns)
    return [column[0] for column in same]


def located_at(frame: Frame, item: int) -> tuple[int, str]:
    """The same, of the first value that a body was given for an item."""
    return locate(frame, 1, item)


def entries(
    frame: Frame, register: int, item: int, steps: list[Step]
) -> Iterator[tuple[Frame, int, int]]:
    """The bodies that an item of a register came through, innermost first.

    Of each its frame, the register it was given and the item; the last is that of the
    examples. Appends the steps in the data on the way.
    """
    while True:
        if register < frame.body.arity:
            yield frame, register, item
            if frame.origin is None:
                return
            frame, register, item = frame.origin(register, item)
            continue
        writer, r = frame.body.writer[register], frame.registers
        if isinstance(writer, ir.Pack) and steps:
            _, key = steps.pop()  # a step into what was packed is none in the data
            register = writer.inputs[key]
            continue
        written, number = register, item
        register, item = previous(writer, r, register, item)
        if isinstance(writer, ir.Field):
            steps.append((_step(r[register][item], writer.key), writer.key))
        elif isinstance(writer, ir.Iterate) and written != writer.outputs[0]:
            number -= int(r[writer.outputs[0]][:item].sum())
            steps.append((f'[{number}]', number))


_SEARCH = 'the search for where a value comes from'

# ---- one step back -------------------------------------------------------------------


def previous(writer: ir.Instruction, r: list[Column], register: int, item: int) -> Back:
    """The register and item that an item of a register was made of.

    Args:
      r: the columns of all registers.
    """
    back = _BACK.get(writer.traits.order)
    if back is None:
        raise refusal(_SEARCH, type(writer))
    return back(writer, r, register, item)


def _kept(i: ir.Instruction, r: list[Column], register: int, item: int) -> Back:
    if not isinstance(i, ir.Call):
        return i.inputs[0], item
    # From the items of a sequence that it gave back to the item that it was made of.
    owner = i.owners[i.outputs.index(register)]
    while owner >= 0:
        item = _owner(r[i.outputs[owner]], item)
        owner = i.owners[owner]
    return i.inputs[-1], item  # what its expression is written after


def _owner(lengths: Array, item: int) -> int:
    """The sequence that an item of all belongs to."""
    return int(np.searchsorted(np.cumsum(whole(lengths)), item, side='right'))


def _numbered(i: ir.Instruction, r: list[Column], register: int, item: int) -> Back:
    return i.inputs[0], int(whole(r[register])[item])


def _selected(i: ir.Instruction, r: list[Column], register: int, item: int) -> Back:
    if register != i.outputs[0]:  # positions of what is selected with it
        raise refusal(_SEARCH, type(i))
    return i.inputs[0], int(whole(r[i.inputs[1]])[item])


def _expanded(i: ir.Instruction, r: list[Column], register: int, item: int) -> Back:
    types = _types(i)
    rows = types[register].rows
    if rows == types[i.inputs[0]].rows:
        return i.inputs[0], item
    # What a loop gives of each item was made of that item, if it is given any.
    items = [k for k in i.inputs if types[k].rows == rows and types[k].kind != PLACES]
    if items:
        return items[-1], item
    (lengths,) = (k for k, type_ in types.items() if type_.of == rows)
    return i.inputs[0], _owner(r[lengths], item)


def _types(i: ir.Instruction) -> dict[int, RegisterType]:
    """The types in the signature of an instruction, by register."""
    (chosen,) = i.traits.signatures
    starred = (term.type.kind for term in chosen.takes if term.many)
    known = dict(zip(starred, i.repeats, strict=True))
    kinds = [term.type.kind for term in chosen.gives if term.many]
    single = len(chosen.gives) - len(kinds)
    others = len(i.outputs) - single - sum(known.get(kind, 0) for kind in kinds)
    counts = [known.get(kind, others) for kind in kinds]
    terms = expanded(chosen.takes, i.repeats) + expanded(chosen.gives, counts)
    registers = zip((*i.inputs, *i.outputs), terms, strict=True)
    return {register: type_ for register, (type_, _) in registers}


def _joined(i: ir.Instruction, r: list[Column], register: int, item: int) -> Back:
    for source in i.inputs:
        if item < len(r[source]):
            break
        item -= len(r[source])
    return source, item


def _merged(i: ir.Instruction, r: list[Column], register: int, item: int) -> Back:
    half = len(i.inputs) // 2
    of_cases = [np.flatnonzero(r[k] == item) for k in i.inputs[:half]]
    case = list(map(len, of_cases)).index(1)
    return i.inputs[half + case], int(of_cases[case][0])


def _interleaved(i: ir.Instruction, r: list[Column], register: int, item: int) -> Back:
    item, number = divmod(item, len(i.inputs))
    return i.inputs[number], item


_BACK: dict[Ordering, Callable[..., Back]] = {
    Ordering.KEEPS: _kept,
    Ordering.NUMBERS: _numbered,
    Ordering.SELECTS: _selected,
    Ordering.EXPANDS: _expanded,
    Ordering.JOINS: _joined,
    Ordering.MERGES: _merged,
    Ordering.INTERLEAVES: _interleaved,
}


def _step(value: Any, key: Any) -> str:
    by_item = hasattr(type(value), '__getitem__') and not hasattr(value, '_fields')
    if isinstance(key, str) and not by_item:
        return f'.{key}'
    if isinstance(key, slice):
        parts = [key.start, key.stop] + ([] if key.step is None else [key.step])
        return f'[{":".join("" if part is None else repr(part) for part in parts)}]'
    return f'[{key!r}]'
