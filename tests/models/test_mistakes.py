# SPDX-License-Identifier: Apache-2.0
"""An error for each mistake: its message, what that tells, and a short traceback."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from meshes import over_devices
from mistakes import (
    apply,
    arguments,
    batches,
    corpora,
    examples,
    functions,
    lazy,
    wiring,
)
from mistakes.common import OPEN, lines_beside, missing, model_of, modules, text_of

import jfold as jf

TABLES = apply, arguments, batches, corpora, examples, functions, lazy, wiring
MISTAKES = {k: mistake for table in TABLES for k, mistake in table.MISTAKES.items()}
# JAX raises these in a function of its own, with jfold nowhere on the stack.
BY_JAX = 'schedules that do not stack', 'schedules of two models stacked'
MOST_FRAMES, MOST_LINES = 3, 15


def check(provoke: Callable[[], Any], kind: type[Exception], message: str) -> Any:
    """An error is of a class, says this and enough; returns it."""
    with pytest.raises(kind) as caught:
        provoke()
    text = text_of(caught.value)
    pattern = r'[\s\S]*'.join(map(re.escape, message.split(OPEN)))
    assert caught.type is kind
    assert re.fullmatch(pattern, text), text
    assert len(missing(text)) <= 1
    return caught.value


def is_short(error: Exception) -> None:
    """A traceback has few frames of ours, and few lines beside those of users."""
    ours = [x for x in modules(error) if x.partition('.')[0] in ('jfold', 'jax')]
    assert len(ours) <= MOST_FRAMES, ours
    assert len(lines_beside(error)) <= MOST_LINES, lines_beside(error)


@pytest.mark.parametrize('name', MISTAKES)
def test_the_error_of_a_mistake(name: str) -> None:
    mistake = MISTAKES[name]
    error = check(mistake.provoke, mistake.error, mistake.message)
    if name in BY_JAX:
        assert not any(name.startswith('jfold') for name in modules(error))
        assert len(text_of(error)) < 1800
    else:
        is_short(error)


def batch_of(model: jf.Model, examples: list[Any], **options: Any) -> None:
    with model.batches(examples, len(examples), **options) as batches:
        next(batches)


# What reads examples, and how it says which is wrong.
READERS: dict[str, tuple[Callable[[jf.Model, list[Any]], Any], str]] = {
    'trace': (jf.Model.trace, r'example \1'),
    'a tracer': (lambda model, examples: model.tracer()(examples), r'example \1'),
    'batches': (batch_of, r'example \1 of the source'),
    'batches without a thread': (
        functools.partial(batch_of, prefetch=0),
        r'example \1 of the source',
    ),
    'shards': (
        lambda model, examples: model.schedule(examples, sharding=over_devices()),
        r'example \1',
    ),
    'eval': (lambda model, examples: model.eval(examples[-1]), 'example 0'),
}


@pytest.mark.parametrize('reader', READERS)
def test_whatever_reads_examples_says_the_same(reader: str) -> None:
    read, which = READERS[reader]
    wrong = [x for x in MISTAKES.values() if x.error is jf.InputError]
    scheduled = [x for x in wrong if isinstance(x.provoke, functools.partial)]
    assert len(scheduled) >= 40
    for mistake in scheduled:
        block, *examples = mistake.provoke.args
        message = re.sub(r'^example (\d)', which, mistake.message)
        provoke = functools.partial(read, model_of(block), examples)
        is_short(check(provoke, jf.InputError, message))


def test_the_table() -> None:
    assert len(MISTAKES) == sum(len(table.MISTAKES) for table in TABLES) >= 363
    assert len({mistake.message for mistake in MISTAKES.values()}) >= 340
    # Which tell all.
    assert sum(not missing(x.message) for x in MISTAKES.values()) >= 230
    assert set(BY_JAX) <= set(MISTAKES)


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
def test_what_a_message_is_without(message: str, lacks: list[str]) -> None:
    assert missing(message) == lacks


def test_schedules_that_do_not_stack_print_their_capacities() -> None:
    model = jf.compile(jf.Map(jf.Scalar()) >> jf.Reduce(jnp.add))
    spec = model.schedule([[1]]).spec
    assert '\n' not in str(spec)
    assert len(repr(spec)) < 250
    assert repr(model.program) == 'Program(float32[], operations: 1)'
    assert 'while len(' in str(model.program)
