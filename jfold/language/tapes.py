# SPDX-License-Identifier: Apache-2.0
"""Tapes, the lists that a source records on; rows, their makers and their uses.

There is a tape for each input of an operation, with an entry a row; for the constants
of a type; and for each tensor in the rows of a result. An entry is the number of the
row that made the operand:

    level << LEVEL | maker << ROW | index

The maker is an output of an operation, or constants; the index is the length that a
tape had. As the level is on top, `max` of several numbers has the highest level.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from jfold.language import symbols as s


@dataclass(eq=False)
class Tape:
    """A list in generated source, to which each recorded row appends its entries.

    Attributes:
      about: the comment behind the line that makes it.
      width: the number of entries a row; for groups of items several.
    """

    name: str
    about: str
    width: int = 1

    @property
    def rows(self) -> str:
        """The text of the number of rows, such as `len(tape) // 2`."""
        size = f'len({self.name})'
        return size if self.width == 1 else f'{size} // {self.width}'


@dataclass(frozen=True, eq=False)
class Maker:
    """An origin of tensors of one type: constants, or an output of an operation.

    Attributes:
      name: the integer constant of the source that is added to the index of a row.
      number: the `maker` in row numbers, from 1; 0 stands for constants of the program.
      output: the index among the outputs of the operation.
      recurrent: whether its values are one level above their inputs.
    """

    name: str
    type: int  # the number of the tensor type
    number: int
    rows: Rows
    output: int = 0
    recurrent: bool = False


@dataclass(eq=False)
class Rows:
    """A table that generated source records: of an operation, constants or a result.

    Attributes:
      key: its name, the same each time that source is written.
      counter: the tape whose length counts the rows; `None` if no row is written.
      columns: per input its tape; or, if the operand is in step, its maker.
    """

    key: Hashable
    counter: Tape | None = None
    columns: list[Tape | Maker | None] = field(default_factory=list)


@dataclass(eq=False)
class Region:
    """A piece of straight-line source: one index may serve for all rows it records."""

    row: str = ''  # the variable with the index; '' before there is one
    counter: Tape | None = None  # the tape whose length is the index


@dataclass(eq=False)
class Use:
    """An application of an operation by one statement of generated source.

    Attributes:
      readers: the applications that read its outputs; `None` stands for all readers
        that are no operation, such as results.
    """

    operation: int  # its number in `Tables.listed`
    inputs: list[s.Tensor]
    readers: set[Use | None] = field(default_factory=set)
