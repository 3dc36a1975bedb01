# SPDX-License-Identifier: Apache-2.0
"""The results of a batch: their tensors, and the values that users get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfold.base.arrays import Arrays
from jfold.device.buffers import Batch, Buffers, take, values_of
from jfold.program.components import Place, phases, sources, type_at
from jfold.program.operations import ProducerSet, Program
from jfold.ragged import MetricValues, assemble_value
from jfold.scheduling.index_array import Section, section_of
from jfold.scheduling.layout import layout
from jfold.scheduling.schedule import Schedule
from jfold.scheduling.spec import Spec
from jfold.types import SequenceType, leaf_types, pack


@dataclass(frozen=True)
class ResultTensor:
    """The rows of a value buffer that a reader outside of loops reads.

    Attributes:
      type: number of its type.
      section: of the index array, [rows] indices of the rows that it reads from the
        value buffer of its type.
      edge: the first of its rows in the edge buffer, where its cotangent is put.
      makers: the results of operations that it may read, as a bit set.
      is_mixed: whether some of the rows may be behind the end of the buffer, since they
        are computed outside of loops; the last row stands for them.
    """

    type: int
    section: Section
    edge: int
    makers: ProducerSet
    is_mixed: bool


def result_tensors(spec: Spec) -> tuple[ResultTensor, ...]:
    """Return the tensors of all results of a program, in order."""
    results = enumerate(sources(spec.program).results, len(spec.program.operations))
    wanted = {(r, j): x for r, row in results for j, x in enumerate(row)}
    return tensors_read(spec, wanted)


def tensors_read(
    spec: Spec, wanted: Mapping[Place, ProducerSet]
) -> tuple[ResultTensor, ...]:
    """Return the rows of value buffers that each place in `wanted` reads, in order.

    Args:
      wanted: by place, as in `Phases.leaving`, the outputs that it may read.
    """
    program, places = spec.program, layout(spec)
    behind = phases(program).outputs_behind
    return tuple(
        ResultTensor(
            type_at(program, place),
            section_of(program, places.sections, place),
            places.edges_leaving.get(place, -1),
            makers,
            is_mixed=bool(makers & behind),
        )
        for place, makers in wanted.items()
    )


def gathered(tensors: Sequence[ResultTensor], batch: Batch, values: Buffers) -> Arrays:
    """Gather the rows of each of `tensors` from the value buffers, [rows, *shape].

    Spare (padding) rows repeat a real one.
    """

    def rows(tensor: ResultTensor, buffer: Array) -> Array:
        indices = batch.read(tensor.section, 0, *tensor.section.shape)
        last = max(len(buffer) - 1, 0)
        return lax.min(indices, np.int32(last)) if tensor.is_mixed else indices

    buffers = [values_of(values, batch, x.type) for x in tensors]
    return [take(y, rows(x, y)) for x, y in zip(tensors, buffers, strict=True)]


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
