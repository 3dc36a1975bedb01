# SPDX-License-Identifier: Apache-2.0
"""The transfer of graphs and schedules from one model to another of equal structure.

In a notebook a model is often defined again, and other processes have copies. A graph
of examples stays valid if its numbers of values can be mapped to those of the new
program, whatever the widths of layers. A schedule stays valid only if shapes, constants
and options are the same.

Each value of an example has a producer, or *part*: a constant, a list of constants, or
an output of an operation. The values of a part have consecutive numbers.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import jax
import numpy as np

from jfold.base.memo import Memoized, memoized
from jfold.data.fingerprint import differences, fingerprint, numbers_of
from jfold.graph import Array, Graph, Table
from jfold.program.operations import Operations, Program
from jfold.scheduling.layout import layout
from jfold.scheduling.schedule import Schedule, abstract
from jfold.scheduling.spec import Capacity, Spec
from jfold.tracing.check_graph import checked

Numbers: TypeAlias = Mapping[str, Any]  # as `numbers_of` returns them
# The numbers of a part's values in each example: the first in the old program, one more
# than the last, and the first in the new program, each [examples].
Move: TypeAlias = tuple[Array, Array, Array]


def structure_differences(program: Program, other: Operations) -> tuple[str, ...]:
    """Return how fingerprints of `program` and `other` differ, as texts, or ()."""
    # A weak reference as key of the memo, which so does not keep `other` alive.
    return () if other is program else _differing(program, weakref.ref(other))


@memoized
def _differing(program: Program, reference: weakref.ref[Operations]) -> tuple[str, ...]:
    other = reference()
    if not isinstance(other, Program):
        return ('operations that come of no expression',)
    return tuple(differences(fingerprint(other), fingerprint(program)))


# ---- graphs --------------------------------------------------------------------------


def fit_graph(program: Program, graph: Graph, numbers: Numbers) -> Graph:
    """Return a graph traced for an equal program, with this program's value numbers.

    Its empty tables of constants get this program's shapes.

    Args:
      numbers: what `numbers_of` returns for the program that it was traced for.

    Raises:
      ValueError: a number refers to no value of its example; or one constant of the old
        program, shared by uses of equal width, is several constants now.
    """
    target = numbers_of(program)
    # Which types have gradients has no bearing on how values are numbered.
    is_same = {**numbers, 'active': target['active']} == target
    pairs = zip(target['own'], numbers['own'], strict=True)
    tables = {new: graph.constants[old] for new, old in pairs}
    if is_same:
        tables = dict(enumerate(graph.constants))
    empty = Table(np.zeros(graph.examples + 1, np.int64), ())
    constants = []
    for t, type_ in enumerate(program.types):
        table = tables.get(t, empty)
        if not len(table) and [x.shape[1:] for x in table.columns] != [type_.shape]:
            table = Table(table.first, (np.zeros((0, *type_.shape), type_.dtype),))
        constants.append(table)
    graph = replace(graph, constants=tuple(constants))
    return graph if is_same else _renumbered(graph, numbers, target)


def _renumbered(graph: Graph, old: Numbers, new: Numbers) -> Graph:
    """Return `graph` with value numbers of program `new` in place of those of `old`.

    Its constants are those of `new` already. Raises ValueError, see `fit_graph`.
    """
    moves = _moves(graph, old, new)

    def renumbered(table: Table, types: Sequence[int], now: Sequence[int]) -> Table:
        """Return `table`; renumber its last columns from old `types` to `now`."""
        example = np.repeat(np.arange(graph.examples), table.counts)
        leading = len(table.columns) - len(types)
        columns = (
            _new_numbers(column, example, moves[t, u])
            for column, t, u in zip(table.columns[leading:], types, now, strict=True)
        )
        return Table(table.first, (*table.columns[:leading], *columns))

    operations = zip(
        graph.operations, old['operations'], new['operations'], strict=True
    )
    results = zip(graph.results, old['results'], new['results'], strict=True)
    return replace(
        graph,
        operations=tuple(renumbered(x, a[0], b[0]) for x, a, b in operations),
        results=tuple(renumbered(x, a, b) for x, a, b in results),
    )


def _new_numbers(values: Array, example: Array, moves: Sequence[Move]) -> Array:
    """Return the numbers [n] that values [n] of these examples [n] have after moves.

    Raises ValueError if a number refers to no value of its example.
    """
    result = np.full(len(values), -1, values.dtype)
    for move in moves:
        begin, end, now = (x[example] for x in move)
        inside = np.flatnonzero((values >= begin) & (values < end))
        result[inside] = values[inside] - begin[inside] + now[inside]
    if (result < 0).any():
        raise ValueError('expected numbers of values of an example, got others')
    return result


def _moves(graph: Graph, old: Numbers, new: Numbers) -> Mapping[Any, Sequence[Move]]:
    """Return how parts of `graph` move from `old` to `new`, by old and new type.

    Values keep their order within a part; only its first number changes.
    """
    one = np.ones(graph.examples, np.int64)
    moves = defaultdict[tuple[int, int], list[Move]](list)
    before, after = (
        [x['constants'].count(t) * one for t in range(x['types'])] for x in (old, new)
    )
    # The uses of the programs' constants, in the order of the source.
    known: dict[tuple[int, int], int] = {}
    for i, j in zip(old['shared'], new['shared'], strict=True):
        t, u = old['constants'][i], new['constants'][j]
        if known.setdefault((i, u), j) != j:
            raise ValueError(
                'expected a corpus in which constants that differ now differed, got '
                'one in which they were one: trace the examples again with '
                '`model.trace`'
            )
        begin = old['constants'][:i].count(t) * one
        moves[t, u].append((begin, begin + 1, new['constants'][:j].count(u) * one))
    # The lists of constants of examples, of which the first of a type stands for all.
    lists = {*zip(old['own'], new['own'], strict=True)}
    parts = [(t, u, graph.constants[u].counts) for t, u in lists]
    operations = zip(old['operations'], new['operations'], strict=True)
    for table, ((_, types), (_, now)) in zip(graph.operations, operations, strict=True):
        parts += [(t, u, table.counts) for t, u in zip(types, now, strict=True)]
    for t, u, counts in parts:
        moves[t, u].append((before[t], before[t] + counts, after[u]))
        before[t], after[u] = before[t] + counts, after[u] + counts
    return moves


@dataclass(frozen=True, eq=False)
class Traced(Memoized):
    """Traced examples for `Model.schedule`, as arrays that can be sent anywhere.

    A graph from another process is checked against the program once, when it is first
    used, which takes a small part of the time that tracing took (`checked`).

    Attributes:
      graph: the operations that the examples run, and their operands.
      digest: the digest of the expression that they were traced for.
      is_own: whether a tracer of this process made it, so that no check is needed.
    """

    graph: Graph
    digest: str
    is_own: bool = field(default=False, repr=False, kw_only=True)

    def __len__(self) -> int:
        return self.graph.examples

    def __repr__(self) -> str:
        return f'Traced({len(self):,} examples, {self.graph.nodes:,} nodes)'

    def __getstate__(self) -> dict[str, Any]:
        return {'graph': self.graph, 'digest': self.digest}


@memoized
def graph_in(traced: Traced, program: Program) -> Graph:
    """Return the graph of traced examples, checked unless this process traced them.

    Raises ValueError if it does not fit the program.
    """
    graph = fit_graph(program, traced.graph, numbers_of(program))
    return graph if traced.is_own else checked(program, replace(graph, fits=False))


# ---- schedules -----------------------------------------------------------------------


def adopt_schedule(
    schedule: Schedule, programs: Sequence[Program], spec_of: Callable[[Capacity], Spec]
) -> tuple[Schedule, Program]:
    """Return a schedule with a spec for one of `programs`, and that program.

    The schedule is of one of `programs`, which are a model's, the newest first; or of
    an equal model: then its spec is replaced by that of `spec_of`.

    Raises:
      TypeError: `schedule` is no schedule.
      ValueError: the models are not equal: they differ in structure, widths, constants
        or options, so the schedules that they make differ. Or arrays of the schedule
        have other shapes or dtypes than those of its spec.
    """
    if not isinstance(schedule, Schedule):
        raise TypeError(
            f'expected `schedule` as a schedule, got {type(schedule).__name__}: '
            'call `model.apply(params, model.schedule(examples))`'
        )
    _check_arrays(schedule)
    for program in programs:
        if schedule.spec.program is program:
            return schedule, program
    if structure_differences(programs[0], schedule.spec.program):
        raise ValueError(
            'expected a schedule made by this model, got one of another: call '
            '`model.schedule(examples)` of the model that is applied'
        )
    adopted = adopt_spec(schedule, spec_of(schedule.capacity))
    if adopted is None:
        raise ValueError(
            'expected a schedule made by this model, got one of another, in which '
            'widths, constants or options differ: call `model.schedule(examples)`, or '
            '`model.join([corpus]).schedule(indices)`, of the model that is applied'
        )
    return adopted, programs[0]


def _check_arrays(schedule: Schedule) -> None:
    """Raise ValueError if an array of a schedule differs in form from its spec.

    Arrays with more axes, of stacked schedules, are refused by another error.
    """
    arrays = (schedule.indices, *schedule.constants)
    for x, (shape, wanted) in zip(arrays, _arrays(schedule.spec), strict=True):
        got, dtype = map(jax.dtypes.canonicalize_dtype, (x.dtype, wanted))
        if (x.shape != shape or got != dtype) and x.ndim == len(shape):
            raise ValueError(
                f'expected a schedule with an array {dtype}{list(shape)}, got '
                f'{got}{list(x.shape)} there: pass what `model.schedule` returns'
            )


@memoized
def _arrays(spec: Spec) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return the shapes and dtypes of a schedule's arrays: indices, constants."""
    form, types = abstract(spec), spec.program.types
    dtypes = [np.dtype(np.int32), *(t.dtype for t in types)]
    arrays = (form.indices, *form.constants)
    return [(x.shape, dtype) for x, dtype in zip(arrays, dtypes, strict=True)]


def adopt_spec(schedule: Schedule, spec: Spec) -> Schedule | None:
    """Return a schedule with its spec replaced by the equal `spec`; `None` if unequal.

    The specs may not differ in anything: capacity, options, structure, shapes,
    constants, layout of the arrays.
    """
    got, program = schedule.spec, spec.program
    other = got.program
    assert isinstance(program, Program)
    is_same = (
        got.replaced(program=program) == spec
        and not structure_differences(program, other)
        and isinstance(other, Program)
        and numbers_of(program) == numbers_of(other)
        and program.types == other.types
        and all(
            np.array_equal(x, y, equal_nan=y.dtype.kind in 'fc')
            for (_, x), (_, y) in zip(program.constants, other.constants, strict=True)
        )
        and layout(spec) == layout(got)
    )
    return replace(schedule, spec=spec) if is_same else None
