# SPDX-License-Identifier: Apache-2.0
"""What `compile` says where types do not fit, besides the tables of `mistakes`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from checking import does_not_compile, number, numbers

import jfold as jf

vector = jf.Vector(3)

MISMATCHES: list[tuple[Any, str]] = [
    (jf.AllOf(), (
        'AllOf(): expected a result of tensors, or a Metric, got (); end with '
        'tensors, or collect them by a Metric'
    )),
    (
        jf.Zeros(jf.SequenceType(jf.ObjectType())),
        'Zeros([object]): expected a type that has zeros: tensors, tuples, '
        'sequences, got object; write a type of tensors, such as `Zeros([3])`',
    ),
    (
        {'a': number} >> jf.Record({'a': jnp.sin}),
        "Pipe[1].Record({'a': Function(sin)}): expected int keys, for its input is "
        "the tuple (a: float32[],), got 'a'; write a place from -1 to 0",
    ),
    (
        numbers >> jf.Record([(0, jnp.sin)]),
        'Pipe[1].Record({0: Function(sin)}): expected an object or a tuple, got '
        '[float32[]]; use Map, for the fields of each item',
    ),
    (
        (number, vector) >> jf.GetItem(-3),
        'Pipe[1].GetItem(-3): expected at least 3 items, got (float32[], '
        'float32[3]); write a place from -2 to 1',
    ),
    (
        (number, number) >> jf.GetItem(3, default=1),
        'Pipe[1].GetItem(3, default=1): expected an object, for there is a `default`, '
        'got (float32[], float32[]), of which it is known what it has',
    ),
    (
        jf.OneOf(type, {int: number}, default=vector),
        "OneOf.default.Vector(3, 'float32'): expected to give float32[], got "
        'float32[3]; give all cases one type',
    ),
    (
        numbers >> jf.GetItem(slice(None, None, 0)),
        'Pipe[1].GetItem(slice(None, None, 0)): expected a slice of ints, got '
        'slice(None, None, 0): ValueError: slice step cannot be zero; write it by '
        'Slice',
    ),
    (
        jf.AllOf(number, number) >> jf.GetItem(slice('a')),
        "Pipe[1].GetItem(slice(None, 'a', None)): expected a slice of ints, got "
        "slice(None, 'a', None): TypeError: slice indices must be integers or None or "
        'have an __index__ method; write it by Slice',
    ),
    (
        numbers >> jf.Concat(),
        'Pipe[1].Function(concat): expected a tuple of tensors, got [float32[]]; make '
        'a tuple of a fixed length of it by Padded',
    ),
    (
        jf.OneOf(type, {list: jf.Map(number), float: jf.AllOf(number)}),
        "OneOf[<class 'float'>].AllOf(Scalar('float32')): expected to give "
        '[float32[]], got (float32[],); make a sequence of a tuple by `>> '
        'Map(Identity())`',
    ),
    (
        jf.Tensor((2, 3)) >> jf.GetItem((slice(None), 3)),
        'Pipe[1].GetItem((slice(None, None, None), 3)): expected a tensor with an item '
        '(slice(None, None, None), 3), got float32[2,3]; take ints within its shape, '
        'and slices',
    ),
    (
        jf.Tensor((2, 3)) >> jf.GetItem((..., np.int64(-4))),
        'Pipe[1].GetItem((Ellipsis, np.int64(-4))): expected a tensor with an item '
        '(Ellipsis, np.int64(-4)), got float32[2,3]; take ints within its shape, and '
        'slices',
    ),
    (
        jf.Map(jf.Record((jf.Identity(), number)) >> jf.Metric('m')) >> jf.Void(),
        "Pipe[0].Map.Pipe[1].Metric('m'): expected a tensor or a tuple of tensors, got "
        '(object, float32[]); put the value first, and its label second',
    ),
    (
        vector >> jf.GetItem([0, 1]),
        'Pipe[1].GetItem([0, 1]): expected ints and slices as the key of a tensor, '
        'got [0, 1]; pick rows by their numbers in a Function, as '
        '`x[jnp.array(...)]` does',
    ),
    (
        number >> jf.Void() >> jf.GetItem(0),
        'Pipe[2].GetItem(0): expected an object, tuple, sequence or tensor, got void',
    ),
    (
        jf.Record(()) >> jf.Map(jnp.sin) >> jf.Sum(),
        'Pipe[1].Map(Function(sin)): expected a sequence, a non-empty tuple of one '
        'type, or an object, got ()',
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ('block', 'message'), MISMATCHES, ids=[text[:40] for _, text in MISMATCHES]
)
def test_mismatches(block: Any, message: str) -> None:
    does_not_compile(block, message)


def test_a_declaration_has_one_type() -> None:
    one = jf.ForwardDeclaration(name='one')
    one.resolve_to(number)
    does_not_compile(
        {'a': one(), 'b': number >> one()},
        "Record['b'].Pipe[1].one(): expected an input object, got float32[]",
    )
    said = jf.ForwardDeclaration(output_type=3, name='said')
    said.resolve_to(number)
    does_not_compile(
        said(), "said.Scalar('float32'): expected to give float32[3], got float32[]"
    )
    given = jf.ForwardDeclaration(input_type=3, name='given')
    given.resolve_to(number)
    with pytest.raises(
        TypeError, match=r"^given\.Scalar\('float32'\): expected an obj"
    ):
        jf.compile(vector >> given())
