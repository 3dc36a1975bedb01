# SPDX-License-Identifier: Apache-2.0
"""Whether a rounding of parameters alone moves what is compared beyond the bound.

So it does in recurrences over many items that double a difference in each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from fuzz.near import Mismatch, same_array
from fuzz.twin import Evaluated, Twin

OF_VALUES = 'values', 'items', 'metrics'  # kinds of mismatches


def is_sensitive(
    session: Any,
    rows: Sequence[int],
    compare: Callable[[Twin, list[Evaluated]], None],
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
