# SPDX-License-Identifier: Apache-2.0
"""Strongly connected components of operations, and the order in which they run.

Two operations are in one component if each may read results of the other, directly or
through further operations: the cells of a tree, an encoder's step. Components run one
after another, each with its own levels, so a batch never waits for what it does not
read. A component of one operation that does not read its own results (an embedding, a
softmax, a loss) has no levels: it runs once, over all its nodes. For a component of one
operation the number of levels is the longest chain in the data, the least possible.

Which outputs an operand may read is a property of the operations, not of the data. They
are listed in `Operations.sources`; if that is `None`, they are all outputs of the
operand's type.

Operations, and the outputs of all operations together, are numbered from 0. A
`ProducerSet` is a set of such numbers, an int with one bit for each.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from jfold.base.memo import memoized
from jfold.program.operations import Operations, Producers, ProducerSet


@dataclass(frozen=True)
class Component:
    """A strongly connected component: operations that run together, level by level.

    Attributes:
      operations: the numbers of the operations, in increasing order.
      recurrent: whether an operation in it may read its own results, directly or not.
        If not, the component is one operation, whose nodes all have level 1.
    """

    operations: tuple[int, ...]
    recurrent: bool


@memoized
def components(operations: Operations) -> tuple[Component, ...]:
    """Return the components in topological order: producers before their readers."""
    closure = direct_reads(operations)
    # Warshall's algorithm: paths through more and more operations. Sets are bits, so
    # one `or` adds all that another operation reads.
    for q in range(len(closure)):
        for o in range(len(closure)):
            if closure[o] >> q & 1:
                closure[o] |= closure[q]
    # Operations that read each other reach the same set, and make up a component.
    reached = [producers | 1 << o for o, producers in enumerate(closure)]
    groups: dict[ProducerSet, list[int]] = {}
    for o, producers in enumerate(reached):
        groups.setdefault(producers, []).append(o)
    # A component reaches itself and all that its producers reach. So its set is larger
    # than theirs, and sorting by size puts it behind them.
    ordered = sorted(groups.values(), key=lambda group: reached[group[0]].bit_count())
    return tuple(
        Component(tuple(group), bool(closure[group[0]] >> group[0] & 1))
        for group in ordered
    )


@memoized
def component_of(operations: Operations) -> tuple[int, ...]:
    """Return, for each operation, the index of its component in `components`."""
    numbers = enumerate(components(operations))
    pairs = sorted((o, c) for c, part in numbers for o in part.operations)
    return tuple(c for _, c in pairs)


@memoized
def are_recurrent(operations: Operations) -> tuple[bool, ...]:
    """Return whether the component of each operation is recurrent."""
    parts = components(operations)
    return tuple(parts[c].recurrent for c in component_of(operations))


# ---- phases --------------------------------------------------------------------------


@dataclass(frozen=True)
class Phases:
    """The components of a program in three groups: before, in and behind (after) loops.

    A component is in loops unless its operations are in `Operations.applied`: these run
    a single time, on all their rows.

    Attributes:
      before, loops, behind: numbers of components, in the order in which they run.
      looped: the bit set of the outputs of operations in loops.
      entering: the bit set of the outputs of operations before loops that loops read.
      leaving: the bit set of the outputs of operations in loops that results, or
        operations behind loops, read; 0 if all operations are in loops, since results
        read buffers then.
    """

    before: list[int]
    loops: list[int]
    behind: list[int]
    looped: ProducerSet
    entering: ProducerSet
    leaving: ProducerSet


@memoized
def phases(operations: Operations) -> Phases:
    """Sort the components into those before loops, in loops and behind them."""
    applied, producers = operations.applied, sources(operations)
    outputs = outputs_of(operations)
    before, loops, behind = list[int](), list[int](), list[int]()
    leaving = union(map(union, producers.results)) if applied else 0
    looped = after = entering = 0
    for c, part in enumerate(components(operations)):
        reads = union(union(producers.inputs[o]) for o in part.operations)
        made = union(outputs[o] for o in part.operations)
        if not applied.issuperset(part.operations):
            loops.append(c)
            looped |= made
            entering |= reads
        elif reads & (looped | after):
            behind.append(c)
            after |= made
            leaving |= reads
        else:
            before.append(c)
    return Phases(before, loops, behind, looped, entering & ~looped, leaving & looped)


def loops_of(operations: Operations) -> str:
    """Return '3 of 7 operations in loops', 'no loops', or '' if all are."""
    if not operations.has_loops:
        return 'no loops'
    count, applied = len(operations.operations), len(operations.applied)
    return f'{count - applied} of {count} operations in loops' if applied else ''


@memoized
def segment_sums(operations: Operations) -> frozenset[int]:
    """Return the operations of segment sums: recurrent, yet computed at once.

    A segment sum is recorded as a tree of sums of sums, and added up from its leaves.
    """
    recurrent = are_recurrent(operations)
    return frozenset(o for o in operations.applied if recurrent[o])


# ---- reads and producers -------------------------------------------------------------


# A table is an operation, or a result, numbered behind all operations. Its columns are
# the operands, or the tensors.
Place: TypeAlias = tuple[int, int]  # a table, and a column in it
LEAVING = -1  # the table of what leaves loops; its columns are numbers of outputs
SUMMANDS = -1  # the column of a segment sum's first operation that reads all summands


@memoized
def operand_types(operations: Operations) -> tuple[tuple[int, ...], ...]:
    """Return type numbers of each operation's inputs, then of each result's tensors."""
    inputs = (x.inputs for x in operations.operations)
    return *inputs, *(x.tensors for x in operations.results)


def type_at(operations: Operations, place: Place) -> int:
    """Return the type number of the values that are read at `place`."""
    table, column = place
    if table == LEAVING:
        o, k = output_places(operations)[column]
        return operations.operations[o].outputs[k]
    return operand_types(operations)[table][column]


def makers_at(operations: Operations, place: Place) -> ProducerSet:
    """Return the possible producers of the operand or result tensor at `place`."""
    table, column = place
    return (sources(operations).inputs + sources(operations).results)[table][column]


@memoized
def first_results(operations: Operations) -> list[int]:
    """Return the number of each operation's first output, then the total count."""
    counts = (len(operation.outputs) for operation in operations.operations)
    return list(itertools.accumulate(counts, initial=0))


