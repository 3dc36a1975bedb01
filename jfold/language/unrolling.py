# SPDX-License-Identifier: Apache-2.0
"""Unrolling of rounds, so that as few components as can be are recurrent.

A function that is used in several places is one operation, so that all its nodes run
together. But in rounds of messages

    sum >> round 0 >> sum >> round 1 >> sum

the one `sum` reads the results of the rounds, and they read its results: all three
would be a recurrence, which runs level by level, though no use reads its own results.
So uses are looked at one by one. The uses in one component become operations of their
own by stage, the number of uses in a chain before them in the component,

    sum 0 >> round 0 >> sum 1 >> round 1 >> sum 2

each without a recurrence, so that JAX runs and differentiates it without loops. Uses on
the same stage stay one operation. Sums of sequences, in groups of groups, are recurrent
too, but the device computes them as one segment sum.

Where the data decide how often something runs on its own results, in a recursion or a
loop over a sequence, that takes turns in loops. What stands before all loops or behind
them need not, if it has segment sums:

    embeddings >> rounds of messages >> recursion >> attention >> loss
    └──────────── once ────────────┘ └─ loops ─┘ └────── once ───────┘

In the code a *place* is the statement of the source by which a use is recorded.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import replace
from typing import TypeAlias

from jfold.language.generate import Generator, generate_source
from jfold.language.rounds import Call, OperationChoice
from jfold.language.tables import Tables
from jfold.program.components import (
    Component,
    are_recurrent,
    component_of,
    components,
    direct_reads,
    first_results,
    results_in,
    sources,
    union,
)
from jfold.program.operations import ADD, Operation, Operations, Producers

MOST = 128  # uses: XLA would compile each, where a loop has the code of one round


# The last round, the source, the operations, and which of them run outside of loops.
Unrolled: TypeAlias = tuple[Generator, str, OperationChoice, frozenset[int]]


def unroll_rounds(
    tables: Tables, chosen: OperationChoice, before: Generator, text: str
) -> Unrolled | None:
    """Return a program of which as much as can be runs outside of loops.

    `None` if nothing does: if there are more than `MOST` uses, or if no segment sum is
    before or behind all loops.

    Args:
      before, text: the last round and its source, with the operations `chosen`.
    """
    takes_turns = before.has_loops or _has_recursion(before)
    if takes_turns and not any(_combines(before, o) for o in before.reductions):
        return None
    if takes_turns and _are_used_once(before):
        # To tell uses apart would change nothing, but how operations are numbered.
        applied, sums = _applied(before), _segment_sums(before)
        if not applied or _are_apart(before, applied & sums):
            return (before, text, chosen, applied) if applied else None
    if not takes_turns and _is_unrolled(before) and _are_apart(before):
        return before, text, chosen, frozenset(range(len(before.operations)))
    # Uses in a function are those of all its calls, so they are not told apart.
    if sum(before.applied_at.values()) > MOST:
        return None
    if not takes_turns and _is_shared(before, _recurrent(before)):
        return None
    # First each use gets its own operation; then those of one stage become one.
    levelled = frozenset(_recurrent(before) if takes_turns else ())
    chosen = replace(chosen, levelled=levelled)
    split, _ = generate_source(tables, replace(chosen, split=True))
    program = before.program(before.operations)
    kinds, operations = _staged_operations(split, program)
    pairs = tuple(zip(split.split_of, kinds, strict=True))
    unrolled = replace(chosen, operations=operations, kinds=pairs)
    after, text = generate_source(tables, unrolled)
    if not takes_turns:
        every = frozenset(range(len(after.operations)))
        return (after, text, unrolled, every) if _is_unrolled(after) else None
    applied = _applied(after)
    return (after, text, unrolled, applied) if applied else None


# ---- what runs outside of loops ------------------------------------------------------


def _applied(g: Generator) -> frozenset[int]:
    """Return the operations before all loops, and those behind, if they have sums."""
    program, sums = g.program(g.operations), _segment_sums(g)
    before, behind = _around(program, _recurrent(g) - sums)
    return frozenset(
        itertools.chain.from_iterable(x for x in (before, behind) if x & sums)
    )


def _segment_sums(g: Generator) -> set[int]:
    """Return the operations of sums that reduce no items of their own making."""
    program = g.program(g.operations)
    return {
        o
        for part in components(program)
        if part.recurrent
        and g.reductions.issuperset(part.operations)
        and not g.chained.intersection(part.operations)
        and _is_segment_sum(g, program, part)
        for o in part.operations
    }


def _is_segment_sum(g: Generator, program: Operations, part: Component) -> bool:
    """Return whether a component is sums of numbers, or extrema without a gradient.

    The gradient of an extremum goes to all items that have it, by the tree in which
    they are compared: so it is taken level by level, unless nothing asks for it.
    """
    kinds = {_combines(g, o) for o in part.operations}
    if len(kinds) > 1 or '' in kinds:
        return False
    return kinds == {ADD} or _is_stopped(program, part)


def _combines(g: Generator, o: int) -> str:
    """Return `Operation.combines`; '' where a dtype cannot be combined at once.

    A sum of bools is no number. Where there is no infinity, or no order, extrema have
    nothing to begin with.
    """
    types, operation = [*g.tables.types], g.operations[o]
    dtypes = [types[t].dtype for t in operation.outputs]
    if operation.combines == ADD:
        return '' if any(x.kind == 'b' for x in dtypes) else ADD
    is_ordered = all(x.kind in 'iuf' or x.name == 'bfloat16' for x in dtypes)
    return operation.combines if is_ordered else ''


def _is_stopped(program: Operations, part: Component) -> bool:
    """Return whether no gradient flows back to a component's one type of results."""
    (t,) = program.operations[part.operations[0]].outputs
    if not program.types[t].differentiable:
        return True
    first, producers = first_results(program), sources(program)
    outputs = union(1 << first[o] for o in part.operations)
    others = set(range(len(program.operations))).difference(part.operations)
    if any(makers & outputs for makers in itertools.chain(*producers.results)):
        return False
    return all(
        k in program.operations[o].stops
        for o in others
        for k, makers in enumerate(producers.inputs[o])
        if makers & outputs
    )


