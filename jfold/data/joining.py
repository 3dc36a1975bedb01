# SPDX-License-Identifier: Apache-2.0
"""Examples that were traced apart, put together."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from jfold.data.adoption import differing
from jfold.data.corpus import Corpus, joined, suited
from jfold.data.scheduling import Scheduling
from jfold.data.traced import Traced, graph_in
from jfold.errors import expect
from jfold.planning.demands import demands
from jfold.planning.uses import make_uses


def join(model: Scheduling, parts: Iterable[Corpus | Traced], digest: str) -> Corpus:
    """See `Model.join`; `digest` is that of the model's program."""
    is_several = isinstance(parts, Iterable)
    expect('parts', parts, is_several, 'a list of what was traced', 'pass `[part]`')
    found = list(parts)
    for number, part in enumerate(found):
        _check(number, part, model, digest)
    if not found:
        raise ValueError('expected at least one corpus or Traced, got none')
    made = [_corpus(model, part) for part in found]
    return joined(model, made)


def _check(number: int, part: object, model: Scheduling, digest: str) -> None:
    if not isinstance(part, Corpus | Traced):
        raise TypeError(
            f'part {number}: expected a corpus or what a tracer made, got '
            f'{type(part).__name__}: trace examples by `model.trace`'
        )
    if isinstance(part, Corpus):
        is_other = bool(differing(model.program, part.model.program))
    else:
        is_other = part.digest != digest
    if is_other:
        raise ValueError(
            f'part {number}: expected examples traced for the expression of this '
            'model, got those of another'
        )


def _corpus(model: Scheduling, part: Corpus | Traced) -> Corpus:
    if isinstance(part, Corpus):
        return suited(model, part)
    graph = graph_in(part, model.program)
    demanded = demands(make_uses(model.program, graph))
    return Corpus(model, graph, demanded, np.arange(len(part)))
