# SPDX-License-Identifier: Apache-2.0
"""Blocks over sequences."""

from __future__ import annotations

import numpy as np

import jfold as jf
from parity.common import (
    Row,
    add,
    lists,
    number,
    numbers,
    plus,
    read,
    scaled,
    subtract,
    typed,
)


def _counting_cell() -> jf.Block:
    """Gives a running sum; the item before is the state."""
    return jf.AllOf(add, jf.GetItem(0))


# Fold's golden values of pairwise rounds of subtraction over 1, 2, ... n.
ROUNDS = [0, 1, -1, -4, 0, -5, 1, 8, 0]


ROWS = [
    Row(
        'Map',
        numbers,
        numbers,
        ('None', '[float32[]]'),
        [([1, 2], [1.0, 2.0])],
        [([], []), (np.float32([3]), [3.0]), ((), [])],
        [
            read(
                numbers,
                {1: 2},
                'example 0: expected a sequence, got {1: 2} (dict); '
                '`InputTransform(lambda x: list(x.values()))`, or of `items`, makes '
                "one; in Map(Scalar('float32') >> Function(scaled))",
            ),
        ],
    ),
    Row(
        'Fold',
        jf.Fold(plus, jf.Zeros([])),
        jf.Fold(plus, jf.Zeros([])),
        ('None', 'float32[]'),
        [([1, 2, 3], 6.0)],
        [([], 0.0)],
        [
            typed(
                jf.Fold(jf.AllOf(plus, plus), jf.Zeros([])),
                "Fold.combine.AllOf(Record({0: Identity(), 1: Scalar('float32') >> "
                'Func...: expected to give its state, float32[], got (float32[], '
                'float32[]); take the state of what `combine` gives by GetItem, or use '
                'RNN',
            ),
        ],
    ),
    Row(
        'RNN',
        numbers >> jf.RNN(_counting_cell(), initial_state=jf.Zeros([])),
        jf.RNN(_counting_cell()),
        ('None', 'None'),
        [([1, 2, 4], ([1.0, 3.0, 6.0], 4.0))],
        [([], ([], 0.0))],
        [
            (
                lambda: jf.RNN(_counting_cell(), jf.Zeros([]), True),
                ValueError,
                'RNN: expected one initial state, got both Zeros(float32[]) and '
                '`initial_state_from_input`',
            ),
            typed(
                numbers >> jf.RNN(add, jf.Zeros([])),
                'Pipe[1].RNN.cell.Function(add): expected to give an output and a '
                'state, (?, float32[]), got float32[]; return a pair, of which the '
                'second is of the type of the initial state',
            ),
        ],
    ),
    Row(
        'RNN from a state',
        jf.Record((numbers, number))
        >> jf.RNN(_counting_cell(), initial_state_from_input=True),
        jf.RNN(_counting_cell(), initial_state_from_input=True),
        ('None', 'None'),
        [(([1, 2], 10), ([11.0, 3.0], 2.0))],
        [(([], 10), ([], 10.0))],
        [
            typed(
                numbers >> jf.RNN(_counting_cell(), initial_state_from_input=True),
                'Pipe[1].RNN(AllOf(Function(add), GetItem(0)), '
                'initial_state_from_...: expected a pair of a sequence and a state, '
                '(?, ?), got [float32[]]; give both, as by a Record',
            )
        ],
    ),
    Row(
        'Reduce',
        numbers >> jf.Reduce(subtract),
        jf.Reduce(subtract),
        ('None', 'None'),
        [(list(range(1, n + 1)), float(x)) for n, x in enumerate(ROUNDS)],
        [([], 0.0), ([7], 7.0)],
        [
            typed(
                jf.Record((number, jf.Vector(2))) >> jf.Reduce(add),
                'Pipe[1].Reduce(Function(add)): expected items of one type, '
                'float32[], got float32[2]; make them alike by a Record, which has a '
                'block for each item',
            ),
            typed(
                numbers >> jf.Reduce(jf.GetItem(0), number),
                "Pipe[1].Reduce.default.Pipe[0].Scalar('float32'): expected an "
                'object, got void; use Zeros or FromTensor where nothing is read',
            ),
        ],
    ),
    Row(
        'Sum',
        numbers >> jf.Sum(),
        jf.Sum(),
        ('None', 'None'),
        [([1, 2], 3.0)],
        [([], 0.0)],
        [
            typed(
                number >> jf.Sum(),
                'Pipe[2].Sum(): expected a sequence, a non-empty tuple of one type, '
                'or an object, got float32[]; use a Function for what is in one '
                'tensor, and Map for a list of the data',
            )
        ],
    ),
    Row(
        'Min',
        numbers >> jf.Min(),
        jf.Min(),
        ('None', 'None'),
        [([3, 2], 2.0)],
        [([], 0.0)],
        [
            typed(
                number >> jf.Min(),
                'Pipe[2].Min(): expected a sequence, a non-empty tuple of one type, '
                'or an object, got float32[]; use a Function for what is in one '
                'tensor, and Map for a list of the data',
            )
        ],
    ),
    Row(
        'Max',
        numbers >> jf.Max(),
        jf.Max(),
        ('None', 'None'),
        [([-3, -2], -2.0)],
        [([], 0.0)],
        [
            typed(
                number >> jf.Max(),
                'Pipe[2].Max(): expected a sequence, a non-empty tuple of one type, '
                'or an object, got float32[]; use a Function for what is in one '
                'tensor, and Map for a list of the data',
            )
        ],
    ),
    Row(
        'Mean',
        numbers >> jf.Mean(),
        jf.Mean(),
        ('None', 'None'),
        [([1, 3], 2.0)],
        [([], 0.0)],
        [
            typed(
                number >> jf.Mean(),
                'Pipe[2].AllOf[0].Pipe[0].Map(Function(as_inexact)): expected a '
                'sequence, a non-empty tuple of one type, or an object, got '
                'float32[]; use a Function for what is in one tensor, and Map for a '
                'list of the data',
            )
        ],
    ),
    Row(
        'Broadcast',
        jf.Record((numbers, number >> jf.Broadcast())) >> jf.Zip(),
        jf.Broadcast(),
        ('None', '[object ...]'),
        [(([1, 2], 5), [(1.0, 5.0), (2.0, 5.0)])],
        [(([], 5), [])],
        [
            typed(
                number >> jf.Broadcast(),
                "Scalar('float32') >> Function(scaled) >> Broadcast(): expected a "
                'result of tensors, in tuples and sequences, got [float32[] ...]; '
                'put it beside a sequence, by ZipWith',
            ),
            typed(
                number >> jf.Broadcast() >> jf.Length(),
                "Pipe[3].Length('float32'): expected a sequence, a tuple or an "
                'object, got [float32[] ...]; put it beside a sequence, by ZipWith',
            ),
            typed(
                number >> jf.Broadcast() >> jf.Sum(),
                'Pipe[3].Sum(): expected a sequence, a non-empty tuple of one type, '
                'or an object, got [float32[] ...]; put it beside a sequence, by '
                'ZipWith',
            ),
        ],
    ),
    Row(
        'Zip',
        lists >> jf.Zip(),
        jf.Zip(),
        ('None', 'None'),
        [(([1, 2], [3, 4, 5]), [(1.0, 3.0), (2.0, 4.0)])],
        [(([], [1]), [])],
        [
            typed(
                number >> jf.Zip(),
                'Pipe[2].Zip(): expected a tuple of sequences, got float32[]',
            ),
            typed(
                jf.Record((numbers, number)) >> jf.Zip(),
                'Pipe[1].Zip(): expected a tuple of sequences, got float32[] among '
                'its parts',
            ),
        ],
    ),
    Row(
        'ZipWith',
        lists >> jf.ZipWith(subtract),
        jf.ZipWith(subtract),
        ('None', 'None'),
        [(([5, 6], [1]), [4.0])],
        [(([1], []), [])],
        [
            typed(
                numbers >> jf.ZipWith(subtract),
                'Pipe[1].Zip(): expected a tuple of sequences, got [float32[]]',
            )
        ],
    ),
    Row(
        'NGrams',
        numbers >> jf.NGrams(2),
        jf.NGrams(2),
        ('None', '[(object, object)]'),
        [([1, 2, 3], [(1.0, 2.0), (2.0, 3.0)])],
        [([1], []), ([], [])],
        [
            (
                lambda: jf.NGrams(0),
                ValueError,
                'NGrams: expected `n` of at least 1, got 0',
            ),
            typed(
                number >> jf.NGrams(2),
                'Pipe[2].NGrams(2): expected a sequence, a non-empty tuple of one '
                'type, or an object, got float32[]; use a Function for what is in '
                'one tensor, and Map for a list of the data',
            ),
        ],
    ),
    Row(
        'Nth',
        jf.Record((numbers, jf.Identity())) >> jf.Nth(),
        jf.Nth(),
        ('None', 'None'),
        [(([5, 6], 1), 6.0)],
        [(([5, 6], -2), 5.0), (([5], np.int8(0)), 5.0)],
        [
            read(
                jf.Record((numbers, jf.Identity())) >> jf.Nth(),
                ([], 0),
                'example 0, at [1]: expected an item 0, got a sequence of length 0; '
                'in Pipe[1].Nth()',
            ),
            read(
                jf.Record((numbers, jf.Identity())) >> jf.Nth(),
                ([1], 0.5),
                'example 0, at [1]: expected an int, the index, got 0.5: TypeError: '
                "'float' object cannot be interpreted as an integer; in Pipe[1].Nth()",
            ),
        ],
    ),
    Row(
        'GetItem',
        jf.GetItem('a') >> number,
        jf.GetItem('a'),
        ('None', 'object'),
        [({'a': 1}, 1.0)],
        [({'a': 0, 'b': 1}, 0.0)],
        [
            read(
                jf.GetItem('a') >> number,
                {},
                "example 0: expected an item 'a', got {} (dict): KeyError: 'a'; in "
                "Pipe[0].GetItem('a')",
            ),
        ],
    ),
    Row(
        'GetItem of a sequence',
        numbers >> jf.GetItem(-1),
        jf.GetItem(-1),
        ('None', 'object'),
        [([1, 2], 2.0), ([3], 3.0)],
        [([0], 0.0)],
        [
            read(
                numbers >> jf.GetItem(1),
                [1],
                'example 0: expected an item 1, got a sequence of length 1; in '
                'Pipe[1].GetItem(1)',
            )
        ],
    ),
    Row(
        'GetItem of a tensor',
        jf.Vector(3) >> scaled >> jf.GetItem(1),
        jf.GetItem(1),
        ('None', 'object'),
        [([1, 2, 3], 2.0)],
        [],
        [
            typed(
                jf.Vector(3) >> jf.GetItem(3),
                'Pipe[1].GetItem(3): expected a tensor with an item 3, got '
                'float32[3]; take ints within its shape, and slices',
            )
        ],
    ),
    Row(
        'Slice',
        numbers >> jf.Slice(start=1, step=2),
        jf.Slice(start=1, step=2),
        ('None', 'object'),
        [([1, 2, 3, 4], [2.0, 4.0])],
        [([1], []), ([], [])],
        [
            (
                lambda: jf.Slice(1),
                TypeError,
                'Slice() takes 0 positional arguments but 1 was given',
            ),
            (
                lambda: jf.Slice(start=False),
                TypeError,
                'Slice: expected `start` as int or None, got False',
            ),
        ],
    ),
    Row(
        'Length',
        jf.Length(),
        jf.Length(),
        ('None', 'float32[]'),
        [([1, 2], 2.0)],
        [([], 0.0), ((), 0.0)],
        [
            read(
                jf.Length('int8'),
                [0] * 128,
                'example 0: expected int8[], got the length 128, which int8 cannot '
                "hold; in Length('int8')",
            ),
            read(
                numbers >> jf.Length('bool'),
                [1, 2],
                'example 0: expected bool[], got the length 2, which bool cannot '
                "hold; in Pipe[1].Length('bool')",
            ),
            (
                lambda: jf.Length('float16').eval([0] * 2049),
                jf.InputError,
                'example 0: expected float16[], got the length 2049, which float16 '
                "cannot hold; in Length('float16')",
            ),
        ],
    ),
]
