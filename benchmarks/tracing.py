# SPDX-License-Identifier: Apache-2.0
"""Tracing by workers of an engine, Dask, each of which writes parts of a corpus.

    python benchmarks/tracing.py [--quick] [--workers N]

One worker and several take turns. The trees of a part are made before its time begins;
all corpora are compared to the bit.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from distributed import Client, LocalCluster, wait
from measuring import begin, jax_parser
from options import fill, say
from report import Row
from trees import Tree, expression, random_tree
from turns import Times

import jfold as jf

POOL = 64  # different trees, of which each part has many


def draw_part(part: int, trees: int) -> list[Tree]:
    """The trees of a part, of 16 to 112 leaves."""
    rng = random.Random(part)
    pool = [random_tree(rng.randrange(16, 113), rng) for _ in range(POOL)]
    return rng.choices(pool, k=trees)


def write_part(tracer: jf.Tracer, examples: list[Tree], file: str) -> float:
    """Writes a part; gives the most memory that its worker ever took [MB]."""
    tracer.save(examples, file)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def write(
    dask: Client, model: jf.Model, options: argparse.Namespace, folder: str
) -> Row:
    """Writes a corpus; gives seconds, and the most memory of a worker [MB]."""
    tracer = dask.scatter(model.tracer(), broadcast=True)
    workers = itertools.cycle(dask.scheduler_info()['workers'])
    parts = [
        (k, {'workers': next(workers), 'pure': False}) for k in range(options.parts)
    ]
    made = [dask.submit(draw_part, k, options.trees, **where) for k, where in parts]
    wait(made)
    start = time.perf_counter()
    written = [
        dask.submit(write_part, tracer, made[k], f'{folder}/{k:05}.jfold', **where)
        for k, where in parts
    ]
    memory = max(dask.gather(written))
    return {'seconds': time.perf_counter() - start, 'MB': memory}


@contextlib.contextmanager
def cluster(workers: int) -> Iterator[Client]:
    """Workers of one thread each."""
    plain = {'threads_per_worker': 1, 'dashboard_address': None}
    with LocalCluster(n_workers=workers, **plain) as made, Client(made) as client:
        yield client


def check_equal(folders: list[str], model: jf.Model) -> jf.Corpus:
    """The same bytes in all folders; gives the corpus."""
    for first in sorted(Path(folders[0]).iterdir()):
        for other in folders[1:]:
            assert first.read_bytes() == (Path(other) / first.name).read_bytes()
    return jf.Corpus.load(folders[0], model)


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """A row for each number of workers, and the ratio of their rates."""
    model = jf.compile(expression(8))
    counts = [1, options.workers]
    found: dict[int, list[Row]] = {count: [] for count in counts}
    with contextlib.ExitStack() as stack:
        clients = {count: stack.enter_context(cluster(count)) for count in counts}
        folders = {n: stack.enter_context(TemporaryDirectory()) for n in counts}
        for number in range(1 + options.repeats):
            say(f'round {number} of {options.repeats}')
            for count in counts:
                row = write(clients[count], model, options, folders[count])
                found[count] += [row] if number else []
        corpus = check_equal([*folders.values()], model)
        size = sum(x.stat().st_size for x in Path(folders[1]).iterdir()) / 2**20
        nodes = corpus.graph.nodes
    times = {n: Times(tuple(r['seconds'] for r in found[n])) for n in counts}
    for count in counts:
        yield {
            'workers': count,
            'nodes': nodes,
            'M nodes/s': nodes / times[count].median / 1e6,
            'worker MB': max(row['MB'] for row in found[count]),
            'corpus MB': size,
            'rate': (times[1] / times[count]).median,
        }


# ---- command line --------------------------------------------------------------------

NOTE = (
    'M nodes/s: by all workers, from trees to files; rate: over that of one worker, '
    'median of rounds; worker MB: the most that a worker held, with Python, JAX and '
    'its trees; corpus MB: on disk. The files were equal, byte by byte.'
)


def main() -> None:
    """Measures, and prints a table."""
    options = arguments()
    report = begin('Tracing by workers', options)
    report.note(NOTE)
    report.rows += measure(options)
    report.close()


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = jax_parser(__doc__ or '')
    add = parser.add_argument
    add('--workers', type=int, default=2, help='how many (default 2)')
    add('--parts', type=int, help='of the corpus (default 20)')
    add('--trees', type=int, help='in a part (default 4000, of about 127 nodes)')
    full = {'parts': 20, 'trees': 4000}
    return fill(parser.parse_args(), full, {'parts': 3, 'trees': 20})


if __name__ == '__main__':
    main()
