# SPDX-License-Identifier: Apache-2.0
"""Mistakes in what an expression gives."""

from __future__ import annotations

from typing import Any

import jfold as jf
from mistakes.common import Mistake, number, numbers


def compiled(*blocks: Any, **options: Any) -> jf.Model:
    return jf.compile(jf.Pipe(*blocks), **options)


MISTAKES = [
    Mistake(
        'a sequence as the result',
        lambda: compiled(numbers),
        TypeError,
        "Map(Scalar('float32')): expected a result of tensors in tuples, got "
        '[float32[]]; reduce the sequence, or collect its items by Metric',
    ),
    Mistake(
        'an object as the result',
        lambda: compiled(jf.GetItem('x')),
        TypeError,
        "GetItem('x'): expected a result of tensors in tuples, got object; end "
        'with Scalar, Vector, Tensor or a Function',
    ),
    Mistake(
        'no result',
        lambda: compiled(number, jf.Void()),
        TypeError,
        "Scalar('float32') >> Void(): expected a result of tensors, or a "
        'Metric, got void',
        lacks='do',
    ),
    Mistake(
        'a sequence of nothing',
        lambda: compiled(jf.Map(number >> jf.Metric('m'))),
        TypeError,
        "Map(Scalar('float32') >> Metric('m')): expected a result of tensors "
        'in tuples, got [void]; drop what a sink leaves by `>> Void()`',
    ),
    Mistake(
        'a sequence beside a result',
        lambda: compiled(jf.AllOf(number, numbers)),
        TypeError,
        "AllOf(Scalar('float32'), Map(Scalar('float32'))): expected a result "
        'of tensors in tuples, got (float32[], [float32[]]); reduce the '
        'sequence, or collect its items by Metric',
    ),
    Mistake(
        'a metric of a sequence',
        lambda: compiled(numbers, jf.Metric('m')),
        TypeError,
        "Pipe[1].Metric('m'): expected a tensor or a tuple of tensors, got "
        '[float32[]]; collect its items by `Map(Metric(...)) >> Void()`',
    ),
    Mistake(
        'a metric of an object',
        lambda: compiled(jf.Metric('m')),
        TypeError,
        "Pipe[0].Metric('m'): expected a tensor or a tuple of tensors, got "
        'object; turn objects into tensors by Scalar, Vector or Tensor',
    ),
    Mistake(
        'one metric of two types',
        lambda: compiled(
            jf.AllOf(number >> jf.Metric('m'), jf.Length('int32') >> jf.Metric('m'))
        ),
        TypeError,
        "Pipe[0].AllOf[1].Pipe[1].Metric('m'): expected float32[], as at its "
        'other uses, got int32[]',
        lacks='do',
    ),
]
