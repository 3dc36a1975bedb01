# SPDX-License-Identifier: Apache-2.0
"""Recurrence: operations that take turns, and the order in which they run.

Two operations are of one component if each may read, through others, what the other
makes: the cells of a tree, an encoder's step. Components run one after another, each
with levels of its own, so a batch never waits for what it does not read. An operation
alone that does not read its own results (an embedding, a softmax, a loss) has no
levels: it runs once, over all its nodes. For a component of one operation the number of
levels is the longest chain in the data, the least that any order needs.

Who may read what is a fact of the operations, whatever the data: whoever states them
says it, or else a value may be any result of its type.
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
    """All operations, so that each component reads itself and earlier ones alone."""
    closure = _closure(reads(operations))
    reached = [made | 1 << o for o, made in enumerate(closure)]
    groups: dict[ProducerSet, list[int]] = {}
    for o, made in enumerate(reached):  # equal for those that read each other
        groups.setdefault(made, []).append(o)
    # What a component reads reaches less than it does.
    ordered = sorted(groups.values(), key=lambda group: reached[group[0]].bit_count())
    return tuple(
        Component(tuple(group), bool(closure[group[0]] >> group[0] & 1))
        for group in ordered
    )


@memoized
def component_of(operations: Operations) -> tuple[int, ...]:
    """Per operation, the number of its component."""
    numbers = enumerate(components(operations))
    found = {o: c for c, component in numbers for o in component.operations}
    return tuple(found[o] for o in range(len(operations.operations)))


@memoized
def are_recurrent(operations: Operations) -> tuple[bool, ...]:
    """Per operation, whether its component is recurrent."""
    parts = components(operations)
    return tuple(parts[c].recurrent for c in component_of(operations))


def _closure(reads: list[ProducerSet]) -> list[ProducerSet]:
    """What each operation reads, directly or through others."""
    reads = list(reads)
    # Warshall's algorithm: ways by more and more operations in between. Sets are bits,
    # so one step adds all that another operation reads.
    for q in range(len(reads)):
        for o in range(len(reads)):
            if reads[o] >> q & 1:
                reads[o] |= reads[q]
    return reads


# ---- who reads what ------------------------------------------------------------------


def first_results(operations: Operations) -> list[int]:
    """Per operation, the number of its first result; in the end, how many there are."""
    counts = (len(each.outputs) for each in operations.operations)
    return list(itertools.accumulate(counts, initial=0))


def results_in(makers: ProducerSet) -> Iterator[int]:
    """The numbers in a set."""
    while makers:
        lowest = makers & -makers
        yield lowest.bit_length() - 1
        makers ^= lowest


@memoized
def sources(operations: Operations) -> Producers:
    """Who may read what, as it is stated, or as types allow."""
    if operations.sources is not None:
        return operations.sources
    made = itertools.chain(*(each.outputs for each in operations.operations))
    # Nothing more being said, a value may come from whatever makes values of its type.
    of_type = [0 for _ in operations.types]
    for number, t in enumerate(made):
        of_type[t] |= 1 << number

    def allowed(types: Iterable[int]) -> tuple[ProducerSet, ...]:
        return tuple(of_type[t] for t in types)

    return Producers(
        tuple(allowed(each.inputs) for each in operations.operations),
        tuple(allowed(each.tensors) for each in operations.results),
    )


@memoized
def external_inputs(operations: Operations) -> tuple[tuple[bool, ...], ...]:
    """Per operation and input, whether it comes from outside of a recurrence that the
    operation is in, whatever the data."""
    first, parts = first_results(operations), components(operations)
    own = [
        union(1 << n for o in each.operations for n in range(first[o], first[o + 1]))
        for each in parts
    ]
    return tuple(
        tuple(parts[c].recurrent and not makers & own[c] for makers in inputs)
        for c, inputs in zip(
            component_of(operations), sources(operations).inputs, strict=True
        )
    )


def reads(operations: Operations) -> list[ProducerSet]:
    """Per operation, which operations' results it may read directly."""
    counts = enumerate(len(each.outputs) for each in operations.operations)
    owner = [o for o, count in counts for _ in range(count)]
    return [
        union(1 << owner[number] for number in results_in(union(inputs)))
        for inputs in sources(operations).inputs
    ]


def union(given: Iterable[ProducerSet]) -> ProducerSet:
    """All that is in one of the sets."""
    return functools.reduce(operator.or_, given, 0)
