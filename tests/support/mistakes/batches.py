# SPDX-License-Identifier: Apache-2.0
"""Mistakes with runs over batches."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

import jfold as jf
from mistakes.common import number, numbers

LISTS = [[1], [1, 2], [1, 2, 3]]

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


TABLE = r"""
>>> batches({'a': [1]})
TypeError: expected a corpus, a sequence or a stream of examples as `source`, got dict:
pass `[example]` for a single one
>>> batches({(1,), (2,)})
TypeError: expected a corpus, a sequence or a stream of examples as `source`, got set:
it has no order, pass `sorted(source)`
>>> batches(prefetch=2**63)
ValueError: expected `prefetch` of at most 9,223,372,036,854,775,807, got
9,223,372,036,854,775,808
>>> batches(None)
TypeError: expected a corpus, a sequence or a stream of examples as `source`, got
NoneType: pass `[example]` for a single one
>>> other.batches(corpus(), 2)
ValueError: expected a corpus of the expression of this model, got one of another, with
`operation add(float32, float32) -> float32, a sum` instead of nothing; `data float32[]`
instead of `data float32[3]` in Vector(3, 'float32'). Trace the examples again with
`model.trace`
>>> batches(shuffle=True)
TypeError: expected one PRNG key, an int seed or None as `shuffle`, got True:
`shuffle=jax.random.key(0)`
>>> batches(shuffle=jax.random.split(jax.random.key(0)))
TypeError: expected one PRNG key, an int seed or None as `shuffle`, got …:
`shuffle=jax.random.key(0)`
>>> batches(shuffle=-1)
ValueError: expected a seed from 0 to 2**64 - 1 as `shuffle`, got -1
>>> batches(drop_remainder='yes')
TypeError: expected `drop_remainder` as bool, got 'yes'
>>> batches(stream(), shuffle=0)
ValueError: expected a corpus or a sequence to `shuffle`, got a stream, which has its
own order: pass `list(stream)`, or shuffle where the stream is made
>>> batches(stream(), epochs=2)
ValueError: expected `epochs=1` for a stream, which is read once, got 2: pass
`list(stream)`, or a stream that repeats itself
>>> batches(max_nodes=10)
ValueError: expected a corpus as source for `max_nodes`, since nothing else knows how
many operations an example runs: make one by `model.trace(examples)`
>>> batches(corpus(), max_nodes=1)
ValueError: expected examples of at most 1 operations, as `max_nodes` says, got 2 in
example 2: raise `max_nodes`, or leave it out
>>> batches([], epochs=None)
ValueError: expected `source` of at least one batch, for `epochs=None`, got 0 examples,
where `batch_size=2` and `drop_remainder=False`
>>> len(batches(stream()))
TypeError: expected a sequence as source and a number of `epochs`, got a stream: batches
of that have no length
>>> batches().capacities
ValueError: expected a corpus as source and a number of `epochs`, got list and 1: only
of these is known beforehand what they need
>>> restored(None)
TypeError: expected `state` as a dict, which `Batches.state` returns, got NoneType
>>> restored({'step': 3})
ValueError: expected a state of arrays of shapes {'key': (5,), 'format': (), 'examples':
(), 'batch_size': (), 'max_nodes': (), 'drop_remainder': (), 'epoch': (), 'position':
(), 'batches': (), 'skipped': ()}, got {'step': ()}: pass what `Batches.state` returned
>>> restored(batches(size=1).state())
ValueError: expected `state` of batches made with the same arguments, got one with
batch_size 1 instead of 2: make them with these
>>> with batches(stream(), prefetch=0) as run:
...     next(run)
...     run.restore(run.state())
ValueError: expected a stream that can be read from its beginning, got generator, which
has been begun: call `Model.batches` with a fresh one, and restore that
>>> with batches(stream(), prefetch=0) as run:
...     list(run)
...     state = run.state()
... with batches(iter([[1]]), prefetch=0) as run:
...     run.restore(state)
...     next(run)
ValueError: expected a stream of at least 3 examples, which the restored state has
behind it, got one of 1: pass it from its beginning
>>> bad = jf.compile(number).batches([None] * 2, 2, skip_errors=True, epochs=None)
... with bad as run:
...     next(run)
ValueError: expected examples that fit the model, got 4 in a row that do not; the last:
example 1 of the source: expected float32[], got None; in Scalar('float32')
"""
