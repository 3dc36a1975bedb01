# SPDX-License-Identifier: Apache-2.0
"""What source records, compared with what walks record, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from graphs import canonical, named
from walked import recorded

import jfold as jf
from fuzz.near import Mismatch
from jfold.lower import lower
from jfold.tracing.record import trace


def compare_rows(model: jf.Model, examples: Sequence[Any]) -> None:
    """The graphs of examples, one after another, as either makes them.

    Raises:
      Mismatch: a row is another.
    """
    # Walks know nothing of uses of one operation that are told apart.
    program = lower(model.block) if model.program.applied else model.program
    pairs = zip(
        named(canonical(program, trace(program, examples))),
        named(canonical(program, recorded(program, examples))),
        strict=True,
    )
    for (name, made), (_, walked) in pairs:
        if not np.array_equal(made, walked, equal_nan=made.dtype.kind == 'f'):
            raise Mismatch('rows', f'expected {walked}, got {made} as {name}')
