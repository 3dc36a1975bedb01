# SPDX-License-Identifier: Apache-2.0
"""Source with a mistake is caught: it fails, gives no graph, or that of others."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from graphs import canonical, same
from looped import in_loops
from mutations import ALWAYS_CAUGHT, MISTAKES, Mistake, mutants
from programs import with_source
from traced_cases import CASES
from walked import recorded

from jfold.graph import Graph
from jfold.program.operations import Program
from jfold.tracing.check_graph import check_graph
from jfold.tracing.record import trace


def outcome(program: Program, examples: Sequence[Any], right: Graph) -> str:
    """Who catches a program, if anybody does."""
    try:
        graph = trace(program, examples)
    except Exception:
        return 'fails'
    try:
        check_graph(program, replace(graph, fits=False))
    except ValueError:
        return 'refused'
    try:
        same(graph, right)
    except AssertionError:
        return 'told by walking'
    return 'the same'


def run_lines(program: Program, examples: Sequence[Any]) -> set[int]:
    """The numbers of the lines of source that examples run, from 0."""
    found = set()

    def note(frame: Any, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith('<jfold source'):
            return None
        found.add(frame.f_lineno - 1)
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        program.source.record(examples)
    finally:
        sys.settrace(before)
    return found


def first_changed(text: str, other: str) -> int:
    """The number of the first line that differs, from 0."""
    pairs = zip(text.split('\n'), other.split('\n'), strict=False)
    return next(k for k, (a, b) in enumerate(pairs) if a != b)


@pytest.mark.parametrize('mistake', MISTAKES, ids=lambda x: x.__name__)
def test_mistakes_are_caught(mistake: Mistake) -> None:
    """Each that is run; by `check_graph`, where it would be a wrong row."""
    found = Counter[str]()
    for make in CASES.values():
        block, examples = make()
        program = in_loops(block).program
        right, run = trace(program, examples), run_lines(program, examples)
        same(canonical(program, right), canonical(program, recorded(program, examples)))
        for text in mutants(program.source.text, mistake):
            if first_changed(program.source.text, text) in run:
                made = outcome(with_source(program, text), examples, right)
                assert made != 'the same' or mistake not in ALWAYS_CAUGHT, text
                found[made] += 1
    assert found['the same'] < found.total() / 2
    assert found['refused'] or found['told by walking']
