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
from mistakes.common import InputMistake, Mistake, ValueMistake

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


kept: list[Any] = []


def learned(fn: Callable[[Any], Any], *like: Any) -> Callable[[], Any]:
    """Compiles a function, for ints if no other examples are given."""
    return lambda: jf.compile(jf.lazy(fn), like=[*(like or (1, 2))])


def keeping(x: int) -> Any:
    kept.append(embed(x))
    return kept[0]


def used_up(x: list[int]) -> Any:
    value = embed(0)
    while x:
        value = add(value, embed(x.pop()))
    return value


def added_to(x: list[float]) -> Any:
    x.append(1.0)
    return jf.tensor(x)[0]


def named_twice(x: int) -> Any:
    one = jf.named('layer', lambda: jnp.tanh)(embed(x))
    return jf.named('layer', lambda: jnp.sin)(one)


def forgotten(x: int) -> None:
    embed(x)


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


circle: list[Any] = [1]
circle.append(circle)

VALUE = '<value of embed: float32[4]>: expected blocks and operators on it, got a '
CALLED = '<value of embed: float32[4]>: expected a block to be called on it, got '
UNKNOWN = 'though its value is not known yet; '
FIRST = '\nin lazy(function), on example 0 of `like=`'
OPAQUE = 'question for its number or its truth, ' + UNKNOWN
CHOOSE = 'choose by the data, or by `jf.select(condition, a, b)`'
WRAPPED = UNKNOWN + 'write `jf.Function(fn)(x)` for `fn(x)`' + FIRST
NOTHING = (
    'expected a block that gives tensors, got one that gives nothing; write '
    '`jf.observe(name, value)` for a Metric, and leave out what else gives nothing'
)
OTHERS = (
    'expected a lazy function that calls the same blocks each time, got one that calls '
    'new ones when it runs on example 0 again; make blocks outside of it, once, or '
    'by `jf.named`; copy what it changes of its data, as in `items = [*x]`; if it '
    'draws at random, give `like=` more examples'
)
NO_VALUES = 'expected values, numbers or arrays, in tuples, lists or dicts, got'
OUTSIDE = (
    'expected to run on the data of an example, in a model, got a call outside of '
    'one; write `jf.compile(f, like=examples)`, or `f.eval(example)` for one example'
)

