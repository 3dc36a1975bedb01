# SPDX-License-Identifier: Apache-2.0
"""Mistakes with parameters, schedules and gradients."""

from __future__ import annotations

import pickle
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

import jfold as jf
from mistakes.batches import batches, corpus, summed
from mistakes.common import Mistake, linear, number, numbers

layered = jf.compile(number >> linear)


def schedule() -> jf.Schedule:
    return layered.schedule([1.0])


def params() -> Any:
    return layered.init(jax.random.key(0))


def over_budget() -> None:
    model = jf.compile(numbers >> jf.Reduce(jnp.add), max_programs=1)
    model.schedule([[1]])
    model.schedule([[1], [2]])


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


def stacked() -> Any:
    model = jf.compile(
        numbers >> jf.Reduce(jnp.add)
    )  # a new one, which has grown by nothing
    pair = model.schedule([[1]]), model.schedule([[1], [2]])
    return jax.tree.map(lambda *x: jnp.stack(x), *pair)


def stacked_of_two_models() -> Any:
    pair = summed.schedule([[1]]), schedule()
    return jax.tree.map(lambda *x: jnp.stack(x), *pair)


MISTAKES = [
    Mistake(
        'several keys to draw parameters with',
        lambda: layered.init(jax.random.split(jax.random.key(0), 3)),
        'expected `key` as a PRNG key, got an array of 3 keys: pass one, or '
        'take `jax.vmap` over them',
    ),
    Mistake(
        'several keys to draw with',
        lambda: dropped(jax.random.split(jax.random.PRNGKey(0), 3)),
        'expected `rngs` as a PRNG key, or a dict of keys, got an array of 3 '
        'keys: pass one, or take `jax.vmap` over them',
    ),
    Mistake(
        'several keys for a stream',
        lambda: dropped({'dropout': jax.random.split(jax.random.key(0), 3)}),
        'expected `rngs` as a PRNG key, or a dict of keys, got an array of 3 '
        'keys: pass one, or take `jax.vmap` over them',
    ),
    Mistake(
        'a schedule for another process',
        lambda: pickle.dumps(schedule()),
        'expected something that another process can use, got a `Schedule`, which is '
        'compiled for this one: give it what `model.tracer()(examples)` makes, for '
        '`model.schedule` there',
    ),
    Mistake(
        'a model for another process',
        lambda: pickle.dumps(layered),
        'expected something that another process can use, got a `Model`, which is '
        'compiled for this one: write it by `jf.save(path, model, params)`, or pickle '
        '`model.tracer()`',
    ),
    Mistake(
        'a layer without parameters',
        lambda: layered.apply({}, schedule()),
        "expected parameters for layer 'linear', got those of []; "
        '`model.init(key)` makes them',
        lacks='do',
    ),
    Mistake(
        'parameters of another width',
        lambda: layered.apply({'linear': jnp.ones(3)}, schedule()),
        "expected parameters of layer 'linear' as float32[2], got float32[3]; "
        '`model.init(key)` makes them',
        lacks='do',
    ),
    Mistake(
        'None for a layer',
        lambda: layered.apply({'linear': None}, schedule()),
        "expected parameters of layer 'linear' at (), got none; "
        '`model.init(key)` makes them',
        lacks='do',
    ),
    Mistake(
        'examples for a schedule',
        lambda: layered.apply(params(), [1.0]),
        'expected `schedule` as a schedule, got list: call '
        '`model.apply(params, model.schedule(examples))`',
    ),
    Mistake(
        'a batch for a schedule',
        lambda: summed.apply({}, next(batches(prefetch=0))),
        'expected `schedule` as a schedule, got Batch: call '
        '`model.apply(params, model.schedule(examples))`',
    ),
    Mistake(
        'a corpus for a schedule',
        lambda: summed.apply({}, corpus()),
        'expected `schedule` as a schedule, got Corpus: call '
        '`model.apply(params, model.schedule(examples))`',
    ),
    Mistake(
        'arguments in the other order',
        lambda: layered.apply(schedule(), params()),
        'expected `schedule` as a schedule, got dict: call '
        '`model.apply(params, model.schedule(examples))`',
    ),
    Mistake(
        'the schedule of another model',
        lambda: summed.apply({}, schedule()),
        'expected a schedule made by this model, got one of another: call '
        '`model.schedule(examples)` of the model that is applied',
        error=ValueError,
        lacks='where',
    ),
    Mistake(
        'another schedule under jit',
        lambda: jax.jit(summed.apply)({}, schedule()),
        'expected a schedule made by this model, got one of another: call '
        '`model.schedule(examples)` of the model that is applied',
        error=ValueError,
        lacks='where',
    ),
    Mistake(
        'another width under grad',
        lambda: jax.grad(lambda p: layered.apply(p, schedule()).sum())(
            {'linear': jnp.ones(3)}
        ),
        "expected parameters of layer 'linear' as float32[2], got float32[3]; "
        '`model.init(key)` makes them',
        lacks='do',
    ),
    Mistake(
        'no key for init',
        lambda: layered.init(None),
        'expected `key` as a PRNG key, got None: pass `jax.random.key(0)`',
    ),
    Mistake(
        'a seed for a key',
        lambda: layered.init(0),
        'expected `key` as a PRNG key, got 0: pass `jax.random.key(0)`',
    ),
    Mistake(
        'the gradient of a while loop',
        lambda: gradient_of(lambda w, x: halved(w * x), 'halved'),
        '…\n'
        "expected a gradient of layer 'halved', got this error; use lax.scan "
        'or lax.fori_loop with fixed bounds, or give the function one by '
        'jax.custom_vjp',
        error=ValueError,
    ),
    Mistake(
        'the gradient of a while loop of parameters alone',
        lambda: gradient_of(lambda w, x: halved(w) * x, 'scaled'),
        '…\n'
        "expected a gradient of layer 'scaled', got this error; use lax.scan "
        'or lax.fori_loop with fixed bounds, or give the function one by '
        'jax.custom_vjp',
        error=ValueError,
    ),
    Mistake(
        'a reverse rule that fails',
        lambda: gradient_of(lambda w, x: pulled(w * x), 'pulled'),
        "…\nexpected a gradient of layer 'pulled', got this error",
        lacks='do',
    ),
    Mistake(
        'one program too many',
        over_budget,
        'expected batches for at most 1 programs, as `max_programs` says, got '
        'a batch of 2 examples, which needs program 2; no batch had 2 examples '
        'before. Give batches of one size and similar content, which share '
        'programs; or raise `jfold.compile(..., max_programs=...)`',
        error=jf.ProgramBudgetError,
    ),
    Mistake(
        'schedules that do not stack',
        stacked,
        '…\n    shape … (examples: 1, nodes: 0, operations: 1, '
        'counted, save products), expected of all; use one `size`, and '
        '`Schedule.stack`\nbut…'
        '\n    shape … (examples: 2, nodes: 0, operations: 1, '
        'counted, save products), expected of all; use one `size`, and '
        '`Schedule.stack`\nso…',
        error=ValueError,
        lacks='got',
    ),
    Mistake(
        'stacked schedules for one',
        lambda: summed.apply({}, jf.Schedule.stack(summed.schedules([[[1]]] * 3))),
        'expected `schedule` as that of one batch, got [3] of them stacked: take one '
        'after another by `jax.lax.scan`, or all at once by `jax.vmap`',
        error=ValueError,
    ),
    Mistake(
        'schedules of two models stacked',
        stacked_of_two_models,
        '…\n    shape … (examples: 1, nodes: 0, operations: 1, '
        'counted, save products), expected of all; use one `size`, and '
        '`Schedule.stack`\nbut…'
        '\n    shape … (examples: 1, nodes: 128, operations: 1, '
        'counted, save products), expected of all; use one `size`, and '
        '`Schedule.stack`\nso…',
        error=ValueError,
        lacks='got',
    ),
]
