# SPDX-License-Identifier: Apache-2.0
"""How time and memory grow: with batches, trees, states, kinds of cells, and depth.

    python benchmarks/scaling.py [--quick] [--sweeps batch,width] [--pictures DIR]

One number varies at a time; the points of a sweep take turns. The phases of a step:

- `trace`: from examples to a graph in arrays;
- `schedule`: from the graph to indices;
- `transfer`: to the device;
- `infer` or `train`: on the device, forward or to gradients.

`--pictures` draws each sweep, which takes matplotlib.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from measuring import MODES, Setup, begin, jax_parser, set_up
from model_kinds import SHORTEST, chain_block, kind_size, kinds_block, of_kinds
from options import among, fill, say
from report import Report, Row
from trees import VOCABULARY, random_tree
from turns import Times, take_turns

from jfold.scheduling.layout import layout

POOL = 4  # batches that take turns
HOST = ('trace', 'schedule', 'transfer')
PHASES = (*HOST, *MODES)


@dataclass(frozen=True)
class Point:
    """A batch: of trees, or of chains if it has a depth."""

    batch: int = 32
    leaves: int = 32
    width: int = 128
    kinds: int = 1
    depth: int | None = None


SWEEPS: dict[str, tuple[int, ...]] = {
    'batch': (1, 4, 16, 64, 256),
    'leaves': (2, 8, 32, 128, 512),
    'width': (16, 64, 256, 1024),
    'kinds': (1, 2, 4, 8, 16),
    'depth': (8, 32, 128, 512, 2048),
}
TITLES = {
    'batch': 'examples in a batch',
    'leaves': 'leaves of a tree',
    'width': 'numbers in a state',
    'kinds': 'kinds of cells',
    'depth': 'length of a chain',
}


# ---- points --------------------------------------------------------------------------


def set_up_point(name: str, point: Point) -> Setup:
    """Compiles the model of a point, and checks it on small examples."""
    rng = random.Random(0)
    if point.depth is not None:
        block, size = chain_block(point.width), len
        sizes = [point.depth, SHORTEST]
    else:
        block, size = kinds_block(point.width, point.kinds), kind_size
        sizes = [point.leaves, 7]

    def example(length: int) -> Any:
        if point.depth is not None:
            return [rng.randrange(VOCABULARY) for _ in range(length)]
        return of_kinds(random_tree(length, rng), point.kinds, rng)

    batches = [[example(sizes[0]) for _ in range(point.batch)] for _ in range(POOL)]
    checks = [example(sizes[1]) for _ in batches[0][:2]]
    return set_up(name, block, batches, checks, size)


def contenders(setup: Setup) -> dict[str, Callable[[int], Any]]:
    """The phases of a point."""
    tracer = setup.model.tracer()
    traced = [tracer(batch) for batch in setup.batches]
    built = [setup.merge(i) for i in range(POOL)]
    phases: dict[str, Callable[[int], Any]] = {
        'trace': lambda i: tracer(setup.batches[i % POOL]),
        'schedule': lambda i: setup.model.schedule(traced[i % POOL]),
        'transfer': lambda i: jax.device_put(built[i % POOL]),
        'infer': lambda i: setup.run('infer', i),
        'train': lambda i: setup.run('train', i),
        'whole infer': lambda i: setup.whole('infer', i),
        'whole train': lambda i: setup.whole('train', i),
    }
    return {f'{setup.name}: {phase}': run for phase, run in phases.items()}


def times_of(setup: Setup, times: Mapping[str, Times]) -> Row:
    """Microseconds of each phase per node, and its share of a whole step in percent."""
    parts = (*PHASES, *(f'whole {mode}' for mode in MODES))
    own = {part: times[f'{setup.name}: {part}'] for part in parts}
    found: Row = {f'{p} µs': 1e6 * own[p].median / setup.nodes for p in parts}
    found |= {f'{mode} spread %': own[mode].spread for mode in MODES}
    for mode in MODES:
        taken = [own[phase].median for phase in (*HOST, mode)]
        names = [f'{mode}: {phase} %' for phase in (*HOST, 'device')]
        shares = [100 * part / sum(taken) for part in taken]
        found |= dict(zip(names, shares, strict=True))
    return found


def memory_of(setup: Setup) -> Row:
    """Megabytes: of buffers as they are laid out, and as the compiler counts them."""
    spec = setup.schedules[0].spec
    places = layout(spec)
    sizes = [t.size * t.dtype.itemsize for t in spec.program.types]
    values = sum(np.multiply(places.value_rows, sizes))
    edges = sum(
        rows * size
        for rows, size, fan in zip(
            places.edge_rows, sizes, spec.capacity.fans, strict=True
        )
        if fan  # no gradient flows elsewhere
    )
    found = {
        'parameters MB': bytes_of(setup.params),
        'indices MB': 4 * places.sections.size,
        'values MB': int(values),
        'edges MB': int(edges),
    }
    for mode in MODES:
        stats = setup.steps[mode].compiled.memory_analysis()
        temporary = getattr(stats, 'temp_size_in_bytes', None)
        found[f'{mode} temporary MB'] = temporary
    return {k: None if v is None else v / 1e6 for k, v in found.items()}


def bytes_of(tree: Any) -> int:
    """The size of all arrays."""
    return sum(x.nbytes for x in jax.tree.leaves(tree))


# ---- sweeps --------------------------------------------------------------------------


def sweep(name: str, base: Point, options: argparse.Namespace) -> Iterator[Row]:
    """Two rows for each value: times, then memory."""
    values = SWEEPS[name][: options.points]
    setups = []
    for number in values:
        say(f'{name} {number}: compiling and checking')
        point = dataclasses.replace(base, **{name: number})
        setups.append(set_up_point(f'{name} {number}', point))
    running: dict[str, Callable[[int], Any]] = {}
    for setup in setups:
        running |= contenders(setup)
    say(f'{name}: timing')
    times = take_turns(running, options.repeats, options.limit)
    for number, setup in zip(values, setups, strict=True):
        about = {'sweep': name, 'value': number}
        sizes = {'nodes': round(setup.nodes), 'depth': setup.depth}
        yield about | sizes | times_of(setup, times)
        compiling = {f'compile {mode} s': setup.compiling[mode] for mode in MODES}
        yield about | compiling | memory_of(setup)


def split(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Rows of times, and of memory."""
    return [r for r in rows if 'nodes' in r], [r for r in rows if 'nodes' not in r]


