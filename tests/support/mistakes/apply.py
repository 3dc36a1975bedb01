# SPDX-License-Identifier: Apache-2.0
"""Mistakes with parameters, schedules, gradients and steps compiled ahead of time."""

from __future__ import annotations

import pickle
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

import jfold as jf
from mistakes.batches import batches, corpus, other, summed
from mistakes.common import linear, number
from mistakes.corpora import chosen

layered = jf.compile(number >> linear)
drawing = jf.compile(jf.Vector(3) >> jf.Function(nn.Dropout(0.5, deterministic=False)))


def schedule() -> jf.Schedule:
    return layered.schedule([1.0])


def params() -> Any:
    return layered.init(jax.random.key(0))


def dropped(rngs: Any) -> Any:
    model = jf.compile(jf.Vector(3) >> jf.Function(nn.Dropout(0.5)))
    return model.apply({}, model.schedule([[1, 2, 3]]), rngs=rngs)


def halved(x: Any) -> Any:
    return lax.while_loop(lambda y: y > 1, lambda y: y / 2, x)


pulled = jax.custom_vjp(lambda x: x)
pulled.defvjp(lambda x: (x, None), lambda _, ct: (jnp.ones(2) @ jnp.ones(3),))


def gradient_of(fn: Any, name: str) -> Any:
    layer = jf.Function(fn, init=lambda key, x: jnp.ones(()), name=name)
    model = jf.compile(number >> layer)
    given = model.schedule([3.0])
    start = model.init(jax.random.key(0))
    return jax.grad(lambda p: model.apply(p, given).sum())(start)


def callback(x: Any) -> Any:
    return jax.pure_callback(lambda x: x, x, x)


called_back = jf.compile(number >> jf.Function(callback))


def stacked(*schedules: jf.Schedule) -> Any:
    return jax.tree.map(lambda *x: jnp.stack(x), *schedules)


def precompiled() -> jf.CompiledStep:
    return summed.precompile(summed.apply, {}, corpus().capacities(2))