def _around(program: Operations, looped: set[int]) -> tuple[set[int], set[int]]:
    """Return the operations that read no results of loops, and those behind all loops.

    Neither has one of those that are between loops.
    """
    order, reads = [x.operations for x in components(program)], direct_reads(program)
    below, above = set(looped), set(looped)  # what loops read, and what reads them
    for operations in order:
        if any(above.intersection(results_in(reads[o])) for o in operations):
            above.update(operations)
    for operations in reversed(order):
        if below.intersection(operations):
            below.update(operations, *(results_in(reads[o]) for o in operations))
    every = set(range(len(program.operations)))
    return every - above, above - below


# ---- what is recurrent ---------------------------------------------------------------


def _is_unrolled(g: Generator) -> bool:
    """Return whether only segment sums are recurrent, and none may read another."""
    recurrent, program = _recurrent(g), g.program(g.operations)
    are_sums = all(
        g.reductions.issuperset(part.operations) and _is_segment_sum(g, program, part)
        for part in components(program)
        if part.recurrent
    )
    return are_sums and not _is_shared(g, recurrent)


def _recurrent(g: Generator) -> set[int]:
    """Return the operations that read their own results, maybe through others."""
    parts = components(g.program(g.operations))
    return {o for part in parts if part.recurrent for o in part.operations}


def _are_used_once(g: Generator) -> bool:
    """Return whether each recurrent operation is applied at one place."""
    return all(g.applied_at[o] == 1 for o in _recurrent(g))


def _are_apart(g: Generator, chosen: Collection[int] | None = None) -> bool:
    """Return whether each segment sum has its own operations, numbered in a row.

    Args:
      chosen: the operations of sums; if `None`, all that are recurrent.
    """
    parts = components(g.program(g.operations))
    sums = [part.operations for part in parts if part.recurrent]
    if chosen is not None:
        sums = [part for part in sums if part[0] in chosen]
    are_alone = all(g.applied_at[o] == 1 for part in sums for o in part)
    return are_alone and all(part[-1] - part[0] + 1 == len(part) for part in sums)