# ---- pictures ------------------------------------------------------------------------


def draw(name: str, rows: Sequence[Row], path: Path) -> None:
    """One sweep: time per node, memory, shares of a step."""
    from matplotlib.figure import Figure

    times, memory = split(rows)
    figure = Figure(figsize=(13, 8), layout='constrained')
    figure.suptitle(f'{TITLES[name]}: time, memory, shares of a step')
    ((first, second), below) = figure.subplots(2, 2)
    phases = [f'{phase} µs' for phase in PHASES]
    sizes = [column for column in memory[0] if column.endswith(' MB')]
    draw_lines(first, times, phases, 'microseconds per node')
    draw_lines(second, memory, sizes, 'megabytes')
    for axes, mode in zip(below, MODES, strict=True):
        draw_shares(axes, times, mode)
    for axes in (first, second, *below):
        axes.set_xlabel(TITLES[name])
        beside = {'loc': 'upper left', 'bbox_to_anchor': (1, 1), 'frameon': False}
        axes.legend(**beside, reverse=axes in below)  # as the bars are stacked
    figure.savefig(path / f'{name}.png', dpi=110)


def draw_lines(axes: Any, rows: Sequence[Row], names: list[str], label: str) -> None:
    """Columns over values, both on logarithmic scales."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    values = [row['value'] for row in rows]
    lines = zip(names, 'osv^D*', ('-', '-', '-', '--', '-', '-'), strict=False)
    for name, marker, style in lines:
        heights = [row[name] or float('nan') for row in rows]
        title = name.rpartition(' ')[0]
        axes.plot(values, heights, style, marker=marker, alpha=0.8, label=title)
    axes.set(xscale='log', yscale='log', ylabel=label)
    axes.set_xticks(values, labels=map(str, values))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis='x', which='minor', length=0)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter('{x:g}'))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)


def draw_shares(axes: Any, rows: Sequence[Row], mode: str) -> None:
    """Stacked bars, one for each value."""
    bottom = np.zeros(len(rows))
    for phase in (*HOST, 'device'):
        heights = np.array([row[f'{mode}: {phase} %'] for row in rows])
        axes.bar(range(len(rows)), heights, bottom=bottom, label=phase)
        bottom += heights
    axes.set_xticks(range(len(rows)), labels=[str(row['value']) for row in rows])
    axes.set(ylabel=f'percent of a step ({mode})', ylim=(0, 100))


# ---- command line --------------------------------------------------------------------

NOTE = (
    'Times per node are medians: trace, from examples to a graph; schedule, from that '
    'to indices; transfer, to the device; infer and train, on the device; whole, all '
    'of it in one call. A step is made of the first three and one of these; shares '
    'are those of the medians. values, edges and indices: the arrays that jfold lays '
    'out (edges in training only); temporary: what the compiler sets aside, these '
    'included. Every compiled step has given values, loss and gradients of the eager '
    'twin on small examples.'
)


def main() -> None:
    """Runs the sweeps; files are complete after each."""
    options = arguments()
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
    base = Point(options.batch, options.leaves, options.width, options.kinds)
    report = begin('Scaling', options)
    report.note(f'Where it does not vary: {describe(base)}.')
    report.note(NOTE)
    rows: list[Row] = []
    for name in options.sweeps:
        found = list(sweep(name, base, options))
        rows += found
        report.rows = [row for part in split(rows) for row in part]
        report.write()
        if options.pictures:
            picture(name, found, options.pictures, report)
    report.close()


def describe(base: Point) -> str:
    """The sizes of a point."""
    return (
        f'{base.batch} trees of {base.leaves} leaves, or chains; states of '
        f'{base.width} numbers; kinds of cells: {base.kinds}'
    )


def picture(name: str, rows: Sequence[Row], path: Path, report: Report) -> None:
    """Draws a sweep, or notes why not."""
    try:
        draw(name, rows, path)
    except ModuleNotFoundError as error:
        report.note(f'No picture of {name}: needs the package {error.name}.')


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = jax_parser(__doc__ or '')
    add = parser.add_argument
    names, base = ', '.join(SWEEPS), Point()
    add('--sweeps', type=among(list(SWEEPS)), default=list(SWEEPS), help=names)
    add('--points', type=int, help='only so many of each sweep, the smallest ones')
    add('--batch', type=int, default=base.batch, help='where it does not vary')
    add('--leaves', type=int, default=base.leaves, help='likewise')
    add('--width', type=int, help=f'likewise (default {base.width})')
    add('--kinds', type=int, default=base.kinds, help='likewise')
    add('--pictures', type=Path, help='folder for a picture of each sweep')
    full = {'width': base.width, 'points': len(max(SWEEPS.values(), key=len))}
    return fill(parser.parse_args(), full, {'width': 32, 'points': 2})


if __name__ == '__main__':
    main()
