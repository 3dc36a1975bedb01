# SPDX-License-Identifier: Apache-2.0
"""Mistakes in the arguments of blocks and of `jf.compile`."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import numpy as np

import jfold as jf
from mistakes.common import Mistake, add, compiled, number, vector


def resolved_twice() -> None:
    tree = jf.ForwardDeclaration(name='tree')
    tree.resolve_to(number)
    tree.resolve_to(number)


def product(w: Any, x: Any) -> Any:
    return w @ x


MISTAKES = [
    Mistake(
        'an int for an expression',
        lambda: jf.compile(3),
        'expected a block, a callable, an array, or a dict, list or tuple of '
        'blocks, got 3; write `FromTensor(np.float32(3))`, or `Zeros([])` for a zero',
        lacks='where',
    ),
    Mistake(
        'nothing for an expression',
        lambda: jf.compile(None),
        'expected a block, a callable, an array, or a dict, list or tuple of '
        'blocks, got None; pass an array for a constant',
        lacks='where',
    ),
    Mistake(
        'a block not called',
        lambda: jf.compile(jf.Scalar),
        'expected a block, got <function Scalar at …> itself: call it to get one, as '
        'in `Scalar(...)`',
        lacks='where',
    ),
    Mistake(
        'a class of blocks',
        lambda: jf.compile(jf.Identity),
        "expected a block, got <class 'jfold.blocks.control.Identity'> itself: "
        'call it to get one, as in `Identity(...)`',
        lacks='where',
    ),
    Mistake(
        'a name for a block',
        lambda: number >> 'tanh',
        'expected a block, a callable, an array, or a dict, list or tuple of '
        "blocks, got 'tanh'; write `GetItem('tanh')` for a field",
        lacks='where',
    ),
    Mistake(
        'a class for a function',
        lambda: number >> float,
        'expected a block, a callable, an array, or a dict, list or tuple of '
        "blocks, got <class 'float'>; write `InputTransform(float)`",
        lacks='where',
    ),
    Mistake(
        'a Flax class',
        lambda: vector >> nn.Dense,
        'expected a block, a callable, an array, or a dict, list or tuple of '
        "blocks, got <class 'flax.linen.linear.Dense'>; call it",
        lacks='where',
    ),
    Mistake(
        'a model for a block',
        lambda: jf.compile(jf.compile(number)),
        'expected a block, a callable, an array, or a dict, list or tuple of '
        'blocks, got Model(float32[], layers: none); take the block that it was '
        'compiled of, `model.block`',
        lacks='where',
    ),
    Mistake(
        'a declaration not called',
        lambda: jf.Record({'left': jf.ForwardDeclaration(name='tree')}),
        "expected a block, got ForwardDeclaration('tree') itself: call it to get one, "
        'as in `tree()`',
        lacks='where',
    ),
    Mistake(
        'a declaration for a block in a recursive function',
        lambda: jf.recursive(
            lambda node: jf.OneOf(type, {int: number, list: jf.Map(node)})
        ),
        "expected a block, got ForwardDeclaration('compose') itself: call it to get "
        'one, as in `compose()`',
        lacks='where',
    ),
    Mistake(
        'the value of a block for a block',
        lambda: jf.compose(lambda xs: jf.Fold(add, jf.Zeros([])(xs))(xs)),
        'expected a block, got <what Zeros(float32[]) gives>, its value: leave out the '
        'call where a block is asked for, as in `Fold(cell, Zeros([3]))(xs)`',
        lacks='where',
    ),
    Mistake(
        'a sum of blocks',
        lambda: number + number,
        "Scalar('float32'): expected `>>` or a call on wires, got another operator; "
        'write `AllOf(a, b) >> Function(jnp.add)` for the sum of what two blocks give',
    ),
    Mistake(
        'a number to start from',
        lambda: jf.Fold(add, 0),  # type: ignore[arg-type]
        'expected a block, a callable, an array, or a dict, list or tuple of blocks, '
        'got 0; write `FromTensor(np.float32(0))`, or `Zeros([])` for a zero',
        lacks='where',
    ),
    Mistake(
        'several blocks for an expression',
        lambda: jf.compile(number, jf.Identity()),  # type: ignore[arg-type]
        'expected `max_programs` as int, got Identity() (Identity): write '
        '`jf.compile(a >> b)` for one block after another',
    ),
    Mistake(
        'blocks to join',
        lambda: jf.Concat(number, number),  # type: ignore[arg-type]
        "expected `concat_dim` as int, got Scalar('float32') (Tensor): write "
        '`AllOf(a, b) >> Concat()`',
    ),
    Mistake(
        'examples before parameters',
        lambda: jf.compile(number).predict([1.0], {}),  # type: ignore[arg-type]
        'expected `params` and then examples, got [1.0] (list) first: write '
        '`model.predict(params, examples)`',
    ),
    Mistake(
        'a choice by a pair of functions',
        lambda: jf.OneOf((type, len), {(list, 2): number}),  # type: ignore[arg-type]
        "OneOf: expected a callable `key_fn`, got (<class 'type'>, <built-in function "
        'len>); write one function of the value, as `lambda x: (x[0], x[1])`',
    ),
    Mistake(
        'a function that calls blocks, not composed',
        lambda: jf.compile(lambda x: number(x[0])),
        'Function(function): expected tensors or tuples of tensors, got object; turn '
        'objects into tensors by Scalar, Vector or Tensor, or write '
        '`InputTransform(fn)` for a function of Python values, `compose(fn)` for one '
        'that calls blocks',
    ),
    Mistake(
        'max_programs as text',
        lambda: compiled(number, max_programs='8'),
        "expected `max_programs` as int, got '8'; write `max_programs=8`",
    ),
    Mistake(
        'max_programs of zero',
        lambda: compiled(number, max_programs=0),
        'expected `max_programs` of at least 1, got 0; write `max_programs=1` or more',
        error=ValueError,
    ),
    Mistake(
        'unknown residuals',
        lambda: compiled(number, residuals='all'),
        "expected `residuals` as 'save products' or 'recompute all', got 'all'",
        error=ValueError,
        lacks='do',
    ),
    Mistake(
        'unknown strategy',
        lambda: compiled(number, strategy='fast'),
        "expected `strategy` as 'counted' or 'fixed' or None, got 'fast'",
        error=ValueError,
        lacks='do',
    ),
    Mistake(
        'reproducible as a word',
        lambda: compiled(number, reproducible='yes'),
        "expected `reproducible` as a bool, got 'yes': say `True` for sums in a fixed "
        'order',
    ),
    Mistake(
        'a shape that is an int',
        lambda: jf.Tensor(3),
        'expected `shape` as a tuple or list of non-negative ints, got 3; write '
        '`Tensor([2, 3])` for a shape, `Vector(2)` for a length',
    ),
    Mistake(
        'a negative size',
        lambda: jf.Vector(-1),
        'expected `shape` as a tuple or list of non-negative ints, got (-1,); '
        'write `Tensor([2, 3])` for a shape, `Vector(2)` for a length',
    ),
    Mistake(
        'a size as text',
        lambda: jf.Vector('3'),
        "expected `shape` as a tuple or list of non-negative ints, got ('3',); "
        'write `Tensor([2, 3])` for a shape, `Vector(2)` for a length',
    ),
    Mistake(
        'an unknown dtype',
        lambda: jf.Scalar('float23'),
        "expected `dtype` as a number type such as 'float32', got 'float23'",
        lacks='do',
    ),
    Mistake(
        'a dtype of text',
        lambda: jf.Scalar(str),
        "expected `dtype` as a number type such as 'float32', got <class 'str'>",
        lacks='do',
    ),
    Mistake(
        'a list as a constant',
        lambda: jf.FromTensor([1.0, 2.0]),
        'FromTensor: expected an array, got [1.0, 2.0]',
        lacks='do',
    ),
    Mistake(
        'text as a constant',
        lambda: jf.FromTensor(np.array(['a'])),
        "expected `dtype` as a number type such as 'float32', got dtype('<U1')",
        lacks='do',
    ),
    Mistake(
        'a type that is none',
        lambda: jf.Zeros({3}),
        'expected a type or a short-hand for one, got {3}; write a tuple '
        "of types, a list of ints, an int, or a dtype such as 'int32'",
        lacks='where',
    ),
    Mistake(
        'a declared type that is none',
        lambda: jf.ForwardDeclaration(output_type=3.5),
        'expected a type or a short-hand for one, got 3.5; write a tuple of '
        "types, a list of ints, an int, or a dtype such as 'int32'",
        lacks='where',
    ),
    Mistake(
        'a number for a function',
        lambda: jf.Function(3),
        'Function: expected a callable, got 3',
        lacks='do',
    ),
    Mistake(
        'a block for a function',
        lambda: jf.Function(number),
        "Function: expected a callable, got Scalar('float32')",
        lacks='do',
    ),
    Mistake(
        'parameters for init',
        lambda: jf.Function(product, init=np.ones(3)),
        'Function: expected `init` callable, got array([1., 1., 1.])',
        lacks='do',
    ),
    Mistake(
        'a name that is no text',
        lambda: jf.Function(product, name=7),
        'Function: expected `name` as str, got 7',
        lacks='do',
    ),
    Mistake(
        'a metric without a name',
        lambda: jf.Metric(number),
        "Metric: expected `name` as str, got Scalar('float32')",
        lacks='do',
    ),
    Mistake(
        'a set of fields',
        lambda: jf.Record({'x'}),
        "Record: expected a dict, list or tuple, got {'x'}",
        lacks='do',
    ),
    Mistake(
        'a field that is no block',
        lambda: jf.Record({'x': 'float32'}),
        'expected a block, a callable, an array, or a dict, list or tuple of '
        "blocks, got 'float32'; write `GetItem('float32')` for a field",
        lacks='where',
    ),
    Mistake(
        'a key for a key function',
        lambda: jf.OneOf('kind', {'a': number}),
        "OneOf: expected a callable `key_fn`, got 'kind'; write `GetItem('kind')` for "
        'a field',
    ),
    Mistake(
        'a choice of nothing',
        lambda: jf.OneOf(type, {}),
        'OneOf: expected at least one case, got none',
        error=ValueError,
        lacks='do',
    ),
    Mistake(
        'a transform that is none',
        lambda: jf.InputTransform(3),
        'InputTransform: expected a callable or a mapping, got 3',
        lacks='do',
    ),
    Mistake(
        'an empty table',
        lambda: jf.InputTransform({}),
        'InputTransform: expected at least one key, got none',
        error=ValueError,
        lacks='do',
    ),
    Mistake(
        'a default beside a function',
        lambda: jf.InputTransform(len, default=0),
        'InputTransform: expected a mapping beside `default`, got <built-in '
        'function len>',
        lacks='do',
    ),
    Mistake(
        'a declaration resolved twice',
        resolved_twice,
        "ForwardDeclaration('tree'): expected a declaration that is not "
        "resolved yet, got one resolved to Scalar('float32'); make another",
    ),
]
