# SPDX-License-Identifier: Apache-2.0
"""Predictions: the results of any number of examples, computed batch by batch."""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jfold.base.errors import short_repr
from jfold.base.tracebacks import api_boundary
from jfold.data.adoption import Traced
from jfold.data.batches import Batch, batches
from jfold.data.corpus import Corpus, join
from jfold.data.progress_bars import progress_bar
from jfold.data.scheduler import Scheduling
from jfold.program.operations import Program
from jfold.ragged import MetricValues, assemble_value, pick_rows
from jfold.scheduling.schedule import Schedule
from jfold.scheduling.shards import Sharding, make_shards
from jfold.types import SequenceType, leaf_types, pack

Array = np.ndarray[Any, Any]


@api_boundary
def predict(
    model: Any,
    params: Mapping[str, Any],
    source: object,
    *,
    batch_size: int = 64,
    sharding: Sharding | None = None,
    external: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Any:
    """Return the results of all examples, in their order, as arrays of NumPy.

    A method of `Model`. Batches are made on a thread while the device works, all of one
    size, so that the last needs no program of its own. Only the examples of a few
    batches are in memory. Programs compiled here do not count towards `max_programs`,
    and may exceed it.

    Args:
      model: as `jfold.compile` returns it.
      params: as in `Model.apply`.
      source: a corpus of this model, what its tracer made, a list or another sequence,
        or any other iterable of examples.
      batch_size: examples in a batch.
      sharding: as in `Model.batches`, over devices of this process.
      external: as in `Model.apply`, the same for all batches.
      progress: shows a progress bar, on a terminal or in a notebook, after a few
        seconds.

    Returns:
      The results of `Model.apply` for all examples in one batch, without spare rows:
      arrays [examples, ...] in tuples, `Ragged` for sequences; with `Metric` blocks a
      pair of these results and a dict of `MetricValues`, whose `example` is the number
      among all examples. It has no labels of metrics: those are in schedules alone.

    Raises:
      InputError: an example does not fit; the error has its number among all examples.
      TypeError, ValueError: see `Model.batches` and `Model.apply`.

    >>> import jax.numpy as jnp, jfold as jf
    >>> model = jf.compile(jf.Map(jf.Scalar()) >> jf.Sum())
    >>> model.predict({}, ([n] * n for n in range(5)), batch_size=2)
    array([ 0.,  1.,  4.,  9., 16.], dtype=float32)
    """

    if isinstance(source, Mapping) and not isinstance(params, Mapping):
        raise TypeError(
            f'expected `params` and then examples, got {short_repr(params)} first: '
            'write `model.predict(params, examples)`'
        )

    def run_batch(schedule: Schedule) -> Any:
        return model.apply(params, schedule, external, deterministic=True)

    # Programs for predictions do not count towards the limit of the model.
    scheduler = model.scheduler.without_limit()
    if isinstance(source, Corpus) and source.scheduler is model.scheduler:
        source = replace(source, scheduler=scheduler)
    twin = copy.copy(model)
    twin.scheduler = scheduler
    twin._recorded = None  # the program may not grow, since the parameters fit this one
    return predictions(twin, run_batch, source, batch_size, sharding, progress)


def predictions(
    model: Scheduling,
    run_batch: Callable[[Schedule], Any],
    source: object,
    batch_size: int,
    sharding: Sharding | None,
    progress: bool,
) -> Any:
    """Return the results of `source`, see `predict`; `run_batch` runs a schedule."""
    if sharding is not None and not make_shards(sharding).sharding.is_fully_addressable:
        raise ValueError(
            'expected `sharding` over devices of this process, got one over those of '
            'others: give each process its own examples'
        )
    if isinstance(source, Traced):
        source = join(model, [source])
    total = operator.length_hint(source, -1)
    parts = []
    with batches(model, source, batch_size, sharding=sharding) as iterator:
        # Batches are paired with their followers, so the device computes the next one
        # while the results of this one are read.
        started = ((batch, run_batch(batch.schedule)) for batch in iterator)
        end: Any = None
        done = (pair for pair, _ in itertools.pairwise(itertools.chain(started, [end])))
        first = [*itertools.islice(done, 1)]  # compiles, before the bar begins to wait
        known = total if total >= 0 else None
        with progress_bar('predict', known, progress) as update:
            for batch, results in itertools.chain(first, done):
                parts.append(_real_rows(batch, results, model.scheduler.program))
                update(batch.count)
    parts = parts or [_no_results(model.scheduler.program)]
    return jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)


def _real_rows(batch: Batch, results: Any, program: Program) -> object:
    """Return `results` without spare rows, ordered by place in the source."""
    real = np.flatnonzero(batch.mask)
    rows = real[np.argsort(batch.indices[real], kind='stable')]

    def real_metric(metric: MetricValues) -> MetricValues:
        real = np.flatnonzero(np.asarray(metric.mask))
        example = batch.indices[np.asarray(metric.example)[real]]
        order = np.argsort(example, kind='stable')
        return _metric(pick_rows(metric.values, real[order]), example[order])

    if not program.metric_results:
        return pick_rows(results, rows)
    value, metrics = results
    metrics = {name: real_metric(x) for name, x in metrics.items()}
    return pick_rows(value, rows), metrics


def _metric(values: object, example: Array) -> MetricValues:
    rows: Any = example.astype(np.int32), np.ones(len(example), bool)
    return MetricValues(values, *rows)


def _no_results(program: Program) -> object:
    """Return the results of zero examples: arrays without rows."""

    def no_rows(type_: Any) -> Array:
        if isinstance(type_, SequenceType):  # of which results have lengths
            return np.zeros(0, np.int32)
        dtype = jax.dtypes.canonicalize_dtype(type_.dtype)
        return np.zeros((0, *type_.shape), dtype)

    results = program.results
    return program.assemble(
        [list(map(no_rows, leaf_types(result.type))) for result in results],
        lambda tables: assemble_value(program.output, tables),
        lambda r, tensors: _metric(pack(results[r].type, tensors), np.zeros(0)),
    )
