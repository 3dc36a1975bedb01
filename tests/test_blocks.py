# SPDX-License-Identifier: Apache-2.0
"""What each block means, by example: evaluated eagerly and as a compiled batch."""

from __future__ import annotations

import collections
import dataclasses
import enum
import re
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jfold as jf

Case = tuple[Any, list[Any], list[Any]]

number = jf.Scalar()
whole = jf.Scalar('int32')
numbers = jf.Map(number)
add = jf.Function(jnp.add)
subtract = jf.Function(jnp.subtract)


def same(got: Any, want: Any) -> None:
    """Equal structure and values; the dtype too, where `want` has one."""
    if isinstance(got, tuple | list):
        assert type(got) is type(want)
        assert len(got) == len(want)
        for pair in zip(got, want, strict=True):
            same(*pair)
    elif got is None or want is None or isinstance(got, str):
        assert got == want
    else:
        np.testing.assert_allclose(got, want, rtol=1e-6)
        assert np.shape(got) == np.shape(want)
        assert not hasattr(want, 'dtype') or got.dtype == want.dtype


def check(*cases: Case, params: Any = None) -> None:
    """Checks (block, examples, expected) one by one eagerly, and all in one batch."""
    model = jf.compile(jf.Record(tuple(block for block, _, _ in cases)))
    params = model.init(jax.random.key(0)) if params is None else params
    check_eager(*cases, params=params)
    size = max(len(examples) for _, examples, _ in cases)
    batch = [tuple(given[i % len(given)] for _, given, _ in cases) for i in range(size)]
    values = model.apply(params, model.schedule(batch))
    for value, (_, _, expected) in zip(values, cases, strict=True):
        for i in range(size):
            same(jax.tree.map(lambda x, i=i: x[i], value), expected[i % len(expected)])


def check_eager(*cases: Case, params: Any = None) -> None:
    """Checks one by one; all there is for what gives lists or Python values."""
    for block, examples, expected in cases:
        for example, want in zip(examples, expected, strict=True):
            same(jf.convert_to_block(block).eval(example, params), want)


def refuses(text: str, error: type[Exception] = TypeError) -> Any:
    """Expects an error with exactly this message."""
    return pytest.raises(error, match=f'^{re.escape(text)}$')


# ---- input ---------------------------------------------------------------------------


def test_tensor() -> None:
    half, byte = np.float16, np.uint8
    check(
        (number, [3, 2.5, True, np.int8(4)], [np.float32(x) for x in (3, 2.5, 1, 4)]),
        (
            whole,
            [3, 4.0, np.array(5), jnp.int32(6)],
            [np.int32(x) for x in range(3, 7)],
        ),
        (jf.Scalar('bool'), [True, 0, 1.0], [np.True_, np.False_, np.True_]),
        (jf.Scalar('complex64'), [1, 2j], [np.complex64(1), np.complex64(2j)]),
        (jf.Vector(2), [[1, 2], (3, 4.5), np.ones(2)], [[1, 2], [3, 4.5], [1, 1]]),
        (jf.Vector(0), [[], ()], [np.zeros(0, np.float32)] * 2),
        (jf.Tensor((1, 2), 'float16'), [[[1, 2]]], [np.array([[1, 2]], half)]),
        (jf.Tensor([2, 1], byte), [[[1], [255]]], [np.array([[1], [255]], byte)]),
        (
            jf.Scalar(jnp.bfloat16),
            [0.125, 256],
            [jnp.bfloat16(0.125), jnp.bfloat16(256)],
        ),
        (number, [float('inf'), -np.inf, float('nan')], [np.inf, -np.inf, np.nan]),
    )


def test_tensor_refuses_what_is_no_type() -> None:
    with refuses('expected `shape` as a tuple or list of non-negative ints, got 3'):
        jf.Tensor(3)  # type: ignore[arg-type]
    with refuses('expected `shape` as a tuple or list of non-negative ints, got (-1,)'):
        jf.Vector(-1)
    with refuses("expected `dtype` as a number type such as 'float32', got 'U3'"):
        jf.Scalar('U3')


def test_input_transform() -> None:
    digits = jf.InputTransform(abs) >> jf.InputTransform(str) >> jf.InputTransform(len)
    both = jf.AllOf(jf.InputTransform(abs), jf.Identity()) >> jf.InputTransform(sum)
    check(
        (jf.InputTransform(len) >> number, ['four', []], [4.0, 0.0]),
        (digits >> whole, [-123], [3]),
        (both >> number, [-2, 2], [0.0, 4.0]),
    )
    check_eager((jf.InputTransform(str), [12], ['12']))
    with refuses('InputTransform: expected a callable, got 3'):
        jf.InputTransform(3)  # type: ignore[arg-type]


def test_from_tensor() -> None:
    table = np.arange(6, dtype=np.int32).reshape(2, 3)
    check(
        (jf.FromTensor(table), [None, 'ignored'], [table, table]),
        (jf.FromTensor(jnp.ones(2)), [0], [np.ones(2, np.float32)]),
        (jf.FromTensor(np.float16(2)), [0], [np.float16(2)]),
        (jf.FromTensor(np.ones(2, '>f4')), [0], [np.ones(2, np.float32)]),
        (np.ones(2, np.float32) >> jf.Function(jnp.sum), [0], [2.0]),
        (number >> jf.Void() >> jf.FromTensor(table), [1], [table]),
    )
    with refuses('FromTensor: expected an array, got [1]'):
        jf.FromTensor([1])
    with refuses(
        "expected `dtype` as a number type such as 'float32', got dtype('<U1')"
    ):
        jf.FromTensor(np.array(['a']))


def test_from_tensor_keeps_a_copy() -> None:
    array = np.zeros(2, np.float32)
    block = jf.FromTensor(array)
    array[:] = 1
    same(block.eval(None), [0, 0])
    with pytest.raises(ValueError, match='read-only'):
        block.value[:] = 1


