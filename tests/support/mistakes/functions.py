# SPDX-License-Identifier: Apache-2.0
"""Mistakes in functions and modules of Flax: in what they are, and where they stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jfold as jf
from mistakes.common import (
    BY_INIT,
    OF_ANOTHER,
    Mistake,
    ValueMistake,
    compiled,
    number,
    pair,
    vector,
)


def long_init(key: Any, x: Any, y: Any) -> Any:
    return jnp.ones(3)


def scaled_init(key: Any, x: Any, scale: float = 0.1) -> Any:
    return jnp.full(2, scale)


def product(w: Any, x: Any) -> Any:
    return w @ x


def misspelt(x: Any) -> Any:
    return jnp.tnah(x)


def state_of(x: Any) -> Any:
    return {'h': x, 'c': x}


class Named(NamedTuple):
    """A tuple with names."""

    h: Any
    c: Any


@dataclass
class Unknown:
    """A class that JAX does not take apart."""

    h: Any


class Normed(nn.Module):
    """Keeps averages beside its parameters."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.BatchNorm(use_running_average=False)(x)


vectors = jf.Map(vector)
turned = jf.Function(nn.GRUCell(3))

TURNED = (
    'expected a cell that takes an item and a state and gives an output and a state, '
    'got GRUCell of {}, which takes and gives the state first; pass {}'
)


class Around(nn.Module):
    """Makes a block of what it holds."""

    @nn.compact
    def __call__(self, batch: Any) -> Any:
        inner = nn.Dense(3)
        fold = jf.linen.Fold(vector >> jf.Function(lambda x: nn.relu(inner(x))))
        return fold(fold.model.schedule(batch))


class Within(nn.Module):
    """Makes a block at each call."""

    @nn.compact
    def __call__(self, schedule: Any) -> Any:
        return jf.linen.Fold(vector >> jf.Function(nn.Dense(2)))(schedule)


def within() -> Any:
    schedule = jf.compile(vector >> jf.Function(nn.Dense(3))).schedule([[1, 2, 3]])
    return Within().init(jax.random.key(0), schedule)


def params_of_nnx() -> Any:
    fold = jf.nnx.Fold(vector >> jf.Function(dense), rngs=nnx.Rngs(0))
    return fold.model.predict(nnx.state(fold), [[1, 2, 3]])


dense, unbound = nnx.Linear(3, 3, rngs=nnx.Rngs(0)), nn.Dense(3)

ON_NUMBER = 'expected to run on inputs (float32[]), got'
ON_VECTOR = 'expected to run on inputs (float32[3]), got'
ON_PAIR = 'expected to run on inputs (float32[], float32[]), got'
TRACED = 'use jax.numpy, and jnp.where or lax.cond where a value decides'
AS_MANY = 'give it as many inputs as it takes: it is called as'
APART = 'with the parts of the tuple as separate arguments'
NO_STATE = 'expected a module of parameters alone, got state beside them,'
WRITES = (
    'what calls write, such as the means of a batch, has no meaning where nodes run '
    'tile by tile; use LayerNorm, RMSNorm or GroupNorm for BatchNorm, or put it '
    'behind `model.apply`'
)
NO_AXIS = 'expected arrays with a leading axis of'
A_ROW = '; give a row for each row, or leave out `batched=True`'
CALLS = (
    'expected a function that calls no module with parameters, got one that calls the'
)
UNTRAINED = 'and nobody would train them: give the module itself,'
OR_SPLIT = 'or write one that calls it; what is not to be trained, make by `nnx.split`'

