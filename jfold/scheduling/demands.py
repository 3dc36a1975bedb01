# SPDX-License-Identifier: Apache-2.0
"""Demands: the numbers of rows, levels and sums that each example needs.

A batch's capacity follows from its examples' demands by sums and maxima, so the graphs
of examples that were traced before need not be read again:

    example  constants  nodes  sums   levels  uses at once  rounds of sums
       0         3        5      0       3         1               0
       1         2        9      7       2         4               2
    batch        5       14      7       3         4               2

The rows on each level do not follow from demands, so they are counted in the graph. The
*profile* of a component (the operations of one recurrence) has the number of rows of
each operation on each level. It is () for a component without levels, or outside loops.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np

from jfold.base.memo import memoized
from jfold.graph import Array, concatenate_arrays, shared_counts
from jfold.program.components import are_recurrent, components
from jfold.program.operations import Operations
from jfold.scheduling.growth import ADDED, Headroom
from jfold.scheduling.index_array import SUM_ARITY
from jfold.scheduling.layout import active_types
from jfold.scheduling.read_modes import has_slots, slots, twins
from jfold.scheduling.selections import Demands, Selection, use_counts
from jfold.scheduling.shards import Shards
from jfold.scheduling.spec import Capacity
from jfold.scheduling.staircase import Profile, by_level, larger, run_length_encode
from jfold.scheduling.sum_trees import adding, most_uses, sum_room
from jfold.scheduling.summands import slot_needs

Profiles: TypeAlias = tuple[Profile, ...]
DEVIATIONS = 3  # standard deviations of a level's number of rows, as headroom
FEW = 16  # examples; the spread of fewer examples tells nothing about later ones


def capacity(
    program: Operations, demanded: Demands, size: int, shards: Shards | None = None
) -> Capacity:
    """Return the least capacity, of `size` result rows, for a batch with these demands.

    With shards, `demanded` and `size` are those of a single shard. The capacity has no
    profiles.
    """
    types, active = len(program.types), active_types(program)
    added, highest = demanded.added, demanded.highest
    # For one example a reduction would take longer than all the rest.
    total = added[0] if len(added) == 1 else added.sum(0, dtype=np.int64)
    largest = highest[0] if len(highest) == 1 else highest.max(0, initial=0)
    constants, rows, sums, metrics, summands = _parts(program, total.tolist())
    levels, *fans = largest[: 1 + types].tolist()
    stages, *of_slots = largest[1 + types :].tolist()
    n = len(summands)
    indexed, sum_rows = tuple(of_slots[:n]), tuple(of_slots[n : 2 * n])
    return Capacity(
        examples=size,
        levels=levels,
        constants=tuple(map(operator.add, shared_counts(program), constants)),
        rows=rows,
        # At least one, even without examples: the device cannot sum over no rows.
        fans=tuple([max(fan, int(t in active)) for t, fan in enumerate(fans)]),
        sums=sums,
        stages=stages,
        metrics=metrics,
        indexed=indexed,
        summands=summands,
        sum_rows=sum_rows,
        apart=tuple(of_slots[2 * n :]),
        shards=shards,
    )


def chance(program: Operations, demanded: Demands, count: int) -> Headroom:
    """Estimate how much the needs of batches of `count` examples differ by chance.

    The result has, for each field of `ADDED`, six standard deviations of a sum over
    `count` examples. It is empty if `demanded` has fewer than `FEW` examples.
    """
    if len(demanded.added) < FEW:
        return {}
    # Variances of independent examples add up.
    deviations = np.sqrt(count * demanded.added.var(axis=0))
    more = np.ceil(6 * deviations).astype(np.int64).tolist()
    return dict(zip(ADDED, _parts(program, more), strict=True))


def row_columns(program: Operations) -> slice:
    """Return the slice of the columns of `Demands.added` that hold node counts."""
    return slice(*_ends(program)[1:3])


def node_counts(program: Operations, demanded: Demands) -> Array:
    """Return the number of nodes (applied operations) per example [examples] int64."""
    rows = demanded.added[:, row_columns(program)]
    return np.asarray(rows.sum(axis=1, dtype=np.int64))


def fits(program: Operations, demanded: Demands) -> bool:
    """Return whether demands have as many columns as the program needs."""
    # A program with operations outside of loops has more columns, for their slots.
    highest = 2 + len(program.types)  # levels, fans and stages
    highest += 2 * len(slots(program)) + len(twins(program))
    widths = demanded.added.shape[1:], demanded.highest.shape[1:]
    return widths == ((_ends(program)[-1],), (highest,))


@memoized
def _ends(program: Operations) -> tuple[int, ...]:
    """Return each field's first column in `Demands.added`, then the column count."""
    types, operations = len(program.types), len(program.operations)
    counts = types, operations, types, len(program.observed), len(slots(program))
    return tuple(itertools.accumulate(counts, initial=0))


