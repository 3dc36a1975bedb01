# SPDX-License-Identifier: Apache-2.0
"""What `compile` infers, and how it says what does not fit."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checking import add, does_not_compile, number, numbers, whole

import jfold as jf
from jfold.language.analysis import constants, users

vector = jf.Vector(3)
text = jf.InputTransform(str)


def shown(block: Any) -> str:
    """The type of a compiled expression's result."""
    return repr(jf.compile(block).program.output)


# ---- forwards and backwards ----------------------------------------------------------


@pytest.mark.parametrize(
    ('block', 'expected'),
    [
        ({'b': number, 'a': whole}, '(float32[], int32[])'),
        ((number, (vector, ())), '(float32[], (float32[3], ()))'),
        (number >> (lambda x: (x, [x > 0, x])), '(float32[], (bool[], float32[]))'),
        ((vector, number) >> jf.GetItem(0), 'float32[3]'),
        ((vector, number) >> jf.GetItem(slice(1)), '(float32[3],)'),
        (jf.Tensor((2, 3)) >> jf.GetItem(0), 'float32[3]'),
        (jf.AllOf(number, whole >> jf.Void()), '(float32[], void)'),
        (jf.Map((number, whole)) >> jf.GetItem(0), '(float32[], int32[])'),
        (numbers >> jf.Length('int32'), 'int32[]'),
        (jf.Map(whole) >> jf.Mean(), 'float32[]'),
        (jf.Map(jf.Scalar('bfloat16')) >> jf.Mean(), 'bfloat16[]'),
        (jf.Optional(vector), 'float32[3]'),
        (numbers >> jf.Fold(lambda s, x: s + x, jf.Zeros(2)), 'float32[2]'),
        ((vector, vector) >> jf.Max(), 'float32[3]'),
        (jf.Record(()) >> (lambda: jnp.ones(2)), 'float32[2]'),
        (jf.Record((number,)) >> jf.Concat(), 'float32[1]'),
    ],
)
def test_types_flow_forwards(block: Any, expected: str) -> None:
    assert shown(block) == expected


def test_types_flow_backwards() -> None:
    tree = jf.ForwardDeclaration()
    children = jf.Map(tree()) >> jf.Sum()
    empty = jf.OneOf(len, {0: jf.Zeros(2), 1: children, 2: children})
    tree.resolve_to(empty)
    assert shown(tree()) == 'float32[2]'
    default = jf.FromTensor(np.zeros(4, np.float32))
    loop = jf.ForwardDeclaration()
    loop.resolve_to(jf.Map(loop()) >> jf.Reduce(add, default))
    assert shown(loop()) == 'float32[4]'
    said = jf.ForwardDeclaration(output_type=[2, 3])
    said.resolve_to(jf.Map(said()) >> jf.Sum())
    assert shown(said()) == 'float32[2,3]'