MISTAKES: dict[str, Mistake] = {
    'a value is asked for its truth': Mistake(
        learned(lambda x: embed(x) or -embed(x)), VALUE + OPAQUE + CHOOSE + FIRST
    ),
    'a value as a number': Mistake(
        learned(lambda x: jf.tensor(float(embed(x)))), VALUE + OPAQUE + CHOOSE + FIRST
    ),
    'a value as an array': Mistake(
        learned(lambda x: jf.tensor(np.asarray(embed(x)))),
        f'{CALLED}a function of NumPy, {WRAPPED}',
    ),
    'a function of JAX on a value': ValueMistake(
        learned(lambda x: jnp.exp(embed(x))),
        f'{CALLED}a function or a module, {UNKNOWN}write `jf.Function(fn)(x)` for '
        f'`fn(x)`, and `x * array` for `array * x` with an array of JAX{FIRST}',
    ),
    'a function of JAX that names the class of a value': Mistake(
        learned(lambda x: jax.nn.relu(embed(x))),
        'lazy(function): expected blocks and operators on values, got a function of '
        f'JAX; write `jf.Function(fn)(x)` for `fn(x)`{FIRST}',
    ),
    'an operator on a call of a generator function': Mistake(
        learned(lambda x: steps(x) * 2),
        'lazy(function): expected values, got unsupported operand type(s) for *: '
        "'generator' and 'int': write `yield` before a call of a generator function, "
        f'as in `(yield f(x)) * 2`{FIRST}',
    ),
    'a dataclass that JAX does not know': Mistake(
        learned(lambda x: Pair(left=x)),
        f'{NO_VALUES} Pair(left=1) (Pair): register its class, as by '
        f'`jax.tree_util.register_dataclass`{FIRST}',
    ),
    'an int that no dtype holds': Mistake(
        learned(lambda x: jf.tensor(10**30)),
        f'expected a number or an array, got {10**30}; no int of JAX is so large: '
        f'make it a float{FIRST}',
    ),
    'a lazy function behind another': Mistake(
        lambda: jf.compile(known >> tree, like=[1]),
        'lazy(tree): expected to run on data, got values, behind lazy(known) in a '
        'pipe; call one in the other',
    ),
    'an example that JAX traces': Mistake(
        lambda: jax.jit(jf.lazy(jf.tensor).eval)(1.0),
        'expected a number or an array, got one that JAX is tracing; make the schedule '
        'outside of `jax.jit`, and give the function that, or give the array as a '
        'parameter\nin lazy(tensor), on example 0 of `like=`',
    ),
    'the items of a value': Mistake(
        learned(lambda x: [*embed(x)]),
        f'{VALUE}question for its items, {UNKNOWN}take rows of a tensor by `x[0]`, '
        f'`x[1]`{FIRST}',
    ),
    'the length of a value': Mistake(
        learned(lambda x: jf.tensor(len(embed(x)))),
        f'{VALUE}question for its length, {UNKNOWN}take it from the data, or from '
        f'`x.shape[0]`{FIRST}',
    ),
    'a method of arrays on a value': Mistake(
        learned(lambda x: embed(x).dot(embed(x))),
        f'{VALUE}question for `.dot`, {UNKNOWN}write `jf.Function(fn)(x)` for a '
        f'method, with an `fn` outside that calls it{FIRST}',
        error=AttributeError,
    ),
    'an index that is a value': Mistake(
        learned(lambda x: embed(x)[jf.int32(1)]),
        '<value of embed: float32[4]>: expected an index of ints, got a value; write '
        f'`jf.Function(lambda x, i: x[i])` outside and call it{FIRST}',
    ),
    'a value of another example': Mistake(
        learned(keeping),
        '<value of embed: float32[4]>: expected a value of this example, got one that '
        'was kept from another example or model; make it again\nin lazy(keeping), on '
        'example 1 of `like=`',
    ),
    'results of two types': Mistake(
        learned(lambda x: embed(x) if x == 1 else jf.tensor(1.0)),
        'lazy(function): expected results of one type, got float32[], and float32[4] '
        'in another example or branch; return values of one type from each\nin '
        'lazy(function), on example 1 of `like=`',
    ),
    'a list of two types': Mistake(
        learned(lambda x: [embed(x), jf.tensor(1.0)]),
        'expected a list of items of one type, got float32[4] and float32[]; make a '
        f'tuple of what differs{FIRST}',
    ),
    'lists that are always empty': Mistake(
        learned(lambda x: []),
        'expected a list with items in some example, which tell its type, got empty '
        'ones alone; give `like=`, or `eval`, an example that has some',
    ),
    'a layer made in the function': Mistake(
        learned(lambda x: jf.Function(lambda i: i + 1)(jf.int32(x))),
        f'lazy(function): {OTHERS}',
    ),
    'data that the function uses up': Mistake(
        learned(used_up, [1, 2]),
        f'lazy(used_up): {OTHERS}',
    ),
    'data that the function adds to': Mistake(
        learned(added_to, [1.0, 2.0]),
        f'lazy(added_to): {OTHERS}',
    ),
    'a forgotten return': Mistake(
        learned(forgotten),
        'lazy(forgotten): expected a result of values, got None; end every branch of '
        'the function by `return`\nin lazy(forgotten), on example 0 of `like=`',
    ),
    'a block as the result': Mistake(
        learned(lambda x: embed),
        'expected values, numbers or arrays, in tuples, lists or dicts, got '
        'Function(embed) (Function): call it, or write `return` before what it gives'
        f'{FIRST}',
    ),
    'a word as an argument': Mistake(
        learned(lambda x: embed('word')),
        "expected values, numbers or arrays, in tuples, lists or dicts, got 'word': "
        f'look up its number first, as in `jf.int32(vocabulary[word])`{FIRST}',
    ),
    'a fraction as an int': Mistake(
        learned(lambda x: embed(jf.int32(x / 2))),
        'expected a number that fits int32, got 0.5; say `jf.float32`, or convert it'
        f'{FIRST}',
    ),
    'arguments that do not fit': Mistake(
        learned(lambda x: add(embed(x), jf.tensor(np.ones(3, 'float32')))),
        'Function(add): expected to run on inputs (float32[4], float32[3]), got '
        f'TypeError: …{FIRST}',
    ),
    'a block that gives objects': Mistake(
        learned(lambda x: (text(x),)),
        'InputTransform(str): expected a block that gives tensors, got one that gives '
        f'object; compute with data in plain Python{FIRST}',
        error=GivesObjects,
    ),
    'a block that gives nothing': Mistake(
        learned(lambda x: void(embed(x))),
        f'Void(): {NOTHING}{FIRST}',
        error=GivesObjects,
    ),
    'a block that gives a list of nothing': Mistake(
        learned(lambda x: collecting([embed(x)])),
        f"Map(Metric('q')): {NOTHING}{FIRST}",
        error=GivesObjects,
    ),
    'a Metric of three values': Mistake(
        learned(lambda x: jf.Metric('q')(embed(x), 'a', 'b')),
        "Metric('q'): expected a value, or a value and a label, got 3 arguments; write "
        f'several values as a tuple{FIRST}',
    ),
    'a layer by name of two functions': Mistake(
        learned(named_twice),
        "jf.named: expected one function that makes 'layer', got two; call it in one "
        'place, such as a function of your own, or give two names\nin '
        'lazy(named_twice), on example 0 of `like=`',
    ),
    'a layer by name that is none': Mistake(
        learned(lambda x: jf.named('layer', embed)(x + 1)),
        'expected `make` as a function that makes the layer, got Function(embed) '
        f"(Function): write `jf.named('head', lambda: nn.Dense(8))`{FIRST}",
    ),
    'data with a circle': Mistake(
        lambda: jf.compile(graph, like=[circle]),
        'expected data without circles, got an object that contains itself, [1, '
        '[...]] (list); leave out what points back, or follow it without `share`, up '
        'to a depth\nin lazy(graph), on example 0 of `like=`',
    ),
    'data deeper than calls of Python': Mistake(
        lambda: jf.compile(tree, like=[chain(5000)]),
        'lazy(tree): expected data less deep than calls of Python may be nested, got '
        'deeper ones; write `x = yield f(part)` for each call of itself, which makes '
        'it a generator function without that limit\nin lazy(tree), on example 0 of '
        '`like=`',
    ),
    'a call of a generator function without yield': Mistake(
        lambda: jf.compile(steps, like=[(1, 2)]),
        f'{NO_VALUES} <generator object steps at …> (generator): write `yield` before '
        'a call of a generator function\nin lazy(steps), on example 0 of `like=`',
    ),
    'compiled without examples': Mistake(
        lambda: jf.compile(known),
        'expected `like` as a list of examples, got None: lazy(known) is run on them: '
        '`jf.compile(block, like=examples[:8])`, whose `block` is what `Fold` in '
        'modules takes',
    ),
    'examples for blocks': Mistake(
        lambda: jf.compile(jf.Scalar(), like=[1]),
        'expected `like` as nothing without lazy functions, got [1] (list): leave it '
        'out: types follow from the expression',
    ),
    'examples that reach no function': Mistake(
        lambda: jf.compile(jf.Map(known) >> jf.Sum(), like=[[]]),
        'lazy(known): expected an example in `like=` that it runs on, got none; give '
        'one',
    ),
    'a lazy function as a cell': Mistake(
        lambda: jf.compile(
            jf.Map(jf.Scalar()) >> jf.Fold(known, jf.Zeros([])), like=[[1]]
        ),
        'Fold(lazy(known), Zeros(float32[])): expected lazy(known) in Pipe, Record, '
        'AllOf, Map, OneOf, Optional or a declaration, got it in another block; call '
        'that block in a lazy function instead',
    ),
    'a lazy function on data alone': Mistake(
        lambda: known(1), f'lazy(known): {OUTSIDE}'
    ),
    'a lazy function under jit': Mistake(
        lambda: jax.jit(known)(1), f'lazy(known): {OUTSIDE}'
    ),
    'a constant outside of a lazy function': Mistake(
        lambda: jf.tensor(3),
        'jf.tensor: expected to be called in a function of `jf.lazy`, got a call '
        'outside of one, or in another thread; call it where the data are read',
    ),
    'a class as a lazy function': Mistake(
        lambda: jf.lazy(int),
        "expected `fn` as a function, got <class 'int'> (type): decorate a function "
        'of Python, `@jf.lazy`',
    ),
    'an error of the function on an example': InputMistake(
        lambda: jf.compile(jf.lazy(lambda x: embed({1: 2}[x])), like=[1]).schedule([3]),
        'example 0: expected what its function takes, got 3: KeyError: 3, in '
        'line … of lazy.py, `…`; in Pipe[0].InputTransform(function)',
    ),
    'a new kind of call in a prediction': InputMistake(
        lambda: jf.compile(tree, like=[1]).predict(
            {'embed': jnp.ones((9, 4))}, [(1, 2)], batch_size=1
        ),
        'example 0 of the source: expected what its function takes, got (1, 2) '
        '(tuple): NewCall: expected calls like those on the examples of `like=`, got '
        'add, a new kind: give `like=` an example with such a call, in line … of '
        'lazy.py, `return add(tree(t[0]), tree(t[1]))`; in '
        'Pipe[0].InputTransform(tree)',
    ),
}