def test_zeros() -> None:
    nested = ('int32', (2, [1, 2, 'float16']), ())
    want = (np.int32(0), ([0, 0], np.zeros((1, 2), np.float16)), ())
    check((jf.Zeros(nested), [None, 7], [want, want]), (jf.Zeros([]), [0], [0.0]))
    check_eager(
        (jf.Zeros(jf.SequenceType((2, 3))), [0], [[]]), (jf.Zeros(()), [0], [()])
    )
    empty = jf.Zeros(jf.SequenceType(jf.SequenceType(2)))
    check((empty >> jf.Map(jf.Sum()) >> jf.Sum(), [0], [[0, 0]]))


def test_void() -> None:
    check(
        ({'a': jf.Void(), 'b': number}, [{'b': 1}], [(None, 1.0)]),
        (jf.AllOf(number >> jf.Void(), number), [3], [(None, 3.0)]),
        (jf.AllOf(jf.Map(jf.Void()), jf.Length()) >> jf.GetItem(1), ['abc'], [3.0]),
    )
    check_eager(
        (jf.Void(), [object()], [None]), (jf.Map(jf.Void()), ['ab'], [[None] * 2])
    )


# ---- functions -----------------------------------------------------------------------


def test_functions_of_one_example() -> None:
    def mixed(a: Any, b: Any) -> Any:
        return (a * 2, [b[0] + a, b[1]]), jnp.stack([a, a])

    pair = (number, (jf.Vector(2), whole))
    check(
        (number >> jnp.negative, [1, 2], [-1.0, -2.0]),
        (
            pair >> jf.Function(mixed),
            [(1, ([1, 2], 3))],
            [((2.0, ([2, 3], 3)), [1, 1])],
        ),
        (number >> (lambda x: (x, 1, 2.5)), [4], [(4.0, np.int32(1), np.float32(2.5))]),
        (jf.Vector(3) >> (lambda x: x[::-1]), [[1, 2, 3]], [[3, 2, 1]]),
        (jf.Record(()) >> (lambda: jnp.ones(2)), [0], [[1, 1]]),
    )


def test_functions_of_whole_tiles() -> None:
    calls = []

    def rows(x: Any, y: Any) -> Any:
        calls.append(x.shape)
        return jnp.einsum('ri,rij->rj', x, y)

    block = (jf.Vector(2), jf.Tensor((2, 3))) >> jf.Function(rows, batched=True)
    check((block, [([1, 2], np.ones((2, 3)))], [[3, 3, 3]]))
    assert all(len(shape) == 2 for shape in calls)


def test_functions_with_parameters() -> None:
    def init(key: Any, x: Any) -> Any:
        return {'scale': jnp.full(x.shape, 3.0), 'shift': 1.0}

    def layer(params: Any, x: Any) -> Any:
        return params['scale'] * x + params['shift']

    block = jf.Vector(2) >> jf.Function(layer, init)
    assert list(jf.compile(block).init(jax.random.key(0))) == ['layer']
    check((block, [[1, 2]], [[4, 7]]))
    with refuses(
        "Pipe[1].Function(layer): expected parameters for layer 'layer', got []; "
        '`model.init(key)` makes them'
    ):
        block.eval([1, 2])


def test_learned_constants() -> None:
    def start(key: Any) -> Any:
        return jnp.arange(3.0)

    learned = jf.Void() >> jf.Function(lambda p: p, start, name='start')
    vector = jf.Vector(3)
    check(
        (learned, [0, 0], [[0, 1, 2]] * 2),
        ({'x': vector, 'w': learned} >> add, [{'x': [1, 1, 1]}], [[1, 2, 3]]),
        (
            jf.Map(vector) >> jf.Fold(add, learned),
            [[], [[1, 1, 1]]],
            [[0, 1, 2], [1, 2, 3]],
        ),
        (jf.Map(vector) >> jf.Max(learned), [[], [[1, 1, 1]]], [[0, 1, 2], [1, 1, 1]]),
    )


class Affine(nn.Module):
    """A Linen module of two inputs and two outputs."""

    @nn.compact
    def __call__(self, x: Any, y: Any) -> Any:
        return nn.Dense(2)(x), nn.Dense(1, name='second')(y)


def test_flax_modules() -> None:
    linen = (jf.Vector(3), jf.Vector(2)) >> jf.Function(Affine())
    nnx_linear = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    model = jf.compile(
        (linen, jf.GetItem(0) >> jf.Vector(3) >> jf.Function(nnx_linear))
    )
    params = model.init(jax.random.key(1))
    assert list(params) == ['Affine', 'Linear']
    assert params['Affine']['second']['kernel'].shape == (2, 1)
    x, y = np.ones(3, np.float32), np.ones(2, np.float32)
    want = Affine().apply({'params': params['Affine']}, x, y), nnx_linear(x)
    example = ((x, y), (x, y))
    same(model.eval(example, params), want)
    got = model.apply(params, model.schedule([example]))
    same(jax.tree.map(lambda a: a[0], got), want)


def test_the_same_callable_shares_parameters() -> None:
    def init(key: Any, x: Any) -> Any:
        return jax.random.normal(key, x.shape)

    def scale(p: Any, x: Any) -> Any:
        return p * x

    def other(p: Any, x: Any) -> Any:
        return p * x

    blocks = [
        jf.Function(scale, init),
        jf.Function(scale, init),
        jf.Function(scale, init, name='mine'),
        jf.Function(scale, init, name='mine'),
        jf.Function(other, init, name='mine'),
        jf.Function(lambda p, x: p * x, init),
    ]
    model = jf.compile(number >> jf.AllOf(*blocks))
    params = model.init(jax.random.key(0))
    assert list(params) == ['scale', 'mine', 'mine_1', 'function']
    assert len(set(map(float, params.values()))) == 4
    assert len(model.program.operations) == 4
    a, b, c, d, e, f = model.eval(1, params)
    assert a == b != c == d != e != f


