# SPDX-License-Identifier: Apache-2.0
"""Labels of the rows of metrics, as arrays of a file: a JSON list of each metric's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import numpy as np

from jfold.base.errors import short_repr
from jfold.graph import Graph, Table
from jfold.program.operations import Program

Array = np.ndarray[Any, Any]


def labels_as_text(program: Program, labels: Mapping[str, Array]) -> dict[str, Array]:
    """Labels [rows] of metrics as arrays by name, of bytes.

    Raises:
      TypeError: one is not of those that JSON gives back as they were.
    """
    texts = (_text(name, each.tolist()) for name, each in labels.items())
    return dict(zip(_names(program), texts, strict=True))


def labels_of_text(
    program: Program, graph: Graph, arrays: Mapping[str, Array]
) -> tuple[Table, ...]:
    """The tables of labels that belong to the results of a graph."""
    found = []
    for r, name in zip(program.labelled, _names(program), strict=True):
        labels = json.loads(arrays[name].tobytes())
        column = np.fromiter(labels, object, len(labels))
        found.append(Table(graph.results[r].first, (column,)))
    return tuple(found)


def _names(program: Program) -> Iterable[str]:
    """What the labels of each metric that has any are called in a file."""
    return (f'labels/{n}' for n in range(len(program.labelled)))


def _text(name: str, labels: list[Any]) -> Array:
    text = _encoded(labels)
    if text is None:
        _refuse(name, next(each for each in labels if _encoded([each]) is None))
    return np.frombuffer(text, np.uint8)


def _encoded(labels: list[Any]) -> bytes | None:
    """As JSON, if that gives back what is equal to them."""
    try:
        text = json.dumps(labels, allow_nan=False)
        return text.encode() if bool(json.loads(text) == labels) else None
    except (TypeError, ValueError, RecursionError):
        return None


def _refuse(name: str, label: object) -> NoReturn:
    raise TypeError(
        f'metric {name!r}: expected labels that a file can hold as JSON (None, bools, '
        f'numbers, strings, lists and dicts of these by strings), got '
        f'{short_repr(label)}: label rows by those, as by a number or a path'
    )
