# SPDX-License-Identifier: Apache-2.0
"""Mistakes in what an expression gives."""

from __future__ import annotations

import jax.numpy as jnp

import jfold as jf
from mistakes.common import Mistake, compiled, number, numbers

MISTAKES = [
    Mistake(
        'a sequence of objects as the result',
        lambda: compiled(jf.Map(jf.GetItem('x'))),
        "Map(GetItem('x')): expected a result of tensors, in tuples and sequences, "
        'got [object]; make tensors of the items, as `Map(Scalar())` does',
    ),
    Mistake(
        'an object as the result',
        lambda: compiled(jf.GetItem('x')),
        "GetItem('x'): expected a result of tensors, in tuples and sequences, got "
        'object; end with Scalar, Vector, Tensor or a Function',
    ),
    Mistake(
        'no result',
        lambda: compiled(number, jf.Void()),
        "Scalar('float32') >> Void(): expected a result of tensors, or a Metric, got "
        'void; end with tensors, or collect them by a Metric',
    ),
    Mistake(
        'a sequence of nothing',
        lambda: compiled(jf.Map(number >> jf.Metric('m'))),
        "Map(Scalar('float32') >> Metric('m')): expected a result of tensors, "
        'in tuples and sequences, got [void]; drop what a sink leaves by `>> Void()`',
    ),
    Mistake(
        'a sequence without end beside a result',
        lambda: compiled(number, jf.AllOf(jf.Identity(), jf.Broadcast())),
        "Scalar('float32') >> AllOf(Identity(), Broadcast()): expected a result of "
        'tensors, in tuples and sequences, got (float32[], [float32[] ...]); put it '
        'beside a sequence, by ZipWith',
    ),
    Mistake(
        'a metric of a sequence',
        lambda: compiled(numbers, jf.Metric('m')),
        "Pipe[1].Metric('m'): expected a tensor or a tuple of tensors, got "
        '[float32[]]; collect its items by `Map(Metric(...)) >> Void()`',
    ),
    Mistake(
        'a metric of an object',
        lambda: compiled(jf.Metric('m')),
        "Pipe[0].Metric('m'): expected a tensor or a tuple of tensors, got "
        'object; turn objects into tensors by Scalar, Vector or Tensor',
    ),
    Mistake(
        'one metric of two types',
        lambda: compiled(
            jf.AllOf(number >> jf.Metric('m'), jf.Length('int32') >> jf.Metric('m'))
        ),
        "Pipe[0].AllOf[1].Pipe[1].Metric('m'): expected float32[], as at its other "
        'uses, got int32[]; give what has another type another name',
    ),
    Mistake(
        'outputs and last state, for the outputs',
        lambda: compiled(
            numbers, jf.RNN(lambda x, state: (x, state), jf.Zeros([])), jf.Map(jnp.exp)
        ),
        'Pipe[2].Map(Function(exp)): expected items of one type, [float32[]], got '
        'float32[]; take the outputs of an RNN by GetItem(0), or make them alike by a '
        'Record',
    ),
    Mistake(
        'an item of a block outside of a composition',
        lambda: jf.Map(jf.Scalar())[0] >> jf.Sum(),
        'expected a block, a callable, an array, or a dict, list or tuple of blocks, '
        "got Item(block=Map(Scalar('float32')), key=0); write `block >> GetItem(0)` "
        'outside of a composition',
        lacks='where',
    ),
]
