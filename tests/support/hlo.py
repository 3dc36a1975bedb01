# SPDX-License-Identifier: Apache-2.0
"""Reading optimised HLO: what is in its loops, and how large it is.

A computation is *in a loop* if a `while` reaches it by its body or condition, through
any chain of calls.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from compiler import AS_USERS_HAVE_IT


@dataclass(frozen=True)
class Array:
    """The type of an array.

    Attributes:
      dtype: as HLO names it, as in `f32`.
      shape: its axes; of a number, none.
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Its size, each number in whole bytes."""
        bits = re.search(r'\d+', self.dtype)
        return self.size * (int(bits[0]) // 8 if bits else 1)


@dataclass(frozen=True)
class Instruction:
    """One line of HLO.

    Attributes:
      opcode: as `copy` or `while`.
      arrays: the result; of a tuple, all of its parts.
      given: what it reads; of a constant, its value.
      calls: the computations that it refers to.
      attributes: what stands behind what it reads.
    """

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    given: str
    calls: tuple[str, ...]
    attributes: str

    @property
    def operands(self) -> list[str]:
        """The instructions that it reads."""
        return _OPERAND.findall(self.given)

    @property
    def rows(self) -> frozenset[int]:
        """The leading axis of the result; of a tuple, of any part."""
        return frozenset(x.shape[0] for x in self.arrays if x.shape)

    @property
    def bytes(self) -> int:
        """The size of the result."""
        return sum(x.bytes for x in self.arrays)

    def __str__(self) -> str:
        return f'{self.name} = {self.opcode} of {sorted(self.rows)} rows'


Module = dict[str, list[Instruction]]  # the entry comes last

_HEADER = re.compile(r'^(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$')
_LINE = re.compile(r'^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$')
_OPCODE = re.compile(r'^(\(.*?\)|\S+) ([\w\-]+)\(([^()]*)\)?')
_ARRAY = re.compile(r'\b([a-z]+\d*\w*)\[([\d,]*)\]')
_OPERAND = re.compile(r'%([\w.\-]+)')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_PLACE = re.compile(r'\bindex=(\d+)')
_LOOP = re.compile(r'condition=%?([\w.\-]+), body=%?([\w.\-]+)')
_CALL = re.compile(
    r'(?:body|condition|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)'
)
_BRANCHES = re.compile(r'(?:branch_computations|called_computations)=\{([^}]*)\}')


def parse(text: str) -> Module:
    """The computations of a module by name."""
    module: Module = {}
    current: list[Instruction] = []
    for line in text.splitlines():
        if header := _HEADER.match(line):
            current = module.setdefault(header[1], [])
        elif found := _LINE.match(line):
            current.append(_instruction(found[1], found[2]))
    return module


def _instruction(name: str, rest: str) -> Instruction:
    # Layouts such as {1,0:T(8,128)} and comments stand in the way of tuples' brackets.
    plain = re.sub(r'/\*.*?\*/|(?<=\])\{[^}]*\}', '', rest)
    found = _OPCODE.match(plain)
    assert found, rest
    calls = _CALL.findall(rest)
    for names in _BRANCHES.findall(rest):
        calls += [each.strip().lstrip('%') for each in names.split(',')]
    arrays = tuple(
        Array(dtype, tuple(map(int, filter(None, axes.split(',')))))
        for dtype, axes in _ARRAY.findall(found[1])
    )
    attributes = plain[found.end() :]
    return Instruction(name, found[2], arrays, found[3], tuple(calls), attributes)


def in_loops(module: Module) -> Iterator[Instruction]:
    """The instructions that a `while` reaches, loops and what they call."""
    whole = [i for each in module.values() for i in each]
    waiting = [name for i in whole if i.opcode == 'while' for name in i.calls]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            yield from module[name]
            waiting += [each for i in module[name] for each in i.calls]


# What may have a buffer as its result: it is passed on, or updated in place.
_SCATTER = '/scatter'  # in the name of the operation that a loop was made of
IN_PLACE = {
    'parameter',
    'get-tuple-element',
    'tuple',
    'while',
    'fusion',
    'call',
    'bitcast',
    'dynamic-update-slice',
}


def large(module: Module, rows: int) -> list[str]:
    """What makes anything of at least so many rows in a loop, instead of updating it.

    Of a fusion, what counts is what it consists of.
    """
    return [
        str(i)
        for i in in_loops(module)
        if i.opcode not in IN_PLACE and max(i.rows, default=0) >= rows
    ]


def scatters(module: Module) -> list[str]:
    """Scatters in loops, and what a TPU makes of them: loops over their rows."""
    return [
        str(i)
        for i in in_loops(module)
        if 'scatter' in i.opcode or (i.opcode == 'while' and _SCATTER in i.attributes)
    ]


# ---- what is started, and how often --------------------------------------------------

# Instructions that start nothing on a device, beside those on single numbers.
PASSED_ON = {
    *('parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast'),
    *('copy-done', 'slice-done', 'async-done', 'after-all', 'partition-id'),
}
NESTED = {'while', 'call', 'conditional'}
STARTED = {'fusion', 'custom-call', 'copy', 'reduce', 'dot'}


@dataclass(frozen=True)
class Loop:
    """A loop that the entry reaches, not through another one.

    Attributes:
      start: its `while`.
      trips: how often it runs; `None` if the text does not tell.
      kernels: what a trip starts, with how often; of loops inside whose trips are not
        known, one trip.
    """

    start: Instruction
    trips: int | None
    kernels: tuple[tuple[Instruction, int], ...]

    @property
    def count(self) -> int:
        """How many kernels a trip starts."""
        return sum(times for _, times in self.kernels)


def loops(module: Module) -> list[Loop]:
    """Those of the entry, in its order."""
    return [
        Loop(i, trips(module, i), tuple(started(module, body_of(i))))
        for i in module[next(reversed(module))]
        if i.opcode == 'while'
    ]


def body_of(loop: Instruction) -> str:
    """The computation that a `while` repeats."""
    return _loop(loop)[1]


def _loop(loop: Instruction) -> tuple[str, str]:
    """Its condition and its body."""
    found = _LOOP.search(loop.attributes)
    assert found, loop
    return found[1], found[2]


def told_trips(loop: Instruction) -> int | None:
    """How often a loop runs, if XLA says so, which then need not ask the device."""
    found = _TRIPS.search(loop.attributes)
    return int(found[1]) if found else None


def trips(module: Module, loop: Instruction) -> int | None:
    """How often a loop runs: what XLA says, else the constant that it counts to."""
    if told := told_trips(loop):
        return told
    condition = module[_loop(loop)[0]]
    by_name = {i.name: i for i in condition}
    last = condition[-1]
    ends = [by_name[x].given for x in last.operands if by_name[x].opcode == 'constant']
    counts = last.opcode == 'compare' and 'direction=LT' in last.attributes and ends
    return int(ends[0]) if counts else None


def started(module: Module, name: str) -> Iterator[tuple[Instruction, int]]:
    """The kernels of a computation, in loops and branches too, and how often."""
    for i in module[name]:
        if i.opcode == 'while':
            times, inner = trips(module, i) or 1, [body_of(i)]
        elif i.opcode in NESTED:
            times, inner = 1, list(i.calls)
        else:
            if is_kernel(i):
                yield i, 1
            continue
        for each in inner:
            yield from ((k, n * times) for k, n in started(module, each))


def kernels(module: Module) -> int:
    """How many a program starts; of loops whose trips are not known, one trip."""
    return sum(times for _, times in started(module, next(reversed(module))))


def is_kernel(i: Instruction) -> bool:
    """Whether an instruction is started on a device, be it for a single number."""
    if i.opcode in PASSED_ON | NESTED:
        return False
    return i.opcode in STARTED or any(x.shape for x in i.arrays)


# ---- what must not be in a loop ------------------------------------------------------

MOVES = {'bitcast', 'copy-start', 'copy-done', 'slice-start', 'slice-done'}
SMALL = 1 << 20  # bytes; what is smaller is fetched to be near, and not written back


def copies(module: Module, indices: int | None = None) -> list[str]:
    """Copies, in a loop of the entry or one inside it, of buffers that the former
    writes to, and of large tables and matrices that it is given.

    What it is given may be moved between memories of a TPU, which its products read it
    from in any case. A tile may have the shape of a matrix, but is not what the loop is
    given.

    Args:
      indices: if only loops over tiles are meant, all of which carry an index array of
        so many numbers. A user's function may have a loop, that copies a tile of its
        own; where there is one step, it is of the entry.
    """
    return [
        str(i)
        for loop in loops(module)
        if indices is None or reads_indices(loop, indices)
        for i in _copies(module, loop)
    ]


def reads_indices(loop: Loop, count: int) -> bool:
    """Whether a loop carries an index array of so many numbers."""
    return Array('s32', (count,)) in loop.start.arrays


def _copies(module: Module, loop: Loop) -> Iterator[Instruction]:
    """Those of one loop of the entry."""
    body = module[body_of(loop.start)]
    by_name = {i.name: i for i in body}
    given = [_given(by_name, name) for name in body[-1].operands]
    pairs = zip(loop.start.arrays, given, strict=True)
    written = {x for place, (x, at) in enumerate(pairs) if x.shape and place != at}
    for i, _ in loop.kernels:
        if i.opcode == 'copy' or (i.opcode == 'copy-start' and i.bytes >= SMALL):
            if written.intersection(i.arrays):
                yield i
            elif i.opcode == 'copy' and i.bytes >= SMALL and i in body:
                if _given(by_name, i.operands[0]) is not None:
                    yield i


def _given(body: dict[str, Instruction], name: str) -> int | None:
    """Which part of what a body is given an instruction passes on, if it does, be it
    by way of another memory."""
    i = body[name]
    while i.opcode in MOVES or '"ConcatBitcast"' in i.attributes:
        i = body[i.operands[0]]
    place = _PLACE.search(i.attributes)
    is_part = i.opcode == 'get-tuple-element' and place
    is_given = is_part and body[i.operands[0]].opcode == 'parameter'
    return int(place[1]) if place and is_given else None


def unbounded(module: Module) -> list[str]:
    """Loops whose trips XLA does not say, so that the host asks after each."""
    whole = [i for each in module.values() for i in each]
    return [str(i) for i in whole if i.opcode == 'while' and not told_trips(i)]


def compiled_text(fn: Callable[..., Any], *args: Any) -> str:
    """The optimised HLO."""
    compiled = jax.jit(fn, compiler_options=AS_USERS_HAVE_IT).lower(*args).compile()
    text: str = compiled.as_text()
    return text
