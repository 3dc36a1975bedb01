# SPDX-License-Identifier: Apache-2.0
"""Tapes, the lists that a source records on; rows, their makers and their uses.

There is a tape for each input of an operation, with an entry a row; for the constants
of a type; and for each tensor in the rows of a result. The number of a row is

    level << LEVEL | maker << ROW | index

where the maker is an output of an operation, or constants, and the index the length of
a tape. As the level is on top, `max` of several numbers has the highest level.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from jfold.language import symbols as s

ROW = 30  # bits of the index


@dataclass(eq=False)
class Tape:
    """A list of the source; tapes of groups have several entries a row."""

    name: str
    about: str
    width: int = 1

    @property
    def rows(self) -> str:
        """The text of the number of rows."""
        size = f'len({self.name})'
        return size if self.width == 1 else f'{size} // {self.width}'


@dataclass(frozen=True, eq=False)
class Maker:
    """A maker of values of a type: constants, or an output of an operation.

    Attributes:
      name: the constant of the source that is added to the index of a row.
      number: among all makers, from 1.
      output: the index among the outputs of the operation.
      recurrent: whether its values are one level above their inputs.
    """

    name: str
    type: int
    number: int
    rows: Rows
    output: int = 0
    recurrent: bool = False


@dataclass(eq=False)
class Rows:
    """The rows of an operation, of constants, or of a result.

    Attributes:
      key: the same in every round.
      counter: the tape whose length counts them; `None` if there are none.
      columns: per input, its tape, or the maker that is in step.
    """

    key: Hashable
    counter: Tape | None = None
    columns: list[Tape | Maker | None] = field(default_factory=list)


@dataclass(eq=False)
class Region:
    """Straight-line code, whose rows may be in step.

    Attributes:
      row: the variable with the index of its rows.
      counter: the tape whose length that was.
    """

    row: str = ''
    counter: Tape | None = None


@dataclass(eq=False)
class Use:
    """An application of an operation; `None` in `readers` stands for other readers."""

    operation: int
    given: list[s.Tensor]
    readers: set[Use | None] = field(default_factory=set)
