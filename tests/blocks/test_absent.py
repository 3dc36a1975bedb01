# SPDX-License-Identifier: Apache-2.0
"""What data lack: items, fields, and cases for their keys."""

from __future__ import annotations

import collections
import dataclasses
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
from checking import add, check, number, numbers, refuses

import jfold as jf


@dataclasses.dataclass
class Node:
    """Data with attributes."""

    left: Any
    right: Any


def test_items_that_data_lack() -> None:
    """Of dicts, of lists, of objects, of what is all of these; in recursions too."""
    one, last = (
        jf.GetItem(key, default=value) >> number for key, value in (('left', 5), (2, 7))
    )
    counts = collections.defaultdict(lambda: 9, right=1)
    check(
        (one, [{'left': 1}, {}, {'right': 3}], [1.0, 5.0, 5.0]),
        (one, [{}, Node(2, 3), SimpleNamespace(), counts], [5.0, 2.0, 5.0, 9.0]),
        (last, [[1, 2, 3], (1, 2), []], [3.0, 7.0, 7.0]),
        (jf.GetItem('a', default=()) >> numbers >> jf.Sum(), [{}], [0.0]),
        (jf.AllOf(one, jf.GetItem('left') >> number), [{'left': 1}], [(1.0, 1.0)]),
    )
    tree = jf.ForwardDeclaration(output_type=[])
    value, next_ = jf.GetItem('value', default=1) >> number, jf.Optional(tree())
    tree.resolve_to(jf.AllOf(value, jf.Record({'next': next_}) >> jf.GetItem(0)) >> add)
    check((tree(), [{}, {'next': {'value': 3, 'next': {}}}], [1.0, 5.0]))


def test_fields_that_data_lack() -> None:
    """They are `None` for `Optional`, also before other blocks."""
    maybe = jf.Optional(number, np.float32(4))
    check(
        (jf.Record({'x': number, 'y': maybe}), [{'x': 1}], [(1.0, 4.0)]),
        (jf.Record({'y': maybe >> jnp.negative}), [{}, {'y': 2}], [(-4.0,), (-2.0,)]),
        (
            jf.Record((number, maybe)),
            [(1,), [2, None], (3, 5)],
            [(1, 4), (2, 4), (3, 5)],
        ),
        (jf.Record({'left': maybe, 'z': maybe}), [Node(2, 3)], [(2.0, 4.0)]),
    )


def test_get_item_refuses_a_default_of_a_slice() -> None:
    text = (
        'GetItem: expected no `default` for slice(0, 2, None), got 1: a slice of what '
        'has fewer items is shorter'
    )
    with refuses(text, ValueError):
        jf.GetItem(slice(0, 2), default=1)


def test_other_keys() -> None:
    """`OneOf` has a case for them, which may be that of a key too."""
    size = jf.GetItem('size') >> number
    kind, zero = jf.GetItem('kind', default='none'), jf.Zeros([])
    check(
        (jf.OneOf(type, {int: number}, default=zero), [1, 'a', None], [1.0, 0.0, 0.0]),
        (
            jf.OneOf(kind, {'box': size, 'none': zero}, default=zero),
            [{}, {'kind': 'box', 'size': 2}, {'kind': 'x'}],
            [0.0, 2.0, 0.0],
        ),
        (
            jf.OneOf(
                jf.GetItem(0), (number,), jf.GetItem(1), default=number >> jnp.negative
            ),
            [(0, 2), (-1, 3), (1, 4)],
            [2.0, 3.0, -4.0],
        ),
        (jf.OneOf(len, {0: zero}, default=numbers >> jf.Sum()), [[], [1, 2]], [0, 3.0]),
    )


def test_fields_that_data_lack_in_a_declaration() -> None:
    """What is optional may be declared, or stand for many uses of one block."""
    declared = jf.ForwardDeclaration(name='declared')
    declared.resolve_to(jf.Optional(number, jf.Zeros([])))
    both = jf.Record({'x': declared(), 'y': declared()}) >> add
    check((both, [{'x': 1}, {'y': 2}, {}, {'x': 1, 'y': 2}], [1.0, 2.0, 0.0, 3.0]))
    optional = jf.Optional(number, jf.Zeros([]))
    block: Any = jf.Record({'x': optional, 'y': optional}) >> add
    data: Any = {'x': 1}
    for _ in range(10):
        block, data = jf.Record((block, block)) >> add, (data, data)
    model = jf.compile(block)
    assert model.apply({}, model.schedule([data])).tolist() == [1024.0]
