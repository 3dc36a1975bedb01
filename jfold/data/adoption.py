# SPDX-License-Identifier: Apache-2.0
"""What was made by one model, for another whose expression has the same structure.

In a notebook a model is defined again and again. Graphs of examples outlast it as long
as their numbers mean the same, whatever the widths of layers; schedules as long as all
of it is as it was.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from jfold.base.memo import memoized
from jfold.data.fingerprint import differences, fingerprint, numbers_of
from jfold.graph import Array, Graph, Table
from jfold.program.operations import Operations, Program
from jfold.scheduling.layout import layout
from jfold.scheduling.schedule import Schedule
from jfold.scheduling.spec import Capacity, Spec
from jfold.types import TensorType

Numbers: TypeAlias = Mapping[str, Any]  # as `numbers_of` gives them
Part: TypeAlias = tuple[int, int]  # an operation, and which of its outputs
Parts: TypeAlias = dict[Part, tuple[Array, Array]]  # first [examples], and behind last
OWN: Part = (-1, 0)  # constants of the examples' own


def differing(program: Program, other: Operations) -> tuple[str, ...]:
    """In what the structure of another program differs; nothing if it is the same."""
    return () if other is program else _differing(program, weakref.ref(other))


@memoized
def _differing(program: Program, reference: weakref.ref[Operations]) -> tuple[str, ...]:
    other = reference()
    if not isinstance(other, Program):
        return ('operations that come of no expression',)
    return tuple(differences(fingerprint(other), fingerprint(program)))


# ---- graphs --------------------------------------------------------------------------


def fitted(program: Program, graph: Graph, numbers: Numbers) -> Graph:
    """A graph of the same structure, with the numbers and shapes that a program has.

    Args:
      numbers: by which its values are told.

    Raises:
      ValueError: a value is none, or one of several that had the same width.
    """
    now = numbers_of(program)
    # Whichever of them have gradients.
    if {**numbers, 'active': now['active']} == now:
        pairs = zip(graph.constants, program.types, strict=True)
        return replace(graph, constants=tuple(_empty_as(*each) for each in pairs))
    moved = dict(zip(now['own'], numbers['own'], strict=True))
    own = {new: graph.constants[old] for new, old in moved.items()}
    none = Table(np.zeros(graph.examples + 1, np.int64), ())
    constants = tuple(
        _empty_as(own.get(t, none), type_) for t, type_ in enumerate(program.types)
    )
    return replace(_renumbered(graph, constants, numbers, now), constants=constants)


def _empty_as(table: Table, type_: TensorType) -> Table:
    """A table of constants, whose column has the shape of a type if it has no rows."""
    if len(table) or (table.columns and table.columns[0].shape[1:] == type_.shape):
        return table
    return Table(table.first, (np.zeros((0, *type_.shape), type_.dtype),))


@dataclass(frozen=True, eq=False)
class _Renumbering:
    """From the numbers that values had to those that they have.

    Attributes:
      before, after: of each type where its parts are: the own constants of examples,
        and what operations give.
      own: the type of own constants, by that which they had.
      shared: by a type, the place of a constant of it and the type that is read, its
        place among those of that.
      count: how many constants of the program there were of each type.
    """

    before: list[Parts]
    after: list[Parts]
    own: Mapping[int, int]
    shared: Mapping[tuple[int, int, int], int]
    count: Sequence[int]

    def table(self, table: Table, old: Sequence[int], new: Sequence[int]) -> Table:
        """A table whose last columns are numbers of values of types that are others."""
        example = np.repeat(np.arange(len(table.first) - 1), table.counts)
        aside = len(table.columns) - len(old)
        values = zip(table.columns[aside:], old, new, strict=True)
        made = (self._column(x, example, t, now) for x, t, now in values)
        return Table(table.first, (*table.columns[:aside], *made))

    def _column(self, values: Array, example: Array, t: int, now: int) -> Array:
        made = np.full(len(values), -1, values.dtype)
        for k in np.unique(values[values < self.count[t]]).tolist():
            made[values == k] = self.shared.get((t, k, now), -1)
        for part, (begin, end) in self.before[t].items():
            is_other = part == OWN and self.own.get(t) != now
            there = None if is_other else self.after[now].get(part)
            inside = (values >= begin[example]) & (values < end[example])
            if there is not None and inside.any():
                at = example[inside]
                made[inside] = values[inside] - begin[at] + there[0][at]
        if (made < 0).any():
            raise ValueError('expected numbers of values of an example, got others')
        return made


def _renumbered(
    graph: Graph, constants: Sequence[Table], old: Numbers, new: Numbers
) -> Graph:
    """A graph with other numbers of values, given its tables of constants now."""
    own = dict(zip(old['own'], new['own'], strict=True))
    before, after = _parts(graph, graph.constants, old), _parts(graph, constants, new)
    count = [old['constants'].count(t) for t in range(old['types'])]
    change = _Renumbering(before, after, own, _shared(old, new), count)
    operations = zip(
        graph.operations, old['operations'], new['operations'], strict=True
    )
    results = zip(graph.results, old['results'], new['results'], strict=True)
    return replace(
        graph,
        operations=tuple(change.table(x, a[0], b[0]) for x, a, b in operations),
        results=tuple(change.table(*each) for each in results),
        numbers=None,
    )


def _parts(graph: Graph, constants: Sequence[Table], numbers: Numbers) -> list[Parts]:
    """Where the parts of each type begin and end, example by example."""
    shared = [numbers['constants'].count(t) for t in range(numbers['types'])]
    ends = [np.full(graph.examples, count, np.int64) for count in shared]
    found: list[Parts] = [{} for _ in ends]
    rows = [(t, OWN, table) for t, table in enumerate(constants)]
    for o, (_, outputs) in enumerate(numbers['operations']):
        rows += [(t, (o, k), graph.operations[o]) for k, t in enumerate(outputs)]
    for t, part, table in rows:
        found[t][part] = ends[t], ends[t] + table.counts
        ends[t] = ends[t] + table.counts
    return found


def _shared(old: Numbers, new: Numbers) -> dict[tuple[int, int, int], int]:
    """See `_Renumbering.shared`.

    Raises:
      ValueError: one constant is several of one type now.
    """
    (before, first), (after, then) = (
        (
            x['constants'],
            [x['constants'][:i].count(t) for i, t in enumerate(x['constants'])],
        )
        for x in (old, new)
    )
    found: dict[tuple[int, int, int], int] = {}
    for i, j in zip(old['shared'], new['shared'], strict=True):
        key = before[i], first[i], after[j]
        if found.setdefault(key, then[j]) != then[j]:
            raise ValueError(
                'expected a corpus in which constants that differ now differed, got '
                'one in which they were one: trace the examples again with '
                '`model.trace`'
            )
    return found


# ---- schedules -----------------------------------------------------------------------


def of_model(
    schedule: Schedule, spec_of: Callable[[Capacity], Spec], program: Program
) -> Schedule:
    """A schedule that another model made, as one of this, if this had made the same.

    Args:
      spec_of: what this model has of a capacity.
      program: of this model.

    Raises:
      ValueError: it would have made another.
    """
    if differing(program, schedule.spec.program):
        raise ValueError(
            'expected a schedule made by this model, got one of another: call '
            '`model.schedule(examples)` of the model that is applied'
        )
    own = with_spec(schedule, spec_of(schedule.capacity))
    if own is None:
        raise ValueError(
            'expected a schedule made by this model, got one of another, in which '
            'widths, constants or options differ: call `model.schedule(examples)`, or '
            '`model.join([corpus]).schedule(indices)`, of the model that is applied'
        )
    return own


def with_spec(schedule: Schedule, spec: Spec) -> Schedule | None:
    """A schedule of another program with the spec that it has here; `None` if that
    lies otherwise in memory, or is of something else."""
    got = schedule.spec
    if got.replaced(program=spec.program) != spec:
        return None
    is_same = _is_same(spec.program, got.program)
    if not is_same or repr(layout(spec)) != repr(layout(got)):
        return None
    return replace(schedule, spec=spec)


def _is_same(program: Operations, other: Operations) -> bool:
    """Whether programs are the same, shapes and constants included."""
    assert isinstance(program, Program)
    return (
        not differing(program, other)
        and isinstance(other, Program)
        and numbers_of(program) == numbers_of(other)
        and program.types == other.types
        and all(
            np.array_equal(x, y, equal_nan=y.dtype.kind in 'fc')
            for (_, x), (_, y) in zip(program.constants, other.constants, strict=True)
        )
    )
