# SPDX-License-Identifier: Apache-2.0
"""Mistakes in what is given as examples."""

from __future__ import annotations

import jax.numpy as jnp

import jfold as jf
from mistakes.common import (
    Mistake,
    linear,
    model_of,
    number,
    numbers,
    scheduled,
    vector,
)

summed = numbers >> jf.Reduce(jnp.add)

named = jf.Record({'x': number})

layered = number >> linear

MISTAKES = [
    Mistake(
        'one example, a dict',
        lambda: model_of(named).schedule({'x': 1}),
        'expected a sequence of examples, got dict: pass `[example]`',
        lacks='where',
    ),
    Mistake(
        'one example, a text',
        lambda: model_of(summed).schedule('12'),
        'expected a sequence of examples, got str: pass `[example]`',
        lacks='where',
    ),
    Mistake(
        'a set of examples',
        lambda: model_of(number).schedule({1, 2}),
        'expected a sequence of examples, got set: it has no order, pass '
        '`sorted(examples)`',
        lacks='where',
    ),
    Mistake(
        'one example, a number',
        lambda: model_of(number).schedule(3),
        'expected a sequence of examples, got int: pass `[example]`',
        lacks='where',
    ),
    Mistake(
        'no examples at all',
        lambda: model_of(number).schedule(None),
        'expected a sequence of examples, got NoneType: pass `[example]`',
        lacks='where',
    ),
    Mistake(
        'a schedule for examples',
        lambda: model_of(number).schedule(scheduled(number, 1)),
        'expected a sequence of examples, got Schedule: pass `[example]`',
        lacks='where',
    ),
    Mistake(
        'a corpus for examples',
        lambda: model_of(number).schedule(model_of(number).trace([1])),
        'expected a sequence of examples, got Corpus: pass `[example]`',
        lacks='where',
    ),
    Mistake(
        'traced for another model',
        lambda: model_of(number).schedule(model_of(vector).tracer()([[1, 2, 3]])),
        'expected examples traced for this expression, got those of another: '
        'trace them with `model.tracer()` of the model that schedules them',
        error=ValueError,
        lacks='where',
    ),
    Mistake(
        'more examples than rows',
        lambda: scheduled(number, 1, 2, 3, size=2),
        'expected at most 2 examples, as `size` says, got 3',
        error=ValueError,
        lacks='do',
    ),
    Mistake(
        'a size that is no int',
        lambda: scheduled(number, 1, size=2.0),
        'expected `size` as int, got 2.0; write `size=2`',
    ),
    Mistake(
        'a size that is a bool',
        lambda: scheduled(number, 1, size=True),
        'expected `size` as int, got True',
        lacks='do',
    ),
    Mistake(
        'a negative number of rows',
        lambda: scheduled(number, 1, size=-1),
        'expected `size` of at least 0, got -1; write `size=0` or more',
        error=ValueError,
    ),
    Mistake(
        'trace of one dict',
        lambda: model_of(named).trace({'x': 1}),
        'expected a sequence of examples, got dict: pass `[example]`',
        lacks='where',
    ),
]
