# SPDX-License-Identifier: Apache-2.0
"""Mistakes in the arguments of blocks and of `jf.compile`."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import numpy as np

import jfold as jf
from mistakes.common import Mistake, number


def compiled(*blocks: Any, **options: Any) -> jf.Model:
    return jf.compile(jf.Pipe(*blocks), **options)


def resolved_twice() -> None:
    tree = jf.ForwardDeclaration(name='tree')
    tree.resolve_to(number)
    tree.resolve_to(number)


def product(w: Any, x: Any) -> Any:
    return w @ x


vector = jf.Vector(3)

MISTAKES = [
    Mistake(
        'an int for an expression',
        lambda: jf.compile(3),
        TypeError,
        'expected a block, a callable, an array, or a dict, list or tuple of '
        'blocks, got 3; pass an array for a constant',
        lacks='where',
    ),
    Mistake(
        'nothing for an expression',
        lambda: jf.compile(None),
        TypeError,
        'expected a block, a callable, an array, or a dict, list or tuple of '
        'blocks, got None; pass an array for a constant',
        lacks='where',
    ),
    Mistake(
        'a block not called',
        lambda: jf.compile(jf.Scalar),
        TypeError,
        'expected a block, got <function Scalar at …> itself: call it to get one',
        lacks='where',
    ),
    Mistake(
        'a class of blocks',
        lambda: jf.compile(jf.Identity),
        TypeError,
        "expected a block, got <class 'jfold.combinators.Identity'> itself: "
        'call it to get one',
        lacks='where',
    ),
    Mistake(
        'a name for a block',
        lambda: number >> 'tanh',
        TypeError,
        'expected a block, a callable, an array, or a dict, list or tuple of '
        "blocks, got 'tanh'; pass an array for a constant",
        lacks='where',
    ),
    Mistake(
        'a class for a function',
        lambda: number >> float,
        TypeError,
        'expected a block, a callable, an array, or a dict, list or tuple of '
        "blocks, got <class 'float'>; call it",
        lacks='where',
    ),
    Mistake(
        'a Flax class',
        lambda: vector >> nn.Dense,
        TypeError,
        'expected a block, a callable, an array, or a dict, list or tuple of '
        "blocks, got <class 'flax.linen.linear.Dense'>; call it",
        lacks='where',
    ),
    Mistake(
        'a model for a block',
        lambda: jf.compile(jf.compile(number)),
        TypeError,
        'expected a block, a callable, an array, or a dict, list or tuple of '
        'blocks, got Model(float32[], layers: none); pass an array for a '
        'constant',
        lacks='where',
    ),
    Mistake(
        'a declaration not called',
        lambda: jf.Record({'left': jf.ForwardDeclaration(name='tree')}),
        TypeError,
        "expected a block, got ForwardDeclaration('tree') itself: call it to get one",
        lacks='where',
    ),
    Mistake(
        'max_programs as text',
        lambda: compiled(number, max_programs='8'),
        TypeError,
        "expected `max_programs` as int, got '8'; write `max_programs=8`",
    ),
    Mistake(
        'max_programs of zero',
        lambda: compiled(number, max_programs=0),
        ValueError,
        'expected `max_programs` of at least 1, got 0; write `max_programs=1` or more',
    ),
    Mistake(
        'unknown residuals',
        lambda: compiled(number, residuals='all'),
        ValueError,
        "expected `residuals` as 'save products' or 'recompute all', got 'all'",
        lacks='do',
    ),
    Mistake(
        'unknown strategy',
        lambda: compiled(number, strategy='fast'),
        ValueError,
        "expected `strategy` as 'counted' or 'fixed' or 'once' or None, got 'fast'",
        lacks='do',
    ),
    Mistake(
        'reproducible as a word',
        lambda: compiled(number, reproducible='yes'),
        TypeError,
        "expected `reproducible` as a bool, got 'yes': say `True` for sums in a fixed "
        'order',
    ),
    Mistake(
        'a shape that is an int',
        lambda: jf.Tensor(3),
        TypeError,
        'expected `shape` as a tuple or list of non-negative ints, got 3',
        lacks='do',
    ),
    Mistake(
        'a negative size',
        lambda: jf.Vector(-1),
        TypeError,
        'expected `shape` as a tuple or list of non-negative ints, got (-1,)',
        lacks='do',
    ),
    Mistake(
        'a size as text',
        lambda: jf.Vector('3'),
        TypeError,
        "expected `shape` as a tuple or list of non-negative ints, got ('3',)",
        lacks='do',
    ),
    Mistake(
        'an unknown dtype',
        lambda: jf.Scalar('float23'),
        TypeError,
        "expected `dtype` as a number type such as 'float32', got 'float23'",
        lacks='do',
    ),
    Mistake(
        'a dtype of text',
        lambda: jf.Scalar(str),
        TypeError,
        "expected `dtype` as a number type such as 'float32', got <class 'str'>",
        lacks='do',
    ),
    Mistake(
        'a list as a constant',
        lambda: jf.FromTensor([1.0, 2.0]),
        TypeError,
        'FromTensor: expected an array, got [1.0, 2.0]',
        lacks='do',
    ),
    Mistake(
        'text as a constant',
        lambda: jf.FromTensor(np.array(['a'])),
        TypeError,
        "expected `dtype` as a number type such as 'float32', got dtype('<U1')",
        lacks='do',
    ),
    Mistake(
        'a type that is none',
        lambda: jf.Zeros({'x': 3}),
        TypeError,
        "expected a type or a short-hand for one, got {'x': 3}; write a tuple "
        "of types, a list of ints, an int, or a dtype such as 'int32'",
        lacks='where',
    ),
    Mistake(
        'a declared type that is none',
        lambda: jf.ForwardDeclaration(output_type=3.5),
        TypeError,
        'expected a type or a short-hand for one, got 3.5; write a tuple of '
        "types, a list of ints, an int, or a dtype such as 'int32'",
        lacks='where',
    ),
    Mistake(
        'a number for a function',
        lambda: jf.Function(3),
        TypeError,
        'Function: expected a callable, got 3',
        lacks='do',
    ),
    Mistake(
        'a block for a function',
        lambda: jf.Function(number),
        TypeError,
        "Function: expected a callable, got Scalar('float32')",
        lacks='do',
    ),
    Mistake(
        'parameters for init',
        lambda: jf.Function(product, init=np.ones(3)),
        TypeError,
        'Function: expected `init` callable, got array([1., 1., 1.])',
        lacks='do',
    ),
    Mistake(
        'a name that is no text',
        lambda: jf.Function(product, name=7),
        TypeError,
        'Function: expected `name` as str, got 7',
        lacks='do',
    ),
    Mistake(
        'a metric without a name',
        lambda: jf.Metric(number),
        TypeError,
        "Metric: expected `name` as str, got Scalar('float32')",
        lacks='do',
    ),
    Mistake(
        'a set of fields',
        lambda: jf.Record({'x'}),
        TypeError,
        "Record: expected a dict, list or tuple, got {'x'}",
        lacks='do',
    ),
    Mistake(
        'a field that is no block',
        lambda: jf.Record({'x': 'float32'}),
        TypeError,
        'expected a block, a callable, an array, or a dict, list or tuple of '
        "blocks, got 'float32'; pass an array for a constant",
        lacks='where',
    ),
    Mistake(
        'a key for a key function',
        lambda: jf.OneOf('kind', {'a': number}),
        TypeError,
        "OneOf: expected a callable `key_fn`, got 'kind'",
        lacks='do',
    ),
    Mistake(
        'a choice of nothing',
        lambda: jf.OneOf(type, {}),
        ValueError,
        'OneOf: expected at least one case, got none',
        lacks='do',
    ),
    Mistake(
        'a transform that is none',
        lambda: jf.InputTransform(3),
        TypeError,
        'InputTransform: expected a callable or a mapping, got 3',
        lacks='do',
    ),
    Mistake(
        'an empty table',
        lambda: jf.InputTransform({}),
        ValueError,
        'InputTransform: expected at least one key, got none',
        lacks='do',
    ),
    Mistake(
        'a default beside a function',
        lambda: jf.InputTransform(len, default=0),
        TypeError,
        'InputTransform: expected a mapping beside `default`, got <built-in '
        'function len>',
        lacks='do',
    ),
    Mistake(
        'a declaration resolved twice',
        resolved_twice,
        TypeError,
        "ForwardDeclaration('tree'): expected a declaration that is not "
        "resolved yet, got one resolved to Scalar('float32'); make another",
    ),
]
