# SPDX-License-Identifier: Apache-2.0
"""Mistakes with runs over batches."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

import jfold as jf
from mistakes.common import OTHER_CORPUS, Mistake, ValueMistake, number, numbers

LISTS = [[1], [1, 2], [1, 2, 3]]

summed = jf.compile(numbers >> jf.Reduce(jnp.add))
other = jf.compile(jf.Vector(3))


@functools.cache
def corpus() -> jf.Corpus:
    return summed.trace(LISTS)


def batches(source: Any = LISTS, size: Any = 2, **options: Any) -> jf.Batches:
    return summed.batches(source, size, **options)


def none_but_bad() -> None:
    bad: Any = jf.compile(number).batches([None] * 2, 2, skip_errors=True, epochs=None)
    with bad as run:
        next(run)


def stream() -> Iterator[Any]:
    yield from LISTS


def restored(state: Any, **options: Any) -> None:
    with batches(**options) as run:
        run.restore(state)


def restored_when_begun() -> None:
    with batches(stream(), prefetch=0) as run:
        next(run)
        run.restore(run.state())


def restored_of_a_short_stream() -> None:
    with batches(stream(), prefetch=0) as run:
        list(run)
        state = run.state()
    with batches(iter([[1]]), prefetch=0) as run:
        run.restore(state)
        next(run)


NO_SOURCE = 'expected a corpus, a sequence or a stream of examples as `source`, got'
ONE_ALONE = ': pass `[example]` for a single one'
NO_KEY = 'expected one PRNG key, an int seed or None as `shuffle`, got'

MISTAKES: dict[str, Mistake] = {
    'batches of a dict': Mistake(
        lambda: batches({'a': [1]}), f'{NO_SOURCE} dict{ONE_ALONE}'
    ),
    'batches of nothing': Mistake(
        lambda: batches(None), f'{NO_SOURCE} NoneType{ONE_ALONE}'
    ),
    'the corpus of another model': ValueMistake(
        lambda: other.batches(corpus(), 2), OTHER_CORPUS
    ),
    'shuffle as a bool': Mistake(
        lambda: batches(shuffle=True), f'{NO_KEY} True: `shuffle=jax.random.key(0)`'
    ),
    'several keys to shuffle': Mistake(
        lambda: batches(shuffle=jax.random.split(jax.random.key(0))),
        f'{NO_KEY} …: `shuffle=jax.random.key(0)`',
    ),
    'a negative seed': ValueMistake(
        lambda: batches(shuffle=-1),
        'expected a seed from 0 to 2**64 - 1 as `shuffle`, got -1',
    ),
    'text for a flag': Mistake(
        lambda: batches(drop_remainder='yes'),
        "expected `drop_remainder` as bool, got 'yes'",
    ),
    'a stream shuffled': ValueMistake(
        lambda: batches(stream(), shuffle=0),
        'expected a corpus or a sequence to `shuffle`, got a stream, which has its '
        'own order: pass `list(stream)`, or shuffle where the stream is made',
    ),
    'a stream read twice': ValueMistake(
        lambda: batches(stream(), epochs=2),
        'expected `epochs=1` for a stream, which is read once, got 2: pass '
        '`list(stream)`, or a stream that repeats itself',
    ),
    'a limit of nodes for a list': ValueMistake(
        lambda: batches(max_nodes=10),
        'expected a corpus as source for `max_nodes`, since nothing else knows how '
        'many operations an example runs: make one by `model.trace(examples)`',
    ),
    'a limit of nodes too low': ValueMistake(
        lambda: batches(corpus(), max_nodes=1),
        'expected examples of at most 1 operations, as `max_nodes` says, got 2 in '
        'example 2: raise `max_nodes`, or leave it out',
    ),
    'endless epochs of nothing': ValueMistake(
        lambda: batches([], epochs=None),
        'expected `source` of at least one batch, for `epochs=None`, got 0 examples, '
        'where `batch_size=2` and `drop_remainder=False`',
    ),
    'the length of a stream': Mistake(
        lambda: len(batches(stream())),
        'expected a sequence as source and a number of `epochs`, got a stream: '
        'batches of that have no length',
    ),
    'capacities of a list': ValueMistake(
        lambda: batches().capacities,
        'expected a corpus as source and a number of `epochs`, got list and 1: only '
        'of these is known beforehand what they need',
    ),
    'no state to restore': Mistake(
        lambda: restored(None),
        'expected `state` as a dict, which `Batches.state` returns, got NoneType',
    ),
    'a state of something else': ValueMistake(
        lambda: restored({'step': 3}),
        "expected a state of arrays of shapes {'key': (5,), 'format': (), 'examples': "
        "(), 'batch_size': (), 'max_nodes': (), 'drop_remainder': (), 'epoch': (), "
        "'position': (), 'batches': (), 'skipped': ()}, got {'step': ()}: pass what "
        '`Batches.state` returned',
    ),
    'the state of another run': ValueMistake(
        lambda: restored(batches(size=1).state()),
        'expected `state` of batches made with the same arguments, got one with '
        'batch_size 1 instead of 2: make them with these',
    ),
    'a begun stream restored': ValueMistake(
        restored_when_begun,
        'expected a stream that can be read from its beginning, got generator, which '
        'has been begun: call `Model.batches` with a fresh one, and restore that',
    ),
    'a stream too short': ValueMistake(
        restored_of_a_short_stream,
        'expected a stream of at least 3 examples, which the restored state has '
        'behind it, got one of 1: pass it from its beginning',
    ),
    'none but bad examples': ValueMistake(
        none_but_bad,
        'expected examples that fit the model, got 4 in a row that do not; the last: '
        "example 1 of the source: expected float32[], got None; in Scalar('float32')",
    ),
}