def _parts(program: Operations, numbers: list[int]) -> list[tuple[int, ...]]:
    """Split a row of `Demands.added` into a tuple of numbers per field of `ADDED`."""
    return [tuple(numbers[a:b]) for a, b in itertools.pairwise(_ends(program))]


# ---- of graphs -----------------------------------------------------------------------


@memoized
def demands(selection: Selection) -> Demands:
    """Count the rows, levels and sums that each example of a selection needs."""
    if selection.known is not None:
        return selection.known
    program, numbers = selection.program, selection.numbers
    types, nodes, examples = len(program.types), len(program.operations), len(selection)
    sums, stages = np.zeros((types, examples), np.int64), np.zeros((1, examples), int)
    read = use_counts(selection, bool(program.applied) and program.has_loops)
    fans = _largest(read, numbers.first.ravel()).reshape(types, examples)
    # At least one, even if no value is read: the device cannot sum over no rows.
    active, adds_up = _active(program)
    fans = np.maximum(fans, 1) * active
    if adds_up or np.maximum.reduce(fans, None, initial=0) > SUM_ARITY:
        for t in active_types(program):
            counts = read[numbers.ends[t] : numbers.ends[t + 1]]
            begin, most = numbers.first[t] - numbers.ends[t], most_uses(selection, t)
            fans[t] = np.maximum(_largest(counts.clip(max=most), begin), 1)
            sums[t], rounds = sum_room(counts, most, begin)
            np.maximum(stages, rounds, out=stages)
    tables = selection.counts
    added, highest = [tables[: types + nodes], sums], [_depth(selection), fans, stages]
    if program.observed:
        added.append(tables[[types + nodes + r for r in program.observed]])
    if has_slots(program):
        # Computed for all examples of the graph at once, and remembered.
        summands, of_slots = slot_needs(selection.every)
        chosen = slice(None) if selection.examples is None else selection.examples
        added.append(summands[:, chosen])
        highest.append(of_slots[:, chosen])
    return Demands(_by_example(added), _by_example(highest))


@memoized
def _active(program: Operations) -> tuple[Array, bool]:
    """Return a mask of active types [types, 1] int, and whether loops add up any."""
    active = active_types(program)
    numbers = np.array([[t in active] for t in range(len(program.types))], int)
    return numbers, any(adding(program, t) for t in active)


def _by_example(numbers: list[Array]) -> Array:
    """Join arrays `numbers`, each [n, examples], into [examples, all n] int32."""
    # Copied, so that the numbers of an example are contiguous: batches pick rows.
    return np.concatenate(numbers, dtype=np.int32, casting='unsafe').T.copy()


def _depth(selection: Selection) -> Array:
    """Return the number of levels that each example runs in loops [1, examples]."""
    program, types = selection.program, len(selection.program.types)
    depth = np.zeros((1, len(selection)), np.int64)
    for o, recurrent in enumerate(are_recurrent(program)):
        if recurrent and o not in program.applied:
            begin = selection.before[types + o]
            np.maximum(depth, _largest(selection.levels(o), begin), out=depth)
    # Examples without nodes in a recurrence have one level, if they have any node.
    if not depth.all():
        tables = selection.counts[types : types + len(program.operations)]
        np.maximum(depth, tables.any(0), out=depth)
    return depth


