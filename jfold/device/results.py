# SPDX-License-Identifier: Apache-2.0
"""The tensors that an execution returns, outputs and metrics alike."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import jax.numpy as jnp
from jax import Array

from jfold.components import Makers, sources
from jfold.device.arrays import Arrays, masked
from jfold.device.buffers import Values, take
from jfold.device.sections import Batch
from jfold.planning.layout import Spec, layout
from jfold.program import Program

T = TypeVar('T')
Results: TypeAlias = tuple[list[T], list[list[T]]]


@dataclass(frozen=True)
class Result:
    """One tensor of the expression's result, or of what a metric collects.

    Attributes:
      type: number of its type.
      section: of the index array.
      rows: how many there are.
      edge: its first row in the edge buffer.
      metric: whose number of values is data; `None` if all rows count.
      makers: the operations' results that it may consist of.
    """

    type: int
    section: Hashable
    rows: int
    edge: int
    metric: int | None
    makers: Makers

    def masked(self, batch: Batch, x: Array) -> Array:
        """`x` [rows, *shape], zero where rows stand for no value of a metric."""
        if self.metric is None:
            return x
        return masked(x, jnp.arange(self.rows) < batch.observed(self.metric))


def results_of(spec: Spec) -> tuple[Result, ...]:
    """The tensors of the result, then of each metric."""
    program, capacity, places = spec.program, spec.capacity, layout(spec)
    makers = sources(program)
    outputs = [
        Result(t, ('output', j), capacity.examples, edge, None, made)
        for j, (t, edge, made) in enumerate(
            zip(program.output_types, places.edge_outputs, makers.outputs, strict=True)
        )
    ]
    metrics = [
        Result(t, ('metric', m, j), capacity.metrics[m], edge, m, made)
        for m, (_, _, types) in enumerate(program.metrics)
        for j, (t, edge, made) in enumerate(
            zip(types, places.edge_metrics[m], makers.metrics[m], strict=True)
        )
    ]
    return *outputs, *metrics


def grouped(program: Program, tensors: Sequence[T]) -> Results[T]:
    """Tensors in the order of `results_of` as the result's, and each metric's."""
    rest = iter(tensors)
    outputs = [next(rest) for _ in program.output_types]
    return outputs, [[next(rest) for _ in types] for _, _, types in program.metrics]


def gathered(results: Sequence[Result], batch: Batch, values: Values) -> Arrays:
    """The tensors [rows, *shape] each, rows that stand for nothing zero."""
    tensors = []
    for result in results:
        rows = batch.results(result.section, result.rows)
        x = take(values.of(batch, result.type), rows)
        tensors.append(result.masked(batch, x))
    return tensors
