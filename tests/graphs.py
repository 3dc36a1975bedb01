# SPDX-License-Identifier: Apache-2.0
"""Comparing graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from jfold.graph import Graph

Array = np.ndarray[Any, Any]


def named(graph: Graph) -> Iterator[tuple[str, Array]]:
    """All arrays of a graph."""
    for kind in ('constants', 'operations', 'results'):
        for n, table in enumerate(getattr(graph, kind)):
            yield f'{kind} {n}: first', table.first
            for k, column in enumerate(table.columns):
                yield f'{kind} {n}: column {k}', column


def same_bits(name: str, left: Any, right: Any) -> None:
    """Two arrays have one type, one shape and the same bits."""
    left, right = np.asarray(left), np.asarray(right)
    assert (left.dtype, left.shape) == (right.dtype, right.shape), name
    assert left.tobytes() == right.tobytes(), f'{name}: {left} is not {right}'


def same(left: Graph, right: Graph) -> None:
    """Two graphs are equal to the bit."""
    assert left.examples == right.examples
    pairs = zip(named(left), named(right), strict=True)
    for (name, a), (other, b) in pairs:
        assert name == other
        same_bits(name, a, b)