def test_one_callable_at_two_types_is_one_layer() -> None:
    def init(key: Any, x: Any) -> Any:
        return jnp.float32(2)

    scale = jf.Function(lambda p, x: p * x, init, name='scale')
    model = jf.compile((number >> scale, jf.Vector(2) >> scale))
    assert [layer.name for layer in model.program.layers] == ['scale']
    assert [repr(operation) for operation in model.program.operations] == [
        'scale(float32[]) -> float32[]',
        'scale(float32[2]) -> float32[2]',
    ]


def test_bound_methods_are_one_layer() -> None:
    class Scale:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def times(self, x: Any) -> Any:
            return self.factor * x

    two, three = Scale(2.0), Scale(3.0)
    block = number >> jf.AllOf(two.times, two.times, three.times)
    assert len(jf.compile(block).program.operations) == 2
    check((block, [1], [(2.0, 2.0, 3.0)]))


def test_functions_refuse() -> None:
    with refuses('Function: expected a callable, got 3'):
        jf.Function(3)  # type: ignore[arg-type]
    with refuses('Function: expected a callable, got Identity()'):
        jf.Function(jf.Identity())  # type: ignore[arg-type]
    with refuses('Function: expected `init` callable, got 3'):
        jf.Function(abs, init=3)  # type: ignore[arg-type]
    with refuses('Function: expected `name` as str, got 3'):
        jf.Function(abs, name=3)  # type: ignore[arg-type]


def test_concat() -> None:
    pair, row = (number, jf.Vector(2)), jf.Tensor((1, 2))
    nested = (number, (jf.Vector(2), (number,)))
    check(
        (pair >> jf.Concat(), [(1, [2, 3])], [[1, 2, 3]]),
        ((number, number) >> jf.Concat(), [(1, 2)], [[1, 2]]),
        ((row, row) >> jf.Concat(), [([[1, 2]], [[3, 4]])], [[[1, 2], [3, 4]]]),
        ((row, row) >> jf.Concat(1), [([[1, 2]], [[3, 4]])], [[[1, 2, 3, 4]]]),
        ((row, row) >> jf.Concat(-1), [([[1, 2]], [[3, 4]])], [[[1, 2, 3, 4]]]),
        (nested >> jf.Concat(flatten=True), [(1, ([2, 3], (4,)))], [[1, 2, 3, 4]]),
        ((whole, whole) >> jf.Concat(), [(1, 2)], [np.array([1, 2], np.int32)]),
    )


# ---- composition ---------------------------------------------------------------------


def test_identity_and_pipe() -> None:
    check(
        (jf.Pipe(number), [1], [1.0]),
        (jf.Identity() >> number >> jf.Identity(), [1], [1.0]),
        (jf.Pipe(jf.InputTransform(abs), number, jnp.negative), [-1], [-1.0]),
        (jf.Pipe(number >> jnp.negative, jnp.negative), [1], [1.0]),
    )
    check_eager((jf.Pipe(), ['x'], ['x']), (jf.Identity(), ['x'], ['x']))
    assert len(jf.Pipe(number >> jnp.negative, jf.Identity() >> add).blocks) == 4


def test_either_side_of_a_pipe_may_be_convertible() -> None:
    check(
        ({'b': number, 'a': number} >> subtract, [{'a': 5, 'b': 3}], [2.0]),
        ([number, number] >> subtract, [(5, 3)], [2.0]),
        ((number, number) >> subtract, [(5, 3)], [2.0]),
        (number >> jnp.negative, [1], [-1.0]),
        (
            number >> jf.AllOf(jnp.negative, jf.Identity()) >> [jnp.negative, jnp.abs],
            [1],
            [(1.0, 1.0)],
        ),
        (jnp.ones(2) >> jf.Identity(), [0], [[1, 1]]),
    )
    for wrong in (3, None, 'x', np.float32(1)):
        with pytest.raises(
            TypeError, match='expected a block, a callable, an array, or'
        ):
            number >> wrong
        with pytest.raises(
            TypeError, match='expected a block, a callable, an array, or'
        ):
            wrong >> number


def test_what_must_be_called_first() -> None:
    for maker in (jf.Scalar, jf.Identity, jf.Sum, jf.ForwardDeclaration('int32')):
        with refuses(f'expected a block, got {maker!r} itself: call it to get one'):
            number >> maker


def test_record_of_a_dict_is_sorted() -> None:
    data = {'c': 3, 'a': 1, 'b': 2, 'more': 'ignored'}
    names = collections.OrderedDict([('c', number), ('a', number), ('b', number)])
    check(
        ({'c': number, 'a': number, 'b': number}, [data], [(1.0, 2.0, 3.0)]),
        (jf.Record(names), [data], [(3.0, 1.0, 2.0)]),
        (jf.Record([('c', number), ('a', number)]), [data], [(3.0, 1.0)]),
        (jf.Record([('c', number), ('c', whole)]), [data], [(3.0, np.int32(3))]),
        ({2: number, 0: number}, [(1, 2, 3)], [(1.0, 3.0)]),
        ({-1: number}, [[1, 2, 3]], [(3.0,)]),
        ((number, whole), [(1, 2)], [(1.0, np.int32(2))]),
        ([number, whole], [(1, 2, 'ignored')], [(1.0, np.int32(2))]),
        (jf.Record([((0, 1), number)]), [{(0, 1): 5}], [(5.0,)]),
        (jf.Record([(slice(1, 3), jf.Vector(2))]), [[1, 2, 3]], [([2, 3],)]),
        ({None: number}, [{None: 1}], [(1.0,)]),
    )


def test_records_in_records() -> None:
    check(
        (
            {'a': {'y': number, 'x': (number, number)}},
            [{'a': {'x': (1, 2), 'y': 3}}],
            [(((1.0, 2.0), 3.0),)],
        ),
        ({'a': number, 'b': jf.Record(())}, [{'a': 1, 'b': 2}], [(1.0, ())]),
    )


Pair = collections.namedtuple('Pair', 'left right')


@dataclasses.dataclass(frozen=True)
class Node:
    """A record as a dataclass."""

    left: Any
    right: Any


