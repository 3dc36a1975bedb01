# SPDX-License-Identifier: Apache-2.0
"""A program with a random mistake is refused, or is a right program: another one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from graphs import same
from mutations import mutant
from traced_cases import CASES

import jfold as jf
from jfold.tracing.check_graph import check_graph
from jfold.graph import Graph
from jfold.host import cycles, evaluation
from jfold.host.cycles import Watch
from jfold.host.promises import promising
from jfold.host.two_passes import in_two_passes
from jfold.program import Program, check_program

MUTANTS = 25  # of each program
Tracing = Callable[[Program, Sequence[Any]], Graph]


def as_it_is(program: Program, examples: Sequence[Any]) -> Graph:
    """The graph by a plan that is not rewritten."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, 'in_two_passes', lambda *_: None)
        return trace(program, examples)


def in_passes(program: Program, examples: Sequence[Any]) -> Graph:
    """The graph by a plan that has been rewritten, for several examples."""
    state = promising(program, len(examples))
    return evaluation.graph_of(program, list(examples), state, Watch())


def outcome(program: Program, examples: Sequence[Any], tracings: list[Tracing]) -> str:
    """What becomes of a program, which may be right or wrong."""
    try:
        check_program(program)
    except AssertionError:
        return 'refused'
    try:
        graph, *others = (tracing(program, examples) for tracing in tracings)
        back, *_ = (tracing(program, examples[::-1]) for tracing in tracings)
    except (jf.InputError, evaluation.BadItem):
        return 'other data'  # which it asks for
    check_graph(program, graph)
    for each in (*others, back.pick(np.arange(len(examples))[::-1])):
        same(graph, each)  # nothing depends on what else is traced, and how
    return 'right'


# Not chains: of one of which a half is taken twice, twice as much is made each time.
@pytest.mark.parametrize('name', sorted(CASES.keys() - {'chains'}))
def test_what_is_not_refused_is_right(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs, in one pass and in two; its graph is one of its operations; and that of
    an example depends on nothing else in the batch."""
    monkeypatch.setattr(cycles, 'MAX_DEPTH', 100)  # of calls on what they are on
    block, examples = CASES[name]()
    program = jf.compile(block).program
    rng, found = random.Random(name), Counter[str]()
    rewritten = in_two_passes(program, False)
    for _ in range(MUTANTS):
        if (made := mutant(program, rng)) is not None:
            found[outcome(made, list(examples), [trace, as_it_is])] += 1
        if rewritten and (made := mutant(rewritten, rng)) is not None:
            found[outcome(made, list(examples), [in_passes])] += 1
    assert found['refused'] > found['right']
