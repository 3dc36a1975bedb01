# SPDX-License-Identifier: Apache-2.0
"""Functions that are imported at their first call, and a base class of displays.

Methods of blocks run compiler passes, which import the blocks: late imports avoid the
cycle.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any


@functools.cache
def late(module: str, name: str) -> Any:
    """Return function or class `name` of jfold's `module`, imported at first use."""
    return getattr(importlib.import_module(f'jfold.{module}'), name)


class Displayed:
    """A base class of objects that notebooks show as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """Return the display as HTML, or `None` to show plain text."""
        html: str | None = late('display.drawing', 'html_of')(self)
        return html

    def __treescope_repr__(self, path: str | None, subtree_renderer: object) -> Any:
        """Return one line for treescope, which itself appends the HTML display."""
        parts = sys.modules['treescope'].rendering_parts
        return parts.build_one_line_tree_node(parts.text(repr(self)), path)
