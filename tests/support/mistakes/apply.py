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
from mistakes.common import BY_INIT, OF_ANOTHER, Mistake, ValueMistake, linear, number
from mistakes.corpora import chosen

layered = jf.compile(number >> linear)
drawing = jf.compile(jf.Vector(3) >> jf.Function(nn.Dropout(0.5, deterministic=False)))


def schedule() -> jf.Schedule:
    return layered.schedule([1.0])


def params() -> Any:
    return layered.init(jax.random.key(0))


def over_budget() -> None:
    model = jf.compile(summed.block, max_programs=1)
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


def stacked(*schedules: jf.Schedule) -> Any:
    return jax.tree.map(lambda *x: jnp.stack(x), *schedules)


def stacked_of_two_batches() -> Any:
    model = jf.compile(summed.block)  # a new one, which has grown by nothing
    return stacked(model.schedule([[1]]), model.schedule([[1], [2]]))


def precompiled() -> jf.CompiledStep:
    return summed.precompile(summed.apply, {}, corpus().capacities(2))


NO_SCHEDULE = 'expected `schedule` as a schedule, got'
APPLY = ': call `model.apply(params, model.schedule(examples))`'
NO_GRADIENT = 'expected a gradient of layer'
OF_WHILE = (
    'got this error; use lax.scan or lax.fori_loop with fixed bounds, or give the '
    'function one by jax.custom_vjp'
)
NO_CAPACITY = (
    'expected a `Capacity` among the arguments, in place of the schedule, got none: '
    'call `model.precompile(step, params, corpus.capacities(batch_size))`'
)
UNLIKE = (
    'counted, save products), expected of all; use one `size`, and `Schedule.stack`\n'
)

