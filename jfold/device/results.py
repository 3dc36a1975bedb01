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
    """A tensor of a result of the program.

    Attributes:
      type: number of its type.
      section: of the index array, [rows] indices of the rows that it reads from the
        value buffer of its type.
      edge: the first of its rows in the edge buffer, where its cotangent is put.
      makers: the results of operations that it may read, as a bit set.
    """

    type: int
    section: Section
    edge: int
    makers: ProducerSet


def returned(spec: Spec) -> tuple[ResultTensor, ...]:
    """Return the tensors of all results of a program, in order."""
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
    """Return the tensors of each result, from one list ordered as by `returned`."""
    remaining = iter(tensors)
    return [[next(remaining) for _ in result.tensors] for result in program.results]


def gathered(tensors: Sequence[ResultTensor], batch: Batch, values: Values) -> Arrays:
    """Return the tensors of all results, each [rows, *shape].

    Spare (padding) rows repeat a real one.
    """

    def rows(section: Section) -> Array:
        """Return the row indices [rows] into a value buffer that a tensor reads."""
        return batch.read(section, 0, *section.shape)

    return [take(values.of(batch, x.type), rows(x.section)) for x in tensors]
