# SPDX-License-Identifier: Apache-2.0
"""The base class of objects with a display in notebooks."""

from __future__ import annotations

from jfold.base.late import late


class Displayed:
    """A base class of objects that notebooks show as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """Return the display as HTML, or `None` to show plain text."""
        html: str | None = late('html_of')(self)
        return html
