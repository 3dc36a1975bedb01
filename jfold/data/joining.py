# SPDX-License-Identifier: Apache-2.0
"""Examples that were traced apart, put together."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from jfold.data.corpus import Corpus, Scheduler
from jfold.data.tracer import Traced, make_digest
from jfold.graph import concatenate
from jfold.planning.demands import demands, join_demands
from jfold.planning.uses import make_uses


def join(model: Scheduler, parts: Iterable[Corpus | Traced], digest: str) -> Corpus:
    """See `Model.join`; `digest` is that of the model's program."""
    found = list(parts)
    for number, part in enumerate(found):
        _check(number, part, model, digest)
    if not found:
        raise ValueError('expected at least one corpus or Traced, got none')
    made = [_corpus(model, part) for part in found]
    return _joined(model, made)


def _check(number: int, part: object, model: Scheduler, digest: str) -> None:
    if not isinstance(part, Corpus | Traced):
        raise TypeError(
            f'part {number}: expected a corpus or what a tracer made, got '
            f'{type(part).__name__}: trace examples by `model.trace`'
        )
    if isinstance(part, Corpus) and part.model.program is model.program:
        return
    own = part.digest if isinstance(part, Traced) else make_digest(part.model.program)
    if own != digest:
        raise ValueError(
            f'part {number}: expected examples traced for the expression of this '
            'model, got those of another'
        )


def _corpus(model: Scheduler, part: Corpus | Traced) -> Corpus:
    if isinstance(part, Corpus):
        return part
    demanded = demands(make_uses(model.program, part.graph))
    return Corpus(model, part.graph, demanded, np.arange(len(part)))


def _joined(model: Scheduler, parts: Sequence[Corpus]) -> Corpus:
    """The examples of all, numbered as if given one part after another."""
    given = (len(part) + len(part.skipped) for part in parts)
    first = list(itertools.accumulate(given, initial=0))
    return Corpus(
        model,
        concatenate([part.graph for part in parts]),
        join_demands([part.demands for part in parts]),
        np.concatenate([a + x.source for a, x in zip(first, parts, strict=False)]),
        tuple(
            (a + at, text)
            for a, part in zip(first, parts, strict=False)
            for at, text in part.skipped
        ),
    )
