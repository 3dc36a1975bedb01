# SPDX-License-Identifier: Apache-2.0
"""Mistakes in arguments: of `jf.compile`, of blocks, and of whatever takes others."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import numpy as np

import jfold as jf
from mistakes.batches import batches, corpus
from mistakes.common import add, compiled, number, scheduled, vector

layer = jf.Record({'x': jf.Vector(2)}) >> jf.Function(nn.Dense(3), name='dense')
model = jf.compile(layer)
example = {'x': [1, 2]}
LAYERS = 'Attention', 'ChildSumTreeGRU', 'ChildSumTreeLSTM', 'FC', 'GRU', 'LSTM'
# The least that is taken as an argument, by its name, and what takes it.
INTS = (
    ('max_programs', 1, 'jf.compile(number, max_programs={})'),
    ('size', 0, 'scheduled(number, 1, size={})'),
    ('batch_size', 1, 'batches(size={})'),
    ('epochs', 1, 'batches(epochs={})'),
    ('prefetch', 0, 'batches(prefetch={})'),
    ('batch_size', 1, 'corpus().capacities({})'),
    ('rounds', 0, 'jf.layers.MessagePassing(number, number, rounds={})'),
    ('width', 1, 'jf.layers.Weave({})'),
    *(('features', 1, f'jf.layers.{name}({{}})') for name in LAYERS),
)


def params() -> Any:
    return model.init(jax.random.key(0))


def product(w: Any, x: Any) -> Any:
    return w @ x


TABLE = r"""
>>> jf.compile(3)
TypeError: expected a block, a callable, an array, or a dict, list or tuple of blocks,
got 3; write `FromTensor(np.float32(3))`, or `Zeros([])` for a zero
>>> jf.compile(None)
TypeError: expected a block, a callable, an array, or a dict, list or tuple of blocks,
got None; pass an array for a constant
>>> jf.compile(jf.Scalar)
TypeError: expected a block, got <function Scalar at …> itself: call it to get one, as
in `Scalar(...)`
>>> jf.compile(jf.Identity)
TypeError: expected a block, got <class 'jfold.blocks.control.Identity'> itself: call it
to get one, as in `Identity(...)`
>>> number >> 'tanh'
TypeError: expected a block, a callable, an array, or a dict, list or tuple of blocks,
got 'tanh'; write `GetItem('tanh')` for a field
>>> number >> float
TypeError: expected a block, a callable, an array, or a dict, list or tuple of blocks,
got <class 'float'>; write `InputTransform(float)`
>>> vector >> nn.Dense
TypeError: expected a block, a callable, an array, or a dict, list or tuple of blocks,
got <class 'flax.linen.linear.Dense'>; call it
>>> jf.compile(jf.compile(number))
TypeError: expected a block, a callable, an array, or a dict, list or tuple of blocks,
got Model(float32[], layers: none); take the block that it was compiled of,
`model.block`
>>> jf.Record({'left': jf.ForwardDeclaration(name='tree')})
TypeError: expected a block, got ForwardDeclaration('tree') itself: call it to get one,
as in `tree()`
>>> jf.recursive(lambda node: jf.OneOf(type, {int: number, list: jf.Map(node)}))
TypeError: expected a block, got ForwardDeclaration('compose') itself: call it to get
one, as in `compose()`
>>> jf.compose(lambda xs: jf.Fold(add, jf.Zeros([])(xs))(xs))
TypeError: expected a block, got <output of Zeros(float32[])>, its value: leave out the
call where a block is asked for, as in `Fold(cell, Zeros([3]))(xs)`
>>> number + number
TypeError: Scalar('float32'): expected `>>` or a call on wires, got another operator;
write `AllOf(a, b) >> Function(jnp.add)` for the sum of what two blocks give
>>> jf.Fold(add, 0)
TypeError: expected a block, a callable, an array, or a dict, list or tuple of blocks,
got 0; write `FromTensor(np.float32(0))`, or `Zeros([])` for a zero
>>> jf.compile(number, jf.Identity())
TypeError: expected `max_programs` as int, got Identity() (Identity): write
`jf.compile(a >> b)` for one block after another
>>> jf.Concat(number, number)
TypeError: expected `concat_dim` as int, got Scalar('float32') (Tensor): write `AllOf(a,
b) >> Concat()`
>>> jf.compile(number).predict([1.0], {})
TypeError: expected `params` and then examples, got [1.0] (list) first: write
`model.predict(params, examples)`
>>> jf.OneOf((type, len), {(list, 2): number})
TypeError: OneOf: expected a callable `key_fn`, got (<class 'type'>, <built-in function
len>); write one function of the value, as `lambda x: (x[0], x[1])`
>>> jf.compile(lambda x: number(x[0]))
TypeError: Function(function): expected tensors or tuples of tensors, got object; turn
objects into tensors by Scalar, Vector or Tensor, or write `InputTransform(fn)` for a
function of Python values, `compose(fn)` for one that calls blocks
>>> compiled(number, residuals='all')
ValueError: expected `residuals` as 'save products' or 'recompute all', got 'all'
>>> compiled(number, strategy='fast')
ValueError: expected `strategy` as 'counted' or 'fixed' or None, got 'fast'
>>> compiled(number, reproducible='yes')
TypeError: expected `reproducible` as a bool, got 'yes': say `True` for sums in a fixed
order
>>> jf.Tensor(3)
TypeError: expected `shape` as a tuple or list of non-negative ints, got 3; write
`Tensor([2, 3])` for a shape, `Vector(2)` for a length
>>> jf.Vector(-1)
TypeError: expected `shape` as a tuple or list of non-negative ints, got (-1,); write
`Tensor([2, 3])` for a shape, `Vector(2)` for a length
>>> jf.Vector('3')
TypeError: expected `shape` as a tuple or list of non-negative ints, got ('3',); write
`Tensor([2, 3])` for a shape, `Vector(2)` for a length
>>> jf.Scalar('float23')
TypeError: expected `dtype` as a number type such as 'float32', got 'float23'
>>> jf.Scalar(str)
TypeError: expected `dtype` as a number type such as 'float32', got <class 'str'>
>>> jf.FromTensor([1.0, 2.0])
TypeError: FromTensor: expected an array, got [1.0, 2.0]
>>> jf.FromTensor(np.array(['a']))
TypeError: expected `dtype` as a number type such as 'float32', got dtype('<U1')
>>> jf.Zeros({3})
TypeError: expected a type or a short-hand for one, got {3}; write a tuple or dict of
types, a list of ints, an int, or a dtype such as 'int32'
>>> jf.Zeros({1: 3, 'a': []})
TypeError: expected a dict with keys in an order, got {1: 3, 'a': []} (dict); write
names alone
>>> jf.ForwardDeclaration(output_type=3.5)
TypeError: expected a type or a short-hand for one, got 3.5; write a tuple or dict of
types, a list of ints, an int, or a dtype such as 'int32'
>>> jf.Function(3)
TypeError: Function: expected a callable, got 3
>>> jf.Function(number)
TypeError: Function: expected a callable, got Scalar('float32')
>>> jf.Function(product, init=np.ones(3))
TypeError: Function: expected `init` callable, got array([1., 1., 1.])
>>> jf.Function(product, name=7)
TypeError: Function: expected `name` as str, got 7
>>> jf.Metric(number)
TypeError: Metric: expected `name` as str, got Scalar('float32')
>>> jf.Record({'x'})
TypeError: Record: expected a dict, list or tuple, got {'x'}
>>> jf.Record({'x': 'float32'})
TypeError: expected a block, a callable, an array, or a dict, list or tuple of blocks,
got 'float32'; write `Scalar('float32')` for a number, `GetItem('float32')` for a field
>>> jf.OneOf('kind', {'a': number})
TypeError: OneOf: expected a callable `key_fn`, got 'kind'; write `GetItem('kind')` for
a field
>>> jf.OneOf(type, {})
ValueError: OneOf: expected at least one case, got none
>>> jf.InputTransform(3)
TypeError: InputTransform: expected a callable or a mapping, got 3
>>> jf.InputTransform({})
ValueError: InputTransform: expected at least one key, got none
>>> jf.InputTransform(len, default=0)
TypeError: InputTransform: expected a mapping beside `default`, got <built-in function
len>
>>> tree = jf.ForwardDeclaration(name='tree')
... tree.resolve_to(number)
... tree.resolve_to(number)
TypeError: ForwardDeclaration('tree'): expected a declaration that is not resolved yet,
got one resolved to Scalar('float32'); make another
>>> layer.eval(params(), example)
TypeError: expected `example` and then `params`, got those of ['dense'] as the example:
call `eval(example, params)`
>>> layer.eval(example, [1])
TypeError: expected `params` as a dict of parameters by layers, got [1] (list): call
`eval(example, params)`
>>> jf.find_nan(3, {}, [1])
TypeError: expected `model` as a model, got 3: pass what `jfold.compile` returns
>>> jf.find_nan(model, params(), [example], loss=2.5)
TypeError: expected `loss` as a function of what `Model.apply` returns, got 2.5
>>> jf.find_nan(model, params(), [example], loss=lambda result: result)
TypeError: expected `loss` to return one float, got float32[1, 3]: take its mean or sum
>>> jf.find_nan(model, params(), [example], loss=lambda result: None)
TypeError: expected `loss` to return one float, got None: return a mean or sum of floats
>>> model.explain(3)
TypeError: expected `schedule` as a schedule, got 3: pass what
`model.schedule(examples)` returns
>>> model.schedules(3)
TypeError: expected `batches` as a list of lists of examples, got 3
>>> model.join(3)
TypeError: expected `parts` as a list of what was traced, got 3: pass `[part]`
>>> model.precompile('x', params())
TypeError: expected `step` as a function, got 'x': pass it first
>>> jf.Corpus.load(3, model)
TypeError: expected `path` as the path of a file, got 3
>>> jf.Schedule.stack(3)
TypeError: expected `schedules` as a list of schedules, got 3: pass what
`model.schedules(batches)` returns
>>> jf.Composition(3)
TypeError: expected `children` as a list of blocks, got 3
>>> jf.compose(3)
TypeError: expected `fn` as a function of wires, got 3
>>> jf.recursive(3)
TypeError: expected `fn` as a function of the block it is, got 3
>>> jf.OneHotFromList([['a'], ['b']])
TypeError: expected `items` as hashable values, got ['a'] (list): make keys of them by
an InputTransform before
>>> jf.OneHot('x')
TypeError: expected `start` as int, got 'x'
>>> jf.OneHotFromList(3)
TypeError: expected `items` as a list, got 3: write `OneHotFromList([...])`
>>> jf.Concat([1])
TypeError: expected `concat_dim` as int, got [1] (list)
>>> jf.layers.MessagePassing(number, number, edges='x')
TypeError: expected `edges` as bool, got 'x'
>>> jf.layers.Bidirectional(4, 3)
TypeError: expected `make` as a function of a size, such as LSTM, got 3
>>> jf.layers.Categorical([[1]])
TypeError: expected `values` as hashable values, got [1] (list): make tuples of lists
>>> jf.compose(lambda *, x: number(x))
TypeError: <function …: expected wires by position, got `*`; write `x` before the `*`
>>> jf.layers.Categorical(3)
TypeError: expected `values` as a list of known values, got 3
>>> jf.nnx.Fold(number, rngs=3)
TypeError: expected `rngs` as `nnx.Rngs`, got 3: write `rngs=nnx.Rngs(0)`
>>> jf.nnx.Cell(3)
TypeError: expected `make` as a function of `nnx.Rngs`, got 3: write
`jf.nnx.Cell(lambda rngs: nnx.Linear(3, 4, rngs=rngs))`
>>> jf.nnx.Cell(lambda rngs: 3)
TypeError: expected `make` as that of an NNX module, got 3: write
`jf.nnx.Cell(lambda rngs: nnx.Linear(3, 4, rngs=rngs))`
>>> compiled(number, max_programs=True)
TypeError: expected `max_programs` as int, got True
>>> compiled(number, max_programs=0.5)
TypeError: expected `max_programs` as int, got 0.5
>>> compiled(number, max_programs=2.0)
TypeError: expected `max_programs` as int, got 2.0; write `max_programs=2`
>>> compiled(number, max_programs='8')
TypeError: expected `max_programs` as int, got '8'; write `max_programs=8`
""" + '\n'.join(
    f""">>> {call.format("'x'")}
TypeError: expected `{name}` as int, got 'x'
>>> {call.format(least - 1)}
ValueError: expected `{name}` of at least {least}, got {least - 1};
write `{name}={least}` or more"""
    for name, least, call in INTS
)
