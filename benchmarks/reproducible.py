# SPDX-License-Identifier: Apache-2.0
"""What sums in a fixed order cost: `reproducible=True` beside the same model without.

    python benchmarks/reproducible.py [--quick] [--strategy counted]

Trees, each of random shape; combs, whose levels are narrow, as of one recurrent
network; and rounds of messages, which run outside of loops. Results of one example
alone and in company are compared to the bit.
"""

from __future__ import annotations

import argparse
import random
from functools import partial
from typing import Any

import jax
import molecules
import numpy as np
from measuring import agree, begin, jax_parser, loss
from options import fill
from report import Report
from trees import Params, Workload, comb, expression
from turns import ratio_row, take_turns

import jfold as jf

FASTEST, FIXED = 'as fast as may be', 'reproducible'
SIZES = (32, 32, 64), (32, 32, 128), (256, 32, 128), (32, 32, 256), (1, 32, 128)
COMBS = Workload(32, 32, 128)


def measure(
    name: str,
    block: jf.Block,
    batches: list[list[Any]],
    options: argparse.Namespace,
    report: Report,
) -> None:
    """Adds rows for batches: forward and training, with and without.

    Raises:
      Disagreement: the two give other gradients.
      AssertionError: an example alone gives something else than in company.
    """
    models = {
        kind: jf.compile(block, strategy=options.strategy, reproducible=kind == FIXED)
        for kind in (FASTEST, FIXED)
    }
    params = models[FIXED].init(jax.random.key(0))
    schedules = {kind: _schedules(model, batches) for kind, model in models.items()}
    first = models[FIXED].schedule(batches[0][:1])
    alone = models[FIXED].apply(params, first)
    together = models[FIXED].apply(params, schedules[FIXED][0])
    assert np.asarray(alone)[0].tobytes() == np.asarray(together)[0].tobytes()
    steps = {
        'infer': {k: jax.jit(model.apply) for k, model in models.items()},
        'train': {k: jax.jit(jax.grad(partial(loss, x))) for k, x in models.items()},
    }
    agree(name, *(step(params, schedules[k][0]) for k, step in steps['train'].items()))
    for mode, of_kinds in steps.items():
        run = {
            kind: partial(_run, step, params, schedules[kind])
            for kind, step in of_kinds.items()
        }
        times = take_turns(run, options.repeats, options.limit)
        ratios = times[FIXED] / times[FASTEST]
        ms = {kind: found.ms for kind, found in times.items()}
        report.add(ratio_row(name, mode, ratios) | ms)
    report.write()


def _schedules(model: jf.Model, batches: list[list[Any]]) -> list[jf.Schedule]:
    corpus = model.trace([tree for batch in batches for tree in batch])
    model.reserve(corpus.capacities(len(batches[0])))
    return [jax.device_put(model.schedule(batch)) for batch in batches]


def _run(step: Any, params: Params, schedules: list[jf.Schedule], k: int) -> Any:
    return step(params, schedules[k])


def main() -> None:
    """Measures, and prints a table."""
    parser = jax_parser(__doc__ or '')
    parser.add_argument('--strategy', help='of both; by the backend if left out')
    options = fill(parser.parse_args(), {'strategy': None}, {'strategy': None})
    report = begin('Sums in a fixed order', options)
    for size in [(8, 8, 8)] if options.quick else SIZES:
        work = Workload(*size)
        block, batches = expression(work.hidden), work.batches(options.repeats + 2)
        measure(str(work), block, batches, options, report)
    if not options.quick:
        rng = random.Random(0)
        batches = [
            [comb(COMBS.leaves, rng) for _ in range(COMBS.trees)]
            for _ in range(options.repeats + 2)
        ]
        name = str(COMBS).replace('trees', 'combs')
        measure(name, expression(COMBS.hidden), batches, options, report)
        draw = partial(molecules.molecule, np.random.default_rng(0))
        batches = [[draw() for _ in range(128)] for _ in range(options.repeats + 2)]
        block = molecules.expression(64, 3)
        measure('3 rounds, 128 molecules', block, batches, options, report)
    report.note('An example alone gave to the bit what it gave in company.')
    report.close()


if __name__ == '__main__':
    main()
