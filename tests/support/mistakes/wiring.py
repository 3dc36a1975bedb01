# SPDX-License-Identifier: Apache-2.0
"""Mistakes in how blocks are put together, and in what an expression gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.errors import CallCompactUnboundModuleError

import jfold as jf
from mistakes.common import (
    NO_BLOCK,
    NO_TENSORS,
    TO_TENSORS,
    Mistake,
    ValueMistake,
    add,
    compiled,
    number,
    numbers,
    pair,
    vector,
)


def declared(body: Callable[[Any], jf.Block]) -> jf.Model:
    """The model of a declaration that is resolved to what is made of it."""
    tree = jf.ForwardDeclaration(name='tree')
    tree.resolve_to(body(tree))
    return jf.compile(tree())


def by_another(tree: Any) -> jf.Block:
    other = jf.ForwardDeclaration(name='other')
    other.resolve_to(tree() >> jf.Function(jnp.sin))
    return jf.AllOf(number, other()) >> add


def in_turn(tree: Any) -> jf.Block:
    other = jf.ForwardDeclaration(name='other')
    other.resolve_to(jf.Record((number, tree())))
    return jf.Map(other())


NO_OBJECT = (
    'expected an object, got float32[]; put it before any block that gives tensors'
)
NO_SEQUENCE = 'expected a sequence, a non-empty tuple of one type, or an object, got'
IN_ONE = 'use a Function for what is in one tensor, and Map for a list of the data'
EACH_ITEM = 'use Map for each item, or Sum, Fold or Reduce for all of them'
A_PLACE = 'write a place from -2 to 1'
WITHIN = 'take ints within its shape, and slices'
DROPPED = 'got float32[]; drop it first, by Void()'
NO_ZEROS = 'expected a type that has zeros: tensors, tuples, sequences, got object'
WHERE = (
    'put it where values are of Python, choose by one of several values as by '
    '`OneOf(GetItem(1), ...)`, or use jnp.where in a Function'
)
ENDLESS = (
    'expected a recursion on a part of its input, got one on the same input, without '
    'end; take a field or an item of it first'
)
CALLED = 'expected a block to be called on it, got a function or a module,'
UNKNOWN = 'though its value is not known yet; write `jf.Function(fn)(x)` for `fn(x)`'
NO_RESULT = 'expected a result of tensors, in tuples and sequences, got'

MISTAKES: dict[str, Mistake] = {
    'a tensor read again': Mistake(
        lambda: compiled(number, number), f"Pipe[1].Scalar('float32'): {NO_OBJECT}"
    ),
    'a transform of a tensor': Mistake(
        lambda: compiled(number, jf.InputTransform(abs)),
        'Pipe[1].InputTransform(abs): expected an object, got float32[]; use Function '
        'to compute with tensors',
    ),
    'a function of Python values': Mistake(
        lambda: jf.compile(jnp.tanh),
        f'Function(tanh): {NO_TENSORS} object; {TO_TENSORS}',
    ),
    'a function of a sequence': Mistake(
        lambda: compiled(numbers, jnp.tanh),
        f'Pipe[1].Function(tanh): {NO_TENSORS} [float32[]]; {EACH_ITEM}',
    ),
    'a sequence among the inputs': Mistake(
        lambda: compiled(jf.AllOf(number, numbers), jnp.add),
        f'Pipe[1].Function(add): {NO_TENSORS} (float32[], [float32[]]); {EACH_ITEM}',
    ),
    'joined sequences': Mistake(
        lambda: compiled(jf.AllOf(numbers, numbers), jf.Concat()),
        f'Pipe[1].Function(concat): {NO_TENSORS} ([float32[]], [float32[]]); '
        f'{EACH_ITEM}',
    ),
    'a tensor joined': Mistake(
        lambda: compiled(number, jf.Concat()),
        'Pipe[1].Function(concat): expected a tuple of tensors, got float32[]; make '
        'one of all that is joined, as in `AllOf(a, b) >> Concat()`',
    ),
    'a function behind a metric': Mistake(
        lambda: compiled(number, jf.Metric('m'), jnp.tanh),
        'Pipe[2].Function(tanh): expected to run on inputs (), got TypeError: …; put '
        "a sink beside the value, as in `AllOf(Identity(), Metric('name')) >> "
        'GetItem(0)`',
    ),
    'a function beside a metric': Mistake(
        lambda: compiled(jf.AllOf(number, number >> jf.Metric('m')), jnp.add),
        f'Pipe[1].Function(add): {NO_TENSORS} (float32[], void); take what a sink '
        'stands beside by `>> GetItem(...)` first',
    ),
    'a map of a tensor': Mistake(
        lambda: compiled(number, jf.Map(jnp.tanh)),
        f'Pipe[1].Map(Function(tanh)): {NO_SEQUENCE} float32[]; {IN_ONE}',
    ),
    'the sum of a number': Mistake(
        lambda: compiled(number, jf.Sum()),
        f'Pipe[1].Sum(): {NO_SEQUENCE} float32[]; {IN_ONE}',
    ),
    'the sum of Python values': Mistake(
        lambda: compiled(jf.Sum()),
        f'Pipe[0].Reduce.combine.Function(add): {NO_TENSORS} (object, object); '
        f'{TO_TENSORS}',
    ),
    'the length of a number': Mistake(
        lambda: compiled(number, jf.Length()),
        "Pipe[1].Length('float32'): expected a sequence, a tuple or an object, got "
        f'float32[]; {IN_ONE}',
    ),
    'a map over unlike items': Mistake(
        lambda: compiled(jf.AllOf(number, vector), jf.Map(jnp.tanh), jf.Metric('m')),
        'Pipe[1].Map(Function(tanh)): expected items of one type, float32[], got '
        'float32[3]; make them alike by a Record, which has a block for each item',
    ),
    'an item beyond a tuple': Mistake(
        lambda: compiled(pair, jf.GetItem(2)),
        'Pipe[1].GetItem(2): expected at least 3 items, got (float32[], float32[]); '
        f'{A_PLACE}',
    ),
    'a named item of a tuple': Mistake(
        lambda: compiled(pair, jf.GetItem('left')),
        "Pipe[1].GetItem('left'): expected int keys, for its input is the tuple "
        f"(float32[], float32[]), got 'left'; {A_PLACE}",
    ),
    'an item beyond a tensor': Mistake(
        lambda: compiled(vector, jf.GetItem(3)),
        'Pipe[1].GetItem(3): expected a tensor with an item 3, got float32[3]; '
        f'{WITHIN}',
    ),
    'an item of a scalar': Mistake(
        lambda: compiled(number, jf.GetItem(0)),
        'Pipe[1].GetItem(0): expected a tensor with an item 0, got float32[]; leave '
        'it out, for a scalar has no items',
    ),
    'a named item of a tensor': Mistake(
        lambda: compiled(vector, jf.GetItem('x')),
        "Pipe[1].GetItem('x'): expected a tensor with an item 'x', got float32[3]; "
        f'{WITHIN}',
    ),
    'a named item of a sequence': Mistake(
        lambda: compiled(numbers, jf.GetItem('x')),
        "Pipe[1].GetItem('x'): expected an int or a slice, for its input is "
        "[float32[]], got 'x'; use Map, for an item of each of its items",
    ),
    'named fields of a tuple': Mistake(
        lambda: compiled(pair, {'left': jnp.tanh}),
        "Pipe[1].Record({'left': Function(tanh)}): expected int keys, for its input "
        f"is the tuple (float32[], float32[]), got 'left'; {A_PLACE}",
    ),
    'fields of a tensor': Mistake(
        lambda: compiled(number, {'x': jnp.tanh}),
        "Pipe[1].Record({'x': Function(tanh)}): expected an object or a tuple, got "
        'float32[]; give the whole of it to several blocks by AllOf',
    ),
    'more fields than items': Mistake(
        lambda: compiled(pair, (jnp.tanh, jnp.tanh, jnp.tanh)),
        'Pipe[1].Record({0: Function(tanh), 1: Function(tanh), 2: Function...: '
        f'expected at least 3 items, got (float32[], float32[]); {A_PLACE}',
    ),
    'an option of a tensor': Mistake(
        lambda: compiled(number, jf.Optional(jnp.tanh)),
        f'Pipe[1].Optional(Function(tanh)): {NO_OBJECT}',
    ),
    'no zero of an object': Mistake(
        lambda: compiled(jf.Optional(jf.Identity()), number),
        f'Pipe[0].Optional(Identity()): {NO_ZEROS}; make tensors of the data inside '
        'of it, by Scalar, Vector or Tensor',
    ),
    'another type for None': Mistake(
        lambda: compiled(jf.Optional(number, jf.Zeros(3))),
        'Pipe[0].Optional.none_case.Zeros(float32[3]): expected to give float32[], '
        'got float32[3]; give both cases one type',
    ),
    'cases of unlike types': Mistake(
        lambda: compiled(jf.OneOf(type, {int: number, list: vector})),
        "Pipe[0].OneOf[<class 'list'>].Vector(3, 'float32'): expected to give "
        'float32[], got float32[3]; give all cases one type',
    ),
    'a choice by a tensor': Mistake(
        lambda: compiled(jf.OneOf(number, {0: number})),
        "Pipe[0].OneOf.key_fn.Scalar('float32'): expected to give an object, the key, "
        'got float32[]; leave the key as it is in the data, as `GetItem(...)` does',
    ),
    'a choice behind a tensor': Mistake(
        lambda: compiled(number, jf.OneOf(bool, {True: jnp.tanh})),
        'Pipe[1].OneOf(bool, {True: Function(tanh)}): expected an object, got '
        f'float32[]; {WHERE}',
    ),
    'zeros of an input': Mistake(
        lambda: compiled(number, jf.Zeros([])),
        f'Pipe[1].Zeros(float32[]): expected no input, {DROPPED}',
    ),
    'zeros of objects': Mistake(
        lambda: compiled(jf.Zeros(jf.ObjectType())),
        f'Pipe[0].Zeros(object): {NO_ZEROS}; write a type of tensors, such as '
        '`Zeros([3])`',
    ),
    'a constant behind a tensor': Mistake(
        lambda: compiled(number, jf.FromTensor(np.ones(2))),
        f'Pipe[1].FromTensor(float64[2]): expected no input, {DROPPED}',
    ),
    'a state of another type': Mistake(
        lambda: compiled(numbers, jf.Fold(jf.Concat(), jf.Zeros([]))),
        'Pipe[1].Fold.combine.Function(concat): expected to give its state, '
        'float32[], got float32[2]; make `start` of the type that `combine` gives, '
        'which is always the same',
    ),
    'a state from the data': Mistake(
        lambda: compiled(numbers, jf.Fold(add, number)),
        "Pipe[1].Fold.start.Scalar('float32'): expected an object, got void; use "
        'Zeros or FromTensor where nothing is read',
    ),
    'pairs that do not reduce': Mistake(
        lambda: compiled(numbers, jf.Reduce(jf.Concat())),
        'Pipe[1].Reduce.combine.Function(concat): expected to give an item, '
        'float32[], got float32[2]; use Fold for a result that is not of the type of '
        'the items',
    ),
    'a default of another type': Mistake(
        lambda: compiled(numbers, jf.Max(jf.Zeros(2))),
        'Pipe[1].Reduce.default.Zeros(float32[2]): expected to give an item, '
        'float32[], got float32[2]; make it one of the type of the items',
    ),
    'a double where JAX has none': Mistake(
        lambda: compiled(jf.Scalar('float64')),
        "Pipe[0].Scalar('float64'): expected a dtype that JAX keeps, such as float32, "
        "got float64; say it, or set jax.config.update('jax_enable_x64', True)",
    ),
    'an unresolved declaration': Mistake(
        lambda: jf.compile(jf.ForwardDeclaration(name='tree')()),
        'tree(): expected a declaration that is resolved, got '
        "ForwardDeclaration('tree'), which is not; call its `resolve_to`",
    ),
    'a recursion on the same input': Mistake(
        lambda: declared(lambda t: jf.OneOf(type, {tuple: t(), float: number})),
        f"tree.OneOf[<class 'tuple'>].tree(): {ENDLESS}",
    ),
    'a recursion without a base': Mistake(
        lambda: declared(lambda t: jf.Record((t(), t())) >> add),
        'tree.Pipe[1].Function(add): expected types that follow from the expression, '
        'got (?, ?) to ?; say them, by `output_type=` of `ForwardDeclaration` or '
        '`recursive`',
    ),
    'a recursion beside what ends': Mistake(
        lambda: declared(lambda t: jf.AllOf(number, t())),
        f'tree.AllOf[1].tree(): {ENDLESS}',
    ),
    'a recursion whose type nothing tells': Mistake(
        lambda: declared(lambda t: jf.AllOf(number, t()) >> add),
        f'tree.Pipe[0].AllOf[1].tree(): {ENDLESS}',
    ),
    'a recursion in a case whose type nothing tells': Mistake(
        lambda: declared(lambda t: jf.OneOf(type, {list: t() >> jf.Function(jnp.sin)})),
        f"tree.OneOf[<class 'list'>].Pipe[0].tree(): {ENDLESS}",
    ),
    'a recursion by another declaration, whose type nothing tells': Mistake(
        lambda: declared(by_another), f'other.Pipe[0].tree(): {ENDLESS}'
    ),
    'a declaration that is itself': Mistake(
        lambda: declared(lambda t: t()), f'tree.tree(): {ENDLESS}'
    ),
    'a recursion of tuples in tuples': Mistake(
        lambda: declared(lambda t: jf.Record([('a', number), ('b', t())])),
        "tree.Record({'a': Scalar('float32'), 'b': tree()}): expected to give ?, got "
        '(a: float32[], b: ?); a type would contain itself: make tensors of one shape '
        'of what it gives, by a Function, or a sequence by Map',
    ),
    'a recursion of lists of tuples in turn': Mistake(
        lambda: declared(in_turn),
        'tree.Map(other()): expected to give ?, got [(float32[], ?)]; a type would '
        'contain itself: make tensors of one shape of what it gives, by a Function, '
        'or a sequence by Map',
    ),
    'a choice by one of two values': Mistake(
        lambda: compiled(
            jf.AllOf(number, jf.GetItem('k')), jf.OneOf(lambda x: x[1], {1: number})
        ),
        "Pipe[1].OneOf(function, {1: Scalar('float32')}): expected an object, got "
        f'(float32[], object); {WHERE}',
    ),
    'a recursion that grows': Mistake(
        lambda: declared(
            lambda t: jf.OneOf(type, {tuple: jf.Record((t(), t())), float: number})
        ),
        "tree.OneOf[<class 'float'>].Scalar('float32'): expected to give (?, ?), got "
        'float32[]; give all cases one type',
    ),
    'a function of what is not there yet': ValueMistake(
        lambda: jf.compose(lambda x: jnp.tanh(number(x))),
        f"<output of Scalar('float32')>: {CALLED} {UNKNOWN}",
    ),
    'a module of NNX on a wire': ValueMistake(
        lambda: jf.compose(lambda x: nnx.Linear(3, 3, rngs=nnx.Rngs(0))(vector(x))),
        f"<output of Vector(3, 'float32')>: {CALLED} {UNKNOWN}",
    ),
    'a module of Linen on a wire': Mistake(
        lambda: jf.compose(lambda x: nn.Dense(3)(vector(x))),
        '…\nin `compose`: expected blocks to be called, got a module of Flax: write '
        '`jf.Function(module)(x)` for `module(x)`',
        error=CallCompactUnboundModuleError,
    ),
    'an attribute of a wire': Mistake(
        lambda: jf.compose(lambda x: number(x.left)),
        '<the input>: expected blocks and operators on it, got a question for '
        "`.left`, though its value is not known yet; take a field by `x['left']`, and "
        'write `jf.Function(fn)(x)` for a method, where `fn` calls it',
        error=AttributeError,
    ),
    'the class of a wire': Mistake(
        lambda: jf.compose(lambda x: number(x) if isinstance(x, int) else None),
        '`<lambda>`: expected no question that Python answers before there are '
        'values, got `isinstance(x...)`; use OneOf to choose by a class, Optional for '
        'what may be `None`',
    ),
    'the items of a sequence that is a wire': Mistake(
        lambda: jf.compose(lambda x: [number(each) for each in x]),
        '<the input>: expected blocks and operators on it, got a question for its '
        'items, though its value is not known yet; take those of a tuple by `x[0]`, '
        '`x[1]`, those of a sequence by Map',
    ),
    'the number of a wire': Mistake(
        lambda: jf.compose(lambda x: float(number(x))),
        "<output of Scalar('float32')>: expected blocks and operators on it, got a "
        'question for its number, though its value is not known yet; write '
        '`jf.Function(fn)(x)`, where `fn` calculates with it',
    ),
    'what is in a wire': Mistake(
        lambda: jf.compose(lambda x: number(x) if 'key' in x else vector(x)),
        '<the input>: expected blocks and operators on it, got a question for what is '
        'in it, though its value is not known yet; choose by OneOf, or by jnp.where in '
        'a Function',
    ),
    'an array beside a wire': Mistake(
        lambda: jf.compose(lambda x: number(x) * jnp.ones(2)),
        "<output of Scalar('float32')>: expected a wire or a number beside it, got "
        'Array([1., 1.], dtype=float32) (ArrayImpl); write `jf.FromTensor(array)` for '
        'a constant, and a Function with `init=` for what is trained',
    ),
    'tensors shared': Mistake(
        lambda: jf.compile(number >> jf.Share(jf.Function(jnp.sin))),
        f'Pipe[1].Share(Function(sin)): {NO_OBJECT}',
    ),
    'a sequence shared': Mistake(
        lambda: jf.compile(jf.Share(jf.Map(number)) >> jf.Sum()),
        "Pipe[0].Share(Map(Scalar('float32'))): expected a block that gives tensors, "
        'got [float32[]]; put it around what each item, or the whole, becomes',
    ),
    'eval of unlike types': Mistake(
        lambda: (number >> number).eval(3), f"Pipe[1].Scalar('float32'): {NO_OBJECT}"
    ),
    'a sequence of objects as the result': Mistake(
        lambda: compiled(jf.Map(jf.GetItem('x'))),
        f"Map(GetItem('x')): {NO_RESULT} [object]; make tensors of the items, as "
        '`Map(Scalar())` does',
    ),
    'an object as the result': Mistake(
        lambda: compiled(jf.GetItem('x')),
        f"GetItem('x'): {NO_RESULT} object; end with Scalar, Vector, Tensor or a "
        'Function',
    ),
    'no result': Mistake(
        lambda: compiled(number, jf.Void()),
        "Scalar('float32') >> Void(): expected a result of tensors, or a Metric, got "
        'void; end with tensors, or collect them by a Metric',
    ),
    'a sequence of nothing': Mistake(
        lambda: compiled(jf.Map(number >> jf.Metric('m'))),
        f"Map(Scalar('float32') >> Metric('m')): {NO_RESULT} [void]; drop what a sink "
        'leaves by `>> Void()`',
    ),
    'a sequence without end beside a result': Mistake(
        lambda: compiled(number, jf.AllOf(jf.Identity(), jf.Broadcast())),
        f"Scalar('float32') >> AllOf(Identity(), Broadcast()): {NO_RESULT} "
        '(float32[], [float32[] ...]); put it beside a sequence, by ZipWith',
    ),
    'a metric of a sequence': Mistake(
        lambda: compiled(numbers, jf.Metric('m')),
        "Pipe[1].Metric('m'): expected a tensor or a tuple of tensors, got "
        '[float32[]]; collect its items by `Map(Metric(...)) >> Void()`',
    ),
    'a metric of an object': Mistake(
        lambda: compiled(jf.Metric('m')),
        "Pipe[0].Metric('m'): expected a tensor or a tuple of tensors, got object; "
        f'{TO_TENSORS}',
    ),
    'one metric of two types': Mistake(
        lambda: compiled(
            jf.AllOf(number >> jf.Metric('m'), jf.Length('int32') >> jf.Metric('m'))
        ),
        "Pipe[0].AllOf[1].Pipe[1].Metric('m'): expected float32[], as at its other "
        'uses, got int32[]; give what has another type another name',
    ),
    'outputs and last state, for the outputs': Mistake(
        lambda: compiled(
            numbers, jf.RNN(lambda x, state: (x, state), jf.Zeros([])), jf.Map(jnp.exp)
        ),
        'Pipe[2].Map(Function(exp)): expected items of one type, [float32[]], got '
        'float32[]; take the outputs of an RNN by GetItem(0), or make them alike by a '
        'Record',
    ),
    'an item of a block outside of a composition': Mistake(
        lambda: jf.Map(jf.Scalar())[0] >> jf.Sum(),
        f"{NO_BLOCK} Item(block=Map(Scalar('float32')), key=0); write `block >> "
        'GetItem(0)` outside of a composition',
    ),
}
