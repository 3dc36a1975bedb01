# SPDX-License-Identifier: Apache-2.0
"""Whether arrays agree."""

from __future__ import annotations

from typing import Any

import numpy as np


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
