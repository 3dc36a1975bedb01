# SPDX-License-Identifier: Apache-2.0
"""Reading optimised HLO: what is in its loops, and how large it is.

A computation is *in a loop* if a `while` reaches it by its body or condition, through
any chain of calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class Instruction:
    """One line of HLO.

    Attributes:
      opcode: as `copy` or `while`.
      rows: the leading axis of the result; of a tuple, of any part.
      calls: the computations that it refers to.
    """

    name: str
    opcode: str
    rows: frozenset[int]
    calls: tuple[str, ...]

    def __str__(self) -> str:
        return f'{self.name} = {self.opcode} of {sorted(self.rows)} rows'


Module = dict[str, list[Instruction]]

_HEADER = re.compile(r'^(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$')
_LINE = re.compile(r'^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$')
_OPCODE = re.compile(r'^(\(.*?\)|\S+) ([\w\-]+)\(')
_SHAPE = re.compile(r'\b[a-z]+\d*\w*\[(\d+)[,\]]')
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
    rows = frozenset(map(int, _SHAPE.findall(found[1])))
    return Instruction(name, found[2], rows, tuple(calls))


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
    """Scatters in loops."""
    return [str(i) for i in in_loops(module) if 'scatter' in i.opcode]


def compiled_text(fn: Callable[..., Any], *args: Any) -> str:
    """The optimised HLO."""
    text: str = jax.jit(fn).lower(*args).compile().as_text()
    return text
