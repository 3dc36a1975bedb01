# SPDX-License-Identifier: Apache-2.0
"""The sources of the examples of batches, and how each kind is scheduled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from jfold.data.agreement import Agreement, Channel
from jfold.data.corpus import Corpus, adopt_corpus
from jfold.data.scheduler import Scheduler
from jfold.data.traced import Traced
from jfold.scheduling.assignment import (
    ShardAssignment,
    assign_evenly,
    assign_in_order,
    rows_of_shard,
)
from jfold.scheduling.schedule import Schedule
from jfold.scheduling.shards import Shards

Array = np.ndarray[Any, Any]
# A schedule, and the assignment of its examples to shards; `None` for one device.
Dealt: TypeAlias = tuple[Schedule, ShardAssignment | None]


class Scheduling(Protocol):
    """The protocol of a model from which batches can be made."""

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of the model."""

    def schedule(self, examples: list[Any], *, size: int | None = None) -> Schedule:
        """Return the schedule of examples; see `Model.schedule`."""


@dataclass(frozen=True, eq=False)
class Source:
    """A source of examples: a corpus, a sequence or a stream.

    Its items are examples; for a corpus, places in it.

    Attributes:
      argument: what the user passed; a corpus is adopted by the model.
      build: returns the schedule of items, given the number of rows and the shards.
      agreement: the channel to other processes, if each has a stream of its own.
      items: takes places [n] and returns the items there; `None` for a stream.
      corpus: the argument, if it is a corpus.
    """

    argument: Any
    build: Callable[[list[Any], int, Shards | None], Dealt]
    agreement: Channel | None = None
    items: Callable[[Array], list[Any]] | None = None
    corpus: Corpus | None = None

    def fail(self, error: Exception) -> None:
        """Tell other processes, if any, that this stream failed with `error`."""
        if self.agreement is not None:
            self.agreement.fail(error)

    def finish(self) -> None:
        """Tell other processes, if any, that this stream has ended; wait for theirs.

        Raises:
          RuntimeError: another has more; see `Channel.finish`.
        """
        if self.agreement is not None:
            self.agreement.finish()

    @property
    def nodes(self) -> Array | None:
        """The operations of each example [examples] int64; `None` without a corpus."""
        return None if self.corpus is None else self.corpus.nodes


def make_source(model: Scheduling, source: Any, shards: Shards | None = None) -> Source:
    """Return the `Source` for the argument `source` of `Model.batches`.

    Args:
      shards: the devices that share each batch; `None` for one device.

    Raises:
      TypeError: `source` holds no examples or may be one; or `model` is no model.
      ValueError: `source` is a corpus of another expression.
    """
    if not callable(getattr(model, 'schedule', None)):
        got = type(model).__name__
        raise TypeError(f'expected a model as `jfold.compile` returns it, got {got}')
    channel = None
    if shards is not None and not shards.is_local:
        channel = Agreement('batches').among(shards)
    traced = functools.partial(_schedule_traced, model, channel)
    # A tuple, text or dict may be one example, passed by mistake in place of several.
    if not isinstance(source, tuple | str | bytes | Mapping | type):
        if hasattr(source, 'capacities_of'):
            source = adopt_corpus(model.scheduler, source)
            stored = functools.partial(_schedule_stored, source)
            items = lambda places: list(places.tolist())  # noqa: E731
            # All processes have the same corpus, so they need no messages.
            return Source(source, stored, None, items, source)
        if hasattr(source, '__len__') and hasattr(source, '__getitem__'):
            items = functools.partial(_items_at, source, len(source))
            return Source(source, traced, None, items)
        if isinstance(source, Iterable):
            return Source(source, traced, channel)
    raise TypeError(
        'expected a corpus, a sequence or a stream of examples as `source`, got '
        f'{type(source).__name__}: pass `[example]` for a single one'
        f'{", `list(source)` for several" if isinstance(source, tuple) else ""}'
    )


def _schedule_traced(
    model: Scheduling,
    channel: Channel | None,
    items: list[Any],
    size: int,
    shards: Shards | None,
) -> Dealt:
    """Return the schedule of examples `items`, traced here, with `size` rows."""
    if shards is None:
        return model.schedule(items, size=size), None
    if channel is not None:
        return schedule_part(model.scheduler, items, size, shards, channel)
    selection = model.scheduler.select(items)
    work = selection.graph.nodes_of_examples.tolist()
    deal = assign_evenly(shards, size // shards.count, work)
    return model.scheduler.schedule(selection, deal), deal


def schedule_part(
    scheduler: Scheduler,
    examples: Iterable[Any] | Traced,
    size: int | None,
    shards: Shards,
    agreement: Channel,
    begin: float | None = None,
) -> tuple[Schedule, ShardAssignment]:
    """Return the schedule of a batch of which each process has a part.

    All processes with devices of the mesh call this together. If tracing fails in one,
    the error is also sent to the others.

    Args:
      examples: the part of this process, for its shards in order.
      size: rows of the results of all parts; by default as many in each shard as the
        largest part needs.

    Returns:
      The schedule, and the assignment of this process's examples to its shards.

    Raises:
      RuntimeError: another process has no part; see `Channel.need`. Other errors: see
        `Scheduler.select`, `rows_of_shard`.
    """
    count = len(shards.own)
    try:
        selection = scheduler.select(examples)
        part = None if size is None else rows_of_shard('size', shards, 0, size) * count
        rows = rows_of_shard('size', shards, len(selection), part, count)
    except Exception as error:
        agreement.fail(error)
        raise
    rows = agreement.most(rows) if size is None else rows
    deal = assign_in_order(shards, rows, len(selection), count)
    return scheduler.schedule(selection, deal, begin, agreement), deal


def _schedule_stored(
    corpus: Corpus, items: list[Any], size: int, shards: Shards | None
) -> Dealt:
    """Return the schedule of the examples at places `items` of a corpus."""
    places = np.array(items, np.int64)
    if shards is None:
        return corpus.schedule(places, size=size), None
    work = corpus.nodes[places].tolist()
    deal = assign_evenly(shards, size // shards.count, work)
    return corpus.scheduler.schedule(corpus.select(places), deal), deal


def _items_at(items: Sequence[Any], length: int, places: Array) -> list[Any]:
    """Return the items at `places` [n]; raise ValueError if the length has changed."""
    try:
        if len(items) == length:
            return [items[i] for i in places.tolist()]
    except IndexError:
        if len(items) == length:
            raise
    raise ValueError(
        f'expected a source of {length} examples, as when its batches were made, got '
        f'one of {len(items)}: leave it alone while batches are taken, or pass a copy'
    )
