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
from mistakes.common import add, compiled, number, numbers, pair, vector


def declared(body: Callable[[Any], jf.Block]) -> jf.Model:
    """The model of a declaration that is resolved to what is made of it."""
    tree = jf.ForwardDeclaration(name='tree')
    tree.resolve_to(body(tree))
    return jf.compile(tree())


TABLE = r"""
>>> compiled(number, number)
TypeError: Pipe[1].Scalar('float32'): expected an object, got float32[]; put it before
any block that gives tensors
>>> compiled(number, jf.InputTransform(abs))
TypeError: Pipe[1].InputTransform(abs): expected an object, got float32[]; use Function
to compute with tensors
>>> jf.compile(jnp.tanh)
TypeError: Function(tanh): expected tensors or tuples of tensors, got object; turn
objects into tensors by Scalar, Vector or Tensor
>>> compiled(numbers, jnp.tanh)
TypeError: Pipe[1].Function(tanh): expected tensors or tuples of tensors, got
[float32[]]; use Map for each item, or Sum, Fold or Reduce for all of them
>>> compiled(jf.AllOf(number, numbers), jnp.add)
TypeError: Pipe[1].Function(add): expected tensors or tuples of tensors, got (float32[],
[float32[]]); use Map for each item, or Sum, Fold or Reduce for all of them
>>> compiled(jf.AllOf(numbers, numbers), jf.Concat())
TypeError: Pipe[1].Function(concat): expected tensors or tuples of tensors, got
([float32[]], [float32[]]); use Map for each item, or Sum, Fold or Reduce for all of
them
>>> compiled(number, jf.Concat())
TypeError: Pipe[1].Function(concat): expected a tuple of tensors, got float32[]; make
one of all that is joined, as in `AllOf(a, b) >> Concat()`
>>> compiled(number, jf.Metric('m'), jnp.tanh)
TypeError: Pipe[2].Function(tanh): expected to run on inputs (), got TypeError: …; put a
sink beside the value, as in `AllOf(Identity(), Metric('name')) >> GetItem(0)`
>>> compiled(jf.AllOf(number, number >> jf.Metric('m')), jnp.add)
TypeError: Pipe[1].Function(add): expected tensors or tuples of tensors, got (float32[],
void); take what a sink stands beside by `>> GetItem(...)` first
>>> compiled(number, jf.Map(jnp.tanh))
TypeError: Pipe[1].Map(Function(tanh)): expected a sequence, a non-empty tuple of one
type, or an object, got float32[]; use a Function for what is in one tensor, and Map for
a list of the data
>>> compiled(number, jf.Sum())
TypeError: Pipe[1].Sum(): expected a sequence, a non-empty tuple of one type, or an
object, got float32[]; use a Function for what is in one tensor, and Map for a list of
the data
>>> compiled(jf.Sum())
TypeError: Pipe[0].Reduce.combine.Function(add): expected tensors or tuples of tensors,
got (object, object); turn objects into tensors by Scalar, Vector or Tensor
>>> compiled(number, jf.Length())
TypeError: Pipe[1].Length('float32'): expected a sequence, a tuple or an object, got
float32[]; use a Function for what is in one tensor, and Map for a list of the data
>>> compiled(jf.AllOf(number, vector), jf.Map(jnp.tanh), jf.Metric('m'))
TypeError: Pipe[1].Map(Function(tanh)): expected items of one type, float32[], got
float32[3]; make them alike by a Record, which has a block for each item
>>> compiled(pair, jf.GetItem(2))
TypeError: Pipe[1].GetItem(2): expected at least 3 items, got (float32[], float32[]);
write a place from -2 to 1
>>> compiled(pair, jf.GetItem('left'))
TypeError: Pipe[1].GetItem('left'): expected int keys, for its input is the tuple
(float32[], float32[]), got 'left'; write a place from -2 to 1
>>> compiled(vector, jf.GetItem(3))
TypeError: Pipe[1].GetItem(3): expected a tensor with an item 3, got float32[3]; take
ints within its shape, and slices
>>> compiled(number, jf.GetItem(0))
TypeError: Pipe[1].GetItem(0): expected a tensor with an item 0, got float32[]; leave it
out, for a scalar has no items
>>> compiled(vector, jf.GetItem('x'))
TypeError: Pipe[1].GetItem('x'): expected a tensor with an item 'x', got float32[3];
take ints within its shape, and slices
>>> compiled(numbers, jf.GetItem('x'))
TypeError: Pipe[1].GetItem('x'): expected an int or a slice, for its input is
[float32[]], got 'x'; use Map, for an item of each of its items
>>> compiled(pair, {'left': jnp.tanh})
TypeError: Pipe[1].Record({'left': Function(tanh)}): expected int keys, for its input is
the tuple (float32[], float32[]), got 'left'; write a place from -2 to 1
>>> compiled(number, {'x': jnp.tanh})
TypeError: Pipe[1].Record({'x': Function(tanh)}): expected an object or a tuple, got
float32[]; give the whole of it to several blocks by AllOf
>>> compiled(pair, (jnp.tanh, jnp.tanh, jnp.tanh))
TypeError: Pipe[1].Record({0: Function(tanh), 1: Function(tanh), 2: Function...:
expected at least 3 items, got (float32[], float32[]); write a place from -2 to 1
>>> compiled(number, jf.Optional(jnp.tanh))
TypeError: Pipe[1].Optional(Function(tanh)): expected an object, got float32[]; put it
before any block that gives tensors
>>> compiled(jf.Optional(jf.Identity()), number)
TypeError: Pipe[0].Optional(Identity()): expected a type that has zeros: tensors,
tuples, sequences, got object; make tensors of the data inside of it, by Scalar, Vector
or Tensor
>>> compiled(jf.Optional(number, jf.Zeros(3)))
TypeError: Pipe[0].Optional.none_case.Zeros(float32[3]): expected to give float32[], got
float32[3]; give both cases one type
>>> compiled(jf.OneOf(type, {int: number, list: vector}))
TypeError: Pipe[0].OneOf[<class 'list'>].Vector(3, 'float32'): expected to give
float32[], got float32[3]; give all cases one type
>>> compiled(jf.OneOf(number, {0: number}))
TypeError: Pipe[0].OneOf.key_fn.Scalar('float32'): expected to give an object, the key,
got float32[]; leave the key as it is in the data, as `GetItem(...)` does
>>> compiled(number, jf.OneOf(bool, {True: jnp.tanh}))
TypeError: Pipe[1].OneOf(bool, {True: Function(tanh)}): expected an object, got
float32[]; put it where values are of Python, choose by one of several values as by
`OneOf(GetItem(1), ...)`, or use jnp.where in a Function
>>> compiled(number, jf.Zeros([]))
TypeError: Pipe[1].Zeros(float32[]): expected no input, got float32[]; drop it first, by
Void()
>>> compiled(jf.Zeros(jf.ObjectType()))
TypeError: Pipe[0].Zeros(object): expected a type that has zeros: tensors, tuples,
sequences, got object; write a type of tensors, such as `Zeros([3])`
>>> compiled(number, jf.FromTensor(np.ones(2)))
TypeError: Pipe[1].FromTensor(float64[2]): expected no input, got float32[]; drop it
first, by Void()
>>> compiled(numbers, jf.Fold(jf.Concat(), jf.Zeros([])))
TypeError: Pipe[1].Fold.combine.Function(concat): expected to give its state, float32[],
got float32[2]; make `start` of the type that `combine` gives, which is always the same
>>> compiled(numbers, jf.Fold(add, number))
TypeError: Pipe[1].Fold.start.Scalar('float32'): expected an object, got void; use Zeros
or FromTensor where nothing is read
>>> compiled(numbers, jf.Reduce(jf.Concat()))
TypeError: Pipe[1].Reduce.combine.Function(concat): expected to give an item, float32[],
got float32[2]; use Fold for a result that is not of the type of the items
>>> compiled(numbers, jf.Max(jf.Zeros(2)))
TypeError: Pipe[1].Reduce.default.Zeros(float32[2]): expected to give an item,
float32[], got float32[2]; make it one of the type of the items
>>> compiled(jf.Scalar('float64'))
TypeError: Pipe[0].Scalar('float64'): expected a dtype that JAX keeps, such as float32,
got float64; say it, or set jax.config.update('jax_enable_x64', True)
>>> jf.compile(jf.ForwardDeclaration(name='tree')())
TypeError: tree(): expected a declaration that is resolved, got
ForwardDeclaration('tree'), which is not; call its `resolve_to`
>>> declared(lambda t: jf.OneOf(type, {tuple: t(), float: number}))
TypeError: tree.OneOf[<class 'tuple'>].tree(): expected a recursion on a part of its
input, got one on the same input, without end; take a field or an item of it first
>>> declared(lambda t: jf.Record((t(), t())) >> add)
TypeError: tree.Pipe[1].Function(add): expected types that follow from the expression,
got (?, ?) to ?; say them, by `output_type=` of `ForwardDeclaration` or `recursive`
>>> declared(lambda t: jf.AllOf(number, t()))
TypeError: tree.AllOf[1].tree(): expected a recursion on a part of its input, got one on
the same input, without end; take a field or an item of it first
>>> declared(lambda t: jf.AllOf(number, t()) >> add)
TypeError: tree.Pipe[0].AllOf[1].tree(): expected a recursion on a part of its input,
got one on the same input, without end; take a field or an item of it first
>>> declared(lambda t: jf.OneOf(type, {list: t() >> jf.Function(jnp.sin)}))
TypeError: tree.OneOf[<class 'list'>].Pipe[0].tree(): expected a recursion on a part of
its input, got one on the same input, without end; take a field or an item of it first
>>> def by_another(tree):
...     other = jf.ForwardDeclaration(name='other')
...     other.resolve_to(tree() >> jf.Function(jnp.sin))
...     return jf.AllOf(number, other()) >> add
... declared(by_another)
TypeError: other.Pipe[0].tree(): expected a recursion on a part of its input, got one on
the same input, without end; take a field or an item of it first
>>> declared(lambda t: t())
TypeError: tree.tree(): expected a recursion on a part of its input, got one on the same
input, without end; take a field or an item of it first
>>> declared(lambda t: jf.Record([('a', number), ('b', t())]))
TypeError: tree.Record({'a': Scalar('float32'), 'b': tree()}): expected to give ?, got
(a: float32[], b: ?); a type would contain itself: make tensors of one shape of what it
gives, by a Function, or a sequence by Map
>>> def in_turn(tree):
...     other = jf.ForwardDeclaration(name='other')
...     other.resolve_to(jf.Record((number, tree())))
...     return jf.Map(other())
... declared(in_turn)
TypeError: tree.Map(other()): expected to give ?, got [(float32[], ?)]; a type would
contain itself: make tensors of one shape of what it gives, by a Function, or a sequence
by Map
>>> compiled(jf.AllOf(number, jf.GetItem('k')), jf.OneOf(lambda x: x[1], {1: number}))
TypeError: Pipe[1].OneOf(function, {1: Scalar('float32')}): expected an object, got
(float32[], object); put it where values are of Python, choose by one of several values
as by `OneOf(GetItem(1), ...)`, or use jnp.where in a Function
>>> declared(lambda t: jf.OneOf(type, {tuple: jf.Record((t(), t())), float: number}))
TypeError: tree.OneOf[<class 'float'>].Scalar('float32'): expected to give (?, ?), got
float32[]; give all cases one type
>>> jf.compose(lambda x: jnp.tanh(number(x)))
ValueError: <output of Scalar('float32')>: expected a block to be called on it, got a
function or a module, though its value is not known yet; write `jf.Function(fn)(x)` for
`fn(x)`
>>> jf.compose(lambda x: nnx.Linear(3, 3, rngs=nnx.Rngs(0))(vector(x)))
ValueError: <output of Vector(3, 'float32')>: expected a block to be called on it, got a
function or a module, though its value is not known yet; write `jf.Function(fn)(x)` for
`fn(x)`
>>> jf.compose(lambda x: nn.Dense(3)(vector(x)))
CallCompactUnboundModuleError: …\nin `compose`: expected blocks to be called, got a
module of Flax: write `jf.Function(module)(x)` for `module(x)`
>>> jf.compose(lambda x: number(x.left))
AttributeError: <the input>: expected blocks and operators on it, got a question for
`.left`, though its value is not known yet; take a field by `x['left']`, and write
`jf.Function(fn)(x)` for a method, where `fn` calls it
>>> jf.compose(lambda x: number(x) if isinstance(x, int) else None)
TypeError: `<lambda>`: expected no question that Python answers before there are values,
got `isinstance(x...)`; use OneOf to choose by a class, Optional for what may be `None`
>>> jf.compose(lambda x: [number(each) for each in x])
TypeError: <the input>: expected blocks and operators on it, got a question for its
items, though its value is not known yet; take those of a tuple by `x[0]`, `x[1]`, those
of a sequence by Map
>>> jf.compose(lambda x: round(number(x)))
TypeError: <output of Scalar('float32')>: expected blocks and operators on it, got a
question for its number, though its value is not known yet; write `jf.Function(fn)(x)`,
where `fn` calculates with it
>>> jf.compose(lambda x: f'{number(x):.2f}')
TypeError: <output of Scalar('float32')>: expected blocks and operators on it, got a
question for its number, though its value is not known yet; write `jf.Function(fn)(x)`,
where `fn` calculates with it
>>> jf.compose(lambda x: float(number(x)))
TypeError: <output of Scalar('float32')>: expected blocks and operators on it, got a
question for its number, though its value is not known yet; write `jf.Function(fn)(x)`,
where `fn` calculates with it
>>> jf.compose(lambda x: number(x) if 'key' in x else vector(x))
TypeError: <the input>: expected blocks and operators on it, got a question for what is
in it, though its value is not known yet; choose by OneOf, or by jnp.where in a Function
>>> jf.compose(lambda x: number(x) * jnp.ones(2))
TypeError: <output of Scalar('float32')>: expected a wire or a number beside it, got
Array([1., 1.], dtype=float32) (ArrayImpl); write `jf.FromTensor(array)` for a constant,
and a Function with `init=` for what is trained
>>> jf.compile(number >> jf.Share(jf.Function(jnp.sin)))
TypeError: Pipe[1].Share(Function(sin)): expected an object, got float32[]; put it
before any block that gives tensors
>>> jf.compile(jf.Share(jf.Map(number)) >> jf.Sum())
TypeError: Pipe[0].Share(Map(Scalar('float32'))): expected a block that gives tensors,
got [float32[]]; put it around what each item, or the whole, becomes
>>> (number >> number).eval(3)
TypeError: Pipe[1].Scalar('float32'): expected an object, got float32[]; put it before
any block that gives tensors
>>> compiled(jf.Map(jf.GetItem('x')))
TypeError: Map(GetItem('x')): expected a result of tensors, in tuples and sequences, got
[object]; make tensors of the items, as `Map(Scalar())` does
>>> compiled(jf.GetItem('x'))
TypeError: GetItem('x'): expected a result of tensors, in tuples and sequences, got
object; end with Scalar, Vector, Tensor or a Function
>>> compiled(number, jf.Void())
TypeError: Scalar('float32') >> Void(): expected a result of tensors, or a Metric, got
void; end with tensors, or collect them by a Metric
>>> compiled(jf.Map(number >> jf.Metric('m')))
TypeError: Map(Scalar('float32') >> Metric('m')): expected a result of tensors, in
tuples and sequences, got [void]; drop what a sink leaves by `>> Void()`
>>> compiled(number, jf.AllOf(jf.Identity(), jf.Broadcast()))
TypeError: Scalar('float32') >> AllOf(Identity(), Broadcast()): expected a result of
tensors, in tuples and sequences, got (float32[], [float32[] ...]); put it beside a
sequence, by ZipWith
>>> compiled(numbers, jf.Metric('m'))
TypeError: Pipe[1].Metric('m'): expected a tensor or a tuple of tensors, got
[float32[]]; collect its items by `Map(Metric(...)) >> Void()`
>>> compiled(jf.Metric('m'))
TypeError: Pipe[0].Metric('m'): expected a tensor or a tuple of tensors, got object;
turn objects into tensors by Scalar, Vector or Tensor
>>> compiled(jf.AllOf(number >> jf.Metric('m'), jf.Length('int32') >> jf.Metric('m')))
TypeError: Pipe[0].AllOf[1].Pipe[1].Metric('m'): expected float32[], as at its other
uses, got int32[]; give what has another type another name
>>> (
...     compiled(
...         numbers, jf.RNN(lambda x, state: (x, state), jf.Zeros([])), jf.Map(jnp.exp)
...     )
... )
TypeError: Pipe[2].Map(Function(exp)): expected items of one type, [float32[]], got
float32[]; take the outputs of an RNN by GetItem(0), or make them alike by a Record
>>> jf.Map(jf.Scalar())[0] >> jf.Sum()
TypeError: expected a block, a callable, an array, or a dict, list or tuple of blocks,
got Item(block=Map(Scalar('float32')), key=0); write `block >> GetItem(0)` outside of a
composition
"""
