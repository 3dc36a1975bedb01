# SPDX-License-Identifier: Apache-2.0
"""The same mistakes in `trace`, `batches`, a tracer and `eval`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jfold as jf
from mistakes.common import (
    InputMistake,
    Mistake,
    linear,
    model_of,
    number,
    numbers,
    vector,
)
from mistakes.structure import inverse, named, signs


def evaluated(block: Any, example: Any, *params: Any) -> Any:
    return model_of(block).eval(example, *params)


def batch_of(block: Any, *examples: Any, **options: Any) -> jf.Batch:
    with model_of(block).batches(list(examples), 2, **options) as batches:
        return next(batches)


summed = numbers >> jf.Reduce(jnp.add)

layered = number >> linear

MISTAKES = [
    InputMistake(
        'a bad example traced',
        lambda: model_of(summed).trace([[1], ['x']]),
        "example 1, at [0]: expected float32[], got 'x'; in "
        "Pipe[0].Map.Scalar('float32')"
        '\nWhat to do: make a number of it before, as by `InputTransform(float)`',
    ),
    InputMistake(
        'a bad example of a run',
        lambda: batch_of(summed, [1], ['x']),
        "example 1 of the source, at [0]: expected float32[], got 'x'; in "
        "Pipe[0].Map.Scalar('float32')"
        '\nWhat to do: make a number of it before, as by `InputTransform(float)`',
    ),
    InputMistake(
        'a bad example, no thread',
        lambda: batch_of(summed, [1], 3, prefetch=0),
        'example 1 of the source: expected something iterable, got 3: '
        "TypeError: 'int' object is not iterable; in "
        "Pipe[0].Map(Scalar('float32'))",
        lacks='do',
    ),
    Mistake(
        'none but bad examples',
        lambda: batch_of(number, None, None, skip_errors=True, epochs=None),
        'expected examples that fit the model, got 4 in a row that do not; the '
        'last: example 1 of the source: expected float32[], got None; in '
        "Scalar('float32')",
        error=ValueError,
        lacks='do',
    ),
    InputMistake(
        'a bad example in a worker',
        lambda: model_of(summed).tracer()([[1], ['x']]),
        "example 1, at [0]: expected float32[], got 'x'; in "
        "Pipe[0].Map.Scalar('float32')"
        '\nWhat to do: make a number of it before, as by `InputTransform(float)`',
    ),
    InputMistake(
        'eval of None for a number',
        lambda: evaluated(number, None),
        "example 0: expected float32[], got None; in Scalar('float32')\nWhat to "
        'do: put it in an Optional, which takes `None`',
    ),
    InputMistake(
        'eval of a vector too short',
        lambda: evaluated(vector, [1, 2]),
        'example 0: expected float32[3], got [1, 2] (list) of shape (2,); in '
        "Vector(3, 'float32')\nWhat to do: write `Map(Scalar())` for any number "
        'of them, `Vector(n)` for n',
    ),
    InputMistake(
        'eval of a number for a sequence',
        lambda: evaluated(summed, 3),
        "example 0: expected something iterable, got 3: TypeError: 'int' object is not "
        "iterable; in Pipe[0].Map(Scalar('float32'))",
        lacks='do',
    ),
    InputMistake(
        'eval of a missing key',
        lambda: evaluated(named, {'y': 1}),
        "example 0: expected an item 'x', got {'y': 1} (dict): KeyError: 'x'; "
        "in Record({'x': Scalar('float32')})\nWhat to do: put the block in an "
        'Optional, if a field may be missing',
    ),
    InputMistake(
        'eval of an unknown case',
        lambda: evaluated(signs, 'c'),
        "example 0: expected one of the keys 'a', 'b', got 'c'; in "
        "OneOf(function, {'a': Zeros(float32[]), 'b': Zeros(float3...\nWhat to "
        'do: give it a case, or pass `default=`',
    ),
    InputMistake(
        'eval of a transform that fails',
        lambda: evaluated(inverse, 0),
        'example 0: expected what its function takes, got 0: ZeroDivisionError: '
        'division by zero; in Pipe[0].InputTransform(reciprocal)',
        lacks='do',
    ),
    Mistake(
        'eval without parameters',
        lambda: evaluated(layered, 3),
        "expected parameters for layer 'linear', got those of []; `model.init(key)` "
        'makes them',
        lacks='do',
    ),
    Mistake(
        'eval of unlike types',
        lambda: (number >> number).eval(3),
        "Pipe[1].Scalar('float32'): expected an object, got float32[]; put it "
        'before any block that gives tensors',
    ),
]
