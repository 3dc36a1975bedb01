# SPDX-License-Identifier: Apache-2.0
"""jfold against the perfect batch: the same cells in one call, no structure at all.

    python benchmarks/core.py [--quick]

A tree-LSTM on random binary trees; then how its time grows with trees and with
capacities; then single examples that are very deep or very large.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import random
from collections.abc import Iterator
from typing import Any

import jax
from measuring import MODES, begin, jax_parser, loss, set_up
from options import among, fill, say
from report import Row
from trees import Params, Workload, comb, expression, random_tree
from turns import clocked, ratio_row, seconds, take_turns

import jfold as jf
from jfold.data.scheduler import build
from jfold.scheduling.selections import select
from jfold.scheduling.spec import Capacity, Spec
from jfold.tracing.record import trace

WORKLOADS = {
    'big': Workload(trees=64, leaves=128, hidden=256),
    'small': Workload(trees=32, leaves=32, hidden=128),
    'tiny': Workload(trees=2, leaves=8, hidden=4),
}
POOL = 4  # batches that take turns


# ---- the perfect batch ---------------------------------------------------------------


def perfect(workload: Workload, options: argparse.Namespace) -> Iterator[Row]:
    """Forward and with gradients, beside the cells alone, side by side."""
    say(f'{workload}: compiling and checking')
    rng = random.Random(1)
    checks = [random_tree(7, rng) for _ in range(2)]
    setup = set_up(
        str(workload),
        expression(workload.hidden),
        workload.batches(POOL),
        checks,
        lambda _: 2 * workload.leaves - 1,
        names={'cell'},
    )
    say(f'{workload}: timing')
    times = take_turns(setup.contenders(), options.repeats, options.limit)
    for mode in MODES:
        yield setup.row(mode, times) | {'programs': setup.model.programs}


# ---- growth --------------------------------------------------------------------------


def growth(workload: Workload, options: argparse.Namespace) -> Iterator[Row]:
    """Time grows with nodes: twice the trees, and capacities twice too large."""
    say('twice the trees, twice the capacities')
    model = jf.compile(expression(workload.hidden))
    params = model.init(jax.random.key(0))
    double = dataclasses.replace(workload, trees=2 * workload.trees)
    once, twice = (
        list(map(model.schedule, w.batches(POOL))) for w in (workload, double)
    )
    wide = Spec(model.program, doubled(once[0].spec.capacity))
    graphs = [trace(model.program, batch) for batch in workload.batches(POOL)]
    roomy = [build([select(model.program, graph)], wide) for graph in graphs]
    contenders = {'once': once, 'trees': twice, 'capacities': roomy}
    gradients = jax.value_and_grad(functools.partial(loss, model))
    for mode, function in zip(MODES, (model.apply, gradients), strict=True):
        step = jax.jit(function)
        runs = {
            name: functools.partial(run, step, params, schedules)
            for name, schedules in contenders.items()
        }
        times = take_turns(runs, options.repeats, options.limit)
        for name in ('trees', 'capacities'):
            yield ratio_row(
                f'twice the {name} / once', mode, times[name] / times['once']
            )


def run(step: Any, params: Params, schedules: list[jf.Schedule], i: int) -> Any:
    """A step on one of some batches."""
    return step(params, schedules[i % POOL])


def doubled(capacity: Capacity) -> Capacity:
    """A capacity with twice the rows, constants and levels."""
    return dataclasses.replace(
        capacity,
        constants=tuple(2 * n for n in capacity.constants),
        rows=tuple(2 * n for n in capacity.rows),
        levels=2 * capacity.levels,
    )


# ---- single examples -----------------------------------------------------------------


def single(options: argparse.Namespace) -> Iterator[Row]:
    """Very deep, and very large, single examples."""
    rng = random.Random(0)
    model = jf.compile(expression(8))
    params = model.init(jax.random.key(0))
    forward = jax.jit(model.apply)
    for name, tree in (
        (f'a chain of {options.chain:,} cells', comb(options.chain + 1, rng)),
        (f'a tree of {options.tree:,} nodes', balanced(options.tree // 2, rng)),
    ):
        say(name)
        schedule, building = clocked(functools.partial(model.schedule, [tree]))
        call = functools.partial(forward, params, schedule)
        seconds(call)  # compiles
        yield {'example': name, 'schedule s': building, 'forward s': seconds(call)}


def balanced(leaves: int, rng: random.Random) -> Any:
    """A tree whose halves differ by one leaf at most."""
    level: list[Any] = [rng.randrange(128) for _ in range(leaves)]
    while len(level) > 1:
        pairs = list(zip(level[::2], level[1::2], strict=False))
        level = pairs + level[2 * len(pairs) :]
    return level[0]


# ---- command line --------------------------------------------------------------------

NOTE = (
    'schedule: from examples to indices; merge: from a corpus instead; device: with '
    'the schedule on the device; whole: from examples to results. perfect: the cell '
    'alone, once, on as many rows that lie side by side; share of perfect: its time '
    'over device, 1 if structure costs nothing. Every compiled step has given values, '
    'loss and gradients of the eager twin on small examples. Ratios are medians of '
    'rounds, with quartiles.'
)


def main() -> None:
    """Measures table by table; files are complete after each."""
    options = arguments()
    report = begin('The perfect batch', options)
    report.note(NOTE)
    workloads = [WORKLOADS[name] for name in options.workloads]
    tables = [perfect(workload, options) for workload in workloads]
    for rows in (*tables, growth(workloads[-1], options), single(options)):
        report.rows += rows
        report.write()
    report.close()


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = jax_parser(__doc__ or '')
    add = parser.add_argument
    add(
        '--workloads',
        type=among(WORKLOADS),
        default=['big', 'small'],
        help=', '.join(WORKLOADS),
    )
    add('--chain', type=int, help='cells of the deep example (default 100,000)')
    add('--tree', type=int, help='nodes of the large example (default 1,000,000)')
    full, quick = (
        {'chain': 100_000, 'tree': 1_000_000},
        {'chain': 10_000, 'tree': 100_000},
    )
    return fill(parser.parse_args(), full, quick)


if __name__ == '__main__':
    main()
