# SPDX-License-Identifier: Apache-2.0
"""jfold against the perfect batch: the same cells in one call, no structure at all.

    python benchmarks/core.py [--quick]

Everything in one run, contenders interleaved, medians; read the ratios. Schedules are
built beforehand and their time is printed beside.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from timing import interleaved, seconds
from trees import Workload, cell, comb, expression

import jfold as jf
from jfold.columns import trace
from jfold.layout import Capacity, Spec
from jfold.schedule import build

BIG = Workload(trees=64, leaves=128, hidden=256)
SMALL = Workload(trees=32, leaves=32, hidden=128)


def main() -> None:
    """Prints all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--quick', action='store_true', help='a fifth of the repeats')
    options = parser.parse_args()
    share = 5 if options.quick else 1
    print(f'jax {jax.__version__} on {jax.devices()[0].device_kind}; times in ms\n')
    for workload, repeats in ((BIG, 20), (SMALL, 100)):
        perfect_batch(workload, max(repeats // share, 4))
    growth(SMALL, max(60 // share, 10))
    host(Workload(trees=256, leaves=128, hidden=8), max(10 // share, 3))
    chains()


def losses(model: jf.Model) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Jitted forward pass, and loss with gradients."""

    def loss(params: Any, schedule: jf.Schedule) -> jax.Array:
        return model.apply(params, schedule).sum(-1).mean()

    return jax.jit(model.apply), jax.jit(jax.value_and_grad(loss))


def perfect_batch(workload: Workload, repeats: int) -> None:
    """Time of the perfect batch over time of `apply`."""
    model = jf.compile(expression(workload.hidden))
    params = model.init(jax.random.key(0))
    batches = workload.batches(repeats + 2)
    schedules = [model.schedule(batch) for batch in batches]
    building = sorted(s.seconds or 0.0 for s in schedules[2:])[repeats // 2]
    forward, training = losses(model)
    shape = (2, workload.cells, 2 * workload.hidden)
    rows = jax.random.uniform(jax.random.key(1), shape, minval=-1)

    def perfect(params: Any, rows: jax.Array) -> jax.Array:
        return jax.vmap(cell, (None, 0, 0))(params, rows[0], rows[1])

    ideal = jax.jit(perfect)
    ideal_training = jax.jit(
        jax.value_and_grad(lambda p, x: perfect(p, x).sum(), argnums=(0, 1))
    )
    compiling = [
        seconds(lambda f=f: f(params, schedules[0])) for f in (forward, training)
    ]
    times = interleaved(
        {
            'perfect': lambda i: ideal(params['cell'], rows),
            'forward': lambda i: forward(params, schedules[i]),
            'perfect training': lambda i: ideal_training(params['cell'], rows),
            'training': lambda i: training(params, schedules[i]),
        },
        repeats,
    )
    print(f'{workload}: {workload.nodes} nodes, {model.programs} program(s)')
    for name in ('forward', 'training'):
        best = times['perfect' if name == 'forward' else 'perfect training']
        print(
            f'  {name:9} {1e3 * times[name]:8.2f}  perfect batch {1e3 * best:8.2f}  '
            f'ratio {best / times[name]:.2f}'
        )
    print(
        f'  schedule  {1e3 * building:8.2f}  compile forward {compiling[0]:.1f} s, '
        f'training {compiling[1]:.1f} s\n'
    )


def growth(workload: Workload, repeats: int) -> None:
    """Time grows with nodes: twice the trees, and capacities twice too large."""
    model = jf.compile(expression(workload.hidden))
    params = model.init(jax.random.key(0))
    double = Workload(2 * workload.trees, workload.leaves, workload.hidden)
    single_batches, double_batches = (w.batches(4) for w in (workload, double))
    once = [model.schedule(batch) for batch in single_batches]
    twice = [model.schedule(batch) for batch in double_batches]
    wide = Spec(model.program, doubled(once[0].spec.capacity))
    graphs = [trace(model.program, batch) for batch in single_batches]
    roomy = [build(graph, wide) for graph in graphs]
    forward, training = losses(model)
    for name, run in (('forward', forward), ('training', training)):
        times = interleaved(
            {
                'once': lambda i, run=run: run(params, once[i % 4]),
                'twice': lambda i, run=run: run(params, twice[i % 4]),
                'roomy': lambda i, run=run: run(params, roomy[i % 4]),
            },
            repeats,
        )
        more, room = (times[key] / times['once'] for key in ('twice', 'roomy'))
        print(
            f'{name}, times the time: {more:.2f} with twice the trees, '
            f'{room:.2f} with twice the capacities'
        )
    print()


def doubled(capacity: Capacity) -> Capacity:
    """A capacity with twice the rows, constants and levels."""
    return dataclasses.replace(
        capacity,
        constants=tuple(2 * n for n in capacity.constants),
        rows=tuple(2 * n for n in capacity.rows),
        levels=2 * capacity.levels,
    )


def host(workload: Workload, repeats: int) -> None:
    """Nodes per second from nested tuples to a schedule."""
    model = jf.compile(expression(workload.hidden))
    batches = workload.batches(repeats + 1)
    built = [model.schedule(batch).seconds or 0.0 for batch in batches][1:]
    rate = workload.nodes / float(np.median(built))
    print(f'schedules of {workload}: {rate / 1e6:.2f} M nodes/s')


def chains() -> None:
    """Very deep, and very large, single examples."""
    rng = random.Random(0)
    model = jf.compile(expression(8))
    params = model.init(jax.random.key(0))
    forward = jax.jit(model.apply)
    for name, tree in (
        ('a chain of 100,000 cells', comb(100_001, rng)),
        ('a tree of 1,000,000 nodes', balanced(500_000, rng)),
    ):
        begin = time.perf_counter()
        schedule = model.schedule([tree])
        building = time.perf_counter() - begin
        forward(params, schedule)
        took = seconds(lambda schedule=schedule: forward(params, schedule))
        print(f'{name}: schedule {building:.2f} s, forward {took:.2f} s')


def balanced(leaves: int, rng: random.Random) -> Any:
    """A tree whose halves differ by one leaf at most."""
    level: list[Any] = [rng.randrange(128) for _ in range(leaves)]
    while len(level) > 1:
        pairs = list(zip(level[::2], level[1::2], strict=False))
        level = pairs + level[2 * len(pairs) :]
    return level[0]


if __name__ == '__main__':
    main()
