# SPDX-License-Identifier: Apache-2.0
"""Mistakes in how data are nested."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jfold as jf
from mistakes.common import InputMistake, Mistake, add, number, numbers, scheduled


@dataclass
class Point:
    """An object with attributes."""

    x: float


class Fickle:
    """A function that gives another result when it is called again."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, value: Any) -> Any:
        self.calls += 1
        return None if self.calls == 1 else value


def unsteady() -> jf.Schedule:
    return jf.compile(jf.InputTransform(Fickle()) >> number).schedule([1])


def reciprocal(value: Any) -> Any:
    return 1 / value


def kind(value: Any) -> Any:
    return value['kind']


summed = numbers >> jf.Sum()

named = jf.Record({'x': number})

first = jf.GetItem(0) >> number

second = numbers >> jf.GetItem(1)

length = jf.Length()

words = jf.InputTransform({'the': 1, 'cat': 2}) >> number

inverse = jf.InputTransform(reciprocal) >> number

signs = jf.OneOf(lambda x: x, {'a': jf.Zeros([]), 'b': jf.Zeros([])})

kinds = jf.OneOf(kind, {1: jf.GetItem('x') >> number})

folded = jf.Fold(jf.Record((jf.Identity(), number)) >> add, jf.Zeros([]))


def boxed(x: Any) -> list[Any]:
    return [x]


def ring() -> Any:
    made: list[Any] = [1.0]
    made.append(made)
    return made


@functools.cache
def shared() -> jf.Block:
    tree = jf.ForwardDeclaration(name='tree')
    pair = jf.Record((tree(), tree())) >> add
    tree.resolve_to(jf.Share(jf.OneOf(type, {float: number, list: pair})))
    return tree()


