# SPDX-License-Identifier: Apache-2.0
"""Table 1 of Looks et al. 2017, "Deep Learning with Dynamic Computation Graphs".

    python benchmarks/iclr2017.py [--width 128] [--batches 1,2,4] [--modes infer]

Random binary trees of 128 leaves, whose state is one vector of 1024 numbers; sizes are
those of the paper unless others are given. Contenders:

- `by node`: one tree shape, written in plain JAX; each cell runs on its own for the
  whole batch. This is what the paper calls manual batching.
- `by level`: the same, but all cells of a level at once; a stronger yardstick, since it
  batches within the tree too.
- `one shape`: jfold, all trees of that one shape.
- `full`: jfold, every tree different. It is the same compiled program as `one shape`.

Training is a step of gradient descent on half the sum of squares of the roots.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from measuring import MODES, agree, begin, jax_parser
from options import among, fill, numbers, say
from paper_model import (
    descend,
    expression,
    reference,
    roots_by_level,
    roots_by_node,
    with_words,
    words_of,
)
from report import Report, Row
from trees import VOCABULARY, Params, Tree, random_tree
from turns import Contenders, Times, clocked, compiled, take_turns

import jfold as jf

POOL = 4  # batches that take turns
CONTENDERS = ('by node', 'by level', 'one shape', 'full')

# Seconds per batch in the paper: by node, one shape, full.
PAPER = {
    'CPU': {
        1024: (14.62, 18.68, 18.37),
        512: (7.54, 9.84, 9.57),
        256: (4.14, 5.22, 5.25),
        128: (2.48, 2.95, 3.08),
        64: (1.64, 1.76, 1.78),
        32: (1.27, 1.05, 1.10),
        1: (0.52, 0.26, 0.26),
    },
    'GPU': {
        1024: (0.978, 1.590, 1.617),
        512: (0.530, 0.715, 0.721),
        256: (0.312, 0.323, 0.340),
        128: (0.236, 0.164, 0.178),
        64: (0.193, 0.093, 0.106),
        32: (0.153, 0.061, 0.074),
        1: (0.161, 0.038, 0.036),
    },
}


# ---- contenders ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Contender:
    """Something that runs batches of trees.

    Attributes:
      build: from trees to what a step takes besides the parameters.
      merge: the same from a corpus, by the number of a batch; `None` by hand.
      step: compiled.
      compiling: seconds.
      batches: its trees.
      ready: what `build` gives for each batch, on the device.
    """

    build: Callable[[list[Tree]], Any]
    merge: Callable[[int], Any] | None
    step: Any
    compiling: float
    batches: list[list[Tree]]
    ready: list[Any]


@dataclass(frozen=True, eq=False)
class Size:
    """One row of the table: its trees, and the models.

    Attributes:
      shape: the one shape.
      same: batches of trees of that shape.
      different: batches of trees of any shape.
    """

    batch: int
    shape: Tree
    same: list[list[Tree]]
    different: list[list[Tree]]
    model: jf.Model
    params: Params


def make_size(batch: int, options: argparse.Namespace) -> Size:
    """Draws trees."""
    rng = random.Random(batch)
    pool = [range(batch)] * POOL
    shape = random_tree(options.leaves, random.Random(0))
    words = iter(lambda: rng.randrange(VOCABULARY), None)
    same = [[with_words(shape, words) for _ in one] for one in pool]
    different = [[random_tree(options.leaves, rng) for _ in one] for one in pool]
    model = jf.compile(expression(options.width))
    params = model.init(jax.random.key(0))
    return Size(batch, shape, same, different, model, params)


def make_contenders(size: Size, mode: str, names: list[str]) -> dict[str, Contender]:
    """Compiles what takes part."""
    found = {}
    for name, roots in (('by node', roots_by_node), ('by level', roots_by_level)):
        if name in names:
            say(f'batch {size.batch}, {mode}: compiling {name}')
            found[name] = by_hand(functools.partial(roots, size.shape), size, mode)
    if {'one shape', 'full'} & set(names):
        say(f'batch {size.batch}, {mode}: compiling jfold')
        found |= dynamic(size, mode)
    return {name: each for name, each in found.items() if name in names}


def by_hand(roots: Callable[..., jax.Array], size: Size, mode: str) -> Contender:
    """A contender in plain JAX."""
    step = roots if mode == 'infer' else functools.partial(descend, roots)
    ready = [jax.device_put(words_of(trees)) for trees in size.same]
    executable, took = compiled(step, size.params, ready[0])
    return Contender(words_of, None, executable, took, size.same, ready)


def dynamic(size: Size, mode: str) -> dict[str, Contender]:
    """Both contenders of jfold, which share a program."""
    model = size.model
    examples = [x for batch in size.same + size.different for x in batch]
    corpus = model.trace(examples, progress=False)
    roots = model.apply
    step = roots if mode == 'infer' else functools.partial(descend, roots)
    capacity = corpus.capacities(size.batch)
    executable, took = clocked(lambda: model.precompile(step, size.params, capacity))

    def contender(batches: list[list[Tree]], first: int) -> Contender:
        def merge(i: int) -> jf.Schedule:
            start = first + i % POOL * size.batch
            return corpus.schedule(np.arange(start, start + size.batch))

        ready = [jax.device_put(merge(i)) for i in range(POOL)]
        return Contender(model.schedule, merge, executable, took, batches, ready)

    return {
        'one shape': contender(size.same, 0),
        'full': contender(size.different, POOL * size.batch),
    }


def check(name: str, mode: str, contender: Contender, params: Params) -> None:
    """Checks all results of a batch against the reference."""
    trees = contender.batches[0]
    want = reference(mode, params, trees)
    agree(f'{name}, {mode}', contender.step(params, contender.ready[0]), want)
    agree(
        f'{name}, {mode}, whole', contender.step(params, contender.build(trees)), want
    )


def turns(name: str, contender: Contender, params: Params) -> Contenders:
    """What is timed of a contender."""
    batches, ready, step = contender.batches, contender.ready, contender.step

    def build(i: int) -> Any:
        return contender.build(batches[i % POOL])

    found = {
        f'{name}: build': build,
        f'{name}: device': lambda i: step(params, ready[i % POOL]),
        f'{name}: whole': lambda i: step(params, build(i)),
    }
    return found | ({f'{name}: merge': contender.merge} if contender.merge else {})


# ---- tables --------------------------------------------------------------------------


def measure(size: Size, mode: str, options: argparse.Namespace) -> list[Row]:
    """The phases of all contenders."""
    contenders = make_contenders(size, mode, options.contenders)
    for name, contender in contenders.items():
        check(name, mode, contender, size.params)
    say(f'batch {size.batch}, {mode}: checked, timing')
    parts = [turns(name, each, size.params) for name, each in contenders.items()]
    timed: dict[str, Callable[[int], Any]] = {}
    for part in parts:
        timed |= part
    times = take_turns(timed, options.repeats, options.limit)
    return [
        phases(size.batch, mode, name, each, times) for name, each in contenders.items()
    ]


def phases(
    batch: int, mode: str, name: str, contender: Contender, times: dict[str, Times]
) -> Row:
    """The row of a contender."""
    device, whole = times[f'{name}: device'], times[f'{name}: whole']
    merge = times.get(f'{name}: merge')
    return {
        'mode': mode,
        'batch': batch,
        'contender': name,
        'compile s': contender.compiling,
        'build ms': times[f'{name}: build'].ms,
        'merge ms': merge.ms if merge else None,
        'device ms': device.ms,
        'spread %': device.spread,
        'whole ms': whole.ms,
        'device ms per tree': device.ms / batch,
        'whole ms per tree': whole.ms / batch,
        'calls': len(device.values),
    }


def paper_table(rows: list[Row], mode: str) -> list[Row]:
    """Device times of a mode in the form of the paper's table."""
    ms = {
        (row['batch'], row['contender']): row['device ms']
        for row in rows
        if row['mode'] == mode
    }
    found = []
    for batch in dict.fromkeys(batch for batch, _ in ms):
        values = [ms.get((batch, name)) for name in CONTENDERS]
        by_node, by_level, same, full = values
        titles = (f'{name} ms' for name in CONTENDERS)
        found.append(
            {'table 1': mode, 'batch': batch}
            | dict(zip(titles, values, strict=True))
            | {
                'full ms per tree': ratio(full, batch),
                'cost': ratio(same, by_node),
                'cost by level': ratio(same, by_level),
                'speed-up': ratio(ms.get((1, 'by node')), ratio(full, batch)),
                'speed-up by level': ratio(ms.get((1, 'by level')), ratio(full, batch)),
            }
            | paper_columns(batch)
        )
    return found


