# SPDX-License-Identifier: Apache-2.0
"""Operations told apart, so that none takes turns.

A function that is used in several places is one operation, so that all its nodes run
together. But in rounds of messages

    sum >> round 0 >> sum >> round 1 >> sum

the one `sum` reads what the rounds make, and they read it: all three would be of one
component and take turns, level by level, though no use of any reads what itself has
made. So uses are looked at one by one. Those of a component that stand one behind
another become operations of their own, by how many stand before them,

    sum 0 >> round 0 >> sum 1 >> round 1 >> sum 2

each of which runs once, over all its nodes. Uses that may run beside each other stay
one operation. Where the data decide how often something runs on its own results, in a
recursion or a loop over a sequence, operations take turns and there is no such program.
Sums of sequences take turns as well, in groups of groups, but these are summed at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

from jfold.language.generate import Generator, settled
from jfold.language.rounds import Call, Chosen
from jfold.language.tables import Tables
from jfold.program.components import component_of, components, reads, results_in
from jfold.program.operations import Operation, Operations, Producers


def unroll_rounds(
    tables: Tables, chosen: Chosen, before: Generator
) -> tuple[Generator, str, Chosen]:
    """The source with more operations, of which none takes turns but sums.

    Raises:
      TypeError: the data decide how often something runs on its own results; the
        message names the block.
    """
    for where in before.loops_written:
        raise _takes_turns(where, 'a loop over a sequence')
    for call in _recursive(before):
        raise _takes_turns(call.where, 'a recursion')
    every, _ = settled(tables, replace(chosen, split=True))
    program = before.program(before.operations)
    kinds, operations = _kinds(every, program)
    apart = replace(chosen, operations=operations, kinds=kinds)
    made, text = settled(tables, apart)
    for where, number in made.groups_written:
        types = [made.tables.types_in_order[t] for t in operations[number].outputs]
        if not operations[number].is_sum or any(t.dtype.kind == 'b' for t in types):
            raise _takes_turns(where, 'a reduction that is no sum of numbers')
    for call in _used_again(made):
        raise _takes_turns(call.where, 'a declaration that may be given its own result')
    return made, text, apart


def _takes_turns(where: str, got: str) -> TypeError:
    return TypeError(
        f"{where}: expected nothing that runs on its own results, as `strategy='once'` "
        f'says, got {got}: leave `strategy` out'
    )


def _recursive(g: Generator) -> list[Call]:
    """The calls of functions that call themselves, through others or not."""
    left = {key: [x for x in g.calls if x.caller == key] for key in g.written}
    while done := [k for k, calls in left.items() if not _called(calls) & left.keys()]:
        for key in done:
            del left[key]
    return [call for calls in left.values() for call in calls if call.callee in left]


def _called(calls: Sequence[Call]) -> set[Hashable]:
    return {call.callee for call in calls}


def _used_again(g: Generator) -> Iterator[Call]:
    """The calls of functions that take turns, or may: used in several places, on
    tensors, where something is recurrent. What is in such a body is used once for all
    of these places."""
    program = g.program(g.operations)
    parts = components(program)
    recurrent = {o for each in parts if each.recurrent for o in each.operations}
    places = Counter(call.callee for call in g.calls)
    runs = {key for key, found in g.applied_in.items() if recurrent & found}
    for _ in g.written:  # those that call others, too
        runs |= {call.caller for call in g.calls if call.callee in runs}
    for call in g.calls:
        if call.callee in runs and call.tensors and places[call.callee] > 1:
            yield call


def _kinds(
    every: Generator, program: Operations
) -> tuple[tuple[int, ...], tuple[Operation, ...]]:
    """The operation of each place, and these operations, component by component."""
    uses = every.split_of
    stages = _stages(every.program(every.operations), uses, program)
    kinds = list(zip(stages, uses, strict=True))
    made = sorted({*kinds})
    number = {kind: n for n, kind in enumerate(made)}
    first = tuple(number[kind] for kind in kinds)
    operations = tuple(program.operations[o] for _, o in made)
    # Side by side those of each component, and so their rows.
    inputs = [[0] * len(each.inputs) for each in operations]
    found = every.found()
    to = _bits(every, first, operations)
    for use, n in enumerate(first):
        for k, makers in enumerate(found.inputs[use]):
            for bit in results_in(makers):
                inputs[n][k] |= to[bit]
    stated = Producers(tuple(map(tuple, inputs)), found.results)
    results = tuple(
        tuple(_mapped(makers, to) for makers in row) for row in found.results
    )
    whole = replace(
        program, operations=operations, sources=replace(stated, results=results)
    )
    order = [o for each in components(whole) for o in each.operations]
    place = {o: n for n, o in enumerate(order)}
    return tuple(place[n] for n in first), tuple(operations[o] for o in order)


def _mapped(makers: int, to: Sequence[int]) -> int:
    made = 0
    for bit in results_in(makers):
        made |= to[bit]
    return made


def _bits(
    every: Generator, kinds: Sequence[int], operations: Sequence[Operation]
) -> list[int]:
    """Of each output of each place, the bit of the same of its operation."""
    first = [0]
    for each in operations:
        first.append(first[-1] + len(each.outputs))
    return [
        1 << first[n] + k
        for use, n in enumerate(kinds)
        for k, _ in enumerate(every.operations[use].outputs)
    ]


def _stages(every: Operations, uses: Sequence[int], program: Operations) -> list[int]:
    """Of each use, how many stand before it in the component of its operation.

    Args:
      every: the program, with an operation for each use.
      uses: the operation of each.
    """
    owner, read, stages = component_of(program), reads(every), [0 for _ in uses]
    for inner in components(every):  # each behind those that it reads
        own = inner.operations
        before = {q for u in own for q in results_in(read[u])}.difference(own)
        c = owner[uses[own[0]]]
        behind = [stages[q] + 1 for q in before if owner[uses[q]] == c]
        for u in own:
            stages[u] = max(behind, default=0)
    return stages
