# SPDX-License-Identifier: Apache-2.0
"""Components: operations that feed each other, and the order in which they run.

Two operations are of one component if each may read, through others, what the other
makes: the cells of a tree, an encoder's step. Components run one after another, each
with levels of its own, so a batch never waits for what it does not read. An operation
alone that does not read its own results (an embedding, a softmax, a loss) has no
levels: it runs once, over all its nodes. For a component of one operation the number of
levels is the longest chain in the data, the least that any order needs.

Who may read what is a property of the operations, not of the data: `Operations.sources`
states it, or else a value may be any result of its type.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jfold.base.memo import memoized
from jfold.program.operations import Operations, Producers, ProducerSet


@dataclass(frozen=True)
class Component:
    """Operations that run level by level together.

    Attributes:
      operations: in the program's order.
      recurrent: whether they read their own results; if not it is one operation, whose
        nodes are all of level 1.
    """

    operations: tuple[int, ...]
    recurrent: bool


@memoized
def components(operations: Operations) -> tuple[Component, ...]:
    """Return the components, in an order in which each reads earlier ones alone."""
    closure = _closure(direct_reads(operations))
    # Operations that read each other reach the same set: that is a component.
    reached = [producers | 1 << o for o, producers in enumerate(closure)]
    groups: dict[ProducerSet, list[int]] = {}
    for o, producers in enumerate(reached):
        groups.setdefault(producers, []).append(o)
    # A component reaches all that those it reads do, and itself: so sorting by size
    # puts it behind them.
    ordered = sorted(groups.values(), key=lambda group: reached[group[0]].bit_count())
    return tuple(
        Component(tuple(group), bool(closure[group[0]] >> group[0] & 1))
        for group in ordered
    )


@memoized
def component_of(operations: Operations) -> tuple[int, ...]:
    """Return the number of each operation's component."""
    numbers = enumerate(components(operations))
    component = {o: c for c, part in numbers for o in part.operations}
    return tuple(component[o] for o in range(len(operations.operations)))


@memoized
def are_recurrent(operations: Operations) -> tuple[bool, ...]:
    """Return whether each operation's component is recurrent."""
    parts = components(operations)
    return tuple(parts[c].recurrent for c in component_of(operations))


def _closure(direct_reads: list[ProducerSet]) -> list[ProducerSet]:
    """Return the operations that each reads, directly or through others."""
    direct_reads = list(direct_reads)
    # Warshall's algorithm: paths through more and more operations. Sets are bits,
    # so one step adds all that another operation reads.
    for q in range(len(direct_reads)):
        for o in range(len(direct_reads)):
            if direct_reads[o] >> q & 1:
                direct_reads[o] |= direct_reads[q]
    return direct_reads


# ---- reads and producers -------------------------------------------------------------


def first_results(operations: Operations) -> list[int]:
    """Return the number of each operation's first result, then the number of all."""
    counts = (len(operation.outputs) for operation in operations.operations)
    return list(itertools.accumulate(counts, initial=0))


def results_in(makers: ProducerSet) -> Iterator[int]:
    """Yield the numbers in a set, the lowest first."""
    while makers:
        lowest = makers & -makers
        yield lowest.bit_length() - 1
        makers ^= lowest


@memoized
def sources(operations: Operations) -> Producers:
    """Return the results that each input may read, as stated or as types allow."""
    if operations.sources is not None:
        return operations.sources
    outputs = itertools.chain(*(x.outputs for x in operations.operations))
    # Where nothing is stated, a value may be any result of its type.
    of_type = [0 for _ in operations.types]
    for number, t in enumerate(outputs):
        of_type[t] |= 1 << number

    def allowed(types: Iterable[int]) -> tuple[ProducerSet, ...]:
        return tuple(of_type[t] for t in types)

    return Producers(
        tuple(allowed(operation.inputs) for operation in operations.operations),
        tuple(allowed(result.tensors) for result in operations.results),
    )


@memoized
def external_inputs(operations: Operations) -> tuple[tuple[bool, ...], ...]:
    """Return whether each input of an operation comes from outside of its recurrence.

    That is so whatever the data; of operations that are not recurrent it is false.
    """
    first, parts = first_results(operations), components(operations)
    results = [
        union(1 << n for o in part.operations for n in range(first[o], first[o + 1]))
        for part in parts
    ]
    return tuple(
        tuple(parts[c].recurrent and not makers & results[c] for makers in inputs)
        for c, inputs in zip(
            component_of(operations), sources(operations).inputs, strict=True
        )
    )


def direct_reads(operations: Operations) -> list[ProducerSet]:
    """Return the operations whose results each operation may read directly."""
    counts = enumerate(len(x.outputs) for x in operations.operations)
    owner = [o for o, count in counts for _ in range(count)]
    return [
        union(1 << owner[number] for number in results_in(union(inputs)))
        for inputs in sources(operations).inputs
    ]


def union(sets: Iterable[ProducerSet]) -> ProducerSet:
    """Return the union of sets."""
    return functools.reduce(operator.or_, sets, 0)