def _has_recursion(g: Generator) -> bool:
    """Return whether functions call themselves, directly or through others."""
    left = {key: [x for x in g.calls if x.caller == key] for key in g.written}
    # Drop functions that call none of those that are left, until only circles are.
    while done := [k for k, c in left.items() if left.keys().isdisjoint(_callees(c))]:
        for key in done:
            del left[key]
    return bool(left)


def _callees(calls: Sequence[Call]) -> set[Hashable]:
    return {call.callee for call in calls}


def _is_shared(g: Generator, recurrent: set[int]) -> bool:
    """Return whether several places call a function that applies recurrent operations.

    The function may apply them through others that it calls; a tensor or a sequence
    must be among the arguments of one of the calls.
    """
    places = Counter(call.callee for call in g.calls)
    keys = {key for key, applied in g.applied_in.items() if recurrent & applied}
    for _ in g.written:  # add their callers: a call chain is no longer than this
        keys |= {call.caller for call in g.calls if call.callee in keys}
    return any(
        call.callee in keys and call.tensors and places[call.callee] > 1
        for call in g.calls
    )


def _staged_operations(
    split: Generator, program: Operations
) -> tuple[tuple[int, ...], tuple[Operation, ...]]:
    """Return per place the number of its operation, and the operations by component.

    Uses of one operation on one stage get the same new operation.

    Args:
      split: a round with an operation for each place.
      program: the program whose operations the uses have in common.
    """
    uses, apart = split.split_of, split.program(split.operations)
    stages = _stages(apart, uses, program)
    # Only its own groups may read what a segment sum combines on the way, so it is kept
    # apart from the same function on plain pairs; and what takes turns, and what is
    # before or behind that, from the rest.
    before, behind = _around(apart, _recurrent(split) - _segment_sums(split))
    kinds = [
        (stage, use, place in split.reductions, loops, place in before, place in behind)
        for place, (stage, use, loops) in enumerate(
            zip(stages, uses, are_recurrent(apart), strict=True)
        )
    ]
    distinct = sorted({*kinds})
    number = {kind: n for n, kind in enumerate(distinct)}
    first = tuple(number[kind] for kind in kinds)
    operations = tuple(program.operations[o] for _, o, *_ in distinct)
    # The operations are sorted by component, so that the rows of one lie together.
    inputs = [[0] * len(operation.inputs) for operation in operations]
    facts = split.new_facts()
    to = _bits(split, first, operations)
    # A new operation may read what any of its uses may read.
    for use, n in enumerate(first):
        for k, makers in enumerate(facts.inputs[use]):
            inputs[n][k] |= _translated(makers, to)
    results = tuple(
        tuple(_translated(makers, to) for makers in row) for row in facts.results
    )
    producers = Producers(tuple(map(tuple, inputs)), results)
    unordered = replace(program, operations=operations, sources=producers)
    order = [o for component in components(unordered) for o in component.operations]
    place = {o: n for n, o in enumerate(order)}
    return tuple(place[n] for n in first), tuple(operations[o] for o in order)


def _translated(makers: int, to: Sequence[int]) -> int:
    """Return producers as outputs of new operations; `to` has a set per old output."""
    result = 0
    for bit in results_in(makers):
        result |= to[bit]
    return result


def _bits(
    split: Generator, kinds: Sequence[int], operations: Sequence[Operation]
) -> list[int]:
    """Return the bit that takes the place of each output of each place's operation."""
    first = [0]
    for operation in operations:
        first.append(first[-1] + len(operation.outputs))
    return [
        1 << first[n] + k
        for use, n in enumerate(kinds)
        for k, _ in enumerate(split.operations[use].outputs)
    ]


def _stages(split: Operations, uses: Sequence[int], program: Operations) -> list[int]:
    """Return per use the length of the longest chain before it in its component.

    Args:
      split: the program with an operation for each use.
      uses: per use, the number of its operation in `program`.
    """
    owner, read, stages = component_of(program), direct_reads(split), [0 for _ in uses]
    # In topological order of the uses' own components, each one use or a recurrence.
    for inner in components(split):
        members = inner.operations
        before = {q for u in members for q in results_in(read[u])}.difference(members)
        c = owner[uses[members[0]]]
        behind = [stages[q] + 1 for q in before if owner[uses[q]] == c]
        for u in members:
            stages[u] = max(behind, default=0)
    return stages