class Plain:
    """A record as an object that is told nothing else."""

    def __init__(self, left: Any, right: Any) -> None:
        self.left, self.right = left, right


class Row:
    """An object with items and without `keys`."""

    def __getitem__(self, key: str) -> Any:
        return {'left': 9, 'right': 4}[key]


def test_records_of_every_kind_of_object() -> None:
    block = {'left': number, 'right': number} >> subtract
    array = np.array((9, 4), [('left', 'i4'), ('right', 'f4')])
    kinds = [{'left': 9, 'right': 4}, Pair(9, 4), Node(9, 4), Plain(9, 4), Row(), array]
    check((block, kinds, [5.0] * 6))
    check((block, kinds[::-1], [5.0] * 6), (block, [kinds[4]], [5.0]))


def test_records_of_typed_tuples() -> None:
    pair = (number, number)
    check(
        (pair >> jf.Record((jnp.negative, jf.Identity())), [(1, 2)], [(-1.0, 2.0)]),
        (
            pair >> jf.Record({1: jnp.negative, 0: jf.Identity()}),
            [(1, 2)],
            [(1.0, -2.0)],
        ),
        (
            pair >> jf.Record([(1, jnp.negative), (0, jf.Identity())]),
            [(1, 2)],
            [(-2.0, 1.0)],
        ),
        (pair >> jf.Record({-1: jf.Identity()}), [(1, 2)], [(2.0,)]),
    )


def test_constants_anywhere() -> None:
    zero, one = jf.Zeros([]), jf.FromTensor(np.float32(1))
    pick = {'a': number, 'b': one, 'c': zero >> jnp.cos}
    cases = {'one': one, 'zero': zero, 'both': (zero, one) >> add}
    check(
        (jf.Record(pick), [{'a': 5}], [(5.0, 1.0, 1.0)]),
        ((zero, (one, zero)), [{}, 7], [(0.0, (1.0, 0.0))] * 2),
        (jf.AllOf(number, one), [4], [(4.0, 1.0)]),
        (jf.OneOf(str, cases), ['one', 'zero', 'both'], [1.0, 0.0, 1.0]),
        (jf.OneOf(str, cases | {'x': jf.InputTransform(len) >> number}), ['x'], [1.0]),
        (numbers >> jf.Map(one) >> jf.Sum(), [[4, 5, 6], []], [3.0, 0.0]),
        (jf.Fold((jf.Identity(), number) >> add, one >> jnp.negative), [[4]], [3.0]),
        (
            jf.Fold(
                jf.Record(((jnp.negative, jf.Identity()), number)) >> jf.GetItem(0),
                (one, zero),
            ),
            [[4]],
            [(-1.0, 0.0)],
        ),
    )


def test_record_refuses() -> None:
    with refuses('Record: expected a dict, list or tuple, got 3'):
        jf.Record(3)
    with refuses(
        "Record: keys [1, 'a'] cannot be sorted; "
        'pass a list of pairs to fix their order'
    ):
        jf.Record({1: number, 'a': number})
    with pytest.raises(TypeError, match=r'expected a block, a callable, .* got 3$'):
        jf.Record({'a': 3})


def test_all_of() -> None:
    check(
        (jf.AllOf(number, whole), [3], [(3.0, np.int32(3))]),
        (jf.AllOf(number, number) >> add, [3], [6.0]),
        (jf.AllOf(number), [3], [(3.0,)]),
        (number >> jf.AllOf(jnp.negative, jf.AllOf()), [3], [(-3.0, ())]),
    )
    check_eager((jf.AllOf(), [3], [()]))


def test_blocks_are_reused_anywhere() -> None:
    shared = number >> jnp.negative
    twice = jf.AllOf(shared, shared) >> add
    check(
        (shared, [1], [-1.0]),
        (twice, [1], [-2.0]),
        (
            jf.Map(twice) >> jf.Reduce(add, shared_zero := jf.Zeros([])),
            [[1, 2]],
            [-6.0],
        ),
        ((twice, shared, shared_zero), [(1, 2, 0)], [(-2.0, -2.0, 0.0)]),
    )
    assert jf.compile((twice, shared)).program.layers[0].name == 'negative'
    assert len(jf.compile((twice, shared)).program.operations) == 2


def test_get_item() -> None:
    pair, triple = (number, jf.Vector(2)), (number, whole, number)
    matrix = jf.Tensor((2, 3))
    grid = np.arange(6, dtype=np.float32).reshape(2, 3)
    check(
        (jf.GetItem('a') >> jf.GetItem(-1) >> number, [{'a': [1, 2]}], [2.0]),
        (jf.GetItem(slice(1, None)) >> jf.Vector(2), [[1, 2, 3]], [[2, 3]]),
        (jf.GetItem('left') >> number, [Node(1, 2), {'left': 3}], [1.0, 3.0]),
        (pair >> jf.GetItem(1), [(1, [2, 3])], [[2, 3]]),
        (pair >> jf.GetItem(np.int64(-2)), [(1, [2, 3])], [1.0]),
        (triple >> jf.GetItem(slice(None, None, -2)), [(1, 2, 3)], [(3.0, 1.0)]),
        (triple >> jf.GetItem(slice(5, 9)), [(1, 2, 3)], [()]),
        (numbers >> jf.GetItem(1), [[1, 2], [3, 4, 5]], [2.0, 4.0]),
        (numbers >> jf.GetItem(-2), [[1, 2], [3, 4, 5]], [1.0, 4.0]),
        (matrix >> jf.GetItem(-1), [grid], [grid[-1]]),
        (matrix >> jf.GetItem(slice(1)), [grid], [grid[:1]]),
        (matrix >> jf.GetItem((0, slice(1, 3))), [grid], [grid[0, 1:3]]),
        (matrix >> jf.GetItem((slice(None), -1)), [grid], [grid[:, -1]]),
        (matrix >> jf.GetItem(...) >> jf.GetItem(None), [grid], [grid[None]]),
    )


