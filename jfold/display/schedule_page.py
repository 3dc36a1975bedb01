# SPDX-License-Identifier: Apache-2.0
"""The display of schedules: levels by operations, and the nodes of one example."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from jfold.display import svg as p
from jfold.display.markup import Markup, folded, line, page
from jfold.display.texts import cut, listed, on_host, several, short
from jfold.program.components import component_of
from jfold.scheduling.layout import layout
from jfold.scheduling.readback import Node, level_of, nodes_of_result, operands_of
from jfold.scheduling.schedule import Schedule
from jfold.scheduling.spec import FIXED, Spec

LEVELS, OPERATIONS, NODES, OPERANDS = 28, 24, 36, 8  # the most that are drawn
WIDE, HIGH = 40, 26  # pixels of a cell


def schedule_page(schedule: Schedule) -> str:
    """Return the HTML of a schedule; nothing runs, arrays are copied to the host."""
    if schedule.stacked or on_host(schedule.indices) is None:
        return page('Schedule', [repr(schedule)])
    count, nodes = len(schedule.parts), int(schedule.counts.sum())
    facts = [several(schedule.examples, 'example'), several(nodes, 'node')]
    facts.append(f'depth {schedule.depth}')
    facts += [f'first of {count} shards'] if count > 1 else []
    tree = [example_picture(schedule, 0)] if schedule.examples else []
    fold = [folded('example 0', x, opened=True) for x in tree]
    levels = [levels_picture(schedule)] if nodes else []
    return page('Schedule', facts, *levels, *fold)


def levels_picture(schedule: Schedule) -> Markup:
    """Return a picture of used and spare rows of operations on each level."""
    part, half = schedule.parts[0], LEVELS // 2
    spec, counts, before = part.spec, part.counts, np.cumsum([0, *part.depths])
    depth = int(before[-1])
    shown = [*range(depth)]
    if depth > LEVELS:
        shown = [*range(half), -1, *range(depth - half, depth)]
    used = [o for o, room in enumerate(spec.capacity.rows) if room]
    drawn = sorted(sorted(used, key=lambda o: -counts[o])[:OPERATIONS])
    names = {o: cut(spec.program.operations[o].layer.name, 24) for o in drawn}
    begin = p.CHARACTER * max([*map(len, names.values()), 6]) + 16
    xs = {level: begin + k * WIDE for k, level in enumerate(shown)}
    end = begin + WIDE * len(shown) + 12
    parts = [p.left(4, 16, _unit(spec)), p.left(end, 16, 'rows, of the capacity')]
    for level, x in xs.items():
        label = '…' if level < 0 else level + 1
        parts.append(p.text(x + WIDE / 2, 16, label, 'jf-muted'))
    for y, (o, name) in zip(itertools.count(24, HIGH + 4), names.items(), strict=False):
        parts.append(p.text(4, y + 17, name, 'jf-l'))
        first = int(before[component_of(spec.program)[o]])
        table = part.tiles(o)
        for level in (x for x in shown if first <= x < first + len(table)):
            a, b, *tiles = table[level - first].tolist()
            if a < b:
                room = sum(map(int.__mul__, tiles, layout(spec).widths[o]))
                tip = f'{name}, {_unit(spec)} {level + 1}: {b - a:,} of {room:,} rows'
                parts += _bar(xs[level] + 2, y, WIDE - 4, b - a, room, tip)
                rows = f'{b - a}' if b - a < 1000 else f'{(b - a) / 1000:.3g}k'
                parts.append(p.text(xs[level] + WIDE / 2, y + 17, rows))
        text = f'{counts[o]:,} of {spec.capacity.rows[o]:,}'
        parts += _bar(end, y, 90, int(counts[o]), spec.capacity.rows[o], text)
        parts.append(p.left(end + 98, y + 17, text))
    high = 28 + (HIGH + 4) * len(names)
    if hidden := len(used) - len(names):
        parts.append(p.left(4, high + 10, f'… {hidden} more operations'))
    return p.svg(end + 220, high + 16, parts, 'rows of operations by level')


def _bar(
    x: float, y: float, wide: float, rows: int, room: int, tip: str
) -> tuple[Markup, Markup]:
    full = wide * min(rows / max(room, 1), 1)
    spare = p.rect(x, y, wide, HIGH, 'jf-spare', tip)
    return spare, p.rect(x, y, full, HIGH, 'jf-rows', tip)


def example_picture(schedule: Schedule, example: int) -> Markup:
    """Return a picture of the nodes of `example`, each on the level where it runs."""
    number, place = divmod(example, schedule.spec.capacity.examples)
    part, results = schedule.parts[number], dict[str, list[Node]]()
    for r, result in enumerate(part.spec.program.results):
        name = result.kind.name or ('items' if result.kind.level else 'result')
        some = itertools.islice(nodes_of_result(part, r, place), OPERANDS)
        if result.tensors:
            results.setdefault(cut(name, 24), []).extend(some)
    shown = [*dict.fromkeys(itertools.chain(*results.values()))][:NODES]
    numbers, reads = {node: k for k, node in enumerate(shown)}, list[list[Node]]()
    for node in shown:  # which grows in the loop
        reads.append([*dict.fromkeys(operands_of(part, node))] if node[0] >= 0 else [])
        new = [x for x in reads[-1] if x[0] >= 0 and x not in numbers][:OPERANDS]
        for x in new[: NODES - len(shown)]:
            numbers[x] = len(shown)
            shown.append(x)
    levels = [level_of(part, node) for node in shown]
    ranks = {level: k for k, level in enumerate(sorted({*levels}))}
    boxes, is_cut = [], False
    for node, level, operands in zip(shown, levels, reads, strict=True):
        inside = tuple(numbers[x] for x in operands if x[0] >= 0 and x in numbers)
        data = [_label(part, x) for x in operands if x[0] < 0]
        is_short = len(inside) + len(data) < len(operands)
        note = listed(data[:4] + ['…'] * is_short, len(data))
        boxes.append(p.Box(_label(part, node), note, ranks[level], inside))
        is_cut = is_cut or is_short
    for name, nodes in results.items():
        ends = tuple(dict.fromkeys(numbers[x] for x in nodes if x in numbers))
        boxes.append(p.Box(name, '', len(ranks), ends))
    bands = [f'{_unit(part.spec)} {level}' if level else 'data' for level in ranks]
    picture = p.ranked(boxes, [*bands, ''], f'example {example}, by level')
    return Markup(picture + line('muted', 'cut short where … stands' if is_cut else ''))


def _unit(spec: Spec) -> str:
    return 'step' if spec.program.has_loops and spec.strategy == FIXED else 'level'


def _label(part: Schedule, node: Node) -> str:
    """Return a node's text: its layer's name; for a constant, its value or type."""
    o, row = node
    if o >= 0:
        return cut(part.spec.program.operations[o].layer.name, 24)
    constants: Any = on_host(part.constants[~o])
    type_ = part.spec.program.types[~o]
    is_number = constants is not None and constants.ndim == 1 and not type_.shape
    return short(constants[row], 12) if is_number else cut(repr(type_), 24)
