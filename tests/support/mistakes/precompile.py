# SPDX-License-Identifier: Apache-2.0
"""Mistakes with steps compiled ahead of time."""

from __future__ import annotations

import flax.linen as nn

import jfold as jf
from mistakes.batches import corpus, other, summed
from mistakes.common import Mistake
from mistakes.corpora import chosen

drawing = jf.compile(jf.Vector(3) >> jf.Function(nn.Dropout(0.5, deterministic=False)))


def precompiled() -> jf.CompiledStep:
    return summed.precompile(summed.apply, {}, corpus().capacities(2))


MISTAKES = [
    Mistake(
        'precompile without a capacity',
        lambda: summed.precompile(summed.apply, {}),
        'expected a `Capacity` among the arguments, in place of the schedule, '
        'got none: call `model.precompile(step, params, '
        'corpus.capacities(batch_size))`',
    ),
    Mistake(
        'precompile of a schedule',
        lambda: summed.precompile(summed.apply, {}, chosen([0])),
        'expected a `Capacity` among the arguments, in place of the schedule, '
        'got none: call `model.precompile(step, params, '
        'corpus.capacities(batch_size))`',
    ),
    Mistake(
        'precompile with a bool that decides what is compiled',
        lambda: drawing.precompile(
            drawing.apply,
            {},
            drawing.trace([[1, 2, 3]]).capacities(1),
            deterministic=True,
        ),
        'expected `deterministic` as a bool, not traced, got …: pass '
        '`functools.partial(model.apply, deterministic=True)`',
    ),
    Mistake(
        'the capacity of another model',
        lambda: other.precompile(other.apply, {}, corpus().capacities(2)),
        'expected a `Capacity` of this model, with numbers of types, '
        'operations and metrics [1, 0, 0], got [1, 1, 0]: take it from a '
        'corpus that `model.trace` returns',
        error=ValueError,
    ),
    Mistake(
        'a step of another size',
        lambda: precompiled()({}, chosen([0])),
        'expected a schedule of 2 rows of results, for which the step was '
        'compiled, got one of 1: make it with `size=2`',
        error=ValueError,
        lacks='where',
    ),
    Mistake(
        'a step of another model',
        lambda: precompiled()({}, other.schedule([[1, 2, 3]] * 2)),
        'expected `schedule` of the model that compiled the step, got one of '
        'another: make it by the first',
        error=ValueError,
    ),
]