MISTAKES = [
    InputMistake(
        'a missing key',
        lambda: scheduled(named, {'x': 1}, {'y': 1}),
        "example 1: expected an item 'x', got {'y': 1} (dict): KeyError: 'x'; "
        "in Record({'x': Scalar('float32')})"
        '\nWhat to do: put the block in an Optional, if a field may be missing',
    ),
    InputMistake(
        'None for a dict',
        lambda: scheduled(named, None),
        "example 0: expected an item 'x', got None: TypeError: 'NoneType' "
        "object is not subscriptable; in Record({'x': Scalar('float32')})"
        '\nWhat to do: put it in an Optional, which takes `None`',
    ),
    InputMistake(
        'a list for a dict',
        lambda: scheduled(named, [1]),
        "example 0: expected an item 'x', got [1] (list): TypeError: list "
        "indices must be integers or slices, not str; in Record({'x': "
        "Scalar('float32')})",
        lacks='do',
    ),
    InputMistake(
        'a missing attribute',
        lambda: scheduled(jf.Record({'y': number}), Point(1.0)),
        "example 0: expected an item 'y', got Point(x=1.0) (Point): "
        "AttributeError: 'Point' object has no attribute 'y'; in Record({'y': "
        "Scalar('float32')})",
        lacks='do',
    ),
    InputMistake(
        'a tuple too short',
        lambda: scheduled(jf.Record((number, number)), (1,)),
        'example 0: expected an item 1, got (1,) (tuple): IndexError: tuple '
        "index out of range; in Record({0: Scalar('float32'), 1: "
        "Scalar('float32')})",
        lacks='do',
    ),
    InputMistake(
        'an item of an empty list',
        lambda: scheduled(first, []),
        'example 0: expected an item 0, got [] (list): IndexError: list index '
        'out of range; in Pipe[0].GetItem(0)',
        lacks='do',
    ),
    InputMistake(
        'a sequence too short',
        lambda: scheduled(second, [1]),
        'example 0: expected an item 1, got a sequence of length 1; in '
        'Pipe[1].GetItem(1)',
        lacks='do',
    ),
    InputMistake(
        'a number for a sequence',
        lambda: scheduled(summed, [1], 3),
        "example 1: expected something iterable, got 3: TypeError: 'int' "
        "object is not iterable; in Pipe[0].Map(Scalar('float32'))",
        lacks='do',
    ),
    InputMistake(
        'None for a sequence',
        lambda: scheduled(summed, None),
        'example 0: expected something iterable, got None: TypeError: '
        "'NoneType' object is not iterable; in Pipe[0].Map(Scalar('float32'))"
        '\nWhat to do: put it in an Optional, which takes `None`',
    ),
    InputMistake(
        'a number folded',
        lambda: scheduled(folded, 3),
        "example 0: expected something iterable, got 3: TypeError: 'int' "
        'object is not iterable; in Fold(Record({0: Identity(), 1: '
        "Scalar('float32')}) >> Fun...",
        lacks='do',
    ),
    InputMistake(
        'text for numbers',
        lambda: scheduled(summed, 'abc'),
        "example 0, at [0]: expected float32[], got 'a'; in "
        "Pipe[0].Map.Scalar('float32')"
        '\nWhat to do: make a number of it before, as by `InputTransform(float)`',
    ),
    InputMistake(
        'what has no length',
        lambda: scheduled(length, 3),
        'example 0: expected something with a length, got 3: TypeError: object '
        "of type 'int' has no len(); in Length('float32')",
        lacks='do',
    ),
    InputMistake(
        'an unknown case',
        lambda: scheduled(signs, 'a', 'c'),
        "example 1: expected one of the keys 'a', 'b', got 'c'; in "
        "OneOf(function, {'a': Zeros(float32[]), 'b': Zeros(float3..."
        '\nWhat to do: give it a case, or pass `default=`',
    ),
    InputMistake(
        'a case that is a list',
        lambda: scheduled(signs, ['a']),
        "example 0: expected one of the keys 'a', 'b', got ['a'] (list); in "
        "OneOf(function, {'a': Zeros(float32[]), 'b': Zeros(float3..."
        '\nWhat to do: make a tuple of a list, which can be looked up',
    ),
    InputMistake(
        'a key function that fails',
        lambda: scheduled(kinds, {'x': 1}),
        "example 0: expected what its function takes, got {'x': 1} (dict): "
        "KeyError: 'kind'; in OneOf(kind, {1: GetItem('x') >> "
        "Scalar('float32')})",
        lacks='do',
    ),
    InputMistake(
        'an unknown word',
        lambda: scheduled(words, 'the', 'dog'),
        "example 1: expected one of the keys 'the', 'cat', got 'dog'; in "
        "Pipe[0].InputTransform({'the': 1, 'cat': 2})"
        '\nWhat to do: pass `default=` for what a table lacks',
    ),
    InputMistake(
        'a word that is a list',
        lambda: scheduled(words, ['the']),
        "example 0: expected a hashable value, to look it up, got ['the'] "
        "(list); in Pipe[0].InputTransform({'the': 1, 'cat': 2})"
        '\nWhat to do: make a tuple of a list, which can be looked up',
    ),
    InputMistake(
        'a transform that fails',
        lambda: scheduled(inverse, 1, 0),
        'example 1: expected what its function takes, got 0: '
        'ZeroDivisionError: division by zero; in '
        'Pipe[0].InputTransform(reciprocal)',
        lacks='do',
    ),
    Mistake(
        'an unsteady transform',
        unsteady,
        'expected functions that give the same results on the same data, got '
        'examples that did not fit the expression, and did when they were read '
        'again; make what `InputTransform` and `OneOf` call depend on nothing '
        'else; it was BadItem: expected float32[], got None',
        error=RuntimeError,
    ),
    InputMistake(
        'a circle where objects are shared',
        lambda: scheduled(shared(), 1.0, ring()),
        'example 1: expected data that end, got list that leads back to itself; write '
        'a block for each round of a graph with circles, which reads the one before; '
        'in Share',
    ),
    InputMistake(
        'a key that is a list',
        lambda: scheduled(jf.Map(jf.Share(number, key=boxed)) >> jf.Sum(), [1, 2]),
        'example 0, at [0]: expected a key that is hashable, got [1] (list); in '
        'Pipe[0].Map.Share()'
        '\nWhat to do: make a tuple of a list, which can be looked up',
    ),
]
