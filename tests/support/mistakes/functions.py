# SPDX-License-Identifier: Apache-2.0
"""Mistakes in functions and modules inside `Function`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jfold as jf
from mistakes.common import Mistake, compiled, number, pair, vector


def if_on_tracer(x: Any) -> Any:
    return x if x > 0 else -x


def as_float(x: Any) -> Any:
    return jnp.full(2, float(x))


def loop_on_tracer(x: Any) -> Any:
    return sum(x for _ in range(x))


def long_init(key: Any, x: Any, y: Any) -> Any:
    return jnp.ones(3)


def scaled_init(key: Any, x: Any, scale: float = 0.1) -> Any:
    return jnp.full(2, scale)


def matrix(key: Any, x: Any) -> Any:
    return jnp.ones((5, 5))


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

MISTAKES = [
    Mistake(
        'a cell of Linen in an RNN',
        lambda: compiled(vectors, jf.RNN(nn.GRUCell(3), jf.Zeros([3]))),
        'Pipe[1].RNN(Function(GRUCell), Zeros(float32[3])): '
        + TURNED.format('flax.linen', '`jf.layers.Cell(GRUCell(...))`'),
    ),
    Mistake(
        'a cell of NNX in an RNN',
        lambda: compiled(
            vectors, jf.RNN(nnx.GRUCell(3, 3, rngs=nnx.Rngs(0)), jf.Zeros([3]))
        ),
        'Pipe[1].RNN(Function(GRUCell), Zeros(float32[3])): '
        + TURNED.format('flax.nnx', 'a module that calls it the other way round'),
    ),
    Mistake(
        'a cell of Linen in a Fold, turned round',
        lambda: compiled(
            vectors,
            jf.Fold(jf.compose(lambda h, x: turned(x, h)[0]), jf.Zeros([3])),
        ),
        'Pipe[1].Fold(compose(x1 = x0 >> Record({0: Identity(), 1: Identit...: '
        'expected a state and then an item for GRUCell of flax.linen, got the state '
        'second; give it what Fold gives, in that order',
    ),
    Mistake(
        'states of another width than the gated graph has',
        lambda: compiled(
            jf.AllOf(vectors, jf.Identity(), jf.Identity()), jf.layers.GatedGraph(5, 1)
        ),
        'Pipe[1].plain.…Map.Function(update): expected to run on inputs (float32[3], '
        'float32[5]), got TypeError: expected states [5], as `features` of GatedGraph '
        'says, got [3]: make them by `jf.layers.FC(5)`',
    ),
    Mistake(
        'too many arguments',
        lambda: compiled(pair, jnp.tanh),
        'Pipe[1].Function(tanh): expected to run on inputs (float32[], '
        'float32[]), got TypeError: …; give it as many inputs as it takes: it is '
        'called as `fn(x, y)`, with the parts of the tuple as separate arguments',
    ),
    Mistake(
        'a class of modules for a module',
        lambda: compiled(number, jf.Function(nn.Dense)),
        'Pipe[1].Function(Dense): expected to run on inputs (float32[]), got '
        'TypeError: …; pass what it makes, `Dense(...)`',
    ),
    Mistake(
        'too few arguments',
        lambda: compiled(number, jnp.add),
        'Pipe[1].Function(add): expected to run on inputs (float32[]), got '
        'TypeError: …; give it as many inputs as it takes: it is called as '
        '`fn(x)`',
    ),
    Mistake(
        'shapes that do not go together',
        lambda: compiled(jf.AllOf(vector, jf.Vector(2)), jnp.add),
        'Pipe[1].Function(add): expected to run on inputs (float32[3], '
        'float32[2]), got TypeError: …',
        lacks='do',
    ),
    Mistake(
        'unlike dtypes joined',
        lambda: compiled(jf.AllOf(number, jf.Scalar('int32')), jf.Concat()),
        'Pipe[1].Function(concat): expected to run on inputs (float32[], '
        'int32[]), got TypeError: expected tensors of one dtype, got '
        "['float32', 'int32']; cast them",
    ),
    Mistake(
        'nested tuples joined',
        lambda: compiled(jf.AllOf(pair, number), jf.Concat()),
        'Pipe[1].Function(concat): expected to run on inputs ((float32[], '
        'float32[]), float32[]), got TypeError: expected tensors, got a tuple; '
        'pass `flatten=True`',
    ),
    Mistake(
        'if on a tracer',
        lambda: compiled(number, if_on_tracer),
        'Pipe[1].Function(if_on_tracer): expected to run on inputs '
        '(float32[]), got TracerBoolConversionError: …; use jax.numpy, and '
        'jnp.where or lax.cond where a value decides',
    ),
    Mistake(
        'float of a tracer',
        lambda: compiled(number, as_float),
        'Pipe[1].Function(as_float): expected to run on inputs (float32[]), '
        'got ConcretizationTypeError: Abstract tracer value encountered where '
        'concrete value is expected: traced array with shape float32[]; use '
        'jax.numpy, and jnp.where or lax.cond where a value decides',
    ),
    Mistake(
        'range of a tracer',
        lambda: compiled(jf.Scalar('int32'), loop_on_tracer),
        'Pipe[1].Function(loop_on_tracer): expected to run on inputs '
        '(int32[]), got TracerIntegerConversionError: …; use jax.numpy, and '
        'jnp.where or lax.cond where a value decides',
    ),
    Mistake(
        'NumPy on a tracer',
        lambda: compiled(number, np.sin),
        'Pipe[1].Function(sin): expected to run on inputs (float32[]), got '
        'TracerArrayConversionError: …; use jax.numpy, and jnp.where or '
        'lax.cond where a value decides',
    ),
    Mistake(
        'a mask as an index',
        lambda: compiled(vector, lambda x: x[x > 0]),
        'Pipe[1].Function(function): expected to run on inputs (float32[3]), '
        'got NonConcreteBooleanIndexError: …; use jax.numpy, and jnp.where or '
        'lax.cond where a value decides',
    ),
    Mistake(
        'a misspelt name',
        lambda: compiled(number, misspelt),
        'Pipe[1].Function(misspelt): expected to run on inputs (float32[]), '
        'got AttributeError: …',
        lacks='do',
    ),
    Mistake(
        'a function of nothing',
        lambda: compiled(number, lambda x: None),
        'Pipe[1].Function(function): expected to run on inputs (float32[]), '
        'got TypeError: expected arrays, or tuples or dicts of arrays, got None; '
        'return arrays',
    ),
    Mistake(
        'a dict of unlike keys',
        lambda: compiled(number, lambda x: {'y': x, 1: x}),
        'Pipe[1].Function(function): expected to run on inputs (float32[]), '
        'got ValueError: Comparator raised exception while sorting pytree dictionary '
        'keys.; write keys that can be sorted, such as names',
    ),
    Mistake(
        'a function that gives a class that JAX does not know',
        lambda: compiled(number, lambda x: Unknown(h=x)),
        'Pipe[1].Function(function): expected to run on inputs (float32[]), '
        'got TypeError: …, which is not a valid JAX type; return arrays, in tuples or '
        'dicts, or in a class that JAX knows, as by `jax.tree_util.register_dataclass`',
    ),
    Mistake(
        'the fields of a dict as arguments',
        lambda: compiled(number, state_of, lambda h, c: h + c),
        'Pipe[2].Function(function): expected to run on inputs '
        "({'c': float32[], 'h': float32[]}), got TypeError: …; it is one argument, as "
        "in `fn(x)`: take an item by `GetItem('c')`, or several by a Record with "
        'their keys',
    ),
    Mistake(
        'the sum of dicts',
        lambda: compiled(jf.Map(number >> jf.Function(state_of)), jf.Sum()),
        'Pipe[1].Reduce.combine.Function(add): expected to run on inputs '
        "({'c': float32[], 'h': float32[]}, {'c': float32[], 'h': float32[]}), got "
        "TypeError: …<class 'dict'>…; take an item of a dict by its key in a function "
        'of your own',
    ),
    Mistake(
        'a tuple with names',
        lambda: compiled(
            pair, lambda x, y: Named(x, c=y), jf.AllOf(jf.Identity()), lambda x: x.h
        ),
        'Pipe[3].Function(function): expected to run on inputs ((float32[], '
        "float32[])), got AttributeError: 'tuple' object has no attribute 'h'; take an "
        'item of a tuple by its place, as `x[0]`, or give it what a function returns '
        'as a dict',
    ),
    Mistake(
        'a number for a matrix',
        lambda: compiled(number, lambda x: jnp.ones((2, 2)) @ x),
        'Pipe[1].Function(function): expected to run on inputs (float32[]), got '
        '…; give it a vector: write `Vector(n)` for `Scalar()`',
    ),
    Mistake(
        'an init of more inputs',
        lambda: compiled(vector, jf.Function(product, init=long_init)),
        'Pipe[1].Function(product): expected to run on inputs (float32[3]), '
        'got TypeError: …; write `init` to be called as `init(key)` or '
        '`init(key, x)`',
    ),
    Mistake(
        'an init of a pair',
        lambda: compiled(pair, jf.Function(product, init=scaled_init)),
        'Pipe[1].Function(product): expected to run on inputs (float32[], '
        'float32[]), got TypeError: expected an `init` that takes 2 inputs, got one '
        'in which an input would be `scale=0.1`; write `init` to be called as '
        '`init(key)` or `init(key, x, y)`, with the parts of the tuple as separate '
        'arguments',
    ),
    Mistake(
        'a function of parameters and a pair',
        lambda: compiled(pair, jf.Function(product, init=lambda key: jnp.ones(2))),
        'Pipe[1].Function(product): expected to run on inputs (float32[], '
        'float32[]), got TypeError: …; give it as many inputs as it takes: it is '
        'called as `fn(params, x, y)`, with the parts of the tuple as separate '
        'arguments',
    ),
    Mistake(
        'an initializer of JAX for init',
        lambda: compiled(pair, jf.Function(product, init=jax.nn.initializers.normal())),
        'Pipe[1].Function(product): expected to run on inputs (float32[], '
        'float32[]), got TypeError: …; an initializer takes a shape: write '
        '`init=lambda key: initializer(key, (2, 3))`, for one of [2, 3]',
    ),
    Mistake(
        'parameters of a wrong shape',
        lambda: compiled(vector, jf.Function(product, init=matrix)),
        'Pipe[1].Function(product): expected to run on inputs (float32[3]), '
        'got TypeError: …',
        lacks='do',
    ),
    Mistake(
        'a function without its init',
        lambda: compiled(vector, product),
        'Pipe[1].Function(product): expected to run on inputs (float32[3]), '
        'got TypeError: …; give it as many inputs as it takes: it is called as '
        '`fn(x)`; with `init`, as `fn(params, x)`',
    ),
    Mistake(
        'a Linen module with state',
        lambda: compiled(vector, Normed()),
        'Pipe[1].Function(Normed): expected to run on inputs (float32[3]), got '
        'TypeError: expected a module of parameters alone, got state beside '
        "them, ['batch_stats']: what calls write, such as the means of a batch, has "
        'no meaning where nodes run tile by tile; use LayerNorm, RMSNorm or GroupNorm '
        'for BatchNorm, or put it behind `model.apply`',
    ),
    Mistake(
        'an NNX module with state',
        lambda: compiled(vector, nnx.BatchNorm(3, rngs=nnx.Rngs(0))),
        'Pipe[1].Function(BatchNorm): expected to run on inputs (float32[3]), '
        'got TypeError: expected a module of parameters alone, got state '
        "beside them, ['BatchStat']: what calls write, such as the means of a batch, "
        'has no meaning where nodes run tile by tile; use LayerNorm, RMSNorm or '
        'GroupNorm for BatchNorm, or put it behind `model.apply`',
    ),
    Mistake(
        'an NNX layer of another width',
        lambda: compiled(vector, nnx.Linear(5, 2, rngs=nnx.Rngs(0))),
        'Pipe[1].Function(Linear): expected to run on inputs (float32[3]), got '
        'TypeError: …',
        lacks='do',
    ),
    Mistake(
        'rows summed up',
        lambda: compiled(number, jf.Function(jnp.sum, batched=True)),
        'Pipe[1].Function(sum): expected to run on inputs (float32[]), got '
        'TypeError: expected arrays with a leading axis of 2 rows, got (); '
        'give a row for each row, or leave out `batched=True`',
    ),
    Mistake(
        'rows of a single example',
        lambda: compiled(vector, jf.Function(lambda x: x[0], batched=True)),
        'Pipe[1].Function(function): expected to run on inputs (float32[3]), '
        'got TypeError: expected arrays with a leading axis of 2 rows, got '
        '(3,); give a row for each row, or leave out `batched=True`',
    ),
    Mistake(
        'the first rows',
        lambda: compiled(number, jf.Function(lambda x: x[:2], batched=True)),
        'Pipe[1].Function(function): expected to run on inputs (float32[]), '
        'got TypeError: expected arrays with a leading axis of 101 rows, got '
        '(2,); give a row for each row, or leave out `batched=True`',
    ),
    Mistake(
        'rows that hold one another',
        lambda: compiled(number, jf.Function(lambda x: x[:, None] + x, batched=True)),
        'Pipe[1].Function(function): expected to run on inputs (float32[]), '
        'got TypeError: expected rows of one type for any number of rows, got '
        'float32[2] of 2, float32[101] of 101; make each row of the same row of the '
        'inputs alone, or leave out `batched=True`',
    ),
]