@pytest.mark.parametrize(
    'cut',
    [slice(2), slice(-2, None), slice(None, None, -1), slice(5, 0, -2), slice(1, 9, 3)],
)
def test_a_slice_of_a_sequence_is_a_sequence(cut: slice) -> None:
    examples = [list(range(n)) for n in range(8)]
    want = [[float(x) for x in example[cut]] for example in examples]
    check_eager((numbers >> jf.GetItem(cut), examples, want))
    weighed = (
        numbers >> jf.GetItem(cut) >> jf.Fold(lambda s, x: 3 * s + x, jf.Zeros([]))
    )
    model = jf.compile(weighed)
    values = model.apply({}, model.schedule(examples))
    same(values, [model.eval(example) for example in examples])


# ---- control -------------------------------------------------------------------------


class Color(enum.Enum):
    """Keys that are neither strings nor numbers."""

    RED = 1
    BLUE = 2


def test_one_of() -> None:
    negated = number >> jnp.negative
    first, rest = jf.GetItem(0), jf.GetItem(1)
    by_color = [(Color.RED, negated), (Color.BLUE, number)]
    by_type = {int: number, list: numbers >> jf.Sum()}
    check(
        (
            jf.OneOf(lambda x: x > 0, {True: number, False: negated}),
            [1, -2],
            [1.0, 2.0],
        ),
        (jf.OneOf(lambda x: int(x > 0), {True: number, False: negated}), [-2], [2.0]),
        (jf.OneOf(lambda x: x > 0, {1: number, 0: negated}), [1, -2], [1.0, 2.0]),
        (jf.OneOf(lambda x: np.bool_(x > 0), (negated, number)), [1, -2], [1.0, 2.0]),
        (jf.OneOf(type, by_type), [1, [1, 2]], [1.0, 3.0]),
        (
            jf.OneOf(first, by_color, rest),
            [(Color.RED, 1), (Color.BLUE, 2)],
            [-1.0, 2.0],
        ),
        (
            jf.OneOf(first, (number, negated), pre_block=rest),
            [(0, 1), (1, 1), (-1, 1), (-2, 1)],
            [1.0, -1.0, -1.0, 1.0],
        ),
        (jf.OneOf(first, [number, negated], rest), [(0, 1), (1, 1)], [1.0, -1.0]),
        (
            jf.OneOf(
                lambda x: x, [('a', number), ('a', negated)], jf.InputTransform(ord)
            ),
            ['a'],
            [-97.0],
        ),
        (jf.OneOf(str, {'1': number}), [1], [1.0]),
    )


def test_one_of_a_key_block_on_typed_data() -> None:
    pair = jf.Record((jf.Identity(), number))
    flipped = jf.OneOf(
        jf.GetItem(0), {'+': jf.Identity(), '-': jnp.negative}, jf.GetItem(1)
    )
    whole_pair = {'+': jf.GetItem(1), '-': jf.GetItem(1) >> jnp.negative}
    check(
        (pair >> flipped, [('+', 1), ('-', 2)], [1.0, -2.0]),
        (
            pair >> jf.OneOf(jf.GetItem(0), whole_pair),
            [('+', 1), ('-', 2)],
            [1.0, -2.0],
        ),
    )


def test_one_of_gives_tuples_and_sequences() -> None:
    cases = {'pair': jf.AllOf(jf.Length(), jf.Zeros(2)), 'none': jf.Zeros(([], 2))}
    lists = {'some': jf.GetItem(1) >> numbers, 'none': jf.Zeros(jf.SequenceType([]))}
    check(
        (
            jf.OneOf(lambda x: x, cases),
            ['pair', 'none'],
            [(4.0, [0, 0]), (0.0, [0, 0])],
        ),
        (
            jf.OneOf(jf.GetItem(0), lists)
            >> jf.Fold(lambda s, x: 2 * s + x, jf.Zeros([])),
            [('some', [1, 2]), ('none',), ('some', []), ('some', [3])],
            [4.0, 0.0, 0.0, 3.0],
        ),
    )


def test_one_of_refuses() -> None:
    with refuses('OneOf: expected a callable `key_fn`, got 3'):
        jf.OneOf(3, {1: number})
    for none in ({}, [], ()):
        with refuses('OneOf: expected at least one case, got none', ValueError):
            jf.OneOf(abs, none)


def test_optional() -> None:
    size = jf.InputTransform(len) >> number
    minus = jf.FromTensor(np.float32(-1))
    nothing = jf.Optional(jf.Record((number, numbers >> jf.Sum())))
    check(
        (jf.Optional(number), [1, None, 0, False], [1.0, 0.0, 0.0, 0.0]),
        (jf.Optional(size, minus), ['', None, 'ab', []], [0.0, -1.0, 2.0, 0.0]),
        (nothing, [None, (1, [2])], [(0.0, 0.0), (1.0, 2.0)]),
        (jf.Optional(numbers) >> jf.Sum(), [None, [1, 2], []], [0.0, 3.0, 0.0]),
        (jf.Optional(jf.Optional(number), minus), [None, 2], [-1.0, 2.0]),
        ({'a': jf.Optional(number)} >> jf.GetItem(0), [{'a': None}], [0.0]),
        (jf.AllOf(jf.Optional(number >> jf.Void()), number), [1], [(None, 1.0)]),
    )
    check_eager((jf.Optional(numbers), [None, [1]], [[], [1.0]]))


