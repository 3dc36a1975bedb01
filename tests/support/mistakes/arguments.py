# SPDX-License-Identifier: Apache-2.0
"""Mistakes in arguments: of `jf.compile`, of blocks, and of whatever takes others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import numpy as np

import jfold as jf
from mistakes.batches import batches, corpus
from mistakes.common import (
    NO_BLOCK,
    NO_TENSORS,
    TO_TENSORS,
    Mistake,
    ValueMistake,
    add,
    compiled,
    number,
    scheduled,
    vector,
)

layer = jf.Record({'x': jf.Vector(2)}) >> jf.Function(nn.Dense(3), name='dense')
model = jf.compile(layer)
example = {'x': [1, 2]}
LAYERS = 'Attention', 'ChildSumTreeGRU', 'ChildSumTreeLSTM', 'FC', 'GRU', 'LSTM'
# The least that is taken as an argument, by its name and that of what takes it.
INTS: dict[tuple[str, str], tuple[Callable[[Any], Any], int]] = {
    ('max_programs', 'a model'): (lambda n: jf.compile(number, max_programs=n), 1),
    ('size', 'a schedule'): (lambda n: scheduled(number, 1, size=n), 0),
    ('batch_size', 'a run'): (lambda n: batches(size=n), 1),
    ('epochs', 'a run'): (lambda n: batches(epochs=n), 1),
    ('prefetch', 'a run'): (lambda n: batches(prefetch=n), 0),
    ('batch_size', 'a corpus'): (lambda n: corpus().capacities(n), 1),
    ('rounds', 'messages'): (
        lambda n: jf.layers.MessagePassing(number, number, rounds=n),
        0,
    ),
    ('width', 'Weave'): (jf.layers.Weave, 1),
    **{('features', name): (getattr(jf.layers, name), 1) for name in LAYERS},
}
NO_INTS = {True: '', 0.5: '', 2.0: '; write `max_programs=2`'}
NO_INTS |= {'8': '; write `max_programs=8`'}


def params() -> Any:
    return model.init(jax.random.key(0))


def resolved_twice() -> None:
    tree = jf.ForwardDeclaration(name='tree')
    tree.resolve_to(number)
    tree.resolve_to(number)


def product(w: Any, x: Any) -> Any:
    return w @ x


NO_SHAPE = 'expected `shape` as a tuple or list of non-negative ints, got'
A_SHAPE = 'write `Tensor([2, 3])` for a shape, `Vector(2)` for a length'
NO_TYPE = 'expected a type or a short-hand for one, got'
A_TYPE = "write a tuple of types, a list of ints, an int, or a dtype such as 'int32'"
NO_DTYPE = "expected `dtype` as a number type such as 'float32', got"

MISTAKES: dict[str, Mistake] = {
    'an int for an expression': Mistake(
        lambda: jf.compile(3),
        f'{NO_BLOCK} 3; write `FromTensor(np.float32(3))`, or `Zeros([])` for a zero',
    ),
    'nothing for an expression': Mistake(
        lambda: jf.compile(None), f'{NO_BLOCK} None; pass an array for a constant'
    ),
    'a block not called': Mistake(
        lambda: jf.compile(jf.Scalar),
        'expected a block, got <function Scalar at …> itself: call it to get one, as '
        'in `Scalar(...)`',
    ),
    'a class of blocks': Mistake(
        lambda: jf.compile(jf.Identity),
        "expected a block, got <class 'jfold.blocks.control.Identity'> itself: call "
        'it to get one, as in `Identity(...)`',
    ),
    'a name for a block': Mistake(
        lambda: number >> 'tanh',
        f"{NO_BLOCK} 'tanh'; write `GetItem('tanh')` for a field",
    ),
    'a class for a function': Mistake(
        lambda: number >> float,
        f"{NO_BLOCK} <class 'float'>; write `InputTransform(float)`",
    ),
    'a Flax class': Mistake(
        lambda: vector >> nn.Dense,
        f"{NO_BLOCK} <class 'flax.linen.linear.Dense'>; call it",
    ),
    'a model for a block': Mistake(
        lambda: jf.compile(jf.compile(number)),
        f'{NO_BLOCK} Model(float32[], layers: none); take the block that it was '
        'compiled of, `model.block`',
    ),
    'a declaration not called': Mistake(
        lambda: jf.Record({'left': jf.ForwardDeclaration(name='tree')}),
        "expected a block, got ForwardDeclaration('tree') itself: call it to get one, "
        'as in `tree()`',
    ),
    'a declaration for a block in a recursive function': Mistake(
        lambda: jf.recursive(
            lambda node: jf.OneOf(type, {int: number, list: jf.Map(node)})
        ),
        "expected a block, got ForwardDeclaration('compose') itself: call it to get "
        'one, as in `compose()`',
    ),
    'the value of a block for a block': Mistake(
        lambda: jf.compose(lambda xs: jf.Fold(add, jf.Zeros([])(xs))(xs)),
        'expected a block, got <output of Zeros(float32[])>, its value: leave out '
        'the call where a block is asked for, as in `Fold(cell, Zeros([3]))(xs)`',
    ),
    'a sum of blocks': Mistake(
        lambda: number + number,
        "Scalar('float32'): expected `>>` or a call on wires, got another operator; "
        'write `AllOf(a, b) >> Function(jnp.add)` for the sum of what two blocks give',
    ),
    'a number to start from': Mistake(
        lambda: jf.Fold(add, 0),
        f'{NO_BLOCK} 0; write `FromTensor(np.float32(0))`, or `Zeros([])` for a zero',
    ),
    'several blocks for an expression': Mistake(
        lambda: jf.compile(number, jf.Identity()),
        'expected `max_programs` as int, got Identity() (Identity): write '
        '`jf.compile(a >> b)` for one block after another',
    ),
    'blocks to join': Mistake(
        lambda: jf.Concat(number, number),
        "expected `concat_dim` as int, got Scalar('float32') (Tensor): write "
        '`AllOf(a, b) >> Concat()`',
    ),
    'examples before parameters': Mistake(
        lambda: jf.compile(number).predict([1.0], {}),
        'expected `params` and then examples, got [1.0] (list) first: write '
        '`model.predict(params, examples)`',
    ),
    'a choice by a pair of functions': Mistake(
        lambda: jf.OneOf((type, len), {(list, 2): number}),
        "OneOf: expected a callable `key_fn`, got (<class 'type'>, <built-in function "
        'len>); write one function of the value, as `lambda x: (x[0], x[1])`',
    ),
    'a function that calls blocks, not composed': Mistake(
        lambda: jf.compile(lambda x: number(x[0])),
        f'Function(function): {NO_TENSORS} object; {TO_TENSORS}, or write '
        '`InputTransform(fn)` for a function of Python values, `compose(fn)` for one '
        'that calls blocks',
    ),
    'unknown residuals': ValueMistake(
        lambda: compiled(number, residuals='all'),
        "expected `residuals` as 'save products' or 'recompute all', got 'all'",
    ),
    'unknown strategy': ValueMistake(
        lambda: compiled(number, strategy='fast'),
        "expected `strategy` as 'counted' or 'fixed' or None, got 'fast'",
    ),
    'reproducible as a word': Mistake(
        lambda: compiled(number, reproducible='yes'),
        "expected `reproducible` as a bool, got 'yes': say `True` for sums in a fixed "
        'order',
    ),
    'a shape that is an int': Mistake(lambda: jf.Tensor(3), f'{NO_SHAPE} 3; {A_SHAPE}'),
    'a negative size': Mistake(lambda: jf.Vector(-1), f'{NO_SHAPE} (-1,); {A_SHAPE}'),
    'a size as text': Mistake(lambda: jf.Vector('3'), f"{NO_SHAPE} ('3',); {A_SHAPE}"),
    'an unknown dtype': Mistake(lambda: jf.Scalar('float23'), f"{NO_DTYPE} 'float23'"),
    'a dtype of text': Mistake(lambda: jf.Scalar(str), f"{NO_DTYPE} <class 'str'>"),
    'a list as a constant': Mistake(
        lambda: jf.FromTensor([1.0, 2.0]),
        'FromTensor: expected an array, got [1.0, 2.0]',
    ),
    'text as a constant': Mistake(
        lambda: jf.FromTensor(np.array(['a'])), f"{NO_DTYPE} dtype('<U1')"
    ),
    'a type that is none': Mistake(lambda: jf.Zeros({3}), f'{NO_TYPE} {{3}}; {A_TYPE}'),
    'a declared type that is none': Mistake(
        lambda: jf.ForwardDeclaration(output_type=3.5), f'{NO_TYPE} 3.5; {A_TYPE}'
    ),
    'a number for a function': Mistake(
        lambda: jf.Function(3), 'Function: expected a callable, got 3'
    ),
    'a block for a function': Mistake(
        lambda: jf.Function(number),
        "Function: expected a callable, got Scalar('float32')",
    ),
    'parameters for init': Mistake(
        lambda: jf.Function(product, init=np.ones(3)),
        'Function: expected `init` callable, got array([1., 1., 1.])',
    ),
    'a name that is no text': Mistake(
        lambda: jf.Function(product, name=7), 'Function: expected `name` as str, got 7'
    ),
    'a metric without a name': Mistake(
        lambda: jf.Metric(number),
        "Metric: expected `name` as str, got Scalar('float32')",
    ),
    'a set of fields': Mistake(
        lambda: jf.Record({'x'}), "Record: expected a dict, list or tuple, got {'x'}"
    ),
    'a field that is no block': Mistake(
        lambda: jf.Record({'x': 'float32'}),
        f"{NO_BLOCK} 'float32'; write `GetItem('float32')` for a field",
    ),
    'a key for a key function': Mistake(
        lambda: jf.OneOf('kind', {'a': number}),
        "OneOf: expected a callable `key_fn`, got 'kind'; write `GetItem('kind')` for "
        'a field',
    ),
    'a choice of nothing': ValueMistake(
        lambda: jf.OneOf(type, {}), 'OneOf: expected at least one case, got none'
    ),
    'a transform that is none': Mistake(
        lambda: jf.InputTransform(3),
        'InputTransform: expected a callable or a mapping, got 3',
    ),
    'an empty table': ValueMistake(
        lambda: jf.InputTransform({}),
        'InputTransform: expected at least one key, got none',
    ),
    'a default beside a function': Mistake(
        lambda: jf.InputTransform(len, default=0),
        'InputTransform: expected a mapping beside `default`, got <built-in function '
        'len>',
    ),
    'a declaration resolved twice': Mistake(
        resolved_twice,
        "ForwardDeclaration('tree'): expected a declaration that is not resolved yet, "
        "got one resolved to Scalar('float32'); make another",
    ),
    'an example and parameters the other way round': Mistake(
        lambda: layer.eval(params(), example),
        "expected `example` and then `params`, got those of ['dense'] as the example: "
        'call `eval(example, params)`',
    ),
    'a list for parameters of one example': Mistake(
        lambda: layer.eval(example, [1]),
        'expected `params` as a dict of parameters by layers, got [1] (list): call '
        '`eval(example, params)`',
    ),
    'an int for the model in which NaN is looked for': Mistake(
        lambda: jf.find_nan(3, {}, [1]),
        'expected `model` as a model, got 3: pass what `jfold.compile` returns',
    ),
    'a number for a loss': Mistake(
        lambda: jf.find_nan(model, params(), [example], loss=2.5),
        'expected `loss` as a function of what `Model.apply` returns, got 2.5',
    ),
    'an int for a schedule to explain': Mistake(
        lambda: model.explain(3),
        'expected `schedule` as a schedule, got 3: pass what '
        '`model.schedule(examples)` returns',
    ),
    'an int for batches': Mistake(
        lambda: model.schedules(3),
        'expected `batches` as a list of lists of examples, got 3',
    ),
    'an int for what was traced in parts': Mistake(
        lambda: model.join(3),
        'expected `parts` as a list of what was traced, got 3: pass `[part]`',
    ),
    'a text for a step': Mistake(
        lambda: model.precompile('x', params()),
        "expected `step` as a function, got 'x': pass it first",
    ),
    'an int for the path of a corpus': Mistake(
        lambda: jf.Corpus.load(3, model), 'expected `path` as the path of a file, got 3'
    ),
    'an int for schedules to stack': Mistake(
        lambda: jf.Schedule.stack(3),
        'expected `schedules` as a list of schedules, got 3: pass what '
        '`model.schedules(batches)` returns',
    ),
    'an int for the children of a composition': Mistake(
        lambda: jf.Composition(3), 'expected `children` as a list of blocks, got 3'
    ),
    'an int for a function of wires': Mistake(
        lambda: jf.compose(3), 'expected `fn` as a function of wires, got 3'
    ),
    'an int for a recursive function': Mistake(
        lambda: jf.recursive(3), 'expected `fn` as a function of the block it is, got 3'
    ),
    'items of a one-hot vector that are no keys': Mistake(
        lambda: jf.OneHotFromList([['a'], ['b']]),
        "expected `items` as hashable values, got ['a'] (list): make keys of them by "
        'an InputTransform before',
    ),
    'a text for the first int of a one-hot vector': Mistake(
        lambda: jf.OneHot('x'), "expected `start` as int, got 'x'"
    ),
    'an int for the items of a one-hot vector': Mistake(
        lambda: jf.OneHotFromList(3),
        'expected `items` as a list, got 3: write `OneHotFromList([...])`',
    ),
    'a list for an axis': Mistake(
        lambda: jf.Concat([1]), 'expected `concat_dim` as int, got [1] (list)'
    ),
    'a text for edges': Mistake(
        lambda: jf.layers.MessagePassing(number, number, edges='x'),
        "expected `edges` as bool, got 'x'",
    ),
    'an int for a layer in either direction': Mistake(
        lambda: jf.layers.Bidirectional(4, 3),
        'expected `make` as a function of a size, such as LSTM, got 3',
    ),
    'an int for known values': Mistake(
        lambda: jf.layers.Categorical(3),
        'expected `values` as a list of known values, got 3',
    ),
    'an int for what an NNX module draws with': Mistake(
        lambda: jf.nnx.Fold(number, rngs=3),
        'expected `rngs` as `nnx.Rngs`, got 3: write `rngs=nnx.Rngs(0)`',
    ),
    'an int for what makes an NNX module': Mistake(
        lambda: jf.nnx.Cell(3), 'expected `make` as a function of `nnx.Rngs`, got 3'
    ),
    **{
        f'a text as `{name}` of {of}': Mistake(
            partial(make, 'x'), f"expected `{name}` as int, got 'x'"
        )
        for (name, of), (make, _) in INTS.items()
    },
    **{
        f'too small a `{name}` of {of}': ValueMistake(
            partial(make, least - 1),
            f'expected `{name}` of at least {least}, got {least - 1}; write '
            f'`{name}={least}` or more',
        )
        for (name, of), (make, least) in INTS.items()
    },
    **{
        f'{value!r} as an int': Mistake(
            partial(compiled, number, max_programs=value),
            f'expected `max_programs` as int, got {value!r}{hint}',
        )
        for value, hint in NO_INTS.items()
    },
}
