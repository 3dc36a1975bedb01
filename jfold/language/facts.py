# SPDX-License-Identifier: Apache-2.0
"""The facts about a source that one round of writing it leaves to the next.

A *place* is a statement that applies an operation; places are numbered in the order in
which they are written. *Producers* of a tensor are the outputs of places that it may
be, a bit set; outputs of operations, once places are `merged`. Values of several paths
meet at a *join*, such as the result of a function.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from jfold.program.operations import Operation, Producers, ProducerSet

# From sets of producers to the same under other numbers.
Renaming: TypeAlias = Callable[[Iterable[ProducerSet]], tuple[ProducerSet, ...]]
NOTHING_READ = Producers((), ())


@dataclass
class Facts:
    """The facts about a program that one pass of source generation leaves to the next.

    Attributes:
      operations: per place, the number of the operation that it applies.
      statements: by the key of a `Rows` of constants or of a result, the number of
        statements that append to it.
      joined: by the key of a join, where values of several paths meet, the producers of
        each tensor of its value.
      levels: by the key of a join, per tensor of its value the index of the first one
        that always has the same level.
      sources: the producers of each place's inputs, and of results.
      summands: by place that reduces groups of items, the producers of the items, but
        for those that the reduction itself makes.
      sites: by type and bound, the uses of blocks that read such constants from data.
    """

    operations: list[int] = field(default_factory=list)
    statements: Counter[Hashable] = field(default_factory=Counter)
    joined: dict[Hashable, tuple[ProducerSet, ...]] = field(default_factory=dict)
    levels: dict[Hashable, tuple[int, ...]] = field(default_factory=dict)
    sources: Producers = NOTHING_READ
    summands: dict[int, tuple[ProducerSet, ...]] = field(default_factory=dict)
    sites: dict[Hashable, dict[Any, None]] = field(default_factory=dict)

    @property
    def reductions(self) -> set[int]:
        """The operations that reduce groups of items."""
        return {self.operations[place] for place in self.summands}

    def renaming(self, operations: Sequence[Operation]) -> Renaming:
        """Return a function from outputs of places to outputs of `operations`."""
        first = [0, *itertools.accumulate(len(x.outputs) for x in operations)]
        ranges = (range(first[o], first[o + 1]) for o in self.operations)
        return _renaming([1 << n for outputs in ranges for n in outputs])

    def merged(self, operations: Sequence[Operation]) -> Producers:
        """Return the sources of `operations`: of each, those of all its places."""
        renamed = self.renaming(operations)
        inputs = [(0,) * len(operation.inputs) for operation in operations]
        for o, read in zip(self.operations, self.sources.inputs, strict=True):
            inputs[o] = unions(inputs[o], renamed(read))
        return Producers(tuple(inputs), tuple(map(renamed, self.sources.results)))

    def fused(self, before: Sequence[Operation], chosen: OperationChoice) -> Facts:
        """Return facts about operations `before`, as facts about those `chosen`."""
        places, read = self.operations, self.sources.inputs
        owners = [p for p, o in enumerate(places) for _ in before[o].outputs]
        kept = [p for p, o in enumerate(places) if o not in chosen.inside]
        number, bits = {p: n for n, p in enumerate(kept)}, itertools.count()
        renamed = _renaming([1 << next(bits) if p in number else 0 for p in owners])

        def inside(_: int, makers: ProducerSet) -> tuple[ProducerSet, ...]:
            # An operand that a fused operation makes for itself is made at one place.
            return read[owners[makers.bit_length() - 1]]

        inputs = (chosen.outside_inputs(places[p], read[p], inside) for p in kept)
        return replace(
            self,
            operations=[chosen.number[places[p]] for p in kept],
            joined={key: renamed(makers) for key, makers in self.joined.items()},
            sources=Producers(
                tuple(map(renamed, inputs)), tuple(map(renamed, self.sources.results))
            ),
            summands={number[p]: renamed(x) for p, x in self.summands.items()},
        )


@dataclass(frozen=True, eq=False)
class OperationChoice:
    """The operations of a program, after fusion and unrolling.

    Attributes:
      operations: in the order of their numbers; as in `Tables.listed` if `None`.
      number: by number in `Tables.listed`, the number here; for a fused producer, the
        number of the fused operation.
      feeds: per operation with others fused into it, for each input the operation and
        output that make it; `None` for inputs from outside.
      inside: the operations that are fused into others.
      kinds: if rounds of messages are unrolled, per place the numbers of its operation
        before and after unrolling.
    """

    operations: tuple[Operation, ...] | None = None
    number: Mapping[int, int] = field(default_factory=dict)
    feeds: Mapping[int, Sequence[Any]] = field(default_factory=dict)
    inside: frozenset[int] = frozenset()
    kinds: tuple[tuple[int, int], ...] | None = None

    def outside_inputs(
        self,
        o: int,
        inputs: Sequence[Any],
        inputs_of: Callable[[int, Any], Sequence[Any]],
    ) -> list[Any]:
        """Return what operation `o`, with others fused into it, reads from outside.

        Operands of fused operations come first. `inputs_of(p, x)` is what operation
        `p`, fused into `o`, reads; `x` is the one of `inputs` that it makes.
        """
        feeds = self.feeds.get(o, (None,) * len(inputs))
        pairs = list(zip(inputs, feeds, strict=True))
        result: list[Any] = []
        # Once for each fused producer, though several of its outputs may be read.
        for p, x in {feed[0]: x for x, feed in pairs if feed}.items():
            result += self.outside_inputs(p, inputs_of(p, x), inputs_of)
        return result + [x for x, feed in pairs if not feed]


def unions(
    some: Iterable[ProducerSet], others: Iterable[ProducerSet]
) -> tuple[ProducerSet, ...]:
    """Return the union of each set with the one beside it."""
    return tuple([a | b for a, b in zip(some, others, strict=True)])


def _renaming(to: Sequence[ProducerSet]) -> Renaming:
    """Return a function that puts `to[n]` in place of output n; others are dropped."""
    alike: dict[ProducerSet, ProducerSet] = {}
    for number, now in enumerate(to):
        alike[now] = alike.get(now, 0) | 1 << number

    @functools.cache
    def renamed(makers: ProducerSet) -> ProducerSet:
        result, left = 0, makers & (1 << len(to)) - 1
        while left:  # once for each name, however many outputs get it
            now = to[(left & -left).bit_length() - 1]
            result |= now
            left &= ~alike[now]
        return result

    return lambda sets: tuple(map(renamed, sets))