def test_recursion() -> None:
    tree, expression = jf.ForwardDeclaration(), jf.ForwardDeclaration(name='expression')
    pair = jf.Record((tree(), tree())) >> subtract
    tree.resolve_to(jf.OneOf(type, {tuple: pair, int: number}))
    cases = {'+': add, '-': subtract, '*': jnp.multiply}
    binary = [
        (k, jf.Record({1: expression(), 2: expression()}) >> f)
        for k, f in cases.items()
    ]
    literal = ('n', jf.GetItem(1) >> number)
    expression.resolve_to(jf.OneOf(lambda x: x[0], [*binary, literal]))
    n = [('n', i) for i in range(5)]
    sums = [
        ('+', ('*', n[2], n[3]), ('-', n[4], n[1])),
        n[3],
        ('-', n[1], ('+', n[1], n[1])),
    ]
    check(
        (tree(), [1, (1, (2, 3)), ((1, 2), 3)], [1.0, 2.0, -4.0]),
        (expression(), sums, [9.0, 3.0, -1.0]),
        (jf.Map(tree()) >> jf.Sum(), [[1, (5, 2)], []], [4.0, 0.0]),
    )


def test_mutual_recursion_over_lists() -> None:
    even = jf.ForwardDeclaration(name='even')
    odd = jf.ForwardDeclaration(output_type='float32', name='odd')
    even.resolve_to({'n': number, 'items': jf.Map(odd()) >> jf.Sum()} >> add)
    odd.resolve_to({'n': number, 'items': jf.Map(even()) >> jf.Sum()} >> subtract)
    leaf = {'n': 1, 'items': []}
    tree = {'n': 10, 'items': [leaf, {'n': 5, 'items': [leaf, leaf]}]}
    check((even(), [leaf, tree], [1.0, 6.0]), (odd(), [leaf, tree], [-1.0, -6.0]))


def test_recursion_on_tuples_made_of_objects() -> None:
    tree = jf.ForwardDeclaration()
    pair = jf.Record((tree(), tree())) >> subtract
    node = jf.AllOf(jf.GetItem('left'), jf.GetItem('right')) >> tree()
    halves = jf.GetItem('items') >> jf.Map(jf.InputTransform(abs)) >> tree()
    by_type = {
        tuple: pair,
        list: pair,
        int: number,
        dict: jf.OneOf(len, (halves,) * 2 + (node,)),
    }
    tree.resolve_to(jf.OneOf(type, by_type))
    data = [1, {'left': 5, 'right': (1, 2)}, {'items': [-3, -7]}]
    check((tree(), data, [1.0, 6.0, -4.0]))


def test_recursion_that_gives_tuples_and_sequences() -> None:
    tree = jf.ForwardDeclaration(output_type=('float32', jf.SequenceType('float32')))
    children = jf.GetItem('items') >> jf.Map(tree() >> jf.GetItem(0))
    total = jf.AllOf(jf.GetItem('n') >> number, children)
    tree.resolve_to(total >> jf.Record((jf.Identity(), jf.Identity())))
    last = tree() >> jf.GetItem(1) >> jf.Sum()
    leaf = {'n': 1, 'items': []}
    check(
        (last, [leaf, {'n': 2, 'items': [leaf, {'n': 4, 'items': [leaf]}]}], [0.0, 5.0])
    )


# ---- sequences -----------------------------------------------------------------------


def test_map_takes_whatever_is_iterable() -> None:
    total = numbers >> jf.Sum()
    lists = [
        [1, 2],
        (1, 2),
        np.array([1.0, 2.0]),
        {1: 'a', 2: 'b'},
        range(1, 3),
        {1, 2},
        [],
    ]
    rows = jf.Map(jf.Vector(2)) >> jf.Sum()
    check(
        (total, lists, [3.0] * 6 + [0.0]),
        (
            jf.Map(jf.InputTransform(ord) >> number) >> jf.Sum(),
            ['ab', ''],
            [195.0, 0.0],
        ),
        (rows, [np.arange(4).reshape(2, 2), [[1, 2]]], [[2, 4], [1, 2]]),
        (jf.Map(jf.Map(number) >> jf.Sum()) >> jf.Sum(), [[[1], [], [2, 3]]], [6.0]),
        (numbers >> jf.Map(jnp.negative) >> jf.Sum(), [[1, 2]], [-3.0]),
    )
    check_eager((numbers, [[1, 2], []], [[1.0, 2.0], []]))


def test_map_takes_generators_once() -> None:
    def count(n: int) -> Iterator[int]:
        yield from range(n)

    total = numbers >> jf.Sum()
    assert total.eval(count(4)) == 6
    model = jf.compile(total)
    batch = [count(4), [1, 2], count(0), iter([5])]
    assert model.apply({}, model.schedule(batch)).tolist() == [6, 3, 0, 5]


def test_a_length_that_lies_is_not_believed() -> None:
    class Lying(list[int]):
        def __len__(self) -> int:
            return 3

    model = jf.compile(numbers >> jf.Sum())
    got = model.apply({}, model.schedule([Lying([1, 2]), [3]]))
    assert got.tolist() == [3, 3]


def test_map_over_objects_made_by_map() -> None:
    halves = jf.Map(jf.AllOf(jf.InputTransform(abs), jf.Identity()))
    check(
        (
            halves >> jf.Map(jf.InputTransform(sum) >> number) >> jf.Sum(),
            [[-1, 2]],
            [4.0],
        ),
        (halves >> jf.Map((number, number) >> subtract) >> jf.Sum(), [[-1, 2]], [2.0]),
        (halves >> jf.InputTransform(len) >> number, [[-1, 2]], [2.0]),
    )


def test_fold_combines_state_and_item() -> None:
    def step(state: Any, item: Any) -> Any:
        return 10 * state + item

    start = jf.FromTensor(np.float32(7))
    typed = (number, number, number) >> jf.Fold(step, jf.Zeros([]))
    count = jf.Fold(jf.GetItem(0) >> (lambda n: n + 1), jf.Zeros('int32'))
    to_vector = jf.Fold(jf.Record((jf.Identity(), number)) >> add, jf.Zeros(2))
    check(
        (
            numbers >> jf.Fold(step, jf.Zeros([])),
            [[1, 2, 3], [4], []],
            [123.0, 4.0, 0.0],
        ),
        (numbers >> jf.Fold(step, start), [[1, 2], []], [712.0, 7.0]),
        (jf.Fold((jf.Identity(), number) >> jf.Function(step), start), [(1,)], [71.0]),
        (typed, [(1, 2, 3)], [123.0]),
        (count, ['four', range(3), []], [np.int32(4), np.int32(3), np.int32(0)]),
        (to_vector, [[1, 2], []], [[3, 3], [0, 0]]),
        (jf.Map(numbers >> jf.Fold(step, start)) >> jf.Sum(), [[[1], []]], [78.0]),
    )


