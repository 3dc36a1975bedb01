# SPDX-License-Identifier: Apache-2.0
"""In two passes or wave by wave: the graph is the same, and so is what is said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from binary_trees import chain, tree_block
from expressions import Expression, any_expressions
from graphs import same
from hypothesis import given, settings
from hypothesis import strategies as st
from traced_cases import CASES, add, number, tanh, tuples

import jfold as jf
from jfold.checking.graphs import check_graph
from jfold.graph import Graph
from jfold.host import cycles, evaluation
from jfold.host.cycles import Watch
from jfold.host.evaluation import trace
from jfold.host.promises import promising
from jfold.host.two_passes import in_two_passes
from jfold.program import Program

WAITING = {  # calls that wait for calls, or that give sequences or objects
    'calls_in_several_stages',
    'a_fold_that_recurses',
    'reductions',
    'calls_after_calls',
    'calls_in_loops',
    'sequences_of_declarations',
    'calls_on_joined_sequences',  # which have one order in waves, another in all
}


def in_waves(program: Program, examples: Sequence[Any]) -> Graph:
    """The graph, traced wave by wave."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, 'in_two_passes', lambda *_: None)
        return trace(program, examples)


def in_passes(program: Program, examples: Sequence[Any]) -> Graph | None:
    """The graph, traced in two passes, where the program allows it."""
    made = in_two_passes(program, len(examples) == 1)
    if made is None or not examples:
        return None
    state = promising(made, len(examples))
    return evaluation.graph_of(made, list(examples), state, Watch())


def check(program: Program, examples: Sequence[Any]) -> bool:
    """Both graphs of the batch, and of every example, are equal to the bit."""
    batches = [examples, examples[::-1], *([each] for each in examples)]
    for batch in batches:
        made = in_passes(program, batch)
        if made is None:
            return False
        check_graph(program, made)
        same(made, in_waves(program, batch))
    return True


@settings(max_examples=60)
@given(
    any_expressions(),
    st.integers(0, 99),
)
def test_expressions(expression: Expression, seed: int) -> None:
    """Whatever the expression."""
    examples = expression.batch(np.random.default_rng(seed), 4)
    check(jf.compile(expression.block).program, examples)


def test_a_program_of_one_example_takes_no_two() -> None:
    program = jf.compile(tree_block(2)).program
    for single, examples, message in (
        (True, [(1, 2), 3], 'expected a single example, got 2'),
        (False, [(1, 2)], 'expected several examples, got 1'),
    ):
        made = in_two_passes(program, single)
        assert made is not None
        state = promising(made, len(examples))
        with pytest.raises(ValueError, match=message):
            evaluation.graph_of(made, examples, state, Watch())


@pytest.mark.parametrize('name', CASES)
def test_cases(name: str) -> None:
    """Of all kinds; most run in two passes."""
    block, examples = CASES[name]()
    assert check(jf.compile(block).program, examples) == (name not in WAITING)


REWRITTEN = """\
operations
  0: tanh(float32[]) -> float32[]
  1: add(float32[], float32[]) -> float32[]
<expression> r0: places[a], r1: objects[a]
  r2: places[@0], r3: objects[@0], r5: cases[@0: b/c], r20: positions[c of @0], \
r21: positions[c of @0], r22: places[a], r25: positions[a of @0] = Waves r1 \
declaration=1 single=True
  r15: tensors[c, float32[]] = Promise r20 r2 declaration=0 types=(0,)
  r17: tensors[c, float32[]] = Promise r21 r2 declaration=0 types=(0,)
  r6: positions[b of @0], r7: positions[c of @0] = Positions r5
  r8: places[b] = Select r2 r6
  r9: objects[b] = Among r3 r5 case=0
  r10: tensors[b, float32[]] = Convert r9 r8 way=0 type=0 tensor=float32[]
  r11: tensors[b, float32[]] = Apply r8 r10 way=0 operation=0
  r12: places[c] = Select r2 r7
  r18: tensors[c, float32[]] = Apply r12 r15 r17 way=0 operation=1
  r19: tensors[@0, float32[]] = Merge r6 r7 r11 r18
  r24: tensors[a, float32[]] = Promise r25 r2 declaration=0 types=(0,)
  Fulfil r2 r19 declaration=0 types=(0,)
  return r24
<tree> r0: objects[a]
  r2: cases[a: b/c] = Cases r0 case_of={'word': 0, 'pair': 1} cases=2 key_fn=kind_of
  r10: objects[c] = Among r0 r2 case=1
  r11: objects[c], r13: objects[c] = Fields r10 keys=(0, 1) most=2
  r17: positions[c of @0] = Send r11 declaration=0
  r18: positions[c of @0] = Send r13 declaration=0
  return r0 r2 r17 r18
<expression> r0: objects[a]
  r2: positions[a of @0] = Send r0 declaration=0
  return r2"""


def test_the_rewritten_program_is_a_program_like_any_other() -> None:
    """Each register has a type, across both passes."""
    block = tuples(number >> tanh, lambda t: jf.Record((t(), t())) >> add)
    assert str(in_two_passes(jf.compile(block).program, True)) == REWRITTEN


def test_deep_trees_of_metrics_among_shallow_ones() -> None:
    """In rounds over all levels, and level by level."""
    seen = jf.AllOf(jf.Identity(), jf.Metric('seen')) >> jf.GetItem(0)
    block = tuples(number >> seen, lambda t: jf.Record((t(), t())) >> add >> seen)
    program = jf.compile(block).program
    assert check(program, [chain(400), 1, chain(30), ((1, 2), (3, 4))])


