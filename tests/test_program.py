# SPDX-License-Identifier: Apache-2.0
"""Programs are checked where they are made: each register has a type, and only one."""

from __future__ import annotations

import cProfile
import pstats
import re
from dataclasses import replace

import pytest
from checking import refuses
from programs import (
    calls,
    cases,
    loops,
    trees,
    with_tensors,
)
from wrong_programs import WRONG

import jfold as jf
from jfold import instructions as ir
from jfold.program import check_program
from jfold.traits import Ordering

# ---- right programs ------------------------------------------------------------------


TREE = """\
operations
  0: embed(int32[]) -> float32[4]
  1: cell(float32[4], float32[4]) -> float32[4]
<expression> r0: places[a], r1: objects[a]
  r2: tensors[a, float32[4]] = Call r0 r1 declaration=0 way=1
  Observe r0 r2 visit=2 way=0 result=1
  return r2
<tree> r0: places[a], r1: objects[a]
  r2: objects[a] = Transform r1 fn=type
"""

CASES = """\
  r21: positions[a of b+c] = Order r4 r5
  r22: lengths[b+c: d+2*c] = Join r9 r18
  r23: tensors[d+2*c, float32[]] = Join r12 r19
  r24: lengths[a: e], r25: positions[e of d+2*c] = Ranges r22 r21
  r26: tensors[e, float32[]] = Select r23 r25
"""


def test_registers_print_with_their_types() -> None:
    assert str(trees()).startswith(TREE)
    assert CASES in str(cases())
    assert '  r2: lengths[a: b], r3: tensors[b, float32[]] = Call r0 r1' in str(calls())


def test_right_programs_are_right() -> None:
    for make in trees, loops, cases, calls:
        check_program(make())


@pytest.mark.parametrize('name', WRONG)
def test_wrong_programs_are_refused(name: str) -> None:
    """The message names the body and the instruction, and both types."""
    make, message = WRONG[name]
    text = f'jfold made a wrong program, please report it: {message}'
    with refuses(text, AssertionError):
        check_program(make())


def kinds(of: type[ir.Instruction] = ir.Instruction) -> set[type[ir.Instruction]]:
    """All kinds of instructions of the package, by what has been defined."""
    below = {kind for each in of.__subclasses__() for kind in kinds(each)}
    return {x for x in {of} | below if x.__module__.startswith('jfold.')} - BASES


BASES = {ir.Instruction, ir.Maker, ir.ConstantMaker}  # of which there are none alone


def test_every_kind_is_in_a_wrong_program() -> None:
    """Which is refused by the name of that kind: a new one cannot be forgotten."""
    named = re.compile(r'>: (?:r\d+(?:, r\d+)* = )?(\w+)')
    messages = (named.search(message) for _, message in WRONG.values())
    refused = {found[1] for found in messages if found}
    assert {kind.__name__ for kind in kinds()} - refused == set()
    assert {ir.FoldEntered, ir.Padded, ir.Fulfil} < kinds()


def test_what_keeps_order_gives_rows_of_its_first_input_alone() -> None:
    """Or the way back from an item would lead to another."""
    for kind in kinds() - {ir.Call}:  # whose items have owners
        if kind.traits.order is Ordering.KEEPS:
            for each in kind.traits.signatures:
                rows = {term.type.rows for term in (*each.takes[:1], *each.gives)}
                assert len(rows) <= 1, kind


def test_what_the_device_runs_is_checked_too() -> None:
    """Numbers of types, and what is said of who reads what."""
    with refuses('result 1: expected numbers of 2 types, got 7', ValueError):
        check_program(with_tensors(trees(), 1, (7,)))
    with refuses('expected one result without a name, got 0', ValueError):
        check_program(replace(trees(), results=trees().results[1:]))
    sources = trees().sources
    assert sources is not None
    with refuses('expected `sources.inputs` of [1, 2], got [1]', ValueError):
        check_program(replace(trees(), sources=replace(sources, inputs=((0,),))))


def test_checking_takes_time_in_proportion() -> None:
    """Twice the cases take twice the calls of matching."""

    def matched(count: int) -> int:
        program = jf.compile(
            jf.OneOf(abs, {n: jf.Map(jf.Scalar()) for n in range(count)}) >> jf.Sum()
        ).program
        with cProfile.Profile() as profile:
            check_program(program)
        return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]

    matched(2)  # what is done once
    assert matched(80) < 2.2 * matched(40)
