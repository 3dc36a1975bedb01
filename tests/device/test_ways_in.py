# SPDX-License-Identifier: Apache-2.0
"""The ways in which a program gets its schedule, which must not matter.

One that `jax.jit` closes over is a constant of the program, so that XLA knows how often
every loop runs; see `device.xla.loop_after`.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import close
from binary_trees import binary
from jax.sharding import AxisType
from looped import compiled
from meshes import over_devices
from ways_in import WAYS

import jfold as jf
from jfold.scheduling.spec import RESIDUALS, STRATEGIES


def _init(key: Any, *_: Any) -> Any:
    return jax.random.normal(key, (3, 3)) / 2


def _cell(weight: Any, left: Any, right: Any) -> Any:
    return jnp.tanh(weight @ (left + 2 * right))


def _trees() -> tuple[jf.Block, list[list[Any]]]:
    """A product at each node; operations of no node, of one and of several."""
    leaf = jf.InputTransform(lambda n: [n / 9] * 3) >> jf.Vector(3)
    layer = jf.Function(lambda w, x: x @ w, _init, name='layer')
    cell = jf.Function(_cell, _init, name='cell')
    wide = (((1, 2), (3, 4)), ((5, 6), (7, 8)))
    return binary(leaf >> layer, cell), [[(1, 2)], [3], [wide, (1, (2, 3)), 4]]


def _sums() -> tuple[jf.Block, list[list[Any]]]:
    """Values with many uses, whose cotangents are added up."""
    layer = jf.Function(lambda w, x: jnp.tanh(w @ jnp.full(3, x)), _init, name='layer')
    cell = jf.Function(_cell, _init, name='cell')
    block = jf.Composition(name='used')
    with block.scope():
        first = jf.GetItem(0).reads(block.input)
        one = (jf.Scalar() >> layer).reads(first)
        rest = (jf.GetItem(1) >> jf.Map(jf.Scalar() >> layer)).reads(block.input)
        pairs = jf.Zip().reads(rest, jf.Broadcast().reads(one))
        each = jf.Map(cell).reads(pairs)
        block.output.reads(jf.Fold(cell, np.ones(3, 'float32')).reads(each))
    return block, [[(1.0, [0.5])], [(2.0, [])], [(0.5, [0.1] * 9), (0.3, [0.2] * 30)]]


def _chains() -> tuple[jf.Block, list[list[Any]]]:
    """Level after level of one node."""
    vector = jf.InputTransform(lambda n: [n / 9] * 3) >> jf.Vector(3)
    cell = jf.Function(_cell, _init, name='cell')
    block = jf.Map(vector) >> jf.Fold(cell, np.ones(3, 'float32'))
    return block, [[[1]], [[], [2]], [[1, 2, 3, 4, 5], [6]]]


def _lists() -> tuple[jf.Block, list[list[Any]]]:
    """Nothing that runs on its own results."""
    layer = jf.Function(lambda w, x: jnp.tanh(w @ jnp.full(3, x)), _init, name='layer')
    return jf.Map(jf.Scalar() >> layer) >> jf.Sum(), [
        [[1.0]],
        [[]],
        [[1.0, 2.0], [3.0]],
    ]


BLOCKS = {'trees': _trees, 'sums': _sums, 'chains': _chains, 'lists': _lists}


DEFAULTS = {'residuals': RESIDUALS[0], 'strategy': None}


def check(name: str, way: str, where: Any = None, **options: str) -> None:
    """Values and gradients of three batches are those of the eager twin."""
    block, batches = BLOCKS[name]()
    model = compiled(block, **{**DEFAULTS, **options})
    params = model.init(jax.random.key(1))

    def twin(params: Any, batch: Any) -> Any:
        return sum((model.eval(x, params) ** 3).sum() for x in batch)

    def loss(params: Any, schedule: jf.Schedule) -> Any:
        rows = (model.apply(params, schedule) ** 3).sum(1)
        return jnp.where(schedule.mask, rows, 0).sum()

    if where is None:
        schedules = model.schedules(batches, size=4)
    else:
        schedules = [model.schedule(x, size=4, sharding=where) for x in batches]
    twins = [functools.partial(twin, batch=x) for x in batches]
    want = [interpreter.called(jax.value_and_grad(f), params) for f in twins]
    got = WAYS[way](jax.value_and_grad(loss), params, schedules, jax.jit)
    close(got, want, 1e-4)


PAIRS = list(itertools.product(RESIDUALS, STRATEGIES))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ('name', 'options'),
    [*zip(BLOCKS, PAIRS, strict=True), *zip(BLOCKS, PAIRS[::-1], strict=True)],
)
def test_schedules_that_are_closed_over(name: str, options: tuple[str, str]) -> None:
    """Both strategies of loops, and both policies of what is stored, take turns."""
    residuals, strategy = options
    check(name, 'closed over', residuals=residuals, strategy=strategy)


@pytest.mark.sampled(1)
@pytest.mark.parametrize('residuals', RESIDUALS)
def test_schedules_without_loops_that_are_closed_over(residuals: str) -> None:
    check('lists', 'closed over', residuals=residuals)


def test_schedules_of_shards_that_are_closed_over() -> None:
    """Each device has loops of its own."""
    check('trees', 'closed over', over_devices(2, AxisType.Explicit))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ('way', 'name'),
    [
        *((way, 'trees') for way in WAYS),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in zip(WAYS, itertools.cycle(['lists', 'chains', 'sums']))
        ),
    ],
)
def test_every_way_in(way: str, name: str) -> None:
    """As an argument, donated, from a file, and one of several; models take turns."""
    check(name, way)