@pytest.mark.parametrize('order', [(0, 1, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_a_recursion_is_typed_by_its_leaf_in_any_order(order: Any) -> None:
    tree = jf.ForwardDeclaration()
    cases = [
        (int, whole >> (lambda x: jnp.ones(3) * x)),
        (tuple, jf.Record((tree(), tree())) >> add),
        (list, jf.Map(tree()) >> jf.Sum()),
    ]
    tree.resolve_to(jf.OneOf(type, [cases[i] for i in order]))
    assert shown(tree()) == 'float32[3]'


def test_mutual_recursion() -> None:
    a, b, c = (jf.ForwardDeclaration(name=name) for name in 'abc')
    a.resolve_to(jf.GetItem('b') >> b())
    b.resolve_to(jf.OneOf(len, {0: c(), 1: jf.GetItem('a') >> a()}))
    c.resolve_to(jf.Length('int32'))
    assert shown((a(), b(), c())) == '(int32[], int32[], int32[])'


def test_a_declaration_on_tensors() -> None:
    step = jf.ForwardDeclaration('float32', 'float32')
    step.resolve_to(jnp.negative)
    assert shown(number >> step() >> step()) == 'float32[]'
    free = jf.ForwardDeclaration()
    free.resolve_to(jf.AllOf(jf.Identity(), jnp.negative) >> add)
    assert shown(vector >> free()) == 'float32[3]'


def test_a_declaration_on_what_is_known_in_part() -> None:
    tree, step = jf.ForwardDeclaration(), jf.ForwardDeclaration()
    step.resolve_to(jf.Record((jf.Identity(), tree())) >> add)
    cases = [(list, jf.Fold(step(), jf.Zeros([]))), (int, number)]
    tree.resolve_to(jf.OneOf(type, cases))
    assert shown(tree()) == 'float32[]'
    # What `swap` takes is known by what it gives, and the other way round.
    swap, loop = jf.ForwardDeclaration(), jf.ForwardDeclaration()
    swap.resolve_to(jf.AllOf(jf.GetItem(1), jf.GetItem(0)))
    pair = jf.AllOf(jf.GetItem('rest') >> loop(), number)
    first = jf.GetItem(0) >> (lambda x: x * 2)
    loop.resolve_to(jf.OneOf(type, [(dict, pair >> swap() >> first), (int, number)]))
    assert shown(loop()) == 'float32[]'


def test_tuples_of_objects_are_objects() -> None:
    pairs = jf.AllOf(text, jf.Identity())
    assert shown(pairs >> jf.InputTransform(len) >> number) == 'float32[]'
    assert shown(jf.Map(pairs) >> jf.InputTransform(len) >> number) == 'float32[]'
    assert (
        shown(jf.Map(pairs) >> jf.Map((number, number)) >> jf.Length()) == 'float32[]'
    )
    pick = pairs >> jf.OneOf(jf.GetItem(0), {'1': jf.GetItem(1)}) >> number
    assert shown(pick) == 'float32[]'


# ---- constants -----------------------------------------------------------------------


def declared(block: Any) -> jf.Block:
    declaration = jf.ForwardDeclaration()
    declaration.resolve_to(block)
    return declaration()


three = jf.FromTensor(np.float32(3))


AROUND: list[tuple[Callable[[jf.Block], Any], Any]] = [
    (lambda each: each, 1.0),
    (lambda each: jf.AllOf(number, each), 1.0),
    (lambda each: {'a': number, 'b': each}, {'a': 1.0}),
    (
        lambda each: (
            jf.GetItem('a') >> jf.Optional(jf.AllOf(each, each), jf.AllOf(each, each))
        ),
        {'a': None},
    ),
    (lambda each: jf.OneOf(type, {float: each, int: number >> jf.Void() >> each}), 1),
    (lambda each: numbers >> jf.Fold(lambda s, x: s, each), [1.0, 2.0]),
    (lambda each: jf.AllOf(declared(each), declared(jf.AllOf(each, number))), 1.0),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(('around', 'example'), AROUND)
@pytest.mark.parametrize(
    'constant',
    [
        three,
        jf.Void() >> three,
        jf.Zeros(2),
        declared(jf.FromTensor(np.ones(2, np.float32))),
    ],
)
def test_a_declaration_of_a_constant_is_one(
    constant: jf.Block, around: Any, example: Any
) -> None:
    plain, named = (jf.compile(around(x)) for x in (constant, declared(constant)))
    values = [m.apply({}, m.schedule([example])) for m in (plain, named)]
    values += [m.eval(example) for m in (plain, named)]
    values = [[x.ravel().tolist() for x in jax.tree.leaves(value)] for value in values]
    assert values == [values[0]] * 4
    assert plain.program.output == named.program.output


def is_constant(block: jf.Block) -> bool:
    return block in constants(users(block))


def test_what_takes_itself_is_no_constant() -> None:
    loop = jf.ForwardDeclaration(name='loop')
    loop.resolve_to(jf.AllOf(three, loop()) >> jf.GetItem(0))
    assert not is_constant(loop())
    assert not is_constant(jf.ForwardDeclaration()())
    assert is_constant(jf.Record({'a': declared(three), 'b': declared(jf.Void())}))


def test_constants_are_found_in_a_chain_of_declarations_in_few_steps() -> None:
    # Each is looked at once, though each is used twice by the next.
    last: jf.Block = three
    for _ in range(40):
        last = declared(jf.AllOf(last, last))
    assert is_constant(last)


# ---- declarations --------------------------------------------------------------------


def test_self_reference_must_consume_input() -> None:
    tail = (
        'expected a recursion on a part of its input, got one on the same input, '
        'without end; take a field or an item of it first'
    )
    maybe = jf.ForwardDeclaration(name='maybe')
    maybe.resolve_to(jf.Optional(jf.AllOf(maybe(), number) >> jf.GetItem(1)))
    does_not_compile(
        {'x': maybe()}, f'maybe.Optional.some_case.Pipe[0].AllOf[0].maybe(): {tail}'
    )

    other = jf.ForwardDeclaration(name='other')
    other.resolve_to(jf.Optional(other() >> jf.Function(jnp.sin)))
    does_not_compile(other(), f'other.Optional.some_case.Pipe[0].other(): {tail}')

    a, b = jf.ForwardDeclaration(name='a'), jf.ForwardDeclaration(name='b')
    a.resolve_to(jf.OneOf(type, [(list, b()), (int, number)]))
    b.resolve_to(jf.OneOf(type, [(tuple, a()), (int, number)]))
    with pytest.raises(TypeError, match=re.escape(tail)):
        jf.compile(b())

    # One of the two consumes.
    c, d = jf.ForwardDeclaration(), jf.ForwardDeclaration()
    c.resolve_to(jf.OneOf(type, [(list, d()), (int, number)]))
    d.resolve_to(jf.GetItem(0) >> c())
    assert shown(c()) == 'float32[]'


# ---- dtypes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('block', 'where', 'wide', 'narrow'),
    [
        ({'x': jf.Scalar('int64')}, "Record['x'].Scalar('int64')", 'int64', 'int32'),
        (jf.Scalar(float), "Scalar('float64')", 'float64', 'float32'),
        (jf.Vector(2, 'uint64'), "Vector(2, 'uint64')", 'uint64', 'uint32'),
        (jf.FromTensor(np.ones(3)), 'FromTensor(float64[3])', 'float64', 'float32'),
        (jf.Zeros((2, 'complex128')), 'Zeros((float32[2], complex128[]))', 'complex128',
         'complex64'),
        (numbers >> jf.Length('int64'), "Pipe[1].Length('int64')", 'int64', 'int32'),
    ],
)  # fmt: skip
def test_wide_dtypes_need_x64(block: Any, where: str, wide: str, narrow: str) -> None:
    does_not_compile(
        block,
        f'{where}: expected a dtype that JAX keeps, such as {narrow}, got {wide}; say '
        "it, or set jax.config.update('jax_enable_x64', True)",
    )
    with jax.enable_x64(True):
        assert wide in shown(block)


def test_dtypes_are_not_promoted() -> None:
    does_not_compile(
        (number, whole) >> jf.Sum(),
        'Pipe[1].Sum(): expected items of one type, float32[], got int32[]; make '
        'them alike by a Record, which has a block for each item',
    )


# ---- functions -----------------------------------------------------------------------


def fails(fn: Any, given: Any = number) -> str:
    """What is said of a function that cannot be used, after its path."""
    with pytest.raises(TypeError) as caught:
        jf.compile({'x': given >> jf.Function(fn)})
    path, _, message = str(caught.value).partition(': ')
    assert path.startswith("Record['x'].Pipe[1].Function(")
    return message


def test_a_function_that_raises_is_named() -> None:
    def broken(x: Any) -> Any:
        raise ValueError('no such thing')

    text = 'expected to run on inputs (float32[]), got ValueError: no such thing'
    assert fails(broken) == text
    with pytest.raises(TypeError) as caught:
        jf.compile(number >> broken)
    assert isinstance(caught.value.__cause__, ValueError)
    twice = 'expected to run on inputs (float32[], float32[]), got TypeError: '
    assert fails(jnp.sin, (number, number)).startswith(twice)


@pytest.mark.parametrize('output', [None, (), {}, {'a': None}, 'text', (1.0, None)])
def test_what_a_function_must_not_give(output: Any) -> None:
    text = 'expected to run on inputs (float32[]), got TypeError: '
    assert fails(lambda x: output).startswith(text)


def test_what_a_function_must_not_give_is_shown() -> None:
    assert fails(lambda x: {'a': (x, {})}) == (
        'expected to run on inputs (float32[]), got TypeError: expected arrays, or '
        'tuples or dicts of arrays, got {}; return arrays'
    )


def test_parameters_are_made_once_and_must_fit_everywhere() -> None:
    dense = jf.Function(nn.Dense(2))
    with pytest.raises(
        TypeError, match=r'Record\[1\].*expected to run on inputs \(float32\[4\]'
    ):
        jf.compile((vector >> dense, jf.Vector(4) >> dense))


@pytest.mark.parametrize(
    ('block', 'error'),
    [
        (jf.Record(()) >> jf.Concat(), 'Need at least one array'),
        ((vector, vector) >> jf.Concat(1), 'out of bounds'),
        ((jf.Tensor((2, 3)), jf.Tensor((3, 3))) >> jf.Concat(1), 'Cannot concatenate'),
    ],
)
def test_what_concat_refuses(block: Any, error: str) -> None:
    text = rf'^Pipe\[1\]\.Function\(concat\): expected to run on in.*{error}'
    with pytest.raises(TypeError, match=re.compile(text, re.DOTALL)):
        jf.compile(block)


# ---- what does not fit, besides the tables of `mistakes` -----------------------------

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
