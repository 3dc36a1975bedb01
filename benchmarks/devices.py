# SPDX-License-Identifier: Apache-2.0
"""Cores as devices: batches dealt to several of them, against one with all threads.

    python benchmarks/devices.py [--quick] [--install]

In turns: with schedules at hand, then with one made for each step. Beside them, where
models are trees, PyTorch batched by hand, in a process and an environment of its own,
as in `peers.py`.
"""

from __future__ import annotations

import argparse
import functools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import peers
from jax.sharding import AxisType, NamedSharding
from measuring import MODES, agree, begin, jax_parser, loss
from molecules import expression as molecule_network
from molecules import molecule
from options import fill, say
from report import ROOT, Report, Row
from trees import Params, Workload, comb, expression
from turns import Seconds, Times, ratio_row, take_turns

import jfold as jf

POOL = 4  # batches that take turns
PEER = 'torch-levels'
ENVIRONMENTS = ROOT / '.venv' / 'peers'
Contenders = dict[tuple[str, str], Callable[[int], Any]]


@dataclass(frozen=True)
class Job:
    """A model and its batches.

    Attributes:
      batches: lists of examples, all of one length.
      size: of such trees, for PyTorch; `None` if they are none.
    """

    name: str
    block: jf.Block
    batches: list[list[Any]]
    size: peers.Size | None = None


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """Trees small and large, chains, and messages over molecules."""
    rng = random.Random(0)
    for sizes in options.trees:
        workload = Workload(*sizes)
        size = peers.Size(workload.leaves, workload.hidden, workload.trees)
        block = expression(workload.hidden)
        yield Job(str(workload), block, workload.batches(POOL), size)
    count, leaves, hidden = options.chains
    chains = [[comb(leaves, rng) for _ in range(count)] for _ in range(POOL)]
    name = f'{count} chains of {leaves} leaves, H = {hidden}'
    size = peers.Size(leaves, hidden, count, chains=True)
    yield Job(name, expression(hidden), chains, size)
    count, width, rounds = options.molecules
    drawn = np.random.default_rng(0)
    batches = [[molecule(drawn) for _ in range(count)] for _ in range(POOL)]
    name = f'{count} molecules, {rounds} rounds, {width} wide'
    yield Job(name, molecule_network(width, rounds), batches)


def compare(job: Job, options: argparse.Namespace, report: Report) -> Iterator[Row]:
    """The ratios of one job, several devices over one, and over PyTorch."""
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
    with peers.running() as programs:
        torch = by_pytorch(job, options, report, programs)
        say(f'{job.name}: timing')
        for part in 'device', 'whole':
            for mode in MODES:
                given = {'one': one, 'more': more, 'PyTorch': torch}
                turns = {k: x[part, mode] for k, x in given.items() if x}
                times = take_turns(turns, options.repeats, options.limit)
                yield row_of(f'{job.name}: {part}', mode, times)


def row_of(name: str, mode: str, times: Mapping[str, Times]) -> Row:
    """The medians of all, and the ratios of several devices to the others."""
    one, more, torch = (times.get(name) for name in ('one', 'more', 'PyTorch'))
    assert one
    assert more
    medians = {'ms': more.ms, 'one ms': one.ms, 'PyTorch ms': torch and torch.ms}
    over = torch and (more / torch).median
    return ratio_row(name, mode, more / one) | medians | {'over PyTorch': over}


def by_pytorch(
    job: Job,
    options: argparse.Namespace,
    report: Report,
    programs: list[peers.Contender],
) -> Contenders:
    """By part and mode, with as many threads as devices: its computing alone, or with
    the making of levels; none if it is not there."""
    if job.size is None:
        return {}
    python = peers.prepared([PEER], options.environments, options.install)['torch']
    found: Contenders = {}
    try:
        for mode in MODES:
            program = peers.start(PEER, python, job.size, mode, options.devices)
            programs.append(program)
            program.ask('check')
            for part, name in ('device', 'compute'), ('whole', 'total'):
                found[part, mode] = functools.partial(ask, program, name)
    except peers.Unable as reason:
        report.absent['PyTorch'] = str(reason).removeprefix('absent: ')
        return {}
    return found


def ask(program: peers.Contender, name: str, _: int) -> Seconds:
    """What a part of a step takes; each step has a batch of its own."""
    return Seconds(program.ask('step')[name])


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
    'rounds, with quartiles. Results and gradients were equal. PyTorch, on trees and '
    'chains alone: levels batched by hand, as many threads as devices, other trees of '
    'the same sizes in each step; device: without making the levels; training with a '
    'step of SGD. Its results were those of NumPy in double precision.'
)


def main() -> None:
    """Measures, and prints tables."""
    options = arguments()
    jax.config.update('jax_num_cpu_devices', options.devices)
    report = begin('Cores as devices', options)
    report.note(f'{options.devices} devices. {NOTE}')
    for job in jobs(options):
        report.rows += compare(job, options, report)
    report.close()


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = jax_parser(__doc__ or '')
    parser.add_argument('--devices', type=int, default=2, help='how many (default 2)')
    add = parser.add_argument
    add('--environments', type=Path, default=ENVIRONMENTS, help='folder, of PyTorch')
    add('--install', action='store_true', help='make its environment if there is none')
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
