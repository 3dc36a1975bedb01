# SPDX-License-Identifier: Apache-2.0
"""Blocks made of others, choices, metrics, layers."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

import jfold as jf
from parity.common import (
    Row,
    add,
    number,
    pairs,
    read,
    scaled,
    subtract,
    typed,
)


def _wired() -> jf.Block:
    made = jf.Composition()
    with made.scope():
        left, right = jf.Scalar().reads(made.input[0]), number(made.input['b'])
        made.output.reads(subtract.reads(left, right), left)
    return made


def _tree() -> Any:
    tree = jf.ForwardDeclaration()
    branch = jf.Record((tree(), tree())) >> subtract
    tree.resolve_to(
        jf.OneOf(lambda x: isinstance(x, tuple), {False: number, True: branch})
    )
    return tree


ROWS = [
    Row(
        'Identity',
        number >> jf.Identity(),
        jf.Identity(),
        ('None', 'object'),
        [(1, 1.0)],
        [(0, 0.0)],
        [
            typed(
                jf.Identity(),
                'Identity(): expected a result of tensors, in tuples and sequences, '
                'got object; end with Scalar, Vector, Tensor or a Function',
            )
        ],
    ),
    Row(
        'Void',
        jf.AllOf(number >> jf.Void(), number),
        jf.Void(),
        ('void', 'void'),
        [(3, (None, 3.0))],
        [(0, (None, 0.0))],
        [
            typed(
                jf.Void(),
                'Void(): expected a result of tensors, or a Metric, got void; end '
                'with tensors, or collect them by a Metric',
            )
        ],
    ),
    Row(
        'Pipe',
        jf.Pipe(number, scaled, jf.Identity()),
        jf.Pipe(number, scaled),
        ('object', 'float32[]'),
        [(2, 2.0)],
        [(0, 0.0)],
        [
            typed(
                jf.Pipe(),
                'Pipe(): expected a result of tensors, in tuples and sequences, got '
                'object; end with Scalar, Vector, Tensor or a Function',
            )
        ],
    ),
    Row(
        'Record',
        jf.Record({'b': number, 'a': jf.Scalar('int32')}),
        jf.Record({'b': number, 'a': jf.Scalar('int32')}),
        ('None', '(float32[], int32[])'),
        [({'a': 1, 'b': 2, 'c': 3}, (2.0, np.int32(1)))],
        [(OrderedDict(b=0, a=1), (0.0, np.int32(1)))],
        [
            read(
                jf.Record((number,)),
                (1, 2),
                'example 0: expected 1 item, got 2 in (1, 2) (tuple); a record of '
                '`{0: ..., 2: ...}` reads some of them alone; in Record({0: '
                "Scalar('float32') >> Function(scaled)})",
            ),
            typed(
                pairs >> jf.Record((scaled,)),
                'Pipe[1].Record({0: Function(scaled)}): expected at most 1 item, got '
                '(float32[], float32[]); a record of `{0: ..., 2: ...}` reads some '
                'of them alone',
            ),
        ],
    ),
    Row(
        'Record of pairs',
        jf.Record([('b', number), ('a', jf.Zeros('int32'))]),
        jf.Record([('b', number), ('a', jf.Zeros('int32'))]),
        ('None', '(float32[], int32[])'),
        [({'b': 2}, (2.0, np.int32(0)))],
        [({'b': 0, 'a': 5}, (0.0, np.int32(0)))],
        [
            read(
                jf.Record([('b', number)]),
                {},
                "example 0: expected an item 'b', got {} (dict): KeyError: 'b'; in "
                "Record({'b': Scalar('float32') >> Function(scaled)})",
            )
        ],
    ),
    Row(
        'AllOf',
        jf.AllOf(number, jf.Zeros([]), number),
        jf.AllOf(number, jf.Zeros([])),
        ('object', '(float32[], float32[])'),
        [(2, (2.0, 0.0, 2.0))],
        [(0, (0.0, 0.0, 0.0))],
        [
            typed(
                jf.AllOf(jf.Scalar(), jf.Scalar() >> add),
                'AllOf[1].Pipe[1].Function(add): expected to run on inputs '
                '(float32[]), got TypeError: add() missing 1 required positional '
                "argument: 'y'; give it as many inputs as it takes: it is called as "
                '`fn(x)`',
            )
        ],
    ),
    Row(
        'Composition',
        _wired(),
        _wired(),
        ('None', '(float32[], float32[])'),
        [({0: 5, 'b': 3}, (2.0, 5.0))],
        [({0: 0, 'b': 0}, (0.0, 0.0))],
        [
            typed(
                jf.Composition(),
                'Composition(): expected a result of tensors, or a Metric, got void; '
                'end with tensors, or collect them by a Metric',
            ),
            (
                lambda: number.reads(number),
                TypeError,
                "Scalar('float32') >> Function(scaled): expected to be wired within "
                "`jf.compose` or the scope of a Composition, got (Scalar('float32') "
                '>> Function(scaled)) outside of these; `eval` runs it on data',
            ),
        ],
    ),
    Row(
        'ForwardDeclaration',
        _tree()(),
        _tree()(),
        ('object', 'float32[]'),
        [(((5, 3), 1), 1.0)],
        [(4, 4.0)],
        [
            typed(
                jf.ForwardDeclaration()(),
                'declaration(): expected a declaration that is resolved, got '
                "ForwardDeclaration('declaration'), which is not; call its "
                '`resolve_to`',
            ),
        ],
    ),
    Row(
        'OneOf',
        jf.OneOf(lambda x: x < 0, {True: number, False: jf.Zeros([])}),
        jf.OneOf(lambda x: x < 0, {True: number, False: jf.Zeros([])}),
        ('object', 'float32[]'),
        [(-2, -2.0), (2, 0.0)],
        [(0, 0.0)],
        [
            read(
                jf.OneOf(len, {1: jf.GetItem(0) >> number}),
                [1, 2],
                'example 0: expected one of the keys 1, got 2; in OneOf(len, {1: '
                "GetItem(0) >> Scalar('float32') >> Functio...",
            ),
        ],
    ),
    Row(
        'OneOf of a tuple of cases',
        jf.OneOf(jf.GetItem(0), (number, jf.Zeros([])), pre_block=jf.GetItem(1)),
        jf.OneOf(jf.GetItem(0), (number,), pre_block=jf.GetItem(1)),
        ('None', 'float32[]'),
        [((0, 7), 7.0), ((1, 7), 0.0)],
        [((-1, 7), 0.0), ((False, 7), 7.0)],
        [
            read(
                jf.OneOf(jf.GetItem(0), (number,), pre_block=jf.GetItem(1)),
                (2, 7),
                'example 0, at [0]: expected one of the keys 0, -1, got 2; in '
                "OneOf(GetItem(0), {0: Scalar('float32') >> Function(scale...",
            )
        ],
    ),
    Row(
        'Optional',
        jf.Optional(number),
        jf.Optional(number),
        ('object', 'float32[]'),
        [(2, 2.0), (None, 0.0)],
        [(0, 0.0)],
        [
            read(
                jf.Optional(number),
                '',
                "example 0: expected float32[], got ''; in "
                "Optional.some_case.Pipe[0].Scalar('float32')",
            ),
            typed(
                jf.Optional(number, number),
                "Optional.none_case.Pipe[0].Scalar('float32'): expected an object, "
                'got void; use Zeros or FromTensor where nothing is read',
            ),
        ],
    ),
    Row(
        'Metric',
        jf.AllOf(number, number >> jf.Metric('seen')) >> jf.GetItem(0),
        jf.Metric('seen'),
        ('None', 'void'),
        [(2, (2.0, {'seen': [2.0]}))],
        [(0, (0.0, {'seen': [0.0]}))],
        [
            typed(
                jf.Metric('m'),
                "Metric('m'): expected a tensor or a tuple of tensors, got object; "
                'turn objects into tensors by Scalar, Vector or Tensor',
            ),
        ],
    ),
    Row(
        'FC',
        jf.Vector(2) >> jf.layers.FC(3, activation=None),
        jf.layers.FC(3),
        ('None', 'None'),
        [([0, 0], np.zeros(3, 'float32'))],
        [],
        [
            typed(
                jf.Scalar() >> jf.layers.FC(3),
                'Pipe[1].Function(fc): expected to run on inputs (float32[]), got '
                'TypeError: expected a vector of floats, got float32[]; read it by '
                '`Vector(1)`, or make it one by `x[None]`',
            )
        ],
    ),
    Row(
        'Embedding',
        jf.Scalar('int32')
        >> jf.layers.Embed(2, 1, table=[[5.0], [7.0]], outside='modulo'),
        jf.layers.Embed(2, 1),
        ('None', 'None'),
        [(0, np.float32([5])), (1, np.float32([7]))],
        [(3, np.float32([7])), (-1, np.float32([7]))],
        [
            typed(
                jf.Scalar() >> jf.layers.Embed(2, 1),
                'Pipe[1].Function(embed): expected to run on inputs (float32[]), got '
                "TypeError: expected an int, as of `Scalar('int32')`, got float32[]",
            )
        ],
    ),
]
