# SPDX-License-Identifier: Apache-2.0
"""A readable account of a schedule, in tables."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from jfold.program.components import loops_of
from jfold.runtime import residual_bytes
from jfold.scheduling.layout import layout, running_components
from jfold.scheduling.schedule import Schedule, check_known
from jfold.scheduling.shards import Shards

SHOWN_LEVELS = 12
Row: TypeAlias = tuple[str, ...]  # its cells


def explain(schedule: Schedule, programs: int, max_programs: int | None) -> str:
    """Return text with tables of a schedule: operations, levels, buffers and shards.

    Args:
      programs: how many shapes of schedule the model has so far.
      max_programs: how many it may have; `None` for any number.
    """
    check_known(schedule)
    spec, built = schedule.spec, ''
    if (seconds := schedule.seconds) is not None:
        time = f'{seconds * 1e3:.3g} ms' if seconds < 1 else f'{seconds:.3g} s'
        built = f', built in {time}'
    here = '' if spec.shards is None or spec.shards.is_local else ' of this process'
    limit = '' if max_programs is None else f' of at most {max_programs}'
    fixed = ', sums in a fixed order' if spec.reproducible else ''
    loops = loops_of(spec.program)
    summary = (
        f'{schedule.examples} examples, {int(schedule.counts.sum())} nodes{here}, '
        f'depth {schedule.depth}{built}; programs so far: {programs}{limit}{fixed}'
        f'{loops and ", "}{loops}'
    )
    fullest = max(schedule.parts, key=lambda part: int(part.counts.sum()))
    tables = [_operations(fullest), _levels(fullest), _memory(fullest)]
    if spec.shards is not None:
        tables.insert(0, _shards(spec.shards, schedule.parts))
    return '\n\n'.join([summary, *map('\n'.join, tables)])


def _shards(shards: Shards, parts: Sequence[Schedule]) -> list[str]:
    """Return lines: a table of this process's shards, `parts`, and their balance."""
    nodes = [int(part.counts.sum()) for part in parts]
    rows = [
        (f'{k}', f'{int(part.mask.sum())}', f'{count}', f'{part.depth}')
        for k, part, count in zip(shards.own, parts, nodes, strict=True)
    ]
    mean = sum(nodes) / len(nodes)
    more = max(nodes) / mean if mean else 1.0
    text = f'the fullest shard has {more:.2f} times the mean; what follows is of it'
    note = f'this process has {len(nodes)} of {shards.count} shards'
    notes = [] if shards.is_local else [note]
    return [*_table(('shard', 'examples', 'nodes', 'depth'), rows), *notes, text]


def _operations(schedule: Schedule) -> list[str]:
    rows = []
    spec = schedule.spec
    for o, operation in enumerate(spec.program.operations):
        widths, nodes = layout(spec).widths[o], int(schedule.counts[o])
        # Per level: the first row, the end, and the number of tiles of each width.
        tiles = schedule.tiles(o)[:, 2:].sum(axis=0)
        computed = int(tiles @ np.array(widths))
        spare = 1 - nodes / computed if computed else 0.0
        rows.append(
            (
                repr(operation),
                f'{nodes}',
                f'{spec.capacity.rows[o]}',
                ' '.join(f'{n}x{w}' for n, w in zip(tiles, widths, strict=True)),
                f'{spare:.0%}',
            )
        )
    return _table(('operation', 'nodes', 'capacity', 'tiles', 'spare rows'), rows)


def _levels(schedule: Schedule) -> list[str]:
    program = schedule.spec.program
    uses = Counter(operation.layer.name for operation in program.operations)
    names = [
        f'{x.layer.name}/{len(x.inputs)}' if uses[x.layer.name] > 1 else x.layer.name
        for x in program.operations
    ]
    counts = np.zeros((schedule.depth, len(names)), int)
    before = 0
    for component, depth in zip(
        running_components(schedule.spec), schedule.depths, strict=True
    ):
        for o in component.operations:
            done = schedule.tiles(o)[:, 1]  # rows of this level and those before
            counts[before : before + depth, o] = np.diff(done, prepend=0)
        before += depth
    levels = range(len(counts))
    half = SHOWN_LEVELS // 2 if len(counts) > SHOWN_LEVELS else len(counts)
    shown = [*levels[:half], *levels[half:][-half:]]
    rows = [(f'{k + 1}', *(f'{n or "."}' for n in counts[k].tolist())) for k in shown]
    if len(shown) < len(counts):
        rows.insert(half, tuple('...' for _ in range(len(names) + 1)))
    return _table(('level', *names), rows)


def _memory(schedule: Schedule) -> list[str]:
    spec, places = schedule.spec, layout(schedule.spec)
    rows, values, edges = [], 0, 0
    for t, type_ in enumerate(spec.program.types):
        size = type_.size * type_.dtype.itemsize
        of_values = places.value_rows[t] * size
        of_edges = places.edge_rows[t] * size if spec.capacity.fans[t] else 0
        values, edges = values + of_values, edges + of_edges
        constants = f'{spec.capacity.constants[t]}'
        rows.append((repr(type_), constants, in_bytes(of_values), in_bytes(of_edges)))
    header = ('buffer of', 'constants', 'values', 'edges (in training)')
    lines = _table(header, rows)
    # A function of the user's without a gradient may raise anything.
    with contextlib.suppress(Exception):
        residuals = residual_bytes(spec)
        lines += [
            f'residuals of training ({spec.residuals}): {in_bytes(residuals)}',
            f'together: {in_bytes(values)}, in training '
            f'{in_bytes(values + edges + residuals)}',
        ]
    return [*lines, f'indices: {in_bytes(4 * places.sections.size)}']


def _table(header: Row, rows: Sequence[Row]) -> list[str]:
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return [
        '  '.join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def in_bytes(number: float) -> str:
    """Return a number of bytes in a suitable unit."""
    for unit in ('B', 'kB', 'MB'):
        if number < 1000:
            return f'{number:.3g} {unit}'
        number /= 1000
    return f'{number:.3g} GB'
