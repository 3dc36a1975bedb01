# SPDX-License-Identifier: Apache-2.0
"""Unrolling of rounds of messages, so that fewer operations need loops.

A function that is used in several places is one operation, so that all its nodes run
together. But in rounds of messages

    sum >> round 0 >> sum >> round 1 >> sum

the one `sum` reads the results of the rounds, and they read its results: all three
would be a recurrence, which runs level by level, though no use reads its own results.
So uses are looked at one by one. The *stage* of a use is the length of the longest
chain of uses before it in its component. Uses become operations of their own by stage,

    sum 0 >> round 0 >> sum 1 >> round 1 >> sum 2

each without a recurrence, so that JAX runs and differentiates it without loops. Uses on
the same stage stay one operation. Sums of sequences, in groups of groups, are recurrent
too, but the device computes them as one segment sum.

Operations that run on their own results, as often as the data decide (in a recursion,
or a loop over a sequence), need loops over levels. Operations before all loops or
behind them do not, if there are segment sums among them:

    embeddings >> rounds of messages >> recursion >> attention >> loss
    └──────────── once ────────────┘ └─ loops ─┘ └────── once ───────┘

In the code a *place* is the statement of the source by which a use is recorded.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jfold.language.facts import Facts, OperationChoice
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
from jfold.program.operations import ADD, Operation, Operations

MOST = 128  # uses: XLA would compile each, where a loop has the code of one round


def unroll_rounds(
    program: Operations, chosen: OperationChoice, facts: Facts
) -> tuple[OperationChoice, Facts, frozenset[int]] | None:
    """Choose the operations of a `program` so that it runs less in loops.

    Return the operations, the facts about them, and which of them run outside of loops.
    Return `None` if no segment sum is before or behind all loops, if more than `MOST`
    uses would have to be told apart, or if a loop would need levels not recorded.

    Args:
      program: the program before fusion.
      chosen: its operations after fusion.
      facts: the facts about `chosen`.
    """
    fused = chosen.operations or ()
    parts = _parts_of(program, fused, facts)
    counts = Counter(facts.operations)
    # If each recurrent operation is applied at one place, to tell uses apart would
    # change nothing but how operations are numbered.
    is_alone = all(counts[o] == 1 for o in parts.looped | parts.sums)
    if not is_alone or not parts.sums_are_in_a_row:
        if len(facts.operations) > MOST:
            return None
        # First each use gets its own operation; then those of one stage become one.
        apart = [fused[o] for o in facts.operations]
        split = replace(facts, operations=list(range(len(apart))))
        split_parts = _parts_of(program, apart, split)
        if split_parts.looped and not split_parts.sums:
            return None
        # The code of uses that need a loop tells levels.
        levelled = frozenset(facts.operations[place] for place in split_parts.looped)
        operations, numbers = _staged_operations(split_parts, facts, parts.program)
        kinds = tuple(zip(facts.operations, numbers, strict=True))
        chosen = replace(chosen, operations=operations, kinds=kinds)
        facts = replace(facts, operations=numbers)
        parts = _parts_of(program, operations, facts)
        if any(o in parts.looped and use not in levelled for use, o in kinds):
            return None  # its levels are not recorded
    applied = parts.applied
    return (chosen, facts, applied) if applied or not parts.program.operations else None


# ---- what runs outside of loops ------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """The recurrent operations of a program: segment sums, and those in loops.

    Attributes:
      sums: the operations of segment sums, which do not reduce results of their own.
      looped: the other recurrent operations, which run level by level in loops.
    """

    program: Operations
    sums: frozenset[int]
    looped: frozenset[int]

    @property
    def sums_are_in_a_row(self) -> bool:
        """Return whether each segment sum's operations have consecutive numbers."""
        parts = (part.operations for part in components(self.program))
        sums = [part for part in parts if self.sums.issuperset(part)]
        return all(part[-1] - part[0] + 1 == len(part) for part in sums)

    @property
    def applied(self) -> frozenset[int]:
        """The operations that run once, outside of loops; all if there are no loops.

        They are those before the loops, and those behind, each if a segment sum is
        among them.
        """
        if not self.looped:
            return frozenset(range(len(self.program.operations)))
        parts = (part for part in _around(self) if part & self.sums)
        return frozenset(itertools.chain.from_iterable(parts))


