# SPDX-License-Identifier: Apache-2.0
"""The instructions of the host plan: what each kind does, and the traits that tell it.

An instruction reads and writes registers. Every part that treats instructions (which
are dead, which may run early, where a value comes from, what types registers have) asks
the traits that a kind states here, or has a rule for it, and refuses all others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from jfold.bodies import CHECK as CHECK
from jfold.bodies import Body as Body
from jfold.bodies import Call as Call
from jfold.bodies import CallOnce as CallOnce
from jfold.bodies import Instruction as Instruction
from jfold.bodies import Stage as Stage
from jfold.sequence_instructions import Chain as Chain
from jfold.sequence_instructions import Count as Count
from jfold.sequence_instructions import Cut as Cut
from jfold.sequence_instructions import Enter as Enter
from jfold.sequence_instructions import Fixed as Fixed
from jfold.sequence_instructions import Index as Index
from jfold.sequence_instructions import Interleave as Interleave
from jfold.sequence_instructions import Iterate as Iterate
from jfold.sequence_instructions import Leading as Leading
from jfold.sequence_instructions import Owners as Owners
from jfold.sequence_instructions import Padded as Padded
from jfold.sequence_instructions import Pick as Pick
from jfold.sequence_instructions import Position as Position
from jfold.sequence_instructions import Ranges as Ranges
from jfold.sequence_instructions import Regroup as Regroup
from jfold.sequence_instructions import Same as Same
from jfold.sequence_instructions import Shortest as Shortest
from jfold.sequence_instructions import Total as Total
from jfold.sequence_instructions import Unwrap as Unwrap
from jfold.sequence_instructions import Wrap as Wrap
from jfold.traits import Effect, Ordering, Pass, Traits, Visiting, refusal
from jfold.types import TensorType

# ---- objects -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Transform(Instruction):
    """A Python function of each object."""

    traits = Traits('objects[a] -> objects[a]', Effect.RAISES)
    fn: Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Lookup(Instruction):
    """The entry of each object in a table; of one it lacks, the default, if any."""

    traits = Traits('objects[a] -> objects[a]', Effect.RAISES)
    table: dict[Any, Any] = field(repr=False)  # it may be large
    default: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Field(Instruction):
    """One field of each object, which has so many items at `most`, if that is said; of
    one that lacks it the default, if there is one."""

    traits = Traits('objects[a] -> objects[a]', Effect.RAISES)
    key: Any
    most: int | None = field(default=None, metadata=CHECK)
    default: tuple[Any, ...] | None = None


@dataclass(frozen=True, eq=False)
class Fields(Instruction):
    """Several fields of each object, an output for each."""

    traits = Traits('objects[a] -> objects[a]*', Effect.RAISES)
    keys: tuple[Any, ...]
    most: int | None = field(metadata=CHECK)


@dataclass(frozen=True, eq=False)
class Pack(Instruction):
    """Columns of objects to a column of tuples."""

    traits = Traits('objects[a]* -> objects[a]')


@dataclass(frozen=True, eq=False)
class Group(Instruction):
    """Lengths and items to a column of lists."""

    traits = Traits('lengths[a: b] objects[b] -> objects[a]')


# ---- rows of a graph -----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Maker(Instruction):
    """Makes rows at places.

    The *way* leads from there to places of their own where another maker of the body
    would make rows of the same kind at the same places.
    """

    traits = Traits('', Effect.MAKES)
    way: int = field(default=0, kw_only=True)

    @property
    def makes(self) -> tuple[str, int]:
        """The kind of rows, and the number of whose they are."""
        raise refusal('telling rows apart', type(self))


@dataclass(frozen=True, eq=False)
class ConstantMaker(Maker):
    """Makes constants of the examples' own."""

    traits = Traits('', Effect.MAKES)
    type: int
    tensor: TensorType

    @property
    def makes(self) -> tuple[str, int]:
        return 'constants', self.type


@dataclass(frozen=True, eq=False)
class Convert(ConstantMaker):
    """Objects to tensors; of ints from 0 on below a number, if that is said."""

    traits = Traits('objects[a] places[a] -> tensors[a]', Effect.RAISES | Effect.MAKES)
    below: int | None = field(default=None, metadata=CHECK)


