# SPDX-License-Identifier: Apache-2.0
"""What each block of data, tensors and composition means, by example."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checking import add, check, check_eager, number, numbers, same, subtract, whole

import jfold as jf

# ---- input ---------------------------------------------------------------------------


def test_tensor() -> None:
    half, byte, narrow = np.float16, np.uint8, jnp.bfloat16
    check(
        (number, [3, 2.5, True, np.int8(4)], [np.float32(x) for x in (3, 2.5, 1, 4)]),
        (whole, [3, 4.0, np.array(5), jnp.int32(6)], [*np.int32([3, 4, 5, 6])]),
        (jf.Scalar('bool'), [True, 0, 1.0], [np.True_, np.False_, np.True_]),
        (jf.Scalar('complex64'), [1, 2j], [np.complex64(1), np.complex64(2j)]),
        (jf.Vector(2), [[1, 2], (3, 4.5), np.ones(2)], [[1, 2], [3, 4.5], [1, 1]]),
        (jf.Vector(0), [[], ()], [np.zeros(0, np.float32)] * 2),
        (jf.Tensor((1, 2), 'float16'), [[[1, 2]]], [np.array([[1, 2]], half)]),
        (jf.Tensor([2, 1], byte), [[[1], [255]]], [np.array([[1], [255]], byte)]),
        (jf.Scalar(narrow), [0.125, 256], [narrow(0.125), narrow(256)]),
        (number, [float('inf'), -np.inf, float('nan')], [np.inf, -np.inf, np.nan]),
    )


def test_input_transform() -> None:
    digits = jf.InputTransform(abs) >> jf.InputTransform(str) >> jf.InputTransform(len)
    both = jf.AllOf(jf.InputTransform(abs), jf.Identity()) >> jf.InputTransform(sum)
    check((digits >> whole, [-123], [3]), (both >> number, [-2, 2], [0.0, 4.0]))
    check_eager((jf.InputTransform(str), [12], ['12']))


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
        (jf.AllOf(jf.Map(jf.Void()), jf.Length()) >> jf.GetItem(1), ['abc'], [3.0]),
    )
    check_eager(
        (jf.Void(), [object()], [None]), (jf.Map(jf.Void()), ['ab'], [[None] * 2])
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
    both = number >> jf.AllOf(jnp.negative, jf.Identity())
    check(
        ({'b': number, 'a': number} >> subtract, [{'a': 5, 'b': 3}], [-2.0]),
        ([number, number] >> subtract, [(5, 3)], [2.0]),
        ((number, number) >> subtract, [(5, 3)], [2.0]),
        (number >> jnp.negative, [1], [-1.0]),
        (both >> [jnp.negative, jnp.abs], [1], [(1.0, 1.0)]),
        (jnp.ones(2) >> jf.Identity(), [0], [[1, 1]]),
    )
    text = 'expected a block, a callable, an array, or'
    for wrong in (3, 3.0, True, None, 'x'):
        with pytest.raises(TypeError, match=text):
            number >> wrong
        with pytest.raises(TypeError, match=text):
            wrong >> number


def test_a_record_is_in_the_order_in_which_it_is_written() -> None:
    data = {'c': 3, 'a': 1, 'b': 2, 'more': 'ignored'}
    names = collections.OrderedDict([('c', number), ('a', number), ('b', number)])
    check(
        ({'c': number, 'a': number, 'b': number}, [data], [(3.0, 1.0, 2.0)]),
        ({'c': number, 1: number}, [{1: 4, **data}], [(3.0, 4.0)]),
        (jf.Record(names), [data], [(3.0, 1.0, 2.0)]),
        (jf.Record([('c', number), ('a', number)]), [data], [(3.0, 1.0)]),
        (jf.Record([('c', number), ('c', whole)]), [data], [(3.0, np.int32(3))]),
        ({2: number, 0: number}, [(1, 2, 3)], [(3.0, 1.0)]),
        ({-1: number}, [[1, 2, 3]], [(3.0,)]),
        ((number, whole), [(1, 2)], [(1.0, np.int32(2))]),
        ([number, whole], [(1, 2)], [(1.0, np.int32(2))]),
        ((number, number), [{0: 1, 1: 3, 'more': 4}], [(1.0, 3.0)]),
        ((number, jf.Zeros([]), number), [[1, 2, 3]], [(1.0, 0.0, 3.0)]),
        (jf.Record([((0, 1), number)]), [{(0, 1): 5}], [(5.0,)]),
        (jf.Record([(slice(1, 3), jf.Vector(2))]), [[1, 2, 3]], [([2, 3],)]),
        ({None: number}, [{None: 1}], [(1.0,)]),
    )


def test_records_in_records() -> None:
    inner = {'y': number, 'x': (number, number)}
    check(
        ({'a': inner}, [{'a': {'x': (1, 2), 'y': 3}}], [((3.0, (1.0, 2.0)),)]),
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
    pair, as_is = (number, number), jf.Identity()
    check(
        (pair >> jf.Record((jnp.negative, as_is)), [(1, 2)], [(-1.0, 2.0)]),
        (pair >> jf.Record({1: jnp.negative, 0: as_is}), [(1, 2)], [(-2.0, 1.0)]),
        (pair >> jf.Record([(1, jnp.negative), (0, as_is)]), [(1, 2)], [(-2.0, 1.0)]),
        (pair >> jf.Record({-1: jf.Identity()}), [(1, 2)], [(2.0,)]),
    )


def test_constants_anywhere() -> None:
    zero, one = jf.Zeros([]), jf.FromTensor(np.float32(1))
    pick = {'a': number, 'b': one, 'c': zero >> jnp.cos}
    cases = {'one': one, 'zero': zero, 'both': (zero, one) >> add}
    negated = jf.Record(((jnp.negative, jf.Identity()), number))
    check(
        (jf.Record(pick), [{'a': 5}], [(5.0, 1.0, 1.0)]),
        ((zero, (one, zero)), [{}, 7], [(0.0, (1.0, 0.0))] * 2),
        (jf.AllOf(number, one), [4], [(4.0, 1.0)]),
        (jf.OneOf(str, cases), ['one', 'zero', 'both'], [1.0, 0.0, 1.0]),
        (jf.OneOf(str, cases | {'x': jf.InputTransform(len) >> number}), ['x'], [1.0]),
        (numbers >> jf.Map(one) >> jf.Sum(), [[4, 5, 6], []], [3.0, 0.0]),
        (jf.Fold((jf.Identity(), number) >> add, one >> jnp.negative), [[4]], [3.0]),
        (jf.Fold(negated >> jf.GetItem(0), (one, zero)), [[4]], [(-1.0, 0.0)]),
    )


@pytest.mark.parametrize('default', [None, jf.FromTensor(np.float32(-1))], ids=str)
def test_one_of_more_cases_than_python_compiles_in_a_row(default: Any) -> None:
    count = 3200
    cases = {k: jf.FromTensor(np.float32(k)) for k in range(count)}
    model = jf.compile(
        jf.Map(jf.OneOf(jf.Identity(), cases, default=default)) >> jf.Sum()
    )
    last = [count - 1, 7]
    values = model.apply({}, model.schedule([last, [0], []], size=3))
    assert values.tolist() == [count + 6, 0, 0]
    if default is not None:
        assert model.apply({}, model.schedule([[count, 'x', 3]])).tolist() == [1]
    else:
        with pytest.raises(jf.InputError, match=r'at \[1\]: .* got 3200; in Pipe'):
            model.schedule([[3, count]])
    with pytest.raises(jf.InputError, match=r'example 0, at \[0\]: '):
        model.schedule([[[1]]])


def test_short_hands_nested_deep() -> None:
    """Deeper than Python nests calls; beyond what it has room for, an error says so."""
    short: Any = number
    for _ in range(200):
        short = (short,) if isinstance(short, dict) else {0: short}
    example: Any = 5.0
    for _ in range(200):
        example = (example,)
    values = jax.tree.leaves(jf.compile(short).predict({}, [example]))
    assert [x.tolist() for x in values] == [[5]]
    for _ in range(5000):
        short = (short,)
    with pytest.raises(TypeError, match='expected an expression that is nested less'):
        jf.compile(short)


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
    twice, zero = jf.AllOf(shared, shared) >> add, jf.Zeros([])
    check(
        (shared, [1], [-1.0]),
        (twice, [1], [-2.0]),
        (jf.Map(twice) >> jf.Reduce(add, zero), [[1, 2]], [-6.0]),
        ((twice, shared, zero), [(1, 2, 0)], [(-2.0, -2.0, 0.0)]),
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


# ---- NumPy's scalars as blocks -------------------------------------------------------


@pytest.mark.parametrize('value', [np.float32(3), np.asarray(3, 'float32')])
def test_scalars_of_numpy_are_blocks(value: Any) -> None:
    same(jf.Optional(number, value).eval(None), 3)
    same((value >> jf.Function(jnp.negative)).eval(None), -3)
    same((jf.Map(number) >> jf.Fold(jnp.add, value)).eval([1, 2]), 6)
    same(jf.AllOf(number, value).eval(1), (1, 3))
    same(jf.Record({'a': number, 'b': value}).eval({'a': 1}), (1, 3))
    assert jf.convert_to_block(value).value.tolist() == 3


def test_scalars_of_numpy_are_keys_in_a_list_of_pairs() -> None:
    pairs = [(np.int32(1), number), (np.int32(0), whole)]
    assert jf.Record(pairs).eval([2, 4.5])[0].item() == 4.5


# ---- blocks as values ----------------------------------------------------------------

tree_of_reprs = jf.ForwardDeclaration(name='tree')

SHOWN: list[tuple[Any, str]] = [
    (jf.Scalar(), "Scalar('float32')"),
    (jf.Vector(3, 'int8'), "Vector(3, 'int8')"),
    (jf.Tensor([2, 3]), "Tensor((2, 3), 'float32')"),
    (jf.InputTransform(len), 'InputTransform(len)'),
    (jf.InputTransform({'a': 1, 'b': 2}), "InputTransform({'a': 1, 'b': 2})"),
    (
        jf.InputTransform({k: 2 * k for k in range(1000)}, default=None),
        'InputTransform({0: 0, 1: 2, 2: 4, 3: 6, ...}, default=None)',
    ),
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
    (jf.Record({'b': jf.Void(), 'a': jf.Void()}), "Record({'b': Void(), 'a': Void()})"),
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
    (jf.Sum(), 'Sum()'),
    (jf.Max(), 'Max()'),
    (jf.Min(jf.Zeros([])), 'Min(default=Zeros(float32[]))'),
    (jf.Reduce(jnp.tanh, associative=True), 'Reduce(Function(tanh), associative=True)'),
    (jf.Length('int32'), "Length('int32')"),
    (jf.Chain(), 'Chain()'),
    (jf.Padded(3), 'Padded(3)'),
    (jf.Stack(3), 'Padded(3) >> Function(stack)'),
    (
        jf.Mean(),
        "AllOf(Map(Function(as_inexact)) >> Sum(), Length('float32')) >> "
        'Function(mean)',
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


@pytest.mark.parametrize('type_', [jf.SequenceType(3), jf.BroadcastType(3)], ids=str)
def test_types_get_no_attributes(type_: Any) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        type_.other = None


def test_a_block_that_is_no_dataclass_prints() -> None:
    class Plain(jf.Block):
        pass

    assert repr(Plain()) == 'Plain()'


def test_blocks_are_equal_by_identity() -> None:
    assert jf.Scalar() != jf.Scalar()
    assert {number: 1}[number] == 1


def test_a_declaration_prints_though_it_refers_to_itself() -> None:
    tree = jf.ForwardDeclaration(name='tree')
    tree.resolve_to(jf.Optional(jf.GetItem('rest') >> tree()))
    assert repr(tree.target) == "Optional(GetItem('rest') >> tree())"
