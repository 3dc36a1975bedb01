# SPDX-License-Identifier: Apache-2.0
"""Results: the tables of rows that a batch returns, and their kinds.

All that differs between kinds is said here. The scheduler, the device and what returns
values to a user ask the `Kind` of a result, and treat all alike otherwise.

    | kind           | rows           | in the order of | spare rows | given as       |
    | -------------- | -------------- | --------------- | ---------- | -------------- |
    | `EXAMPLE_ROWS` | one an example | the examples    | repeat one | the value      |
    | `item_rows`    | any number     | the data        | are zero   | `Ragged` in it |
    | `metric_rows`  | any number     | evaluation      | are zero   | `MetricValues` |
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from jfold.types import (
    Nested,
    SequenceType,
    StructType,
    TensorType,
    Type,
    leaf_types,
)

LENGTH = TensorType((), 'int32')  # of the lengths of sequences
IN_ROW = SequenceType, TensorType  # leaf types that have a tensor in a row
T = TypeVar('T')


def nesting(type_: Type) -> Iterator[Type]:
    """Yield a type, those of the items of sequences in it, and so on inwards."""
    types = [type_]
    for level in types:  # grows meanwhile: breadth first
        yield level
        sequences = (t for t in leaf_types(level) if isinstance(t, SequenceType))
        types.extend(sequence.item for sequence in sequences)


class Making(enum.Enum):
    """The place where rows of a result are made, which decides their order."""

    RETURNED = enum.auto()  # by the body of the expression, one row per example
    OBSERVED = enum.auto()  # by that body, all rows at once, in their own order
    COLLECTED = enum.auto()  # by any body, some at a time; sorted as `eval` would be


# ---- kinds ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """The kind of a result: where its rows come from, and how they are returned.

    Attributes:
      said: a name, by which files of traced examples say what is in them.
      making: where rows are made.
      is_counted: whether each batch has its own number of rows: they take room in a
        capacity, spare ones are zero, and a schedule has the example of each row.
      is_packed: whether the rows of all shards are returned one after another, with
        spare ones at the end alone.
      level: the place of the rows in the `nesting` of the expression's type; `None` if
        the value of the expression is not made of them.
      name: of the metric; `None` for other results.
      labelled: whether each row has a label, an object that stays on the host.
    """

    said: str
    making: Making
    is_counted: bool = True
    is_packed: bool = False
    level: int | None = None
    name: str | None = None
    labelled: bool = False

    def room(self, examples: int, counted: Iterator[int]) -> int:
        """Return the rows in a capacity: the next of `counted`, or `examples`."""
        return next(counted) if self.is_counted else examples

    def owned(self, rows: int) -> int:
        """Return the number of rows whose example a schedule stores."""
        return rows if self.is_counted else 0

    def __str__(self) -> str:
        return self.said


# The table of the docstring above: there are no other kinds.

EXAMPLE_ROWS = Kind('result', Making.RETURNED, is_counted=False, level=0)


def item_rows(level: int) -> Kind:
    """Return the kind of items of sequences in the value, example by example."""
    # Packed, as a `Ragged` has no spare rows between those of shards.
    return Kind(
        f'items of sequence {level}:', Making.OBSERVED, is_packed=True, level=level
    )


def metric_rows(name: str, labelled: bool = False) -> Kind:
    """Return the kind of rows that the metrics of one name collect."""
    labels = ', with labels' if labelled else ''
    said = f'metric {name!r} in order{labels}:'
    return Kind(said, Making.COLLECTED, name=name, labelled=labelled)


# ---- results -------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """A table of rows that a batch returns.

    Attributes:
      kind: where rows come from, and how they are returned.
      type: of a row, as the user wrote it.
      tensors: the types `tensors_in_row`, as numbers in `Operations.types`.
    """

    kind: Kind
    type: Type
    tensors: tuple[int, ...]

    def __str__(self) -> str:
        return f'{self.kind} {self.type!r}'


def tensors_in_row(type_: Type) -> tuple[TensorType, ...]:
    """Return the tensor types in a row of a type; of sequences, lengths."""
    return tuple(
        LENGTH if isinstance(leaf, SequenceType) else leaf
        for leaf in leaf_types(type_)
        if isinstance(leaf, IN_ROW)
    )


def rows_of(
    output: Type, metrics: Mapping[str, tuple[Type, bool]]
) -> tuple[tuple[Kind, Type], ...]:
    """Return the kinds of an expression's results, in order, with types of rows.

    Args:
      output: the type of one example's value.
      metrics: by name, the type that it collects, and whether its rows have labels.
    """
    value, *items = nesting(output)
    return (
        (EXAMPLE_ROWS, value),
        *((metric_rows(x, y), type_) for x, (type_, y) in sorted(metrics.items())),
        *((item_rows(k), item) for k, item in enumerate(items, 1)),
    )


# ---- selectors -----------------------------------------------------------------------


def counted(results: Sequence[Result]) -> tuple[int, ...]:
    """Return the numbers of results that may have any number of rows."""
    return tuple(r for r, x in enumerate(results) if x.kind.is_counted)


def packed(results: Sequence[Result]) -> tuple[int, ...]:
    """Return the numbers of results whose rows of all shards lie together."""
    return tuple(r for r, x in enumerate(results) if x.kind.is_packed)


def labelled(results: Sequence[Result]) -> tuple[int, ...]:
    """Return the numbers of results whose rows have labels."""
    return tuple(r for r, x in enumerate(results) if x.kind.labelled)


def value_numbers(results: Sequence[Result]) -> tuple[int, ...]:
    """Return the numbers of results that make up the expression's value, by level."""
    levels = ((x.kind.level, r) for r, x in enumerate(results))
    return tuple(r for _, r in sorted((k, r) for k, r in levels if k is not None))


def metric_numbers(results: Sequence[Result]) -> tuple[int, ...]:
    """Return the numbers of results of metrics."""
    return tuple(r for r, x in enumerate(results) if x.kind.name is not None)


def check_classes(results: Iterable[Result]) -> None:
    """Check that no result is a class of the user's, which others may not have.

    Raises:
      TypeError: one is.
    """
    waiting: list[Type] = [result.type for result in results]
    while waiting:
        type_ = waiting.pop()
        if isinstance(type_, StructType) and type_.form.name:
            raise TypeError(
                f'expected `model` with results in tuples and dicts, got {type_}: '
                'return a dict at its end'
            )
        waiting += type_.parts if isinstance(type_, Nested) else ()


# ---- returned values -----------------------------------------------------------------


def assemble(
    results: Sequence[Result],
    tables: Iterable[T],
    value_of: Callable[[list[T]], Any],
    metric_of: Callable[[int, T], Any],
) -> Any:
    """Return the value of an expression; with metrics, also those by name.

    Args:
      tables: of each result.
      value_of: makes the value from the tables of its levels.
      metric_of: makes the value of a metric from the number of its result and table.
    """
    rows = [*tables]
    value = value_of([rows[r] for r in value_numbers(results)])
    metrics = {
        str(results[r].kind.name): metric_of(r, rows[r])
        for r in metric_numbers(results)
    }
    return (value, metrics) if metrics else value


def map_outputs(
    results: Sequence[Result],
    output: Any,
    change_value: Callable[[Any], Any],
    change_metric: Callable[[Any], Any],
) -> Any:
    """Apply functions to the value and to each metric of a result of `assemble`."""
    if not metric_numbers(results):
        return change_value(output)
    value, metrics = output
    return change_value(value), {name: change_metric(x) for name, x in metrics.items()}
