# SPDX-License-Identifier: Apache-2.0
"""The base class of objects with a display in notebooks."""

from __future__ import annotations

import sys
from typing import Any

from jfold.base.late import late


class Displayed:
    """A base class of objects that notebooks show as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """Return the display as HTML, or `None` to show plain text."""
        html: str | None = late('html_of')(self)
        return html

    def __treescope_repr__(self, path: str | None, subtree_renderer: object) -> Any:
        """Return a line for treescope, which appends the display, and not all parts."""
        parts = sys.modules['treescope'].rendering_parts
        return parts.build_one_line_tree_node(parts.text(repr(self)), path)