def test_fold_with_a_tuple_as_state() -> None:
    def step(state: Any, item: Any) -> Any:
        low, high = state
        return jnp.minimum(low, item), jnp.maximum(high, item)

    check(
        (
            numbers >> jf.Fold(step, jf.Zeros(([], []))),
            [[3, -2, 1], []],
            [(-2.0, 3.0), (0.0, 0.0)],
        ),
    )


def test_a_fold_inside_a_fold() -> None:
    inner = jf.Fold((jf.Identity(), number) >> add, jf.Zeros([]))
    outer = jf.Fold((jf.Identity(), inner) >> subtract, jf.Zeros([]))
    check((outer, [[[1, 2], [3]], [], [[]]], [-6.0, 0.0, 0.0]))


@pytest.mark.parametrize('typed', [False, True])
def test_reduce_is_balanced(typed: bool) -> None:
    golden = [0, 1, -1, -4, 0, -5, 1, 8, 0]
    if not typed:
        lists = [list(range(1, n + 1)) for n in range(9)]
        check((numbers >> jf.Reduce(jnp.subtract), lists, [float(x) for x in golden]))
        return
    cases = []
    for n in range(1, 9):
        block = jf.Record((number,) * n) >> jf.Reduce(subtract)
        cases.append((block, [tuple(range(1, n + 1))], [float(golden[n])]))
    check(*cases)


def test_reduce_of_one_and_of_none() -> None:
    never = jf.Reduce(lambda a, b: a * 0, jf.FromTensor(np.float32(5)))
    pairs = jf.Map((number, jf.Vector(2)))
    both = jf.Reduce(lambda a, b: (a[0] + b[0], a[1] * b[1]))
    check(
        (numbers >> never, [[3], []], [3.0, 5.0]),
        (
            pairs >> both,
            [[(1, [2, 3]), (1, [4, 5])], []],
            [(2.0, [8, 15]), (0.0, [0, 0])],
        ),
        (jf.Map(jf.Vector(2)) >> jf.Sum(), [[], [[1, 2]]], [[0, 0], [1, 2]]),
    )


def test_sum_max_min_length() -> None:
    low = jf.FromTensor(np.float32(-np.inf))
    lists = [[3, -1, 2], [-5], []]
    check(
        (numbers >> jf.Sum(), lists, [4.0, -5.0, 0.0]),
        (numbers >> jf.Max(), lists, [3.0, -5.0, 0.0]),
        (numbers >> jf.Min(), lists, [-1.0, -5.0, 0.0]),
        (numbers >> jf.Max(default=low), lists, [3.0, -5.0, -np.inf]),
        (numbers >> jf.Min(low), lists, [-1.0, -5.0, -np.inf]),
        (jf.Map(whole) >> jf.Max(), lists, [np.int32(x) for x in (3, -5, 0)]),
        ((number, number) >> jf.Max(), [(1, 2)], [2.0]),
        (jf.Length(), [[1, 2], 'abc', {}], [np.float32(x) for x in (2, 3, 0)]),
        (numbers >> jf.Length('int32'), lists, [np.int32(x) for x in (3, 1, 0)]),
        ((number, number) >> jf.Length(), [(1, 2)], [2.0]),
        (jf.Record(()) >> jf.Length(), [0], [0.0]),
    )


def test_mean() -> None:
    halves = jf.Map(jf.Scalar('float16')) >> jf.Mean()
    check(
        (numbers >> jf.Mean(), [[1, 2], [5], []], [np.float32(x) for x in (1.5, 5, 0)]),
        (jf.Map(jf.Vector(2)) >> jf.Mean(), [[[1, 2], [3, 4]], []], [[2, 3], [0, 0]]),
        (halves, [[1, 2], [0.25] * 4100], [np.float16(1.5), np.float16(0.25)]),
        (jf.Map(whole) >> jf.Mean(), [[1, 2], []], [np.float32(1.5), np.float32(0)]),
        ((number, number) >> jf.Mean(), [(1, 2)], [1.5]),
    )


def test_double_precision() -> None:
    with jax.enable_x64(True):
        double = jf.Map(jf.Scalar('float64'))
        third = np.float64(1) / 3
        check(
            (double >> jf.Mean(), [[third, third], []], [third, np.float64(0)]),
            (jf.Scalar('int64'), [2**53 + 1], [np.int64(2**53 + 1)]),
            (jf.FromTensor(np.ones(2)), [0], [np.ones(2)]),
            (numbers >> jf.Length('float64'), [[1]], [np.float64(1)]),
        )


# ---- metrics -------------------------------------------------------------------------


def observed(name: str) -> jf.Block:
    """Passes its input on and observes it."""
    return jf.AllOf(jf.Identity(), jf.Metric(name)) >> jf.GetItem(0)


def test_metrics() -> None:
    block = jf.Map(number >> observed('item')) >> jf.Sum() >> observed('sum')
    model = jf.compile(block)
    lists = [[1, 2, 3], [], [4]]
    values, metrics = model.apply({}, model.schedule(lists))
    assert values.tolist() == [6, 0, 4]
    assert list(metrics) == ['item', 'sum']
    item = metrics['item']
    assert item.values[item.mask].tolist() == [1, 2, 3, 4]
    assert item.example[item.mask].tolist() == [0, 0, 0, 2]
    assert set(item.example[~item.mask].tolist()) <= {3}
    assert not item.values[~item.mask].any()
    assert item.mask.sum() == 4
    assert (item.sum(), item.mean()) == (10, 2.5)
    assert metrics['sum'].sum() == 10
    by_example = jax.ops.segment_sum(item.values, item.example, num_segments=3)
    assert by_example.tolist() == [6, 0, 4]
    assert block.eval([1, 2]) == (3, {'item': [1, 2], 'sum': [3]})


