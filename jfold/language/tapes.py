# SPDX-License-Identifier: Apache-2.0
"""Tapes: what a source records on, and what is known of rows, makers and uses.

Tapes are lists of the source: one for each input of an operation, with an entry a row;
one for the constants of a type; one for each tensor in a row of a result. The number of
a row is

    level << LEVEL | maker << ROW | rows before it

where the maker is what makes values there. So the highest of several inputs is that
of the highest level, and a row is told by the length of a tape.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from jfold.language import symbols as s

ROW = 30  # bits of the number of an entry


@dataclass(eq=False)
class Tape:
    """A list of the source; those of groups have several entries a row."""

    name: str
    about: str
    width: int = 1

    @property
    def rows(self) -> str:
        """The text of how many rows there are."""
        size = f'len({self.name})'
        return size if self.width == 1 else f'{size} // {self.width}'


@dataclass(frozen=True, eq=False)
class Maker:
    """Who makes values of a type: constants, or an output of an operation.

    Attributes:
      name: of the constant of the source with which the number of a row begins.
      number: among all, from 1.
      output: which one of the operation's.
      recurrent: whether its values are a level above what they are made of.
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
      key: what tells them apart in every round.
      counter: the tape that tells how many there are; `None` if there are none.
      columns: per input, its tape, or who makes it in step.
    """

    key: Hashable
    counter: Tape | None = None
    columns: list[Tape | Maker | None] = field(default_factory=list)


@dataclass(eq=False)
class Region:
    """Straight lines.

    Attributes:
      row: the variable with the number of the rows that are made there.
      counter: the tape that told it.
    """

    row: str = ''
    counter: Tape | None = None


@dataclass(eq=False)
class Use:
    """An application of an operation, and who reads what it makes: other applications,
    and `None` for all else."""

    operation: int
    given: list[s.Tensor]
    readers: set[Use | None] = field(default_factory=set)
