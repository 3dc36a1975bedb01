# SPDX-License-Identifier: Apache-2.0
"""Mistakes in examples: in what is given as them, in how they are nested, in values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jfold as jf
from mistakes.common import (
    InputMistake,
    Mistake,
    ValueMistake,
    add,
    model_of,
    number,
    numbers,
    scheduled,
    vector,
)


@dataclass
class Point:
    """An object with attributes."""

    x: float


def unsteady() -> jf.Schedule:
    """By a function that gives another result when it is called again."""
    results = iter([None])
    fickle = jf.InputTransform(lambda value: next(results, value))
    return jf.compile(fickle >> number).schedule([1])


def reciprocal(value: Any) -> Any:
    return 1 / value


def kind(value: Any) -> Any:
    return value['kind']


def alone(make: Callable[[], Any], kind: str, block: Any = number) -> Mistake:
    """One example, or none, where several are expected."""
    message = f'expected a sequence of examples, got {kind}: pass `[example]`'
    return Mistake(lambda: model_of(block).schedule(make()), message)


ring: list[Any] = [1.0]
ring.append(ring)
whole = jf.Scalar('int32')
summed = numbers >> jf.Sum()
named = jf.Record({'x': number})
words = jf.InputTransform({'the': 1, 'cat': 2}) >> number
inverse = jf.InputTransform(reciprocal) >> number
signs = jf.OneOf(lambda x: x, {'a': jf.Zeros([]), 'b': jf.Zeros([])})
kinds = jf.OneOf(kind, {1: jf.GetItem('x') >> number})
folded = jf.Fold(jf.Record((jf.Identity(), number)) >> add, jf.Zeros([]))
nested = jf.Map({'x': summed}) >> jf.Map(jf.GetItem(0)) >> jf.Sum()
zeros = jf.Map(jf.Optional(whole) >> jf.Function(jnp.float32)) >> jf.Sum()
keyed = jf.Map(jf.Share(number, key=lambda x: [x])) >> jf.Sum()
shared = jf.ForwardDeclaration(name='tree')
both = jf.Record((shared(), shared())) >> add
shared.resolve_to(jf.Share(jf.OneOf(type, {float: number, list: both})))

AN_OPTION = '\nWhat to do: put it in an Optional, which takes `None`'
NUMBER_OF_IT = '\nWhat to do: make a number of it before, as by `InputTransform(float)`'
A_TUPLE = '\nWhat to do: make a tuple of a list, which can be looked up'
MANY = '\nWhat to do: write `Map(Scalar())` for any number of them, `Vector(n)` for n'
NO_X = "expected an item 'x', got"
OF_RECORD = "in Record({'x': Scalar('float32')})"

MISTAKES: dict[str, Mistake] = {
    'one example, a dict': alone(lambda: {'x': 1}, 'dict', named),
    'one example, a text': alone(lambda: '12', 'str', summed),
    'one example, a number': alone(lambda: 3, 'int'),
    'no examples at all': alone(lambda: None, 'NoneType'),
    'a schedule for examples': alone(lambda: scheduled(number, 1), 'Schedule'),
    'a corpus for examples': alone(lambda: model_of(number).trace([1]), 'Corpus'),
    'a set of examples': Mistake(
        lambda: model_of(number).schedule({1, 2}),
        'expected a sequence of examples, got set: it has no order, pass '
        '`sorted(examples)`',
    ),
    'traced for another model': ValueMistake(
        lambda: model_of(number).schedule(model_of(vector).tracer()([[1, 2, 3]])),
        'expected examples traced for this expression, got those of another: trace '
        'them with `model.tracer()` of the model that schedules them, made again if '
        'its program has grown since',
    ),
    'more examples than rows': ValueMistake(
        partial(scheduled, number, 1, 2, 3, size=2),
        'expected at most 2 examples, as `size` says, got 3',
    ),
    'trace of one dict': Mistake(
        lambda: model_of(named).trace({'x': 1}),
        'expected a sequence of examples, got dict: pass `[example]`',
    ),
    'a missing key': InputMistake(
        partial(scheduled, named, {'x': 1}, {'y': 1}),
        f"example 1: {NO_X} {{'y': 1}} (dict): KeyError: 'x'; {OF_RECORD}\nWhat to "
        'do: put the block in an Optional, if a field may be missing',
    ),
    'None for a dict': InputMistake(
        partial(scheduled, named, None),
        f"example 0: {NO_X} None: TypeError: 'NoneType' object is not subscriptable; "
        f'{OF_RECORD}{AN_OPTION}',
    ),
    'a list for a dict': InputMistake(
        partial(scheduled, named, [1]),
        f'example 0: {NO_X} [1] (list): TypeError: list indices must be integers or '
        f'slices, not str; {OF_RECORD}',
    ),
    'a missing attribute': InputMistake(
        partial(scheduled, jf.Record({'y': number}), Point(1.0)),
        "example 0: expected an item 'y', got Point(x=1.0) (Point): AttributeError: "
        "'Point' object has no attribute 'y'; in Record({'y': Scalar('float32')})",
    ),
    'a tuple too short': InputMistake(
        partial(scheduled, jf.Record((number, number)), (1,)),
        'example 0: expected an item 1, got (1,) (tuple): IndexError: tuple index out '
        "of range; in Record({0: Scalar('float32'), 1: Scalar('float32')})",
    ),
    'an item of an empty list': InputMistake(
        partial(scheduled, jf.GetItem(0) >> number, []),
        'example 0: expected an item 0, got [] (list): IndexError: list index out of '
        'range; in Pipe[0].GetItem(0)',
    ),
    'a sequence too short': InputMistake(
        partial(scheduled, numbers >> jf.GetItem(1), [1]),
        'example 0: expected an item 1, got a sequence of length 1; in '
        'Pipe[1].GetItem(1)',
    ),
    'a number for a sequence': InputMistake(
        partial(scheduled, summed, [1], 3),
        "example 1: expected something iterable, got 3: TypeError: 'int' object is "
        "not iterable; in Pipe[0].Map(Scalar('float32'))",
    ),
    'None for a sequence': InputMistake(
        partial(scheduled, summed, None),
        "example 0: expected something iterable, got None: TypeError: 'NoneType' "
        f"object is not iterable; in Pipe[0].Map(Scalar('float32')){AN_OPTION}",
    ),
    'a number folded': InputMistake(
        partial(scheduled, folded, 3),
        "example 0: expected something iterable, got 3: TypeError: 'int' object is "
        "not iterable; in Fold(Record({0: Identity(), 1: Scalar('float32')}) >> Fun...",
    ),
    'text for numbers': InputMistake(
        partial(scheduled, summed, 'abc'),
        "example 0, at [0]: expected float32[], got 'a'; in "
        f"Pipe[0].Map.Scalar('float32'){NUMBER_OF_IT}",
    ),
    'what has no length': InputMistake(
        partial(scheduled, jf.Length(), 3),
        'example 0: expected something with a length, got 3: TypeError: object of '
        "type 'int' has no len(); in Length('float32')",
    ),
    'an unknown case': InputMistake(
        partial(scheduled, signs, 'a', 'c'),
        "example 1: expected one of the keys 'a', 'b', got 'c'; in OneOf(function, "
        "{'a': Zeros(float32[]), 'b': Zeros(float3...\nWhat to do: give it a case, or "
        'pass `default=`',
    ),
    'a case that is a list': InputMistake(
        partial(scheduled, signs, ['a']),
        "example 0: expected one of the keys 'a', 'b', got ['a'] (list); in "
        f"OneOf(function, {{'a': Zeros(float32[]), 'b': Zeros(float3...{A_TUPLE}",
    ),
    'a key function that fails': InputMistake(
        partial(scheduled, kinds, {'x': 1}),
        "example 0: expected what its function takes, got {'x': 1} (dict): KeyError: "
        "'kind'; in OneOf(kind, {1: GetItem('x') >> Scalar('float32')})",
    ),
    'an unknown word': InputMistake(
        partial(scheduled, words, 'the', 'dog'),
        "example 1: expected one of the keys 'the', 'cat', got 'dog'; in "
        "Pipe[0].InputTransform({'the': 1, 'cat': 2})\nWhat to do: pass `default=` "
        'for what a table lacks',
    ),
    'a word that is a list': InputMistake(
        partial(scheduled, words, ['the']),
        "example 0: expected a hashable value, to look it up, got ['the'] (list); in "
        f"Pipe[0].InputTransform({{'the': 1, 'cat': 2}}){A_TUPLE}",
    ),
    'a transform that fails': InputMistake(
        partial(scheduled, inverse, 1, 0),
        'example 1: expected what its function takes, got 0: ZeroDivisionError: '
        'division by zero; in Pipe[0].InputTransform(reciprocal)',
    ),
    'an unsteady transform': Mistake(
        unsteady,
        'expected functions that give the same results on the same data, got examples '
        'that did not fit the expression, and did when they were read again; make '
        'what `InputTransform` and `OneOf` call depend on nothing else; it was '
        'BadItem: expected float32[], got None',
        error=RuntimeError,
    ),
    'a circle where objects are shared': InputMistake(
        partial(scheduled, shared(), 1.0, ring),
        'example 1: expected data that end, got list that leads back to itself; write '
        'a block for each round of a graph with circles, which reads the one before; '
        'in Share',
    ),
    'a key that is a list': InputMistake(
        partial(scheduled, keyed, [1, 2]),
        'example 0, at [0]: expected a key that is hashable, got [1] (list); in '
        f'Pipe[0].Map.Share(){A_TUPLE}',
    ),
    'None for a number': InputMistake(
        partial(scheduled, number, 1, None),
        f"example 1: expected float32[], got None; in Scalar('float32'){AN_OPTION}",
    ),
    'text for a number': InputMistake(
        partial(scheduled, number, '3.5'),
        f"example 0: expected float32[], got '3.5'; in Scalar('float32'){NUMBER_OF_IT}",
    ),
    'a list for a number': InputMistake(
        partial(scheduled, number, [1.0]),
        'example 0: expected float32[], got [1.0] (list) of shape (1,); in '
        f"Scalar('float32'){MANY}",
    ),
    'a dict for a number': InputMistake(
        partial(scheduled, number, {'x': 1}),
        "example 0: expected float32[], got {'x': 1} (dict); in Scalar('float32')",
    ),
    'a float for an int': InputMistake(
        partial(scheduled, whole, 3.7),
        'example 0: expected int32[], got 3.7, which int32 cannot hold; in '
        "Scalar('int32')",
    ),
    'an int too large': InputMistake(
        partial(scheduled, jf.Scalar('int8'), 300),
        'example 0: expected int8[], got 300, which int8 cannot hold; in '
        "Scalar('int8')",
    ),
    'an int too long for any': InputMistake(
        partial(scheduled, whole, 10**30),
        'example 0: expected int32[], got 1000000000000000000000000000000; in '
        "Scalar('int32')",
    ),
    'a float too large': InputMistake(
        partial(scheduled, number, 1e300),
        'example 0: expected float32[], got 1e+300, which float32 cannot hold; in '
        "Scalar('float32')",
    ),
    'an int that floats lack': InputMistake(
        partial(scheduled, number, 2**24 + 1),
        'example 0: expected float32[], got 16777217, which float32 cannot hold; say '
        "dtype='int32' for one that must not change, or write `InputTransform(float)` "
        "before to round it; in Scalar('float32')",
    ),
    'a complex number': InputMistake(
        partial(scheduled, number, 1j),
        'example 0: expected float32[], got 1j (complex), which float32 cannot hold; '
        "in Scalar('float32')",
    ),
    'a vector too long': InputMistake(
        partial(scheduled, vector, [1, 2, 3, 4]),
        'example 0: expected float32[3], got [1, 2, 3, 4] (list) of shape (4,); in '
        f"Vector(3, 'float32'){MANY}",
    ),
    'a vector too short': InputMistake(
        partial(scheduled, vector, [1, 2]),
        'example 0: expected float32[3], got [1, 2] (list) of shape (2,); in '
        f"Vector(3, 'float32'){MANY}",
    ),
    'a scalar for a vector': InputMistake(
        partial(scheduled, vector, 1.0),
        'example 0: expected float32[3], got 1.0 of shape (); in Vector(3, '
        "'float32')\nWhat to do: write `Scalar()` for a number, `[example]` for one "
        'example',
    ),
    'a matrix for a vector': InputMistake(
        partial(scheduled, vector, np.ones((1, 3))),
        'example 0: expected float32[3], got array([[1., 1., 1.]]) (ndarray) of shape '
        "(1, 3); in Vector(3, 'float32')\nWhat to do: write `Tensor([1, 3])` for this "
        'shape',
    ),
    'None in a vector': InputMistake(
        partial(scheduled, vector, [1, None, 3]),
        'example 0: expected float32[3], got [1, None, 3] (list); in Vector(3, '
        "'float32')\nWhat to do: write `Map(Optional(Scalar()))`, where some are "
        '`None`',
    ),
    'a ragged matrix': InputMistake(
        partial(scheduled, jf.Tensor((2, 2)), [[1, 2], [3]]),
        'example 0: expected float32[2,2], got [[1, 2], [3]] (list), which is ragged; '
        "in Tensor((2, 2), 'float32')\nWhat to do: write `Map(Map(Scalar()))` for "
        'lists of any length in a list',
    ),
    'a set for a vector': InputMistake(
        partial(scheduled, vector, {1, 2, 3}),
        "example 0: expected float32[3], got {1, 2, 3} (set); in Vector(3, 'float32')",
    ),
    'a tracer for a number': InputMistake(
        lambda: jax.jit(lambda x: scheduled(number, x))(1.0),
        "example 0: expected float32[], got …; in Scalar('float32')",
    ),
    'a value in the depth': InputMistake(
        partial(
            scheduled,
            jf.Map({'x': summed}) >> jf.Map(jf.GetItem(0)) >> jf.Sum(),
            [{'x': []}, {'x': [1, 'two']}],
        ),
        "example 0, at [1]['x'][1]: expected float32[], got 'two'; in "
        f"Pipe[0].Map.Record['x'].Pipe[0].Map.Scalar('float32'){NUMBER_OF_IT}",
    ),
    'None in a sequence': InputMistake(
        partial(scheduled, summed, [1], [2, None]),
        'example 1, at [1]: expected float32[], got None; in '
        f"Pipe[0].Map.Scalar('float32'){AN_OPTION}",
    ),
    'text where an option is': InputMistake(
        partial(scheduled, zeros, [None, 1, '2']),
        "example 0, at [2]: expected int32[], got '2'; in "
        f"Pipe[0].Map.Pipe[0].Optional.some_case.Scalar('int32'){NUMBER_OF_IT}",
    ),
}