def _largest(values: Array, begin: Array) -> Array:
    """Return each example's largest value [examples]; 0 for one without values.

    The values of example i begin at `begin[i]` in `values` [n].
    """
    if len(begin) == 1:
        return np.array([np.maximum.reduce(values, initial=0)], np.int64)
    # `reduceat` would give an example without values the first value of the next one.
    result, lengths = np.zeros((2, len(begin)), np.int64)
    lengths[:-1], lengths[-1:] = begin[1:] - begin[:-1], len(values) - begin[-1:]
    filled = lengths.nonzero()[0]
    if len(filled):
        result[filled] = np.maximum.reduceat(values, begin[filled])
    return result


def join_demands(parts: Sequence[Demands]) -> Demands:
    """Join demands `parts`, of several collections of examples, in this order."""
    added = concatenate_arrays([part.added for part in parts])
    return Demands(added, concatenate_arrays([part.highest for part in parts]))


# ---- profiles ------------------------------------------------------------------------


def profiles(program: Operations, selections: Iterable[Selection]) -> Profiles:
    """Return, per component, level and operation, the most rows in any selection."""

    def counted(levels: Array, owner: Array) -> Array:
        return np.bincount(levels, minlength=1)[1:]

    nothing: Profiles = ((),) * len(components(program))
    parts = (_profiles(selection, counted) for selection in selections)
    return functools.reduce(lambda a, b: tuple(map(larger, a, b)), parts, nothing)


def largest_profiles(selection: Selection, examples: int) -> Profiles:
    """Return, per level and operation, the most rows of any `examples` examples."""

    def counted(levels: Array, owner: Array) -> Array:
        level, count = _level_counts(levels, owner, len(selection))
        order = np.lexsort((-count, level))
        level, count = level[order], count[order]
        # Sorted by level, then largest first: take the first `examples` of each.
        place = np.arange(len(level)) - np.searchsorted(level, level)
        chosen = place < examples
        rows: Array = np.bincount(level[chosen], count[chosen])
        return rows[1:]

    return _profiles(selection, counted)


def margins(selection: Selection, examples: int) -> Profiles:
    """Estimate how far levels' row counts exceed their means in batches of `examples`.

    The estimate is three standard deviations of a sum over `examples` examples, from
    the variance within the selection. A level with more rows takes a spare step.
    """

    def counted(levels: Array, owner: Array) -> Array:
        level, count = _level_counts(levels, owner, len(selection))
        mean = np.bincount(level, count) / max(len(selection), 1)
        square = np.bincount(level, count * count) / max(len(selection), 1)
        deviation = np.sqrt(examples * np.maximum(square - mean * mean, 0))
        # A whole number with a rounding error shall not be rounded up to the next.
        margin: Array = np.ceil(DEVIATIONS * deviation - 1e-6).astype(np.int64)
        return margin[1:]

    return _profiles(selection, counted)


def _level_counts(levels: Array, owner: Array, examples: int) -> tuple[Array, Array]:
    """Count nodes per level and example; return level and count [n] of each such pair.

    `levels` and `owner` [nodes] have each node's level and example. Pairs are sorted by
    level, then by example; those without nodes are left out.
    """
    keys = levels.astype(np.int64) * max(examples, 1) + owner
    keys, count = np.unique(keys, return_counts=True)
    return keys // max(examples, 1), count


def _profiles(
    selection: Selection, counted: Callable[[Array, Array], Array]
) -> Profiles:
    """Return profiles, given a function from nodes to a number per level [levels].

    `counted` takes each node's level and example index, both [nodes], per operation.
    """
    types = len(selection.program.types)

    def rows(o: int) -> Array:
        return counted(selection.levels(o), selection.owners(types + o))

    applied = selection.program.applied
    return tuple(
        run_length_encode(by_level([rows(o) for o in component.operations]))
        if component.recurrent and not applied.issuperset(component.operations)
        else ()
        for component in components(selection.program)
    )
