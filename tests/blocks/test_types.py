# SPDX-License-Identifier: Apache-2.0
"""Types: their short-hands, equality, prints and unification."""

from __future__ import annotations

import copy
import itertools
import pickle
import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from checking import refuses

import jfold as jf
from jfold.language.unification import Mismatch, TypeVariable, Unifier
from jfold.types import leaf_types

TENSOR = jf.TensorType([3])


# ---- short-hands ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ('spec', 'expected'),
    [
        ('int32', 'int32[]'),
        (np.int8, 'int8[]'),
        (np.dtype('float16'), 'float16[]'),
        (jnp.float32, 'float32[]'),
        (jnp.bfloat16, 'bfloat16[]'),
        (bool, 'bool[]'),
        ('complex64', 'complex64[]'),
        (np.dtype('>f4'), 'float32[]'),
        (4, 'float32[4]'),
        (np.int64(4), 'float32[4]'),
        (0, 'float32[0]'),
        ([], 'float32[]'),
        ([2, 3], 'float32[2,3]'),
        ([2, 3, 'int32'], 'int32[2,3]'),
        ([2, jnp.bfloat16], 'bfloat16[2]'),
        (['int8'], 'int8[]'),
        ((), '()'),
        (('int32',), '(int32[],)'),
        ((2, ('int32', [])), '(float32[2], (int32[], float32[]))'),
        (jf.VoidType(), 'void'),
        (jf.ObjectType(), 'object'),
        (jf.SequenceType([3]), '[float32[3]]'),
        (jf.BroadcastType('int32'), '[int32[] ...]'),
        (jf.TupleType(jf.SequenceType((2, 'int32'))), '([(float32[2], int32[])],)'),
    ],
)
def test_short_hands(spec: Any, expected: str) -> None:
    assert repr(jf.convert_to_type(spec)) == expected


def test_a_type_converts_to_itself() -> None:
    assert jf.convert_to_type(TENSOR) is TENSOR


@pytest.mark.parametrize('spec', [None, True, 1.5, {}, {1}, {'a': 1.5}, 1j, object()])
def test_what_is_no_short_hand(spec: Any) -> None:
    with pytest.raises(TypeError, match='expected a type or a short-hand for one'):
        jf.convert_to_type(spec)


@pytest.mark.parametrize('spec', [-1, [2, -1], [True, 2], [2, 'int32', 3]])
def test_what_is_no_shape(spec: Any) -> None:
    with pytest.raises(TypeError, match='`shape` as a tuple or list of non-negative'):
        jf.convert_to_type(spec)


@pytest.mark.parametrize(
    'dtype',
    ['nonsense', 'U3', 'M8', 'O', 'V8', 'i4,f4', 'longdouble', len, dict, [None]],
)
def test_what_is_no_number_type(dtype: Any) -> None:
    with pytest.raises(TypeError, match="expected `dtype` as a number type such as 'f"):
        jf.convert_to_type(dtype)


def test_the_error_says_what_it_got() -> None:
    text = "expected `shape` as a tuple or list of non-negative ints, got 'ab'"
    with pytest.raises(TypeError, match=f'^{re.escape(text)}$'):
        jf.TensorType('ab')  # type: ignore[arg-type]
    text = "expected `dtype` as a number type such as 'float32', got None"
    with pytest.raises(TypeError, match=f'^{re.escape(text)}$'):
        jf.TensorType((), None)


# ---- values --------------------------------------------------------------------------


def test_equality_and_hash_go_by_content() -> None:
    same = [jf.TensorType((2, 3)), jf.TensorType([2, 3], 'float32')]
    assert same[0] == same[1]
    assert len(set(same)) == 1
    assert jf.TensorType((2, 3)) != jf.TensorType((3, 2))
    assert jf.TensorType((2,)) != jf.TensorType((2,), 'int32')
    assert jf.TupleType(2, 3) == jf.TupleType((2, 3)) != jf.TupleType(3, 2)
    two, three = jf.TensorType((2,)), jf.TensorType((3,))
    assert jf.TupleType([two, three]) == jf.TupleType(2, 3)
    assert jf.TupleType([2, 3]) == jf.TupleType(jf.TensorType((2, 3)))
    assert jf.VoidType() == jf.VoidType() != jf.ObjectType()
    assert jf.TupleType(2) != jf.TensorType((2,))
    assert jf.SequenceType(TENSOR) == jf.SequenceType([3]) != jf.BroadcastType(TENSOR)
    kinds = jf.SequenceType(TENSOR), jf.BroadcastType(TENSOR), jf.SequenceType(TENSOR)
    assert len({*kinds}) == 2


def test_types_are_immutable() -> None:
    for type_, name in [(TENSOR, 'shape'), (jf.SequenceType(3), 'item')]:
        with pytest.raises(AttributeError, match=name):
            setattr(type_, name, None)


def test_what_gradients_flow_through() -> None:
    flows = ['float16', 'float32', 'float64', 'complex64', 'bfloat16', 'float8_e4m3fn']
    assert all(jf.TensorType((), dtype).differentiable for dtype in flows)
    still = ['int32', 'uint8', 'bool', 'int4']
    assert not any(jf.TensorType((), dtype).differentiable for dtype in still)


