# SPDX-License-Identifier: Apache-2.0
"""What a kernel moves and multiplies, read from optimised HLO."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from targets import Target

sys.path.append(str(Path(__file__).parents[1] / 'tests/support'))

from hlo import Array, Instruction, Module, loops, parse, started

READ_IN_PART = {'dynamic-slice', 'gather', 'slice'}
_CONTRACTED = re.compile(r'lhs_contracting_dims=\{([\d,]*)\}')


@dataclass(frozen=True)
class Costs:
    """Of a compiled program.

    Attributes:
      steps: trips of its loops.
      kernels_a_step: kernels that one trip of each loop starts.
      kernels: kernels in all.
      bytes: read and written; of buffers, the rows.
      operations: of matrix products.
      seconds: by the cost model.
    """

    steps: int
    kernels_a_step: int
    kernels: int
    bytes: int
    operations: int
    seconds: float


def costs(text: str, target: Target) -> Costs:
    """What a program costs on a device, of its HLO: each kernel the time it takes to
    start, and to move its bytes or to multiply, whichever is longer."""
    module = parse(text)
    where = {id(i): each for each in module.values() for i in each}
    kernels, moved, operations, seconds = 0, 0, 0, 0.0
    for i, times in started(module, next(reversed(module))):
        own, done = moves(module, where[id(i)], i), multiplies(module, where[id(i)], i)
        kernels += times
        moved += times * own
        operations += times * done
        working = max(own / target.bandwidth, done / target.rate)
        seconds += times * (target.start + working)
    found = loops(module)
    steps, a_step = sum(x.trips or 1 for x in found), sum(x.count for x in found)
    return Costs(steps, a_step, kernels, moved, operations, seconds)


# ---- bytes ---------------------------------------------------------------------------


def moves(module: Module, whole: list[Instruction], i: Instruction) -> int:
    """The bytes that an instruction of a computation reads and writes."""
    by_name = {x.name: x for x in whole}
    read = sum(
        _read(module, i, place, by_name[name].bytes)
        for place, name in enumerate(i.operands)
        if name in by_name
    )
    return read + _written(module, by_name, i)


def _read(module: Module, i: Instruction, place: int, size: int) -> int:
    """The bytes that an instruction reads of one operand of so many."""
    if i.opcode in READ_IN_PART and place == 0:
        return i.bytes
    if i.opcode == 'dynamic-update-slice' and place == 0:
        return 0
    if i.opcode != 'fusion':
        return size
    inner = module[i.calls[0]]
    users = _users(inner, str(place))
    return min(size, sum(_read(module, user, at, size) for user, at in users))


def _users(inner: list[Instruction], number: str) -> Iterator[tuple[Instruction, int]]:
    """What reads a parameter of a computation, and at which place."""
    names = {i.name for i in inner if i.opcode == 'parameter' and i.given == number}
    for i in inner:
        if i.opcode == 'bitcast' and names.intersection(i.operands):
            names.add(i.name)
        else:
            yield from ((i, at) for at, x in enumerate(i.operands) if x in names)


def _written(module: Module, whole: dict[str, Instruction], i: Instruction) -> int:
    """The bytes that an instruction writes."""
    if i.opcode == 'dynamic-update-slice':
        return whole[i.operands[1]].bytes
    if i.opcode == 'fusion':
        inner = module[i.calls[0]]
        return _written(module, {x.name: x for x in inner}, inner[-1])
    if i.opcode in ('tuple', 'bitcast'):
        return sum(_written(module, whole, whole[name]) for name in i.operands)
    return i.bytes


# ---- products ------------------------------------------------------------------------


def multiplies(module: Module, whole: list[Instruction], i: Instruction) -> int:
    """How many multiplications and additions of matrix products an instruction does."""
    if i.opcode == 'fusion':
        inner = module[i.calls[0]]
        return sum(multiplies(module, inner, x) for x in inner)
    by_name = {x.name: x for x in whole}
    given = [x for name in i.operands[:2] for x in by_name[name].arrays]
    if i.opcode == 'dot':
        axes = _CONTRACTED.search(i.attributes)
        assert axes, i
        numbers = map(int, filter(None, axes[1].split(',')))
        return 2 * i.arrays[0].size * math.prod(given[0].shape[n] for n in numbers)
    is_gemm = i.opcode == 'custom-call' and 'gemm' in i.attributes
    if i.opcode == 'convolution' or is_gemm:
        return 2 * _of_matrices(*given[:2], i.arrays[0])
    return 0


def _of_matrices(left: Array, right: Array, result: Array) -> int:
    """Multiplications of a product of two matrices."""
    return math.isqrt(left.size * right.size * result.size)
