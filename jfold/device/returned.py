# SPDX-License-Identifier: Apache-2.0
"""What a user gets of the results of a batch."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jfold.program.operations import Program
from jfold.program.result_tables import handed_out
from jfold.ragged import MetricValues, assembled
from jfold.scheduling.schedule import Schedule
from jfold.types import SequenceType, leaf_types, pack


def returned(
    program: Program, schedule: Schedule, results: list[list[jax.Array]]
) -> Any:
    """What `Model.apply` returns.

    Args:
      results: the tensors [rows, *shape] of each.
    """

    def value_of(tables: list[list[jax.Array]]) -> Any:
        own, *items = tables
        pairs = zip(leaf_types(program.output), own, strict=True)
        own = [
            _lengths(schedule, x) if isinstance(each, SequenceType) else x
            for each, x in pairs
        ]
        return assembled(program.output, [own, *items])

    metric_of = functools.partial(_metric, program, schedule)
    return handed_out(program.results, results, value_of, metric_of)


def _lengths(schedule: Schedule, lengths: jax.Array) -> jax.Array:
    """Of the sequences of examples [rows]; they lie everywhere, as items do."""
    # Rows repeat the last example, but no items: so their sequences are empty.
    real = jnp.where(schedule.mask, lengths, 0)
    shards = schedule.spec.shards
    return real if shards is None else shards.whole(real)


def _metric(
    program: Program, schedule: Schedule, result: int, tensors: list[jax.Array]
) -> MetricValues:
    """The rows that a metric has collected, of its tensors [rows, *shape]."""
    values = pack(program.results[result].type, tensors)
    example = schedule.owners(result)
    return MetricValues(values, example, example < schedule.examples)