@memoized
def outputs_of(operations: Operations) -> tuple[ProducerSet, ...]:
    """Return, for each operation, the bit set of its outputs."""
    pairs = itertools.pairwise(first_results(operations))
    return tuple((1 << end) - (1 << first) for first, end in pairs)


@memoized
def output_places(operations: Operations) -> tuple[tuple[int, int], ...]:
    """Return each output as (number of its operation, index among outputs there)."""
    numbered = enumerate(operations.operations)
    return tuple((o, k) for o, x in numbered for k, _ in enumerate(x.outputs))


def results_in(makers: ProducerSet) -> Iterator[int]:
    """Yield the numbers in the bit set `makers`, in increasing order."""
    while makers:
        lowest = makers & -makers
        yield lowest.bit_length() - 1
        makers ^= lowest


@memoized
def sources(operations: Operations) -> Producers:
    """Return `operations.sources` or, if `None`, all outputs of each operand's type."""
    if operations.sources is not None:
        return operations.sources
    outputs = itertools.chain(*(x.outputs for x in operations.operations))
    of_type = [0 for _ in operations.types]
    for number, t in enumerate(outputs):
        of_type[t] |= 1 << number
    makers = [tuple(of_type[t] for t in types) for types in operand_types(operations)]
    count = len(operations.operations)
    return Producers(tuple(makers[:count]), tuple(makers[count:]))


@memoized
def external_inputs(operations: Operations) -> tuple[tuple[bool, ...], ...]:
    """Return, per operation and input, whether all producers are in other components.

    Such an operand is loop-invariant. False for operations that are not recurrent.
    """
    parts, outputs = components(operations), outputs_of(operations)
    results = [union(outputs[o] for o in part.operations) for part in parts]
    pairs = zip(component_of(operations), sources(operations).inputs, strict=True)
    return tuple(
        tuple(parts[c].recurrent and not makers & results[c] for makers in inputs)
        for c, inputs in pairs
    )


def direct_reads(operations: Operations) -> list[ProducerSet]:
    """Return, for each operation, the bit set of operations it may read directly."""
    owner = [o for o, _ in output_places(operations)]
    return [
        union(1 << owner[number] for number in results_in(union(inputs)))
        for inputs in sources(operations).inputs
    ]


def union(sets: Iterable[ProducerSet]) -> ProducerSet:
    """Return the union of sets of numbers, each an int with one bit per number."""
    return functools.reduce(operator.or_, sets, 0)
