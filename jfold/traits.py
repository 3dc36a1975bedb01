# SPDX-License-Identifier: Apache-2.0
"""What a kind of instruction does, stated once; whoever treats instructions asks here.

Each table about kinds (which are dead if nobody reads them, which may run before a call
returns, which have to run again) is a question to traits. So a kind that is new is
treated right everywhere, or refused.
"""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass, field

from jfold.registers import (
    LENGTHS,
    POSITIONS,
    RegisterType,
    Signature,
    Term,
    signature,
)


class Effect(enum.Flag):
    """What an instruction does besides writing its registers."""

    NONE = 0
    RAISES = enum.auto()  # on data that do not fit
    MAKES = enum.auto()  # rows of a graph: constants, nodes, values of a metric
    RECORDS = enum.auto()  # what is read from outside, though no register tells
    ANY = RAISES | MAKES | RECORDS


class Ordering(enum.Enum):
    """Where item i of a result comes from."""

    KEEPS = enum.auto()  # item i of the first input
    NUMBERS = enum.auto()  # the item of the first input whose number it is
    SELECTS = enum.auto()  # the item of the first that item i of the second numbers
    FILTERS = enum.auto()  # the i-th item of the first that is of some case
    EXPANDS = enum.auto()  # sequence i of the first, or the one that i is an item of
    JOINS = enum.auto()  # item i of all inputs, one after another
    MERGES = enum.auto()  # of the column of the case that has i among its positions
    INTERLEAVES = enum.auto()  # item i // n of input i % n
    PERMUTES = enum.auto()  # a new order of the items of all inputs


class Visiting(enum.Enum):
    """What becomes of visits, by which rows of metrics are in order: runs of a body for
    one item, or what a loop does with one."""

    NOTHING = enum.auto()
    ADDS_ROWS = enum.auto()  # one in each visit
    CALLS = enum.auto()  # a visit inside each, which begins when the body does
    ENTERS_ONE = enum.auto()  # a visit inside each
    ENTERS_MANY = enum.auto()  # several visits inside each, one after another
    CONTINUES = enum.auto()  # goes on in parts of visits that were entered before
    TELLS = enum.auto()  # inside which visits those are that were made before

    @property
    def is_way(self) -> bool:
        """Whether it leads to places of its own, by a `way`."""
        return self not in (Visiting.NOTHING, Visiting.ADDS_ROWS, Visiting.TELLS)


class Pass(enum.Enum):
    """Which bodies a kind may be in, where a plan has two passes or may have them."""

    EITHER = enum.auto()
    FIRST = enum.auto()  # those that take data apart, and none in a plan of one pass
    SECOND = enum.auto()  # that of the expression, and none in a plan of one pass


@dataclass(frozen=True)
class Traits:
    """What a kind of instruction does.

    Attributes:
      signature: the types of its registers; see `registers`. With '|' between, for
        several kinds of columns.
      effect: what it does besides writing them.
      order: where the items of its results come from.
      holds: the bodies inside of it, by field, and the signature of each.
      within: in which pass it may be.
      visiting: what becomes of visits; a kind that does nothing with them states none.
      anew: whether two that are alike give different things.
    """

    signature: str
    effect: Effect = Effect.NONE
    order: Ordering = Ordering.KEEPS
    holds: dict[str, str] = field(default_factory=dict)
    within: Pass = Pass.EITHER
    visiting: Visiting = Visiting.NOTHING
    anew: bool = False

    @functools.cached_property
    def signatures(self) -> tuple[Signature, ...]:
        """The signatures, read."""
        return tuple(map(signature, self.signature.split('|')))

    @property
    def names_rows(self) -> bool:
        """Whether results are lengths and the positions of the items, whose rows
        nothing has had before."""
        return all(
            each.gives_any(LENGTHS) and each.gives_any(POSITIONS)
            for each in self.signatures
        )

    @property
    def moves_columns(self) -> bool:
        """Whether results hold items of what it is given, whatever these are."""
        return any(x.gives_any(_ANY_COLUMN.type.kind) for x in self.signatures)

    @property
    def counts_alone(self) -> bool:
        """Whether it asks its first input for nothing but how many items there are:
        any column of these rows would do."""
        return (
            all(each.takes[:1] == (_ANY_COLUMN,) for each in self.signatures)
            and not self.moves_columns
        )

    @property
    def numbers_items(self) -> bool:
        """Whether results are numbers of items, or depend on how these are grouped:
        they say something else when other items are beside them."""
        gives = any(each.gives_any(POSITIONS) for each in self.signatures)
        return gives or self.order not in _ITEM_BY_ITEM


_ANY_COLUMN = Term(RegisterType('x', 'a'))
# What becomes of some items is the same wherever they stand among others.
_ITEM_BY_ITEM = {
    *(Ordering.KEEPS, Ordering.NUMBERS, Ordering.SELECTS, Ordering.FILTERS),
    *(Ordering.EXPANDS, Ordering.MERGES, Ordering.INTERLEAVES),
}


def refusal(part: str, kind: type) -> NotImplementedError:
    """What a part says that meets a kind of instruction that it has no rule for."""
    return NotImplementedError(
        f'{part}: expected a kind of instruction that it has a rule for, got '
        f'{kind.__name__}'
    )
