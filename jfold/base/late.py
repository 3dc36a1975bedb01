# SPDX-License-Identifier: Apache-2.0
"""Functions that are imported at their first call, and the display that one makes.

Methods of blocks run passes, which import blocks; displays read all that a class holds.
The package says where these functions are, so that imports make no circle.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

_loaders: list[Callable[[str], Any]] = []


def bind_late(load: Callable[[str], Any]) -> None:
    """Set the function `load(name)` by which `late` imports functions of jfold."""
    _loaders[:] = [functools.cache(load)]


def late(name: str) -> Callable[..., Any]:
    """Return the function `name` of jfold, imported at its first use."""
    function: Callable[..., Any] = _loaders[0](name)
    return function


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
