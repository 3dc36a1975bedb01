# SPDX-License-Identifier: Apache-2.0
"""What a batch gives: results, which are tables of rows, and their kinds.

All that differs between kinds is said here, by the kind of each result; whoever plans,
runs, stores or hands out results asks it, and treats all alike otherwise.

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
IN_ROW = SequenceType, TensorType  # what of a type has a tensor in a row of it
T = TypeVar('T')


def nesting(type_: Type) -> Iterator[Type]:
    """The type itself, those of items of sequences in it, and so on."""
    found = [type_]
    for each in found:
        yield each
        sequences = (t for t in leaf_types(each) if isinstance(t, SequenceType))
        found.extend(sequence.item for sequence in sequences)


class Making(enum.Enum):
    """How rows are made, and so in which order they are."""

    RETURNED = enum.auto()  # by the body of the expression, one of each example
    OBSERVED = enum.auto()  # by that body, all at once, in the order that they have
    COLLECTED = enum.auto()  # by any body, some at a time; put in that of evaluation


# ---- kinds ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """Whose the rows of a result are, and what becomes of them.

    Attributes:
      said: what it is called; so files of traced examples say what is in them.
      making: how they are made.
      is_counted: whether each batch has its own number of rows: they take room in a
        capacity, spare ones are zero, and a schedule says of each whose it is.
      is_packed: whether the rows of all shards are handed out one after another, with
        spare ones at the end alone.
      level: which of the `nesting` of the expression's type the rows are; `None` of
        what the value of the expression is not made of.
      name: of the metric; `None` of others.
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
        """For how many rows there is room, given that for examples, and for the next
        results that are counted."""
        return next(counted) if self.is_counted else examples

    def owned(self, rows: int) -> int:
        """Of how many of its rows a schedule says whose they are."""
        return rows if self.is_counted else 0

    def __str__(self) -> str:
        return self.said


# The table: these are all that there are.

EXAMPLE_ROWS = Kind('result', Making.RETURNED, is_counted=False, level=0)


def item_rows(level: int) -> Kind:
    """Items of the sequences in the value, example by example; `Ragged` has no rows
    between those of shards."""
    return Kind(
        f'items of sequence {level}:', Making.OBSERVED, is_packed=True, level=level
    )


def metric_rows(name: str, labelled: bool = False) -> Kind:
    """What the metrics of a name collect, each when it is evaluated."""
    labels = ', with labels' if labelled else ''
    said = f'metric {name!r} in order{labels}:'
    return Kind(said, Making.COLLECTED, name=name, labelled=labelled)


# ---- results -------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """A table of rows that a batch gives.

    Attributes:
      kind: whose the rows are, and what becomes of them.
      type: of a row, as the user wrote it.
      tensors: those `in_row`, as numbers in `Operations.types`.
    """

    kind: Kind
    type: Type
    tensors: tuple[int, ...]

    def __str__(self) -> str:
        return f'{self.kind} {self.type!r}'


def in_row(type_: Type) -> tuple[TensorType, ...]:
    """The tensors in a row of a type: of a sequence its length, for whose items there
    is a result of its own."""
    return tuple(
        LENGTH if isinstance(each, SequenceType) else each
        for each in leaf_types(type_)
        if isinstance(each, IN_ROW)
    )


def rows_of(
    output: Type, metrics: Mapping[str, tuple[Type, bool]]
) -> tuple[tuple[Kind, Type], ...]:
    """The kinds of the results of an expression, in their order, with types of rows.

    Args:
      output: the type of one example's value.
      metrics: by name, what it collects, and whether its rows have labels.
    """
    own, *items = nesting(output)
    return (
        (EXAMPLE_ROWS, own),
        *((metric_rows(x, y), type_) for x, (type_, y) in sorted(metrics.items())),
        *((item_rows(k), item) for k, item in enumerate(items, 1)),
    )


# ---- which of them -------------------------------------------------------------------


def counted(results: Sequence[Result]) -> tuple[int, ...]:
    """The numbers of those with any number of rows."""
    return tuple(r for r, x in enumerate(results) if x.kind.is_counted)


def packed(results: Sequence[Result]) -> tuple[int, ...]:
    """The numbers of those whose rows lie together, whatever shards they are of."""
    return tuple(r for r, x in enumerate(results) if x.kind.is_packed)


def labelled(results: Sequence[Result]) -> tuple[int, ...]:
    """The numbers of those whose rows have labels."""
    return tuple(r for r, x in enumerate(results) if x.kind.labelled)


def of_value(results: Sequence[Result]) -> tuple[int, ...]:
    """The numbers of those that the value of the expression is made of, by level."""
    found = ((x.kind.level, r) for r, x in enumerate(results))
    return tuple(r for _, r in sorted((k, r) for k, r in found if k is not None))


def of_metrics(results: Sequence[Result]) -> tuple[int, ...]:
    """The numbers of those of metrics."""
    return tuple(r for r, x in enumerate(results) if x.kind.name is not None)


def check_classes(results: Iterable[Result]) -> None:
    """Refuses results in classes of a user's, which others need not have.

    Raises:
      TypeError: one is.
    """
    waiting: list[Type] = [each.type for each in results]
    while waiting:
        type_ = waiting.pop()
        if isinstance(type_, StructType) and type_.form.name:
            raise TypeError(
                f'expected `model` with results in tuples and dicts, got {type_}: '
                'return a dict at its end'
            )
        waiting += type_.parts if isinstance(type_, Nested) else ()


# ---- what a user gets ----------------------------------------------------------------


def handed_out(
    results: Sequence[Result],
    tables: Iterable[T],
    value_of: Callable[[list[T]], Any],
    metric_of: Callable[[int, T], Any],
) -> Any:
    """The value of an expression, with what metrics collect by name if there are any.

    Args:
      tables: of each result.
      value_of: makes the value of the tables of its levels.
      metric_of: makes what a metric collects of the number of its result, and table.
    """
    given = [*tables]
    value = value_of([given[r] for r in of_value(results)])
    metrics = {
        str(results[r].kind.name): metric_of(r, given[r]) for r in of_metrics(results)
    }
    return (value, metrics) if metrics else value


def each_handed_out(
    results: Sequence[Result],
    given: Any,
    change_value: Callable[[Any], Any],
    change_metric: Callable[[Any], Any],
) -> Any:
    """What `handed_out` gave, with functions applied to the value and each metric."""
    if not of_metrics(results):
        return change_value(given)
    value, metrics = given
    return change_value(value), {name: change_metric(x) for name, x in metrics.items()}
