# SPDX-License-Identifier: Apache-2.0
"""The labels of the rows of metrics, in files as the bytes of JSON lists."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jfold.base.errors import short_repr
from jfold.graph import Graph, Table
from jfold.program.operations import Program

Array = np.ndarray[Any, Any]


def labels_as_text(program: Program, labels: Mapping[str, Array]) -> dict[str, Array]:
    """Return the labels of each metric as JSON, bytes [size], by name in a file.

    Args:
      labels: [rows] object by name of the metric, as `labels_of` returns them.

    Raises:
      TypeError: JSON would not give a label back unchanged.
    """
    texts = (_text(name, column.tolist()) for name, column in labels.items())
    return dict(zip(_names(program), texts, strict=True))


def labels_of_text(
    program: Program, graph: Graph, arrays: Mapping[str, Array]
) -> tuple[Table, ...]:
    """Return the tables of labels of a graph; `arrays` are from `labels_as_text`."""
    tables = []
    for r, name in zip(program.labelled, _names(program), strict=True):
        labels = json.loads(arrays[name].tobytes())
        column = np.fromiter(labels, object, len(labels))
        tables.append(Table(graph.results[r].first, (column,)))
    return tuple(tables)


def _names(program: Program) -> Iterable[str]:
    """Return the names of arrays in a file, one for each metric that has labels."""
    return (f'labels/{n}' for n in range(len(program.labelled)))


def _text(name: str, labels: list[Any]) -> Array:
    text = _encoded(labels)
    if text is None:
        label = next(x for x in labels if _encoded([x]) is None)
        raise TypeError(
            f'metric {name!r}: expected labels that a file can hold as JSON (None, '
            'bools, numbers, strings, lists and dicts of these by strings), got '
            f'{short_repr(label)}: label rows by those, as by a number or a path'
        )
    return np.frombuffer(text, np.uint8)


def _encoded(labels: list[Any]) -> bytes | None:
    """Return labels as JSON; `None` if reading the JSON would not give equal labels."""
    try:
        text = json.dumps(labels, allow_nan=False)
        return text.encode() if bool(json.loads(text) == labels) else None
    except (TypeError, ValueError, RecursionError):
        return None
