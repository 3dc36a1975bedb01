# SPDX-License-Identifier: Apache-2.0
"""The facts about a source that one round of writing it leaves to the next.

A *place* is a statement that applies an operation; places are numbered in the order in
which they are written. The *producers* of a tensor are the outputs of places (after
`merged`, of operations) that it may be at run time, as a bit set. Values of several
control paths meet at a *join*, such as the result of a function.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from jfold.program.operations import Operation, Producers, ProducerSet

# Maps sets of producers to the sets with their members renumbered.
Renaming: TypeAlias = Callable[[Iterable[ProducerSet]], tuple[ProducerSet, ...]]
NOTHING_READ = Producers((), ())


@dataclass
class Facts:
    """The facts about a program that one pass of source generation leaves to the next.

    Attributes:
      operations: per place, the number of the operation that it applies.
      statements: by the key of a `Rows` of constants or of a result, the number of
        statements that append to it.
      joined: by the key of a join, the producers of each tensor of its value.
      levels: by the key of a join, per tensor of its value the index of the first
        tensor of this value that always has the same level.
      sources: the producers of each place's inputs, and of results.
      summands: by place that reduces groups of items, the producers of the items,
        without the partial results of the reduction itself.
      sites: by the type and bound of constants, the uses of blocks that read them from
        the data.
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
        """Return a function from sets of place outputs to sets of operation outputs."""
        first = [0, *itertools.accumulate(len(x.outputs) for x in operations)]
        ranges = (range(first[o], first[o + 1]) for o in self.operations)
        return _renaming([1 << n for outputs in ranges for n in outputs])

    def merged(self, operations: Sequence[Operation]) -> Producers:
        """Return `sources` for `operations`: of each, the union over its places."""
        renamed = self.renaming(operations)
        inputs = [(0,) * len(operation.inputs) for operation in operations]
        for o, read in zip(self.operations, self.sources.inputs, strict=True):
            inputs[o] = unions(inputs[o], renamed(read))
        return Producers(tuple(inputs), tuple(map(renamed, self.sources.results)))

    def fused(self, before: Sequence[Operation], chosen: OperationChoice) -> Facts:
        """Return these facts with the numbers of `chosen` for those of `before`."""
        places, read = self.operations, self.sources.inputs
        owners = [p for p, o in enumerate(places) for _ in before[o].outputs]
        kept = [p for p, o in enumerate(places) if o not in chosen.inside]
        number, bits = {p: n for n, p in enumerate(kept)}, itertools.count()
        renamed = _renaming([1 << next(bits) if p in number else 0 for p in owners])

        def inside(_: int, makers: ProducerSet) -> tuple[ProducerSet, ...]:
            # An operand inside a fused operation has one producer: `makers` is one bit.
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
      operations: all operations by number; `None` stands for `Tables.listed`.
      number: from the number in `Tables.listed` to the index in `operations`; for a
        fused producer, the index of the fused operation.
      feeds: per operation with others fused into it, for each input `(operation, output
        index)` of its producer, or `None` for an input from outside.
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
        """Return the inputs from outside of operation `o` fused with its producers.

        Inputs of the producers come first. `inputs` are those of `o` itself, of any
        class; `inputs_of(p, x)` are those of producer `p`, whose output `x` is.
        """
        feeds = self.feeds.get(o, (None,) * len(inputs))
        pairs = list(zip(inputs, feeds, strict=True))
        result: list[Any] = []
        # A dict: each producer counts once, though several of its outputs may be read.
        for p, x in {feed[0]: x for x, feed in pairs if feed}.items():
            result += self.outside_inputs(p, inputs_of(p, x), inputs_of)
        return result + [x for x, feed in pairs if not feed]


def unions(
    some: Iterable[ProducerSet], others: Iterable[ProducerSet]
) -> tuple[ProducerSet, ...]:
    """Return the unions `some[k] | others[k]`."""
    return tuple([a | b for a, b in zip(some, others, strict=True)])


def _renaming(to: Sequence[ProducerSet]) -> Renaming:
    """Return a function that replaces member n of sets by set `to[n]`, or drops it."""
    alike: dict[ProducerSet, ProducerSet] = {}
    for number, now in enumerate(to):
        alike[now] = alike.get(now, 0) | 1 << number

    @functools.cache
    def renamed(makers: ProducerSet) -> ProducerSet:
        result, left = 0, makers & (1 << len(to)) - 1
        while left:  # one iteration per distinct set in `to`, not per member
            now = to[(left & -left).bit_length() - 1]
            result |= now
            left &= ~alike[now]
        return result

    return lambda sets: tuple(map(renamed, sets))
