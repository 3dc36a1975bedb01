# SPDX-License-Identifier: Apache-2.0
"""The results of a batch: their tensors, and the values that users get."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from jfold.base.arrays import Arrays
from jfold.device.buffers import Batch, Buffers, take, values_of
from jfold.device.execution import Execution
from jfold.device.reads import mask_spare
from jfold.program.components import Place, type_at
from jfold.program.operations import Program
from jfold.ragged import MetricValues, assemble_value
from jfold.scheduling.schedule import Schedule
from jfold.types import SequenceType, leaf_types, pack


def gathered(execution: Execution, batch: Batch, values: Buffers) -> Arrays:
    """Gather the rows of `execution.tensors` from the value buffers, [rows, *shape].

    Spare (padding) rows of results repeat a real one; no gradient flows through them,
    nor does a tangent.
    """
    program = execution.program
    first = len(program.operations)  # the table of the first result

    def read(place: Place) -> Array:
        section = batch.sections.reads[place]
        buffer = values_of(values, batch, type_at(program, place))
        rows = take(buffer, batch.read(section, 0, *section.shape))
        if place[0] < first:  # an output that leaves loops, read as others are
            return rows
        return mask_spare(rows, jnp.arange(len(rows)) < batch.rows(place[0] - first))

    return list(map(read, execution.tensors))


def returned(program: Program, schedule: Schedule, results: list[list[Array]]) -> Any:
    """Assemble the return value of `Model.apply` from the tensors of results.

    Args:
      results: by result, list of arrays, each [rows, *shape].
    """

    def value_of(tables: list[list[Array]]) -> Any:
        leaves, *items = tables
        pairs = zip(leaf_types(program.output), leaves, strict=True)
        leaves = [
            _lengths(schedule, x) if isinstance(type_, SequenceType) else x
            for type_, x in pairs
        ]
        return assemble_value(program.output, [leaves, *items])

    def metric_of(result: int, tensors: list[Array]) -> MetricValues:
        values = pack(program.results[result].type, tensors)
        example = schedule.owners(result)
        return MetricValues(values, example, example < schedule.examples)

    return program.assemble(results, value_of, metric_of)


def _lengths(schedule: Schedule, lengths: Array) -> Array:
    """Return sequence lengths [rows], with zero for spare (padding) rows."""
    # Spare rows repeat the last example, but not its items: their sequences are empty.
    real = jnp.where(schedule.mask, lengths, 0)
    shards = schedule.spec.shards
    return real if shards is None else shards.replicated(real)
