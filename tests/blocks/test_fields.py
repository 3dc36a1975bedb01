# SPDX-License-Identifier: Apache-2.0
"""Fields of records: in their order, by name, and those that data lack."""

from __future__ import annotations

import collections
import dataclasses
from types import SimpleNamespace
from typing import Any

import flax.linen as nn
import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checking import add, check, number, numbers, refuses, subtract

import jfold as jf

DATA = {'left': 1, 'center': 10, 'k': 0}
ONE = jf.Record({'left': number, 'center': number})
OTHER = jf.Record({'center': number, 'left': number})
BY_NAME = 'bear the names of all fields, (left, center), or each where its field stands'
WHAT_TO_DO = 'call them otherwise, or write the fields in their order'


def of_fields(left: Any, center: Any) -> Any:
    return left - center


def turned(center: Any, left: Any) -> Any:
    return left - center


class Module(nn.Module):
    """Takes fields, in an order of its own."""

    @nn.compact
    def __call__(self, center: Any, left: Any, train: bool = False) -> Any:
        return left - center

    def method(self, center: Any, left: Any) -> Any:
        return left - center


class Callable:
    def __call__(self, center: Any, left: Any) -> Any:
        return left - center


@pytest.mark.parametrize('record', [ONE, OTHER], ids=['as they are', 'turned'])
def test_fields_go_to_the_parameters_of_their_names(record: Any) -> None:
    fns: list[Any] = [
        of_fields,
        turned,
        jax.jit(turned),
        Callable(),
        Module(),
        Module().method,
        lambda center, left, scale=1.0: left - center,
        lambda center, left, more=None: left - center,
        jf.compose(lambda center, left: subtract(left, center)),
        jf.recursive(lambda self, center, left: subtract(left, center)),
    ]
    check(*((record >> fn, [DATA], [-9.0]) for fn in fns))
    layer = jf.Function(lambda w, center, left: left - center, lambda key: jnp.ones(2))
    check((record >> layer, [DATA], [-9.0]))
    draws = jf.Function(lambda center, left, dropout: left - center, rngs='dropout')
    model = jf.compile(record >> draws)
    schedule = model.schedule([DATA])
    assert model.apply({}, schedule, deterministic=True).tolist() == [-9.0]
    assert model.eval(DATA, {}, deterministic=True).item() == -9


@pytest.mark.parametrize('fn', [lambda a, b: a - b, lambda *both: both[0] - both[1]])
def test_else_they_are_in_the_order_in_which_they_are_written(fn: Any) -> None:
    check((ONE >> fn, [DATA], [-9.0]), (OTHER >> fn, [DATA], [9.0]))
    check((jf.AllOf(*(x for _, x in ONE.fields)) >> turned, [1], [0.0]))
    pair = {'a': number, 'left': number} >> jf.Function(lambda x, left: x - left)
    check((pair, [{'a': 1, 'left': 10}], [-9.0]))


def test_gradients_and_parameters_follow_the_names() -> None:
    """`init` is given the specs in the order of the function."""
    wide = {'left': jf.Vector(2), 'center': jf.Vector(3)}
    layer = jf.Function(
        lambda w, center, left: left @ w['left'] - center @ w['center'],
        lambda key, center, left: {
            'left': jnp.ones(left.shape),
            'center': 2 * jnp.ones(center.shape),
        },
    )
    model = jf.compile(wide >> layer)
    params, data = model.init(jax.random.key(0)), {'left': [1, 2], 'center': [3, 4, 5]}
    assert model.block.eval(data, params) == 3 - 24
    schedule = model.schedule([data, data])
    grad = jax.grad(lambda p: model.apply(p, schedule).sum())
    grads = interpreter.called(grad, params)
    assert grads['function']['left'].tolist() == [2, 4]
    assert grads['function']['center'].tolist() == [-6, -8, -10]


def test_results_are_in_the_order_in_which_fields_are_written() -> None:
    check((OTHER, [DATA], [(10.0, 1.0)]), (ONE, [DATA], [(1.0, 10.0)]))
    assert str(OTHER.output_type) == '(float32[], float32[])'
    assert type(OTHER.output_type) is jf.TupleType


def test_names_go_with_the_value() -> None:
    """Through whatever passes it on, item by item too."""
    tree = jf.ForwardDeclaration(name='tree')
    tree.resolve_to(jf.OneOf(type, {dict: ONE, list: jf.GetItem(0) >> tree()}))
    zeros = jf.Zeros(([], []))
    cases = jf.OneOf(jf.GetItem('k'), {1: zeros, 0: ONE})
    apart = {'left': numbers, 'center': numbers}
    zipped = apart >> jf.ZipWith(turned) >> jf.Sum()
    three = jf.Record({'left': number, 'center': number, 'k': number})
    check(
        (jf.Map(ONE) >> jf.Map(turned) >> jf.Sum(), [[DATA, DATA]], [-18.0]),
        (zipped, [{'left': [1], 'center': [10]}], [-9]),
        (tree() >> turned, [[[DATA]]], [-9.0]),
        (cases >> turned, [DATA], [-9.0]),
        (jf.Optional(ONE) >> turned, [DATA], [-9.0]),
        (three >> jf.GetItem(slice(2)) >> turned, [DATA], [-9.0]),
        (jf.compose(lambda x: jf.Function(turned)(ONE(x))), [DATA], [-9.0]),
    )


