# SPDX-License-Identifier: Apache-2.0
"""Input blocks, and those that compute with tensors."""

from __future__ import annotations

import numpy as np

import jfold as jf
from parity.common import Row, number, pairs, read, scaled, subtract, typed

ROWS = [
    Row(
        'Tensor',
        jf.Tensor([2, 1], 'int32'),
        jf.Tensor([2, 1], 'int32'),
        ('object', 'int32[2,1]'),
        [([[1], [2]], np.int32([[1], [2]]))],
        [(np.zeros((2, 1), np.int64), np.zeros((2, 1), np.int32))],
        [
            read(
                jf.Tensor([2]),
                [1, 2, 3],
                'example 0: expected float32[2], got [1, 2, 3] (list) of shape (3,); '
                "in Vector(2, 'float32')",
            ),
        ],
    ),
    Row(
        'Scalar',
        number,
        jf.Scalar(),
        ('object', 'float32[]'),
        [(2.5, 2.5), (3, 3.0)],
        [(True, 1.0), (np.float32(2), 2.0)],
        [
            read(
                number,
                None,
                "example 0: expected float32[], got None; in Pipe[0].Scalar('float32')",
            ),
        ],
    ),
    Row(
        'Vector',
        jf.Vector(2) >> scaled,
        jf.Vector(2),
        ('object', 'float32[2]'),
        [((1, 2), np.float32([1, 2]))],
        [(np.ones(2), np.float32([1, 1]))],
        [
            read(
                jf.Vector(2),
                [1],
                'example 0: expected float32[2], got [1] (list) of shape (1,); in '
                "Vector(2, 'float32')",
            )
        ],
    ),
    Row(
        'InputTransform',
        jf.InputTransform(len) >> number,
        jf.InputTransform(len),
        ('object', 'object'),
        [('abc', 3.0)],
        [('', 0.0)],
        [
            read(
                jf.InputTransform(len) >> number,
                5,
                'example 0: expected what its function takes, got 5: TypeError: '
                "object of type 'int' has no len(); in Pipe[0].InputTransform(len)",
            ),
        ],
    ),
    Row(
        'OneHot',
        jf.OneHot(-1, 2) >> scaled,
        jf.OneHot(-1, 2),
        ('object', 'float32[3]'),
        [(0, np.float32([0, 1, 0]))],
        [
            (-1, np.float32([1, 0, 0])),
            (True, np.float32([0, 0, 1])),
            (1.0, np.float32([0, 0, 1])),
        ],
        [
            read(
                jf.OneHot(3),
                3,
                'example 0: expected one of the keys 0, 1, 2, got 3; in '
                "OneHotFromList([0, 1, 2], 'float32')",
            ),
            (
                lambda: jf.OneHot(3, 3),
                ValueError,
                'OneHot: expected `stop` above `start`, got 3 and 3',
            ),
        ],
    ),
    Row(
        'OneHotFromList',
        jf.OneHotFromList('ab', strict=False) >> scaled,
        jf.OneHotFromList('ab', strict=False),
        ('object', 'float32[2]'),
        [('b', np.float32([0, 1]))],
        [('?', np.float32([0, 0]))],
        [
            read(
                jf.OneHotFromList('ab'),
                'c',
                "example 0: expected one of the keys 'a', 'b', got 'c'; in "
                "OneHotFromList(['a', 'b'], 'float32')",
            ),
            (
                lambda: jf.OneHotFromList('aa'),
                ValueError,
                "OneHotFromList: expected different items, got 'a' more than once",
            ),
            (
                lambda: jf.OneHotFromList(''),
                ValueError,
                'OneHotFromList: expected at least one item, got none',
            ),
        ],
    ),
    Row(
        'FromTensor',
        jf.FromTensor(np.float32([1, 2])) >> scaled,
        jf.FromTensor(np.float32([1, 2])),
        ('void', 'float32[2]'),
        [('anything', np.float32([1, 2]))],
        [(None, np.float32([1, 2]))],
        [
            typed(
                jf.FromTensor(np.float64([1])),
                'FromTensor(float64[1]): expected a dtype that JAX keeps, such as '
                'float32, got float64; say it, or set '
                "jax.config.update('jax_enable_x64', True)",
            ),
        ],
    ),
    Row(
        'Function',
        pairs >> subtract,
        subtract,
        ('None', 'None'),
        [((5, 3), 2.0)],
        [((0, 0), 0.0)],
        [
            typed(
                number >> jf.Function(lambda x: (x, None)),
                'Pipe[2].Function(function): expected to run on inputs (float32[]), '
                'got TypeError: expected arrays, or tuples or dicts of arrays, got '
                'None; return arrays',
            ),
        ],
    ),
    Row(
        'Concat',
        jf.Record((number, jf.Vector(2) >> scaled)) >> jf.Concat(),
        jf.Concat(),
        ('None', 'None'),
        [((1, [2, 3]), np.float32([1, 2, 3]))],
        [((0, [0, 0]), np.zeros(3, 'float32'))],
        [
            typed(
                number >> jf.Concat(),
                'Pipe[2].Function(concat): expected a tuple of tensors, got '
                'float32[]; make one of all that is joined, as in `AllOf(a, b) >> '
                'Concat()`',
            ),
        ],
    ),
    Row(
        'Zeros',
        jf.Zeros((2, 'int32')),
        jf.Zeros((2, 'int32')),
        ('void', '(float32[2], int32[])'),
        [('anything', (np.zeros(2, 'float32'), np.int32(0)))],
        [(None, (np.zeros(2, 'float32'), np.int32(0)))],
        [
            typed(
                jf.Zeros(jf.BroadcastType(jf.TensorType([]))),
                'Zeros([float32[] ...]): expected a type that has zeros: tensors, '
                'tuples, sequences, got [float32[] ...]; write a type of tensors, '
                'such as `Zeros([3])`',
            ),
        ],
    ),
]
