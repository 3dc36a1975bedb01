# SPDX-License-Identifier: Apache-2.0
"""The division of rows into tiles of several widths, where batches give trip counts.

A tile is a block of rows that run at once. Host and device use the same rule: the host
to print how many tiles there are, a loop to know whether there is one more.
"""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import jax
import numpy as np

from jfold.graph import Array

Widths: TypeAlias = tuple[int, ...]  # rows per tile; counted ones widest first
Part = TypeVar('Part', int, jax.Array)


def empty_fraction(cores: int) -> int:
    """Return n, such that up to 1/n of a wide tile may be empty.

    On several cores a wide tile that is half full is faster than narrow tiles, which
    do not fill the cores. On one core a row costs the same in both, so a wide tile must
    be nearly full. So the order of sums, and last digits, depend on the cores.
    """
    return 2 if cores > 1 else 6


def reverse_widths(widths: Widths) -> Widths:
    """Return the tile widths of the reverse pass: the widest and the narrowest.

    A width takes twice as long to compile as in the forward pass.
    """
    return widths[:1] + widths[1:][-1:]


def max_left_over(widths: Widths, empty: Part) -> list[Part | int]:
    """Return, per tile width, how many rows at most are left to narrower tiles.

    The last width leaves 0.

    Args:
      empty: the `n`, where up to 1/n of a wide tile may be empty; an array [] on the
        device.
    """
    left: list[Part | int] = [width - width // empty for width in widths]
    left[-1] = 0
    return left


def tiles(rows: Array, widths: Widths, empty: int) -> Array:
    """Divide each number of rows into tiles; return tile counts [n, widths] int32.

    Args:
      rows: [n] numbers of rows, each divided into tiles by itself.
      widths: rows per tile, widest first.
      empty: the `n`, where up to 1/n of a wide tile may be empty.
    """
    counts = np.empty((len(rows), len(widths)), np.int32)
    pairs = zip(widths, max_left_over(widths, empty), strict=True)
    for column, (width, left) in enumerate(pairs):
        counts[:, column] = np.maximum(-((left - rows) // width), 0)
        rows = np.maximum(rows - counts[:, column] * width, 0)
    return counts