def _parts_of(
    program: Operations, operations: Sequence[Operation], facts: Facts
) -> Parts:
    """Return the `Parts` of `program` with other `operations` and their `facts`."""
    program = replace(
        program, operations=tuple(operations), sources=facts.merged(operations)
    )
    sums, looped = list[int](), list[int]()
    unchained = facts.reductions - _chained(program, facts)
    for part in components(program):
        if part.recurrent:
            inside = unchained.issuperset(part.operations)
            is_sum = inside and _is_segment_sum(program, part)
            (sums if is_sum else looped).extend(part.operations)
    return Parts(program, frozenset(sums), frozenset(looped))


def _chained(program: Operations, facts: Facts) -> set[int]:
    """Return the reductions that, by `facts`, may reduce results of their own."""
    first, renamed = first_results(program), facts.renaming(program.operations)
    return {
        o
        for place, items in facts.summands.items()
        for o in [facts.operations[place]]
        if any(x >> first[o] + k & 1 for k, x in enumerate(renamed(items)))
    }


def _is_segment_sum(program: Operations, part: Component) -> bool:
    """Return whether component `part` can run as one segment sum, maximum or minimum.

    Its operations have to be of one kind: all add numbers, or all take the maximum, or
    the minimum, of ordered numbers through which no gradient flows. With a gradient,
    equal items share it at each node of the tree that compares them, so the tree has to
    run level by level.
    """
    (kind, *others) = {program.operations[o].combines for o in part.operations}
    if others or not kind:
        return False
    (t,) = program.operations[part.operations[0]].outputs
    dtype = program.types[t].dtype
    if kind == ADD:
        return bool(dtype.kind != 'b')  # a sum of bools is no number
    # A segment maximum of other dtypes has no neutral value to start from.
    is_ordered = dtype.kind in 'iuf' or dtype.name == 'bfloat16'
    return is_ordered and _is_stopped(program, part)


def _is_stopped(program: Operations, part: Component) -> bool:
    """Return whether no gradient flows back to the results of component `part`."""
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


def _around(parts: Parts) -> tuple[set[int], set[int]]:
    """Return the operations before all loops, and those behind all loops.

    An operation between two loops is in neither set.
    """
    program = parts.program
    order, reads = [x.operations for x in components(program)], direct_reads(program)
    below, above = {*parts.looped}, {*parts.looped}  # what loops read, what reads them
    for operations in order:
        if any(above.intersection(results_in(reads[o])) for o in operations):
            above.update(operations)
    for operations in reversed(order):
        if below.intersection(operations):
            below.update(operations, *(results_in(reads[o]) for o in operations))
    every = set(range(len(program.operations)))
    return every - above, above - below


# ---- stages --------------------------------------------------------------------------


def _staged_operations(
    parts: Parts, facts: Facts, program: Operations
) -> tuple[tuple[Operation, ...], list[int]]:
    """Merge those uses of an operation that have the same stage into one new operation.

    Return the new operations, sorted by component, and per place the number of its own.

    Args:
      parts: the parts of the program that has an operation for each place.
      facts: facts about `program`.
      program: the program whose operations have all their uses.
    """
    uses, apart = facts.operations, parts.program
    stages = _stages(apart, uses, program)
    # Only a segment sum itself may read its partial sums, so it is kept apart from the
    # same function on plain pairs. Operations in loops, before them and behind them are
    # kept apart too.
    before, behind = _around(parts)
    loops = are_recurrent(apart)
    kinds = [
        (stages[k], use, k in facts.summands, loops[k], k in before, k in behind)
        for k, use in enumerate(uses)
    ]
    distinct = sorted({*kinds})
    numbers = [distinct.index(kind) for kind in kinds]  # at most `MOST`
    operations = tuple(program.operations[o] for _, o, *_ in distinct)
    # The operations are sorted by component, so that the rows of one lie together.
    read = replace(facts, operations=numbers).merged(operations)
    in_parts = components(replace(apart, operations=operations, sources=read))
    order = [o for part in in_parts for o in part.operations]
    return tuple(operations[o] for o in order), [order.index(n) for n in numbers]


def _stages(split: Operations, uses: Sequence[int], program: Operations) -> list[int]:
    """Return each use's stage: the length of the chain before it within its component.

    Args:
      split: the program with an operation for each use.
      uses: per use, the number of its operation in `program`.
    """
    owner, read, stages = component_of(program), direct_reads(split), [0 for _ in uses]
    # In topological order of the components of `split`, each one use or a recurrence.
    for inner in components(split):
        members = inner.operations
        before = {q for u in members for q in results_in(read[u])}.difference(members)
        c = owner[uses[members[0]]]
        behind = [stages[q] + 1 for q in before if owner[uses[q]] == c]
        for u in members:
            stages[u] = max(behind, default=0)
    return stages
