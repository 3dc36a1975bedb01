# SPDX-License-Identifier: Apache-2.0
"""Kinds of instructions: what is known of each, and who refuses the unknown."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np
import pytest
from checking import refuses
from programs import in_waves, loops, trees, with_wave

import jfold as jf
from jfold import instructions as ir
from jfold.checking.sources import follow
from jfold.host import evaluation
from jfold.host.cycles import Watch
from jfold.host.evaluation import graph_of, trace
from jfold.host.loops import LOOPS
from jfold.host.origin import previous
from jfold.host.prepared_rules import MAKERS
from jfold.host.promises import promising
from jfold.host.row_order import ByMoment
from jfold.host.rules import RULES
from jfold.host.visits import Visits
from jfold.program import HostPlan, check_program
from jfold.traits import Effect, Ordering, Pass, Traits


@dataclass(frozen=True, eq=False)
class Reverse(ir.Instruction):
    """A kind that is made up: the items of a column, from the last."""

    traits = Traits('x[a] -> x[b]', order=Ordering.PERMUTES)


REVERSE = Reverse((0,), (1,), 'here')


def refuses_kind(part: str) -> Any:
    """Expects the refusal of the kind that is made up."""
    text = f'{part}: expected a kind of instruction that it has a rule for, got Reverse'
    return refuses(text, NotImplementedError)


def test_a_kind_states_its_traits() -> None:
    """They are not inherited, since what is right for one is wrong for another."""
    for base in ir.Instruction, ir.Select:
        with refuses('expected `traits` in Silent, got none'):
            type('Silent', (base,), {})


def test_a_signature_is_read_whole() -> None:
    text = "expected terms as `objects[a]` in a signature, got 'places(a)'"
    with refuses(text, ValueError):
        Traits('objects[a] places(a) -> objects[a]').signatures  # noqa: B018


def test_evaluation_refuses_an_unknown_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    model = jf.compile(jf.Scalar())
    writer = {2: REVERSE}
    body = replace(model.program.plan.body, stages=(ir.Stage((REVERSE,), ()),))
    plan = HostPlan(replace(body, writer=writer), ())
    monkeypatch.setattr(evaluation, 'in_two_passes', lambda *_: None)
    with refuses_kind('evaluation'):
        trace(replace(model.program, plan=plan), [1])


def test_waves_refuse_kinds_that_wait() -> None:
    """Loops too, whose bodies could call."""
    fold = next(i for i in loops().plan.body.instructions if isinstance(i, ir.FoldLoop))
    for kind, name in (REVERSE, 'Reverse'), (fold, 'FoldLoop'):
        first, root = in_waves().plan.declarations
        first = replace(first, stages=(ir.Stage((kind,), ()),))
        plan = replace(in_waves().plan, declarations=(first, root))
        program = replace(in_waves(), plan=plan)
        text = (
            f'a wave: expected a kind of instruction that it has a rule for, got {name}'
        )
        with refuses(text, NotImplementedError):
            graph_of(program, [1, 2], promising(program, 2), Watch())


def test_the_order_of_rows_refuses_an_unknown_kind() -> None:
    """And one that leads to no places of its own."""
    visits = Visits(ByMoment())
    parents = visits.new(np.zeros(2, np.int64))
    for kind, name in (REVERSE, 'Reverse'), (ir.Pack((1,), (2,), 'here'), 'Pack'):
        text = (
            'the order of rows: expected a kind of instruction that it has a rule for, '
            f'got {name}'
        )
        with refuses(text, NotImplementedError):
            visits.inside(cast(Any, kind), parents, None)


def test_what_leads_to_places_has_a_way() -> None:
    """By which these are told from all others."""
    leading = {kind for kind in KINDS if kind.traits.visiting.is_way}
    assert leading == {
        *(ir.Enter, ir.Call, ir.CallOnce, ir.FoldLoop, ir.FoldEntered),
        *(ir.ReduceLoop, ir.ReduceGroups),
    }
    for kind in leading:
        assert 'way' in {each.name for each in fields(kind)}


def test_what_is_like_another_and_is_not_done_once() -> None:
    """Keys, and iterators of attributes."""
    assert {kind for kind in KINDS if kind.traits.anew} == {ir.Draw, ir.Iterate}


def test_the_search_for_an_origin_refuses_an_unknown_kind() -> None:
    with refuses_kind('the search for where a value comes from'):
        previous(REVERSE, [[1, 2], [2, 1]], 1, 0)


def test_who_reads_what_refuses_an_unknown_kind() -> None:
    @dataclass(frozen=True, eq=False)
    class Repeat(ir.Instruction):
        traits = Traits('tensors[a] -> tensors[a]', Effect.MAKES)

    stage = ir.Stage((Repeat((1,), (2,), 'here'),), ())
    body = replace(trees().plan.body, stages=(stage,))
    with pytest.raises(NotImplementedError, match=r'who reads what: .*, got Repeat'):
        follow(body, (), trees().operations, [], 0)


KINDS = {
    each
    for each in vars(ir).values()
    if isinstance(each, type) and issubclass(each, ir.Instruction)
} - {ir.Instruction, ir.Maker, ir.ConstantMaker}


def test_every_kind_has_a_rule_or_is_run_otherwise() -> None:
    calls = {ir.Call, ir.CallOnce}
    assert {*RULES, *MAKERS, *LOOPS, *calls} == KINDS
    assert len(RULES) + len(MAKERS) + len(LOOPS) + len(calls) == len(KINDS)


def test_what_depends_on_other_items_runs_again() -> None:
    """The second pass has all items at once: numbers of those of a wave are others."""
    again = {kind for kind in KINDS if kind.traits.numbers_items}
    named = {kind for kind in KINDS if kind.traits.names_rows}
    assert named == {ir.Ranges, ir.Cut, ir.Pick, ir.Regroup, ir.Chain}
    numbers = {ir.Positions, ir.Position, ir.Index, ir.Owners, ir.Leading, ir.Padded}
    assert again - named == numbers | {ir.Order, ir.Join, ir.Waves}
    assert Reverse.traits.numbers_items


def test_what_counts_items_alone_may_ask_any_column() -> None:
    """So a wave, which has no places, may run it on objects."""
    found = {each for each in KINDS if each.traits.counts_alone}
    assert found == {ir.Constant, ir.Fixed}
    assert not Reverse.traits.counts_alone


def test_a_kind_of_one_pass_is_refused_in_the_other() -> None:
    """Also one that the check does not name."""

    @dataclass(frozen=True, eq=False)
    class Late(ir.Instruction):
        traits = Traits('objects[a] ->', Effect.RECORDS, within=Pass.SECOND)

    program = in_waves()
    first, *_ = program.plan.declarations
    (stage,) = first.stages
    late = ir.Stage((*stage.instructions, Late((0,), (), 'here')), ())
    text = 'Late r0: expected it in another body, or a Waves'
    with pytest.raises(AssertionError, match=text):
        check_program(with_wave(program, stages=(late,)))
    of_one_pass = {each for each in KINDS if each.traits.within is not Pass.EITHER}
    assert of_one_pass == {ir.Waves, ir.Send, ir.Descend, ir.Promise, ir.Fulfil}


SPECIAL = (
    *(ir.Call, ir.CallOnce, ir.Waves, ir.Send),
    *(ir.Descend, ir.Promise, ir.Fulfil),
)


def test_what_makes_rows_says_of_what() -> None:
    """Each kind does, or is refused."""
    for kind in KINDS:
        if issubclass(kind, ir.Maker):
            assert kind.makes is not ir.Maker.makes

    @dataclass(frozen=True, eq=False)
    class Draw(ir.Maker):
        traits = Traits('places[a] -> tensors[a]', Effect.MAKES)

    with pytest.raises(NotImplementedError, match=r'telling rows apart: .*, got Draw'):
        Draw((0,), (1,), 'here').makes  # noqa: B018


def test_what_makes_rows_says_so() -> None:
    """Makers do, what holds bodies may do anything, and others never."""
    for kind in KINDS:
        effect = kind.traits.effect
        assert (
            issubclass(kind, ir.Maker)
            or kind.traits.holds
            or kind in SPECIAL
            or (not effect & (Effect.MAKES | Effect.RECORDS))
        )
        assert not issubclass(kind, ir.Maker) or effect & Effect.MAKES