def test_a_tuple_type_is_a_sequence_of_types() -> None:
    type_ = jf.TupleType('int32', 2, (3, 4))
    assert len(type_) == 3
    assert list(type_) == [type_[0], type_[1], type_[2]]
    assert type_[-1] == jf.TupleType(3, 4)
    assert type_[1:] == jf.TupleType(2, (3, 4))
    assert type_[:0] == jf.TupleType()
    assert jf.TupleType(iter(type_)) == type_


def test_terminals_and_objects() -> None:
    seq = jf.SequenceType('int32')
    type_ = jf.TupleType((2, jf.VoidType()), seq, ())
    assert list(leaf_types(type_)) == [jf.TensorType((2,)), seq]
    any_ = jf.ObjectType()
    assert any_.of_objects
    assert jf.TupleType(any_, (any_,)).of_objects
    assert jf.SequenceType(jf.TupleType(any_, any_)).of_objects
    assert not jf.TupleType().of_objects
    assert not jf.TupleType(any_, jf.VoidType()).of_objects


# ---- unification ---------------------------------------------------------------------


def test_unify_binds_variables_in_both_directions() -> None:
    types = Unifier()
    a, b, c = types.fresh(), types.fresh(), types.fresh()
    types.unify(jf.TupleType(a, jf.SequenceType(b)), jf.TupleType(2, c))
    types.unify(a, b)
    assert types.resolve(c) == jf.SequenceType(2)
    assert types.known(c)
    assert types.head(c) == jf.SequenceType(b)


def test_unify_keeps_what_is_unknown() -> None:
    types = Unifier()
    a, b = types.fresh(), types.fresh()
    types.unify(a, jf.BroadcastType(b))
    assert not types.known(a)
    assert types.resolve(jf.TupleType(a, 2)) == jf.TupleType(jf.BroadcastType(b), 2)
    assert repr(jf.TupleType(TypeVariable(), 2)) == '(?, float32[2])'


@pytest.mark.parametrize(
    ('left', 'right'),
    [
        (2, 3),
        (2, (2,)),
        ((2,), (2, 2)),
        (jf.SequenceType(2), jf.SequenceType(3)),
        (jf.SequenceType(2), jf.BroadcastType(2)),
        (jf.VoidType(), jf.ObjectType()),
    ],
)
def test_unify_refuses(left: Any, right: Any) -> None:
    with pytest.raises(Mismatch):
        Unifier().unify(jf.convert_to_type(left), jf.convert_to_type(right))


def test_a_variable_unifies_with_itself() -> None:
    types = Unifier()
    a, b = types.fresh(), types.fresh()
    types.unify(a, b)
    types.unify(b, a)
    types.unify(a, jf.TensorType((2,)))
    assert types.resolve(b) == jf.TensorType((2,))


# ---- nested types --------------------------------------------------------------------


def nested(depth: int, kind: Any = jf.TupleType) -> Any:
    type_: Any = jf.TensorType(())
    for _ in range(depth):
        type_ = kind(type_)
    return type_


@pytest.mark.parametrize('kind', [jf.TupleType, jf.SequenceType, jf.BroadcastType])
def test_deep_types(kind: Any) -> None:
    left, right = nested(5000, kind), nested(5000, kind)
    assert left == right
    assert hash(left) == hash(right)
    assert left != nested(5001, kind)
    assert repr(left).count('[') == 1 + 5000 * (kind is not jf.TupleType)


def test_types_that_hold_one_type_twice() -> None:
    """No pass visits a part once for each way that leads to it."""

    def twice(type_: Any) -> Any:
        for _ in range(60):
            type_ = jf.TupleType(type_, type_)
        return type_

    types = Unifier()
    variable = types.fresh()
    assert twice(jf.TensorType(())) == twice(jf.TensorType(()))
    assert twice(jf.TensorType(())) != twice(jf.TensorType((2,)))
    types.unify(twice(variable), twice(jf.TensorType(())))
    assert types.resolve(variable) == jf.TensorType(())
    assert types.resolve(twice(variable)) == twice(jf.TensorType(()))
    assert repr(twice(variable)).endswith('...')


def test_deep_types_unify() -> None:
    types = Unifier()
    variable = types.fresh()
    types.unify(jf.TupleType(nested(300), variable), jf.TupleType(variable, variable))
    assert types.known(variable)
    with pytest.raises(Mismatch):
        types.unify(nested(300), nested(301))


def test_types_travel() -> None:
    """To other processes, in which hashes differ."""
    for type_ in (nested(3), jf.TupleType(jf.SequenceType(2), ()), jf.TupleType((2,))):
        assert pickle.loads(pickle.dumps(type_)) == type_ == copy.deepcopy(type_)


# ---- values of a type ----------------------------------------------------------------

NESTED = jf.TupleType('int32', jf.SequenceType(([2], jf.VoidType())), jf.ObjectType())


