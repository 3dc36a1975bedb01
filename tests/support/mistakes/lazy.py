# SPDX-License-Identifier: Apache-2.0
"""Mistakes in functions of plain Python, whose calls are recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from binary_trees import chain

import jfold as jf
from jfold.language.lazy_registry import GivesObjects

add = jf.Function(jnp.add)
embed = jf.Function(lambda p, i: p[i], lambda key: jnp.ones((9, 4)), name='embed')
text = jf.InputTransform(str)
void, collecting = jf.Void(), jf.Map(jf.Metric('q'))


@jf.lazy
def known(x: int) -> Any:
    return embed(x)


@dataclass
class Pair:
    left: int


def learned(fn: Callable[[Any], Any], *like: Any) -> jf.Model:
    """Compiles a function, for ints if no other examples are given."""
    return jf.compile(jf.lazy(fn), like=[*(like or (1, 2))])


@jf.lazy
def tree(t: Any) -> Any:
    if isinstance(t, int):
        return embed(t)
    return add(tree(t[0]), tree(t[1]))


@jf.lazy(share=True)
def graph(t: Any) -> Any:
    return embed(t) if isinstance(t, int) else add(graph(t[0]), graph(t[1]))


@jf.lazy
def steps(t: Any) -> Any:
    if isinstance(t, int):
        return embed(t)
    left = steps(t[0])
    right = yield steps(t[1])
    return add(left, right)


cycle: list[Any] = [1]
cycle.append(cycle)


TABLE = r"""
>>> learned(lambda x: embed(x) or -embed(x))
TypeError: <value of embed: float32[4]>: expected blocks and operators on it, got a
question for its number or its truth, though its value is not known yet; choose by the
data, or by `jf.select(condition, a, b)`\nin lazy(function), on example 0 of `like=`
>>> learned(lambda x: jf.tensor(round(embed(x))))
TypeError: <value of embed: float32[4]>: expected blocks and operators on it, got a
question for its number or its truth, though its value is not known yet; choose by the
data, or by `jf.select(condition, a, b)`\nin lazy(function), on example 0 of `like=`
>>> learned(lambda x: jf.tensor(float(embed(x))))
TypeError: <value of embed: float32[4]>: expected blocks and operators on it, got a
question for its number or its truth, though its value is not known yet; choose by the
data, or by `jf.select(condition, a, b)`\nin lazy(function), on example 0 of `like=`
>>> learned(lambda x: jf.tensor(np.asarray(embed(x))))
TypeError: <value of embed: float32[4]>: expected a block to be called on it, got a
function of NumPy, though its value is not known yet; write `jf.Function(fn)(x)` for
`fn(x)`\nin lazy(function), on example 0 of `like=`
>>> learned(lambda x: jnp.exp(embed(x)))
ValueError: <value of embed: float32[4]>: expected a block to be called on it, got a
function or a module, though its value is not known yet; write `jf.Function(fn)(x)` for
`fn(x)`, and `x * array` for `array * x` with an array of JAX\nin lazy(function), on
example 0 of `like=`
>>> learned(lambda x: jax.nn.relu(embed(x)))
TypeError: lazy(function): expected blocks and operators on values, got a function of
JAX; write `jf.Function(fn)(x)` for `fn(x)`\nin lazy(function), on example 0 of `like=`
>>> learned(lambda x: steps(x) * 2)
TypeError: lazy(function): expected values, got unsupported operand type(s) for *:
'generator' and 'int': write `yield` before a call of a generator function, as in
`(yield f(x)) * 2`\nin lazy(function), on example 0 of `like=`
>>> learned(lambda x: Pair(left=x))
TypeError: expected values, numbers or arrays, in tuples, lists or dicts, got
Pair(left=1) (Pair): register its class, as by `jax.tree_util.register_dataclass`\nin
lazy(function), on example 0 of `like=`
>>> learned(lambda x: jf.tensor(10**30))
TypeError: expected a number or an array, got 1000000000000000000000000000000; no int of
JAX is so large: make it a float\nin lazy(function), on example 0 of `like=`
>>> learned(lambda x: jf.float32(-(10**400)))
TypeError: expected a number or an array, got …; no number of JAX is so large: scale
it\nin lazy(function), on example 0 of `like=`
>>> jf.compile(known >> tree, like=[1])
TypeError: lazy(tree): expected to run on data, got values, behind lazy(known) in a
pipe; call one in the other
>>> jax.jit(jf.lazy(jf.tensor).eval)(1.0)
TypeError: expected a number or an array, got one that JAX is tracing; make the schedule
outside of `jax.jit`, and give the function that, or give the array as a parameter\nin
lazy(tensor), on the example
>>> learned(lambda x: [*embed(x)])
TypeError: <value of embed: float32[4]>: expected blocks and operators on it, got a
question for its items, though its value is not known yet; take rows of a tensor by
`x[0]`, `x[1]`\nin lazy(function), on example 0 of `like=`
>>> learned(lambda x: jf.tensor(len(embed(x))))
TypeError: <value of embed: float32[4]>: expected blocks and operators on it, got a
question for its length, though its value is not known yet; take it from the data, or
from `x.shape[0]`\nin lazy(function), on example 0 of `like=`
>>> learned(lambda x: embed(x).dot(embed(x)))
AttributeError: <value of embed: float32[4]>: expected blocks and operators on it, got a
question for `.dot`, though its value is not known yet; write `jf.Function(fn)(x)` for a
method, with an `fn` outside that calls it\nin lazy(function), on example 0 of `like=`
>>> learned(lambda x: embed(x)[jf.int32(1)])
TypeError: <value of embed: float32[4]>: expected an index of ints, got a value; write
`jf.Function(lambda x, i: x[i])` outside and call it\nin lazy(function), on example 0 of
`like=`
>>> def keeping(x, kept=[]):
...     kept.append(embed(x))
...     return kept[0]
... learned(keeping)
TypeError: <value of embed: float32[4]>: expected a value of this example, got one that
was kept from another example or model; make it again\nin lazy(keeping), on example 1 of
`like=`
>>> learned(lambda x: embed(x) if x == 1 else jf.tensor(1.0))
TypeError: lazy(function): expected results of one type, got float32[], and float32[4]
in another example or branch; return values of one type from each\nin lazy(function), on
example 1 of `like=`
>>> learned(lambda x: [embed(x), jf.tensor(1.0)])
TypeError: expected a list of items of one type, got float32[4] and float32[]; make a
tuple of what differs\nin lazy(function), on example 0 of `like=`
>>> learned(lambda x: [])
TypeError: expected a list with items in some example, which tell its type, got empty
ones alone; give `like=`, or `eval`, an example that has some
>>> learned(lambda x: jf.Function(lambda i: i + 1)(jf.int32(x)))
TypeError: lazy(function): expected a lazy function that calls the same blocks each
time, got one that calls new ones when it runs on example 0 again; make blocks outside
of it, once, or by `jf.named`; copy what it changes of its data, as in `items = [*x]`;
if it draws at random, give `like=` more examples
>>> def used_up(x):
...     value = embed(0)
...     while x:
...         value = add(value, embed(x.pop()))
...     return value
... learned(used_up, [1, 2])
TypeError: lazy(used_up): expected a lazy function that calls the same blocks each time,
got one that calls new ones when it runs on example 0 again; make blocks outside of it,
once, or by `jf.named`; copy what it changes of its data, as in `items = [*x]`; if it
draws at random, give `like=` more examples
>>> def added_to(x):
...     x.append(1.0)
...     return jf.tensor(x)[0]
... learned(added_to, [1.0, 2.0])
TypeError: lazy(added_to): expected a lazy function that calls the same blocks each
time, got one that calls new ones when it runs on example 0 again; make blocks outside
of it, once, or by `jf.named`; copy what it changes of its data, as in `items = [*x]`;
if it draws at random, give `like=` more examples
>>> def forgotten(x):
...     embed(x)
... learned(forgotten)
TypeError: lazy(forgotten): expected a result of values, got None; end every branch of
the function by `return`\nin lazy(forgotten), on example 0 of `like=`
>>> learned(lambda x: {1: embed(x), 'a': x})
TypeError: expected a dict with keys in an order, got {1: <value of embed: float32[4]>,
'a': 1} (dict); write names alone\nin lazy(function), on example 0 of `like=`
>>> learned(lambda x: embed)
TypeError: expected values, numbers or arrays, in tuples, lists or dicts, got
Function(embed) (Function): call it, or write `return` before what it gives\nin
lazy(function), on example 0 of `like=`
>>> learned(lambda x: embed('word'))
TypeError: expected values, numbers or arrays, in tuples, lists or dicts, got 'word':
look up its number first, as in `jf.int32(vocabulary[word])`\nin lazy(function), on
example 0 of `like=`
>>> learned(lambda x: embed(jf.int32(x / 2)))
TypeError: expected a number that fits int32, got 0.5; say `jf.float32`, or convert
it\nin lazy(function), on example 0 of `like=`
>>> learned(lambda x: jf.tensor([[1], [1, 2]]))
TypeError: expected a number or an array, got [[1], [1, 2]] (list); make a tensor of
each row, or rows of one length\nin lazy(function), on example 0 of `like=`
>>> learned(lambda x: jf.tensor([embed(x)]))
TypeError: expected a number or an array, got [<value of embed: float32[4]>] (list);
call a block on them, as `jf.Concat()`\nin lazy(function), on example 0 of `like=`
>>> learned(lambda x: jf.tensor(x, 'float64'))
TypeError: expected a dtype that JAX keeps, such as float32, got float64; say it, or set
jax.config.update('jax_enable_x64', True)\nin lazy(function), on example 0 of `like=`
>>> learned(lambda x: jf.tensor(x, 'number'))
TypeError: expected `dtype` as a number type such as 'float32', got 'number'\nin
lazy(function), on example 0 of `like=`
>>> learned(lambda x: embed(x)[7])
TypeError: Function(item): expected to run on inputs (float32[4]), got TypeError:
expected a tensor with an item 7, got float32[4]; take ints within its shape, and
slices\nin lazy(function), on example 0 of `like=`
>>> learned(lambda x: embed(i=x))
TypeError: lazy(function): expected inputs by position, got 'i' by name; write `block(x,
y)`\nin lazy(function), on example 0 of `like=`
>>> learned(lambda x: embed())
TypeError: Function(embed): expected to run on inputs (), got TypeError: …\nin
lazy(function), on example 0 of `like=`
>>> learned(lambda x: embed(x) << 2)
TypeError: lazy(function): expected an operator that values have, got unsupported
operand type(s) for <<: 'Value' and 'int'; write `jf.Function(fn)(x, y)`, with an `fn`
outside that computes it\nin lazy(function), on example 0 of `like=`
>>> learned(lambda x: pow(embed(x), 2, 3))
TypeError: <value of embed: float32[4]>: expected `pow(x, y)`, got a third operand:
write `x**y % z` for `pow(x, y, z)`\nin lazy(function), on example 0 of `like=`
>>> def assigning(x):
...     value = embed(x)
...     value[0] = 1
...     return value
... learned(assigning)
TypeError: <value of embed: float32[4]>: expected blocks and operators on it, got an
assignment to an item: write `jf.Function(lambda x, y: x.at[0].set(y))` outside and call
it\nin lazy(assigning), on example 0 of `like=`
>>> learned(lambda x: f'{embed(x):.2f}')
TypeError: <value of embed: float32[4]>: expected blocks and operators on it, got a
question for its number or its truth, though its value is not known yet; choose by the
data, or by `jf.select(condition, a, b)`\nin lazy(function), on example 0 of `like=`
>>> learned(lambda x: (embed(k) for k in range(x)))
TypeError: expected values, numbers or arrays, in tuples, lists or dicts, got <generator
…: make a list of it, or write `yield` before a call of a generator function\nin
lazy(function), on example 0 of `like=`
>>> learned(lambda x: add(embed(x), jf.tensor(np.ones(3, 'float32'))))
TypeError: Function(add): expected to run on inputs (float32[4], float32[3]), got
TypeError: …\nin lazy(function), on example 0 of `like=`
>>> learned(lambda x: (text(x),))
GivesObjects: InputTransform(str): expected a block that gives tensors, got one that
gives object; compute with data in plain Python\nin lazy(function), on example 0 of
`like=`
>>> learned(lambda x: void(embed(x)))
GivesObjects: Void(): expected a block that gives tensors, got one that gives nothing;
write `jf.observe(name, value)` for a Metric, and leave out what else gives nothing\nin
lazy(function), on example 0 of `like=`
>>> learned(lambda x: collecting([embed(x)]))
GivesObjects: Map(Metric('q')): expected a block that gives tensors, got one that gives
nothing; write `jf.observe(name, value)` for a Metric, and leave out what else gives
nothing\nin lazy(function), on example 0 of `like=`
>>> learned(lambda x: jf.Metric('q')(embed(x), 'a', 'b'))
TypeError: Metric('q'): expected a value, or a value and a label, got 3 arguments; write
several values as a tuple\nin lazy(function), on example 0 of `like=`
>>> def named_twice(x):
...     one = jf.named('layer', lambda: jnp.tanh)(embed(x))
...     return jf.named('layer', lambda: jnp.sin)(one)
... learned(named_twice)
TypeError: jf.named: expected one function that makes 'layer', got two; call it in one
place, such as a function of your own, or give two names\nin lazy(named_twice), on
example 0 of `like=`
>>> learned(lambda x: jf.named('layer', embed)(x + 1))
TypeError: expected `make` as a function that makes the layer, got Function(embed)
(Function): write `jf.named('head', lambda: nn.Dense(8))`\nin lazy(function), on example
0 of `like=`
>>> jf.compile(graph, like=[cycle])
TypeError: expected data without cycles, got an object that contains itself, [1, [...]]
(list); leave out what points back, or follow it without `share`, up to a depth\nin
lazy(graph), on example 0 of `like=`
>>> jf.compile(tree, like=[chain(5000)])
TypeError: lazy(tree): expected data less deep than calls of Python may be nested, got
deeper ones; write `x = yield f(part)` for each call of itself, which makes it a
generator function without that limit\nin lazy(tree), on example 0 of `like=`
>>> jf.compile(steps, like=[(1, 2)])
TypeError: expected values, numbers or arrays, in tuples, lists or dicts, got <generator
object steps at …> (generator): make a list of it, or write `yield` before a call of a
generator function\nin lazy(steps), on example 0 of `like=`
>>> jf.compile(known)
TypeError: expected `like` as a list of examples, got None: lazy(known) is run on them:
`jf.compile(block, like=examples[:8])`, whose `block` is what `Fold` in modules takes
>>> jf.compile(jf.Scalar(), like=[1])
TypeError: expected `like` as nothing without lazy functions, got [1] (list): leave it
out: types follow from the expression
>>> jf.compile(jf.Map(known) >> jf.Sum(), like=[[]])
TypeError: lazy(known): expected an example in `like=` that it runs on, got none; give
one
>>> jf.compile(jf.Map(jf.Scalar()) >> jf.Fold(known, jf.Zeros([])), like=[[1]])
TypeError: Fold(lazy(known), Zeros(float32[])): expected lazy(known) in Pipe, Record,
AllOf, Map, OneOf, Optional or a declaration, got it in another block; call that block
in a lazy function instead
>>> known(1)
TypeError: lazy(known): expected to run on the data of an example, in a model, got a
call outside of one; write `jf.compile(f, like=examples)`, or `f.eval(example)` for one
example
>>> jax.jit(known)(1)
TypeError: lazy(known): expected to run on the data of an example, in a model, got a
call outside of one; write `jf.compile(f, like=examples)`, or `f.eval(example)` for one
example
>>> jf.lazy(lambda x: embed(x)[7]).eval(1)
TypeError: Function(item): expected to run on inputs (float32[4]), got TypeError:
expected a tensor with an item 7, got float32[4]; take ints within its shape, and
slices\nin lazy(function), on the example
>>> jf.tensor(3)
TypeError: jf.tensor: expected to be called in a function of `jf.lazy`, got a call
outside of one, or in another thread; call it where the data are read
>>> jf.lazy(int)
TypeError: expected `fn` as a function, got <class 'int'> (type): decorate a function of
Python, `@jf.lazy`
>>> jf.compile(jf.lazy(lambda x: embed({1: 2}[x])), like=[1]).schedule([3])
InputError: example 0: expected what its function takes, got 3: KeyError: 3, in line …
of lazy.py, `…`; in Pipe[0].InputTransform(function)
>>> (
...     jf.compile(tree, like=[1]).predict(
...         {'embed': jnp.ones((9, 4))}, [(1, 2)], batch_size=1
...     )
... )
InputError: example 0 of the source: expected what its function takes, got (1, 2)
(tuple): NewCall: expected calls like those on the examples of `like=`, got add, a new
kind: give `like=` an example with such a call, in line … of lazy.py, `return
add(tree(t[0]), tree(t[1]))`; in Pipe[0].InputTransform(tree)
"""
