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
from mistakes.common import compiled, number, pair, vector


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


class Misspelt(nn.Module):
    """Raises an error of its own."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(2)(misspelt(x))


class Normed(nn.Module):
    """Keeps averages beside its parameters."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.BatchNorm(use_running_average=False)(x)


vectors = jf.Map(vector)
turned = jf.Function(nn.GRUCell(3))


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


dense, unbound = nnx.Linear(3, 3, rngs=nnx.Rngs(0)), nn.Dense(3)

TABLE = r"""
>>> compiled(vectors, jf.RNN(nn.GRUCell(3), jf.Zeros([3])))
TypeError: Pipe[1].RNN(Function(GRUCell), Zeros(float32[3])): expected a cell that takes
an item and a state and gives an output and a state, got GRUCell of flax.linen, which
takes and gives the state first; pass `jf.layers.Cell(GRUCell(...))`
>>> compiled(vectors, jf.RNN(nnx.GRUCell(3, 3, rngs=nnx.Rngs(0)), jf.Zeros([3])))
TypeError: Pipe[1].RNN(Function(GRUCell), Zeros(float32[3])): expected a cell that takes
an item and a state and gives an output and a state, got GRUCell of flax.nnx, which
takes and gives the state first; pass a module that calls it the other way round
>>> compiled(vectors, jf.Fold(jf.compose(lambda h, x: turned(x, h)[0]), jf.Zeros([3])))
TypeError: Pipe[1].Fold(compose(x1 = x0 >> Record({0: Identity(), 1: Identit...:
expected a state and then an item for GRUCell of flax.linen, got the state second; give
it what Fold gives, in that order
>>> (
...     compiled(
...         jf.AllOf(vectors, jf.Identity(), jf.Identity()), jf.layers.GatedGraph(5, 1)
...     )
... )
TypeError: Pipe[1].plain.…Map.Function(update): expected to run on inputs (float32[3],
float32[5]), got TypeError: expected states [5], as `features` of GatedGraph says, got
[3]: make them by `jf.layers.FC(5)`
>>> compiled(pair, jnp.tanh)
TypeError: Pipe[1].Function(tanh): expected to run on inputs (float32[], float32[]), got
TypeError: …; give it as many inputs as it takes: it is called as `fn(x, y)`, with the
parts of the tuple as separate arguments
>>> compiled(number, jf.Function(nn.Dense))
TypeError: Pipe[1].Function(Dense): expected to run on inputs (float32[]), got
TypeError: …; pass what it makes, `Dense(...)`
>>> compiled(number, jnp.add)
TypeError: Pipe[1].Function(add): expected to run on inputs (float32[]), got TypeError:
…; give it as many inputs as it takes: it is called as `fn(x)`
>>> compiled(jf.AllOf(vector, jf.Vector(2)), jnp.add)
TypeError: Pipe[1].Function(add): expected to run on inputs (float32[3], float32[2]),
got TypeError: …
>>> compiled(jf.AllOf(number, jf.Scalar('int32')), jf.Concat())
TypeError: Pipe[1].Function(concat): expected to run on inputs (float32[], int32[]), got
TypeError: expected tensors of one dtype, got ['float32', 'int32']; cast them
>>> compiled(jf.AllOf(pair, number), jf.Concat())
TypeError: Pipe[1].Function(concat): expected to run on inputs ((float32[], float32[]),
float32[]), got TypeError: expected tensors, got a tuple; pass `flatten=True`
>>> compiled(number, lambda x: x if x > 0 else -x)
TypeError: Pipe[1].Function(function): expected to run on inputs (float32[]), got
TracerBoolConversionError: …; use jax.numpy, and jnp.where or lax.cond where a value
decides
>>> compiled(number, lambda x: jnp.full(2, float(x)))
TypeError: Pipe[1].Function(function): expected to run on inputs (float32[]), got
ConcretizationTypeError: Abstract tracer value encountered where concrete value is
expected: traced array with shape float32[]; use jax.numpy, and jnp.where or lax.cond
where a value decides
>>> compiled(jf.Scalar('int32'), lambda x: sum((x for _ in range(x))))
TypeError: Pipe[1].Function(function): expected to run on inputs (int32[]), got
TracerIntegerConversionError: …; use jax.numpy, and jnp.where or lax.cond where a value
decides
>>> compiled(number, np.sin)
TypeError: Pipe[1].Function(sin): expected to run on inputs (float32[]), got
TracerArrayConversionError: …; use jax.numpy, and jnp.where or lax.cond where a value
decides
>>> compiled(vector, lambda x: x[x > 0])
TypeError: Pipe[1].Function(function): expected to run on inputs (float32[3]), got
NonConcreteBooleanIndexError: …; use jax.numpy, and jnp.where or lax.cond where a value
decides
>>> compiled(number, misspelt)
TypeError: Pipe[1].Function(misspelt): expected to run on inputs (float32[]), got
AttributeError: …
>>> compiled(number, lambda x: None)
TypeError: Pipe[1].Function(function): expected to run on inputs (float32[]), got
TypeError: expected arrays, or tuples or dicts of arrays, got None; return arrays
>>> compiled(number, lambda x: {'y': x, 1: x})
TypeError: Pipe[1].Function(function): expected to run on inputs (float32[]), got
ValueError: Comparator raised exception while sorting pytree dictionary keys.; write
keys that can be sorted, such as names
>>> compiled(number, lambda x: Unknown(h=x))
TypeError: Pipe[1].Function(function): expected to run on inputs (float32[]), got
TypeError: …, which is not a valid JAX type; return arrays, in tuples or dicts, or in a
class that JAX knows, as by `jax.tree_util.register_dataclass`
>>> compiled(number, state_of, lambda h, c: h + c)
TypeError: Pipe[2].Function(function): expected to run on inputs ({'c': float32[], 'h':
float32[]}), got TypeError: …; it is one argument, as in `fn(x)`: take an item by
`GetItem('c')`, or several by a Record with their keys
>>> compiled(jf.Map(number >> jf.Function(state_of)), jf.Sum())
TypeError: Pipe[1].Reduce.combine.Function(add): expected to run on inputs ({'c':
float32[], 'h': float32[]}, {'c': float32[], 'h': float32[]}), got TypeError: …<class
'dict'>…; take an item of a dict by its key in a function of your own
>>> compiled(pair, lambda x, y: Named(x, c=y), jf.AllOf(jf.Identity()), lambda x: x.h)
TypeError: Pipe[3].Function(function): expected to run on inputs ((float32[],
float32[])), got AttributeError: 'tuple' object has no attribute 'h'; take an item of a
tuple by its place, as `x[0]`, or give it what a function returns as a dict
>>> compiled(number, lambda x: jnp.ones((2, 2)) @ x)
TypeError: Pipe[1].Function(function): expected to run on inputs (float32[]), got …;
give it a vector: write `Vector(n)` for `Scalar()`
>>> compiled(vector, jf.Function(product, init=long_init))
TypeError: Pipe[1].Function(product): expected to run on inputs (float32[3]), got
TypeError: …; write `init` to be called as `init(key)` or `init(key, x)`
>>> compiled(pair, jf.Function(product, init=scaled_init))
TypeError: Pipe[1].Function(product): expected to run on inputs (float32[], float32[]),
got TypeError: expected an `init` that takes 2 inputs, got one in which an input would
be `scale=0.1`; write `init` to be called as `init(key)` or `init(key, x, y)`, with the
parts of the tuple as separate arguments
>>> compiled(pair, jf.Function(product, init=lambda key: jnp.ones(2)))
TypeError: Pipe[1].Function(product): expected to run on inputs (float32[], float32[]),
got TypeError: …; give it as many inputs as it takes: it is called as `fn(params, x,
y)`, with the parts of the tuple as separate arguments
>>> compiled(pair, jf.Function(product, init=jax.nn.initializers.normal()))
TypeError: Pipe[1].Function(product): expected to run on inputs (float32[], float32[]),
got TypeError: …; an initializer takes a shape: write `init=lambda key: initializer(key,
(2, 3))`, for one of [2, 3]
>>> compiled(vector, jf.Function(product, init=lambda key, x: jnp.ones((5, 5))))
TypeError: Pipe[1].Function(product): expected to run on inputs (float32[3]), got
TypeError: …
>>> compiled(vector, product)
TypeError: Pipe[1].Function(product): expected to run on inputs (float32[3]), got
TypeError: …; give it as many inputs as it takes: it is called as `fn(x)`; with `init`,
as `fn(params, x)`
>>> compiled(vector, Normed())
TypeError: Pipe[1].Function(Normed): expected to run on inputs (float32[3]), got
TypeError: expected a module of parameters alone, got state beside them,
['batch_stats']: what calls may write, such as the means of a batch, has no meaning
where nodes run tile by tile; use LayerNorm, RMSNorm or GroupNorm for BatchNorm, put it
behind `model.apply`, or make what is only read a parameter
>>> compiled(vector, nnx.BatchNorm(3, rngs=nnx.Rngs(0)))
TypeError: Pipe[1].Function(BatchNorm): expected to run on inputs (float32[3]), got
TypeError: expected a module of parameters alone, got state beside them, ['BatchStat']:
what calls may write, such as the means of a batch, has no meaning where nodes run tile
by tile; use LayerNorm or RMSNorm for BatchNorm, put it behind `model.apply`, or make
what is only read a parameter
>>> compiled(vector, nnx.Linear(5, 2, rngs=nnx.Rngs(0)))
TypeError: Pipe[1].Function(Linear): expected to run on inputs (float32[3]), got
TypeError: …
>>> compiled(number, jf.Function(jnp.sum, batched=True))
TypeError: Pipe[1].Function(sum): expected to run on inputs (float32[]), got TypeError:
expected arrays with a leading axis of 2 rows, got (); give a row for each row, or leave
out `batched=True`
>>> compiled(vector, jf.Function(lambda x: x[0], batched=True))
TypeError: Pipe[1].Function(function): expected to run on inputs (float32[3]), got
TypeError: expected arrays with a leading axis of 2 rows, got (3,); give a row for each
row, or leave out `batched=True`
>>> compiled(number, jf.Function(lambda x: x[:2], batched=True))
TypeError: Pipe[1].Function(function): expected to run on inputs (float32[]), got
TypeError: expected arrays with a leading axis of 101 rows, got (2,); give a row for
each row, or leave out `batched=True`
>>> compiled(number, jf.Function(lambda x: x[:, None] + x, batched=True))
TypeError: Pipe[1].Function(function): expected to run on inputs (float32[]), got
TypeError: expected rows of one type for any number of rows, got float32[2] of 2,
float32[101] of 101; make each row of the same row of the inputs alone, or leave out
`batched=True`
>>> compiled(vector, lambda x: nnx.relu(dense(x)))
TypeError: Pipe[1].Function(function): expected to run on inputs (float32[3]), got
TypeError: expected a function that calls no module with parameters, got one that calls
the Linear `dense`, and nobody would train them: give the module itself,
`Function(dense)`, or write one that calls it; what is not to be trained, make by
`nnx.split`
>>> compiled(vector, nnx.jit(dense))
TypeError: Pipe[1].Function(JitWrapped): expected to run on inputs (float32[3]), got
TypeError: expected a function that calls no module with parameters, got one that calls
the Linear `module`, and nobody would train them: give the module itself,
`Function(module)`, or write one that calls it; what is not to be trained, make by
`nnx.split`
>>> compiled(vector, lambda x: nn.relu(unbound(x)))
TypeError: Pipe[1].Function(function): expected to run on inputs (float32[3]), got
CallCompactUnboundModuleError: …; give Function the module itself, as
`Function(Dense(3))`, or write a module that calls it
>>> compiled(vector, unbound.bind({'params': {}}))
TypeError: Pipe[1].Function(Dense): expected to run on inputs (float32[3]), got
TypeError: expected a Linen module without parameters, got a Dense bound to some, which
would be made anew: give the module as it was before `bind`, and `variables['params']`
as the layer's parameters
>>> Around().init(jax.random.key(0), [[1, 2, 3]])
TypeError: Pipe[1].Function(function): expected to run on inputs (float32[3]), got
TypeError: expected a function that calls no module with parameters, got one that calls
the Dense `inner`, and nobody would train them: give the module itself,
`Function(inner)`, or write one that calls it; what is not to be trained, make by
`nnx.split`
>>> compiled(number, nn.Dense(3))
TypeError: Pipe[1].Function(Dense): expected to run on inputs (float32[]), got
IndexError: tuple index out of range; give it a vector: write `Vector(n)`, with n=1 for
a number
>>> compiled(number, nnx.Linear(1, 3, rngs=nnx.Rngs(0)))
TypeError: Pipe[1].Function(Linear): expected to run on inputs (float32[]), got
TypeError: …; give it a vector: write `Vector(n)`, with n=1 for a number
>>> compiled(number, Misspelt())
TypeError: Pipe[1].Function(Misspelt): expected to run on inputs (float32[]), got
AttributeError: module 'jax.numpy' has no attribute 'tnah'
>>> compiled(number, nn.Embed(3, 2))
TypeError: Pipe[1].Function(Embed): expected to run on inputs (float32[]), got
ValueError: Input type must be an integer or unsigned integer.; make it an int: write
`Scalar('int32')`
>>> schedule = jf.compile(vector >> jf.Function(nn.Dense(3))).schedule([[1, 2, 3]])
... Within().init(jax.random.key(0), schedule)
ValueError: expected a schedule made by this model, got one of another: call
`model.schedule(examples)` of the model that is applied\nin `Fold`: expected a block
that is made once, got one of another schedule: make the block outside of methods, which
make another at each call, and schedules by `fold.model` of it
>>> fold = jf.nnx.Fold(vector >> jf.Function(dense), rngs=nnx.Rngs(0))
... fold.model.predict(nnx.state(fold), [[1, 2, 3]])
TypeError: expected parameters for layer 'Linear', got those of ['params']: pass
`variables['params']` of Linen, `fold.arrays` of NNX; `model.init(key)` makes them
>>> jf.layers.Bidirectional(jf.layers.GRU(3))
TypeError: expected `features` as int, got RNN(Function(gru), Zeros(float32[3])) (RNN):
write `Bidirectional(16, jf.layers.GRU)`
"""
