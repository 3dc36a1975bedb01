# SPDX-License-Identifier: Apache-2.0
"""The results of a batch: their tensors, and the values that users get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from jfold.base.arrays import Arrays
from jfold.device.buffers import Batch, Buffers, take, values_of
from jfold.program.components import sources
from jfold.program.operations import ProducerSet, Program
from jfold.ragged import MetricValues, assemble_value
from jfold.scheduling.index_array import Section
from jfold.scheduling.layout import layout
from jfold.scheduling.schedule import Schedule
from jfold.scheduling.spec import Spec
from jfold.types import SequenceType, leaf_types, pack


@dataclass(frozen=True)
class ResultTensor:
    """The rows of a value buffer that a tensor of a result reads.

    Attributes:
      type: number of its type.
      section: of the index array, [rows] indices of the rows that it reads from the
        value buffer of its type.
      edge: the first of its rows in the edge buffer, where its cotangent is put; -1 if
        results are read outside of loops.
      makers: the results of operations that it may read, as a bit set.
    """

    type: int
    section: Section
    edge: int
    makers: ProducerSet


def result_tensors(spec: Spec) -> tuple[ResultTensor, ...]:
    """Return the tensors of all results of a program, in order."""
    program, places = spec.program, layout(spec)
    tensors = list[ResultTensor]()
    for r, makers in enumerate(sources(program).results):
        types, sections = program.results[r].tensors, places.sections.results[r]
        edges = places.edges_read[r] if places.edges_read else (-1,) * len(types)
        tensors += map(ResultTensor, types, sections, edges, makers)
    return tuple(tensors)


def gathered(tensors: Sequence[ResultTensor], batch: Batch, values: Buffers) -> Arrays:
    """Gather the rows of each of `tensors` from the value buffers, [rows, *shape].

    Spare (padding) rows repeat a real one.
    """

    rows = [batch.read(x.section, 0, *x.section.shape) for x in tensors]
    buffers = [values_of(values, batch, x.type) for x in tensors]
    return list(map(take, buffers, rows))


def returned(program: Program, schedule: Schedule, results: list[list[Array]]) -> Any:
    """Return what `Model.apply` returns, assembled from the tensors of results.

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
