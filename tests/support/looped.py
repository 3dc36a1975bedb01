# SPDX-License-Identifier: Apache-2.0
"""Models whose components all run in loops, as parts of a recursion do."""

from __future__ import annotations

from typing import Any

import jfold as jf
from jfold.combinators import convert_to_block
from jfold.lower import lower
from jfold.scheduling.spec import SAVE_PRODUCTS


def in_loops(
    block: Any, residuals: str = SAVE_PRODUCTS, strategy: str | None = None
) -> jf.Model:
    """The model of a block, of which nothing is unrolled."""
    root = convert_to_block(block)
    return jf.Model(root, lower(root), None, residuals, strategy)


def compiled(block: Any, residuals: str, strategy: str | None) -> jf.Model:
    """A model with loops of a strategy; as users have it, if there is none."""
    if strategy is None:
        return jf.compile(block, residuals=residuals)
    return in_loops(block, residuals, strategy)