@dataclass(frozen=True, eq=False)
class Numbers(ConstantMaker):
    """Lengths to tensors []."""

    traits = Traits(
        'lengths[a: b] places[a] -> tensors[a]', Effect.RAISES | Effect.MAKES
    )


@dataclass(frozen=True, eq=False)
class Draw(ConstantMaker):
    """A key for each item, which its place alone decides; two of them are never one."""

    traits = Traits('places[a] -> tensors[a]', Effect.MAKES, anew=True)


@dataclass(frozen=True, eq=False)
class Constant(Instruction):
    """The same constant for each item of a column, which as a rule is of places."""

    traits = Traits('x[a] -> tensors[a]')
    index: int


@dataclass(frozen=True, eq=False)
class Choose(Instruction):
    """The constant that a table has for each object; for what it lacks, the default."""

    traits = Traits('objects[a] -> tensors[a]', Effect.RAISES)
    table: dict[Any, int] = field(repr=False)  # it may be large
    default: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Apply(Maker):
    """An operation."""

    traits = Traits('places[a] tensors[a]* -> tensors[a]*', Effect.MAKES)
    operation: int

    @property
    def makes(self) -> tuple[str, int]:
        return 'operation', self.operation


@dataclass(frozen=True, eq=False)
class Observe(Maker):
    """Adds rows to a result, as a metric does."""

    traits = Traits(
        'places[a] tensors[a]* ->',
        Effect.MAKES | Effect.RECORDS,
        visiting=Visiting.ADDS_ROWS,
    )
    result: int

    @property
    def makes(self) -> tuple[str, int]:
        return 'result', self.result


@dataclass(frozen=True, eq=False)
class ObserveLabelled(Observe):
    """The same, with an object for each row that stays on the host, its label."""

    traits = replace(Observe.traits, signature='places[a] tensors[a]* objects[a] ->')

    @property
    def makes(self) -> tuple[str, int]:
        return 'result', self.result


# ---- cases ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Cases(Instruction):
    """Items, or what `key_fn` makes of them, to the numbers of their cases, in bytes if
    they fit; `default` is that of all others, if there is one. Without `case_of`, the
    second case is of those that are `None`."""

    traits = Traits('objects[a] -> cases[a: /B]', Effect.RAISES)
    case_of: dict[Any, int] | None
    cases: int
    key_fn: Callable[[Any], Any] | None = None
    default: int | None = None

    @property
    def times(self) -> int:
        return self.cases


@dataclass(frozen=True, eq=False)
class Positions(Instruction):
    """Numbers of cases to the positions of each case."""

    traits = Traits('cases[a: /B] -> positions[B of a]*', order=Ordering.NUMBERS)


@dataclass(frozen=True, eq=False)
class Among(Instruction):
    """A column's items of one case."""

    traits = Traits('x[a] cases[a: /B] -> x[B]', order=Ordering.FILTERS)
    case: int

    @property
    def chosen(self) -> int:
        return self.case


@dataclass(frozen=True, eq=False)
class Select(Instruction):
    """A column's items at given positions."""

    traits = Traits('x[a] positions[b of a] -> x[b]', order=Ordering.SELECTS)


@dataclass(frozen=True, eq=False)
class Join(Instruction):
    """Columns one after another."""

    traits = Traits(
        'x[B]* -> x[+B] | lengths[B: D]* -> lengths[+B: +D]', order=Ordering.JOINS
    )


@dataclass(frozen=True, eq=False)
class Order(Instruction):
    """Positions of each case to the permutation that restores the original order.

    positions [0 2] [1]  ->  [0 2 1]:  items 0, 2, 1 of those of the cases, joined
    """

    traits = Traits('positions[B of a]* -> positions[a of +B]', order=Ordering.PERMUTES)


@dataclass(frozen=True, eq=False)
class Merge(Instruction):
    """Positions of each case, then a column of each, to one column."""

    traits = Traits('positions[B of a]* x[B]* -> x[a]', order=Ordering.MERGES)