def test_a_metric_of_a_tuple_in_a_recursion() -> None:
    tree = jf.ForwardDeclaration()
    pair = jf.Record((tree(), tree())) >> observed('pairs') >> add
    tree.resolve_to(jf.OneOf(type, {tuple: pair, int: number}))
    model = jf.compile(tree() >> jf.Void())
    none, metrics = model.apply({}, model.schedule([(1, (2, 3)), 4, ((5, 6), 7)]))
    assert none is None
    pairs = metrics['pairs']
    left, right = (x[pairs.mask].tolist() for x in pairs.values)
    assert pairs.example[pairs.mask].tolist() == [0, 0, 2, 2]
    rows = sorted(zip(left, right, strict=True))
    assert rows == [(1, 5), (2, 3), (5, 6), (11, 7)]
    same(pairs.sum(), (19.0, 21.0))
    same(pairs.mean(), (19 / 4, 21 / 4))


def test_a_metric_that_meets_nothing() -> None:
    model = jf.compile(jf.Map(number >> jf.Metric('m')) >> jf.Length())
    values, metrics = model.apply({}, model.schedule([[], []]))
    assert values.tolist() == [0, 0]
    assert not metrics['m'].mask.any()
    assert (metrics['m'].sum(), metrics['m'].mean()) == (0, 0)
    assert (jf.Map(number >> jf.Metric('m')) >> jf.Length()).eval([]) == (0, {'m': []})
    with refuses('Metric: expected `name` as str, got 3'):
        jf.Metric(3)  # type: ignore[arg-type]


# ---- blocks as values ----------------------------------------------------------------

tree_of_reprs = jf.ForwardDeclaration(name='tree')

SHOWN: list[tuple[Any, str]] = [
    (jf.Scalar(), "Scalar('float32')"),
    (jf.Vector(3, 'int8'), "Vector(3, 'int8')"),
    (jf.Tensor([2, 3]), "Tensor((2, 3), 'float32')"),
    (jf.InputTransform(len), 'InputTransform(len)'),
    (jf.FromTensor(np.ones((2, 3), 'float32')), 'FromTensor(float32[2,3])'),
    (jf.Zeros(('int32', 2)), 'Zeros((int32[], float32[2]))'),
    (jf.Void(), 'Void()'),
    (jf.Function(jnp.tanh), 'Function(tanh)'),
    (jf.Function(jnp.tanh, name='mine'), 'Function(mine)'),
    (jf.Function(lambda x: x), 'Function(function)'),
    (jf.Function(nn.Dense(2)), 'Function(Dense)'),
    (jf.Concat(), 'Function(concat)'),
    (jf.Identity(), 'Identity()'),
    (jf.Pipe(), 'Pipe()'),
    (jf.Void() >> jf.Identity(), 'Void() >> Identity()'),
    (jf.Record({'b': jf.Void(), 'a': jf.Void()}), "Record({'a': Void(), 'b': Void()})"),
    (jf.Record([(1, jf.Void()), (1, jf.Void())]), 'Record({1: Void(), 1: Void()})'),
    (jf.Record((jf.Void(),)), 'Record({0: Void()})'),
    (jf.Record([(slice(2), jf.Void())]), 'Record({slice(None, 2, None): Void()})'),
    (jf.AllOf(jf.Void(), jf.Void()), 'AllOf(Void(), Void())'),
    (jf.GetItem('a'), "GetItem('a')"),
    (jf.GetItem(np.int64(1)), 'GetItem(1)'),
    (jf.OneOf(abs, (jf.Void(), jf.Void())), 'OneOf(abs, {0: Void(), 1: Void()})'),
    (
        jf.OneOf(jf.GetItem(0), {'a': jf.Void()}, jf.GetItem(1)),
        "OneOf(GetItem(0), {'a': Void()}, pre_block=GetItem(1))",
    ),
    (jf.Optional(jf.Scalar()), "Optional(Scalar('float32'))"),
    (jf.Optional(jf.Void(), jf.Zeros(())), 'Optional(Void(), none_case=Zeros(()))'),
    (tree_of_reprs, "ForwardDeclaration('tree')"),
    (tree_of_reprs(), 'tree()'),
    (jf.Metric('loss'), "Metric('loss')"),
    (jf.Map(jf.Void()), 'Map(Void())'),
    (jf.Fold(jnp.add, jf.Zeros([])), 'Fold(Function(add), Zeros(float32[]))'),
    (jf.Reduce(jnp.add), 'Reduce(Function(add))'),
    (
        jf.Reduce(jnp.add, jf.Zeros([])),
        'Reduce(Function(add), default=Zeros(float32[]))',
    ),
    (jf.Sum(), 'Reduce(Function(add))'),
    (jf.Length('int32'), "Length('int32')"),
    (
        jf.Mean(),
        "AllOf(Reduce(Function(add)), Length('float32')) >> Function(mean)",
    ),
]


@pytest.mark.parametrize(('block', 'text'), SHOWN, ids=lambda x: str(x)[:30])
def test_blocks_print_themselves(block: Any, text: str) -> None:
    assert repr(block) == text


@pytest.mark.parametrize(
    'block', [b for b, _ in SHOWN if isinstance(b, jf.Block)], ids=str
)
def test_blocks_are_immutable(block: Any) -> None:
    for field in dataclasses.fields(block):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(block, field.name, None)


def test_blocks_are_equal_by_identity() -> None:
    assert jf.Scalar() != jf.Scalar()
    assert {number: 1}[number] == 1


def test_a_declaration_prints_though_it_refers_to_itself() -> None:
    tree = jf.ForwardDeclaration(name='tree')
    tree.resolve_to(jf.Optional(jf.GetItem('rest') >> tree()))
    assert repr(tree.target) == "Optional(GetItem('rest') >> tree())"
