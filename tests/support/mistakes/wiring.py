# SPDX-License-Identifier: Apache-2.0
"""Mistakes in how blocks are put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.errors import CallCompactUnboundModuleError

import jfold as jf
from mistakes.common import Mistake, add, compiled, number, numbers, pair, vector


def unresolved() -> jf.Model:
    return jf.compile(jf.ForwardDeclaration(name='tree')())


def recursion(*cases: Any) -> jf.Block:
    """A recursion over pairs, `None` for itself."""
    tree = jf.ForwardDeclaration(name='tree')
    made = [tree() if case is None else case for case in cases]
    tree.resolve_to(jf.OneOf(type, dict(zip((tuple, float), made, strict=False))))
    return tree()


def without_base() -> jf.Block:
    tree = jf.ForwardDeclaration(name='tree')
    tree.resolve_to(jf.Record((tree(), tree())) >> add)
    return tree()


def other_results() -> jf.Block:
    tree = jf.ForwardDeclaration(name='tree')
    both = jf.Record((tree(), tree()))
    tree.resolve_to(jf.OneOf(type, {tuple: both, float: number}))
    return tree()


def endless(body: Callable[[Any], jf.Block]) -> jf.Block:
    """A declaration that is resolved to what is made of it."""
    tree = jf.ForwardDeclaration(name='tree')
    tree.resolve_to(body(tree))
    return tree()


def by_another(tree: Any) -> jf.Block:
    other = jf.ForwardDeclaration(name='other')
    other.resolve_to(tree() >> jf.Function(jnp.sin))
    return jf.AllOf(number, other()) >> add


MISTAKES = [
    Mistake(
        'a tensor read again',
        lambda: compiled(number, number),
        "Pipe[1].Scalar('float32'): expected an object, got float32[]; put it "
        'before any block that gives tensors',
    ),
    Mistake(
        'a transform of a tensor',
        lambda: compiled(number, jf.InputTransform(abs)),
        'Pipe[1].InputTransform(abs): expected an object, got float32[]; use '
        'Function to compute with tensors',
    ),
    Mistake(
        'a function of Python values',
        lambda: jf.compile(jnp.tanh),
        'Function(tanh): expected tensors or tuples of tensors, got object; '
        'turn objects into tensors by Scalar, Vector or Tensor',
    ),
    Mistake(
        'a function of a sequence',
        lambda: compiled(numbers, jnp.tanh),
        'Pipe[1].Function(tanh): expected tensors or tuples of tensors, got '
        '[float32[]]; use Map for each item, or Sum, Fold or Reduce for all of '
        'them',
    ),
    Mistake(
        'a sequence among the inputs',
        lambda: compiled(jf.AllOf(number, numbers), jnp.add),
        'Pipe[1].Function(add): expected tensors or tuples of tensors, got '
        '(float32[], [float32[]]); use Map for each item, or Sum, Fold or '
        'Reduce for all of them',
    ),
    Mistake(
        'joined sequences',
        lambda: compiled(jf.AllOf(numbers, numbers), jf.Concat()),
        'Pipe[1].Function(concat): expected tensors or tuples of tensors, got '
        '([float32[]], [float32[]]); use Map for each item, or Sum, Fold or '
        'Reduce for all of them',
    ),
    Mistake(
        'a tensor joined',
        lambda: compiled(number, jf.Concat()),
        'Pipe[1].Function(concat): expected a tuple of tensors, got float32[]; '
        'make one of all that is joined, as in `AllOf(a, b) >> Concat()`',
    ),
    Mistake(
        'a function behind a metric',
        lambda: compiled(number, jf.Metric('m'), jnp.tanh),
        'Pipe[2].Function(tanh): expected to run on inputs (), got TypeError: '
        '…; put a sink beside the value, as in `AllOf(Identity(), '
        "Metric('name')) >> GetItem(0)`",
    ),
    Mistake(
        'a function beside a metric',
        lambda: compiled(jf.AllOf(number, number >> jf.Metric('m')), jnp.add),
        'Pipe[1].Function(add): expected tensors or tuples of tensors, got '
        '(float32[], void); take what a sink stands beside by `>> '
        'GetItem(...)` first',
    ),
    Mistake(
        'a map of a tensor',
        lambda: compiled(number, jf.Map(jnp.tanh)),
        'Pipe[1].Map(Function(tanh)): expected a sequence, a non-empty tuple of one '
        'type, or an object, got float32[]; use a Function for what is in one '
        'tensor, and Map for a list of the data',
    ),
    Mistake(
        'the sum of a number',
        lambda: compiled(number, jf.Sum()),
        'Pipe[1].Sum(): expected a sequence, a non-empty tuple of one type, or an '
        'object, got float32[]; use a Function for what is in one tensor, and Map '
        'for a list of the data',
    ),
    Mistake(
        'the sum of Python values',
        lambda: compiled(jf.Sum()),
        'Pipe[0].Reduce.combine.Function(add): expected tensors or tuples of '
        'tensors, got (object, object); turn objects into tensors by Scalar, '
        'Vector or Tensor',
    ),
    Mistake(
        'the length of a number',
        lambda: compiled(number, jf.Length()),
        "Pipe[1].Length('float32'): expected a sequence, a tuple or an object, got "
        'float32[]; use a Function for what is in one tensor, and Map for a list of '
        'the data',
    ),
    Mistake(
        'a map over unlike items',
        lambda: compiled(jf.AllOf(number, vector), jf.Map(jnp.tanh), jf.Metric('m')),
        'Pipe[1].Map(Function(tanh)): expected items of one type, float32[], got '
        'float32[3]; make them alike by a Record, which has a block for each item',
    ),
    Mistake(
        'an item beyond a tuple',
        lambda: compiled(pair, jf.GetItem(2)),
        'Pipe[1].GetItem(2): expected at least 3 items, got (float32[], float32[]); '
        'write a place from -2 to 1',
    ),
    Mistake(
        'a named item of a tuple',
        lambda: compiled(pair, jf.GetItem('left')),
        "Pipe[1].GetItem('left'): expected int keys, for its input is the tuple "
        "(float32[], float32[]), got 'left'; write a place from -2 to 1",
    ),
    Mistake(
        'an item beyond a tensor',
        lambda: compiled(vector, jf.GetItem(3)),
        'Pipe[1].GetItem(3): expected a tensor with an item 3, got float32[3]; take '
        'ints within its shape, and slices',
    ),
    Mistake(
        'an item of a scalar',
        lambda: compiled(number, jf.GetItem(0)),
        'Pipe[1].GetItem(0): expected a tensor with an item 0, got float32[]; leave '
        'it out, for a scalar has no items',
    ),
    Mistake(
        'a named item of a tensor',
        lambda: compiled(vector, jf.GetItem('x')),
        "Pipe[1].GetItem('x'): expected a tensor with an item 'x', got float32[3]; "
        'take ints within its shape, and slices',
    ),
    Mistake(
        'a named item of a sequence',
        lambda: compiled(numbers, jf.GetItem('x')),
        "Pipe[1].GetItem('x'): expected an int or a slice, for its input is "
        "[float32[]], got 'x'; use Map, for an item of each of its items",
    ),
    Mistake(
        'named fields of a tuple',
        lambda: compiled(pair, {'left': jnp.tanh}),
        "Pipe[1].Record({'left': Function(tanh)}): expected int keys, for its input "
        "is the tuple (float32[], float32[]), got 'left'; write a place from -2 to 1",
    ),
    Mistake(
        'fields of a tensor',
        lambda: compiled(number, {'x': jnp.tanh}),
        "Pipe[1].Record({'x': Function(tanh)}): expected an object or a tuple, got "
        'float32[]; give the whole of it to several blocks by AllOf',
    ),
    Mistake(
        'more fields than items',
        lambda: compiled(pair, (jnp.tanh, jnp.tanh, jnp.tanh)),
        'Pipe[1].Record({0: Function(tanh), 1: Function(tanh), 2: Function...: '
        'expected at least 3 items, got (float32[], float32[]); write a place from '
        '-2 to 1',
    ),
    Mistake(
        'an option of a tensor',
        lambda: compiled(number, jf.Optional(jnp.tanh)),
        'Pipe[1].Optional(Function(tanh)): expected an object, got float32[]; put it '
        'before any block that gives tensors',
    ),
    Mistake(
        'no zero of an object',
        lambda: compiled(jf.Optional(jf.Identity()), number),
        'Pipe[0].Optional(Identity()): expected a type that has zeros: tensors, '
        'tuples, sequences, got object; make tensors of the data inside of it, by '
        'Scalar, Vector or Tensor',
    ),
    Mistake(
        'another type for None',
        lambda: compiled(jf.Optional(number, jf.Zeros(3))),
        'Pipe[0].Optional.none_case.Zeros(float32[3]): expected to give float32[], '
        'got float32[3]; give both cases one type',
    ),
    Mistake(
        'cases of unlike types',
        lambda: compiled(jf.OneOf(type, {int: number, list: vector})),
        "Pipe[0].OneOf[<class 'list'>].Vector(3, 'float32'): expected to give "
        'float32[], got float32[3]; give all cases one type',
    ),
    Mistake(
        'a choice by a tensor',
        lambda: compiled(jf.OneOf(number, {0: number})),
        "Pipe[0].OneOf.key_fn.Scalar('float32'): expected to give an object, the "
        'key, got float32[]; leave the key as it is in the data, as `GetItem(...)` '
        'does',
    ),
    Mistake(
        'a choice behind a tensor',
        lambda: compiled(number, jf.OneOf(bool, {True: jnp.tanh})),
        'Pipe[1].OneOf(bool, {True: Function(tanh)}): expected an object, got '
        'float32[]; put it where values are of Python, choose by one of several values '
        'as by `OneOf(GetItem(1), ...)`, or use jnp.where in a '
        'Function',
    ),
    Mistake(
        'zeros of an input',
        lambda: compiled(number, jf.Zeros([])),
        'Pipe[1].Zeros(float32[]): expected no input, got float32[]; drop it '
        'first, by Void()',
    ),
    Mistake(
        'zeros of objects',
        lambda: compiled(jf.Zeros(jf.ObjectType())),
        'Pipe[0].Zeros(object): expected a type that has zeros: tensors, tuples, '
        'sequences, got object; write a type of tensors, such as `Zeros([3])`',
    ),
    Mistake(
        'a constant behind a tensor',
        lambda: compiled(number, jf.FromTensor(np.ones(2))),
        'Pipe[1].FromTensor(float64[2]): expected no input, got float32[]; '
        'drop it first, by Void()',
    ),
    Mistake(
        'a state of another type',
        lambda: compiled(numbers, jf.Fold(jf.Concat(), jf.Zeros([]))),
        'Pipe[1].Fold.combine.Function(concat): expected to give its state, '
        'float32[], got float32[2]; make `start` of the type that `combine` gives, '
        'which is always the same',
    ),
    Mistake(
        'a state from the data',
        lambda: compiled(numbers, jf.Fold(add, number)),
        "Pipe[1].Fold.start.Scalar('float32'): expected an object, got void; "
        'use Zeros or FromTensor where nothing is read',
    ),
    Mistake(
        'pairs that do not reduce',
        lambda: compiled(numbers, jf.Reduce(jf.Concat())),
        'Pipe[1].Reduce.combine.Function(concat): expected to give an item, '
        'float32[], got float32[2]; use Fold for a result that is not of the type of '
        'the items',
    ),
    Mistake(
        'a default of another type',
        lambda: compiled(numbers, jf.Max(jf.Zeros(2))),
        'Pipe[1].Reduce.default.Zeros(float32[2]): expected to give an item, '
        'float32[], got float32[2]; make it one of the type of the items',
    ),
    Mistake(
        'a double where JAX has none',
        lambda: compiled(jf.Scalar('float64')),
        "Pipe[0].Scalar('float64'): expected a dtype that JAX keeps, such as "
        'float32, got float64; say it, or set '
        "jax.config.update('jax_enable_x64', True)",
    ),
    Mistake(
        'an unresolved declaration',
        unresolved,
        'tree(): expected a declaration that is resolved, got '
        "ForwardDeclaration('tree'), which is not; call its `resolve_to`",
    ),
    Mistake(
        'a recursion on the same input',
        lambda: jf.compile(recursion(None, number)),
        "tree.OneOf[<class 'tuple'>].tree(): expected a recursion on a part of "
        'its input, got one on the same input, without end; take a field or an '
        'item of it first',
    ),
    Mistake(
        'a recursion without a base',
        lambda: jf.compile(without_base()),
        'tree.Pipe[1].Function(add): expected types that follow from the expression, '
        'got (?, ?) to ?; say them, by `output_type=` of `ForwardDeclaration` or '
        '`recursive`',
    ),
    Mistake(
        'a recursion beside what ends',
        lambda: jf.compile(endless(lambda t: jf.AllOf(number, t()))),
        'tree.AllOf[1].tree(): expected a recursion on a part of its input, got one on '
        'the same input, without end; take a field or an item of it first',
    ),
    Mistake(
        'a recursion whose type nothing tells',
        lambda: jf.compile(endless(lambda t: jf.AllOf(number, t()) >> add)),
        'tree.Pipe[0].AllOf[1].tree(): expected a recursion on a part of its input, '
        'got one on the same input, without end; take a field or an item of it first',
    ),
    Mistake(
        'a recursion in a case whose type nothing tells',
        lambda: jf.compile(
            endless(lambda t: jf.OneOf(type, {list: t() >> jf.Function(jnp.sin)}))
        ),
        "tree.OneOf[<class 'list'>].Pipe[0].tree(): expected a recursion on a part of "
        'its input, got one on the same input, without end; take a field or an item '
        'of it first',
    ),
    Mistake(
        'a recursion by another declaration, whose type nothing tells',
        lambda: jf.compile(endless(by_another)),
        'other.Pipe[0].tree(): expected a recursion on a part of its input, got one on '
        'the same input, without end; take a field or an item of it first',
    ),
    Mistake(
        'a declaration that is itself',
        lambda: jf.compile(endless(lambda t: t())),
        'tree.tree(): expected a recursion on a part of its input, got one on the same '
        'input, without end; take a field or an item of it first',
    ),
    Mistake(
        'a recursion of tuples in tuples',
        lambda: jf.compile(endless(lambda t: jf.Record([('a', number), ('b', t())]))),
        "tree.Record({'a': Scalar('float32'), 'b': tree()}): expected to give "
        '?, got (a: float32[], b: ?); a type would contain itself: make '
        'tensors of one shape of what it gives, by a Function, or a sequence '
        'by Map',
    ),
    Mistake(
        'a choice by one of two values',
        lambda: compiled(
            jf.AllOf(number, jf.GetItem('k')), jf.OneOf(lambda x: x[1], {1: number})
        ),
        "Pipe[1].OneOf(function, {1: Scalar('float32')}): expected an object, got "
        '(float32[], object); put it where values are of Python, choose by one of '
        'several values as by `OneOf(GetItem(1), ...)`, or use jnp.where in a Function',
    ),
    Mistake(
        'a recursion that grows',
        lambda: jf.compile(other_results()),
        "tree.OneOf[<class 'float'>].Scalar('float32'): expected to give (?, ?), got "
        'float32[]; give all cases one type',
    ),
    Mistake(
        'a function of what is not there yet',
        lambda: jf.compose(lambda x: jnp.tanh(number(x))),
        "<what Scalar('float32') gives>: expected a block to be called on it, got a "
        'function or a module, though its value is not known yet; write '
        '`jf.Function(fn)(x)` for `fn(x)`',
        error=ValueError,
    ),
    Mistake(
        'a module of NNX on a wire',
        lambda: jf.compose(lambda x: nnx.Linear(3, 3, rngs=nnx.Rngs(0))(vector(x))),
        "<what Vector(3, 'float32') gives>: expected a block to be called on it, got a "
        'function or a module, though its value is not known yet; write '
        '`jf.Function(fn)(x)` for `fn(x)`',
        error=ValueError,
    ),
    Mistake(
        'a module of Linen on a wire',
        lambda: jf.compose(lambda x: nn.Dense(3)(vector(x))),
        '…\nin `compose`: expected blocks to be called, got a module of Flax: '
        'write `jf.Function(module)(x)` for `module(x)`',
        error=CallCompactUnboundModuleError,
    ),
    Mistake(
        'an attribute of a wire',
        lambda: jf.compose(lambda x: number(x.left)),
        '<the input>: expected blocks and operators on it, got a question for '
        "`.left`, though its value is not known yet; take a field by `x['left']`, and "
        'write `jf.Function(fn)(x)` for a method, where `fn` calls it',
        error=AttributeError,
    ),
    Mistake(
        'the class of a wire',
        lambda: jf.compose(lambda x: number(x) if isinstance(x, int) else None),
        '`<lambda>`: expected no question that Python answers before there are values, '
        'got `isinstance(x...)`; use OneOf to choose by a class, Optional for what may '
        'be `None`',
    ),
    Mistake(
        'the items of a sequence that is a wire',
        lambda: jf.compose(lambda x: [number(each) for each in x]),
        '<the input>: expected blocks and operators on it, got a question for its '
        'items, though its value is not known yet; take those of a tuple by `x[0]`, '
        '`x[1]`, those of a sequence by Map',
        lacks='where',
    ),
    Mistake(
        'an array beside a wire',
        lambda: jf.compose(lambda x: number(x) * jnp.ones(2)),
        "<what Scalar('float32') gives>: expected a wire or a number beside it, got "
        'Array([1., 1.], dtype=float32) (ArrayImpl); write `jf.FromTensor(array)` for '
        'a constant, and a Function with `init=` for what is trained',
    ),
    Mistake(
        'tensors shared',
        lambda: jf.compile(number >> jf.Share(jf.Function(jnp.sin))),
        'Pipe[1].Share(Function(sin)): expected an object, got float32[]; put it '
        'before any block that gives tensors',
    ),
    Mistake(
        'a sequence shared',
        lambda: jf.compile(jf.Share(jf.Map(number)) >> jf.Sum()),
        "Pipe[0].Share(Map(Scalar('float32'))): expected a block that gives tensors, "
        'got [float32[]]; put it around what each item, or the whole, becomes',
    ),
]
