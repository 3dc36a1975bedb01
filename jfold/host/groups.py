# SPDX-License-Identifier: Apache-2.0
"""Sequences that a reduction is at work on, cut into groups of neighbours."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from jfold.host.rules import Column, merge, numbers, starts, take

Array = np.ndarray[Any, Any]
Parts: TypeAlias = Sequence[tuple[Array, Sequence[Column]]]  # positions, columns there


def merged(parts: Parts) -> list[Column]:
    """Columns of parts, each at its positions."""
    positions, columns = zip(*parts, strict=True)
    return [merge(positions, each) for each in zip(*columns, strict=True)]


@dataclass(frozen=True, eq=False)
class Cut:
    """How sequences are cut: into groups of `size`, and what is left into parts.

    Attributes:
      size: of most groups.
      counts: [size], by how much is left, the number of parts.
      begins, lengths: [size, size], likewise where each begins, and how long it is; in
        the last column those of a group that is full.
    """

    size: int
    counts: Array
    begins: Array
    lengths: Array


@functools.cache
def cut(sizes: tuple[int, ...], together: bool) -> Cut:
    """Cuts for operations of such sizes, in order; what is left stays together, or is
    cut into such sizes and single items."""
    size, parts = sizes[-1], []
    for rest in range(size):
        parts.append([rest] if together and rest else [])
        for each in reversed((1, *sizes)):
            while not together and sum(parts[rest]) + each <= rest:
                parts[rest].append(each)
    lengths = np.full((size, size), size)
    for rest, of_rest in enumerate(parts):
        lengths[rest, : len(of_rest)] = of_rest
    begins = lengths.cumsum(1) - lengths
    begins[:, -1] = 0
    return Cut(size, np.array(list(map(len, parts))), begins, lengths)


@dataclass(frozen=True, eq=False)
class Left:
    """Sequences that are not one item yet.

    Attributes:
      owner: [sequences], their places among all.
      first, lengths: [sequences], where the items of each are in the columns.
      items: columns.
    """

    owner: Array
    first: Array
    lengths: Array
    items: list[Column]

    def ones(self) -> tuple[Array, list[Column]]:
        """The sequences of one item, and these items."""
        chosen = self.lengths == 1
        return self.owner[chosen], [take(x, self.first[chosen]) for x in self.items]

    def longer(self) -> Left:
        """The sequences of more than one item."""
        chosen = self.lengths > 1
        owner, first = self.owner[chosen], self.first[chosen]
        return Left(owner, first, self.lengths[chosen], self.items)

    def groups(self, cut: Cut) -> Groups:
        """Groups of neighbours; the last ones of a sequence have what is left."""
        full, rest = self.lengths // cut.size, self.lengths % cut.size
        counts = full + cut.counts[rest]
        owner, number = np.arange(len(counts)).repeat(counts), numbers(counts)
        part = np.maximum(number - full[owner], -1)  # of the rest; the last is full
        rest = rest[owner]
        begin = np.minimum(number, full[owner]) * cut.size + cut.begins[rest, part]
        return Groups(
            counts,
            owner,
            number,
            self.first[owner] + begin,
            cut.lengths[rest, part],
            self.items,
        )

    def after(self, groups: Groups, made: Parts) -> Left:
        """The sequences with what was made in the place of groups."""
        counts = groups.counts
        return Left(self.owner, starts(counts), counts, merged(made))


@dataclass(frozen=True, eq=False)
class Groups:
    """Neighbours of sequences.

    Attributes:
      counts: [sequences], groups of each.
      owner, number: [groups], the sequence of each, and its number there.
      begin, lengths: [groups], where the items of each are in the columns.
      items: columns.
    """

    counts: Array
    owner: Array
    number: Array
    begin: Array
    lengths: Array
    items: list[Column]

    def by_length(self) -> Iterator[tuple[Array, list[Column]]]:
        """The groups of each length; columns of first items, of second ones, ..."""
        for length in np.flatnonzero(np.bincount(self.lengths)).tolist():
            at = (self.lengths == length).nonzero()[0]
            begin = self.begin[at]
            yield at, [take(x, begin + k) for k in range(length) for x in self.items]
