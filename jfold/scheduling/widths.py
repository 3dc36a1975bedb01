# SPDX-License-Identifier: Apache-2.0
"""How rows are cut into tiles of several widths, in loops as long as a batch says.

Host and device go by the same rule: the host to tell how many tiles there are, a loop
to know whether there is one more.
"""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import jax
import numpy as np

from jfold.graph import Array

Widths: TypeAlias = tuple[int, ...]  # rows per tile; counted ones widest first
Part = TypeVar('Part', int, jax.Array)


def empty_part(cores: int) -> int:
    """The part of a wide tile that may be empty: one of so many.

    A wide tile that is half full is faster than narrow ones on several cores, which
    gain little from those. On one core, where rows cost the same in both, it must be
    nearly full. So the order of sums, and last digits, depend on the cores.
    """
    return 2 if cores > 1 else 6


def reverse_widths(widths: Widths) -> Widths:
    """The widths of the reverse pass, in which each takes twice as long to compile: the
    widest and the narrowest."""
    return widths[:1] + widths[1:][-1:]


def left_over(widths: Widths, empty: Part) -> list[Part | int]:
    """How many rows at most tiles of each width leave to narrower ones.

    Args:
      empty: [] as of `empty_part`.
    """
    found: list[Part | int] = [width - width // empty for width in widths]
    found[-1] = 0
    return found


def tiles(rows: Array, widths: Widths, empty: int) -> Array:
    """Tiles per width [n, widths] int32 for numbers of rows [n]."""
    found = np.empty((len(rows), len(widths)), np.int32)
    pairs = zip(widths, left_over(widths, empty), strict=True)
    for column, (width, left) in enumerate(pairs):
        found[:, column] = np.maximum(-((left - rows) // width), 0)
        rows = np.maximum(rows - found[:, column] * width, 0)
    return found