# ---- bodies --------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FoldLoop(Instruction):
    """Runs a body item by item; after lengths and places are the states, then items.

    Gives the last states, then what else the body gives, of each item.
    """

    traits = Traits(
        'lengths[b: d] places[b] X[b]* Y[d]* -> X[b]* Z[d]*',
        Effect.ANY,
        Ordering.EXPANDS,
        holds={'combine': 'places[a] X[a]* Y[a]* -> X[a]* Z[a]*'},
        visiting=Visiting.ENTERS_ONE,
    )
    combine: Body
    states: int
    way: int

    @property
    def repeats(self) -> tuple[int, ...]:
        """How many registers each starred term of the inputs stands for."""
        return self.states, len(self.inputs) - 2 - self.states


@dataclass(frozen=True, eq=False)
class FoldEntered(FoldLoop):
    """The same where items have places already: those are given, not the sequences'."""

    traits = replace(
        FoldLoop.traits,
        signature='lengths[b: d] places[d] X[b]* Y[d]* -> X[b]* Z[d]*',
        visiting=Visiting.CONTINUES,
    )


@dataclass(frozen=True, eq=False)
class ReduceLoop(Instruction):
    """Runs a body on pairs of neighbours; `default` is for sequences without items."""

    traits = Traits(
        'lengths[b: d] places[b] X[d]* -> X[b]*',
        Effect.ANY,
        holds={
            'combine': 'places[a] X[a]* X[a]* -> X[a]*',
            'default': 'places[a] -> X[a]*',
        },
        visiting=Visiting.ENTERS_MANY,
    )
    combine: Body
    default: Body
    way: int


@dataclass(frozen=True, eq=False)
class ReduceGroups(Instruction):
    """Applies operations of several items to groups of neighbours.

    `operations` are of more and more items; groups are as large as the last allows, but
    for what is left of a sequence. That is a group for the next larger operation if it
    may be filled: with its last item `again`, or with constants, one a column. If not,
    it is several groups. `default` is for sequences without items.
    """

    traits = Traits(
        'lengths[b: d] places[b] X[d]* -> X[b]*',
        Effect.ANY,
        holds={'default': 'places[a] -> X[a]*'},
        visiting=Visiting.ENTERS_MANY,
    )
    operations: tuple[int, ...]
    sizes: tuple[int, ...]
    fill: tuple[int, ...]
    again: bool
    default: Body
    way: int


# ---- waves: what a plan in two passes has instead of calls ---------------------------


@dataclass(frozen=True, eq=False)
class Waves(Instruction):
    """Takes data apart: a declaration's body on a column, then the bodies of all that
    was sent, wave by wave, until nothing more is sent.

    Gives, for each declaration, the places of its items of all waves, and what its body
    returns of them. Until it is told whose the items are (`Descend`), their numbers
    stand in for places; but not of a `single` example, whose all items are.
    """

    traits = Traits('', Effect.ANY, Ordering.PERMUTES, within=Pass.SECOND)
    declaration: int
    single: bool


@dataclass(frozen=True, eq=False)
class Send(Instruction):
    """Items for a declaration's body, in the next wave; where they are among its items
    of all waves."""

    traits = Traits('', Effect.RECORDS, within=Pass.FIRST)
    declaration: int


@dataclass(frozen=True, eq=False)
class Descend(Instruction):
    """Whose the items are that a declaration was sent, which tells their places."""

    traits = Traits(
        'places[a] positions[a of b] places[b] ->',
        Effect.RECORDS,
        within=Pass.SECOND,
        visiting=Visiting.TELLS,
    )


@dataclass(frozen=True, eq=False)
class Promise(Instruction):
    """All results of a declaration for some of its items, before anybody knows them."""

    traits = Traits(
        'positions[a of b] places[b] -> tensors[a]*', Effect.RECORDS, within=Pass.SECOND
    )
    declaration: int
    types: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Fulfil(Instruction):
    """What was promised: the results of a declaration for all its items."""

    traits = Traits('places[a] tensors[a]* ->', Effect.RECORDS, within=Pass.SECOND)
    declaration: int
    types: tuple[int, ...]
