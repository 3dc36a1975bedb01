# SPDX-License-Identifier: Apache-2.0
"""Whether arrays agree, or a rounding of parameters moves them beyond the bound.

So it does in recurrences over many items that double a difference in each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from fuzz.twin import Evaluated, Twin

OF_VALUES = 'values', 'items', 'metrics'  # kinds of mismatches


class Mismatch(AssertionError):
    """Two results that should be equal are not."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f'{kind}: {text}')
        self.kind = kind


def same_array(
    kind: str, got: Any, want: Any, tolerance: float, what: str = ''
) -> None:
    """Two arrays agree, relative to the largest entry; also in what is no number."""
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape and np.shape(want):
        raise Mismatch(kind, f'{what} of shape {got.shape}, expected {want.shape}')
    if want.dtype.kind in 'iub' and got.dtype.kind in 'iub':
        agree = np.array_equal(got, want)
    else:
        agree = _near(got.astype(complex), want.astype(complex), tolerance)
    if not agree:
        raise Mismatch(kind, f'{what}\n{got}\nis not\n{want}')


def _near(got: Any, want: Any, tolerance: float) -> bool:
    finite = np.isfinite(want)
    if not np.array_equal(finite, np.isfinite(got)):
        return False
    scale = max(1.0, float(np.abs(want[finite]).max(initial=0)))
    difference = np.abs(got[finite] - want[finite]).max(initial=0)
    return bool(difference <= tolerance * scale)


def is_sensitive(
    session: Any, rows: Sequence[int], compare: Callable[[Twin, list[Evaluated]], None]
) -> bool:
    """Whether a batch is so, and counts it; what is interpreted never is.

    Args:
      compare: raises `Mismatch` if a twin with moved parameters, and what it makes of
        the batch, differ from what is expected.
    """
    if not session.case.compiled:
        return False
    twin = session.twin.nearby()
    try:
        compare(twin, [twin.evaluate(session.examples[row]) for row in rows])
    except Mismatch:
        session.tally['sensitive'] += 1
        return True
    return False


def same_runs(
    found: Sequence[Evaluated], wanted: Sequence[Evaluated], tolerance: float
) -> None:
    """Values and metrics of examples are near those of others."""
    for one, other in zip(found, wanted, strict=True):
        parts = (jax.tree.leaves((x.value, x.metrics)) for x in (one, other))
        for got, want in zip(*parts, strict=True):
            same_array('values', got, want, tolerance)
