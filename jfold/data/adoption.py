# SPDX-License-Identifier: Apache-2.0
"""The transfer of graphs and schedules from one model to another of equal structure.

In a notebook a model is often defined again. A graph of examples stays valid if its
numbers of values can be mapped to those of the new program, whatever the widths of
layers. A schedule stays valid only if shapes, constants and options are the same.
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

Numbers: TypeAlias = Mapping[str, Any]  # as `numbers_of` returns them
Part: TypeAlias = tuple[int, int]  # the indices of an operation and of its output
# The numbers of the values in a part of one type: in each example the first number, and
# one more than the last, both [examples].
Parts: TypeAlias = dict[Part, tuple[Array, Array]]
OWN: Part = (-1, 0)  # the part of the constants that are read from examples


def structure_differences(program: Program, other: Operations) -> tuple[str, ...]:
    """Return how `other` differs from `program` in structure, as texts; () if equal.

    The structure is all that a fingerprint has: operations, results, source, functions.
    """
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
    """Return a graph, traced for a program of equal structure, renumbered for this one.

    Args:
      graph: its empty tables of constants also get this program's shapes.
      numbers: what `numbers_of` returns for the program that it was traced for.

    Raises:
      ValueError: a number is of no value of its example; or one constant of the old
        program, shared by uses of equal width, is several constants now.
    """
    target = numbers_of(program)
    # Which types have gradients has no bearing on how values are numbered.
    if {**numbers, 'active': target['active']} == target:
        pairs = zip(graph.constants, program.types, strict=True)
        constants = tuple(_with_shape(table, type_) for table, type_ in pairs)
        return replace(graph, constants=constants)
    types = zip(target['own'], numbers['own'], strict=True)
    tables = {new: graph.constants[old] for new, old in types}
    empty = Table(np.zeros(graph.examples + 1, np.int64), ())
    constants = tuple(
        _with_shape(tables.get(t, empty), type_)
        for t, type_ in enumerate(program.types)
    )
    return replace(_renumbered(graph, constants, numbers, target), constants=constants)


def _with_shape(table: Table, type_: TensorType) -> Table:
    """Return a table of constants; if empty, with a column [0, *shape] of the type."""
    if len(table) or (table.columns and table.columns[0].shape[1:] == type_.shape):
        return table
    return Table(table.first, (np.zeros((0, *type_.shape), type_.dtype),))


@dataclass(frozen=True, eq=False)
class _Renumbering:
    """A map from an old program's numbers of values to those of a new program.

    Attributes:
      before, after: per old and per new type, the numbers of the values in each part:
        the constants of examples, and each output of an operation.
      new_types: the new type of the constants of examples that have an old type.
      shared: the new number of a constant of the program, by its old type, its old
        number and its new type; it counts the program's constants of one type.
      counts: per old type, how many constants the program had.
    """

    before: list[Parts]
    after: list[Parts]
    new_types: Mapping[int, int]
    shared: Mapping[tuple[int, int, int], int]
    counts: Sequence[int]

    def table(self, table: Table, old: Sequence[int], new: Sequence[int]) -> Table:
        """Return a table with new numbers of values in its last columns.

        Args:
          old, new: per such column the type of its values, before and now.
        """
        example = np.repeat(np.arange(len(table.first) - 1), table.counts)
        leading = len(table.columns) - len(old)
        values = zip(table.columns[leading:], old, new, strict=True)
        columns = (self._column(x, example, t, now) for x, t, now in values)
        return Table(table.first, (*table.columns[:leading], *columns))

    def _column(self, values: Array, example: Array, old: int, new: int) -> Array:
        """Return the new numbers [n] of the values that had the numbers `values` [n].

        Args:
          example: [n] the example of each.
          old, new: their type, before and now.

        Raises:
          ValueError: a number is of no value of its example.
        """
        result = np.full(len(values), -1, values.dtype)
        # Constants of the program come first, with the same numbers in all examples.
        for k in np.unique(values[values < self.counts[old]]).tolist():
            result[values == k] = self.shared.get((old, k, new), -1)
        # Values keep their order within a part; only its first number has changed.
        for part, (begin, end) in self.before[old].items():
            is_other = part == OWN and self.new_types.get(old) != new
            target = None if is_other else self.after[new].get(part)
            inside = (values >= begin[example]) & (values < end[example])
            if target is not None and inside.any():
                examples = example[inside]
                offset = target[0][examples] - begin[examples]
                result[inside] = values[inside] + offset
        if (result < 0).any():
            raise ValueError('expected numbers of values of an example, got others')
        return result


def _renumbered(
    graph: Graph, constants: Sequence[Table], old: Numbers, new: Numbers
) -> Graph:
    """Return a graph whose operands and results have new numbers.

    Args:
      constants: per new type, the table of the examples' constants.
      old, new: what `numbers_of` returns for the old and the new program.

    Raises:
      ValueError: see `fit_graph`.
    """
    new_types = dict(zip(old['own'], new['own'], strict=True))
    before, after = _parts(graph, graph.constants, old), _parts(graph, constants, new)
    counts = [old['constants'].count(t) for t in range(old['types'])]
    change = _Renumbering(before, after, new_types, _shared(old, new), counts)
    operations = zip(
        graph.operations, old['operations'], new['operations'], strict=True
    )
    results = zip(graph.results, old['results'], new['results'], strict=True)
    return replace(
        graph,
        operations=tuple(change.table(x, a[0], b[0]) for x, a, b in operations),
        results=tuple(change.table(x, a, b) for x, a, b in results),
        numbers=None,
    )


def _parts(graph: Graph, constants: Sequence[Table], numbers: Numbers) -> list[Parts]:
    """Return per type the numbers of the values in each part, as in `_Renumbering`."""
    shared = [numbers['constants'].count(t) for t in range(numbers['types'])]
    ends = [np.full(graph.examples, count, np.int64) for count in shared]
    parts: list[Parts] = [{} for _ in ends]
    rows = [(t, OWN, table) for t, table in enumerate(constants)]
    for o, (_, outputs) in enumerate(numbers['operations']):
        rows += [(t, (o, k), graph.operations[o]) for k, t in enumerate(outputs)]
    for t, part, table in rows:
        parts[t][part] = ends[t], ends[t] + table.counts
        ends[t] = ends[t] + table.counts
    return parts


def _shared(old: Numbers, new: Numbers) -> dict[tuple[int, int, int], int]:
    """Return the new numbers of the program's constants: `_Renumbering.shared`.

    Raises:
      ValueError: one constant has become several of one type.
    """
    (old_types, old_places), (new_types, new_places) = (
        (
            x['constants'],
            [x['constants'][:i].count(t) for i, t in enumerate(x['constants'])],
        )
        for x in (old, new)
    )
    result: dict[tuple[int, int, int], int] = {}
    for i, j in zip(old['shared'], new['shared'], strict=True):
        key = old_types[i], old_places[i], new_types[j]
        if result.setdefault(key, new_places[j]) != new_places[j]:
            raise ValueError(
                'expected a corpus in which constants that differ now differed, got '
                'one in which they were one: trace the examples again with '
                '`model.trace`'
            )
    return result


# ---- schedules -----------------------------------------------------------------------


def adopt_schedule(
    schedule: Schedule, spec_of: Callable[[Capacity], Spec], program: Program
) -> Schedule:
    """Return a schedule that another model made, with the spec of this model.

    Args:
      spec_of: returns this model's spec for a capacity.
      program: the program of this model.

    Raises:
      ValueError: the models differ in structure, widths, constants or options, so this
        one would make another schedule.
    """
    if structure_differences(program, schedule.spec.program):
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
    return adopted


def adopt_spec(schedule: Schedule, spec: Spec) -> Schedule | None:
    """Return a schedule with `spec` in place of its own; `None` if the two differ.

    They may not differ in anything: capacity, options, structure, shapes, constants,
    layout of the arrays.
    """
    got = schedule.spec
    if got.replaced(program=spec.program) != spec:
        return None
    is_same = _is_same(spec.program, got.program)
    if not is_same or repr(layout(spec)) != repr(layout(got)):
        return None
    return replace(schedule, spec=spec)


def _is_same(program: Operations, other: Operations) -> bool:
    """Return whether programs are equal in structure, shapes and constants."""
    assert isinstance(program, Program)
    return (
        not structure_differences(program, other)
        and isinstance(other, Program)
        and numbers_of(program) == numbers_of(other)
        and program.types == other.types
        and all(
            np.array_equal(x, y, equal_nan=y.dtype.kind in 'fc')
            for (_, x), (_, y) in zip(program.constants, other.constants, strict=True)
        )
    )
