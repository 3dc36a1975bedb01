# SPDX-License-Identifier: Apache-2.0
"""Tiles so narrow that small data take several, as large data do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from jfold.scheduling import staircase, tiles

# Of whatever decides in bytes or rows how much is computed at once.
SMALL = {
    staircase: {'NARROW': 2},
    tiles: {
        'NARROW': 2,
        'CACHE': 64,
        'SUM_WIDTH': 2,
        'MEMORY': 512,
        'SAME': 2,
        'SAME_STEP': 2,
        'SAME_CHUNK': 3,
        'SAME_STEP_CHUNK': 3,
    },
}


@contextmanager
def narrow_tiles() -> Iterator[None]:
    """Models that are compiled and run within have them."""
    with ExitStack() as stack:
        for module, values in SMALL.items():
            for name, value in values.items():
                stack.enter_context(patch.object(module, name, value))
        counted: Any = patch.object(tiles.Counted, 'widths', lambda *_: (5, 2))
        stack.enter_context(counted)
        yield
