# SPDX-License-Identifier: Apache-2.0
"""Expressions with functions in them, and how they differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jfold as jf
from jfold.data.fingerprint import fingerprint


def adder(number: Any) -> Callable[[Any], Any]:
    """A function that closes over something."""
    return lambda x: x + number


def number(fn: Callable[[Any], Any]) -> Any:
    """An expression with a function in it."""
    return jf.InputTransform(fn) >> jf.Scalar()


def of(block: Any) -> dict[str, Any]:
    """The fingerprint of an expression."""
    return fingerprint(jf.compile(block).program)
