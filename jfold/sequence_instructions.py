# SPDX-License-Identifier: Apache-2.0
"""The instructions about sequences: lengths, and which items they have."""

from __future__ import annotations

from dataclasses import dataclass

from jfold.bodies import Instruction
from jfold.traits import Effect, Ordering, Traits, Visiting
from jfold.types import SequenceType


@dataclass(frozen=True, eq=False)
class Ranges(Instruction):
    """Lengths and positions to the lengths there and the positions of their items.

    lengths [2 0 3], positions [2 0]  ->  lengths [3 2], positions [2 3 4 0 1]
    """

    traits = Traits(
        'lengths[a: b] positions[c of a] -> lengths[c: d] positions[d of b]',
        order=Ordering.SELECTS,
    )


@dataclass(frozen=True, eq=False)
class Enter(Instruction):
    """Lengths and places of sequences to the places of their items."""

    traits = Traits(
        'lengths[a: b] places[a] -> places[b]',
        order=Ordering.EXPANDS,
        visiting=Visiting.ENTERS_MANY,
    )
    way: int


@dataclass(frozen=True, eq=False)
class Iterate(Instruction):
    """Python iterables to lengths and items."""

    # An attribute may give another iterator to each reader.
    traits = Traits(
        'objects[a] -> lengths[a: b] objects[b]',
        Effect.RAISES,
        Ordering.EXPANDS,
        anew=True,
    )


@dataclass(frozen=True, eq=False)
class Interleave(Instruction):
    """Columns to one: the first item of each, the second of each, and so on."""

    traits = Traits('x[a]* -> x[n*a]', order=Ordering.INTERLEAVES)


@dataclass(frozen=True, eq=False)
class Fixed(Instruction):
    """The same length for each item of a column, which as a rule is of places."""

    traits = Traits('x[a] -> lengths[a: n*a]')
    length: int

    @property
    def times(self) -> int:
        """The n of `n*a` in the signature."""
        return self.length


@dataclass(frozen=True, eq=False)
class Count(Instruction):
    """The `len` of each object."""

    traits = Traits('objects[a] -> lengths[a: b]', Effect.RAISES)


@dataclass(frozen=True, eq=False)
class Position(Instruction):
    """Lengths to the position of item `key` of each sequence."""

    traits = Traits('lengths[a: b] -> positions[a of b]', Effect.RAISES)
    key: int


@dataclass(frozen=True, eq=False)
class Index(Instruction):
    """Objects that are ints, and lengths, to the positions of these items."""

    traits = Traits('objects[a] lengths[a: b] -> positions[a of b]', Effect.RAISES)


@dataclass(frozen=True, eq=False)
class Pick(Instruction):
    """Objects that are lists of ints, and lengths, to the positions of these items.

    objects [[2 0] [1]], lengths [3 2]  ->  lengths [2 1], positions [2 0 4]
    """

    traits = Traits(
        'objects[a] lengths[a: b] -> lengths[a: c] positions[c of b]',
        Effect.RAISES,
        Ordering.EXPANDS,
    )


@dataclass(frozen=True, eq=False)
class Regroup(Instruction):
    """Objects that are lists with the group of each item, lengths, and how many groups
    there are, to the lengths of the groups and the positions of their items.

    objects [[1 0 1]], lengths [3], lengths [2]  ->  lengths [1 2], positions [1 0 2]
    """

    traits = Traits(
        'objects[a] lengths[a: b] lengths[a: d] -> lengths[d: c] positions[c of b]',
        Effect.RAISES,
        Ordering.EXPANDS,
    )


@dataclass(frozen=True, eq=False)
class Chain(Instruction):
    """Lengths of several sequences to those of all in one, and the positions of their
    items among the items of each, joined.

    lengths [2 1], lengths [1 1]  ->  lengths [3 2], positions [0 1 3 2 4]
    """

    traits = Traits(
        'lengths[a: B]* -> lengths[a: c] positions[c of +B]', order=Ordering.EXPANDS
    )


@dataclass(frozen=True, eq=False)
class Total(Instruction):
    """Lengths of sequences of sequences, and of those, to how many items there are.

    lengths [2 0 1], lengths [3 4 5]  ->  lengths [7 0 5]
    """

    traits = Traits('lengths[a: b] lengths[b: c] -> lengths[a: c]')


@dataclass(frozen=True, eq=False)
class Padded(Instruction):
    """Lengths to the position of the first item of each sequence, of the second, and so
    on, among all items and, behind these, what stands for missing ones of each.

    lengths [2 0 3]  ->  positions [0 6 2], [1 6 3], [5 6 4]
    """

    traits = Traits('lengths[a: b] -> positions[a of b+a]*', Effect.RAISES)


@dataclass(frozen=True, eq=False)
class Wrap(Instruction):
    """Lengths and items to whole sequences, each as one value: what a loop carries."""

    traits = Traits('lengths[a: b] X[b]* -> sequences[a]')
    sequence: SequenceType


@dataclass(frozen=True, eq=False)
class Unwrap(Instruction):
    """Whole sequences to lengths and items."""

    traits = Traits('sequences[a] -> lengths[a: b] X[b]*', order=Ordering.EXPANDS)
    sequence: SequenceType


@dataclass(frozen=True, eq=False)
class Owners(Instruction):
    """Lengths to the sequence that each item is of.

    lengths [2 0 3]  ->  positions [0 0 2 2 2]
    """

    traits = Traits('lengths[a: b] -> positions[b of a]', order=Ordering.NUMBERS)


@dataclass(frozen=True, eq=False)
class Shortest(Instruction):
    """The least of several lengths."""

    traits = Traits('lengths[a: B]* -> lengths[a: c]')


@dataclass(frozen=True, eq=False)
class Same(Instruction):
    """Lengths that are to be the same, as one."""

    traits = Traits('lengths[a: B]* -> lengths[a: c]', Effect.RAISES)


@dataclass(frozen=True, eq=False)
class Leading(Instruction):
    """Lengths, and others that are no larger, to the positions of so many first items.

    lengths [2 0 3], lengths [1 0 2]  ->  positions [0 2 3]
    """

    traits = Traits(
        'lengths[a: b] lengths[a: c] -> positions[c of b]', order=Ordering.PERMUTES
    )


@dataclass(frozen=True, eq=False)
class Cut(Instruction):
    """Lengths to those of `sequence[key]` and the positions of its items."""

    traits = Traits(
        'lengths[a: b] -> lengths[a: c] positions[c of b]', order=Ordering.EXPANDS
    )
    key: slice
