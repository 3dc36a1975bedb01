# SPDX-License-Identifier: Apache-2.0
"""Gradients of several models in one program, beside one after another.

    python benchmarks/ensemble.py [--quick] [--models 8]

The models are tree-LSTMs that differ in their parameters alone; all see one batch. One
program is made by `jax.vmap` over parameters, or by `jax.lax.map`. Beside the times
stands how many pages of memory a call was given by the system: what takes more than
32 MB is not kept from call to call.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from measuring import agree, begin, jax_parser, loss
from options import fill
from report import Report
from trees import Params, Workload, expression
from turns import Contenders, ratio_row, take_turns

import jfold as jf

APART = 'one after another'
SIZES = (8, 8, 16), (32, 32, 32), (32, 32, 128)


def measure(work: Workload, options: argparse.Namespace, report: Report) -> None:
    """Adds rows for a workload: both ways, and their ratio.

    Raises:
      Disagreement: they give other gradients.
    """
    model = jf.compile(expression(work.hidden), max_programs=64)
    batches = work.batches(options.repeats + 2)
    room = model.trace([tree for batch in batches for tree in batch])
    model.reserve(room.capacities(work.trees))
    schedules = [model.schedule(batch) for batch in batches]
    params = jax.vmap(model.init)(jax.random.split(jax.random.key(0), options.models))
    singles = [jax.tree.map(lambda x: x[k], params) for k in range(options.models)]  # noqa: B023
    gradient = jax.grad(partial(loss, model))
    one = jax.jit(gradient)
    ways = {
        'by vmap': jax.jit(jax.vmap(gradient, (0, None))),
        'by lax.map': jax.jit(lambda p, x: jax.lax.map(lambda q: gradient(q, x), p)),
    }
    for name, many in ways.items():
        together = many(params, schedules[0])
        for number, each in enumerate(singles):
            found = jax.tree.map(lambda x: x[number], together)  # noqa: B023
            agree(f'model {number} {name}', found, one(each, schedules[0]))
    run: Contenders = {
        APART: lambda k: [one(x, schedules[k]) for x in singles],
        **{n: partial(_run, many, params, schedules) for n, many in ways.items()},
    }
    times = take_turns(run, options.repeats, options.limit)
    for name, found in times.items():
        about = {'workload': str(work), 'models': options.models, 'contender': name}
        faults = page_faults(partial(run[name], 0))
        report.add(
            about | {'ms': found.ms, 'spread %': found.spread, 'page faults': faults}
        )
    for name in ways:
        ratios = times[name] / times[APART]
        report.add(ratio_row(f'{name} / {APART}, {work}', 'train', ratios))


def page_faults(call: Callable[[], Any]) -> int:
    """How many pages a call was given."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    jax.block_until_ready(call())
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def _run(many: Any, params: Params, schedules: list[jf.Schedule], k: int) -> Any:
    return many(params, schedules[k])


def main() -> None:
    """Measures, and prints tables."""
    parser = jax_parser(__doc__ or '')
    parser.add_argument('--models', type=int, help='in the ensemble (default 8)')
    options = fill(parser.parse_args(), {'models': 8}, {'models': 3})
    sizes = [(8, 8, 8)] if options.quick else SIZES
    report = begin('Ensemble', options)
    for size in sizes:
        measure(Workload(*size), options, report)
    report.note('Gradients of all models were equal.')
    report.close()


if __name__ == '__main__':
    main()
