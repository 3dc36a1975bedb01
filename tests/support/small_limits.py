# SPDX-License-Identifier: Apache-2.0
"""Limits so low that small data and small layers meet them, as large ones do.

What jfold does by size, of rows, bytes or summands, few other tests would meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from jfold.data import tracer
from jfold.device import execution, hoisting, xla
from jfold.files import storage
from jfold.language import fusion
from jfold.scheduling import layout, staircase, tiles
from jfold.tracing import check_graph

LIMITS = {
    check_graph: {'BLOCK': 3},
    execution: {'ROOM': 512},
    fusion: {'SMALL_TABLE': 64},
    hoisting: {'WORTH': 2},
    layout: {'MEMORY': 512, 'SUM_WIDTH': 2},
    staircase: {'NARROW': 2},
    storage: {'_CHUNK': 128},
    tiles: {
        'CACHE': 64,
        'MEMORY': 512,
        'NARROW': 2,
        'SAME': 2,
        'SAME_CHUNK': 3,
        'SAME_STEP': 2,
        'SAME_STEP_CHUNK': 3,
    },
    tiles.Counted: {
        'widths': lambda self, *_: (tiles.SAME,) if self.reproducible else (5, 2)
    },
    tracer: {'CHUNK_WORK': 8},
    xla: {'NARROW': 4},
}


@contextmanager
def small_limits() -> Iterator[None]:
    """Models that are compiled and run within have them."""
    with ExitStack() as stack:
        for owner, values in LIMITS.items():
            for name, value in values.items():
                stack.enter_context(patch.object(owner, name, value))
        yield
