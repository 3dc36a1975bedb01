# SPDX-License-Identifier: Apache-2.0
"""The joining of corpora and other traced examples into one corpus."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from jfold.base.errors import expect
from jfold.data.adoption import structure_differences
from jfold.data.corpus import Corpus, adopt_corpus, join_corpora
from jfold.data.scheduler import Scheduler
from jfold.data.traced import Traced, graph_in
from jfold.scheduling.demands import demands
from jfold.scheduling.selections import select


def join(scheduler: Scheduler, parts: Iterable[Corpus | Traced]) -> Corpus:
    """Return one corpus of all examples in several parts, for `Model.join`.

    Raises:
      TypeError: `parts` is no iterable, or a part is neither `Corpus` nor `Traced`.
      ValueError: there is no part, or one was traced for another expression.
    """
    is_several = isinstance(parts, Iterable)
    expect('parts', parts, is_several, 'a list of what was traced', 'pass `[part]`')
    items = list(parts)
    for number, part in enumerate(items):
        _check(number, part, scheduler)
    if not items:
        raise ValueError('expected at least one corpus or Traced, got none')
    return join_corpora(scheduler, [_corpus(scheduler, part) for part in items])


def _check(number: int, part: object, scheduler: Scheduler) -> None:
    """Raise TypeError or ValueError unless a part was traced for this expression."""
    if not isinstance(part, Corpus | Traced):
        raise TypeError(
            f'part {number}: expected a corpus or what a tracer made, got '
            f'{type(part).__name__}: trace examples by `model.trace`'
        )
    if isinstance(part, Corpus):
        is_other = bool(structure_differences(scheduler.program, part.program))
    else:
        is_other = part.digest != scheduler.digest
    if is_other:
        raise ValueError(
            f'part {number}: expected examples traced for the expression of this '
            'model, got those of another'
        )


def _corpus(scheduler: Scheduler, part: Corpus | Traced) -> Corpus:
    """Return a part as a corpus for `scheduler`."""
    if isinstance(part, Corpus):
        return adopt_corpus(scheduler, part)
    graph = graph_in(part, scheduler.program)
    demanded = demands(select(scheduler.program, graph))
    return Corpus(scheduler, graph, demanded, np.arange(len(part)))