MISTAKES: dict[str, Mistake] = {
    'a cell of Linen in an RNN': Mistake(
        lambda: compiled(vectors, jf.RNN(nn.GRUCell(3), jf.Zeros([3]))),
        'Pipe[1].RNN(Function(GRUCell), Zeros(float32[3])): '
        + TURNED.format('flax.linen', '`jf.layers.Cell(GRUCell(...))`'),
    ),
    'a cell of NNX in an RNN': Mistake(
        lambda: compiled(
            vectors, jf.RNN(nnx.GRUCell(3, 3, rngs=nnx.Rngs(0)), jf.Zeros([3]))
        ),
        'Pipe[1].RNN(Function(GRUCell), Zeros(float32[3])): '
        + TURNED.format('flax.nnx', 'a module that calls it the other way round'),
    ),
    'a cell of Linen in a Fold, turned round': Mistake(
        lambda: compiled(
            vectors,
            jf.Fold(jf.compose(lambda h, x: turned(x, h)[0]), jf.Zeros([3])),
        ),
        'Pipe[1].Fold(compose(x1 = x0 >> Record({0: Identity(), 1: Identit...: '
        'expected a state and then an item for GRUCell of flax.linen, got the state '
        'second; give it what Fold gives, in that order',
    ),
    'states of another width than the gated graph has': Mistake(
        lambda: compiled(
            jf.AllOf(vectors, jf.Identity(), jf.Identity()), jf.layers.GatedGraph(5, 1)
        ),
        'Pipe[1].plain.…Map.Function(update): expected to run on inputs (float32[3], '
        'float32[5]), got TypeError: expected states [5], as `features` of GatedGraph '
        'says, got [3]: make them by `jf.layers.FC(5)`',
    ),
    'too many arguments': Mistake(
        lambda: compiled(pair, jnp.tanh),
        f'Pipe[1].Function(tanh): {ON_PAIR} TypeError: …; {AS_MANY} `fn(x, y)`, '
        f'{APART}',
    ),
    'a class of modules for a module': Mistake(
        lambda: compiled(number, jf.Function(nn.Dense)),
        f'Pipe[1].Function(Dense): {ON_NUMBER} TypeError: …; pass what it makes, '
        '`Dense(...)`',
    ),
    'too few arguments': Mistake(
        lambda: compiled(number, jnp.add),
        f'Pipe[1].Function(add): {ON_NUMBER} TypeError: …; {AS_MANY} `fn(x)`',
    ),
    'shapes that do not go together': Mistake(
        lambda: compiled(jf.AllOf(vector, jf.Vector(2)), jnp.add),
        'Pipe[1].Function(add): expected to run on inputs (float32[3], float32[2]), '
        'got TypeError: …',
    ),
    'unlike dtypes joined': Mistake(
        lambda: compiled(jf.AllOf(number, jf.Scalar('int32')), jf.Concat()),
        'Pipe[1].Function(concat): expected to run on inputs (float32[], int32[]), '
        "got TypeError: expected tensors of one dtype, got ['float32', 'int32']; cast "
        'them',
    ),
    'nested tuples joined': Mistake(
        lambda: compiled(jf.AllOf(pair, number), jf.Concat()),
        'Pipe[1].Function(concat): expected to run on inputs ((float32[], float32[]), '
        'float32[]), got TypeError: expected tensors, got a tuple; pass `flatten=True`',
    ),
    'if on a tracer': Mistake(
        lambda: compiled(number, lambda x: x if x > 0 else -x),
        f'Pipe[1].Function(function): {ON_NUMBER} TracerBoolConversionError: …; '
        f'{TRACED}',
    ),
    'float of a tracer': Mistake(
        lambda: compiled(number, lambda x: jnp.full(2, float(x))),
        f'Pipe[1].Function(function): {ON_NUMBER} ConcretizationTypeError: Abstract '
        'tracer value encountered where concrete value is expected: traced array with '
        f'shape float32[]; {TRACED}',
    ),
    'range of a tracer': Mistake(
        lambda: compiled(jf.Scalar('int32'), lambda x: sum(x for _ in range(x))),
        'Pipe[1].Function(function): expected to run on inputs (int32[]), got '
        f'TracerIntegerConversionError: …; {TRACED}',
    ),
    'NumPy on a tracer': Mistake(
        lambda: compiled(number, np.sin),
        f'Pipe[1].Function(sin): {ON_NUMBER} TracerArrayConversionError: …; {TRACED}',
    ),
    'a mask as an index': Mistake(
        lambda: compiled(vector, lambda x: x[x > 0]),
        f'Pipe[1].Function(function): {ON_VECTOR} NonConcreteBooleanIndexError: …; '
        f'{TRACED}',
    ),
    'a misspelt name': Mistake(
        lambda: compiled(number, misspelt),
        f'Pipe[1].Function(misspelt): {ON_NUMBER} AttributeError: …',
    ),
    'a function of nothing': Mistake(
        lambda: compiled(number, lambda x: None),
        f'Pipe[1].Function(function): {ON_NUMBER} TypeError: expected arrays, or '
        'tuples or dicts of arrays, got None; return arrays',
    ),
    'a dict of unlike keys': Mistake(
        lambda: compiled(number, lambda x: {'y': x, 1: x}),
        f'Pipe[1].Function(function): {ON_NUMBER} ValueError: Comparator raised '
        'exception while sorting pytree dictionary keys.; write keys that can be '
        'sorted, such as names',
    ),
    'a function that gives a class that JAX does not know': Mistake(
        lambda: compiled(number, lambda x: Unknown(h=x)),
        f'Pipe[1].Function(function): {ON_NUMBER} TypeError: …, which is not a valid '
        'JAX type; return arrays, in tuples or dicts, or in a class that JAX knows, '
        'as by `jax.tree_util.register_dataclass`',
    ),
    'the fields of a dict as arguments': Mistake(
        lambda: compiled(number, state_of, lambda h, c: h + c),
        "Pipe[2].Function(function): expected to run on inputs ({'c': float32[], 'h': "
        'float32[]}), got TypeError: …; it is one argument, as in `fn(x)`: take an '
        "item by `GetItem('c')`, or several by a Record with their keys",
    ),
    'the sum of dicts': Mistake(
        lambda: compiled(jf.Map(number >> jf.Function(state_of)), jf.Sum()),
        "Pipe[1].Reduce.combine.Function(add): expected to run on inputs ({'c': "
        "float32[], 'h': float32[]}, {'c': float32[], 'h': float32[]}), got "
        "TypeError: …<class 'dict'>…; take an item of a dict by its key in a function "
        'of your own',
    ),
    'a tuple with names': Mistake(
        lambda: compiled(
            pair, lambda x, y: Named(x, c=y), jf.AllOf(jf.Identity()), lambda x: x.h
        ),
        'Pipe[3].Function(function): expected to run on inputs ((float32[], '
        "float32[])), got AttributeError: 'tuple' object has no attribute 'h'; take "
        'an item of a tuple by its place, as `x[0]`, or give it what a function '
        'returns as a dict',
    ),
    'a number for a matrix': Mistake(
        lambda: compiled(number, lambda x: jnp.ones((2, 2)) @ x),
        f'Pipe[1].Function(function): {ON_NUMBER} …; give it a vector: write '
        '`Vector(n)` for `Scalar()`',
    ),
    'an init of more inputs': Mistake(
        lambda: compiled(vector, jf.Function(product, init=long_init)),
        f'Pipe[1].Function(product): {ON_VECTOR} TypeError: …; write `init` to be '
        'called as `init(key)` or `init(key, x)`',
    ),
    'an init of a pair': Mistake(
        lambda: compiled(pair, jf.Function(product, init=scaled_init)),
        f'Pipe[1].Function(product): {ON_PAIR} TypeError: expected an `init` that '
        'takes 2 inputs, got one in which an input would be `scale=0.1`; write `init` '
        f'to be called as `init(key)` or `init(key, x, y)`, {APART}',
    ),
    'a function of parameters and a pair': Mistake(
        lambda: compiled(pair, jf.Function(product, init=lambda key: jnp.ones(2))),
        f'Pipe[1].Function(product): {ON_PAIR} TypeError: …; {AS_MANY} `fn(params, x, '
        f'y)`, {APART}',
    ),
    'an initializer of JAX for init': Mistake(
        lambda: compiled(pair, jf.Function(product, init=jax.nn.initializers.normal())),
        f'Pipe[1].Function(product): {ON_PAIR} TypeError: …; an initializer takes a '
        'shape: write `init=lambda key: initializer(key, (2, 3))`, for one of [2, 3]',
    ),
    'parameters of a wrong shape': Mistake(
        lambda: compiled(
            vector, jf.Function(product, init=lambda key, x: jnp.ones((5, 5)))
        ),
        f'Pipe[1].Function(product): {ON_VECTOR} TypeError: …',
    ),
    'a function without its init': Mistake(
        lambda: compiled(vector, product),
        f'Pipe[1].Function(product): {ON_VECTOR} TypeError: …; {AS_MANY} `fn(x)`; '
        'with `init`, as `fn(params, x)`',
    ),
    'a Linen module with state': Mistake(
        lambda: compiled(vector, Normed()),
        f'Pipe[1].Function(Normed): {ON_VECTOR} TypeError: {NO_STATE} '
        f"['batch_stats']: {WRITES}",
    ),
    'an NNX module with state': Mistake(
        lambda: compiled(vector, nnx.BatchNorm(3, rngs=nnx.Rngs(0))),
        f'Pipe[1].Function(BatchNorm): {ON_VECTOR} TypeError: {NO_STATE} '
        f"['BatchStat']: {WRITES}",
    ),
    'an NNX layer of another width': Mistake(
        lambda: compiled(vector, nnx.Linear(5, 2, rngs=nnx.Rngs(0))),
        f'Pipe[1].Function(Linear): {ON_VECTOR} TypeError: …',
    ),
    'rows summed up': Mistake(
        lambda: compiled(number, jf.Function(jnp.sum, batched=True)),
        f'Pipe[1].Function(sum): {ON_NUMBER} TypeError: {NO_AXIS} 2 rows, got '
        f'(){A_ROW}',
    ),
    'rows of a single example': Mistake(
        lambda: compiled(vector, jf.Function(lambda x: x[0], batched=True)),
        f'Pipe[1].Function(function): {ON_VECTOR} TypeError: {NO_AXIS} 2 rows, got '
        f'(3,){A_ROW}',
    ),
    'the first rows': Mistake(
        lambda: compiled(number, jf.Function(lambda x: x[:2], batched=True)),
        f'Pipe[1].Function(function): {ON_NUMBER} TypeError: {NO_AXIS} 101 rows, got '
        f'(2,){A_ROW}',
    ),
    'rows that hold one another': Mistake(
        lambda: compiled(number, jf.Function(lambda x: x[:, None] + x, batched=True)),
        f'Pipe[1].Function(function): {ON_NUMBER} TypeError: expected rows of one '
        'type for any number of rows, got float32[2] of 2, float32[101] of 101; make '
        'each row of the same row of the inputs alone, or leave out `batched=True`',
    ),
    'a function that calls a module of NNX': Mistake(
        lambda: compiled(vector, lambda x: nnx.relu(dense(x))),
        f'Pipe[1].Function(function): {ON_VECTOR} TypeError: {CALLS} Linear `dense`, '
        f'{UNTRAINED} `Function(dense)`, {OR_SPLIT}',
    ),
    'a function that calls a module of Linen': Mistake(
        lambda: compiled(vector, lambda x: nn.relu(unbound(x))),
        f'Pipe[1].Function(function): {ON_VECTOR} CallCompactUnboundModuleError: …; '
        'give Function the module itself, as `Function(Dense(3))`, or write a module '
        'that calls it',
    ),
    'a function that calls a part of a module around it': Mistake(
        lambda: Around().init(jax.random.key(0), [[1, 2, 3]]),
        f'Pipe[1].Function(function): {ON_VECTOR} TypeError: {CALLS} Dense `inner`, '
        f'{UNTRAINED} `Function(inner)`, {OR_SPLIT}',
    ),
    'a number for a layer of Linen': Mistake(
        lambda: compiled(number, nn.Dense(3)),
        f'Pipe[1].Function(Dense): {ON_NUMBER} IndexError: tuple index out of range; '
        'give it a vector: write `Vector(n)`, with n=1 for a number',
    ),
    'a number for a layer of NNX': Mistake(
        lambda: compiled(number, nnx.Linear(1, 3, rngs=nnx.Rngs(0))),
        f'Pipe[1].Function(Linear): {ON_NUMBER} TypeError: …; give it a vector: write '
        '`Vector(n)`, with n=1 for a number',
    ),
    'a float for an embedding': Mistake(
        lambda: compiled(number, nn.Embed(3, 2)),
        f'Pipe[1].Function(Embed): {ON_NUMBER} ValueError: Input type must be an '
        "integer or unsigned integer.; make it an int: write `Scalar('int32')`",
    ),
    'a block made in a method of a module': ValueMistake(
        within,
        f'{OF_ANOTHER}\nin `Fold`: expected a block that is made once, got one of '
        'another schedule: make the block outside of methods, which make another at '
        'each call, and schedules by `fold.model` of it',
    ),
    'the state of a fold of NNX for parameters': Mistake(
        params_of_nnx,
        "expected parameters for layer 'Linear', got those of ['params']: pass "
        f"`variables['params']` of Linen, `fold.arrays` of NNX{BY_INIT}",
    ),
    'layers in both directions, without a size': Mistake(
        lambda: jf.layers.Bidirectional(jf.layers.GRU(3)),
        'expected `features` as int, got RNN(Function(gru), Zeros(float32[3])) (RNN): '
        'write `Bidirectional(16, jf.layers.GRU)`',
    ),
}
