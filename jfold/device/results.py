# SPDX-License-Identifier: Apache-2.0
"""The tensors that an execution returns, those of all results in one list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jax import Array

from jfold.base.arrays import Arrays
from jfold.device.batch import Batch
from jfold.device.buffers import Values, take
from jfold.program.components import sources
from jfold.program.operations import Operations, ProducerSet
from jfold.scheduling.layout import layout
from jfold.scheduling.sections import Section
from jfold.scheduling.spec import Spec


@dataclass(frozen=True)
class ResultTensor:
    """One tensor of a result.

    Attributes:
      type: number of its type.
      section: of the index array [rows].
      edge: its first row in the edge buffer.
      makers: the operations' results that it may read.
    """

    type: int
    section: Section
    edge: int
    makers: ProducerSet


def returned(spec: Spec) -> tuple[ResultTensor, ...]:
    """Return all tensors of the results of a program, in order."""
    places = layout(spec)
    tables = zip(
        spec.program.results,
        places.sections.results,
        places.edge_results,
        sources(spec.program).results,
        strict=True,
    )
    return tuple(
        ResultTensor(*tensor)
        for result, sections, edges, producers in tables
        for tensor in zip(result.tensors, sections, edges, producers, strict=True)
    )


def by_result(program: Operations, tensors: Arrays) -> list[Arrays]:
    """Group tensors, as `returned` lists them, by result [rows, *shape] each."""
    remaining = iter(tensors)
    return [[next(remaining) for _ in result.tensors] for result in program.results]


def gathered(tensors: Sequence[ResultTensor], batch: Batch, values: Values) -> Arrays:
    """Return the tensors [rows, *shape] each; spare rows repeat a real one."""

    def rows(section: Section) -> Array:
        """Return the rows of a value buffer that a tensor reads [rows]."""
        return batch.read(section, 0, *section.shape)

    return [take(values.of(batch, x.type), rows(x.section)) for x in tensors]
