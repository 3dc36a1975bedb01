# SPDX-License-Identifier: Apache-2.0
"""An error for each mistake: its message, what that tells, and a short traceback."""

from __future__ import annotations

import re

import jax.numpy as jnp
import pytest
from mistakes import (
    apply,
    arguments,
    batches,
    corpora,
    elsewhere,
    examples,
    functions,
    kinds,
    lazy,
    of_flax,
    precompile,
    results,
    structure,
    values,
    wiring,
)
from mistakes.common import (
    OPEN,
    Mistake,
    caught,
    grade,
    lines_beside,
    missing,
    modules,
    text_of,
)

import jfold as jf

TABLES = {
    'compile': [arguments, wiring, results, functions, of_flax, lazy],
    'schedule': [examples, values, structure, elsewhere],
    'use': [apply, precompile, corpora, batches, kinds],
}
MISTAKES = [
    mistake
    for tables in TABLES.values()
    for each in tables
    for mistake in each.MISTAKES
]
# JAX raises these in a function of its own, with jfold nowhere on the stack.
BY_JAX = 'schedules that do not stack', 'schedules of two models stacked'
MOST_FRAMES, MOST_LINES = 3, 15


def pattern(message: str) -> str:
    return f'{OPEN}'.join(map(re.escape, message.split(OPEN))).replace(OPEN, r'[\s\S]*')


@pytest.mark.parametrize('mistake', MISTAKES, ids=lambda mistake: mistake.name)
def test_the_error_of_a_mistake(mistake: Mistake) -> None:
    error = caught(mistake)
    text = text_of(error)
    assert type(error) is mistake.error
    assert re.fullmatch(pattern(mistake.message), text), text
    assert missing(text) == ([mistake.lacks] if mistake.lacks else [])
    assert grade(text) in ('good', 'fair')
    if mistake.name in BY_JAX:
        assert not any(name.startswith('jfold') for name in modules(error))
        assert len(text) < 1800
        return
    ours = [x for x in modules(error) if x.partition('.')[0] in ('jfold', 'jax')]
    assert len(ours) <= MOST_FRAMES, ours
    assert len(lines_beside(error)) <= MOST_LINES, lines_beside(error)


def test_the_table() -> None:
    names = [mistake.name for mistake in MISTAKES]
    assert len(names) >= 96
    assert sum(not mistake.lacks for mistake in MISTAKES) >= 140  # which tell all
    assert len(set(names)) == len(names)
    assert len({mistake.message for mistake in MISTAKES}) > 0.8 * len(names)
    assert set(BY_JAX) <= set(names)


@pytest.mark.parametrize(
    ('message', 'lacks'),
    [
        ("Scalar('float32'): expected an object, got void; dropped", ['do']),
        ("Scalar('float32'): expected an object, got void; drop it first", []),
        ('expected a list, got Schedule: pass `[example]`', ['where']),
        ('example 3: expected float32[], got None; in Map', ['do']),
        ('example 3: got None; in Map', ['expected', 'do']),
        ("'NoneType' object is not iterable", ['expected', 'got', 'where', 'do']),
        ('expected `size` as int', ['got', 'do']),
        ('expected `size` as int, got a pass; taken', ['do']),
        ('unexpected key, forgot `size`; use one', ['expected', 'got']),
    ],
)
def test_a_grade_tells_what_is_missing(message: str, lacks: list[str]) -> None:
    assert missing(message) == lacks
    grades = ['good', 'fair', 'poor']
    assert grade(message) == grades[min(len(lacks), 2)]


def test_schedules_that_do_not_stack_print_their_capacities() -> None:
    model = jf.compile(jf.Map(jf.Scalar()) >> jf.Reduce(jnp.add))
    spec = model.schedule([[1]]).spec
    assert '\n' not in str(spec)
    assert len(repr(spec)) < 250
    assert repr(model.program) == 'Program(float32[], operations: 1)'
    assert 'while len(' in str(model.program)