MISTAKES: dict[str, Mistake] = {
    'several keys to draw parameters with': Mistake(
        lambda: layered.init(jax.random.split(jax.random.key(0), 3)),
        'expected `key` as a PRNG key, got an array of 3 keys: pass one, or take '
        '`jax.vmap` over them',
    ),
    'several keys to draw with': Mistake(
        lambda: dropped(jax.random.split(jax.random.PRNGKey(0), 3)),
        'expected `rngs` as a PRNG key, or a dict of keys, got an array of 3 keys: '
        'pass one, or take `jax.vmap` over them',
    ),
    'several keys for a stream': Mistake(
        lambda: dropped({'dropout': jax.random.split(jax.random.key(0), 3)}),
        'expected `rngs` as a PRNG key, or a dict of keys, got an array of 3 keys: '
        'pass one, or take `jax.vmap` over them',
    ),
    'a schedule for another process': Mistake(
        lambda: pickle.dumps(schedule()),
        'expected something that another process can use, got a `Schedule`, which is '
        'compiled for this one: give it what `model.tracer()(examples)` makes, for '
        '`model.schedule` there',
    ),
    'a model for another process': Mistake(
        lambda: pickle.dumps(layered),
        'expected something that another process can use, got a `Model`, which is '
        'compiled for this one: write it by `jf.save(path, model, params)`, or pickle '
        '`model.tracer()`',
    ),
    'a layer without parameters': Mistake(
        lambda: layered.apply({}, schedule()),
        f"expected parameters for layer 'linear', got those of []{BY_INIT}",
    ),
    'parameters of another width': Mistake(
        lambda: layered.apply({'linear': jnp.ones(3)}, schedule()),
        f"expected parameters of layer 'linear' as float32[2], got float32[3]{BY_INIT}",
    ),
    'None for a layer': Mistake(
        lambda: layered.apply({'linear': None}, schedule()),
        f"expected parameters of layer 'linear' at (), got none{BY_INIT}",
    ),
    'examples for a schedule': Mistake(
        lambda: layered.apply(params(), [1.0]), f'{NO_SCHEDULE} list{APPLY}'
    ),
    'a batch for a schedule': Mistake(
        lambda: summed.apply({}, next(batches(prefetch=0))),
        f'{NO_SCHEDULE} Batch{APPLY}',
    ),
    'a corpus for a schedule': Mistake(
        lambda: summed.apply({}, corpus()), f'{NO_SCHEDULE} Corpus{APPLY}'
    ),
    'arguments in the other order': Mistake(
        lambda: layered.apply(schedule(), params()), f'{NO_SCHEDULE} dict{APPLY}'
    ),
    'the schedule of another model': ValueMistake(
        lambda: summed.apply({}, schedule()), OF_ANOTHER
    ),
    'another schedule under jit': ValueMistake(
        lambda: jax.jit(summed.apply)({}, schedule()), OF_ANOTHER
    ),
    'another width under grad': Mistake(
        lambda: jax.grad(lambda p: layered.apply(p, schedule()).sum())(
            {'linear': jnp.ones(3)}
        ),
        f"expected parameters of layer 'linear' as float32[2], got float32[3]{BY_INIT}",
    ),
    'no key for init': Mistake(
        lambda: layered.init(None),
        'expected `key` as a PRNG key, got None: pass `jax.random.key(0)`',
    ),
    'a seed for a key': Mistake(
        lambda: layered.init(0),
        'expected `key` as a PRNG key, got 0: pass `jax.random.key(0)`',
    ),
    'the gradient of a while loop': ValueMistake(
        lambda: gradient_of(lambda w, x: halved(w * x), 'halved'),
        f"…\n{NO_GRADIENT} 'halved', {OF_WHILE}",
    ),
    'the gradient of a while loop of parameters alone': ValueMistake(
        lambda: gradient_of(lambda w, x: halved(w) * x, 'scaled'),
        f"…\n{NO_GRADIENT} 'scaled', {OF_WHILE}",
    ),
    'a reverse rule that fails': Mistake(
        lambda: gradient_of(lambda w, x: pulled(w * x), 'pulled'),
        f"…\n{NO_GRADIENT} 'pulled', got this error",
    ),
    'one program too many': Mistake(
        over_budget,
        'expected batches for at most 1 programs, as `max_programs` says, got a batch '
        'of 2 examples, which needs program 2; no batch had 2 examples before. Give '
        'batches of one size and similar content, which share programs; or raise '
        '`jfold.compile(..., max_programs=...)`',
        error=jf.ProgramBudgetError,
    ),
    'schedules that do not stack': ValueMistake(
        stacked_of_two_batches,
        f'…\n    shape … (examples: 1, nodes: 0, operations: 1, {UNLIKE}but…\n    '
        f'shape … (examples: 2, nodes: 0, operations: 1, {UNLIKE}so…',
    ),
    'stacked schedules for one': ValueMistake(
        lambda: summed.apply({}, jf.Schedule.stack(summed.schedules([[[1]]] * 3))),
        'expected `schedule` as that of one batch, got [3] of them stacked: take one '
        'after another by `jax.lax.scan`, or all at once by `jax.vmap`',
    ),
    'schedules of two models stacked': ValueMistake(
        lambda: stacked(summed.schedule([[1]]), schedule()),
        f'…\n    shape … (examples: 1, nodes: 0, operations: 1, {UNLIKE}but…\n    '
        f'shape … (examples: 1, nodes: 128, operations: 1, {UNLIKE}so…',
    ),
    'precompile without a capacity': Mistake(
        lambda: summed.precompile(summed.apply, {}), NO_CAPACITY
    ),
    'precompile of a schedule': Mistake(
        lambda: summed.precompile(summed.apply, {}, chosen([0])), NO_CAPACITY
    ),
    'precompile with a bool that decides what is compiled': Mistake(
        lambda: drawing.precompile(
            drawing.apply,
            {},
            drawing.trace([[1, 2, 3]]).capacities(1),
            deterministic=True,
        ),
        'expected `deterministic` as a bool, not traced, got …: pass '
        '`functools.partial(model.apply, deterministic=True)`',
    ),
    'the capacity of another model': ValueMistake(
        lambda: other.precompile(other.apply, {}, corpus().capacities(2)),
        'expected a `Capacity` of this model, with numbers of types, operations and '
        'metrics [1, 0, 0], got [1, 1, 0]: take it from a corpus that `model.trace` '
        'returns',
    ),
    'a step of another size': ValueMistake(
        lambda: precompiled()({}, chosen([0])),
        'expected a schedule of 2 rows of results, for which the step was compiled, '
        'got one of 1: make it with `size=2`',
    ),
    'a step of another model': ValueMistake(
        lambda: precompiled()({}, other.schedule([[1, 2, 3]] * 2)),
        'expected `schedule` of the model that compiled the step, got one of another: '
        'make it by the first',
    ),
    'eval without parameters': Mistake(
        lambda: layered.eval(3),
        f"expected parameters for layer 'linear', got those of []{BY_INIT}",
    ),
}
