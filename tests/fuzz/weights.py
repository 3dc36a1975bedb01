# SPDX-License-Identifier: Apache-2.0
"""Cotangents of what a batch gives, and the gradients that the twin makes of them.

A value has levels: what is of no sequence, then the items of each, with lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import jfold as jf
from fuzz.twin import Evaluated, Gradients, Twin
from jfold.program.result_tables import nesting
from jfold.types import SequenceType, Type, leaf_types

Rows = list[list[Any]]  # per row its tensors, a sequence's length among them


def tensors_by_level(values: Any) -> list[list[Any]]:
    """What `apply` gives: per level the tensors [rows, *shape]."""
    made, waiting = [], [values]
    for each in waiting:  # which grows meanwhile
        leaves = jax.tree.leaves(each, is_leaf=lambda x: isinstance(x, jf.Ragged))
        ragged = [isinstance(x, jf.Ragged) for x in leaves]
        waiting += [
            x.values for x, is_one in zip(leaves, ragged, strict=True) if is_one
        ]
        pairs = zip(leaves, ragged, strict=True)
        made.append([x.lengths if is_one else x for x, is_one in pairs])
    return made


def rows_by_level(type_: Type, value: Any) -> list[Rows]:
    """What `eval` gives: per level the rows, whose tensors are the objects in there."""
    made, waiting = [], [[value]]
    for level, rows in zip(nesting(type_), waiting, strict=False):
        leaves = [
            jax.tree.leaves(row, is_leaf=lambda x: isinstance(x, list)) for row in rows
        ]
        for k, each in enumerate(leaf_types(level)):
            if isinstance(each, SequenceType):
                waiting.append([item for row in leaves for item in row[k]])
        made.append([[_tensor(x) for x in row] for row in leaves])
    return made


def _tensor(leaf: Any) -> Any:
    return np.int32(len(leaf)) if isinstance(leaf, list) else leaf


@dataclass(frozen=True, eq=False)
class Weights:
    """Cotangents of each row of the results.

    Of results with any number of rows they are the same for all rows of an example, as
    the order of those of metrics is free.

    Attributes:
      of_results: per result and tensor [examples, *shape], `None` for ints.
    """

    program: Any
    of_results: list[list[Any]]

    def cotangents(self, schedule: jf.Schedule) -> list[Any]:
        """Of all float leaves of what `apply` returns, whose dtypes hold them."""
        program = self.program
        made = []
        for r in (*program.value_results, *program.metric_results):
            weights = self.of_results[r]
            if r in program.observed:
                of_row = np.asarray(schedule.sections.owners[r].of(schedule.indices))
                weights = [x if x is None else _spread(x, of_row) for x in weights]
            made += _as_held(weights, _types(program, r))
        return [x for x in made if x is not None]

    def of(self, example: int) -> Weights:
        """Those of one example."""

        def part(leaves: list[Any]) -> list[Any]:
            return [x if x is None else x[example : example + 1] for x in leaves]

        return Weights(self.program, [part(leaves) for leaves in self.of_results])


def draw_weights(program: Any, examples: int, rng: np.random.Generator) -> Weights:
    """Weights for so many examples, that dtypes hold."""

    def draw(r: int) -> list[Any]:
        types = _types(program, r)
        drawn = [
            rng.normal(size=(examples, *t.shape)) if t.differentiable else None
            for t in types
        ]
        return [x if x is None else x.astype(float) for x in _as_held(drawn, types)]

    return Weights(program, [draw(r) for r in range(len(program.results))])


def gradients(
    twin: Twin, runs: Sequence[Evaluated], weights: Weights
) -> list[Gradients]:
    """Those of each example's results by their weights, by the twin."""
    weighted = (list(_weighted(run, weights, i)) for i, run in enumerate(runs))
    return list(map(twin.gradients, runs, weighted))


def _weighted(run: Evaluated, weights: Weights, i: int) -> Iterator[tuple[Any, Any]]:
    """The arrays among an example's results, with the cotangent of each."""
    program = weights.program
    names = [program.results[r].kind.name for r in program.metric_results]
    metrics = [[jax.tree.leaves(row) for row in run.metrics[name]] for name in names]
    tables = [*rows_by_level(program.output, run.value), *metrics]
    for r, rows in zip(
        (*program.value_results, *program.metric_results), tables, strict=True
    ):
        for row in rows:
            for array, weight in zip(row, weights.of_results[r], strict=True):
                if weight is not None:
                    yield array, weight[i]


def _types(program: Any, r: int) -> list[Any]:
    """The types of the tensors of a result."""
    return [program.types[t] for t in program.results[r].tensors]


def _spread(weight: Any, of_row: Any) -> Any:
    """Weights of examples as weights of rows; those of spare rows must not matter."""
    spare = np.ones((1, *weight.shape[1:]), weight.dtype)
    return np.concatenate([weight, spare])[np.minimum(of_row, len(weight))]


def _as_held(weights: list[Any], types: list[Any]) -> list[Any]:
    pairs = zip(weights, types, strict=True)
    return [x if x is None else np.asarray(x, t.dtype) for x, t in pairs]