TABLE = r"""
>>> layered.init(jax.random.split(jax.random.key(0), 3))
TypeError: expected `key` as a PRNG key, got an array of 3 keys: pass one, or take
`jax.vmap` over them
>>> dropped(jax.random.PRNGKey(0, impl='rbg'))
TypeError: expected `rngs` as a PRNG key, or a dict of keys, got one of 4 numbers, not
2: pass `jax.random.key(0, impl='rbg')`, which tells its implementation
>>> dropped(jax.random.split(jax.random.PRNGKey(0), 3))
TypeError: expected `rngs` as a PRNG key, or a dict of keys, got an array of 3 keys:
pass one, or take `jax.vmap` over them
>>> dropped({'dropout': jax.random.split(jax.random.key(0), 3)})
TypeError: expected `rngs` as a PRNG key, or a dict of keys, got an array of 3 keys:
pass one, or take `jax.vmap` over them
>>> pickle.dumps(schedule())
TypeError: expected something that another process can use, got a `Schedule`, which is
compiled for this one: give it what `model.tracer()(examples)` makes, for
`model.schedule` there
>>> pickle.dumps(layered)
TypeError: expected something that another process can use, got a `Model`, which is
compiled for this one: write it by `jf.save(path, model, params)`, or pickle
`model.tracer()`
>>> layered.apply({}, schedule())
TypeError: expected parameters for layer 'linear', got those of []; `model.init(key)`
makes them
>>> layered.apply({'linear': jnp.ones(3)}, schedule())
TypeError: expected parameters of layer 'linear' as float32[2], got float32[3];
`model.init(key)` makes them
>>> layered.apply({'linear': None}, schedule())
TypeError: expected parameters of layer 'linear' at (), got none; `model.init(key)`
makes them
>>> layered.apply(params(), [1.0])
TypeError: expected `schedule` as a schedule, got list: call `model.apply(params,
model.schedule(examples))`
>>> summed.apply({}, next(batches(prefetch=0)))
TypeError: expected `schedule` as a schedule, got Batch: call `model.apply(params,
model.schedule(examples))`
>>> summed.apply({}, corpus())
TypeError: expected `schedule` as a schedule, got Corpus: call `model.apply(params,
model.schedule(examples))`
>>> layered.apply(schedule(), params())
TypeError: expected `schedule` as a schedule, got dict: call `model.apply(params,
model.schedule(examples))`
>>> summed.apply({}, schedule())
ValueError: expected a schedule made by this model, got one of another: call
`model.schedule(examples)` of the model that is applied
>>> jax.jit(summed.apply)({}, schedule())
ValueError: expected a schedule made by this model, got one of another: call
`model.schedule(examples)` of the model that is applied
>>> jax.jit(summed.explain)(schedule())
TypeError: expected a schedule with known values, got a traced one: call this outside of
`jax.jit`
>>> jf.draw(jax.eval_shape(lambda: schedule()))
TypeError: expected a schedule with known values, got shapes alone: call this outside of
`jax.jit`
>>> jax.grad(lambda p: layered.apply(p, schedule()).sum())({'linear': jnp.ones(3)})
TypeError: expected parameters of layer 'linear' as float32[2], got float32[3];
`model.init(key)` makes them
>>> layered.init(None)
TypeError: expected `key` as a PRNG key, got None: pass `jax.random.key(0)`
>>> layered.init(0)
TypeError: expected `key` as a PRNG key, got 0: pass `jax.random.key(0)`
>>> gradient_of(lambda w, x: halved(w * x), 'halved')
ValueError: …\nexpected a gradient of layer 'halved', got this error; use lax.scan or
lax.fori_loop with fixed bounds, or give the function one by jax.custom_vjp
>>> gradient_of(lambda w, x: halved(w) * x, 'scaled')
ValueError: …\nexpected a gradient of layer 'scaled', got this error; use lax.scan or
lax.fori_loop with fixed bounds, or give the function one by jax.custom_vjp
>>> gradient_of(lambda w, x: pulled(w * x), 'pulled')
TypeError: …\nexpected a gradient of layer 'pulled', got this error
>>> called_back.apply({}, called_back.schedule([1.0]))
NotImplementedError: …\nexpected a function in layer 'callback' that `jax.vmap` runs on
many rows at once, got this error; give a callback `vmap_method=`
>>> model = jf.compile(summed.block, max_programs=1)
... model.schedule([[1]])
... model.schedule([[1], [2]])
ProgramBudgetError: expected batches for at most 1 programs, as `max_programs` says, got
a batch of 2 examples, which needs program 2; no batch had 2 examples before. Give
batches of one size and similar content, which share programs; or raise
`jfold.compile(..., max_programs=...)`
>>> model = jf.compile(summed.block)  # a new one, which has grown by nothing
... stacked(model.schedule([[1]]), model.schedule([[1], [2]]))
ValueError: …\n    shape … (examples: 1, nodes: 0, operations: 1, counted, save
products), expected of all; use one `size`, and `Schedule.stack`\nbut…\n    shape …
(examples: 2, nodes: 0, operations: 1, counted, save products), expected of all; use one
`size`, and `Schedule.stack`\nso…
>>> summed.apply({}, jf.Schedule.stack(summed.schedules([[[1]]] * 3)))
ValueError: expected `schedule` as that of one batch, got [3] of them stacked: take one
after another by `jax.lax.scan`, or all at once by `jax.vmap`
>>> stacked(summed.schedule([[1]]), schedule())
ValueError: …\n    shape … (examples: 1, nodes: 0, operations: 1, counted, save
products), expected of all; use one `size`, and `Schedule.stack`\nbut…\n    shape …
(examples: 1, nodes: 128, operations: 1, counted, save products), expected of all; use
one `size`, and `Schedule.stack`\nso…
>>> summed.precompile(summed.apply, {})
TypeError: expected a `Capacity` among the arguments, in place of the schedule, got
none: call `model.precompile(step, params, corpus.capacities(batch_size))`
>>> summed.precompile(summed.apply, {}, chosen([0]))
TypeError: expected a `Capacity` among the arguments, in place of the schedule, got
none: call `model.precompile(step, params, corpus.capacities(batch_size))`
>>> capacity = drawing.trace([[1, 2, 3]]).capacities(1)
... drawing.precompile(drawing.apply, {}, capacity, deterministic=True)
TypeError: expected `deterministic` as a bool, not traced, got …: pass
`functools.partial(model.apply, deterministic=True)`
>>> other.precompile(other.apply, {}, corpus().capacities(2))
ValueError: expected a `Capacity` of this model, with numbers of types, operations and
metrics [1, 0, 0], got [1, 1, 0]: take it from a corpus that `model.trace` returns
>>> precompiled()({}, chosen([0]))
ValueError: expected a schedule of 2 rows of results, for which the step was compiled,
got one of 1: make it with `size=2`
>>> precompiled()({}, other.schedule([[1, 2, 3]] * 2))
ValueError: expected `schedule` of the program that the step was compiled for, got one
of another: make it by the model that compiled the step; if its program has grown since,
precompile again
>>> layered.eval(3)
TypeError: expected parameters for layer 'linear', got those of []; `model.init(key)`
makes them
"""
