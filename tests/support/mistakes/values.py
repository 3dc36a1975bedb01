# SPDX-License-Identifier: Apache-2.0
"""Mistakes in values that are to be tensors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import jfold as jf
from mistakes.common import InputMistake, number, numbers, scheduled, vector

summed = numbers >> jf.Sum()

whole = jf.Scalar('int32')

byte = jf.Scalar('int8')

zeros = jf.Map(jf.Optional(whole) >> jf.Function(jnp.float32)) >> jf.Sum()

MISTAKES = [
    InputMistake(
        'None for a number',
        lambda: scheduled(number, 1, None),
        "example 1: expected float32[], got None; in Scalar('float32')"
        '\nWhat to do: put it in an Optional, which takes `None`',
    ),
    InputMistake(
        'text for a number',
        lambda: scheduled(number, '3.5'),
        "example 0: expected float32[], got '3.5'; in Scalar('float32')"
        '\nWhat to do: make a number of it before, as by `InputTransform(float)`',
    ),
    InputMistake(
        'a list for a number',
        lambda: scheduled(number, [1.0]),
        'example 0: expected float32[], got [1.0] (list) of shape (1,); in '
        "Scalar('float32')"
        '\nWhat to do: write `Map(Scalar())` for any number of them, `Vector(n)` for n',
    ),
    InputMistake(
        'a dict for a number',
        lambda: scheduled(number, {'x': 1}),
        "example 0: expected float32[], got {'x': 1} (dict); in Scalar('float32')",
        lacks='do',
    ),
    InputMistake(
        'a float for an int',
        lambda: scheduled(whole, 3.7),
        'example 0: expected int32[], got 3.7, which int32 cannot hold; in '
        "Scalar('int32')",
        lacks='do',
    ),
    InputMistake(
        'an int too large',
        lambda: scheduled(byte, 300),
        'example 0: expected int8[], got 300, which int8 cannot hold; in '
        "Scalar('int8')",
        lacks='do',
    ),
    InputMistake(
        'an int too long for any',
        lambda: scheduled(whole, 10**30),
        'example 0: expected int32[], got 1000000000000000000000000000000; in '
        "Scalar('int32')",
        lacks='do',
    ),
    InputMistake(
        'a float too large',
        lambda: scheduled(number, 1e300),
        'example 0: expected float32[], got 1e+300, which float32 cannot hold; '
        "in Scalar('float32')",
        lacks='do',
    ),
    InputMistake(
        'an int that floats lack',
        lambda: scheduled(number, 2**24 + 1),
        'example 0: expected float32[], got 16777217, which float32 cannot hold; say '
        "dtype='int32' for one that must not change, or write `InputTransform(float)` "
        "before to round it; in Scalar('float32')",
    ),
    InputMistake(
        'a complex number',
        lambda: scheduled(number, 1j),
        'example 0: expected float32[], got 1j (complex), which float32 cannot '
        "hold; in Scalar('float32')",
        lacks='do',
    ),
    InputMistake(
        'a vector too long',
        lambda: scheduled(vector, [1, 2, 3, 4]),
        'example 0: expected float32[3], got [1, 2, 3, 4] (list) of shape '
        "(4,); in Vector(3, 'float32')"
        '\nWhat to do: write `Map(Scalar())` for any number of them, `Vector(n)` for n',
    ),
    InputMistake(
        'a scalar for a vector',
        lambda: scheduled(vector, 1.0),
        "example 0: expected float32[3], got 1.0 of shape (); in Vector(3, 'float32')"
        '\nWhat to do: write `Scalar()` for a number, `[example]` for one example',
    ),
    InputMistake(
        'a matrix for a vector',
        lambda: scheduled(vector, np.ones((1, 3))),
        'example 0: expected float32[3], got array([[1., 1., 1.]]) (ndarray) '
        "of shape (1, 3); in Vector(3, 'float32')"
        '\nWhat to do: write `Tensor([1, 3])` for this shape',
    ),
    InputMistake(
        'None in a vector',
        lambda: scheduled(vector, [1, None, 3]),
        'example 0: expected float32[3], got [1, None, 3] (list); in Vector(3, '
        "'float32')"
        '\nWhat to do: write `Map(Optional(Scalar()))`, where some are `None`',
    ),
    InputMistake(
        'a ragged matrix',
        lambda: scheduled(jf.Tensor((2, 2)), [[1, 2], [3]]),
        'example 0: expected float32[2,2], got [[1, 2], [3]] (list), which is '
        "ragged; in Tensor((2, 2), 'float32')"
        '\nWhat to do: write `Map(Map(Scalar()))` for lists of any length in a list',
    ),
    InputMistake(
        'a set for a vector',
        lambda: scheduled(vector, {1, 2, 3}),
        "example 0: expected float32[3], got {1, 2, 3} (set); in Vector(3, 'float32')",
        lacks='do',
    ),
    InputMistake(
        'a tracer for a number',
        lambda: jax.jit(lambda x: scheduled(number, x))(1.0),
        "example 0: expected float32[], got …; in Scalar('float32')",
        lacks='do',
    ),
    InputMistake(
        'a value in the depth',
        lambda: scheduled(
            jf.Map({'x': summed}) >> jf.Map(jf.GetItem(0)) >> jf.Sum(),
            [{'x': []}, {'x': [1, 'two']}],
        ),
        "example 0, at [1]['x'][1]: expected float32[], got 'two'; in "
        "Pipe[0].Map.Record['x'].Pipe[0].Map.Scalar('float32')"
        '\nWhat to do: make a number of it before, as by `InputTransform(float)`',
    ),
    InputMistake(
        'None in a sequence',
        lambda: scheduled(summed, [1], [2, None]),
        'example 1, at [1]: expected float32[], got None; in '
        "Pipe[0].Map.Scalar('float32')"
        '\nWhat to do: put it in an Optional, which takes `None`',
    ),
    InputMistake(
        'text where an option is',
        lambda: scheduled(zeros, [None, 1, '2']),
        "example 0, at [2]: expected int32[], got '2'; in "
        "Pipe[0].Map.Pipe[0].Optional.some_case.Scalar('int32')"
        '\nWhat to do: make a number of it before, as by `InputTransform(float)`',
    ),
]
