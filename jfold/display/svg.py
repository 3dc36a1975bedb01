# SPDX-License-Identifier: Apache-2.0
"""Pictures as SVG: boxes in ranks with edges, histograms, and their elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jfold.display.markup import Markup, element

CHARACTER, GAP, RANK, HEIGHT = 7.3, 12, 62, 32  # pixels
T = np.arange(1, 12) / 12
# The weights of the four ends of a cubic Bézier curve, at eleven points between.
POINTS = np.stack([(1 - T) ** 3, 3 * T * (1 - T) ** 2, 3 * T**2 * (1 - T), T**3])
BENDS = 0, 50, -50, 100, -100, 150, -150, 220, 0  # of edges, in pixels


@dataclass(frozen=True)
class Box:
    """A box of a picture in which boxes stand in ranks, one above another.

    Attributes:
      label, note: the text in it, and a small one below; '' for no note.
      rank: how far up it is, from 0.
      reads: the numbers of the boxes with an edge to this one.
      loops: whether it is marked as part of a recurrence.
    """

    label: str
    note: str
    rank: int
    reads: tuple[int, ...] = ()
    loops: bool = False

    @property
    def half(self) -> float:
        """Half of the width in pixels."""
        return CHARACTER * max(len(self.label), 0.9 * len(self.note), 2) / 2 + 7


def svg(width: float, height: float, parts: Sequence[Markup], name: str) -> Markup:
    """Return `parts` as an SVG picture; `name` is the text that screen readers say."""
    size = {'width': f'{width:.0f}', 'height': f'{height:.0f}', 'class': 'jfold'}
    size |= {'viewBox': f'0 0 {width:.0f} {height:.0f}', 'role': 'img'}
    xmlns = 'http://www.w3.org/2000/svg'
    return element('svg', element('title', name), *parts, xmlns=xmlns, **size)


def text(x: float, y: float, content: object, kind: str | None = None) -> Markup:
    """Return text of CSS class `kind`, centred at `x`; 'jf-l' makes it begin there."""
    return element('text', content, x=f'{x:.1f}', y=f'{y:.1f}', class_=kind)


def left(x: float, y: float, content: object) -> Markup:
    """Return small text `content` that begins at `x`."""
    return text(x, y, content, 'jf-l jf-muted')


def rect(x: float, y: float, wide: float, high: float, kind: str, tip: str) -> Markup:
    """Return a rectangle, `wide` by `high`, of class `kind`, with the tooltip `tip`."""
    size = {'width': f'{wide:.1f}', 'height': f'{high:.1f}', 'rx': 3, 'class': kind}
    return element('rect', element('title', tip), x=f'{x:.1f}', y=f'{y:.1f}', **size)


def ranked(boxes: Sequence[Box], bands: Sequence[str], name: str) -> Markup:
    """Return a picture of `boxes`, higher ranks above; `bands` labels ranks from 0."""
    begin = CHARACTER * max(map(len, bands), default=0) + 14
    xs = _places(boxes, begin)
    bottom = RANK * max((box.rank for box in boxes), default=0) + 12
    end = max((x + box.half for x, box in zip(xs, boxes, strict=True)), default=0)
    ys = [bottom - RANK * box.rank for box in boxes]
    parts = []
    for rank, band in enumerate(bands):
        y = bottom - RANK * rank + HEIGHT / 2
        form = f'M{begin - 6:.1f} {y}H{end + 8:.1f}'
        parts += [element('path', d=form, class_='jf-band'), left(4, y + 4, band)]
    for k, box in enumerate(boxes):
        parts += [_edge(boxes, xs, ys, end + 20, i, k) for i in box.reads]
    for box, x, y in zip(boxes, xs, ys, strict=True):
        kind, tip = 'jf-loop' if box.loops else 'jf-box', f'{box.label} {box.note}'
        parts.append(rect(x - box.half, y, 2 * box.half, HEIGHT, kind, tip))
        parts.append(text(x, y + (14 if box.note else 20), box.label))
        parts.append(text(x, y + 26, box.note, 'jf-muted'))
    return svg(end + 24, bottom + HEIGHT + 8, parts, name)


def _edge(
    boxes: Sequence[Box],
    xs: Sequence[float],
    ys: Sequence[float],
    right: float,
    i: int,
    k: int,
) -> Markup:
    """Return the curve from box `i` to box `k`, which reads it, left of `right`.

    It goes up; in a recurrence back down. `xs` are middles of boxes, `ys` their tops.
    """
    (x, y), (a, b), kind = (xs[k], ys[k] + HEIGHT), (xs[i], ys[i]), 'jf-back'
    if i == k:
        form = f'M{x + boxes[k].half:.1f} {b + 10}c16 -16 16 28 0 12'
    elif boxes[i].rank < boxes[k].rank:
        middle, bend, kind = max((b + y) / 2, b - RANK), 0, 'jf-edge'
        ranks = range(boxes[i].rank + 1, boxes[k].rank)
        numbers = range(len(boxes) if ranks else 0)
        between = [n for n in numbers if boxes[n].rank in ranks]
        for bend in BENDS if between else (0,):
            p, q = np.transpose(
                [(a, b), (a + bend, middle), (x + bend, middle), (x, y)]
            )
            p, q = p @ POINTS, q @ POINTS
            hits = [
                (abs(p - xs[n]) < boxes[n].half + 3)
                & (abs(q - ys[n] - HEIGHT / 2) < HEIGHT / 2)
                for n in between
            ]
            if 4 < p.min() and p.max() < right and not np.any(hits):
                break  # it passes by the boxes between
        ends = f'{a + bend:.1f} {middle} {x + bend:.1f} {middle} {x:.1f} {y}'
        form = f'M{a:.1f} {b}C{ends}'
    else:
        form = f'M{a:.1f} {b}C{a:.1f} {b - 22} {x:.1f} {ys[k] - 22} {x:.1f} {ys[k]}'
    return element('path', d=form, class_=kind)


def _places(boxes: Sequence[Box], begin: float) -> list[float]:
    """Return each box's middle x: over the boxes that it reads, right of `begin`."""
    below = [[i for i in box.reads if boxes[i].rank < box.rank] for box in boxes]
    order: dict[int, None] = {}  # in which a box stands behind those that it reads

    def visit(k: int) -> None:
        if k not in order:
            for i in below[k]:
                visit(i)
            order[k] = None

    for k in reversed(sorted(range(len(boxes)), key=lambda k: boxes[k].rank)):
        visit(k)
    places, free = [0.0] * len(boxes), begin
    for k in order:
        if below[k]:
            places[k] = sum(places[i] for i in below[k]) / len(below[k])
        else:
            places[k] = free + boxes[k].half
            free += 2 * boxes[k].half + GAP
    ends: dict[int, float] = {}
    for k in sorted(order, key=places.__getitem__):
        rank, half = boxes[k].rank, boxes[k].half
        places[k] = max(places[k], ends.get(rank, begin) + half)
        ends[rank] = places[k] + half + GAP
    return places


def bars(counts: Sequence[int], ends: tuple[str, str], name: str) -> Markup:
    """Return histogram `name`: bars as high as `counts`, axis labelled by `ends`."""
    most, wide = max([*counts, 1]), 264 / max(len(counts), 1)
    parts = [text(8, 14, name, 'jf-l'), left(8, 110, ends[0]), left(250, 110, ends[1])]
    for k, count in enumerate(counts):
        high = max(70 * count / most, 1.5 if count else 0)
        tip = f'{count:,} examples'
        parts.append(rect(8 + wide * k, 96 - high, wide - 2, high, 'jf-rows', tip))
    return svg(300, 116, parts, name)
