# SPDX-License-Identifier: Apache-2.0
"""The results of a batch in the form that a user gets."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jfold.program.operations import Program
from jfold.ragged import MetricValues, assemble_value
from jfold.scheduling.schedule import Schedule
from jfold.types import SequenceType, leaf_types, pack


def returned(
    program: Program, schedule: Schedule, results: list[list[jax.Array]]
) -> Any:
    """Return what `Model.apply` returns, assembled from the tensors of results.

    Args:
      results: by result, list of arrays, each [rows, *shape].
    """

    def value_of(tables: list[list[jax.Array]]) -> Any:
        leaves, *items = tables
        pairs = zip(leaf_types(program.output), leaves, strict=True)
        leaves = [
            _lengths(schedule, x) if isinstance(type_, SequenceType) else x
            for type_, x in pairs
        ]
        return assemble_value(program.output, [leaves, *items])

    metric_of = functools.partial(_metric, program, schedule)
    return program.assemble(results, value_of, metric_of)


def _lengths(schedule: Schedule, lengths: jax.Array) -> jax.Array:
    """Return sequence lengths [rows], with zero for spare (padding) rows."""
    # Spare rows repeat the last example, but not its items: their sequences are empty.
    real = jnp.where(schedule.mask, lengths, 0)
    shards = schedule.spec.shards
    return real if shards is None else shards.whole(real)


def _metric(
    program: Program, schedule: Schedule, result: int, tensors: list[jax.Array]
) -> MetricValues:
    """Return the rows of the metric of result number `result`, with their examples."""
    values = pack(program.results[result].type, tensors)
    example = schedule.owners(result)
    return MetricValues(values, example, example < schedule.examples)
