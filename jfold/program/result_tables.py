# SPDX-License-Identifier: Apache-2.0
"""Results: the tables of rows that a batch returns, and their kinds.

All differences between kinds are attributes of `Kind`. The scheduler, the device and
the code that returns values to a user read these, and treat all kinds alike otherwise.

    | kind           | rows           | in the order of | spare rows | given as       |
    | -------------- | -------------- | --------------- | ---------- | -------------- |
    | `EXAMPLE_ROWS` | one an example | the examples    | repeat one | the value      |
    | of items       | any number     | the data        | are zero   | `Ragged` in it |
    | of a metric    | any number     | evaluation      | are zero   | `MetricValues` |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from jfold.types import Nested, SequenceType, StructType, TensorType, Type, leaf_types

LENGTH = TensorType((), 'int32')  # the type of lengths of sequences


def nesting(type_: Type) -> Iterator[Type]:
    """Yield a type, the item types of sequences in it, and so on, breadth first.

    The index in this order is the level of rows; level 0 is the whole type.
    """
    types = [type_]
    for level in types:  # which grows in the loop
        yield level
        sequences = (t for t in leaf_types(level) if isinstance(t, SequenceType))
        types.extend(sequence.item for sequence in sequences)


# ---- kinds ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """The kind of a result: where its rows come from, and how they are returned.

    Attributes:
      level: the index of the row type in the `nesting` of the expression's type; `None`
        if the rows are not in the value of the expression, but those of a metric.
      name: the name of the metric; `None` for other results.
      labelled: whether each row has a label, an object that stays on the host.
    """

    level: int | None
    name: str | None = None
    labelled: bool = False

    @property
    def is_counted(self) -> bool:
        """Return whether each batch has its own number of rows.

        Then a capacity has a number of rows for it, spare rows are zero, and a schedule
        stores the index of the example of each row.
        """
        return self.level != 0

    @property
    def is_packed(self) -> bool:
        """Return whether the real rows of all shards come first, and spare rows last.

        True for items of sequences: a `Ragged` has no spare rows between two shards.
        """
        return bool(self.level)

    def __str__(self) -> str:
        if self.name is not None:
            labels = ', with labels' if self.labelled else ''
            return f'metric {self.name!r} in order{labels}:'
        return f'items of sequence {self.level}:' if self.level else 'result'


EXAMPLE_ROWS = Kind(level=0)


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
    """Return the types of tensors in a row of `type_`; sequences become lengths."""
    return tuple(
        LENGTH if isinstance(leaf, SequenceType) else leaf
        for leaf in leaf_types(type_)
        if isinstance(leaf, SequenceType | TensorType)
    )


def rows_of(
    output: Type, metrics: Mapping[str, tuple[Type, bool]]
) -> tuple[tuple[Kind, Type], ...]:
    """Return (kind, row type) of each result: of the value, of `metrics`, of items.

    Args:
      output: the type of one example's value.
      metrics: by name of a metric, its row type, and whether its rows have labels.
    """
    value, *items = nesting(output)
    return (
        (EXAMPLE_ROWS, value),
        *((Kind(None, x, y), type_) for x, (type_, y) in sorted(metrics.items())),
        *((Kind(k), item) for k, item in enumerate(items, 1)),
    )


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
