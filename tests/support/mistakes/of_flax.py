# SPDX-License-Identifier: Apache-2.0
"""Mistakes with modules of Flax: what they are given, and where they stand."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
from flax import nnx

import jfold as jf
from mistakes.common import Mistake, compiled, number, vector


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

MISTAKES = [
    Mistake(
        'a function that calls a module of NNX',
        lambda: compiled(vector, lambda x: nnx.relu(dense(x))),
        'Pipe[1].Function(function): expected to run on inputs (float32[3]), got '
        'TypeError: expected a function that calls no module with parameters, got one '
        'that calls the Linear `dense`, and nobody would train them: give the module '
        'itself, `Function(dense)`, or write one that calls it; what is not to be '
        'trained, make by `nnx.split`',
    ),
    Mistake(
        'a function that calls a module of Linen',
        lambda: compiled(vector, lambda x: nn.relu(unbound(x))),
        'Pipe[1].Function(function): expected to run on inputs (float32[3]), got '
        'CallCompactUnboundModuleError: …; give Function the module itself, as '
        '`Function(Dense(3))`, or write a module that calls it',
    ),
    Mistake(
        'a function that calls a part of a module around it',
        lambda: Around().init(jax.random.key(0), [[1, 2, 3]]),
        'Pipe[1].Function(function): expected to run on inputs (float32[3]), got '
        'TypeError: expected a function that calls no module with parameters, got one '
        'that calls the Dense `inner`, and nobody would train them: give the module '
        'itself, `Function(inner)`, or write one that calls it; what is not to be '
        'trained, make by `nnx.split`',
    ),
    Mistake(
        'a number for a layer of Linen',
        lambda: compiled(number, nn.Dense(3)),
        'Pipe[1].Function(Dense): expected to run on inputs (float32[]), got '
        'IndexError: tuple index out of range; give it a vector: write `Vector(n)`, '
        'with n=1 for a number',
    ),
    Mistake(
        'a number for a layer of NNX',
        lambda: compiled(number, nnx.Linear(1, 3, rngs=nnx.Rngs(0))),
        'Pipe[1].Function(Linear): expected to run on inputs (float32[]), got '
        'TypeError: …; give it a vector: write `Vector(n)`, with n=1 for a number',
    ),
    Mistake(
        'a float for an embedding',
        lambda: compiled(number, nn.Embed(3, 2)),
        'Pipe[1].Function(Embed): expected to run on inputs (float32[]), got '
        'ValueError: Input type must be an integer or unsigned integer.; make it an '
        "int: write `Scalar('int32')`",
    ),
    Mistake(
        'a block made in a method of a module',
        within,
        'expected a schedule made by this model, got one of another: call '
        '`model.schedule(examples)` of the model that is applied\nin `Fold`: expected '
        'a block that is made once, got one of another schedule: make the block '
        'outside of methods, which make another at each call, and schedules by '
        '`fold.model` of it',
        error=ValueError,
    ),
    Mistake(
        'the state of a fold of NNX for parameters',
        params_of_nnx,
        "expected parameters for layer 'Linear', got those of ['params']: pass "
        "`variables['params']` of Linen, `fold.arrays` of NNX; `model.init(key)` makes "
        'them',
    ),
    Mistake(
        'layers in both directions, without a size',
        lambda: jf.layers.Bidirectional(jf.layers.GRU(3)),
        'expected `features` as int, got RNN(Function(gru), Zeros(float32[3])) (RNN): '
        'write `Bidirectional(16, jf.layers.GRU)`',
    ),
]
