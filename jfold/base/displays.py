# SPDX-License-Identifier: Apache-2.0
"""The base class of objects with a display in notebooks, and the hook behind it.

Displays read all that a class holds, so they stand behind all classes; the package
binds them here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Displays:
    """The functions behind the methods of displayed objects.

    Attributes:
      html: returns the display of an object as HTML; `None` if it cannot be made.
      traceback: returns IPython's lines of the traceback of an `InputError`, after
        showing its example where HTML is shown.
    """

    html: Callable[[object], str | None]
    traceback: Callable[[Any], list[str]]


_loaders: list[Callable[[], Displays]] = []


def bind_displays(load: Callable[[], Displays]) -> None:
    """Set the function that imports the displays at their first use."""
    _loaders[:] = [functools.cache(load)]


def bound_displays() -> Displays:
    """Return the bound displays; `import jfold` has bound them."""
    return _loaders[0]()


class Displayed:
    """A base class of objects that notebooks show as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """Return the display as HTML; `None` where plain text has to do."""
        return bound_displays().html(self)
