# SPDX-License-Identifier: Apache-2.0
"""Functions that are imported at their first call, so that imports make no circle.

Methods of blocks run passes, which import blocks; displays read all that a class holds.
The package says where these functions are.
"""

from __future__ import annotations

import functools
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
