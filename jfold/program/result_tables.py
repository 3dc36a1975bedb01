# SPDX-License-Identifier: Apache-2.0
"""Results: the tables of rows that a batch returns, and their kinds.

All differences between kinds are attributes of `Kind`. The scheduler, the device and
the code that returns values to a user read these, and treat all kinds alike otherwise.

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

LENGTH = TensorType((), 'int32')  # the type of lengths of sequences
IN_ROW = SequenceType, TensorType  # leaf types that have a tensor in a row
T = TypeVar('T')


def nesting(type_: Type) -> Iterator[Type]:
    """Yield a type, the item types of sequences in it, and so on, breadth first.

    The index in this order is the level of rows; level 0 is the whole type.
    """
    types = [type_]
    for level in types:  # which grows in the loop
        yield level
        sequences = (t for t in leaf_types(level) if isinstance(t, SequenceType))
        types.extend(sequence.item for sequence in sequences)


class Making(enum.Enum):
    """The place in the source that makes rows of a result; it sets their order.

    The body of the expression runs once per example, that of a declaration at each use.
    """

    RETURNED = enum.auto()  # by the expression's body, one row per example
    OBSERVED = enum.auto()  # by that body, all items of a sequence at once
    COLLECTED = enum.auto()  # by any body; sorted into the order of `Block.eval`


# ---- kinds ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """The kind of a result: where its rows come from, and how they are returned.

    Attributes:
      said: the text that names the kind in files of traced examples.
      making: where rows are made.
      is_counted: whether each batch has its own number of rows. Then a capacity has a
        number of rows for it, spare rows are zero, and a schedule stores the index of
        the example of each row.
      is_packed: whether the rows of all shards are returned one after another, with
        spare rows only behind the last.
      level: the index of the row type in the `nesting` of the expression's type; `None`
        if the rows are not in the value of the expression.
      name: the name of the metric; `None` for other results.
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
        """Return the number of rows that a capacity has for a result of this kind.

        Args:
          examples: the capacity's number of examples, returned unless `is_counted`.
          counted: the capacity's numbers of rows of counted results, in order; the next
            is taken and returned if `is_counted`.
        """
        return next(counted) if self.is_counted else examples

    def owned(self, rows: int) -> int:
        """Return `rows` if a schedule stores the example of each row, else 0."""
        return rows if self.is_counted else 0

    def __str__(self) -> str:
        return self.said


# There are three kinds of results: those in the table of this file's docstring.

EXAMPLE_ROWS = Kind('result', Making.RETURNED, is_counted=False, level=0)


def item_rows(level: int) -> Kind:
    """Return the kind of the rows that are items of sequences at a `nesting` level."""
    # Packed, because a `Ragged` has no spare rows between those of two shards.
    return Kind(
        f'items of sequence {level}:', Making.OBSERVED, is_packed=True, level=level
    )


def metric_rows(name: str, labelled: bool = False) -> Kind:
    """Return the kind of the rows that all metrics with one name collect."""
    labels = ', with labels' if labelled else ''
    said = f'metric {name!r} in order{labels}:'
    return Kind(said, Making.COLLECTED, name=name, labelled=labelled)


# ---- results -------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """A table of rows that a batch returns.

    Attributes:
      kind: where rows come from, and how they are returned.
      type: the type of a row, as the user wrote it.
      tensors: the types `tensors_in_row(type)`, as indices into `Operations.types`.
    """

    kind: Kind
    type: Type
    tensors: tuple[int, ...]

    def __str__(self) -> str:
        return f'{self.kind} {self.type!r}'


def tensors_in_row(type_: Type) -> tuple[TensorType, ...]:
    """Return the types of the tensors in a row; for a sequence, `LENGTH`."""
    return tuple(
        LENGTH if isinstance(leaf, SequenceType) else leaf
        for leaf in leaf_types(type_)
        if isinstance(leaf, IN_ROW)
    )


def rows_of(
    output: Type, metrics: Mapping[str, tuple[Type, bool]]
) -> tuple[tuple[Kind, Type], ...]:
    """Return the results of an expression in order, as pairs of kind and row type.

    Args:
      output: the type of one example's value.
      metrics: by name of a metric, its row type, and whether its rows have labels.
    """
    value, *items = nesting(output)
    return (
        (EXAMPLE_ROWS, value),
        *((metric_rows(x, y), type_) for x, (type_, y) in sorted(metrics.items())),
        *((item_rows(k), item) for k, item in enumerate(items, 1)),
    )


# ---- selectors -----------------------------------------------------------------------


def counted(results: Sequence[Result]) -> tuple[int, ...]:
    """Return the indices of results whose number of rows differs by batch."""
    return tuple(r for r, x in enumerate(results) if x.kind.is_counted)


def packed(results: Sequence[Result]) -> tuple[int, ...]:
    """Return the indices of results whose rows of all shards are returned packed."""
    return tuple(r for r, x in enumerate(results) if x.kind.is_packed)


def labelled(results: Sequence[Result]) -> tuple[int, ...]:
    """Return the indices of results whose rows have labels."""
    return tuple(r for r, x in enumerate(results) if x.kind.labelled)


def value_numbers(results: Sequence[Result]) -> tuple[int, ...]:
    """Return the indices of results that make up the value, sorted by level."""
    levels = ((x.kind.level, r) for r, x in enumerate(results))
    return tuple(r for _, r in sorted((k, r) for k, r in levels if k is not None))


def metric_numbers(results: Sequence[Result]) -> tuple[int, ...]:
    """Return the indices of results that metrics collect."""
    return tuple(r for r, x in enumerate(results) if x.kind.name is not None)


def check_classes(results: Iterable[Result]) -> None:
    """Raise TypeError if a result holds an object of a class, such as a dataclass.

    Another process may lack that class; tuples and dicts pass.
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
    """Return the value of an expression, or `(value, {name: metric})` with metrics.

    Args:
      tables: one table per result.
      value_of: a function from the tables of the value's levels to the value.
      metric_of: a function from the index and table of a metric's result to its value.
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
    """Return a result of `assemble`, with its value and each of its metrics changed.

    Args:
      output: the result of `assemble`.
    """
    if not metric_numbers(results):
        return change_value(output)
    value, metrics = output
    return change_value(value), {name: change_metric(x) for name, x in metrics.items()}