def paper_columns(batch: int) -> Row:
    """The paper's seconds, and the ratios that follow from them."""
    found: Row = {}
    for device, table in PAPER.items():
        by_node, same, full = table.get(batch, (None, None, None))
        shown = [str(x) for x in (by_node, same, full) if x is not None]
        found |= {
            f'paper {device} s': ' / '.join(shown) or None,
            f'paper {device} cost': ratio(same, by_node),
            f'paper {device} speed-up': ratio(table[1][0], ratio(full, batch)),
        }
    return found


def ratio(a: float | None, b: float | None) -> float | None:
    """A quotient of what there is."""
    return None if a is None or b is None else a / b


def report_of(rows: list[Row], options: argparse.Namespace, report: Report) -> Report:
    """Tables of what has been measured so far."""
    report.rows = [row for mode in options.modes for row in paper_table(rows, mode)]
    report.rows += rows
    return report


NOTE = (
    'by node: one tree shape in plain JAX, each cell on its own for the whole batch, '
    'as manual batching is in the paper; by level: all cells of a level at once; one '
    'shape, full: jfold, by one compiled program. Table 1 has device times, with '
    'inputs on the device; schedules are built beforehand, as in the paper. cost: one '
    'shape over by node (by level). speed-up: by node (by level) at batch 1 over full '
    'per tree. Columns named paper: Looks et al. 2017, Table 1, by node / one shape / '
    'full, on two 8-core Xeons and on a GTX 1080 in 2017, with 128 leaves and 1024 '
    'numbers; ratios computed from those seconds. build: from trees to indices; '
    'merge: the same from a corpus; whole: from trees to results. spread: the middle '
    'half of device times in percent of the median. Every contender has given the '
    'results of a plain loop over cells, in training loss, gradients and new '
    'parameters.'
)


def main() -> None:
    """Measures size by size; files are complete after each."""
    options = arguments()
    report, rows = begin('Table 1 of Looks et al. 2017', options), []
    report.note(f'{options.leaves} leaves, states of {options.width} numbers. {NOTE}')
    for batch, mode in itertools.product(options.batches, options.modes):
        size = make_size(batch, options)
        rows += measure(size, mode, options)
        report_of(rows, options, report).write()
    report.close()


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = jax_parser(__doc__ or '')
    add = parser.add_argument
    add('--leaves', type=int, help='of a tree (default 128)')
    add('--width', type=int, help='of a state (default 1024)')
    add('--batches', type=numbers, help='trees in a batch (default 1,2,4,...,1024)')
    add('--modes', type=among(MODES), default=list(MODES), help=', '.join(MODES))
    names = ', '.join(CONTENDERS)
    add('--contenders', type=among(CONTENDERS), default=list(CONTENDERS), help=names)
    sizes = [1 << k for k in range(11)]
    full = {'leaves': 128, 'width': 1024, 'batches': sizes}
    return fill(
        parser.parse_args(), full, {'leaves': 16, 'width': 64, 'batches': [1, 16]}
    )


if __name__ == '__main__':
    main()