def test_declarations_that_pass_results_on() -> None:
    """The result of a call is that of another, many calls away."""
    tree = jf.ForwardDeclaration()
    deeper = jf.GetItem(0) >> tree()
    tree.resolve_to(jf.OneOf(type, {int: number >> tanh, list: deeper}))
    nested: Any = 5
    for _ in range(60):
        nested = [nested]
    block = jf.AllOf(tree(), tree() >> tanh) >> jf.Function(jnp.subtract)
    assert check(jf.compile(block).program, [nested, 1, [2], [[3]]])


def test_more_cases_than_a_byte_numbers() -> None:
    """Of which one takes its data further apart."""
    tree = jf.ForwardDeclaration()
    cases: dict[Any, Any] = {k: jf.GetItem(1) >> number for k in range(300)}
    cases[299] = jf.GetItem(1) >> tree()
    cases[280] = jf.GetItem(1) >> number >> tanh
    tree.resolve_to(jf.OneOf(jf.GetItem(0), cases))
    examples = [(3, 1), (299, (280, 2)), (299, (299, (0, 3)))]
    assert check(jf.compile(tree()).program, examples)


def test_a_key_that_is_data_too() -> None:
    """What a function made of an item is looked up, and passed to a declaration."""
    first, second = jf.ForwardDeclaration(), jf.ForwardDeclaration()
    first.resolve_to(number)
    second.resolve_to(number)
    cases = {0: second() >> tanh, 6: second()}
    chosen = jf.OneOf(jf.GetItem(1), cases, pre_block=jf.GetItem(0))
    parts = jf.AllOf(jf.GetItem('k'), jf.GetItem('s') >> jf.InputTransform(sum))
    block = parts >> jf.AllOf(jf.GetItem(1) >> first(), chosen) >> add
    model = jf.compile(block)
    assert check(model.program, [{'k': 2.0, 's': [1, 2, 3]}, {'k': 3.0, 's': []}])


@pytest.mark.parametrize('batch', [1, 2])
def test_the_record_of_fewest_items_decides(batch: int) -> None:
    """Where several take the same tuples apart, however many there are."""
    three, two = (jf.Record((number,) * n) for n in (3, 2))
    block = jf.AllOf(three >> jf.GetItem(0), two >> jf.GetItem(1)) >> add
    program = jf.compile(block).program
    told = message(program, [(1, 2, 3)] * batch)
    assert told.startswith('example 0: expected 2 items, got 3 in (1, 2, 3)')


def test_as_deep_as_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One level more is too deep."""
    monkeypatch.setattr(cycles, 'MAX_DEPTH', 3)
    tree = jf.ForwardDeclaration()
    tree.resolve_to(jf.OneOf(type, {float: number, list: jf.GetItem(0) >> tree()}))
    program = jf.compile(tree()).program
    assert in_passes(program, [[[1.0]]])
    with pytest.raises(RecursionError):
        in_passes(program, [[[[1.0]]]])


BAD: dict[str, Any] = {
    'a leaf': ((1, 2), (3, 'x')),
    'a node': ((1, 2), [3]),
    'a pair of one': (1, ((2,), 3)),
    'nothing': None,
    'a number that does not fit': (1, (2, 1 << 40)),
}


def message(program: Program, examples: list[Any]) -> str:
    """What is said about bad data."""
    with pytest.raises(jf.InputError) as caught:
        trace(program, examples)
    return str(caught.value)


@pytest.mark.parametrize('name', BAD)
def test_what_is_said_about_bad_data(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone or among others, it is said as if there were no other way to run."""
    program = jf.compile(tree_block()).program
    batches = [[BAD[name]], [(1, 2), BAD[name], 3]]
    said = [message(program, batch) for batch in batches]
    monkeypatch.setattr(evaluation, 'in_two_passes', lambda *_: None)
    assert said == [message(program, batch) for batch in batches]


def test_a_function_that_stops_the_iteration() -> None:
    """`StopIteration` from a user's function does not shorten anything."""

    def kind(item: Any) -> str:
        if item == 3:
            raise StopIteration
        return 'pair' if isinstance(item, tuple) else 'word'

    tree = jf.ForwardDeclaration()
    pair = jf.Record((tree(), tree())) >> add
    tree.resolve_to(jf.OneOf(kind, {'word': number, 'pair': pair}))
    program = jf.compile(tree()).program
    assert message(program, [(1, (2, 3))]).startswith('example 0, at [1][1]')


def test_functions_that_fail_but_once() -> None:
    """Early or late, alone or among others."""
    for batch in ([2], [1, 2], [2, 2, 3]):
        seen = set()

        def moody(item: int, seen: set[int] = seen) -> int:
            if item == 2 and item not in seen:
                seen.add(item)
                raise ValueError('the first time')
            return item

        model = jf.compile(jf.InputTransform(moody) >> number)
        with pytest.raises(RuntimeError, match='the same results on the same data'):
            model.schedule(batch)


def test_functions_that_change_their_minds() -> None:
    """What fails once is not taken the second time, though nobody can tell why."""
    given = iter(['x', 1])
    block = jf.InputTransform(lambda _: next(given)) >> number
    with pytest.raises(RuntimeError, match='give the same results on the same data'):
        jf.compile(block).schedule([0])
