# SPDX-License-Identifier: Apache-2.0
"""Cores as devices: batches dealt to several of them, against one with all threads.

    python benchmarks/devices.py [--quick]

In one process, in turns: with schedules at hand, then with one made for each step.
"""

from __future__ import annotations

import argparse
import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from measuring import MODES, agree, begin, jax_parser, loss
from molecules import expression as molecule_network
from molecules import molecule
from options import fill, say
from report import Row
from trees import Params, Workload, comb, expression
from turns import ratio_row, take_turns

import jfold as jf

POOL = 4  # batches that take turns


@dataclass(frozen=True)
class Job:
    """A model and its batches.

    Attributes:
      batches: lists of examples, all of one length.
    """

    name: str
    block: jf.Block
    batches: list[list[Any]]


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """Trees small and large, chains, and messages over molecules."""
    rng = random.Random(0)
    for sizes in options.trees:
        workload = Workload(*sizes)
        yield Job(str(workload), expression(workload.hidden), workload.batches(POOL))
    count, leaves, hidden = options.chains
    chains = [[comb(leaves, rng) for _ in range(count)] for _ in range(POOL)]
    name = f'{count} chains of {leaves} leaves, H = {hidden}'
    yield Job(name, expression(hidden), chains)
    count, width, rounds = options.molecules
    drawn = np.random.default_rng(0)
    batches = [[molecule(drawn) for _ in range(count)] for _ in range(POOL)]
    name = f'{count} molecules, {rounds} rounds, {width} wide'
    yield Job(name, molecule_network(width, rounds), batches)


def compare(job: Job, options: argparse.Namespace) -> Iterator[Row]:
    """The ratios of one job, several devices over one."""
    say(f'{job.name}: compiling and checking')
    model = jf.compile(job.block)
    params = model.init(jax.random.key(0))
    corpus = model.trace([x for batch in job.batches for x in batch], progress=False)
    mesh = jax.make_mesh((options.devices,), ('data',), (AxisType.Auto,))
    spread = jax.device_put(params, NamedSharding(mesh, jax.P()))
    sharding = NamedSharding(mesh, jax.P('data'))
    size = len(job.batches[0])
    one = contenders(model, params, Schedules(model, corpus, size))
    more = contenders(model, spread, Schedules(model, corpus, size, sharding))
    for mode in MODES:
        agree(job.name, more['check', mode](0), one['check', mode](0))
    say(f'{job.name}: timing')
    for part in 'device', 'whole':
        for mode in MODES:
            pair = {'one': one[part, mode], 'more': more[part, mode]}
            times = take_turns(pair, options.repeats, options.limit)
            row = ratio_row(f'{job.name}: {part}', mode, times['more'] / times['one'])
            yield row | {'ms': times['more'].ms, 'one ms': times['one'].ms}


class Schedules:
    """Makes the schedule of one of the batches, from a corpus."""

    def __init__(
        self, model: jf.Model, corpus: jf.Corpus, size: int, sharding: Any = None
    ) -> None:
        run = model.batches(corpus, size, sharding=sharding, prefetch=0)
        self.places = [batch.indices for batch in run]  # dealt, if there are shards
        self.corpus, self.sharding = corpus, sharding

    def __call__(self, i: int) -> jf.Schedule:
        chosen = self.places[i % len(self.places)]
        return self.corpus.schedule(chosen, sharding=self.sharding)


Contenders = dict[tuple[str, str], Callable[[int], Any]]


def contenders(
    model: jf.Model, params: Params, make: Callable[[int], jf.Schedule]
) -> Contenders:
    """By part and mode: schedules at hand, or made anew; and sums, to be checked."""
    training = jax.value_and_grad(functools.partial(loss, model))
    schedules = [make(i) for i in range(POOL)]
    found: Contenders = {}
    for mode, step in zip(MODES, (model.apply, training), strict=True):
        run = jax.jit(step)
        found |= {
            ('device', mode): lambda i, run=run: run(params, schedules[i % POOL]),
            ('whole', mode): lambda i, run=run: run(params, make(i)),
            ('check', mode): lambda i, run=run: unordered(run(params, schedules[i])),
        }
    return found


def unordered(results: Any) -> Any:
    """Results whose rows may be in another order; gradients as they are."""
    return (
        jax.tree.map(np.asarray, results)
        if isinstance(results, tuple)
        else sum(np.asarray(x).sum(0) for x in jax.tree.leaves(results))
    )


# ---- command line --------------------------------------------------------------------

NOTE = (
    'Ratios below 1: several devices are faster than one with as many threads. device: '
    'schedules lie ready; whole: each is merged from a corpus for its step. Medians of '
    'rounds, with quartiles. Results and gradients were equal.'
)


def main() -> None:
    """Measures, and prints tables."""
    options = arguments()
    jax.config.update('jax_num_cpu_devices', options.devices)
    report = begin('Cores as devices', options)
    report.note(f'{options.devices} devices. {NOTE}')
    for job in jobs(options):
        report.rows += compare(job, options)
    report.close()


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = jax_parser(__doc__ or '')
    parser.add_argument('--devices', type=int, default=2, help='how many (default 2)')
    options = parser.parse_args()
    full = {
        'trees': [(32, 32, 128), (64, 128, 256)],
        'chains': (32, 64, 128),
        'molecules': (128, 64, 3),
    }
    quick = {'trees': [(4, 5, 8)], 'chains': (4, 5, 8), 'molecules': (4, 8, 2)}
    vars(options).update(dict.fromkeys(full))
    return fill(options, full, quick)


if __name__ == '__main__':
    main()
