# SPDX-License-Identifier: Apache-2.0
"""Mistakes with runs over batches."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

import jfold as jf
from mistakes.common import LISTS, Mistake, numbers

summed = jf.compile(numbers >> jf.Reduce(jnp.add))

other = jf.compile(jf.Vector(3))


@functools.cache
def corpus() -> jf.Corpus:
    return summed.trace(LISTS)


def batches(source: Any = LISTS, size: Any = 2, **options: Any) -> jf.Batches:
    return summed.batches(source, size, **options)


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


MISTAKES = [
    Mistake(
        'batches of no examples',
        lambda: batches(size=0),
        'expected `batch_size` of at least 1, got 0; write `batch_size=1` or more',
        error=ValueError,
    ),
    Mistake(
        'a bool for a batch size',
        lambda: batches(size=True),
        'expected `batch_size` as int, got True',
        lacks='do',
    ),
    Mistake(
        'a float for a batch size',
        lambda: batches(size=2.0),
        'expected `batch_size` as int, got 2.0; write `batch_size=2`',
    ),
    Mistake(
        'batches of a dict',
        lambda: batches({'a': [1]}),
        'expected a corpus, a sequence or a stream of examples as `source`, '
        'got dict: pass `[example]` for a single one',
    ),
    Mistake(
        'batches of nothing',
        lambda: batches(None),
        'expected a corpus, a sequence or a stream of examples as `source`, '
        'got NoneType: pass `[example]` for a single one',
    ),
    Mistake(
        'the corpus of another model',
        lambda: other.batches(corpus(), 2),
        'expected a corpus of the expression of this model, got one of '
        'another, with `operation add(float32, float32) -> float32, a sum` '
        'instead of nothing; `data float32[]` instead of `data float32[3]` in '
        "Vector(3, 'float32'). Trace the examples again with `model.trace`",
        error=ValueError,
    ),
    Mistake(
        'shuffle as a bool',
        lambda: batches(shuffle=True),
        'expected one PRNG key, an int seed or None as `shuffle`, got True: '
        '`shuffle=jax.random.key(0)`',
        lacks='do',
    ),
    Mistake(
        'several keys to shuffle',
        lambda: batches(shuffle=jax.random.split(jax.random.key(0))),
        'expected one PRNG key, an int seed or None as `shuffle`, got …: '
        '`shuffle=jax.random.key(0)`',
        lacks='do',
    ),
    Mistake(
        'a negative seed',
        lambda: batches(shuffle=-1),
        'expected a seed from 0 to 2**64 - 1 as `shuffle`, got -1',
        error=ValueError,
        lacks='do',
    ),
    Mistake(
        'no epochs',
        lambda: batches(epochs=0),
        'expected `epochs` of at least 1, got 0; write `epochs=1` or more',
        error=ValueError,
    ),
    Mistake(
        'a negative prefetch',
        lambda: batches(prefetch=-1),
        'expected `prefetch` of at least 0, got -1; write `prefetch=0` or more',
        error=ValueError,
    ),
    Mistake(
        'text for a flag',
        lambda: batches(drop_remainder='yes'),
        "expected `drop_remainder` as bool, got 'yes'",
        lacks='do',
    ),
    Mistake(
        'a stream shuffled',
        lambda: batches(stream(), shuffle=0),
        'expected a corpus or a sequence to `shuffle`, got a stream, which has '
        'its own order: pass `list(stream)`, or shuffle where the stream is '
        'made',
        error=ValueError,
    ),
    Mistake(
        'a stream read twice',
        lambda: batches(stream(), epochs=2),
        'expected `epochs=1` for a stream, which is read once, got 2: pass '
        '`list(stream)`, or a stream that repeats itself',
        error=ValueError,
        lacks='where',
    ),
    Mistake(
        'a limit of nodes for a list',
        lambda: batches(max_nodes=10),
        'expected a corpus as source for `max_nodes`, since nothing else knows '
        'how many operations an example runs: make one by '
        '`model.trace(examples)`',
        error=ValueError,
        lacks='got',
    ),
    Mistake(
        'a limit of nodes too low',
        lambda: batches(corpus(), max_nodes=1),
        'expected examples of at most 1 operations, as `max_nodes` says, got 2 '
        'in example 2: raise `max_nodes`, or leave it out',
        error=ValueError,
    ),
    Mistake(
        'endless epochs of nothing',
        lambda: batches([], epochs=None),
        'expected `source` of at least one batch, for `epochs=None`, got 0 '
        'examples, where `batch_size=2` and `drop_remainder=False`',
        error=ValueError,
        lacks='do',
    ),
    Mistake(
        'the length of a stream',
        lambda: len(batches(stream())),
        'expected a sequence as source and a number of `epochs`, got a stream: '
        'batches of that have no length',
        lacks='do',
    ),
    Mistake(
        'capacities of a list',
        lambda: batches().capacities,
        'expected a corpus as source and a number of `epochs`, got list and 1: '
        'only of these is known beforehand what they need',
        error=ValueError,
        lacks='do',
    ),
    Mistake(
        'no state to restore',
        lambda: restored(None),
        'expected `state` as a dict, which `Batches.state` returns, got NoneType',
        lacks='do',
    ),
    Mistake(
        'a state of something else',
        lambda: restored({'step': 3}),
        "expected a state of arrays of shapes {'key': (5,), 'format': (), "
        "'examples': (), 'batch_size': (), 'max_nodes': (), 'drop_remainder': "
        "(), 'epoch': (), 'position': (), 'batches': (), 'skipped': ()}, got "
        "{'step': ()}: pass what `Batches.state` returned",
        error=ValueError,
        lacks='where',
    ),
    Mistake(
        'the state of another run',
        lambda: restored(batches(size=1).state()),
        'expected `state` of batches made with the same arguments, got one '
        'with batch_size 1 instead of 2: make them with these',
        error=ValueError,
    ),
    Mistake(
        'a begun stream restored',
        restored_when_begun,
        'expected a stream that can be read from its beginning, got generator, '
        'which has been begun: call `Model.batches` with a fresh one, and '
        'restore that',
        error=ValueError,
        lacks='where',
    ),
    Mistake(
        'a stream too short',
        restored_of_a_short_stream,
        'expected a stream of at least 3 examples, which the restored state '
        'has behind it, got one of 1: pass it from its beginning',
        error=ValueError,
        lacks='where',
    ),
]