@pytest.mark.parametrize(
    ('fn', 'got'),
    [
        (lambda a, left: a, '(a, left)'),
        (lambda center, b: b, '(center, b)'),
        (lambda x, left=None, center=None: x, '(x, left, center)'),
        (lambda center, *left: center, '(center)'),
    ],
)
def test_names_that_stand_for_others_are_refused(fn: Any, got: str) -> None:
    with refuses(
        f'Pipe[1].Function(function): expected parameters that {BY_NAME}, got {got}; '
        f'{WHAT_TO_DO}'
    ):
        jf.compile(ONE >> fn)


@pytest.mark.parametrize(
    ('fn', 'got'),
    [
        (lambda x, y, *, left=100.0: x - y + left, '(*, left)'),
        (lambda *, center, left: left - center, '(*, center, left)'),
        (lambda *both, center=0.0: both[0], '(*, center)'),
    ],
)
def test_fields_are_no_keywords(fn: Any, got: str) -> None:
    with refuses(
        'Pipe[1].Function(function): expected positional parameters for fields, got '
        f'{got}; write them before the `*`, or call them otherwise'
    ):
        jf.compile(ONE >> fn)
    keyed = jf.Function(lambda x, y, *, left: x - y, rngs='left')
    assert (ONE >> keyed).eval(DATA, {}, deterministic=True).item() == -9


def test_inputs_of_an_init_that_stand_for_others_are_refused() -> None:
    layer = jf.Function(lambda w, left, center: w, lambda key, center, left: left)
    with refuses(
        f'Pipe[1].Function(function): expected inputs of `init` that {BY_NAME}, got '
        f'(center, left); {WHAT_TO_DO}'
    ):
        jf.compile(ONE >> layer)


def test_cases_with_fields_in_two_orders_are_refused() -> None:
    with refuses(
        "Pipe[0].OneOf[1].Record({'center': Scalar('float32'), 'left': Scalar('floa...:"
        ' expected to give (left: float32[], center: float32[]), got (center: '
        'float32[], left: float32[]); write the fields in one order'
    ):
        jf.compile(jf.OneOf(jf.GetItem('k'), {0: ONE, 1: OTHER}) >> subtract)


def test_cases_may_call_their_fields_otherwise() -> None:
    """A function that says the names of one would turn the other too."""
    both = jf.OneOf(jf.GetItem('k'), {0: ONE, 1: {'k': number, 'x': number}})
    check((both >> (lambda left, x: left - x), [DATA, {'k': 1, 'x': 5}], [-9.0, -4.0]))
    with refuses(
        'Pipe[1].Function(turned): expected parameters that bear the names of all '
        'fields, (k|left, center|x), or each where its field stands, got (center, '
        f'left); {WHAT_TO_DO}'
    ):
        jf.compile(both >> turned)


def test_a_declared_type_knows_no_names() -> None:
    """What is found too late is told, and not left to the order."""
    tree = jf.ForwardDeclaration(output_type=([], []), name='tree')
    inner = jf.GetItem(0) >> tree() >> jf.Function(lambda *x: x)
    tree.resolve_to(jf.OneOf(type, {list: inner, dict: ONE}))
    check((tree() >> of_fields, [DATA], [-9.0]))
    tree = jf.ForwardDeclaration(output_type=([], []), name='tree')
    inner = jf.GetItem(0) >> tree() >> jf.Function(lambda center, left: (left, center))
    tree.resolve_to(jf.OneOf(type, {list: inner, dict: ONE}))
    with refuses(
        "tree.OneOf[<class 'list'>].Pipe[2].Function(function): expected parameters in "
        'the order of the fields, for a declared type has no names, got (left: '
        'float32[], center: float32[]); write them in one order'
    ):
        jf.compile(tree())


def test_a_declared_type_of_nothing_is_one() -> None:
    tree = jf.ForwardDeclaration(output_type=(), name='tree')
    tree.resolve_to(number)
    with refuses("tree.Scalar('float32'): expected to give (), got float32[]"):
        jf.compile(tree())


# ---- what data lack ------------------------------------------------------------------


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
        ((number, maybe), [(1,), [2, None], (3, 5)], [(1, 4), (2, 4), (3, 5)]),
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
    by_kind = jf.OneOf(kind, {'box': size, 'none': zero}, default=zero)
    first, second = jf.GetItem(0), jf.GetItem(1)
    by_place = jf.OneOf(first, (number,), second, default=number >> jnp.negative)
    check(
        (jf.OneOf(type, {int: number}, default=zero), [1, 'a', None], [1.0, 0.0, 0.0]),
        (by_kind, [{}, {'kind': 'box', 'size': 2}, {'kind': 'x'}], [0.0, 2.0, 0.0]),
        (by_place, [(0, 2), (-1, 3), (1, 4)], [2.0, 3.0, -4.0]),
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