def test_values_are_flattened_and_put_together() -> None:
    value = (1, [('a', None), ('b', None)], None)
    assert NESTED.flatten(value) == [1, 'a', 'b', None]
    assert NESTED.unflatten('xyzw', value) == ('x', [('y', None), ('z', None)], 'w')
    assert NESTED.terminal_types() == [
        jf.TensorType((), 'int32'),
        jf.TensorType((2,)),
        jf.ObjectType(),
    ]
    pair = jf.TupleType(jf.TupleType(2, jf.VoidType()), 3)
    assert pair.unflatten(pair.flatten(((5, None), 6))) == ((5, None), 6)
    with pytest.raises(ValueError, match='as many values as terminals, got fewer'):
        NESTED.unflatten('xy', value)
    with pytest.raises(
        ValueError, match=r"as many values as terminals, got more: \['4'"
    ):
        pair.unflatten('1234'[:2] + '4')
    with pytest.raises(ValueError, match=r'expected `like`, for the length of .*none'):
        NESTED.unflatten('xyzw')
    for wrong in (1,), 3, (1, [None]):
        with pytest.raises(ValueError, match=r'expected a value of type .*, got '):
            NESTED.flatten(wrong)
    with refuses('expected a value of type [float32[2]], got 1', ValueError):
        jf.SequenceType(2).unflatten([1], 1)
    with refuses('expected a value of type [float32[] ...], got 3', ValueError):
        jf.BroadcastType([]).flatten(3)
    with refuses('expected a value of type [float32[] ...], got [3]', ValueError):
        jf.BroadcastType([]).flatten([3])
    nothing = itertools.repeat(3, 0)
    with refuses(
        'expected a value of type [float32[] ...], got repeat(3, 0)', ValueError
    ):
        jf.BroadcastType([]).flatten(nothing)


def test_a_broadcast_is_flattened() -> None:
    """Into what its item is, which comes back without end."""
    pair = jf.TupleType('int32', jf.SequenceType([]))
    type_ = jf.TupleType(jf.BroadcastType(pair), jf.BroadcastType('bool'))
    value = itertools.repeat((1, [2.0, 3.0])), itertools.repeat(True)
    assert type_.terminal_types() == [*pair.terminal_types(), jf.TensorType([], 'bool')]
    flat = type_.flatten(value)
    assert flat == [1, 2.0, 3.0, True]
    pairs, bools = type_.unflatten('abcd', value)
    assert [*itertools.islice(pairs, 2)] == [('a', ['b', 'c'])] * 2
    assert next(bools) == 'd'
    assert next(jf.BroadcastType(2).unflatten('a')) == 'a'
    with pytest.raises(ValueError, match='expected `like`, for the length of'):
        type_.unflatten('abcd')
    block = jf.Scalar() >> jf.Broadcast()
    (made,) = jf.BroadcastType([]).flatten(block.eval(3))
    assert made.item() == 3


def test_a_deep_type_is_flattened() -> None:
    type_, value = jf.TensorType(()), 1
    for _ in range(300):
        type_, value = jf.TupleType(type_), (value,)
    assert type_.size == 1
    flat = type_.flatten(value)
    assert flat == type_.flatten(type_.unflatten(flat)) == [1]


@pytest.mark.parametrize(
    ('type_', 'size'),
    [
        (jf.TensorType((2, 3)), 6),
        (jf.TensorType(()), 1),
        (jf.TensorType((2, 0)), 0),
        (jf.TupleType(), 0),
        (jf.TupleType('int32', (2, [2, 2])), 7),
        (jf.TupleType('int32', jf.VoidType()), None),
        (jf.TupleType('int32', jf.ObjectType()), None),
        (jf.SequenceType(2), None),
        (jf.BroadcastType(2), None),
        (jf.VoidType(), None),
        (jf.ObjectType(), None),
    ],
)
def test_sizes(type_: Any, size: int | None) -> None:
    assert type_.size == size


# ---- the types of a block ------------------------------------------------------------


@pytest.mark.parametrize(
    ('block', 'given', 'made'),
    [
        (jf.Zeros(2), 'void', 'float32[2]'),
        (jf.Map(jf.Scalar()) >> jf.Sum(), 'None', 'float32[]'),
        (jf.Scalar() >> jf.Broadcast(), 'object', '[float32[] ...]'),
        (jf.AllOf(jf.Scalar(), jf.Identity()), 'object', '(float32[], object)'),
        (jf.compose(lambda x: (jf.Vector(2)(x),)), 'object', '(float32[2],)'),
        (jf.ForwardDeclaration()(), 'None', 'None'),  # not resolved yet
        (jf.ForwardDeclaration('float32', 3)(), 'float32[]', 'float32[3]'),
        (jf.AllOf(jf.ForwardDeclaration(output_type=2)()), 'None', '(float32[2],)'),
    ],
)
def test_types_of_any_block(block: Any, given: str, made: str) -> None:
    assert (str(block.input_type), str(block.output_type)) == (given, made)


def test_types_that_clash() -> None:
    with pytest.raises(
        TypeError, match=r'^Pipe\[1\].Scalar.*: expected an object, got'
    ):
        (jf.Scalar() >> jf.Scalar()).output_type  # noqa: B018
