# SPDX-License-Identifier: Apache-2.0
"""How evenly batches are dealt to devices, by the numbers of nodes.

    python benchmarks/balance.py [--quick] [--trees PATH]

Nothing is run: what the fullest device has to do over the mean is how long all wait.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from measuring import begin, jax_parser
from options import fill, say
from report import ROOT, Row

from jfold.scheduling.shard_assignment import assign_evenly
from jfold.scheduling.shards import Shards, make_shards

sys.path.append(str(ROOT / 'examples'))

import treebank
from syntax_trees import library_files, read_functions

MAX_NODES = 500  # of a function, as in the example that trains on them


def sources(options: argparse.Namespace) -> dict[str, list[int]]:
    """By name, the nodes of each example."""
    say('reading')
    name = 'the treebank' if options.trees else 'made-up sentences'
    found = treebank.read_lines(options.trees) if options.trees else None
    lines = (found or treebank.made_up_lines(0))['train']
    files = library_files()[: options.files]
    functions = itertools.chain(*(read_functions(file, MAX_NODES) for file in files))
    return {
        # A bracket opens each node: of n words there are n leaves and n - 1 others.
        name: [line.count('(') for line in lines],
        'functions of the standard library': [len(each.nodes) for each in functions],
    }


def shares(
    nodes: Sequence[int], shards: Shards, size: int, batches: int
) -> tuple[np.ndarray, np.ndarray]:
    """Of random batches the fullest over the mean [batches], as dealt and in order."""
    rng, rows = np.random.default_rng(0), size // shards.count
    found = []
    for _ in range(batches):
        work = np.array(nodes)[rng.choice(len(nodes), size, replace=len(nodes) < size)]
        dealt = assign_evenly(shards, rows, work.tolist()).examples
        loads = np.array([work[part].sum() for part in dealt])
        plain = work.reshape(shards.count, rows).sum(1)
        found.append((loads.max() / loads.mean(), plain.max() / plain.mean()))
    made = np.array(found)
    return made[:, 0], made[:, 1]


def table(options: argparse.Namespace) -> list[Row]:
    """A row for each source and number of devices."""
    rows = []
    for name, nodes in sources(options).items():
        for count in options.devices:
            devices = jax.devices()[:count]
            mesh = jax.make_mesh((count,), ('data',), (AxisType.Auto,), devices=devices)
            shards = make_shards(NamedSharding(mesh, jax.P('data')))
            dealt, plain = shares(nodes, shards, options.batch, options.batches)
            rows.append(
                {
                    'batches of': name,
                    'devices': count,
                    'fullest / mean': float(dealt.mean()),
                    'worst': float(dealt.max()),
                    'in order': float(plain.mean()),
                    'efficiency': float((1 / dealt).mean()),
                }
            )
    return rows


NOTE = (
    'Batches of {} examples drawn at random. fullest / mean: nodes of the device that '
    'has most; worst: of all; in order: if they were not dealt; efficiency: the '
    'share of the time that devices compute, if time goes by nodes.'
)


def main() -> None:
    """Counts, and prints a table."""
    options = arguments()
    jax.config.update('jax_num_cpu_devices', max(options.devices))
    report = begin('Balance', options)
    report.note(NOTE.format(options.batch))
    report.rows += table(options)
    report.close()


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = jax_parser(__doc__ or '')
    add = parser.add_argument
    add('--trees', type=Path, help='the treebank: a zip or a folder')
    add('--batch', type=int, help='examples in a batch (default 256)')
    add('--batches', type=int, help='how many (default 200)')
    add('--files', type=int, help='modules of the standard library to read (all)')
    options = parser.parse_args()
    options.devices = [2, 8]
    everything = {'batch': 256, 'batches': 200, 'files': 10**6}
    return fill(options, everything, {'batch': 16, 'batches': 5, 'files': 5})


if __name__ == '__main__':
    main()
