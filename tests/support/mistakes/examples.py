# SPDX-License-Identifier: Apache-2.0
"""Mistakes in examples: in what is given as them, in how they are nested, in values."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jfold as jf
from mistakes.common import add, model_of, number, numbers, scheduled, vector


@dataclass
class Point:
    """An object with attributes."""

    x: float


def reciprocal(value: Any) -> Any:
    return 1 / value


def kind(value: Any) -> Any:
    return value['kind']


def leaf() -> type:
    class Leaf:
        """A class that is defined anew at each call, as where a cell runs again."""

    return Leaf


ring: list[Any] = [1.0]
ring.append(ring)
whole = jf.Scalar('int32')
summed = numbers >> jf.Sum()
named = jf.Record({'x': number})
picked = jf.Record((numbers, jf.Identity())) >> jf.Pick() >> jf.Sum()
packed = jf.AllOf(jf.GetItem('a'), jf.GetItem('b'))
same = jf.InputTransform(lambda x: x)
words = jf.InputTransform({'the': 1, 'cat': 2}) >> number
inverse = jf.InputTransform(reciprocal) >> number
signs = jf.OneOf(lambda x: x, {'a': jf.Zeros([]), 'b': jf.Zeros([])})
kinds = jf.OneOf(kind, {1: jf.GetItem('x') >> number})
folded = jf.Fold(jf.Record((jf.Identity(), number)) >> add, jf.Zeros([]))
zeros = jf.Map(jf.Optional(whole) >> jf.Function(jnp.float32)) >> jf.Sum()
keyed = jf.Map(jf.Share(number, key=lambda x: [x])) >> jf.Sum()
shared = jf.ForwardDeclaration(name='tree')
both = jf.Record((shared(), shared())) >> add
shared.resolve_to(jf.Share(jf.OneOf(type, {float: number, list: both})))

TABLE = r"""
>>> model_of(named).schedule({'x': 1})
TypeError: expected a sequence of examples, got dict: pass `[example]`
>>> model_of(summed).schedule('12')
TypeError: expected a sequence of examples, got str: pass `[example]`
>>> model_of(number).schedule(3)
TypeError: expected a sequence of examples, got int: pass `[example]`
>>> model_of(number).schedule(None)
TypeError: expected a sequence of examples, got NoneType: pass `[example]`
>>> model_of(number).schedule(scheduled(number, 1))
TypeError: expected a sequence of examples, got Schedule: pass `[example]`
>>> model_of(number).schedule(model_of(number).trace([1]))
TypeError: expected a sequence of examples, got Corpus: call `corpus.schedule(indices)`,
or pass what it was traced from
>>> model_of(number).schedules(jnp.arange(3))
TypeError: expected a sequence of examples, got int32: pass `[example]`
>>> model_of(number).schedules(np.arange(3))
TypeError: expected a sequence of examples, got int64: pass `[example]`
>>> model_of(number).trace(np.array(2.5))
TypeError: expected a sequence of examples, got float64: pass `[example]`
>>> model_of(number).schedule({1, 2})
TypeError: expected a sequence of examples, got set: it has no order, pass
`sorted(examples)`
>>> model_of(number).schedule(model_of(vector).tracer()([[1, 2, 3]]))
ValueError: expected examples traced for this expression, got those of another: trace
them with `model.tracer()` of the model that schedules them, made again if its program
has grown since
>>> scheduled(number, 1, 2, 3, size=2)
ValueError: expected at most 2 examples, as `size` says, got 3
>>> model_of(named).trace({'x': 1})
TypeError: expected a sequence of examples, got dict: pass `[example]`
>>> scheduled(named, {'x': 1}, {'y': 1})
InputError: example 1: expected an item 'x', got {'y': 1} (dict): KeyError: 'x'; in
Record({'x': Scalar('float32')})\nWhat to do: write `Record({'x': Optional(...)})` if it
may be missing
>>> scheduled(named, None)
InputError: example 0: expected an item 'x', got None: TypeError: 'NoneType' object is
not subscriptable; in Record({'x': Scalar('float32')})\nWhat to do: put it in an
Optional, which takes `None`
>>> scheduled(named, [1])
InputError: example 0: expected an item 'x', got [1] (list): TypeError: list indices
must be integers or slices, not str; in Record({'x': Scalar('float32')})
>>> scheduled(jf.Record({'y': number}), Point(1.0))
InputError: example 0: expected an item 'y', got Point(x=1.0) (Point): AttributeError:
'Point' object has no attribute 'y'; in Record({'y': Scalar('float32')})
>>> scheduled(jf.Record((number, number)), (1,))
InputError: example 0: expected an item 1, got (1,) (tuple): IndexError: tuple index out
of range; in Record({0: Scalar('float32'), 1: Scalar('float32')})
>>> scheduled(jf.GetItem(0) >> number, [])
InputError: example 0: expected an item 0, got [] (list): IndexError: list index out of
range; in Pipe[0].GetItem(0)
>>> scheduled(numbers >> jf.GetItem(1), [1])
InputError: example 0: expected an item 1, got a sequence of length 1; in
Pipe[1].GetItem(1)
>>> scheduled(summed, [1], 3)
InputError: example 1: expected something iterable, got 3: TypeError: 'int' object is
not iterable; in Pipe[0].Map(Scalar('float32'))
>>> scheduled(summed, None)
InputError: example 0: expected something iterable, got None: TypeError: 'NoneType'
object is not iterable; in Pipe[0].Map(Scalar('float32'))\nWhat to do: put it in an
Optional, which takes `None`
>>> scheduled(folded, 3)
InputError: example 0: expected something iterable, got 3: TypeError: 'int' object is
not iterable; in Fold(Record({0: Identity(), 1: Scalar('float32')}) >> Fun...
>>> scheduled(summed, 'abc')
InputError: example 0, at [0]: expected float32[], got 'a'; in
Pipe[0].Map.Scalar('float32')\nWhat to do:
look up a number for it before: `InputTransform({'a': 0, ...})`
>>> scheduled(jf.Length(), 3)
InputError: example 0: expected something with a length, got 3: TypeError: object of
type 'int' has no len(); in Length('float32')
>>> scheduled(signs, 'a', 'c')
InputError: example 1: expected one of the keys 'a', 'b', got 'c'; in OneOf(function,
{'a': Zeros(float32[]), 'b': Zeros(float3...\nWhat to do: give it a case, or pass
`default=`
>>> scheduled(jf.OneOf(type, {leaf(): jf.Zeros([])}), leaf()())
InputError: example 0: expected one of the keys <class
'mistakes.examples.leaf.<locals>.Leaf'>, got <class
'mistakes.examples.leaf.<locals>.Leaf'> (type); in OneOf(type, {<class
'mistakes.examples.leaf.<locals>.Leaf...\nWhat to do: it was defined anew since: make
the block and the model again
>>> scheduled(signs, ['a'])
InputError: example 0: expected one of the keys 'a', 'b', got ['a'] (list); in
OneOf(function, {'a': Zeros(float32[]), 'b': Zeros(float3...\nWhat to do: look up
what can be hashed, such as a tuple in place of a list
>>> scheduled(kinds, {'x': 1})
InputError: example 0: expected what its function takes, got {'x': 1} (dict): KeyError:
'kind'; in OneOf(kind, {1: GetItem('x') >> Scalar('float32')})
>>> scheduled(words, 'the', 'dog')
InputError: example 1: expected one of the keys 'the', 'cat', got 'dog'; in
Pipe[0].InputTransform({'the': 1, 'cat': 2})\nWhat to do: pass `default=` for what a
table lacks
>>> scheduled(words, ['the'])
InputError: example 0: expected a hashable value, to look it up, got ['the'] (list); in
Pipe[0].InputTransform({'the': 1, 'cat': 2})\nWhat to do: look up what can be hashed,
such as a tuple in place of a list
>>> scheduled(inverse, 1, 0)
InputError: example 1: expected what its function takes, got 0: ZeroDivisionError:
division by zero; in Pipe[0].InputTransform(reciprocal)
>>> results = iter([None])
... fickle = jf.InputTransform(lambda value: next(results, value))
... jf.compile(fickle >> number).schedule([1])
RuntimeError: expected functions that give the same results on the same data, got
examples that did not fit the expression, and did when they were read again; make what
`InputTransform` and `OneOf` call depend on nothing else, and change no data that a
block was called on; it was expected float32[], got None
>>> scheduled(shared(), 1.0, ring)
InputError: example 1: expected data that end, got list that leads back to itself, as
[1]; write a block for each round of a graph with cycles, which reads the one before; in
Share
>>> scheduled(keyed, [1, 2])
InputError: example 0, at [0]: expected a key that is hashable, got [1] (list); in
Pipe[0].Map.Share()\nWhat to do: look up what can be hashed, such as a tuple in
place of a list
>>> scheduled(number, 1, None)
InputError: example 1: expected float32[], got None; in Scalar('float32')\nWhat to do:
put it in an Optional, which takes `None`
>>> scheduled(picked, ([1, 2, 3], [2**64 - 1]))
InputError: example 0, at [1]: expected a list of ints, got [18446744073709551615]
(list): TypeError: they go up to 18446744073709551615; in Pipe[1].Pick()
>>> scheduled(summed, [1.0], [2.0, types.SimpleNamespace(shape='circle')])
InputError: example 1, at [1]: expected float32[], got namespace(shape='circle')
(SimpleNamespace); in Pipe[0].Map.Scalar('float32')
>>> scheduled(packed >> same >> jf.GetItem(1) >> number, {'a': 1.0, 'b': None})
InputError: example 0: expected float32[], got None; in Pipe[3].Scalar('float32')\nWhat
to do: put it in an Optional, which takes `None`
>>> scheduled(packed >> jf.GetItem(1) >> number, {'a': 1.0, 'b': None})
InputError: example 0, at ['b']: expected float32[], got None; in
Pipe[2].Scalar('float32')\nWhat to do: put it in an Optional, which takes `None`
>>> scheduled(number, '3.5')
InputError: example 0: expected float32[], got '3.5'; in Scalar('float32')\nWhat to do:
make a number of it before, as by `InputTransform(float)`
>>> scheduled(number, [1.0])
InputError: example 0: expected float32[], got [1.0] (list) of shape (1,); in
Scalar('float32')\nWhat to do: write `Map(Scalar())` for any number of them, `Vector(n)`
for n
>>> scheduled(number, {'x': 1})
InputError: example 0: expected float32[], got {'x': 1} (dict); in Scalar('float32')
>>> scheduled(whole, 3.7)
InputError: example 0: expected int32[], got 3.7, which int32 cannot hold; in
Scalar('int32')
>>> scheduled(jf.Scalar('int8'), 300)
InputError: example 0: expected int8[], got 300, which int8 cannot hold; in
Scalar('int8')
>>> scheduled(whole, 10**30)
InputError: example 0: expected int32[], got 1000000000000000000000000000000, which
int32 cannot hold; in Scalar('int32')
>>> scheduled(number, 1e300)
InputError: example 0: expected float32[], got 1e+300, which float32 cannot hold; in
Scalar('float32')
>>> scheduled(number, 2**24 + 1)
InputError: example 0: expected float32[], got 16777217, which float32 cannot hold; say
dtype='int32' for one that must not change, or write `InputTransform(float)` before to
round it; in Scalar('float32')
>>> scheduled(number, 1j)
InputError: example 0: expected float32[], got 1j (complex), which float32 cannot hold;
in Scalar('float32')
>>> scheduled(vector, [1, 2, 3, 4])
InputError: example 0: expected float32[3], got [1, 2, 3, 4] (list) of shape (4,); in
Vector(3, 'float32')\nWhat to do: write `Map(Scalar())` for any number of them,
`Vector(n)` for n
>>> scheduled(vector, [1, 2])
InputError: example 0: expected float32[3], got [1, 2] (list) of shape (2,); in
Vector(3, 'float32')\nWhat to do: write `Map(Scalar())` for any number of them,
`Vector(n)` for n
>>> scheduled(vector, 1.0)
InputError: example 0: expected float32[3], got 1.0 of shape (); in Vector(3,
'float32')\nWhat to do: write `Scalar()` for a number, `[example]` for one example
>>> scheduled(vector, np.ones((1, 3)))
InputError: example 0: expected float32[3], got array([[1., 1., 1.]]) (ndarray) of shape
(1, 3); in Vector(3, 'float32')\nWhat to do: write `Tensor([1, 3])` for this shape
>>> scheduled(vector, [1, None, 3])
InputError: example 0: expected float32[3], got [1, None, 3] (list); in Vector(3,
'float32')\nWhat to do: write `Map(Optional(Scalar()))`, where some are `None`
>>> scheduled(jf.Tensor((2, 2)), [[1, 2], [3]])
InputError: example 0: expected float32[2,2], got [[1, 2], [3]] (list), which is ragged;
in Tensor((2, 2), 'float32')\nWhat to do: write `Map(Map(Scalar()))` for lists of any
length in a list
>>> scheduled(vector, {1, 2, 3})
InputError: example 0: expected float32[3], got {1, 2, 3} (set); in Vector(3,
'float32')\nWhat to do: it has no order: `InputTransform(sorted)` gives it one
>>> jax.jit(lambda x: scheduled(number, x))(1.0)
InputError: example 0: expected float32[], got …; in Scalar('float32')
>>> scheduled(
...     jf.Map({'x': summed}) >> jf.Map(jf.GetItem(0)) >> jf.Sum(),
...     [{'x': []}, {'x': [1, 'two']}],
... )
InputError: example 0, at [1]['x'][1]: expected float32[], got 'two'; in
Pipe[0].Map.Record['x'].Pipe[0].Map.Scalar('float32')\nWhat to do: look up a number for
it before: `InputTransform({'two': 0, ...})`
>>> scheduled(summed, [1], [2, None])
InputError: example 1, at [1]: expected float32[], got None; in
Pipe[0].Map.Scalar('float32')\nWhat to do: put it in an Optional, which takes `None`
>>> scheduled(zeros, [None, 1, '2'])
InputError: example 0, at [2]: expected int32[], got '2'; in
Pipe[0].Map.Pipe[0].Optional.some_case.Scalar('int32')\nWhat to do: make a number of it
before, as by `InputTransform(float)`
"""
