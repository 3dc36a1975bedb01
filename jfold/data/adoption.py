# SPDX-License-Identifier: Apache-2.0
"""What was made by one model, for another whose expression has the same structure.

In a notebook a model is defined again and again. Graphs of examples outlast it as long
as their numbers mean the same, whatever the widths of layers; schedules as long as all
of it is as it was.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from jfold.data.fingerprint import differences, fingerprint
from jfold.graph import Graph, Table
from jfold.kept import kept
from jfold.operations import Operations
from jfold.planning.layout import layout
from jfold.program import Program
from jfold.schedule import Schedule
from jfold.spec import Capacity, Spec
from jfold.types import TensorType


def differing(program: Program, other: Operations) -> tuple[str, ...]:
    """In what the structure of another program differs; nothing if it is the same."""
    return () if other is program else _differing(program, weakref.ref(other))


@kept
def _differing(program: Program, reference: weakref.ref[Operations]) -> tuple[str, ...]:
    other = reference()
    if not isinstance(other, Program):
        return ('no host program',)
    return tuple(differences(fingerprint(other), fingerprint(program)))


def fitted(program: Program, graph: Graph) -> Graph:
    """A graph of the same structure, whose empty tables have the shapes of a program:
    of types that no data have."""
    pairs = zip(graph.constants, program.types, strict=True)
    return replace(graph, constants=tuple(_empty_as(*each) for each in pairs))


def _empty_as(table: Table, type_: TensorType) -> Table:
    if len(table) or table.columns[0].shape[1:] == type_.shape:
        return table
    return Table(table.first, (np.zeros((0, *type_.shape), type_.dtype),))


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
    if replace(got, program=spec.program) != spec:
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
        and program.types == other.types
        and all(
            np.array_equal(x, y, equal_nan=y.dtype.kind in 'fc')
            for (_, x), (_, y) in zip(program.constants, other.constants, strict=True)
        )
    )
